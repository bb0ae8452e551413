"""The write path of a RocketMQ-compatible store: append, flush, dispatch, checkpoint, recovery.

It writes the files byte for byte as the broker's DefaultMessageStore does, and this package's readers read
them.
"""
