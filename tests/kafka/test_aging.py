"""A node whose broker deletes, renames and writes at the very calls that read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from storage_engine.core.extras import QUALITY
from storage_engine.cycle import CLEANUP, Cleanup, archive, archive_here, plan, report
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, Run, Step
from storage_engine.kafka.stopped.store_lock import held_here
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import Segment, SegmentId
from storage_engine.retention.archive import archiving, sealed
from storage_engine.retention.archive.archivable import Listed, list_segments, refuse_other_logs
from storage_engine.retention.archive.archiving import Planned, planned_segments
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.proof.history import releases
from storage_engine.retention.proof.proofs import LakeProofs
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.report.report import Fate, build_report
from storage_engine.retention.steps import recorded_plan
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.managed_store import ManagedStore
from tests.aging import aging, unrecorded
from tests.extras import take_away
from tests.kafka.lakes import archivable_segments
from tests.kafka.node_acts import NodeActs
from tests.kafka.stopped_nodes import make_node, managed
from tests.rounds import ALL, rounds
from tests.services.command_line import run_command

pytestmark = pytest.mark.timeout(7_200)

LOGS = ("compacted-0", "ctime-0", "plain-0", "retms-0", "txn-0")
ACTS = ("expire", "expire_many", "remove", "delete_topic", "append", "compact", "start")
SCHEDULE = st.lists(st.tuples(st.integers(0, 150), st.sampled_from(ACTS)), min_size=1, max_size=8)

A_TOPIC_GOES_BETWEEN_TWO_LOOKS = [
    (0, "expire"),
    (112, "expire"),
    (0, "expire"),
    (64, "delete_topic"),
    (0, "expire"),
]
GOES_BEFORE_IT_IS_CHOSEN = [
    (76, "compact"),
    (66, "start"),
    (98, "expire_many"),
    (13, "expire_many"),
    (106, "delete_topic"),
    (136, "expire"),
    (38, "expire_many"),
]


@pytest.fixture(scope="module")
def few(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Make a node with few logs."""
    turn = iter(range(1_000_000))

    def make() -> Path:
        copied = tmp_path_factory.mktemp(f"aging-{next(turn)}") / "node"
        shutil.copytree(
            node,
            copied,
            ignore=lambda at, names: {
                name for name in names if Path(at).name == "logs" and name[-1].isdigit() and name not in LOGS
            },
        )
        properties = copied / "server.properties"
        properties.write_text(properties.read_text().replace(str(node), str(copied)))
        return copied

    return make


def is_on_disk(segment: Segment) -> bool:
    return Path(segment.facts.path).exists()


@pytest.mark.again
@settings(
    max_examples=rounds("STORAGE_ENGINE_AGING", 2, 300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(schedule=SCHEDULE)
@example(schedule=GOES_BEFORE_IT_IS_CHOSEN)
@example(schedule=A_TOPIC_GOES_BETWEEN_TWO_LOOKS)
def test_archive_goes_on_with_all_that_is_left(
    few: Callable[[], Path], schedule: list[tuple[int, str]]
) -> None:
    node = few()
    store = ManagedStore.local("k", str(node / "server.properties"), node.parent / "managed", broker="kafka")
    make_lake(store.lake, "kafka")
    before = archivable_segments(node)
    acts = NodeActs(node / "logs")
    begins: dict[str, list[int]] = {}
    seen: list[str] = []

    def list_and_note(context: Context) -> Listed:
        listing = list_segments(context)
        seen[:] = [log.name for log in listing.snapshot.logs]
        for log in listing.snapshot.logs:
            begins.setdefault(log.name, []).append(log.min_offset)
        return listing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "list_segments", list_and_note)
        with aging(node, [(after, getattr(acts, act)) for after, act in schedule]):
            done = archive_sealed(store, "aging", archive_here)
        # What went after a run's last look is the next one's; of a log that is no more, verifying tells.
        again = archive_sealed(store, "again", archive_here)
    lake = open_lake(store.lake)
    # A lake knows no store of which everything went before it could be archived.
    archived = {
        (row.log, row.base_offset) for known in list_stores(lake) for row in receipts(lake, known.store_id)
    }
    left = [one for one in before if is_on_disk(one)]
    assert {one.id for one in left} <= archived
    # No broker runs, to which anything could be left: what is gone and in no lake is lost, and on record.
    # Of what went before the first look nothing is known.
    vanished = begins.keys() - set(seen)
    gone = [
        one
        for one in before
        if one.id not in archived
        and not is_on_disk(one)
        and one.log in begins
        and one.log not in vanished
        and one.base_offset >= begins[one.log][0]
    ]
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    ranges = [(one.log, one.start_offset, one.end_offset) for one, _ in recorded_gone(journal, record)]
    for one in gone:
        assert any(
            log == one.log and first <= one.base_offset and one.end_offset <= end
            for log, first, end in ranges
        )
    assert all(
        any(one.log == log for one in (*done.refused, *again.refused))
        or any(log in told for told in (*done.notices, *again.notices))
        for log, _, _ in ranges
    )
    assert all(one.why.endswith(" LOST.") for one in done.refused)


def test_a_log_that_goes_before_its_segments_are_chosen_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    make_node(node)
    store = managed(tmp_path / "managed", node)
    make_lake(store.lake, "kafka")

    def overtaken(context: Context, asked: Sequence[LakeProofs], segments: Sequence[Segment]) -> None:
        for log in node.glob("*/a-0"):
            log.rename(log.with_name(f"a-0.{'0' * 32}-delete"))
        refuse_other_logs(context, asked, segments)

    monkeypatch.setattr(archiving, "refuse_other_logs", overtaken)
    done = archive_sealed(store, "aging", archive_here)
    assert {row.log for row in done.receipts} == {"b-0"}
    (refused,) = done.refused
    assert refused.log == "a-0"
    assert "[0, 4) on disk or in a lake, found them in neither: LOST." in refused.why
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    ((drift, _),) = recorded_gone(journal, record)
    assert (drift.log, drift.start_offset, drift.end_offset) == ("a-0", 0, 4)


def test_a_broker_that_deletes_at_each_look_keeps_no_segment_out_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    make_node(node, ("a-0",), ("logs",), going=16)
    store = managed(tmp_path / "managed", node)
    make_lake(store.lake, "kafka")
    before = archivable_segments(node)
    oldest = iter(before)

    def overtaken(context: Context, asked: Sequence[LakeProofs], segments: Sequence[Segment]) -> None:
        path = Path(next(oldest).facts.path)
        path.rename(f"{path}.deleted")
        refuse_other_logs(context, asked, segments)

    monkeypatch.setattr(archiving, "refuse_other_logs", overtaken)
    done = archive_sealed(store, "aging", archive_here)
    left = {one.base_offset for one in before if is_on_disk(one)}
    assert len(left) > 12
    assert left <= {row.base_offset for row in done.receipts}
    assert [one.error for one in done.refused] == ["FileGoneError"]
    assert "[0, 2) on disk or in a lake, found them in neither: LOST." in done.refused[0].why


def test_what_a_later_look_lacks_has_gone(tmp_path: Path) -> None:
    node = tmp_path / "node"
    make_node(node, ("a-0", "b-0"), ("logs",))
    first, *others = archivable_segments(node)
    store = KafkaStore(OpenNode(node / "server.properties"))
    path = Path(first.facts.path)
    path.rename(f"{path}.deleted")
    (node / "logs/b-0").rename(node / f"logs/b-0.{'0' * 32}-delete")
    store.snapshot(0)
    left = [one for one in others if one.log == "a-0"]
    assert store.replicas.contexts(left).keys() == {one.id for one in left}
    for gone in (first, others[-1]):
        with pytest.raises(FileNotFoundError, match=gone.facts.path):
            store.replicas.contexts([gone])
    with pytest.raises(FileNotFoundError, match="log b-0 of "):
        store.identities.contradiction("b-0", ())


@settings(
    max_examples=rounds("STORAGE_ENGINE_AGING", 1, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(schedule=SCHEDULE, command=st.sampled_from(("plan", "doctor", "inspect", "lag", "validate")))
def test_who_only_looks_ends_well(
    few: Callable[[], Path], schedule: list[tuple[int, str]], command: str
) -> None:
    node = few()
    acts = NodeActs(node / "logs")
    words = ("--output", node.parent / "validation") if command == "validate" else ()
    with aging(node, [(after, getattr(acts, act)) for after, act in schedule]):
        done = run_command(command, node / "server.properties", *words)
    assert done.exit_code in (0, 1), done.out + done.err
    assert "Traceback" not in done.err
    # Nothing was wrong with it before.
    assert "a hole" not in done.out


CLEANS = ("expire", "expire_many", "remove", "delete_topic")
GOES_BEFORE_IT_IS_COMPARED = [
    (133, "expire"),
    (55, "expire"),
    (225, "remove"),
    (250, "delete_topic"),
    (105, "remove"),
]


GOES_AFTER_THE_LAST_LOOK = [
    (182, "expire_many"),
    (66, "expire"),
    (160, "expire"),
    (66, "expire"),
    (120, "expire"),
    (66, "expire"),
]


@settings(
    max_examples=rounds("STORAGE_ENGINE_AGING", 1, 200),
    phases=tuple(Phase) if ALL else (Phase.explicit,),
    deadline=None,
    derandomize=True,
)
@given(
    schedule=st.lists(st.tuples(st.integers(0, 250), st.sampled_from(CLEANS)), min_size=1, max_size=6),
    is_archived=st.booleans(),
)
@example(
    schedule=[(203, "expire_many"), (228, "expire"), (178, "expire_many"), (0, "expire")], is_archived=True
)
@example(schedule=[(83, "expire_many"), (35, "delete_topic")], is_archived=True)
@example(schedule=GOES_BEFORE_IT_IS_COMPARED, is_archived=False)
@example(schedule=GOES_AFTER_THE_LAST_LOOK, is_archived=False)
def test_clean_goes_on_with_all_that_is_left(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[tuple[int, str]], is_archived: bool
) -> None:
    node = tmp_path_factory.mktemp("cleaned") / "node"
    make_node(node, ("a-0", "b-0", "c-0", "d-0"), ("logs",), going=4)
    store = managed(node.parent / "managed", node)
    make_lake(store.lake, "kafka")
    if is_archived:
        archive_sealed(store, "before", archive_here)
    cleanup = Cleanup(store, "clean", PlanRequest(manual=True))
    plan(cleanup)
    planned = {segment.id: segment for segment in recorded_plan(store, "clean").to_delete}
    assert len(planned) == 16
    acts = NodeActs(node / "logs")

    def act(name: str) -> None:
        # No broker runs while we have its lock.
        if not held_here:
            getattr(acts, name)()

    looks: list[set[SegmentId]] = []

    def look(context: Context, run: Run) -> Planned:
        # Not by a call that counts.
        looks.append({key for key, one in planned.items() if not os.access(one.facts.path, os.F_OK)})
        return planned_segments(context, run)

    error, step = "", archive
    with (
        pytest.MonkeyPatch.context() as patch,
        aging(node, [(after, partial(act, name)) for after, name in schedule]),
    ):
        take_away(patch, QUALITY)
        patch.setattr(archiving, "planned_segments", look)
        try:
            for step in CLEANUP[1:-1]:
                step(cleanup)
        except StorageEngineError as stopped:
            error = str(stopped)
    ended = report(cleanup)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    events = journal.events(journal.run(record.store_id, "clean"), Step.RELEASE)
    released = {one.segment.id for one in releases(events)[0].values()}
    gone = {key: one for key, one in planned.items() if key not in released and not is_on_disk(one)}
    stopped_early = bool(error) and step is archive
    assert unrecorded(journal, record, looks[-1] if stopped_early else gone) == set()
    if stopped_early:
        # What went after its last look is the next run's; of a log that is no more, verifying tells.
        archive_sealed(store, "again", archive_here)
        left = {log for log, _ in planned if (node / "logs" / log).exists()}
        assert {key for key in unrecorded(journal, record, gone) if key.log in left} == set()
    lake = open_lake(store.lake)
    proven = {(row.log, row.base_offset) for row in receipts(lake, record.store_id)}
    lost = {key.log for key in gone if key not in proven}
    if error:
        assert lost == {log for log, _ in planned}
        assert "LOST" in error
    else:
        found = build_report(store, "clean")
        assert {one.log for one in found.refused} == lost, found.refused
        assert all("LOST" in one.why for one in found.refused)
        # All the rest has gone.
        assert not [one for one in planned.values() if is_on_disk(one) and one.log not in lost]
        fates = {(row.log, row.base_offset): row.fate for row in found.segments}
        assert all(fates[key] is Fate.GONE_PROVEN for key in gone if key.log not in lost)
        # A topic's last segment is in no lake.
        away = {log for log, _ in planned if not (node / "logs" / log).exists()}
        assert ended.ok is not bool(lost | away)
