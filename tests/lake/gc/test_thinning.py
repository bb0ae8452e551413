"""Segments of which some topics leave a lake: what stays and proves itself, and what an undo brings back."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, LakeIdentityError, ProofError, RestoreError
from storage_engine.lake.acts.act_files import read_acts, record_act
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.gc import segment_expiry, snapshot_expiry, thinning
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired, undo_expiry
from storage_engine.lake.gc.thinning import thin_segment
from storage_engine.lake.move.copying import copy_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.restore.restore_span import Span
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.lake.soundness.segment_reader import partial_fault
from storage_engine.lake.soundness.soundness_reader import moved_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import (
    ActKind,
    KeepDecision,
    decide_hold,
    decide_lift,
    decide_rule,
    policy_of,
)
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from tests.lake.conftest import MakeJobs
from tests.lake.gc.test_segment_expiry import STORE, acts_of, every_receipt, expire, live, path_of, states
from tests.lake.killed_at_each import killed_at_each
from tests.lake.lake_acts import at
from tests.rounds import ALL
from tests.services.forks import begun
from tests.services.restoring import restore

EVENTS, LEDGER, ORDERS = "events_UPPER-4q", "ledger_ordered", "orders"
"""Topics of each segment, beside one row without a topic."""

LINKS = {"sequence", "previous_hash", "row_hash", "act"}


def thin(lake: Lake, rows: Sequence[Receipt], *topics: str) -> str:
    """Let topics leave some segments, by one act; return its SHA-256."""
    sha256 = begin_to_thin(lake, rows, *topics)
    finish_acts(lake)
    return sha256


def begin_to_thin(lake: Lake, rows: Sequence[Receipt], *topics: str) -> str:
    thinned = tuple(thin_segment(lake, row, topics) for row in rows)
    acts = record_act(lake, lambda acts: decide_rule(acts, Scope(), "0 days"))
    files = tuple(it.file for it in thinned)
    decision = KeepDecision(ActKind.EXPIRE, policy=policy_of(acts).version, files=files, thinned=thinned)
    return record_act(lake, lambda _acts: decision)[-1].sha256


def rows_of(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def without(rows: pa.Table, topics: Collection[str]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["topic"], value_set=pa.array(sorted(topics)))))


def gone_topics(row: Receipt) -> set[str]:
    return {stream["name"] for stream in json.loads(row.streams or "[]") if stream["gone"]}


def queried(lake: Lake) -> Counter[tuple[int, str | None]]:
    """How many rows any engine finds, by segment and topic."""
    rows = lake.messages().scan(selected_fields=("segment_base_offset", "topic")).to_arrow()
    return Counter(zip(rows["segment_base_offset"].to_pylist(), rows["topic"].to_pylist(), strict=True))


def check(lake: Lake, levels: Sequence[VerifyLevel] = (VerifyLevel.BYTES,)) -> None:
    """The chain is whole, what stays is proven by every byte, is in the table once, and what went has its
    act."""
    check_chain(receipt_history(lake, STORE))
    for level in levels:
        (found,) = verify(lake, level)
        assert found.overall is Status.OK, (level, found.findings)
    acts, counts = {it.sha256 for it in read_acts(lake)}, queried(lake)
    for row in every_receipt(lake):
        for stream in json.loads(row.streams or "[]"):
            count = counts[row.base_offset, stream["name"] or None]
            assert count in ({0, stream["leaves"]} if stream["gone"] else {stream["leaves"]}), stream
            assert stream["gone"] is None or [it for it in acts if it.startswith(stream["gone"])]
        if row.state is not None:
            assert row.act_sha256 in acts


@pytest.fixture
def thinned(filled: Callable[[int], Lake]) -> tuple[Lake, Receipt, str]:
    """A lake of two segments, of the first of which two topics have left; its receipt before, and the act."""
    lake = filled(2)
    before = every_receipt(lake)[0]
    return lake, before, thin(lake, [before], EVENTS, LEDGER)


def test_topics_leave_and_every_row_of_the_others_stays_as_it_was(thinned: tuple[Lake, Receipt, str]) -> None:
    lake, before, sha256 = thinned
    after = every_receipt(lake)[0]
    assert states(lake) == ["partial", None]
    old, new = rows_of(path_of(lake, before)), rows_of(path_of(lake, after))
    assert new.equals(without(old, {EVENTS, LEDGER}), check_metadata=True)
    assert set(new["topic"].to_pylist()) == {ORDERS, None}
    parquet = [pq.ParquetFile(path_of(lake, row)) for row in (before, after)]
    assert parquet[0].schema.equals(parquet[1].schema)
    data = path_of(lake, after).read_bytes()
    assert after == replace(
        before,
        state="partial",
        act=json.dumps({"id": sha256[:12], "kind": "expire", "sha256": sha256}),
        streams=after.streams,
        data_file=after.data_file,
        data_file_bytes=len(data),
        data_file_sha256=hashlib.sha256(data).hexdigest(),
        row_count=new.num_rows,
        message_count=new.num_rows - 1,
        sequence=2,
        previous_hash=after.previous_hash,
        row_hash=after.row_hash,
    )
    streams = [json.loads(row.streams or "") for row in (before, after)]
    assert streams[1] == [
        {**it, "gone": sha256[:12] if it["name"] in (EVENTS, LEDGER) else None} for it in streams[0]
    ]
    assert live(lake) == {data_file_of(lake.messages(), row) for row in every_receipt(lake)}
    act = next(it for it in read_acts(lake) if it.sha256 == sha256).act.decision
    (thinning,) = act.thinned
    assert (thinning.file, thinning.kept) == (*before.proven_files, *after.proven_files)
    assert (thinning.streams, act.files, act.segments) == ((EVENTS, LEDGER), before.proven_files, ())
    check(lake, list(VerifyLevel))
    finish_acts(lake)
    assert len(receipt_history(lake, STORE)) == 3


def test_readers_have_what_stays_and_name_what_went(
    thinned: tuple[Lake, Receipt, str], tmp_path: Path
) -> None:
    lake, before, _ = thinned
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert [(it.start_offset, it.end_offset, it.where) for it in found.ranges] == [
        (0, 1 << 20, Where.EXPIRED),
        (1 << 20, 2 << 20, Where.ARCHIVED),
    ]
    assert "in part only (partial) by policy" in found.ranges[0].detail
    counts = {stream["name"]: stream["leaves"] for stream in json.loads(before.streams or "")}
    one, other = (
        export_messages(lake, tmp_path / topic, Selection(topic=topic)) for topic in (ORDERS, LEDGER)
    )
    kept = [row for row in every_receipt(lake) if row.state is None]
    others = {it["name"]: it["leaves"] for it in json.loads(kept[0].streams or "")}
    assert one.message_count == counts[ORDERS] + others[ORDERS]
    assert other.message_count == others[LEDGER]
    assert [(it.start_offset, it.end_offset) for it in other.expired] == [(0, 1 << 20)]
    assert one.expired == (), "nothing of this topic went"
    (restored,) = restore(lake, STORE, tmp_path / "restored")
    assert restored.base_offset == 1 << 20
    with pytest.raises(RestoreError, match=r"EXPIRED: in the lake in part only \(partial\) by policy"):
        restore(lake, STORE, tmp_path / "again", span=Span(0, 1 << 20))


DAMAGES: dict[str, tuple[Callable[[pa.Table, pa.Table], pa.Table], str]] = {
    "row missing": (lambda rows, _: rows.slice(1), "expected the root"),
    "row of a topic that is gone": (
        lambda rows, old: pa.concat_tables([rows, old.filter(pc.equal(old["topic"], LEDGER)).slice(0, 1)]),
        f"no row of topic {LEDGER}, whose rows were removed",
    ),
    "body changed": (
        lambda rows, _: rows.set_column(
            rows.schema.get_field_index("body_crc"),
            rows.schema.field("body_crc"),
            pc.if_else(pc.equal(pc.rank(rows["physical_offset"]), 1), 7, rows["body_crc"]).cast(pa.int32()),
        ),
        "expected the root",
    ),
    "row twice": (lambda rows, _: pa.concat_tables([rows, rows.slice(1, 1)]), "that don't overlap"),
    "row from elsewhere": (
        lambda rows, _: rows.set_column(
            rows.schema.get_field_index("physical_offset"),
            rows.schema.field("physical_offset"),
            pc.add(rows["physical_offset"], 1 << 20),
        ),
        "The data file is not the segment",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_row_that_stays_and_was_changed_is_found(
    thinned: tuple[Lake, Receipt, str], damage: Callable[[pa.Table, pa.Table], pa.Table], said: str
) -> None:
    lake, before, _ = thinned
    row = every_receipt(lake)[0]
    path = path_of(lake, row)
    # Who writes the receipt's facts of the file anew hides nothing either.
    pq.write_table(damage(rows_of(path), rows_of(path_of(lake, before))), path)
    try:
        fault = partial_fault(lake.messages(), row, from_table=False)
    except ProofError as error:
        fault = str(error)
    assert said in fault
    for level in (VerifyLevel.FILES, VerifyLevel.BYTES):
        (found,) = verify(lake, level)
        assert [it.status for it in found.findings] == [Status.FAILURE]
    path.unlink()
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert "is missing" in found.findings[0].detail


def test_an_undo_brings_back_the_receipt_of_before(thinned: tuple[Lake, Receipt, str]) -> None:
    lake, before, sha256 = thinned
    partly = every_receipt(lake)[0]
    undone = undo_expiry(lake, sha256[:8])
    after = every_receipt(lake)[0]
    differing = {
        name for name in Receipt.__dataclass_fields__ if getattr(after, name) != getattr(before, name)
    }
    assert (differing, after.act_sha256) == (LINKS, undone.sha256)
    check(lake, list(VerifyLevel))
    assert remove_expired(lake, trash_ms=0) == ()
    finish_acts(lake)
    assert len(receipt_history(lake, STORE)) == 4
    again = thin(lake, [after], LEDGER)
    assert again != sha256
    assert gone_topics(every_receipt(lake)[0]) == {LEDGER}
    assert every_receipt(lake)[0].data_file != partly.data_file
    check(lake)


def test_what_stayed_is_thinned_again_expires_whole_and_comes_back_step_by_step(
    thinned: tuple[Lake, Receipt, str],
) -> None:
    lake, before, first = thinned
    rows = [before, every_receipt(lake)[0]]
    second = thin(lake, [rows[1]], ORDERS)
    rows.append(every_receipt(lake)[0])
    assert gone_topics(rows[2]) == {EVENTS, LEDGER, ORDERS}
    assert rows[2].row_count == 1, "what has no topic stays"
    check(lake)
    third = expire(lake, [rows[2]])
    assert states(lake) == ["expired", None]
    assert {it["gone"] for it in json.loads(every_receipt(lake)[0].streams or "")} == {
        act[:12] for act in (first, second, third)
    }
    check(lake)
    assert remove_expired(lake, trash_ms=0, kept={STORE}) == ()
    for act, row in ((third, rows[2]), (second, rows[1]), (first, rows[0])):
        undo_expiry(lake, act)
        back = every_receipt(lake)[0]
        assert {*row.proven_files, row.streams, row.state} == {*back.proven_files, back.streams, back.state}
        check(lake)


def test_an_undo_of_the_earlier_one_counts_once_the_later_one_is_undone(
    thinned: tuple[Lake, Receipt, str],
) -> None:
    lake, before, first = thinned
    second = thin(lake, every_receipt(lake)[:1], ORDERS)
    undo_expiry(lake, first)
    assert gone_topics(every_receipt(lake)[0]) == {EVENTS, LEDGER, ORDERS}
    undo_expiry(lake, second)
    assert every_receipt(lake)[0].proven_files == before.proven_files
    assert states(lake) == [None, None]
    check(lake)


def test_the_file_that_was_replaced_goes_by_its_act_once_what_stays_was_read_back(
    thinned: tuple[Lake, Receipt, str],
) -> None:
    lake, before, sha256 = thinned
    row = every_receipt(lake)[0]
    assert remove_expired(lake) == ()
    for dry_run in (True, False):
        assert remove_expired(lake, trash_ms=0, kept={STORE}, dry_run=dry_run) == ()
    data = path_of(lake, row).read_bytes()
    path_of(lake, row).write_bytes(data[:-1] + b"?")
    assert remove_expired(lake, trash_ms=0) == (), "no other file has what stays"
    path_of(lake, row).write_bytes(data)
    hold = record_act(lake, lambda acts: decide_hold(acts, Scope(topic="other"), "why"))[-1]
    assert remove_expired(lake, trash_ms=0) == ()
    record_act(lake, lambda acts: decide_lift(acts, hold.sha256))
    assert remove_expired(lake, trash_ms=0) == before.proven_files
    assert not path_of(lake, before).exists()
    assert remove_expired(lake, trash_ms=0) == ()
    with pytest.raises(BadInputError, match="removed for good"):
        undo_expiry(lake, sha256)
    check(lake, list(VerifyLevel))


def test_a_file_that_was_changed_is_not_brought_back(thinned: tuple[Lake, Receipt, str]) -> None:
    lake, before, sha256 = thinned
    path_of(lake, before).write_bytes(b"another")
    with pytest.raises(ProofError, match=r"as when it expired, found .* Nothing was changed"):
        undo_expiry(lake, sha256)
    assert states(lake) == ["partial", None]


def test_what_differs_from_the_old_file_is_not_committed(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(1)
    (row,) = every_receipt(lake)
    files = set(path_of(lake, row).parent.iterdir())
    real = thinning._kept_groups

    def lacking(*of: Any) -> Any:
        yield from (rows.slice(0, rows.num_rows - 1) for rows in real(*of))

    with monkeypatch.context() as patch:
        calls = iter((lacking, real))
        patch.setattr(thinning, "_kept_groups", lambda *of: next(calls)(*of))
        with pytest.raises(
            ProofError, match=r"found that row group 0 has other rows\. Nothing was committed"
        ):
            thin_segment(lake, row, [LEDGER])
    with monkeypatch.context() as patch:
        # Both alike: the root tells.
        patch.setattr(thinning, "_kept_groups", lacking)
        with pytest.raises(ProofError, match=r"found that expected the root .* Nothing was committed"):
            thin_segment(lake, row, [LEDGER])
    assert set(path_of(lake, row).parent.iterdir()) == files
    assert states(lake) == [None]


def test_gc_leaves_the_files_of_an_act_and_takes_what_no_act_names(
    filled: Callable[[int], Lake],
) -> None:
    lake = filled(2)
    before, other = every_receipt(lake)
    left = thin_segment(lake, other, [ORDERS])
    begin_to_thin(lake, [before], LEDGER)
    newest = snapshot_expiry.LakePolicy(0, 1, 1)
    finish_acts(lake)
    old = snapshot_expiry.snapshots_to_expire(lake.messages(), newest, clock_ms())
    snapshot_expiry._expire(lake, lake.messages, old)
    found = collect(lake, grace_ms=0, delete=True, trash_ms=0)
    taken = {it.path.rpartition("/")[2] for it in found.taken}
    assert {left.kept.location.rpartition("/")[2]} == {name for name in taken if "commitlog" in name}
    assert path_of(lake, before).exists()
    check(lake)


def test_where_gc_took_the_new_file_or_another_rule_came_first_nothing_leaves(
    filled: Callable[[int], Lake],
) -> None:
    lake = filled(2)
    first, second = every_receipt(lake)
    begin_to_thin(lake, [first], LEDGER)
    collect(lake, grace_ms=0, delete=True, trash_ms=0)
    finish_acts(lake)
    assert states(lake) == [None, None]
    begin_to_thin(lake, [second], LEDGER)
    record_act(lake, lambda acts: decide_rule(acts, Scope(), "forever"))
    finish_acts(lake)
    assert states(lake) == [None, None]
    assert remove_expired(lake, trash_ms=0) == (), "their receipts need the files"
    check(lake)


def test_what_was_thinned_is_archived_again_as_a_new_row(
    thinned: tuple[Lake, Receipt, str], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake, before, sha256 = thinned
    archive_all(lake, make_jobs(lake, segments[0]))
    row = every_receipt(lake)[0]
    assert (row.state, row.act) == (None, None)
    assert row.data_file not in (before.data_file,)
    assert len(live(lake)) == 2
    check(lake)
    undo_expiry(lake, sha256)
    assert every_receipt(lake)[0] == row
    check(lake)


def test_rows_that_another_engine_has_moved_are_proven_again(thinned: tuple[Lake, Receipt, str]) -> None:
    lake, _, sha256 = thinned
    messages = lake.messages()
    rows = messages.scan().to_arrow()
    messages.overwrite(rows)
    undo_expiry(lake, sha256)
    assert states(lake) == ["partial", None], "the table would have rows twice"
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert {it.status for it in found.findings} == {Status.WARNING}, found.findings
    partly, other = every_receipt(lake)
    assert len(moved_receipts(lake, [partly, other])) == 2
    assert "2 receipts" in snapshot_expiry._fault(lake, {}), "an older snapshot may have what stays"
    assert len(reprove(lake, STORE, [partly, other])) == 2
    assert states(lake) == ["partial", None]
    assert snapshot_expiry._fault(lake, {}) == ""
    check(lake, list(VerifyLevel))
    finish_acts(lake)
    assert states(lake) == ["partial", None]


def test_over_a_catalog_that_went_back_nothing_is_done_and_a_rebuilt_one_goes_on(
    filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    lake = filled(2)
    catalog, older = tmp_path / "lake" / "catalog.db", tmp_path / "older.db"
    shutil.copy(catalog, older)
    first, _ = every_receipt(lake)
    sha256 = thin(lake, [first], EVENTS, LEDGER)
    shutil.copy(older, catalog)
    back = Lake(lake.config, lake.catalog, lake.catalog_id)
    for use in (finish_acts, partial(undo_expiry, act_id=sha256)):
        with pytest.raises(LakeIdentityError, match="older"):
            use(back)
    catalog.unlink()
    done = rebuild(lake.config, {})
    again = open_lake(lake.config)
    finish_acts(again)
    assert states(again) == ["partial", None], done
    check(again, list(VerifyLevel))


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.usefixtures("no_turns")
def test_beside_archiving_gc_and_expiry_each_does_its_work(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(2)
    first, second = every_receipt(lake)

    def archive() -> None:
        other = open_lake(lake.config)
        archive_all(other, make_jobs(other, segments[2]))
        archive_all(other, make_jobs(other, segments[0]))

    def collect_garbage() -> None:
        for _ in range(3):
            collect(open_lake(lake.config), grace_ms=0, delete=True, trash_ms=0)

    works = (
        lambda: thin(open_lake(lake.config), [first], LEDGER),
        lambda: expire(open_lake(lake.config), [second]),
        archive,
        collect_garbage,
    )
    assert [end()[0] for end in [begun(work) for work in works]] == [0, 0, 0, 0]
    finish_acts(lake)
    found = states(lake)
    # Whether gc took the new file first, or the segment was archived again after it was thinned, is open.
    assert found[0] in (None, "partial")
    assert found[1:] == ["expired", None]
    check(lake)


def _thin_first(lake: Lake) -> None:
    """What a run does: go on with what there is, then thin the first segment."""
    finish_acts(lake)
    row = every_receipt(lake)[0]
    if row.state is None and not acts_of(lake, ActKind.EXPIRE):
        thin(lake, [row], EVENTS, LEDGER)


def _undo(lake: Lake) -> None:
    undo_expiry(lake, next(it.sha256 for it in read_acts(lake) if it.act.decision.kind is ActKind.EXPIRE))


def _remove(lake: Lake) -> None:
    remove_expired(lake, trash_ms=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "run", "kind", "then"),
    [
        pytest.param((), _thin_first, ActKind.EXPIRE, "partial", id="thin"),
        pytest.param((_thin_first,), _undo, ActKind.UNDO, None, id="undo", marks=pytest.mark.again),
        pytest.param((_thin_first,), _remove, ActKind.REMOVED, "partial", id="remove"),
    ],
)
def test_killed_at_a_durable_operation_and_run_again_it_goes_on(
    filled: Callable[[int], Lake],
    tmp_path: Path,
    before: Sequence[Callable[[Lake], None]],
    run: Callable[[Lake], None],
    kind: ActKind,
    then: str | None,
) -> None:
    lake = filled(1)
    (row,) = every_receipt(lake)
    for earlier in before:
        earlier(lake)
    killed = killed_at_each(tmp_path, lake.config, run, least=8, few=4)
    for left, operation in killed:
        # Whoever reads at this instant finds what its receipt says, killed or not.
        check(left, list(VerifyLevel) if ALL else (VerifyLevel.RECEIPTS, VerifyLevel.BYTES))
        run(left)
        assert states(left) == [then], operation
        assert acts_of(left, kind) == 1
        assert path_of(left, row).exists() == (kind is not ActKind.REMOVED)
        check(left)


@pytest.fixture
def between(filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch) -> tuple[Lake, Receipt, str]:
    """The same as a kill between the two commits leaves it: the table has the old file still."""
    lake = filled(2)
    before = every_receipt(lake)[0]
    with monkeypatch.context() as patch:
        patch.setattr(segment_expiry, "data_step", lambda *_: None)
        return lake, before, thin(lake, [before], EVENTS, LEDGER)


def test_between_its_two_commits_whoever_reads_is_right(
    between: tuple[Lake, Receipt, str], tmp_path: Path
) -> None:
    lake, before, sha256 = between
    assert states(lake) == ["partial", None]
    assert data_file_of(lake.messages(), before) in live(lake)
    check(lake, list(VerifyLevel))
    assert copy_lake(lake, at(tmp_path / "copy")).waiting == 0
    check(open_lake(at(tmp_path / "copy")), list(VerifyLevel))
    collect(lake, grace_ms=0, delete=True, trash_ms=0)
    assert remove_expired(lake, trash_ms=0) == ()
    (tmp_path / "lake" / "catalog.db").unlink()
    rebuild(lake.config, {})
    again = open_lake(lake.config)
    assert states(again) == ["partial", None]
    check(again, list(VerifyLevel))
    finish_acts(again)
    assert states(again) == ["partial", None]
    assert live(again) == {data_file_of(again.messages(), row) for row in every_receipt(again)}
    check(again)
    copy_lake(again, at(tmp_path / "copy"))
    copy = open_lake(at(tmp_path / "copy"))
    assert [len(live(it)) for it in (again, copy)] == [2, 2]
    check(copy)
    undo_expiry(again, sha256)
    assert every_receipt(again)[0].proven_files == before.proven_files
    check(again)


def test_between_its_two_commits_an_undo_or_archiving_comes_first(
    between: tuple[Lake, Receipt, str], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake, _, sha256 = between
    archive_all(lake, make_jobs(lake, segments[0]))
    row = every_receipt(lake)[0]
    assert row.is_whole
    finish_acts(lake)
    undo_expiry(lake, sha256)
    assert every_receipt(lake)[0] == row
    assert len(live(lake)) == 2
    check(lake)


def test_a_copy_and_a_lake_that_was_moved_have_what_stays(
    thinned: tuple[Lake, Receipt, str], tmp_path: Path
) -> None:
    lake, before, sha256 = thinned
    copy_lake(lake, at(tmp_path / "copy"))
    copy = open_lake(at(tmp_path / "copy"))
    assert every_receipt(copy) == every_receipt(lake)
    check(copy, list(VerifyLevel))
    (tmp_path / "lake").rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    moved = open_lake(at(tmp_path / "moved"))
    check(moved, list(VerifyLevel))
    undo_expiry(moved, sha256)
    assert every_receipt(moved)[0].proven_files == before.proven_files
    check(moved)
    # The copy gets what came back, too.
    copy_lake(moved, at(tmp_path / "copy"))
    check(open_lake(at(tmp_path / "copy")))


@pytest.mark.parametrize(
    ("names", "is_removed", "expires"),
    [
        (("messages", "segments"), True, False),
        (("segments",), True, True),
        (("messages",), True, False),
        # With receipts of before, too, it would be decided again.
        (("messages",), False, True),
        pytest.param(("messages", "segments"), True, True, marks=pytest.mark.again),
        pytest.param(("segments",), True, False, marks=pytest.mark.again),
        pytest.param(("messages",), True, True, marks=pytest.mark.again),
        pytest.param(("messages",), False, False, marks=pytest.mark.again),
    ],
)
def test_a_lake_rebuilt_from_before_several_acts_has_what_the_last_one_left(
    filled: Callable[[int], Lake], tmp_path: Path, names: Collection[str], is_removed: bool, expires: bool
) -> None:
    lake = filled(2)
    tables = [Path(table.location().removeprefix("file://")) for table in lake.tables()]
    for table in tables:
        shutil.copytree(table / "metadata", tmp_path / table.name)
    thin(lake, every_receipt(lake)[:1], EVENTS)
    thin(lake, every_receipt(lake)[:1], LEDGER)
    if expires:
        expire(lake, every_receipt(lake)[:1])
    last = every_receipt(lake)[0]
    if is_removed:
        assert len(remove_expired(lake, trash_ms=0)) == (3 if expires else 2)
    record_act(lake, lambda acts: decide_rule(acts, Scope(), "forever"))
    before = live(lake)
    (tmp_path / "lake" / "catalog.db").unlink()
    for table in tables:
        if table.name in names:
            shutil.rmtree(table / "metadata")
            shutil.copytree(tmp_path / table.name, table / "metadata")
    rebuild(lake.config, {})
    again = open_lake(lake.config)
    row = every_receipt(again)[0]
    assert (row.state, row.streams, row.act) == (last.state, last.streams, last.act)
    assert live(again) == before
    check(again, list(VerifyLevel))


@pytest.mark.parametrize("has_receipts", [False, True])
def test_a_lake_whose_receipts_went_back_gets_the_whole_segment_again(
    filled: Callable[[int], Lake], tmp_path: Path, has_receipts: bool
) -> None:
    lake = filled(1)
    (before,) = every_receipt(lake)
    kept = lake.segments().metadata_location
    thin(lake, [before], LEDGER)
    location = Path(kept.removeprefix("file://"))
    for path in location.parent.glob("*.metadata.json"):
        if path.name > location.name:
            path.unlink()
    (tmp_path / "lake" / "catalog.db").unlink()
    for path in location.parent.parent.rglob("data/*/*.parquet"):
        if not has_receipts and path.stat().st_mtime_ns > location.stat().st_mtime_ns:
            path.unlink()
    rebuild(lake.config, {}, take_over=True)
    again = open_lake(lake.config)
    (row,) = every_receipt(again)
    assert (row.state, row.sha256, row.root) == (None, before.sha256, before.root)
    check(again)


def test_in_the_end_no_file_is_left(thinned: tuple[Lake, Receipt, str]) -> None:
    lake, before, _ = thinned
    rows = [before, every_receipt(lake)[0]]
    thin(lake, [rows[1]], ORDERS)
    rows.append(every_receipt(lake)[0])
    expire(lake, [rows[2]])
    removed = remove_expired(lake, trash_ms=0)
    assert {file.location for file in removed} == {row.data_file for row in rows}
    assert not any(path_of(lake, row).exists() for row in rows)
    assert remove_expired(lake, trash_ms=0) == ()
    assert states(lake) == ["expired", None]
    check(lake)
