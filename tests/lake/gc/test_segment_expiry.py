"""Segments that leave a lake by an act: what is there then, after an undo, and once they went for good."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from benchmarks.history import write_history
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.exceptions import BadInputError, LakeIdentityError, ProofError
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import read_acts, record_act
from storage_engine.lake.archive import commit
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.gc import segment_expiry, snapshot_expiry
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired, undo_expiry
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
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
from storage_engine.model.proof.receipt import Receipt, StoredFile
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.lake.conftest import MakeJobs
from tests.lake.killed_at_each import killed_at_each
from tests.rounds import rounds
from tests.services.forks import begun

STORE = "store-1"


def every_receipt(lake: Lake, store_id: str = STORE) -> tuple[Receipt, ...]:
    return receipts(lake, store_id, with_ended=True)


def expire(lake: Lake, rows: Sequence[Receipt]) -> str:
    """Record that segments leave, and let them."""
    sha256 = begin_to_expire(lake, rows)
    finish_acts(lake)
    return sha256


def begin_to_expire(lake: Lake, rows: Sequence[Receipt]) -> str:
    acts = record_act(lake, lambda acts: decide_rule(acts, Scope(), "0 days"))

    decision = KeepDecision(
        ActKind.EXPIRE,
        policy=policy_of(acts).version,
        segments=tuple(row.identity for row in rows),
        files=tuple(file for row in rows for file in row.proven_files),
    )
    return record_act(lake, lambda _acts: decision)[-1].sha256


def states(lake: Lake) -> list[str | None]:
    """State of each segment, by its offset; its receipt names an act if it has one."""
    rows = every_receipt(lake)
    assert all((row.state is None) or row.act for row in rows)
    return [row.state for row in rows]


def live(lake: Lake) -> set[str]:
    return {file.location for file in live_data_files(lake.messages(), STORE)}


def path_of(lake: Lake, row: Receipt) -> Path:
    return Path(data_file_of(lake.messages(), row).removeprefix("file://"))


def check(lake: Lake) -> None:
    """The chain is whole, each receipt that counts as whole proves itself by every byte of its file, what
    expired has its act, and its file is there unless an act says that it went."""
    rows, acts = every_receipt(lake), read_acts(lake)
    check_chain(receipt_history(lake, STORE))
    (found,) = verify(lake, VerifyLevel.FILES)
    assert found.overall is Status.OK, found.findings
    whole = [row for row in rows if row.state is None]
    assert broken_receipts(lake, whole, Depth.FILES) == {}
    assert {data_file_of(lake.messages(), row) for row in whole} <= live(lake)
    removed = {
        file for it in acts if it.act.decision.kind is ActKind.REMOVED for file in it.act.decision.files
    }
    for row in rows:
        if row.state is None:
            continue
        act = json.loads(row.act or "")
        assert act["sha256"] in {it.sha256 for it in acts if it.act.decision.kind is ActKind.EXPIRE}
        if not set(row.proven_files) <= removed:
            data = path_of(lake, row).read_bytes()
            assert hashlib.sha256(data).hexdigest() == row.data_file_sha256


def test_a_segment_leaves_the_table_and_its_file_stays(filled: Callable[[int], Lake]) -> None:
    lake = filled(3)
    first, *others = every_receipt(lake)
    sha256 = expire(lake, [first])
    assert states(lake) == ["expired", None, None]
    assert live(lake) == {data_file_of(lake.messages(), row) for row in others}
    row = every_receipt(lake)[0]
    assert json.loads(row.act or "") == {"id": sha256[:12], "kind": "expire", "sha256": sha256}
    assert row.root == first.root
    assert {stream["gone"] for stream in json.loads(row.streams or "")} == {sha256[:12]}
    assert row == replace(
        first,
        state="expired",
        act=row.act,
        streams=row.streams,
        sequence=3,
        previous_hash=row.previous_hash,
        row_hash=row.row_hash,
    )
    check(lake)
    finish_acts(lake)
    assert len(receipt_history(lake, STORE)) == 4


def test_no_data_file_is_opened(filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    for row in rows:
        path_of(lake, row).rename(path_of(lake, row).with_suffix(".away"))
    expire(lake, rows)
    assert states(lake) == ["expired", "expired"]
    assert live(lake) == set()


def test_an_undo_brings_the_same_receipt_back(filled: Callable[[int], Lake]) -> None:
    lake = filled(2)
    before = every_receipt(lake)
    sha256 = expire(lake, before)
    undone = undo_expiry(lake, sha256[:8])
    assert undone.act.decision.kind is ActKind.UNDO
    after = every_receipt(lake)
    links = ("sequence", "previous_hash", "row_hash", "act")
    for old, new in zip(before, after, strict=True):
        differing = {
            name for name in Receipt.__dataclass_fields__ if getattr(old, name) != getattr(new, name)
        }
        streams = {"streams"} if json.loads(old.streams or "[]") == json.loads(new.streams or "[]") else set()
        assert differing - streams == set(links)
        assert json.loads(new.act or "")["sha256"] == undone.sha256
    check(lake)
    assert undo_expiry(lake, sha256) == undone
    assert remove_expired(lake, trash_ms=0) == ()
    expire(lake, after[:1])
    assert states(lake) == ["expired", None]


def test_a_file_that_was_changed_is_not_brought_back(filled: Callable[[int], Lake]) -> None:
    lake = filled(1)
    (row,) = every_receipt(lake)
    sha256 = expire(lake, [row])
    data = bytearray(path_of(lake, row).read_bytes())
    data[len(data) // 2] ^= 1
    path_of(lake, row).write_bytes(data)
    with pytest.raises(ProofError, match=r"as when it expired, found .* Nothing was changed"):
        undo_expiry(lake, sha256)
    assert [it.act.decision.kind.value for it in read_acts(lake)] == ["keep", "expire"]
    path_of(lake, row).unlink()
    with pytest.raises(ProofError, match="found no file"):
        undo_expiry(lake, sha256)
    assert states(lake) == ["expired"]


def test_files_go_for_good_after_their_days_and_not_while_they_are_held(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    sha256 = expire(lake, rows[:1])
    assert remove_expired(lake) == ()
    hold = record_act(lake, lambda acts: decide_hold(acts, Scope(topic="other"), "why"))[-1].sha256
    assert remove_expired(lake, trash_ms=0) == ()
    record_act(lake, lambda acts: decide_lift(acts, hold))
    assert remove_expired(lake, trash_ms=0, dry_run=True) == rows[0].proven_files
    assert path_of(lake, rows[0]).exists()
    assert remove_expired(lake, trash_ms=0) == rows[0].proven_files
    assert not path_of(lake, rows[0]).exists()
    assert path_of(lake, rows[1]).exists()
    last = read_acts(lake)[-1].act.decision
    assert (last.kind, last.files, last.expiry) == (ActKind.REMOVED, rows[0].proven_files, sha256)
    with pytest.raises(BadInputError, match="removed for good"):
        undo_expiry(lake, sha256)
    assert remove_expired(lake, trash_ms=0) == ()
    check(lake)


def test_by_an_act_that_another_rule_or_hold_followed_nothing_more_leaves(
    filled: Callable[[int], Lake],
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    begin_to_expire(lake, rows[:1])
    hold = record_act(lake, lambda acts: decide_hold(acts, Scope(), "why"))[-1].sha256
    finish_acts(lake)
    assert states(lake) == [None, None]
    assert remove_expired(lake, trash_ms=0) == ()
    record_act(lake, lambda acts: decide_lift(acts, hold))
    assert remove_expired(lake, trash_ms=0) == (), "its receipt needs the file"
    finish_acts(lake)
    assert states(lake) == [None, None], "a lifted hold keeps for 24 hours more"
    begin_to_expire(lake, rows[1:])
    record_act(lake, lambda acts: decide_rule(acts, Scope(), "forever"))
    finish_acts(lake)
    assert states(lake) == [None, None]
    assert live(lake) == {data_file_of(lake.messages(), row) for row in rows}
    check(lake)


@pytest.mark.parametrize("kind", ["hold", "undo"])
def test_what_is_recorded_while_a_commit_waits_for_its_turn_keeps(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = filled(1)
    act = begin_to_expire(lake, every_receipt(lake))
    commit = segment_expiry._commit

    def after_another(*work: Any) -> None:
        monkeypatch.setattr(segment_expiry, "_commit", commit)
        if kind == "undo":
            undo_expiry(lake, act)
        else:
            record_act(lake, lambda acts: decide_hold(acts, Scope(), "why"))
        commit(*work)

    monkeypatch.setattr(segment_expiry, "_commit", after_another)
    finish_acts(lake)
    assert states(lake) == [None]
    check(lake)


def test_what_was_decided_beside_a_hold_of_something_else_leaves(filled: Callable[[int], Lake]) -> None:
    lake = filled(2)
    record_act(lake, lambda acts: decide_hold(acts, Scope(topic="another"), "why"))
    first, second = every_receipt(lake)
    begin_to_expire(lake, [first])
    begin_to_expire(lake, [second])
    finish_acts(lake, kept={second.identity})
    assert states(lake) == ["expired", None]
    assert remove_expired(lake, trash_ms=0) == (), "files are held by store"
    check(lake)


def test_an_act_of_another_day_takes_no_segment_and_removes_no_file_of_a_later_one(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(1)
    (row,) = every_receipt(lake)
    ago_ms = clock_ms() - 8 * DAY_MS
    with monkeypatch.context() as patch:
        patch.setattr(act_files, "clock_ms", lambda: ago_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: ago_ms * 1_000_000)
        begin_to_expire(lake, [row])
    finish_acts(lake)
    assert states(lake) == [None], "its files would go at once, past any undo"
    later = expire(lake, [row])
    assert states(lake) == ["expired"]
    assert remove_expired(lake) == ()
    undo_expiry(lake, later)
    check(lake)


def test_what_another_lake_holds_stays_and_the_rest_goes_a_batch_an_act(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    expire(lake, rows)
    for dry_run in (True, False):
        assert remove_expired(lake, trash_ms=0, kept={STORE}, dry_run=dry_run) == ()
    monkeypatch.setattr(segment_expiry, "BATCH_SEGMENTS", 1)
    assert remove_expired(lake, trash_ms=0) == tuple(file for row in rows for file in row.proven_files)
    assert acts_of(lake, ActKind.REMOVED) == 2, "a turn of an object store is short"
    check(lake)


def test_an_undo_brings_back_what_is_not_gone_for_good(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    sha256 = expire(lake, rows)
    with monkeypatch.context() as patch:
        removable = segment_expiry._removable
        patch.setattr(segment_expiry, "_removable", lambda *of: removable(*of)[:1])
        assert remove_expired(lake, trash_ms=0) == rows[0].proven_files
    undo_expiry(lake, sha256)
    assert states(lake) == ["expired", None]
    assert live(lake) == {data_file_of(lake.messages(), rows[1])}
    check(lake)
    finish_acts(lake)
    assert states(lake) == ["expired", None]


def test_an_undo_again_brings_back_nothing_that_a_later_act_took(filled: Callable[[int], Lake]) -> None:
    lake = filled(1)
    first = expire(lake, every_receipt(lake))
    undone = undo_expiry(lake, first)
    expire(lake, every_receipt(lake))
    assert len(remove_expired(lake, trash_ms=0)) == 1
    assert undo_expiry(lake, first) == undone
    assert states(lake) == ["expired"]
    check(lake)


def test_what_a_killed_removal_took_goes_on_record_though_a_hold_followed(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    sha256 = expire(lake, rows)
    remove = segment_expiry._remove

    def killed(messages: Table, files: Sequence[StoredFile]) -> None:
        remove(messages, files[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(segment_expiry, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_expired(lake, trash_ms=0)
    record_act(lake, lambda acts: decide_hold(acts, Scope(), "why"))
    assert remove_expired(lake, trash_ms=0) == rows[0].proven_files
    undo_expiry(lake, sha256)
    assert states(lake) == ["expired", None]
    check(lake)


def test_an_undo_beside_a_killed_archiving_leaves_each_row_once(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    sha256 = expire(lake, every_receipt(lake))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(commit, "prepare_receipts", killed)
        with pytest.raises(KeyboardInterrupt):
            archive_all(lake, make_jobs(lake, segments[0]))
    assert len(live(lake)) == 1
    undo_expiry(lake, sha256)
    assert states(lake) == [None, None]
    assert live(lake) == {data_file_of(lake.messages(), row) for row in every_receipt(lake)}
    check(lake)


def test_a_lake_rebuilt_from_before_an_expiry_has_no_whole_receipt_of_what_is_gone(
    filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    lake = filled(2)
    tables = [Path(table.location().removeprefix("file://")) for table in lake.tables()]
    for table in tables:
        shutil.copytree(table / "metadata", tmp_path / table.name)
    first, second = every_receipt(lake)
    expire(lake, [first])
    assert remove_expired(lake, trash_ms=0) == first.proven_files
    record_act(lake, lambda acts: decide_rule(acts, Scope(), "forever"))
    # All newer metadata is lost, and so is the catalog.
    (tmp_path / "lake" / "catalog.db").unlink()
    for table in tables:
        shutil.rmtree(table / "metadata")
        shutil.copytree(tmp_path / table.name, table / "metadata")
    rebuild(lake.config, {})
    again = open_lake(lake.config)
    assert states(again) == ["expired", None]
    assert live(again) == {data_file_of(again.messages(), second)}
    check(again)


def test_gc_leaves_to_acts_what_expired_even_where_it_was_archived_again(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)
    sha256 = expire(lake, rows)
    archive_all(lake, make_jobs(lake, segments[0]))
    assert states(lake) == [None, "expired"]
    # No snapshot names the files any more, and one of them has a live twin.
    newest = snapshot_expiry.LakePolicy(0, 1, 1)
    old = snapshot_expiry.snapshots_to_expire(lake.messages(), newest, clock_ms())
    snapshot_expiry._expire(lake, lake.messages, old)
    found = collect(lake, grace_ms=0, delete=True, trash_ms=0)
    expired = {str(path_of(lake, row)) for row in rows}
    assert not expired & {it.path for it in (*found.garbage, *found.orphans, *found.deleted)}
    assert all(path_of(lake, row).exists() for row in rows)
    check(lake)
    finish_acts(lake)
    assert states(lake) == [None, "expired"], "the act is of the file that it names"
    undo_expiry(lake, sha256)
    assert states(lake) == [None, None]
    assert len(live(lake)) == 2
    check(lake)


def test_by_a_wrong_clock_nothing_expires_or_goes(
    filled: Callable[[int], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(2)
    first, second = every_receipt(lake)
    expire(lake, [first])
    real = act_files.read_clock_at
    ahead_ns = 30 * DAY_MS * 1_000_000
    monkeypatch.setattr(act_files, "read_clock_at", lambda *place: real(*place) + ahead_ns)
    for use in (remove_expired, lambda lake: expire(lake, [second])):
        with pytest.raises(act_files.LakeUnavailableError, match="one of the two clocks is wrong"):
            use(lake)
    assert path_of(lake, first).exists()
    assert states(lake) == ["expired", None]


def test_over_a_catalog_that_went_back_nothing_is_done_and_a_rebuilt_one_has_what_expired(
    filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    lake = filled(2)
    shutil.copy(tmp_path / "lake" / "catalog.db", tmp_path / "older.db")
    first, _ = every_receipt(lake)
    sha256 = expire(lake, [first])
    shutil.copy(tmp_path / "older.db", tmp_path / "lake" / "catalog.db")
    back = Lake(lake.config, lake.catalog, lake.catalog_id)
    for use in (finish_acts, partial(undo_expiry, act_id=sha256)):
        with pytest.raises(LakeIdentityError, match="older"):
            use(back)
    (tmp_path / "lake" / "catalog.db").unlink()
    rebuild(lake.config, {})
    again = open_lake(lake.config)
    finish_acts(again)
    assert states(again) == ["expired", None]
    check(again)


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.usefixtures("no_turns")
def test_beside_archiving_and_gc_each_does_its_work(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(2)
    rows = every_receipt(lake)

    def archive() -> None:
        other = open_lake(lake.config)
        archive_all(other, make_jobs(other, segments[2]))
        archive_all(other, make_jobs(other, segments[0]))

    def collect_garbage() -> None:
        for _ in range(3):
            collect(open_lake(lake.config), grace_ms=0, delete=True, trash_ms=0)

    def expire_both() -> None:
        for row in rows:
            expire(open_lake(lake.config), [row])

    ends = [begun(work) for work in (expire_both, archive, collect_garbage)]
    assert [end()[0] for end in ends] == [0, 0, 0]
    finish_acts(lake)
    found = states(lake)
    # Whether the first one was archived before it expired or after it is open.
    assert found[1:] == ["expired", None]
    assert all(path_of(lake, row).exists() for row in rows)
    check(lake)


def acts_of(lake: Lake, kind: ActKind) -> int:
    return len([it for it in read_acts(lake) if it.act.decision.kind is kind])


def _expire_first(lake: Lake) -> None:
    """What a run does: go on with what there is, then let the first one go."""
    finish_acts(lake)
    row = every_receipt(lake)[0]
    if row.state is None and not acts_of(lake, ActKind.EXPIRE):
        expire(lake, [row])


def _undo(lake: Lake) -> None:
    undo_expiry(lake, next(it.sha256 for it in read_acts(lake) if it.act.decision.kind is ActKind.EXPIRE))


def _remove(lake: Lake) -> None:
    remove_expired(lake, trash_ms=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "run", "kind", "then"),
    [
        pytest.param((), _expire_first, ActKind.EXPIRE, "expired", id="expire"),
        pytest.param((_expire_first,), _undo, ActKind.UNDO, None, id="undo"),
        pytest.param((_expire_first,), _remove, ActKind.REMOVED, "expired", id="remove"),
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
    lake = filled(2)
    for earlier in before:
        earlier(lake)
    row = every_receipt(lake)[0]
    killed = killed_at_each(tmp_path, lake.config, run, least=8, few=4, first=0)
    for left, operation in killed:
        check(left) if kind is not ActKind.REMOVED else None
        run(left)
        assert states(left) == [then, None], operation
        assert acts_of(left, kind) == 1
        assert path_of(left, row).exists() == (kind is not ActKind.REMOVED)
        check(left)


@pytest.mark.slow
def test_a_long_history_leaves_a_thousand_segments_a_commit_and_no_data_file_is_read(
    filled: Callable[[int], Lake],
) -> None:
    lake, count = filled(1), rounds("EXPIRED_SEGMENTS", 1_100, 10_000)
    write_history(lake, STORE, count)
    # But for the first one no data file of them is there.
    rows = [row for row in every_receipt(lake) if not path_of(lake, row).exists()]
    before = {table.name()[-1]: len(table.metadata.snapshots) for table in lake.tables()}
    expire(lake, rows)
    assert len(rows) == count
    assert Counter(states(lake)) == {"expired": count, None: 1}
    assert len(live(lake)) == 1
    commits = -(-count // 1000)
    after = {table.name()[-1]: len(table.metadata.snapshots) for table in lake.tables()}
    assert {name: after[name] - before[name] for name in after} == dict.fromkeys(before, commits)
