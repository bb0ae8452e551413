"""Where the decoding kernels find the memory of each column, and what its limits are."""

from __future__ import annotations

from typing import Final

SLACK_BYTES: Final = 64
"""Every text buffer is so much longer than its content: short copies write whole words."""
TAIL_BYTES: Final = 2 * 0x8000
"""Longest topic and property block together, with their lengths."""

# Places in the table of column addresses. 32-bit integers:
SIZE: Final = 0
MAGIC: Final = 1
QUEUE_ID: Final = 2
FLAG: Final = 3
SYS_FLAG: Final = 4
BODY_CRC: Final = 5
BORN_PORT: Final = 6
STORE_PORT: Final = 7
RECONSUME_TIMES: Final = 8
# 64-bit integers:
PHYSICAL_OFFSET: Final = 9
QUEUE_OFFSET: Final = 10
BORN_TIMESTAMP: Final = 11
STORE_TIMESTAMP: Final = 12
PREPARED_TRANSACTION_OFFSET: Final = 13
# One byte a row, whether a value that can be missing in a message is there; and two booleans:
HAS_TOPIC: Final = 14
HAS_BORN_TIMESTAMP: Final = 15
HAS_STORE_TIMESTAMP: Final = 16
HAS_KEYS: Final = 17
HAS_TAGS: Final = 18
HAS_UNIQUE_KEY: Final = 19
HAS_PROPERTIES: Final = 20
TERMINATED: Final = 21
NEEDS_RAW: Final = 22
# 32-bit offsets of texts, then the texts in the same order:
TOPIC_OFFSETS: Final = 23
BORN_HOST_OFFSETS: Final = 24
STORE_HOST_OFFSETS: Final = 25
KEYS_OFFSETS: Final = 26
TAGS_OFFSETS: Final = 27
UNIQUE_KEY_OFFSETS: Final = 28
BODY_OFFSETS: Final = 29
NAME_OFFSETS: Final = 30
VALUE_OFFSETS: Final = 31
TOPIC: Final = 32
BORN_HOST: Final = 33
STORE_HOST: Final = 34
KEYS: Final = 35
TAGS: Final = 36
UNIQUE_KEY: Final = 37
BODY: Final = 38
NAMES: Final = 39
VALUES: Final = 40
# Where each row's property pairs begin, and memory to work in:
PAIR_OFFSETS: Final = 41
TAIL: Final = 42
COLUMNS: Final = 43

INT32_COLUMNS: Final = tuple(range(SIZE, PHYSICAL_OFFSET))
INT64_COLUMNS: Final = tuple(range(PHYSICAL_OFFSET, HAS_TOPIC))
FLAG_COLUMNS: Final = tuple(range(HAS_TOPIC, TOPIC_OFFSETS))

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999, what every reader of the lake can represent."""

NAME_TABLE_SLOTS: Final = 1 << 14
"""Twice as many as names fit into a property block of 32,767 bytes."""

# Where the texts written so far end, and how many pairs there are: places in a kernel's own state.
PAIRS_END: Final = 0
NAMES_END: Final = 1
VALUES_END: Final = 2
KEYS_END: Final = 3
TAGS_END: Final = 4
UNIQUE_KEY_END: Final = 5
ENDS: Final = 6
