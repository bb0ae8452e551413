"""A log that was seen before and isn't on disk is lost, unless a lake has it or its topic was deleted.

Where nobody can tell, it is unknown.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cycle import archive_here
from storage_engine.exceptions import BadInputError
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.kafka.format.layout import read_node, read_what_is_left
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.kafka.store.absent_logs import absences, identities
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import RangeStatus, Status, VerifyLevel, Where, worst
from storage_engine.quality.facts import Facts, collect_facts
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges.missing_logs import _SEEN, kept_logs
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.left_over_node import drop_topic
from tests.kafka.made_node import MadeNode, batch_of, metadata_record, partition
from tests.kafka.stopped_nodes import OLD_MS, archived, clean, make_node, managed
from tests.rounds import later


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    """Logs a-0 and b-0 in a directory each, with offsets [0, 6); the active segment begins at 4."""
    return make_node(tmp_path / "node")


@pytest.fixture
def store(made: MadeNode, tmp_path: Path) -> ManagedStore:
    """Its store, of which what is sealed is in a lake."""
    return archived(tmp_path / "managed", made.root)


def validated(store: ManagedStore) -> Facts:
    return collect_facts(store, None, full=False, with_lake=True)


def overall(result: Facts) -> Status:
    return worst(one.status for one in result.ranges)


def rows(result: Facts, log: str) -> list[tuple[int, int, str, str]]:
    return [
        (one.start_offset, one.end_offset, one.where.value, one.status.value)
        for one in result.ranges
        if one.log == log
    ]


def lost(result: Facts) -> RangeStatus:
    (found,) = (one for one in result.ranges if one.where is Where.LOST)
    return found


def places(store: ManagedStore) -> tuple[OffsetRange, ...]:
    """Return where bytes are, as the console shows it."""
    with opened(store) as context:
        measured = measure_lag(context)
        return look_for_ranges(context, measured.snapshot, measured)[0]


def test_what_no_lake_has_of_a_log_that_is_gone_is_lost(store: ManagedStore, made: MadeNode) -> None:
    assert overall(validated(store)) is Status.OK
    shutil.rmtree(made.directories[0] / "a-0")
    result = validated(store)
    assert overall(result) is Status.FAILURE
    assert rows(result, "a-0") == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "FAILURE")]
    assert "this node has a replica of it" in lost(result).detail
    assert rows(result, "b-0") == [(0, 4, "BOTH", "OK"), (4, 6, "LOCAL", "OK")]
    (found,) = verify_store(store, VerifyLevel.STORE)
    assert [
        (one.log, one.start_offset, one.end_offset) for one in found.ranges if one.where is Where.LOST
    ] == [("a-0", 4, 6)]


def test_a_directory_that_was_emptied_loses_all_of_its_logs(store: ManagedStore, made: MadeNode) -> None:
    for name in ("c-0", "d-0"):
        made.add(name, {0: [batch_of(0, ms=OLD_MS)]}, directory=1)
    made.write()
    steps.archive_sealed(store, "later", archive_here)
    shutil.rmtree(made.directories[1])
    made.directories[1].mkdir()
    result = validated(store)
    assert rows(result, "b-0") == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "FAILURE")]
    assert rows(result, "c-0") == rows(result, "d-0") == [(0, 2, "LOST", "FAILURE")]


def test_a_plan_that_no_longer_has_a_log_forgets_nothing(store: ManagedStore, made: MadeNode) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    clean(store, "after")
    steps.archive_sealed(store, "later", archive_here)
    assert lost(validated(store)).log == "a-0"
    # Its broker has made the directory again, empty.
    made.add("a-0", {0: []})
    made.watermarks["a-0"] = 0
    made.write()
    clean(store, "again")
    assert rows(validated(store), "a-0") == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "FAILURE")]


def test_a_log_that_is_cut_below_what_replicas_had_has_lost_it(store: ManagedStore, made: MadeNode) -> None:
    made.add("c-0", {0: [batch_of(0, ms=OLD_MS)], 2: [batch_of(2, ms=OLD_MS)], 4: []}, directory=1)
    made.settings["c"]["cleanup.policy"] = "compact"
    made.write()
    steps.archive_sealed(store, "seen", archive_here)
    for path in (made.directories[1] / "c-0").glob("*.log"):
        path.write_bytes(b"")
    (made.directories[1] / "c-0" / f"{2:020d}.log").unlink()
    (made.directories[1] / "c-0" / f"{4:020d}.log").unlink()
    result = validated(store)
    assert (lost(result).log, lost(result).start_offset, lost(result).end_offset) == ("c-0", 0, 4)
    assert "it was cut, or made again empty" in lost(result).detail


def deleted(made: MadeNode) -> None:
    made.more_records.append(metadata_record(9, made.topic_ids["a"].bytes))
    made.write()


def moved_away(made: MadeNode) -> None:
    made.replicas["a-0"] = (2,)
    made.write()


def made_again(made: MadeNode) -> None:
    drop_topic(made, "a")
    made.topic_ids["a"] = uuid.uuid5(uuid.NAMESPACE_DNS, "another")
    made.settings["a"] = {}
    made.add("a-0", {0: [batch_of(0)]})
    made.write()


@pytest.mark.parametrize("gone", [made_again, *later(deleted, moved_away)])
def test_what_is_rightly_gone_is_not_lost_and_is_forgotten(
    store: ManagedStore, made: MadeNode, gone: Any
) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    gone(made)
    assert [one for one in validated(store).ranges if one.where is Where.LOST] == []
    before = kept_logs(store.journal_url, id_of(store))
    steps.archive_sealed(store, "later", archive_here)
    after = kept_logs(store.journal_url, id_of(store))
    assert before is not None
    assert after is not None
    old = next(one for one in before if one.log == "a-0")
    assert old not in after


def id_of(store: ManagedStore) -> str:
    return str(validated(store).store_id)


def without_metadata(made: MadeNode) -> None:
    shutil.rmtree(made.root / "meta" / "__cluster_metadata-0")


def older_metadata(made: MadeNode) -> None:
    drop_topic(made, "a")
    drop_topic(made, "b")
    made.write()


def of_another_cluster(made: MadeNode) -> None:
    drop_topic(made, "a")
    for path in (*made.directories, made.root / "meta"):
        properties = path / "meta.properties"
        properties.write_text(properties.read_text().replace("cluster.id=", "cluster.id=X"))


@pytest.mark.parametrize("unknown", [without_metadata, *later(older_metadata, of_another_cluster)])
def test_what_nobody_can_tell_is_unknown(store: ManagedStore, made: MadeNode, unknown: Any) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    unknown(made)
    result = validated(store)
    assert ("a-0", Where.UNKNOWN) in {(one.log, one.where) for one in result.ranges}
    assert "whether its topic was deleted isn't known" in next(
        one.detail for one in result.ranges if one.where is Where.UNKNOWN and one.log == "a-0"
    )
    # It may be lost, so that it is no less a failure.
    assert overall(result) is Status.FAILURE
    assert Where.UNKNOWN in {one.where for one in verify_store(store, VerifyLevel.STORE)[0].ranges}
    assert Place.UNKNOWN in {one.where for one in places(store) if one.log == "a-0"}
    assert Place.LOST not in {one.where for one in places(store) if one.log == "a-0"}


def test_a_person_may_go_on_without_what_is_unknown(store: ManagedStore, made: MadeNode) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    without_metadata(made)
    steps.accept_loss(store, 4, 6, "anna", "the cluster is gone", "a-0")
    assert rows(validated(store), "a-0")[-1] == (4, 6, "LOST", "WARNING")
    (accepted,) = (one for one in places(store) if (one.log, one.start_offset) == ("a-0", 4))
    assert (accepted.where, accepted.reason) == (Place.LOST, "accepted")


@pytest.mark.parametrize("state", ["stray", *later("delete", "future")])
def test_what_its_broker_has_set_aside_is_unknown(store: ManagedStore, made: MadeNode, state: str) -> None:
    path = made.directories[0] / "a-0"
    aside = path.with_name(f"a-0.{'0' * 32}-{state}")
    path.rename(aside)
    result = validated(store)
    (unknown,) = (one for one in result.ranges if one.where is Where.UNKNOWN)
    assert (unknown.log, unknown.start_offset, unknown.end_offset) == ("a-0", 4, 6)
    assert f"its broker has set it aside as {aside}" in unknown.detail
    # Of another topic of its name, or once it has been removed, it tells nothing.
    metadata = aside / "partition.metadata"
    metadata.write_text(f"version: 0\ntopic_id: {text_of(uuid.uuid4())}")
    assert lost(validated(store)).log == "a-0"
    shutil.rmtree(aside)
    assert lost(validated(store)).log == "a-0"


def test_what_may_lie_in_a_directory_that_has_failed_is_unknown(made: MadeNode) -> None:
    node = read_node(made.properties)
    known = {name: one for name, one in identities(node).items() if name == "a-0"}
    shutil.rmtree(made.directories[0])
    found = absences(read_what_is_left(made.properties), known)["a-0"]
    assert (found.is_right, found.is_unknown) == (False, True)
    assert f"it may lie in {made.directories[0]}, which can't be read" in found.why


def test_what_a_person_accepts_as_lost_is_a_warning(store: ManagedStore, made: MadeNode) -> None:
    for name in ("a-0", "b-0"):
        shutil.rmtree(made.directories[name == "b-0"] / name)
    with pytest.raises(BadInputError, match=r"LOST or UNKNOWN are: a-0 \[4, 6\), b-0 \[4, 6\)"):
        steps.accept_loss(store, 0, 6, "anna", "the disk is broken", "b-0")
    assert steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "b-0").log == "b-0"
    result = validated(store)
    assert rows(result, "a-0")[-1] == (4, 6, "LOST", "FAILURE")
    assert rows(result, "b-0")[-1] == (4, 6, "LOST", "WARNING")
    steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "a-0")
    assert overall(validated(store)) is Status.WARNING


def test_of_before_anything_was_remembered_the_last_plan_counts(store: ManagedStore, made: MadeNode) -> None:
    steps.make_plan(store, "planned", PlanRequest())
    JournalDatabase(store.journal_url).write(_SEEN.table.drop, reserve=False)
    assert kept_logs(store.journal_url, id_of(store)) is None
    shutil.rmtree(made.directories[0] / "a-0")
    assert rows(validated(store), "a-0") == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "FAILURE")]


def test_without_a_record_the_metadata_tell_that_a_log_is_missing(made: MadeNode, tmp_path: Path) -> None:
    def looked() -> Facts:
        return collect_facts(managed(tmp_path, made.root), None, full=False, with_lake=False)

    assert overall(looked()) is Status.OK
    shutil.rmtree(made.directories[0] / "a-0")
    assert rows(looked(), "a-0") == [(0, 0, "LOST", "FAILURE")]
    assert "its first and last offsets aren't known" in lost(looked()).detail
    # What a reassignment brings or takes away isn't here yet, or not any more.
    records = [partition(made.topic_ids["a"], 0, (1, 2), adding=(1,))]
    made.replicas.pop("a-0")
    made.more_records += records
    made.write()
    assert overall(looked()) is Status.OK


def test_a_look_that_finds_all_as_it_was_writes_nothing(store: ManagedStore) -> None:
    before = kept_logs(store.journal_url, id_of(store))
    assert before is not None
    assert {one.log: (one.start_offset, one.end_offset, one.safe_end) for one in before} == {
        "a-0": (0, 6, 6),
        "b-0": (0, 6, 6),
    }
    steps.archive_sealed(store, "later", archive_here)
    assert kept_logs(store.journal_url, id_of(store)) == before


def test_pages_show_what_is_lost_of_it(store: ManagedStore, made: MadeNode) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    assert [(one.start_offset, one.end_offset) for one in places(store) if one.where is Place.LOST] == [
        (4, 6)
    ]
