"""Which processes may write to a file through a mapping, as far as this one may look into others (Linux).

A file is known there by its inode, whatever name or mount a process came to it by. The device isn't compared:
btrfs and overlays have another one in ``maps`` than in ``stat``. One file too many only costs time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_engine.model.store import FileFacts

_PROC: Final = Path("/proc")
_WRITABLE: Final = re.compile(rb"^\S+ .w.s \S+ \S+ (\d+) +(/.*)$", re.MULTILINE)
"""Inode and path of a mapping that is writable and shared (proc_pid_maps(5))."""


def mapped_for_writing(files: Iterable[FileFacts], except_pids: Collection[int] = ()) -> dict[str, int]:
    """Return which of these files a process has mapped shared and writable: its id by the file's path.

    :param except_pids: processes that may.
    """
    wanted = tuple(files)
    by_inode: dict[int, list[str]] = {}
    for file in wanted:
        by_inode.setdefault(file.inode, []).append(file.path)
    by_path = {os.path.realpath(file.path): file.path for file in wanted}
    found: dict[str, int] = {}
    for pid in _other_processes(except_pids):
        # It ended, or we may not look into it.
        with suppress(OSError):
            maps = (_PROC / str(pid) / "maps").read_bytes()
            for inode, path in _WRITABLE.findall(maps):
                for name in (*by_inode.get(int(inode), ()), *filter(None, (by_path.get(os.fsdecode(path)),))):
                    found.setdefault(name, pid)
    return found


def _other_processes(except_pids: Collection[int]) -> Iterator[int]:
    with suppress(OSError):
        pids = (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())
        yield from (pid for pid in pids if pid not in except_pids)
