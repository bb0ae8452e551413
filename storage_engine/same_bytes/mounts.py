"""Mounts, and processes that may write to a file through a mapping, as the kernel tells them (Linux).

Nothing is tried on a mount. A process that can't be looked into may write. A file is known by its inode,
whatever name or mount a process came to it by. The device isn't compared: btrfs and overlays have another
one in ``maps`` than in ``stat``. One file too many only costs time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage_engine.core.durable import opened
from storage_engine.model.store import FileFacts

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "afs"})


@dataclass(frozen=True, slots=True)
class Mount:
    """
    :param mount_id: tells it from every other mount of this start of the machine.
    :param point: where it is mounted.
    :param kind: of its file system, such as ext4 or fuse.s3fs.
    :param options: of the mount and of the file system.
    """

    mount_id: str
    point: str
    kind: str
    options: frozenset[str]

    @property
    def is_memory(self) -> bool:
        """Return whether a power loss deletes everything on it."""
        return self.kind in _MEMORY

    @property
    def is_volatile(self) -> bool:
        """Return whether it ignores requests for durability, and doesn't move the times of written files."""
        return self.kind == "overlay" and "volatile" in self.options

    @property
    def is_network(self) -> bool:
        """Return whether other machines may work on it."""
        return self.kind in _NETWORK

    @property
    def is_fuse(self) -> bool:
        """Return whether a process serves it."""
        return self.kind.startswith("fuse") and self.kind != "fuseblk"

    @property
    def is_read_only(self) -> bool:
        return "ro" in self.options


def parse_mount(line: str) -> Mount | None:
    """Parse a line of mountinfo (proc_pid_mountinfo(5)); None: it is none."""
    fields = line.split()
    if "-" not in fields[6:]:
        return None
    behind = fields.index("-", 6)
    if len(fields) < behind + 4:
        return None
    options = frozenset((*fields[5].split(","), *fields[behind + 3].split(",")))
    point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return Mount(fields[0], point, fields[behind + 1], options)


def mount_of(directory: str | os.PathLike[str]) -> Mount | None:
    """Return the mount that a directory lies on; None: this system doesn't say, or it can't be opened."""
    try:
        with opened(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
            return parse_mount(mount_line(fd))
    except OSError:
        return None


def mount_line(fd: int) -> str:
    """Return the kernel's line on the mount of an open file; "": there is none.

    :raises OSError: this system doesn't say.
    """
    info = Path(f"/proc/self/fdinfo/{fd}").read_text()
    mount_id = next((line.split()[1] for line in info.splitlines() if line.startswith("mnt_id:")), "")
    with _MOUNTS.open(encoding="utf-8", errors="surrogateescape") as mounts:
        return next((line.strip() for line in mounts if line.split(None, 1)[0] == mount_id), "")


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
