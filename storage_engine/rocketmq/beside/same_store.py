"""Whether a directory is the store of the broker that answers: by newest frame and lock, not by path."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.beside.rights import as_who_may_read
from storage_engine.rocketmq.frame import MAGIC_V1, MAGIC_V2, MIN_MESSAGE_BYTES
from storage_engine.rocketmq.layout import StoreLayout
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.rocketmq.store_lock import is_locked
from storage_engine.rocketmq.store_times import LogFile


def check_same_store(
    admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout, files: Sequence[LogFile]
) -> None:
    """Compare the first frame of the newest segment that has one, and whether a broker runs on these files.

    A copy has the same frames; a broker's lock it hasn't.

    :param info: asked for before the files were listed.
    :param files: of the log, in order; older ones may be gone by now.
    :raises BadInputError: they aren't the broker's.
    """
    _check_reaches_end(admin, info, layout, files)
    with as_who_may_read(layout.root):
        locked = is_locked(layout)
    if locked is False:
        raise BadInputError(
            f"{layout.root}: expected the store on which broker {admin.address} runs, found that no process "
            f"has the lock {layout.lock}: it is a copy, or a mount that doesn't show the locks of the "
            "broker's machine. Nothing was changed. Check the path, and run where the broker runs."
        )
    for file in reversed(files):
        if file.base_offset >= info.commitlog_max_offset:
            continue
        with as_who_may_read(layout.root):
            frame = _first_frame(Path(file.path))
        if frame is None:
            continue
        if admin.view_message(file.base_offset) == frame:
            return
        raise BadInputError(
            f"{file.path}: expected the store of broker {admin.address}, found another message at offset "
            f"{file.base_offset} than the broker has there. Nothing was changed. Check the path, what is "
            "mounted there, and the address."
        )


def _check_reaches_end(
    admin: BrokerAdmin, info: RuntimeInfo, layout: StoreLayout, files: Sequence[LogFile]
) -> None:
    """Where the newest message lies there has to be a file."""
    end = info.commitlog_max_offset
    holder = next((file for file in reversed(files) if file.base_offset < end), None)
    if end == info.commitlog_min_offset if holder is None else holder.base_offset + holder.size_bytes >= end:
        return
    there = f"the last at offset {files[-1].base_offset}" if files else "none"
    raise BadInputError(
        f"{layout.root}: expected the store of broker {admin.address}, whose log ends at {end}, found other "
        f"files, {there}. Nothing was changed. Check the path, what is mounted there, and the address."
    )


def _first_frame(path: Path) -> bytes | None:
    """A segment's first frame; None where no message begins it, or it has just gone."""
    try:
        with path.open("rb", buffering=0) as file:
            header = os.pread(file.fileno(), 8, 0)
            if len(header) < 8:
                return None
            size, magic = struct.unpack(">iI", header)
            if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_MESSAGE_BYTES:
                return None
            return os.pread(file.fileno(), size, 0)
    except FileNotFoundError:
        return None
