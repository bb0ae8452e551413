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
# 16 bytes a row, Arrow's binary views:
BODY: Final = 14
# One byte a row, whether a value that can be missing in a message is there; and a boolean:
HAS_TOPIC: Final = 15
HAS_BORN_TIMESTAMP: Final = 16
HAS_STORE_TIMESTAMP: Final = 17
HAS_KEYS: Final = 18
HAS_TAGS: Final = 19
HAS_UNIQUE_KEY: Final = 20
HAS_PROPERTIES: Final = 21
NEEDS_RAW: Final = 22
# 32-bit offsets of texts, then the texts in the same order:
TOPIC_OFFSETS: Final = 23
BORN_HOST_OFFSETS: Final = 24
STORE_HOST_OFFSETS: Final = 25
KEYS_OFFSETS: Final = 26
TAGS_OFFSETS: Final = 27
UNIQUE_KEY_OFFSETS: Final = 28
PROPERTIES_OFFSETS: Final = 29
TOPIC: Final = 30
BORN_HOST: Final = 31
STORE_HOST: Final = 32
KEYS: Final = 33
TAGS: Final = 34
UNIQUE_KEY: Final = 35
PROPERTIES: Final = 36
# Memory to work in:
TAIL: Final = 37
HOSTS: Final = 38
COLUMNS: Final = 39

INT32_COLUMNS: Final = tuple(range(SIZE, PHYSICAL_OFFSET))
INT64_COLUMNS: Final = tuple(range(PHYSICAL_OFFSET, BODY))
FLAG_COLUMNS: Final = tuple(range(HAS_TOPIC, TOPIC_OFFSETS))

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""Years 1 to 9999, what every reader of the lake can represent."""

# A binary view: its length, then the bytes themselves or their first four, buffer and place.
VIEW_BYTES: Final = 16
VIEW_INLINE_BYTES: Final = 12

# Texts of addresses that were met, so that each is made only once. An address's place is given by its
# hash; an entry is the address in two words, a word of its width and its text's length, the text.
HOST_SLOTS: Final = 256
HOST_ENTRY_BYTES: Final = 64
HOST_TEXT_AT: Final = 24
HOSTS_BYTES: Final = HOST_SLOTS * HOST_ENTRY_BYTES

# Where the texts written so far end: places in a kernel's own state.
KEYS_END: Final = 0
TAGS_END: Final = 1
UNIQUE_KEY_END: Final = 2
PROPERTIES_END: Final = 3
BORN_HOST_END: Final = 4
STORE_HOST_END: Final = 5
ENDS: Final = 6
