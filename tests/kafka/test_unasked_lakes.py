"""What lies in a lake that nobody named, or that can't be asked, is never called lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.cycle import archive_here
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges.offset_ranges import Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.stopped_nodes import make_node, managed


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    """A node whose a-0 has [0, 2) in its lake and [2, 4) in another one, B, and nothing of both on disk."""
    node = make_node(tmp_path / "node")
    store = managed(tmp_path / "managed", node.root)
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "first", archive_here, budget_bytes=1)
    other = replace(store, lake=LakeConfig.local(tmp_path / "B"))
    make_lake(other.lake, "kafka")
    steps.archive_sealed(other, "second", archive_here)
    for path in (node.directories[0] / "a-0").iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < 4:
            path.unlink()
    return store


def b_of(store: ManagedStore) -> ManagedStore:
    return replace(store, second_lake=LakeConfig.local(Path(store.report_dir).parent.parent / "B"))


def told(store: ManagedStore) -> set[tuple[int, int, str]]:
    """Return where all of verify, validation and the pages say that a-0's first offsets are."""
    found = []
    (verified, *_) = verify_store(store, VerifyLevel.RECEIPTS)
    facts = collect_facts(store, None, full=False, with_lake=True)
    for ranges in (verified.ranges, facts.ranges):
        found.append({(one.start_offset, one.end_offset, one.where.value) for one in ranges if is_first(one)})
        for one in ranges:
            if one.where.value == "UNKNOWN":
                assert "B" in one.detail
    with opened(store) as context:
        measured = measure_lag(context)
        ranges = look_for_ranges(context, measured.snapshot, measured)[0]
    found.append({(one.start_offset, one.end_offset, one.where.upper()) for one in ranges if is_first(one)})
    assert found[0] == found[1]
    if Place.UNKNOWN not in {one.where for one in ranges}:
        return found[0]
    assert found[0] == found[2]
    return found[0]


def is_first(one: object) -> bool:
    return getattr(one, "log", "") == "a-0" and getattr(one, "start_offset", 9) < 4


def test_a_gap_in_the_middle_is_unknown_while_a_lake_that_may_have_it_was_not_asked(
    store: ManagedStore,
) -> None:
    assert told(store) == {(0, 2, "ARCHIVED"), (2, 4, "UNKNOWN")}
    (alarm,) = (one for one in steps.monitor(store, "look").alarms if one.startswith("segment-gone"))
    place = Path(store.report_dir).parent.parent / "B"
    assert f"and was not named (--lake {place})" in alarm
    assert alarm.endswith("a-0 [2, 4) is UNKNOWN.")
    with pytest.raises(LakeUnavailableError, match=rf"was not named \(--lake {place}\)"):
        steps.accept_loss(store, 2, 4, "anna", "it seems to be gone", "a-0")


@pytest.mark.again
def test_once_all_lakes_are_asked_nothing_is_unknown(store: ManagedStore) -> None:
    assert told(b_of(store)) in ({(0, 4, "ARCHIVED")}, {(0, 2, "ARCHIVED"), (2, 4, "ARCHIVED")})
    assert not [one for one in steps.monitor(b_of(store), "look").alarms if one.startswith("segment-gone")]
