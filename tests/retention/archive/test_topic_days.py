"""What archived segments hold of each topic and day is recorded with their proof, and costs no proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine import cycle
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.store import TopicDay
from storage_engine.retention import steps
from storage_engine.retention.archive import archiving
from storage_engine.retention.housekeeping.maintaining import maintain_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.codec.codec import CODEC

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
EVERY_DAY = (0, 1 << 40)


def recorded(store: ManagedStore) -> set[TopicDay]:
    reader = JournalReader(store.journal_url)
    return {*reader.topic_days(reader.stores()[0].store_id, *EVERY_DAY)}


def in_files(store: ManagedStore, base_offsets: list[int]) -> set[TopicDay]:
    """By every message of the files."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for base_offset in base_offsets:
        data = Path(store.root, "commitlog", f"{base_offset:020d}").read_bytes()
        for rows, _ in CODEC.decode(memoryview(data), base_offset):
            for row in rows.select(["kind", "topic", "store_timestamp", "size"]).to_pylist():
                if row["kind"] == "message":
                    day = int(row["store_timestamp"].timestamp()) * 1000 // DAY_MS
                    found[row["topic"], day].append(row["size"])
    return {TopicDay(topic, day, sum(sizes), len(sizes)) for (topic, day), sizes in found.items()}


def test_it_is_what_the_files_say_and_goes_in_time(planned: Make) -> None:
    store = planned(max_segments=2)
    done = cycle.archive(cycle.Cleanup(store, "r"))
    assert (len(done.receipts), done.notices) == (2, ())
    expected = in_files(store, [0, 1 << 20])
    assert len({one.topic for one in expected}) > 1
    assert recorded(store) == expected

    last_day = max(one.day for one in expected)
    kept = maintain_store(store, (last_day + 90) * DAY_MS, dry_run=True)
    assert kept.rows.topic_days == 0
    counted = maintain_store(store, clock_ms() + 10_000 * DAY_MS, dry_run=True)
    assert recorded(store) == expected
    gone = maintain_store(store, clock_ms() + 10_000 * DAY_MS)
    assert gone.rows.topic_days == counted.rows.topic_days > 0
    assert recorded(store) == set()


def test_what_can_not_be_read_is_a_notice_and_the_proof_stands(
    planned: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(archiving, "read_topic_days", broken)
    store = planned(max_segments=1)
    done = cycle.archive(cycle.Cleanup(store, "r"))
    assert done.notices == (
        "bytes by topic and day could not be recorded for the archived segments: no such thing",
    )
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    assert len(journal.store_events(record.store_id, Step.ARCHIVE, Phase.RESULT)) == 1
    assert recorded(store) == set()
    assert len(steps.release(store, "r").deleted) == 1
