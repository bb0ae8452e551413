"""Messages of a topic by one of their keys: the index finds them by a hash, the log confirms them.

Which messages the index may lack is told from the headers of its files.
"""

from __future__ import annotations

import struct

from storage_engine.core.untrusted import java_text
from storage_engine.exceptions import StoreBusyError
from storage_engine.model.report.inspection import KeyLookup
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.stored_messages import StoredMessage, read_message
from storage_engine.rocketmq.file_facts import LogListing, list_log
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.index_file import open_index, read_index_files
from storage_engine.rocketmq.format.layout import StoreLayout, is_new
from storage_engine.rocketmq.format.mapped_files import mapped

_START = struct.Struct(">II")
_FLAGS = struct.Struct(">i")
_MESSAGES = (frame.MAGIC_V1, frame.MAGIC_V2)
_KEY_PROPERTIES = (b"KEYS\x01", b"UNIQ_KEY\x01")
_MOST_READ = 1000
"""Messages of a range that are read to pass over those without a key."""


def look_up(
    layout: StoreLayout, config: BrokerConfig, topic: str, key: str, max_count: int | None = None
) -> KeyLookup:
    """Find the messages of a topic that have a key.

    The broker answers by the hash of topic and key alone (DefaultMessageStore#queryMessage), and its clients
    compare topic and keys (MQAdminImpl#queryMessage), as this does.

    :param key: one of the message's keys, or its unique key.
    :param max_count: at most so many, the newest; None: as many as the broker gives (maxMsgsNumBatch).
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


def unindexed_ranges(layout: StoreLayout, config: BrokerConfig) -> tuple[tuple[int, int | None], ...]:
    """Return between which physical offsets messages may lie that no index file was made over.

    Messages without a key aren't indexed: the first ones of a range are read, and passed over.

    :return: first offset of each range, and the offset behind it; None: up to the log's end.
    :raises CorruptFileError: an index file that can't be one.
    :raises StoreNotFoundError: there is no segment.
    """
    if is_new(layout):
        return ()
    log = list_log(layout)
    log_end = log.named[-1].end_offset
    ranges: list[tuple[int, int | None]] = []
    position = _first_message_at(log, log.min_offset)
    for file in read_index_files(layout, config):
        begin, end = file.header.begin_phy_offset, file.header.end_phy_offset
        if file.header.next_entry <= 1 or position is None:
            continue
        if (first := _first_with_key(log, position, begin)) is not None:
            ranges.append((first, begin))
        if end >= position:
            position = _message_behind(log, end) if _is_message(log, end) else end
    if position is not None and (first := _first_with_key(log, position, log_end)) is not None:
        ranges.append((first, None))
    return tuple(ranges)


def _first_with_key(log: LogListing, position: int, end: int) -> int | None:
    """Return where the first message that an index has lies between two offsets; None: there is none.

    After some that have no key the next one counts, whatever it has.
    """
    message: int | None = position
    for _ in range(_MOST_READ):
        if message is None or message >= end:
            return None
        if not _is_message(log, message):
            return message
        content = log.read_at(message, _start(log, message)[0])
        (flags,) = _FLAGS.unpack_from(content.ljust(frame.MIN_MESSAGE_BYTES, b"\0"), frame.SYS_FLAG_AT)
        is_rolled_back = flags & frame.TRANSACTION_MASK == frame.TRANSACTION_ROLLBACK
        if not is_rolled_back and any(name in content for name in _KEY_PROPERTIES):
            return message
        message = _message_behind(log, message)
    return message


def _message_behind(log: LogListing, offset: int) -> int | None:
    """Return where the message behind the one at an offset begins; None: there is none."""
    return _first_message_at(log, offset + _start(log, offset)[0])


def _first_message_at(log: LogListing, offset: int) -> int | None:
    """Return where the first message from the end of another on begins; None: there is none."""
    size, magic = _start(log, offset)
    if magic == frame.MAGIC_BLANK:
        offset += size
    return offset if _is_message(log, offset) else None


def _is_message(log: LogListing, offset: int) -> bool:
    return _start(log, offset)[1] in _MESSAGES


def _start(log: LogListing, offset: int) -> tuple[int, int]:
    """Return size and magic code of what begins at an offset; zeros: nothing does."""
    content = log.read_at(offset, _START.size)
    size, magic = _START.unpack(content) if len(content) == _START.size else (0, 0)
    return size, magic
