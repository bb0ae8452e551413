"""Stores with a quarantine, and every file of them as it is."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.fixture_stores import file_sha256

WITH_UNDO = Policy(ArchiveMode.OFF, undo_window_hours=24)
"""Most claims here are the same whether something was archived or not."""

Files = dict[str, tuple[str, int, int, int, int]]


def files_of(root: str | Path) -> Files:
    """Every file of a store but its lock and stamp: SHA-256, size, mtime, mode and inode by name."""
    found = {}
    for path in sorted(Path(root).rglob("*")):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and path.name != "lock" and path.parent.name != DIRECTORY:
            facts = (status.st_size, status.st_mtime_ns, status.st_mode, status.st_ino)
            found[str(path.relative_to(root))] = (file_sha256(path), *facts)
    return found


def clean(store: ManagedStore, run_key: str, max_segments: int | None = None, **request: Any) -> None:
    """A run that a person asks for, up to its dependents."""
    steps.make_plan(store, run_key, PlanRequest(manual=True, max_segments=max_segments, **request))
    if store.policy.archive is not ArchiveMode.OFF:
        steps.archive(store, run_key, steps.archive_jobs(store, run_key))
    steps.release(store, run_key)
    steps.clean_dependents(store, run_key)


def quarantine_of_root(store: ManagedStore) -> Path:
    return Path(store.root) / ".storage-engine" / "quarantine"


@pytest.fixture
def undoable(managed: Callable[..., ManagedStore]) -> Callable[..., ManagedStore]:
    """A store that archives nothing and whose runs can be undone."""
    return lambda *args, **settings: managed(*args, **{"policy": WITH_UNDO, **settings})
