"""What is lost of a node is an alarm of its monitor at each look, until a person accepts it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.exceptions import BadInputError
from storage_engine.lake.move.making import make_lake
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.model.report.diagnosis import Severity
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges.drift import loss_alarms
from storage_engine.retention.ranges.offset_ranges import MISSING, OffsetRange, Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.left_over_node import drop_topic
from tests.kafka.made_node import MadeNode, metadata_record
from tests.kafka.stopped_nodes import make_node, managed
from tests.kafka_fixture import unpack
from tests.rounds import later


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    """Logs a-0 and b-0 in a directory each, with offsets [0, 6); the active segment begins at 4."""
    return make_node(tmp_path / "node")


@pytest.fixture
def store(made: MadeNode, tmp_path: Path) -> ManagedStore:
    """Its store, of which what is sealed is in a lake, and which was looked at."""
    return archived(tmp_path, made.root)


def archived(tmp_path: Path, node: Path, budget_bytes: int | None = None) -> ManagedStore:
    (tmp_path / "managed").mkdir()
    store = managed(tmp_path / "managed", node)
    make_lake(store.lake, "kafka")
    steps.archive_sealed(store, "archived", archive_here, budget_bytes=budget_bytes)
    assert gone(store) == []
    return store


def gone(store: ManagedStore) -> list[str]:
    """Return the alarms of a look that tell what is gone."""
    return [one for one in monitor(store, "look").alarms if one.startswith(DriftKind.SEGMENT_GONE)]


@pytest.mark.again
def test_a_log_that_is_gone_is_an_alarm_until_a_person_accepts_it(
    store: ManagedStore, made: MadeNode
) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    (alarm,) = gone(store)
    assert alarm.startswith("segment-gone: the log isn't on disk, and had offsets [0, 6) on ")
    assert "this node has a replica of it. a-0 [4, 6) is LOST." in alarm
    assert gone(store) == [alarm]
    steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "a-0")
    assert gone(store) == []


def told_by_doctor(store: ManagedStore) -> list[tuple[Severity, str]]:
    found = diagnose(store, clock_ms(), has_lake=True).findings
    return [(one.severity, one.what) for one in found if one.kind in ("logs-lost", "logs-unknown")]


def test_doctor_tells_what_is_lost_of_a_log_until_a_person_accepts_it(
    store: ManagedStore, made: MadeNode
) -> None:
    assert told_by_doctor(store) == []
    shutil.rmtree(made.directories[0] / "a-0")
    lost = "1 range of missing logs lost, because no lake has it: a-0 [4, 6)"
    assert told_by_doctor(store) == [(Severity.URGENT, lost)]
    steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "a-0")
    assert told_by_doctor(store) == []


def test_doctor_takes_nothing_for_lost_that_nobody_can_tell(store: ManagedStore, made: MadeNode) -> None:
    set_aside(made)
    ((severity, what),) = told_by_doctor(store)
    assert severity is Severity.WARNING
    assert "it is unknown whether it should be on disk: a-0 [4, 6)" in what


def without_its_first_segments(made: MadeNode) -> None:
    for base in (0, 2):
        for path in (made.directories[0] / "a-0").glob(f"{base:020d}.*"):
            path.unlink()


def test_segments_that_nobody_released_are_an_alarm_until_a_person_accepts_them(
    made: MadeNode, tmp_path: Path
) -> None:
    store = archived(tmp_path, made.root, budget_bytes=1)
    without_its_first_segments(made)
    assert gone(store) == [
        "segment-gone: neither on disk nor in a lake, and none of our runs deleted it. a-0 [2, 4) is LOST."
    ]
    with pytest.raises(BadInputError, match=r"LOST or UNKNOWN are: a-0 \[2, 4\)"):
        steps.accept_loss(store, 0, 4, "anna", "removed by hand", "a-0")
    steps.accept_loss(store, 2, 4, "anna", "removed by hand")
    assert gone(store) == []
    (row,) = (
        one
        for one in verify_store(store, VerifyLevel.STORE)[0].ranges
        if (one.log, one.start_offset) == ("a-0", 2)
    )
    assert (row.end_offset, row.where, row.status) == (4, Where.LOST, Status.WARNING)
    assert "accepted by anna (removed by hand): neither on disk nor in a lake" in row.detail


def without_one_in_the_middle(made: MadeNode) -> None:
    for path in (made.directories[0] / "a-0").glob(f"{2:020d}.*"):
        path.unlink()


def places(store: ManagedStore) -> list[tuple[int, int, Place]]:
    """Return where offsets of a-0 are, as the console shows it."""
    with opened(store) as context:
        measured = measure_lag(context)
        found = look_for_ranges(context, measured.snapshot, measured)[0]
    return [(one.start_offset, one.end_offset, one.where) for one in found if one.log == "a-0"]


def lost(store: ManagedStore) -> list[tuple[str, int, int, Status]]:
    """Return what verify says is lost, which validation has to say, too."""
    (verified,) = verify_store(store, VerifyLevel.STORE)
    validated = collect_facts(store, None, full=False, with_lake=True)
    found, again = (
        [(one.log, one.start_offset, one.end_offset, one.status) for one in ranges if one.where is Where.LOST]
        for ranges in (verified.ranges, validated.ranges)
    )
    assert found == again
    return found


@pytest.mark.again
def test_a_segment_that_is_gone_from_the_middle_is_an_alarm_until_a_person_accepts_it(
    made: MadeNode, tmp_path: Path
) -> None:
    store = archived(tmp_path, made.root, budget_bytes=1)
    without_one_in_the_middle(made)
    (alarm,) = gone(store)
    first = made.directories[0] / "a-0" / f"{0:020d}.log"
    said = f"{first} ends at offset 2, and the next segment begins at 4"
    assert alarm == f"segment-gone: {said}. a-0 [2, 4) is LOST."
    assert places(store) == [(0, 2, Place.BOTH), (2, 4, Place.LOST), (4, 6, Place.LOCAL)]
    steps.accept_loss(store, 2, 4, "anna", "removed by hand", "a-0")
    assert gone(store) == []
    assert lost(store) == [("a-0", 2, 4, Status.WARNING)]


def test_it_is_an_alarm_where_the_one_before_it_is_in_no_lake_either(made: MadeNode, tmp_path: Path) -> None:
    (tmp_path / "managed").mkdir()
    store = managed(tmp_path / "managed", made.root)
    make_lake(store.lake, "kafka")
    without_one_in_the_middle(made)
    (alarm,) = gone(store)
    assert alarm.endswith("a-0 [2, 4) is LOST.")
    assert lost(store) == [("a-0", 2, 4, Status.FAILURE)]
    # The cleaner leaves such gaps in what it has cleaned.
    made.checkpoint("cleaner-offset-checkpoint", {"a-0": 4})
    assert gone(store) == []


def test_what_a_lake_has_of_the_middle_is_archived(store: ManagedStore, made: MadeNode) -> None:
    without_one_in_the_middle(made)
    assert gone(store) == []
    assert places(store) == [(0, 2, Place.BOTH), (2, 4, Place.ARCHIVED), (4, 6, Place.LOCAL)]
    assert lost(store) == []


def deleted_by_its_owner(made: MadeNode) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    made.more_records.append(metadata_record(9, made.topic_ids["a"].bytes))
    made.write()


def deleted_and_not_removed_yet(made: MadeNode) -> None:
    path = made.directories[0] / "a-0"
    path.rename(path.with_name(f"a-0.{'0' * 32}-delete"))
    made.more_records.append(metadata_record(9, made.topic_ids["a"].bytes))
    made.write()


def moved_away(made: MadeNode) -> None:
    path = made.directories[0] / "a-0"
    path.rename(path.with_name(f"a-0.{'0' * 32}-stray"))
    made.replicas["a-0"] = (2,)
    made.write()


@pytest.mark.parametrize("why", [deleted_by_its_owner, *later(deleted_and_not_removed_yet, moved_away)])
def test_what_is_rightly_gone_is_no_alarm(
    store: ManagedStore, made: MadeNode, why: Callable[[MadeNode], None]
) -> None:
    why(made)
    assert gone(store) == []


def set_aside(made: MadeNode) -> None:
    path = made.directories[0] / "a-0"
    path.rename(path.with_name(f"a-0.{'0' * 32}-stray"))


def without_metadata(made: MadeNode) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    drop_topic(made, "a")
    shutil.rmtree(made.root / "meta" / "__cluster_metadata-0")


@pytest.mark.parametrize("why", [set_aside, *later(without_metadata)])
def test_what_nobody_can_tell_is_not_told_as_lost(
    store: ManagedStore, made: MadeNode, why: Callable[[MadeNode], None]
) -> None:
    why(made)
    (alarm,) = gone(store)
    assert "a-0 [4, 6) is UNKNOWN." in alarm
    assert "LOST" not in alarm


@pytest.mark.again
@pytest.mark.slow
def test_a_segment_that_a_broker_wrote_and_somebody_removed_is_an_alarm(tmp_path: Path) -> None:
    node = unpack(tmp_path / "node")
    store = archived(tmp_path, node, budget_bytes=1)
    (logs,) = {path.parent for path in node.rglob("plain-0")}
    bases = [int(path.stem) for path in sorted((logs / "plain-0").glob("*.log"))]
    (logs / "plain-0" / f"{bases[2]:020d}.log").unlink()
    (alarm,) = gone(store)
    assert alarm.endswith(f"plain-0 [{bases[2]}, {bases[3]}) is LOST.")


@pytest.mark.slow
def test_a_log_that_a_broker_wrote_and_somebody_removed_is_an_alarm(tmp_path: Path) -> None:
    node = unpack(tmp_path / "node")
    store = archived(tmp_path, node, budget_bytes=1)
    (logs,) = {path.parent for path in node.rglob("plain-0")}
    shutil.rmtree(logs / "plain-0")
    (alarm,) = gone(store)
    assert "this node has a replica of it. plain-0 [" in alarm
    assert alarm.endswith("is LOST.")


def test_what_was_told_as_drift_is_no_alarm_again_and_many_are_counted() -> None:
    lost = [OffsetRange("a-0", 1, at, at + 1, 0, 0, Place.LOST, MISSING, "why") for at in range(0, 24, 2)]
    told = loss_alarms(lost, [(Drift(DriftKind.SEGMENT_GONE, "told.", "a-0", 0, 1), 1)])
    assert told[0] == "segment-gone: why. a-0 [2, 3) is LOST."
    assert len(told) == 11
    assert told[-1] == (
        "segment-gone: 1 more range neither on disk nor in a lake; storage-engine verify names each"
    )
    elsewhere = Drift(DriftKind.SEGMENT_GONE, "told.", "b-0", 0, 30)
    of_before = Drift(DriftKind.SEGMENT_GONE, "told.", "a-0", 0, 30)
    assert len(loss_alarms(lost[:2], [(elsewhere, 1), (of_before, 2)])) == 2
    accepted = OffsetRange("a-0", 1, 0, 1, 0, 0, Place.LOST, "accepted", "by ann")
    assert loss_alarms([accepted], []) == ()
