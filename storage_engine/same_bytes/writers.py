"""Which processes may write to a file through a mapping (Linux). One that can't be looked into may, too.

A file is known there by its inode, whatever name or mount a process came to it by. The device isn't compared:
btrfs and overlays have another one in ``maps`` than in ``stat``. One file too many only costs time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage_engine.model.store.store import FileFacts

_PROC: Final = Path("/proc")
_WRITABLE: Final = re.compile(rb"^\S+ .w.s \S+ \S+ (\d+) +(/.*)$", re.MULTILINE)
"""Inode and path of a mapping that is writable and shared (proc_pid_maps(5))."""


@dataclass(frozen=True, slots=True)
class Writers:
    """Processes that have files mapped shared and writable.

    :param by_path: one process id a file, by the file's path.
    :param unknown: why others may have them mapped as well; "" where every process was looked into.
    """

    by_path: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


def mapped_for_writing(files: Iterable[FileFacts], except_pids: Collection[int] = ()) -> Writers:
    """Find the processes that have these files mapped shared and writable.

    :param except_pids: processes that may.
    """
    wanted = tuple(files)
    by_inode: dict[int, list[str]] = {}
    for file in wanted:
        by_inode.setdefault(file.inode, []).append(file.path)
    by_path = {os.path.realpath(file.path): file.path for file in wanted}
    try:
        pids = sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdecimal())
    except OSError as error:
        return Writers(unknown=f"no process can be looked into ({_PROC}: {error.strerror})")
    found: dict[str, int] = {}
    hidden = []
    for pid in pids:
        if pid in except_pids:
            continue
        try:
            maps = (_PROC / str(pid) / "maps").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        except OSError:
            hidden.append(pid)
            continue
        for inode, path in _WRITABLE.findall(maps):
            for name in (*by_inode.get(int(inode), ()), *filter(None, (by_path.get(os.fsdecode(path)),))):
                found.setdefault(name, pid)
    return Writers(found, _unknown(pids, hidden))


def _unknown(pids: Collection[int], hidden: Collection[int]) -> str:
    if hidden:
        one = f"process {min(hidden)}"
        others = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        return f"this process may not see what {one}{others} mapped"
    # The first process is there as long as the others are.
    return "" if 1 in pids else f"{_PROC} doesn't show the processes of other users"
