"""Stores with a shield, and where their segments are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.managed_store import ManagedStore

Managed = Callable[..., ManagedStore]
ON = Policy(shield=ShieldMode.ON)


def shielded(managed: Managed) -> ManagedStore:
    """A stopped broker's store with a shield of all that is unproven."""
    made: ManagedStore = managed(policy=ON)
    assert tend_shield(made).links == len(segments(made))
    return made


def segments(store: ManagedStore) -> list[Path]:
    """The sealed ones."""
    return sorted((Path(store.root) / "commitlog").iterdir())[:-1]


def where(store: ManagedStore) -> dict[int, Where]:
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    return {row.start_offset: row.where for row in found.ranges}


def where_detail(store: ManagedStore) -> str:
    """Why the first bytes of the log are where they are."""
    (found,) = verify_store(store, VerifyLevel.RECEIPTS)
    assert found.ranges[0].status is Status.FAILURE
    return found.ranges[0].detail


def archived_sha256(store: ManagedStore) -> dict[int, str]:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return {row.base_offset: row.sha256 for row in receipts(open_lake(store.lake), record.store_id)}
