"""Layout of a commitlog frame: constants only, so that importing it costs nothing.

All integers are big-endian. The offsets below assume IPv4 hosts. A host that the system flag marks as IPv6
takes 12 more bytes and moves the fields behind it. ``frame_kernels.py`` checks frames for ``commitlog.py``.
"""

from __future__ import annotations

from typing import Final

MAGIC_V1: Final = 0xDAA320A7
"""Magic of a message whose topic length field has one byte."""
MAGIC_V2: Final = 0xDAA320AB
"""Magic of a message whose topic length field has two bytes."""
MESSAGE_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
MAGIC_BLANK: Final = 0xCBD43194
"""Magic of the filler behind a segment's last message. The filler takes the whole rest of the file."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
BODY_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
BORN_TIMESTAMP_AT: Final = 40
BORN_HOST_AT: Final = 48
STORE_TIMESTAMP_AT: Final = 56
"""This offset and all below assume an IPv4 born host."""
STORE_HOST_AT: Final = 64
RECONSUME_TIMES_AT: Final = 72
PREPARED_TRANSACTION_OFFSET_AT: Final = 76
BODY_LENGTH_AT: Final = 84
BODY_AT: Final = 88

IPV6_EXTRA_BYTES: Final = 12
"""Length of an IPv6 address minus that of an IPv4 address."""
MIN_MESSAGE_BYTES: Final = 91
"""Size of a message without body, topic and properties: 88 + 1 (topic length) + 2 (properties length)."""
BLANK_HEADER_BYTES: Final = 8
"""Bytes of a blank frame's header. The broker writes only size and magic; bytes behind them are leftovers."""

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_MASK: Final = 0xC
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_TYPE_MASK: Final = 0x700

CRC_MASK: Final = 0x7FFFFFFF
"""Mask for CRCs, which are stored without their highest bit, so that Java's int is never negative."""

NAME_VALUE_SEPARATOR: Final = 0x01
PROPERTY_SEPARATOR: Final = 0x02
PROPERTY_KEYS: Final = b"KEYS"
PROPERTY_TAGS: Final = b"TAGS"
PROPERTY_UNIQUE_KEY: Final = b"UNIQ_KEY"
PROPERTY_CRC: Final = b"__CRC32#"
PROPERTY_CRC_BYTES: Final = 20
"""Length of a CRC property: ``__CRC32#``, separator, ten digits (least significant first), separator."""

FILLER_TOPIC: Final = "storage-engine-filler"
"""Topic of filler frames, which replace messages that a lake no longer has."""
FILLER_BYTES: Final = 1 << 20
"""Most bytes of one filler frame, since a broker reads a whole frame into memory."""

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Topic of waiting delayed messages (TopicValidator#RMQ_SYS_SCHEDULE_TOPIC)."""

SYSTEM_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        "TBW102",
        "BenchmarkTest",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "CHECKPOINT_TOPIC",
    }
)
"""The broker's own topics (TopicValidator) whose names don't begin with :data:`SYSTEM_PREFIX`."""

SYSTEM_PREFIX: Final = "rmq_sys_"
"""Prefix of the names of the broker's other topics, in small or capital letters."""


def ip_bytes(sys_flag: int, ipv6_bit: int) -> int:
    """Return the number of bytes of an address in a frame with this system flag (MessageSysFlag)."""
    return 16 if sys_flag & ipv6_bit else 4
