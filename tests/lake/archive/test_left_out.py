"""Topics that stay out of a lake by archive rules: what enters is as it was, and the rest proves the root."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from storage_engine.arrow import row_groups
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.exceptions import ProofError
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.archive import commit
from storage_engine.lake.archive.archive import archive_all, archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file import data_file
from storage_engine.lake.file.jobs import ProvenSegment, SegmentJob, new_attempt
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.segment_expiry import finish_acts, undo_expiry
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import partial_fault
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts, moved_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import decide_archive, policy_of
from storage_engine.model.keep.keep_rules import ArchiveRule, Hold, Scope
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.proof.receipt import NOT_ARCHIVED, PARTIAL, Receipt
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.settings.policy import Policy
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention.proof.gate import Consent, Passage
from storage_engine.retention.proof.proofs import LakeProofs, Proofs
from tests.archive_rules import NOW_MS, permits_of
from tests.lake.conftest import MakeJobs
from tests.lake.gc.test_segment_expiry import STORE, every_receipt
from tests.lake.gc.test_thinning import LEDGER, ORDERS, check, gone_topics, thin
from tests.lake.lake_acts import at
from tests.rocketmq.conftest import MAGIC_BLANK, Message, make_frame
from tests.rounds import rounds

pytestmark = pytest.mark.usefixtures("no_other_run")

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
    verdict = Proofs((found,), permits=permits).judge(
        decision, segment, Policy(), None, Consent("", None, "")
    )
    assert (NOT_ARCHIVED in verdict.detail) is (not row.is_whole)
    assert bool(Proofs((found,), permits=permits).unproven([segment])) is (verdict.passage is Passage.REFUSED)
    return verdict.passage


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "MIN_CHUNK_BYTES", 1024)
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 300)


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


def left_out_in(lake: Lake, jobs: Sequence[SegmentJob], topic: str) -> ArchivePermits:
    """Archive segments without a topic, by a rule that the lake has."""
    acts = record_act(lake, lambda acts: decide_archive(acts, Scope(topic=topic), archives=False))
    permits = replace(permits_of(policy_of(acts).archive_rules), recorded_ms={acts[-1].sha256: 0})
    permits = replace(permits, now_ms=clock_ms() + 2 * DAY_MS)
    archive_all(lake, [replace(job, permits=permits) for job in jobs])
    return permits


def test_copies_moved_and_rebuilt_lakes_have_it_as_it_was(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    permits = left_out_in(lake, make_jobs(lake, *segments[:2]), LEDGER)
    rows = every_receipt(lake)
    assert [gone_topics(row) for row in rows] == [{LEDGER}] * 2
    assert all(permits.clause_of_receipt(row) for row in rows)
    check(lake, list(VerifyLevel))
    finish_acts(lake)
    assert collect(lake, grace_ms=0, delete=True, trash_ms=0).taken == ()
    assert every_receipt(lake) == rows
    assert copy_lake(lake, at(tmp_path / "copy")).waiting == 0
    copy = open_lake(at(tmp_path / "copy"))
    assert every_receipt(copy) == rows
    check(copy, list(VerifyLevel))
    (tmp_path / "lake").rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    moved = open_lake(at(tmp_path / "moved"))
    check(moved, list(VerifyLevel))
    (tmp_path / "moved" / "catalog.db").unlink()
    rebuild(moved.config, {})
    again = open_lake(moved.config)
    assert every_receipt(again) == rows
    check(again, list(VerifyLevel))


def test_another_engine_may_move_what_entered(lake: Lake, segments: list[Path], make_jobs: MakeJobs) -> None:
    permits = left_out_in(lake, make_jobs(lake, *segments[:2]), LEDGER)
    messages = lake.messages()
    messages.overwrite(messages.scan().to_arrow())
    rows = every_receipt(lake)
    assert len(moved_receipts(lake, rows)) == 2
    assert len(broken_receipts(lake, rows)) == 2, "the gate hears that they have to be proven again"
    assert len(reprove(lake, STORE, rows)) == 2
    again = every_receipt(lake)
    assert broken_receipts(lake, again) == {}
    assert all(permits.clause_of_receipt(row) for row in again)
    check(lake, list(VerifyLevel))


def test_what_left_later_proves_no_deletion_also_once_it_is_back(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs
) -> None:
    (job,) = make_jobs(lake, segments[0])
    permits = left_out_in(lake, [job], LEDGER)
    (row,) = every_receipt(lake)
    act = thin(lake, [row], ORDERS)
    (thinned,) = every_receipt(lake)
    assert gone_topics(thinned) == {LEDGER, ORDERS}
    assert (thinned.is_whole, permits.clause_of_receipt(thinned)) == (False, "")
    check(lake)
    undo_expiry(lake, act)
    (back,) = every_receipt(lake)
    assert (gone_topics(back), back.state, permits.clause_of_receipt(back)) == ({LEDGER}, PARTIAL, "")
    check(lake)
    # The store has it again, and the rule is in force still.
    archive_all(lake, [replace(job, permits=permits, attempt=new_attempt())])
    (newest,) = every_receipt(lake)
    assert permits.clause_of_receipt(newest)
    check(lake, list(VerifyLevel))


def test_a_run_that_was_killed_between_its_commits_leaves_nothing_that_counts(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a receipt prove nothing; whoever comes next, with the rule or without, replaces them."""
    kept = commit.prepare_receipts
    for first, second in ((LEDGER, None), (LEDGER, LEDGER), (None, LEDGER)):
        (job,) = make_jobs(lake, segments[0], store_id=f"of {first} {second}")
        jobs = {
            topic: replace(job, permits=topic and permits_of([replace(ALL_OUT, scope=Scope(topic=topic))]))
            for topic in (None, LEDGER)
        }
        monkeypatch.setattr(commit, "prepare_receipts", no_receipts)
        with pytest.raises(RuntimeError, match="killed"):
            archive_all(lake, [jobs[first]])
        monkeypatch.setattr(commit, "prepare_receipts", kept)
        assert receipts(lake, job.store_id, with_ended=True) == ()
        (row,) = archive_all(lake, [jobs[second]])
        # A whole copy that is in the table already stays.
        assert gone_topics(row) == ({LEDGER} if first == second else set())
        assert broken_receipts(lake, [row], Depth.ROWS) == {}
        assert len(live_data_files(lake.messages(), job.store_id)) == 1


def no_receipts(*_: object) -> Any:
    raise RuntimeError("killed")


def test_a_file_that_lacks_a_row_of_another_topic_is_no_proof(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_jobs(lake, segments[0])
    whole = data_file.LeftOut.split
    first = True

    def split(self: data_file.LeftOut, chunks: Any, *, left_out: bool) -> Any:
        nonlocal first
        for rows in whole(self, chunks, left_out=left_out):
            yield rows.slice(1) if first else rows
            first = False

    monkeypatch.setattr(data_file.LeftOut, "split", split)
    with pytest.raises(ProofError, match="expected a row that begins at physical offset"):
        archive_segment(replace(job, permits=permits_of([replace(ALL_OUT, scope=Scope(topic=LEDGER))])))
    assert list(Path(lake.messages().location().removeprefix("file://")).rglob("*.partial")) == []
