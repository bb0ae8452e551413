"""Which processes may write to a file through a mapping, as far as this one may look into others (Linux).

A file is known there by its inode, whatever name or mount a process came to it by. The device isn't compared:
btrfs and overlays have another one in ``maps`` than in ``stat``. One file too many only costs time.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from storage_engine.model.store import FileFacts

_PROC: Final = Path("/proc")


def mapped_for_writing(files: Iterable[FileFacts], except_pids: Collection[int] = ()) -> dict[str, int]:
    """Return which of these files a process has mapped shared and writable: its id by the file's path.

    :param except_pids: processes that may.
    """
    wanted = list(files)
    by_inode: dict[int, list[str]] = {}
    for file in wanted:
        by_inode.setdefault(file.inode, []).append(file.path)
    by_path = {os.path.realpath(file.path): file.path for file in wanted}
    found: dict[str, int] = {}
    for pid in _other_processes(except_pids):
        # It ended, or we may not look into it.
        with suppress(OSError):
            maps = (_PROC / str(pid) / "maps").read_bytes().decode(errors="surrogateescape")
            for inode, path in _writable(maps):
                for name in (*by_inode.get(inode, ()), *filter(None, (by_path.get(path),))):
                    found.setdefault(name, pid)
    return found


def _other_processes(except_pids: Collection[int]) -> Iterator[int]:
    with suppress(OSError):
        pids = (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())
        yield from (pid for pid in pids if pid not in except_pids)


def _writable(maps: str) -> Iterator[tuple[int, str]]:
    """Yield inode and path of each mapping that is writable and shared (proc_pid_maps(5): ``rw-s``)."""
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s":
            yield int(fields[4]), fields[5]
