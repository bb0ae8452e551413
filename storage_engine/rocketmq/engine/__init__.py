"""The write path of a RocketMQ-compatible store: append, flush, dispatch, checkpoint, recovery.

It writes what the readers of this package read, byte for byte as the broker's DefaultMessageStore does.
"""
