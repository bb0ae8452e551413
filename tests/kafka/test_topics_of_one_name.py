"""Topics that were made again under one name, on nodes that share a lake: each has its own answer."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue

from storage_engine.cycle import archive_here
from storage_engine.exceptions import BadInputError, LakeConflictError, StorageEngineError
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.coverage.coverage import (
    ReleasedSpan,
    ReplicaSpan,
    Witnesses,
    log_ranges,
    names_of_logs,
)
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.lake.soundness.receipts import read_receipts
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.decisions import adopt
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, excused_parts
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import CLUSTER, MadeNode, batch_of
from tests.kafka.stopped_nodes import OLD_MS, clean, empty_snapshot, make_node, managed
from tests.lake.test_coverage import SIZE, local, receipt
from tests.rounds import rounds

pytestmark = pytest.mark.usefixtures("plainly")

NODES = 2


def topic_id(generation: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"a{generation}")


def log_id(generation: int) -> str:
    return f"{CLUSTER}/{text_of(topic_id(generation))}/0"


def make_again(node: MadeNode, generation: int, segment_offsets: int, segments: int) -> None:
    """Make a-0 another topic's log; that all its batches are as the first one's tells them not apart."""
    shutil.rmtree(node.directories[0] / "a-0")
    node.topic_ids["a"] = topic_id(generation)
    bases = [segment_offsets * number for number in range(segments)]
    files = {
        base: [batch_of(at, ms=OLD_MS) for at in range(base, base + segment_offsets, 2)] for base in bases
    }
    path = node.add("a-0", files)
    for base in bases:
        for suffix in ("index", "timeindex", "txnindex"):
            (path / f"{base:020d}.{suffix}").write_bytes(b"")
    for base in (*bases[1:], bases[-1] + segment_offsets):
        (path / f"{base:020d}.snapshot").write_bytes(empty_snapshot())
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    node.write()


@dataclass
class World:
    """Nodes with replicas of a-0, which cut its batches into other files, their stores, and one lake."""

    directory: Path
    generation: int = 0
    runs: int = 0
    nodes: list[MadeNode] = field(default_factory=list)
    stores: list[ManagedStore] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in range(NODES):
            node = make_node(self.directory / f"node-{number}")
            self.nodes.append(node)
            self.stores.append(managed(self.directory / f"managed-{number}", node.root))
        make_lake(self.stores[0].lake, "kafka")
        lake = self.stores[0].lake
        self.stores = [replace(one, name=f"k{at}", lake=lake) for at, one in enumerate(self.stores)]
        self.make_again(3)

    def make_again(self, segments: int) -> None:
        self.generation += 1
        for number, node in enumerate(self.nodes):
            make_again(node, self.generation, 2 * (number + 1), segments)

    def act(self, act: str, number: int) -> None:
        self.runs += 1
        store, run = self.stores[number % NODES], f"run-{self.runs}"
        if act == "again":
            self.make_again(2 + number)
        # A log that was made again is refused until it is adopted; the other log goes on.
        elif act == "adopt":
            with suppress(BadInputError):
                adopt(store, "me", "it was made again", log="a-0")
        elif act == "archive":
            with suppress(LakeConflictError):
                steps.archive_sealed(store, run, archive_here, budget_bytes=None if number % 3 else 1)
        elif act == "look":
            steps.monitor(store, run)
        else:
            with suppress(StorageEngineError):
                clean(store, run)

    def archived(self) -> dict[str, set[int]]:
        """Return the offsets that the lake has, by the identity of their log."""
        found: dict[str, set[int]] = {}
        for row in read_receipts(open_lake(self.stores[0].lake).segments(), AlwaysTrue()):
            found.setdefault(str(row.log_id), set()).update(range(row.base_offset, row.end))
        return found

    def on_disk(self, number: int) -> set[int]:
        """Return the offsets that a node's a-0 has."""
        files = sorted((self.nodes[number].directories[0] / "a-0").glob("*.log"))
        end = self.nodes[number].watermarks["a-0"]
        return set(range(int(files[0].stem), end))

    def check(self) -> None:
        """Make sure that each answer to where a byte is, is true of its own log."""
        archived = self.archived()
        for number, store in enumerate(self.stores):
            here = self.on_disk(number)
            for start, end, name, where in answers(store):
                if not name.startswith("a-0"):
                    continue
                is_present = name == "a-0"
                own = log_id(self.generation) if is_present else name.removeprefix("a-0 (").removesuffix(")")
                offsets = set(range(start, end))
                if where in ("LOST", "UNKNOWN"):
                    assert not offsets & archived.get(own, set()), (number, name, start, end, where)
                    assert not (is_present and offsets & here)
                elif where == "ARCHIVED":
                    assert offsets <= archived.get(own, set()), (number, name, start, end, where)
                else:
                    assert is_present
                    assert offsets <= here, (number, name, start, end, where)


def answers(store: ManagedStore) -> list[tuple[int, int, str, str]]:
    """Return where verify, validation and the pages say that bytes are."""
    with opened(store) as context:
        measured = measure_lag(context)
        shown = look_for_ranges(context, measured.snapshot, measured)[0]
    told = [*collect_facts(store, None, full=False, with_lake=True).ranges]
    for verified in verify_store(store, VerifyLevel.STORE):
        told += verified.ranges
    return [
        *((one.start_offset, one.end_offset, one.log, one.where.value) for one in told),
        *((one.start_offset, one.end_offset, one.log, one.where.value.upper()) for one in shown),
    ]


acts = st.tuples(
    st.sampled_from(("archive", "clean", "again", "adopt", "look", "clean", "again")), st.integers(0, 3)
)


@dataclass(frozen=True)
class Topic:
    """A topic's log by the numbers of its segments: what was archived, by this node and by others, what went
    of it, and which losses of that a person has accepted.
    """

    archived: frozenset[int]
    of_others: frozenset[int]
    went: frozenset[int]
    accepted: frozenset[int]

    def truth(self, number: int, on_disk: frozenset[int]) -> tuple[Where, Status] | None:
        """Return where a segment is; None: nothing that is known of the log reaches there."""
        known = self.archived | self.went | on_disk
        if not known or not min(known) <= number <= max(known):
            return None
        if number in on_disk:
            return (Where.BOTH if number in self.archived else Where.LOCAL), Status.OK
        if number in self.archived | self.of_others:
            return Where.ARCHIVED, Status.OK
        is_accepted = number in self.went & self.accepted
        return Where.LOST, Status.WARNING if is_accepted else Status.FAILURE


numbers = st.frozensets(st.integers(0, 6), max_size=5)


@given(st.lists(st.builds(Topic, numbers, numbers, numbers, numbers), min_size=2, max_size=4), numbers)
def test_ranges_losses_and_credits_of_topics_of_one_name_never_mix(
    topics: list[Topic], on_disk: frozenset[int]
) -> None:
    present = {"a-0": log_id(len(topics) - 1)}

    def each(of: str) -> Iterator[tuple[int, str]]:
        return ((one, log_id(at)) for at, topic in enumerate(topics) for one in getattr(topic, of))

    receipts = [
        replace(receipt(one), log="a-0", log_id=of, sha256=of.ljust(64)) for one, of in each("archived")
    ]
    losses = [
        AcceptedLoss("a-0", 0, one * SIZE, (one + 1) * SIZE, "me", "old", log_id=of)
        for one, of in each("accepted")
    ]
    went = [
        part
        for one, of in each("went")
        for part in excused_parts(
            ReleasedSpan("a-0", one * SIZE, (one + 1) * SIZE, others="it was here", log_id=of), losses
        )
    ]
    names = names_of_logs(present, receipts, went)
    credits = [
        ReplicaSpan(label, one * SIZE, (one + 1) * SIZE, "other")
        for one, of in each("of_others")
        for label, own in names.ids.items()
        if own == of
    ]
    here = [replace(local(one, unchanged=True), log="a-0") for one in on_disk]
    found = log_ranges(here, receipts, released=went, witnesses=Witnesses(present, credits))
    told = {
        (names.ids[row.log], number): (row.where, row.status)
        for row in found
        for number in range(row.start_offset // SIZE, row.end_offset // SIZE)
    }
    for at, topic in enumerate(topics):
        there = on_disk if at == len(topics) - 1 else frozenset()
        expected = {(log_id(at), one): topic.truth(one, there) for one in range(7)}
        known = {key: told[key] for key in expected if key in told}
        assert known == {key: truth for key, truth in expected.items() if truth is not None}


@pytest.mark.again
@settings(
    max_examples=rounds("STORAGE_ENGINE_TOPIC_ROUNDS", 2, 60),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=st.lists(acts, min_size=3, max_size=7))
def test_of_two_topics_of_one_name_each_has_its_own_answer(
    history: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    for act, number in history:
        world.act(act, number)
    world.check()


@pytest.mark.again
def test_what_one_node_archived_of_either_topic_is_lost_for_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    for act, number in (
        ("archive", 1),
        ("clean", 0),
        ("clean", 1),
        ("again", 3),
        ("adopt", 0),
        ("clean", 0),
        ("clean", 1),
        ("adopt", 1),
        ("clean", 1),
    ):
        world.act(act, number)
    world.check()
    assert world.archived().keys() >= {log_id(1), log_id(2)}
    for number, store in enumerate(world.stores):
        named = {name for _, _, name, _ in answers(store) if name.startswith("a-0")}
        assert named == {"a-0", f"a-0 ({log_id(1)})"}, number
        assert "LOST" not in {where for _, _, _, where in answers(store)}


def test_offsets_of_the_second_topic_are_not_archived_by_the_first_ones_receipt(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.act("archive", 1)
    world.act("clean", 0)
    world.make_again(5)
    for path in (world.nodes[0].directories[0] / "a-0").glob(f"{4:020d}.*"):
        path.unlink()
    found = {(start, end, where) for start, end, name, where in answers(world.stores[0]) if name == "a-0"}
    assert any(where == "LOST" and (start, end) == (4, 6) for start, end, where in found)
    assert "ARCHIVED" not in {where for _, _, where in found}


def test_an_export_tells_topics_of_one_name_apart(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.stores[0]
    steps.archive_sealed(store, "first", archive_here)
    world.make_again(4)
    adopt(store, "me", "it was made again", log="a-0")
    steps.archive_sealed(store, "second", archive_here)
    lake = open_lake(store.lake)
    export_messages(lake, tmp_path / "all", Selection(topic="a"), file_format=ExportFormat.JSON_LINES)
    rows = [json.loads(line) for line in (tmp_path / "all").read_text().splitlines()]
    ids = {text_of(topic_id(generation)) for generation in (1, 2)}
    assert {row["topic_id"] for row in rows} == ids
    for one in ids:
        target = tmp_path / f"of-{one}"
        export_messages(lake, target, Selection(topic_id=one), file_format=ExportFormat.JSON_LINES)
        found = [json.loads(line) for line in target.read_text().splitlines()]
        assert found == [row for row in rows if row["topic_id"] == one]
        assert len(found) == len({row["offset"] for row in found})
    with pytest.raises(
        BadInputError, match=r"expected the id of an archived topic, found 'none'; there are .*\(a-0\)"
    ):
        export_messages(lake, tmp_path / "none", Selection(topic_id="none"))
