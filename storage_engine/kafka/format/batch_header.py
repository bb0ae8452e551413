"""Positions of a record batch's fields, in bytes from its first one. Whole numbers are big-endian."""

from __future__ import annotations

from typing import Final

BASE_OFFSET_AT: Final = 0
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61

LENGTH_OVERHEAD: Final = 12
"""The length field counts what lies behind it."""
MAGIC: Final = 2
"""Magic of the format since Kafka 0.11. 0 and 1 are message sets, whose fields lie elsewhere."""
LEGACY_CRC_AT: Final = 12
MIN_LEGACY_BYTES: Final = 26
"""Bytes of a message of format 0 without key and value, with offset and length."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
"""Records have the time at which the broker took them; it is the batch's largest timestamp."""
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
"""The records are markers, as of a commit or an abort."""
DELETE_HORIZON: Final = 0x40
"""The base timestamp is the time from which the cleaner drops tombstones and markers."""

NO_TIMESTAMP: Final = -1
MIN_RECORD_BYTES: Final = 7
"""Length, attributes, two deltas, key length, value length, number of headers: a byte each."""
