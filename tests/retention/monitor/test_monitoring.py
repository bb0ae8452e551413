"""What one look between cleanups leaves in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from storage_engine.core.clock import clock_ms
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.sample_columns import Moment, read_moments
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.retention.steps import monitor
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
    assert summary.lost == ""
    monitor(store, "second")
    assert [one.archive_lag_bytes for one in looks(store)] == 2 * [first.archive_lag_bytes]


def test_a_look_without_one_of_the_lakes_does_not_know_what_is_lost(managed: Managed, tmp_path: Path) -> None:
    second = LakeConfig.local(tmp_path / "second")
    store = replace(managed(overrides={"deleteWhen": "99"}), second_lake=second)
    make_lake(second, "rocketmq")
    monitor(store, "with it")
    (tmp_path / "second" / "warehouse").rename(tmp_path / "away")
    monitor(store, "without it")
    (summary,) = JournalReader(store.journal_url).summaries(None, clock_ms())
    assert (summary.doctor is None, summary.lost) == (False, None)
