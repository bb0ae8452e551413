"""A store whose log is archived and of which nothing may be deleted: looks, alarms and plans go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.cycle import archive_here
from storage_engine.exceptions import UnsupportedLayoutError
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveWhen, Policy
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.plan.cleanup_due import look_for_due, segments_to_archive
from storage_engine.retention.store.managed_store import ManagedStore

ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))


@pytest.fixture
def store(managed: Callable[..., ManagedStore]) -> ManagedStore:
    """Its hour of deletion has come, and all segments have expired."""
    overrides = {"storeType": "defaultRocksDB", "deleteWhen": ALL_HOURS}
    return managed("clean-stop", overrides=overrides, policy=Policy(archive_when=ArchiveWhen.SEAL))


def test_what_waits_to_be_archived_is_told_though_its_hour_has_come(store: ManagedStore) -> None:
    due = look_for_due(store)
    assert [trigger.cause.value for trigger in due.sensed.triggers] == ["time-up"]
    assert (due.deletes, due.why, due.stays) == (0, (), "no segment would be deleted: 8 unknown")
    assert segments_to_archive(store) == 7


def test_what_its_broker_is_about_to_delete_and_what_it_deleted_unproven_is_an_alarm(
    store: ManagedStore,
) -> None:
    archive_sealed(store, "archive", archive_here, budget_bytes=3 << 20)
    # The journal remembers a sent alarm by its text: another text would be sent as another alarm.
    expiry = (
        "may be deleted by the broker now, and no lake proves them: archive them, or let it keep them longer"
    )
    assert monitor(store, "first").alarms[0].endswith(expiry)
    for path in sorted((Path(store.root) / "commitlog").iterdir())[:4]:
        path.unlink()
    (gone,) = [alarm for alarm in monitor(store, "second").alarms if "segment-gone" in alarm]
    assert f"commitlog [{3 << 20}, {4 << 20}) is LOST" in gone


def test_no_run_begins_that_would_delete(store: ManagedStore) -> None:
    with pytest.raises(UnsupportedLayoutError, match="RocksDB consume queue"):
        steps.make_plan(store, "run", PlanRequest(manual=True))
    known = Journal(store.journal_url).find_store(store.real_root)
    assert known is not None
    assert Journal(store.journal_url).find_run(known.store_id, "run") is None
