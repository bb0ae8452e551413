"""Topics that stay out of a lake by archive rules: what enters is as it was, and the rest proves the root."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.archive.archive import archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file import data_file
from storage_engine.lake.file.jobs import ProvenSegment
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import partial_fault
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.rules import ArchiveRule, Hold, Scope
from storage_engine.model.plan.plan import Decision, Reason
from storage_engine.model.proof.receipt import NOT_ARCHIVED, PARTIAL, Receipt
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import VerifyLevel
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store.store import FileFacts, Segment, SegmentState
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.proof.proofs import LakeProofs, Proofs
from tests.archive_rules import NOW_MS, permits_of
from tests.rocketmq.conftest import MAGIC_BLANK, Message, make_frame
from tests.rounds import rounds

EXAMPLES = rounds("STORAGE_ENGINE_LEFT_OUT_EXAMPLES", 40, 1000)
TOPICS = ("debug-a", "debug-b", "orders", "%RETRY%debug-a", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
SYSTEM = frozenset(TOPICS[4:])
PATTERNS = st.sampled_from(
    ["*", "debug-*", "debug-a", "orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%*", "?ebug-b"]
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=90),
    topic=st.sampled_from([topic.encode() for topic in TOPICS]),
    properties=st.sampled_from([b"", b"KEYS\x01k\x02TAGS\x01t\x02", b"\xff odd"]),
    version=st.sampled_from([1, 2]),
    queue_id=st.integers(0, 3),
    store_timestamp_ms=st.integers(1_700_000_000_000, 1_700_000_900_000),
)
PIECES = st.lists(MESSAGES | st.binary(min_size=40, max_size=70), min_size=4, max_size=40)
RULES = st.lists(
    st.builds(
        ArchiveRule,
        st.integers(0).map(lambda number: f"{number:064x}"),
        st.builds(Scope, PATTERNS),
        st.sampled_from([False, False, True]),
        st.just("anna"),
        st.sampled_from([0, 0, 0, NOW_MS]),
    ),
    max_size=3,
    unique_by=(lambda it: it.scope, lambda it: it.rule_id),
)
HOLDS = st.just([]) | st.lists(
    st.builds(Hold, st.just("h" * 64), st.builds(Scope, PATTERNS), st.just(""), st.just(""), st.just(0)),
    max_size=1,
)


ALL_OUT = ArchiveRule("a" * 64, Scope(), False, "anna", 0)


def segment_bytes(pieces: Iterable[Message | bytes], base_offset: int) -> bytes:
    """Frames, with what is none in between, and the filler at the end."""
    data = b""
    for piece in pieces:
        data += piece if isinstance(piece, bytes) else make_frame(piece, base_offset + len(data))
    return data + struct.pack(">iI", 8 + 24, MAGIC_BLANK) + bytes(24)


def rows_of(location: str) -> pa.Table:
    path = local_path(location)
    assert path is not None
    # Keys of leaves are drawn for each file. Arrow can't sort views.
    rows = pq.ParquetFile(path).read().drop_columns(["leaf_key"])
    return rows.take(pc.sort_indices(rows["physical_offset"]))


def judged(lake: Lake, segment: Segment, row: Receipt, permits: ArchivePermits) -> Passage:
    decision = Decision(segment, Reason.EXPIRED, "old")
    found = LakeProofs(lake, {segment.id: [row]}, {}, permits=permits)
    verdict = Proofs((found,), permits=permits).judge(decision, segment, Policy(), None)
    assert (NOT_ARCHIVED in verdict.detail) is (not row.is_whole)
    assert bool(Proofs((found,), permits=permits).unproven([segment])) is (verdict.passage is Passage.REFUSED)
    return verdict.passage


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "MIN_CHUNK_BYTES", 1024)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_what_enters_is_all_else_and_the_gate_asks_for_each_topic_that_does_not(tmp_path: Path) -> None:
    lakes = [make_lake(LakeConfig.local(tmp_path / name)) for name in ("whole", "lake")]
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    ends = [0]
    proven: list[ProvenSegment] = []
    seen: set[tuple[bool, bool, Passage]] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @given(PIECES, RULES.filter(len), HOLDS, RULES, HOLDS, st.sampled_from(["same", "exception", "other"]))
    @example([Message(topic=topic.encode()) for topic in TOPICS], [ALL_OUT], [], [], [], "exception")
    def archive_one(
        pieces: list[Message | bytes],
        rules: list[ArchiveRule],
        holds: list[Hold],
        rules_then: list[ArchiveRule],
        holds_then: list[Hold],
        change: str,
    ) -> None:
        base_offset = ends[-1]
        data = segment_bytes(pieces, base_offset)
        path = directory / f"{base_offset:020d}"
        path.write_bytes(data)
        ends.append(base_offset + len(data))
        segment = Segment("commitlog", base_offset, FileFacts.of(path), SegmentState.SEALED)
        permits = permits_of(rules, holds)
        rows = []
        for lake, by in zip(lakes, (None, permits), strict=True):
            (job,) = segment_jobs(
                lake,
                [segment],
                store_id="s",
                lineage=0,
                broker="rocketmq",
                store_root=str(tmp_path / "store"),
                accept_damage=True,
                **({} if by is None else {"permits": by}),
            )
            rows.append(archive_segment(job))
        proven.append(rows[1])
        everything, entered = (rows_of(found.staged_file) for found in rows)
        whole, row = (found.receipt(found.data_file) for found in rows)
        named = {topic for topic in everything["topic"].to_pylist() if topic is not None}
        left_out = {topic for topic in named if permits.rule_of("commitlog", topic) is not None}
        assert not left_out & SYSTEM
        stays = pc.invert(pc.is_in(everything["topic"], value_set=pa.array(sorted(left_out), pa.string())))
        assert entered.equals(everything.filter(stays))
        assert (row.state, set(row.gone_streams)) == (PARTIAL if left_out else None, left_out)
        assert row.gone_streams.keys() == left_out
        same_facts = ("sha256", "size_bytes", "first_store_timestamp_ms", "last_store_timestamp_ms")
        assert [getattr(row, name) for name in same_facts] == [getattr(whole, name) for name in same_facts]
        counts = [
            [
                (it["name"], it["leaves"], it["bytes"], it["first_ms"])
                for it in json.loads(found.streams or "[]")
            ]
            for found in rows
        ]
        assert counts[0] == counts[1]
        if change == "exception" and left_out:
            exception = ArchiveRule("e" * 64, Scope(topic=max(left_out)), True, "anna", 0)
            rules_then, holds_then = [it for it in rules if it.scope != exception.scope], []
            rules_then.append(exception)
        then = permits if change == "same" else permits_of(rules_then, holds_then)
        covered = {topic for topic in left_out if then.rule_of("commitlog", topic) is not None}
        passage = judged(lakes[1], segment, row, then)
        assert passage is (Passage.PROVEN if covered == left_out else Passage.REFUSED)
        seen.add((bool(left_out), bool(covered), passage))

    archive_one()
    assert seen >= {
        (False, False, Passage.PROVEN),
        (True, True, Passage.PROVEN),
        (True, True, Passage.REFUSED),
    }
    commit_segments(lakes[1], proven)
    found = verify(lakes[1], VerifyLevel.BYTES)[0]
    assert [one for one in found.findings if one.status is Status.FAILURE] == []
    for row in receipts(lakes[1], "s", with_ended=True):
        if not row.is_whole:
            assert partial_fault(lakes[1].messages(), row, from_table=True) == ""
