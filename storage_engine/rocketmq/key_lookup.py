"""Messages of a topic by one of their keys: the index finds them by a hash, the log confirms them."""

from __future__ import annotations

import struct

from storage_engine.core.java_text import java_text
from storage_engine.exceptions import StoreBusyError
from storage_engine.model.report.inspection import KeyLookup
from storage_engine.rocketmq.checks.log_facts import LogListing, list_log
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.stored_messages import StoredMessage, read_message
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.index_file import open_index
from storage_engine.rocketmq.format.layout import StoreLayout, is_new
from storage_engine.rocketmq.format.mapped_files import mapped


def look_up(
    layout: StoreLayout, config: BrokerConfig, topic: str, key: str, max_count: int | None = None
) -> KeyLookup:
    """Find the messages of a topic that have a key.

    The broker answers by the hash of topic and key alone (DefaultMessageStore#queryMessage), and its clients
    compare topic and keys (MQAdminImpl#queryMessage), as this does.

    :param key: one of the message's keys, or its unique key.
    :param max_count: at most so many, the newest; None: as many as the broker gives (maxMsgsNumBatch).
    :param config: the broker's settings.
    :raises CorruptFileError: an index file that can't be one.
    :raises StoreNotFoundError: there is no segment.
    """
    if is_new(layout):
        return KeyLookup((), ())
    most = config.max_msgs_num_batch if max_count is None else max_count
    log = list_log(layout)
    offsets: list[int] = []
    unread: list[int] = []
    with open_index(layout, config) as index:
        for offset in index.newest_first(topic, key):
            if len(offsets) >= most:
                break
            message = _message_at(log, offset)
            if message is None:
                unread.append(offset)
            elif _has_key(message, topic, key):
                offsets.append(offset)
    return KeyLookup(tuple(sorted(offsets)), tuple(sorted(unread)))


def _message_at(log: LogListing, offset: int) -> StoredMessage | None:
    """Return the message that begins at a physical offset; None: none can be read there."""
    for file in log.named:
        if file.base_offset <= offset < file.end_offset:
            try:
                with mapped(file.path, scattered=True) as data:
                    return read_message(data, offset - file.base_offset, offset)
            except (struct.error, ValueError, FileNotFoundError, StoreBusyError):
                return None
    return None


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether a message is indexed under a topic and a key (IndexService#buildIndex)."""
    if java_text(message.topic) != topic:
        return False
    unique, keys = (
        java_text(message.property(name) or b"") for name in (frame.PROPERTY_UNIQUE_KEY, frame.PROPERTY_KEYS)
    )
    return bool(key) and (key == unique or key in keys.split(" "))
