"""A log of small files with a hold on it, as it lies with the store; no broker runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from storage_engine.rocketmq.hold.hold_state import HoldState, Touched, write_local

SIZE = 1000
HOUR_NS = 3600 * 10**9
FIRST_NS = (time.time_ns() // 10**9 - 100 * 3600) * 10**9
LEASE_NS = (time.time_ns() // 10**9 + 24 * 3600) * 10**9


def path_of(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * SIZE:020d}"


def mtimes_ns(root: Path) -> dict[int, int]:
    """By number, of each file that is there."""
    return {int(p.name) // SIZE: p.stat().st_mtime_ns for p in sorted((root / "commitlog").iterdir())}


def held_store(root: Path, files: int = 20, fenced: int = 4, **state: object) -> HoldState:
    """Make files that have expired, with a fence on the first of them.

    :param state: of the hold, beside what follows from the files.
    """
    (root / "commitlog").mkdir(parents=True)
    touched = []
    for number in range(files):
        path = path_of(root, number)
        path.write_bytes(b"x" * SIZE)
        first_ns = FIRST_NS + number
        mtime_ns = LEASE_NS if number < fenced else first_ns
        os.utime(path, ns=(mtime_ns, mtime_ns))
        if number < fenced:
            inode = path.stat().st_ino
            touched.append(Touched(number * SIZE, str(path), inode, first_ns, mtime_ns, ctime_ns=1))
    settings: dict[str, object] = {
        "fence_offset": 0,
        "ends_at_ms": LEASE_NS // 10**6,
        "touched": tuple(touched),
        "fence": tuple(one.base_offset for one in touched),
        "fence_count": fenced,
        **state,
    }
    held = HoldState("me", 1, **settings)  # type: ignore[arg-type]
    write_local(root, held)
    return held
