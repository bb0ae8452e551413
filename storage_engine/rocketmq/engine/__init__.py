"""The write path of a RocketMQ-compatible store: append, flush, dispatch, checkpoint, recovery.

It writes what the readers of this package read, byte for byte as the broker's DefaultMessageStore does.
Whatever writes, flushes or deletes here raises OSError where the disk refuses, or has refused before.
"""
