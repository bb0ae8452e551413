"""The write path of a RocketMQ-compatible store: append, flush, dispatch, checkpoint, recovery.

Its files are byte for byte those of the broker's DefaultMessageStore, and this package's readers read them.
If the disk refuses, functions pass the OSError on. A put returns a status instead.
"""
