"""Fixture stores on disk, and fingerprints of files that cost a hash only where a file has changed."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "rocketmq"
TIMER_WHEEL = "timerwheel"
"""37 MB that a broker maps when it starts, and that nothing of the engine opens."""
AGE_NS = 24 * 3600 * 10**9
"""How old the newest file of an unpacked store is: younger than the 72 hours after which brokers delete."""
SETTLED_NS = 50_000_000
"""A file that changed this long ago gets another ctime by its next change, whatever the clock's tick."""

_digests: dict[tuple[int, int, int, int, int], str] = {}


def unpack(name: str, target: Path, *, timer_wheel: bool = False) -> Path:
    """Unpack a fixture store below a directory, which is created.

    :param timer_wheel: also the file that only a broker reads.
    :returns: the store's root.
    """
    root = _original(name, timer_wheel)
    shutil.copytree(root, target / root.name, symlinks=True, copy_function=_copy)
    return target / root.name


def _copy(source: str, target: str) -> None:
    """Copy what a broker has set of a file: bytes and times; all else takes as long again."""
    shutil.copyfile(source, target, follow_symlinks=False)
    stat = os.lstat(source)
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns), follow_symlinks=False)


@cache
def _original(name: str, timer_wheel: bool) -> Path:
    """Root of a store that is extracted once a process, since that takes most of a second."""
    target = Path(tempfile.mkdtemp(prefix=f"storage-engine-{name}-"))
    owner = os.getpid()  # a fork ends without removing what is not its own
    atexit.register(lambda: shutil.rmtree(target) if os.getpid() == owner else None)
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        members = [m for m in archive.getmembers() if timer_wheel or Path(m.name).name != TIMER_WHEEL]
        newest_ns = max(round(m.mtime * 10**9) for m in members if m.isfile())
        later_s = (time.time_ns() - AGE_NS - newest_ns) / 10**9
        later = [m.replace(mtime=m.mtime + later_s, deep=False) for m in members]
        archive.extractall(target, later, filter="data")
    return target / members[0].name.split("/")[0]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, from memory while its ctime says that nothing of it has changed."""
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if known := _digests.get(key):
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - stat.st_ctime_ns > SETTLED_NS:
        _digests[key] = digest
    return digest
