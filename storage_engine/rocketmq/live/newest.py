"""When the newest message of a running broker's log was stored, by the few bytes before the log's end."""

from __future__ import annotations

import os
import struct

from storage_engine.exceptions import CorruptFrameError
from storage_engine.rocketmq.commitlog import read_store_timestamp
from storage_engine.rocketmq.frame import MAGIC_AT, MAGIC_V1, MAGIC_V2
from storage_engine.rocketmq.layout import StoreLayout
from storage_engine.rocketmq.mapped_files import MappedFile, list_raw_files, readable_files
from storage_engine.rocketmq.stored_files import open_stored

_MAGICS = tuple(struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2))
_WINDOWS_BYTES = (1 << 16, 1 << 20, 1 << 24)
"""How far back it is looked for a message's beginning; a broker takes none above 4 MiB by default."""


def newest_message_ms(layout: StoreLayout, max_offset: int) -> int | None:
    """Store time of the last message before ``max_offset``; None where its file has none or is gone.

    :param max_offset: the broker's; nothing behind it is looked at, as it may be half written.
    :raises OSError: the file can't be read.
    """
    for file in readable_files(list_raw_files(layout.log_paths)):
        if file.base_offset < max_offset <= file.end_offset:
            return _newest_in(file, max_offset - file.base_offset)
    return None


def _newest_in(file: MappedFile, end: int) -> int | None:
    for window in _WINDOWS_BYTES:
        start = max(0, end - window)
        with open_stored(file.path) as opened:
            data = os.pread(opened.fileno(), end - start, start)
        at = len(data)
        while (at := max(data.rfind(magic, 0, at) for magic in _MAGICS)) >= 0:
            # A magic in a body is followed by the offset of its place only by a rare chance.
            try:
                return read_store_timestamp(file.path, start + at - MAGIC_AT, file.base_offset)
            except (CorruptFrameError, OSError, ValueError):
                continue
        if start == 0:
            break
    return None
