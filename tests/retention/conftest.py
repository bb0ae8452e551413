"""Stores whose segments are past their reserved time, and what is compared before and after a step."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.fixture_stores import file_sha256
from tests.lakes import make_lakes

MANUAL = PlanRequest(manual=True, reason="a test")
HOURS_AGO_NS = 100 * 3600 * 10**9

Managed = Callable[..., ManagedStore]
Fingerprint = dict[str, str]
FingerprintOf = Callable[[str | Path], Fingerprint]


@pytest.fixture
def managed(store_copy: Callable[[str], Path], tmp_path: Path) -> Managed:
    """Make a store whose segments have all expired, and its lakes unless its policy is not to archive:
    managed("clean-stop", policy=...)."""

    def make(name: str = "clean-stop", **settings: Any) -> ManagedStore:
        root = store_copy(name)
        overrides = dict(settings.pop("overrides", {}))
        directories = [root / "commitlog"]
        if name == "multipath":
            directories = [root / "cl1", root / "cl2"]
            overrides["storePathCommitLog"] = ",".join(str(path) for path in directories)
        old_ns = clock_ms() * 10**6 - HOURS_AGO_NS
        for directory in directories:
            for segment in directory.iterdir():
                os.utime(segment, ns=(old_ns, old_ns))
        store = ManagedStore.local(
            name, str(root), tmp_path / "managed", overrides=overrides, time_zone="UTC", **settings
        )
        return store if store.policy.archive is ArchiveMode.OFF else make_lakes(store)

    return make


@pytest.fixture
def fingerprint() -> FingerprintOf:
    """Every file below a directory with the SHA-256 of its bytes; without locks and our stamp."""

    def read(directory: str | Path) -> Fingerprint:
        base = Path(directory)
        return {
            str(path.relative_to(base)): file_sha256(path)
            for path in sorted(base.rglob("*"))
            if path.is_file() and path.name != "lock" and path.parent.name != DIRECTORY
        }

    return read


@pytest.fixture
def lake_dir(tmp_path: Path) -> Path:
    """Where :func:`managed` puts the lake."""
    return tmp_path / "managed" / "lake"


@pytest.fixture
def planned(managed: Managed) -> Callable[..., ManagedStore]:
    """A store with a plan under the run key "r": planned("clean-stop", max_segments=2, policy=...)."""

    def make(name: str = "clean-stop", max_segments: int | None = None, **settings: Any) -> ManagedStore:
        store = managed(name, **settings)
        request = PlanRequest(manual=True, max_segments=max_segments)
        assert steps.make_plan(store, "r", request).delete_offsets
        for config in store.lakes if store.policy.archive is not ArchiveMode.OFF else ():
            with suppress(StorageEngineError):
                # As a lake is that was written: the first look of a release at it changes nothing.
                ready_to_write(open_lake(config))
        return store

    return make


@pytest.fixture
def archived(planned: Callable[..., ManagedStore]) -> Callable[..., ManagedStore]:
    """A store whose plan under the run key "r" is archived with proof."""

    def make(*args: Any, **settings: Any) -> ManagedStore:
        store = planned(*args, **settings)
        steps.archive(store, "r", steps.archive_jobs(store, "r"))
        return store

    return make


@pytest.fixture
def journal_of() -> Callable[[ManagedStore], Journal]:
    return lambda store: Journal(store.journal_url)


@pytest.fixture
def refuses(fingerprint: FingerprintOf, lake_dir: Path) -> Callable[..., str]:
    """Release a run that must be refused; returns why, after seeing that store and lake did not change."""

    def check(store: ManagedStore, error: type[StorageEngineError], **arguments: object) -> str:
        before = fingerprint(store.root), fingerprint(lake_dir)
        with pytest.raises(error) as refused:
            steps.release(store, "r", **arguments)  # type: ignore[arg-type]
        assert (fingerprint(store.root), fingerprint(lake_dir)) == before
        return str(refused.value)

    return check
