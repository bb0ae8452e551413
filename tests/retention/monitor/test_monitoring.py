"""What one look between cleanups leaves in the journal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.journal.reading.queries import JournalReader, Moment, read_moments
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.retention.steps import archive_sealed, monitor
from storage_engine.retention.store.broker_answers import due_now
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore

Managed = Callable[..., ManagedStore]


def looks(store: ManagedStore) -> tuple[Moment, ...]:
    reader = JournalReader(store.journal_url)
    store_id = reader.stores()[0].store_id
    return reader.read(lambda connection: read_moments(connection, store_id, 0, clock_ms() + 1))


def test_each_look_is_one_sample_with_the_archive_lag(managed: Managed) -> None:
    store = managed(overrides={"deleteWhen": "99"})
    found = monitor(store, "first")
    assert found.archive_lag is not None
    (first,) = looks(store)
    assert first.at_ms == found.sensed.sensed_at_ms
    assert first.archive_lag_bytes == found.archive_lag.size_bytes > 0
    assert first.max_offset
    (summary,) = JournalReader(store.journal_url).summaries(None, clock_ms())
    assert (summary.lost, summary.lost_ranges) == ("", 0)
    assert summary.archive_lag_seconds == found.archive_lag.oldest_age_seconds
    monitor(store, "second")
    assert [one.archive_lag_bytes for one in looks(store)] == 2 * [first.archive_lag_bytes]


@pytest.mark.parametrize("hours", ["99", ";".join(map(str, range(24)))], ids=["not due", "due"])
def test_a_look_without_one_of_the_lakes_does_not_know_what_is_lost(
    managed: Managed, tmp_path: Path, hours: str
) -> None:
    """Also where all that is on disk is due, as on a disk that fills."""
    second = LakeConfig.local(tmp_path / "second")
    store = replace(managed(overrides={"deleteWhen": hours}), second_lake=second)
    make_lake(second, "rocketmq")
    monitor(store, "with it")
    (tmp_path / "second" / "warehouse").rename(tmp_path / "away")
    monitor(store, "without it")
    (summary,) = JournalReader(store.journal_url).summaries(None, clock_ms())
    assert (summary.doctor is None, summary.lost, summary.lost_ranges) == (False, None, None)


def test_a_look_tells_what_is_due_and_of_that_what_no_lake_has(managed: Managed) -> None:
    """Also outside the hours in which the broker deletes."""
    store = managed(overrides={"deleteWhen": "99", "fileReservedTime": "1"})

    def due() -> tuple[int | None, int | None]:
        monitor(store, f"look {clock_ms()}")
        (summary,) = JournalReader(store.journal_url).summaries(None, clock_ms())
        return summary.due_bytes, summary.due_unproven_bytes

    due_bytes, unproven_bytes = due()
    with closing(open_to_look(store)) as opened:
        segments = due_now(opened, opened.snapshot(clock_ms()), clock_ms())
    assert 0 < sum(one.disk_bytes for one in segments) == due_bytes == unproven_bytes
    archive_sealed(store, "archive", archive_here, budget_bytes=1 << 40)
    assert due() == (due_bytes, 0)
    off = replace(store, policy=replace(store.policy, archive=ArchiveMode.OFF))
    monitor(off, "off")
    (summary,) = JournalReader(store.journal_url).summaries(None, clock_ms())
    assert (summary.due_bytes, summary.due_unproven_bytes) == (due_bytes, None)
