"""Stores of the toy broker to whose logs something happens between their plan and its release."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from storage_engine.cli.options.options import journal_of
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import LagPolicy, Policy
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.lakes import make_lakes
from tests.services import toy

UNARCHIVED = "no receipt"
POLICY = Policy(lag_policy=LagPolicy.IGNORE)


def other_bytes(path: Path) -> None:
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"line 7 ", b"line 8 "))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def touched(path: Path) -> None:
    path.chmod(0o600)


def written_to_now(path: Path) -> None:
    os.utime(path)


FAULTS: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    UNARCHIVED: lambda path: None,
    "missing": Path.unlink,
    "other bytes": other_bytes,
    "touched": touched,
    "not expired any more": written_to_now,
    "unreadable dependents": toy.lose_index,
}
Fault = tuple[str, int]
"""What happens to which of a log's two planned segments."""


def store_at(root: Path, managed: Path, policy: Policy = POLICY) -> ManagedStore:
    """Return the settings that a shell makes of ``STORE --lake MANAGED``."""
    lake, journal = LakeConfig.local(str(managed)), journal_of(managed)
    store = ManagedStore.local(root.name, str(root), managed, lake=lake, broker="toy", policy=policy)
    return replace(store, time_zone="UTC", journal_url=journal)


def make_store(
    root: Path, managed: Path, faults: Mapping[str, Fault], policy: Policy = POLICY
) -> ManagedStore:
    """Make a store with an archived plan "r", and have these things happen to its logs."""
    store = store_at(root, managed, policy)
    root.mkdir(exist_ok=True)
    (root / "toy.store").touch()
    planned = {log: toy.write_log(root / log, 3, old=2) for log in faults}
    if not managed.exists():
        make_lakes(store)
    steps.make_plan(store, "r", PlanRequest(manual=True))
    jobs = steps.archive_jobs(store, "r")
    unproven = {str(planned[log][number]) for log, (fault, number) in faults.items() if fault == UNARCHIVED}
    steps.archive(store, "r", [job for job in jobs if job.path not in unproven])
    for log, (fault, number) in faults.items():
        FAULTS[fault](planned[log][number])
    return store


def files_of(root: Path, log: str) -> dict[str, str]:
    said = f"{log}: ".encode()
    return {
        path.name: hashlib.sha256(_content(path).replace(said, b"")).hexdigest()
        for path in sorted((root / log).iterdir())
    }


def _content(path: Path) -> bytes:
    return b"a link" if path.is_symlink() else path.read_bytes()
