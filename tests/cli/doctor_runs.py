"""What doctor found, and that the files it looked at are as they were."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

DAY_NS = 24 * 3600 * 10**9


def tree(*roots: Path) -> dict[str, tuple[int, ...]]:
    """Every file and directory below some roots: kind, size and times, but for when they were read."""
    found = {}
    for root in roots:
        for path in (root, *root.rglob("*")):
            facts = path.lstat()
            found[str(path)] = (
                facts.st_mode,
                facts.st_size,
                facts.st_mtime_ns,
                facts.st_ctime_ns,
                facts.st_ino,
            )
    return found


def kinds(outcome: Any) -> dict[str, str]:
    """Severity by kind of finding; of one that is there twice, the most urgent."""
    found: dict[str, str] = {}
    for one in outcome.json["findings"]:
        found.setdefault(one["kind"], one["severity"])
    return found


def aged(store: Path, days: float) -> None:
    at_ns = time.time_ns() - round(days * DAY_NS)
    for path in (store / "commitlog").iterdir():
        os.utime(path, ns=(at_ns, at_ns))
