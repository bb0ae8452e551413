"""Whether a directory is the store of the broker that answers: by its newest frames, not by its path."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.model.store import LogSnapshot
from storage_engine.rocketmq.frame import MAGIC_V1, MAGIC_V2, MIN_MESSAGE_BYTES
from storage_engine.rocketmq.remoting.admin import BrokerAdmin


def check_same_store(admin: BrokerAdmin, log: LogSnapshot, root: str) -> None:
    """Compare where the log begins, and the first frame of the newest segment that has one.

    :param log: as the files show it; the broker may have deleted from its beginning since.
    :raises BadInputError: they differ.
    """
    min_offset = admin.runtime_info().commitlog_min_offset
    if min_offset not in {segment.base_offset for segment in log.segments}:
        raise BadInputError(
            f"{root}: expected the store of broker {admin.address}, whose log begins at {min_offset}, found "
            f"files that begin at {log.min_offset}. Nothing was changed. Check the path, what is mounted "
            "there, and the address."
        )
    for segment in reversed(log.segments):
        frame = _first_frame(Path(segment.facts.path))
        if frame is None:
            continue
        found = admin.view_message(segment.base_offset)
        if found == frame:
            return
        raise BadInputError(
            f"{segment.facts.path}: expected the store of broker {admin.address}, found another message at "
            f"offset {segment.base_offset} than the broker has there. Nothing was changed. Check the path, "
            "what is mounted there, and the address."
        )


def _first_frame(path: Path) -> bytes | None:
    """A segment's first frame; None where no message begins it."""
    with path.open("rb", buffering=0) as file:
        header = os.pread(file.fileno(), 8, 0)
        if len(header) < 8:
            return None
        size, magic = struct.unpack(">iI", header)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_MESSAGE_BYTES:
            return None
        return os.pread(file.fileno(), size, 0)
