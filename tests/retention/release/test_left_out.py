"""Topics of a commitlog that go without a copy, by an archive rule, and only where it permits that."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.cycle import archive_here
from storage_engine.exceptions import FileGoneError, GateRefusedError, RestoreError
from storage_engine.journal.journal import Journal, Step
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.describing import describe
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.model.keep.acts import decide_hold
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import NOT_ARCHIVED, PARTIAL, Receipt
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.retention import shield, steps
from storage_engine.retention.archive.sealed import archive_lag, measure_lag
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.proof.history import releases
from storage_engine.retention.quarantine import emptying
from storage_engine.retention.ranges.offset_ranges import Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.release import judging, releasing
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield
from tests.archive_rules import record_rule
from tests.keeping.store import SEGMENT_BYTES, TopicStore
from tests.keeping.world import rows_by_topic
from tests.lakes import damage, make_lakes, path_of
from tests.retention.whole_runs import MANUAL, do_everything
from tests.services.command_line import run_command
from tests.services.restoring import restore

RULE = Scope(topic="debug-*")
TOPICS = ("debug-a", "orders", "debug-b", "%RETRY%debug-a", "orders")
LEFT_OUT = {"debug-a", "debug-b"}
GOING = 2


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    """A store whose journal knows it, of two segments that expired and no lake has; each has all topics."""
    made = TopicStore(tmp_path / "store", lambda _: TOPICS)
    for _ in range(GOING):
        made.seal()
    old_ns = clock_ms() * 10**6 - 100 * 3600 * 10**9
    for path in (made.root / "commitlog").iterdir():
        os.utime(path, ns=(old_ns, old_ns))
    overrides = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES), "deleteWhen": "99"}
    found = make_lakes(
        ManagedStore.local("s", str(made.root), tmp_path / "managed", overrides=overrides, time_zone="UTC")
    )
    with opened(found):
        return found


def store_id(store: ManagedStore) -> str:
    (record,) = Journal(store.journal_url).all_stores()
    return record.store_id


def current_rows(store: ManagedStore) -> list[Receipt]:
    return list(receipts(open_lake(store.lake), store_id(store), with_ended=True))


def files(store: ManagedStore) -> list[str]:
    return sorted(path.name for path in Path(store.root, "commitlog").iterdir())


def places(store: ManagedStore) -> list[tuple[Where, Status, str]]:
    (found,) = verify_store(store, VerifyLevel.BYTES)
    assert [one for one in found.findings if one.status is Status.FAILURE] == []
    return [(row.where, row.status, row.detail) for row in found.ranges]


def test_topics_under_a_rule_go_without_a_copy_and_are_never_lost(
    store: ManagedStore, tmp_path: Path
) -> None:
    rule = record_rule(store, RULE)
    clause = f"debug-a, debug-b {NOT_ARCHIVED}{rule.rule_id[:12]} of topic debug-*"
    done = steps.archive_sealed(store, "ahead", archive_here)
    assert f"2 segments archived without {clause}" in done.notices
    assert [(row.state, set(row.gone_streams)) for row in done.receipts] == [(PARTIAL, LEFT_OUT)] * GOING
    assert {stream["gone"] for row in done.receipts for stream in row.gone_streams.values()} == {
        rule.rule_id[:12]
    }
    lake = open_lake(store.lake)
    counts = rows_by_topic(lake)
    assert {topic for _, topic in counts} == {"orders", "%RETRY%debug-a", None}
    assert archive_lag(store).segments == 0
    # Nothing is archived twice.
    assert steps.archive_sealed(store, "again", archive_here).receipts == ()
    with opened(store) as context:
        measured = measure_lag(context)
        (shown, *_) = look_for_ranges(context, measured.snapshot, measured)[0]
    assert shown.where is Place.BOTH
    assert f"a lake has it, but {NOT_ARCHIVED}{rule.rule_id[:12]}, in part" in shown.detail
    (notice,) = [it for it in preview(store, PlanRequest(manual=True)).plan.notices if NOT_ARCHIVED in it]
    assert "Copies of them" in notice
    do_everything(store)
    finish(store, "r")
    assert len(files(store)) == 1
    journal = Journal(store.journal_url)
    released, _ = releases(journal.events(journal.run(store_id(store), "r"), Step.RELEASE))
    assert {it.passage for it in released.values()} == {Passage.PROVEN}
    assert all(clause in it.passage_detail for it in released.values())
    with opened(store) as context:
        report = build_report(context, "r")
    assert report.unproven == ()
    assert report.ok
    assert notice in report.notices
    (row,) = read_deletions(lake, store_id(store))
    assert clause in row.detail
    assert (row.start_offset, row.end_offset) == (0, GOING * SEGMENT_BYTES)
    (gone, local) = places(store)
    assert gone[:2] == (Where.NOT_ARCHIVED, Status.OK)
    assert gone[2] == f"{NOT_ARCHIVED}{rule.rule_id[:12]}, in part: the lake has what other topics have of it"
    assert local[0] is Where.LOCAL
    assert describe(store.lake).stores[0].in_part == (("commitlog", 1, 0, GOING * SEGMENT_BYTES),)
    with pytest.raises(RestoreError, match=r"NOT ARCHIVED: not archived, by rule"):
        restore(lake, store_id(store), tmp_path / "restored")
    exported = export_messages(lake, tmp_path / "out", Selection())
    assert [one.end_text for one in exported.expired] == [gone[2]]
    # Lifted, what went by it stays told as that.
    record_rule(store, RULE, archives=True)
    assert places(store)[0] == gone
    # What other topics have of it proves itself still, or it is told.
    damage(path_of(lake, current_rows(store)[0]))
    (found,) = verify_store(store, VerifyLevel.BYTES)
    assert found.ranges[0].status is Status.FAILURE
    assert found.overall is Status.FAILURE


CHANGES: dict[str, Callable[[ManagedStore], object]] = {
    "lifted": lambda store: record_rule(store, RULE, archives=True),
    "with an exception": lambda store: record_rule(store, Scope(topic="debug-b"), archives=True),
    "held": lambda store: record_act(
        open_lake(store.lake), partial(decide_hold, scope=Scope(topic="debug-a"), reason="a case")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_rule_permits_any_more_is_archived_again_whole(store: ManagedStore, change: str) -> None:
    record_rule(store, RULE)
    steps.archive_sealed(store, "ahead", archive_here)
    steps.make_plan(store, "r", MANUAL)
    CHANGES[change](store)
    before = files(store)
    with pytest.raises(GateRefusedError, match="its receipt proves no bytes: not archived, by rule"):
        steps.release(store, "r")
    assert files(store) == before
    assert archive_lag(store).segments == GOING
    steps.archive_planned(store, "r", archive_here)
    left_out = {"with an exception": {"debug-a"}, "held": {"debug-b"}}.get(change, set())
    rows = current_rows(store)
    assert [set(row.gone_streams) for row in rows] == [left_out] * GOING
    assert len(receipt_history(open_lake(store.lake), store_id(store))) == 2 * GOING
    assert {topic for _, topic in rows_by_topic(open_lake(store.lake))} == {*TOPICS, None} - left_out
    steps.release(store, "r")
    assert len(files(store)) == 1
    where = Where.NOT_ARCHIVED if left_out else Where.ARCHIVED
    assert places(store)[0][:2] == (where, Status.OK)


@pytest.mark.parametrize("when", ["before", "while hashing"])
def test_a_rule_that_is_lifted_while_a_run_deletes_lets_nothing_more_go(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    record_rule(store, RULE)
    steps.make_plan(store, "r", MANUAL)
    steps.archive_planned(store, "r", archive_here)
    before, begin, hashed = files(store), releasing.remover, judging._hash_again

    def lift(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(judging, "_hash_again", hashed)
        record_rule(store, RULE, archives=True)
        return hashed(*arguments, **more)

    def begun(*arguments: Any, **more: Any) -> Any:
        if when == "before":
            record_rule(store, RULE, archives=True)
        else:
            monkeypatch.setattr(judging, "_hash_again", lift)
        return begin(*arguments, **more)

    monkeypatch.setattr(releasing, "remover", begun)
    with pytest.raises(GateRefusedError, match="found that no such rule is in force now"):
        steps.release(store, "r")
    assert files(store) == before


def test_a_lake_that_was_put_back_from_before_a_rule_was_lifted_lets_nothing_go(
    store: ManagedStore, tmp_path: Path
) -> None:
    record_rule(store, RULE)
    steps.make_plan(store, "r", MANUAL)
    steps.archive_planned(store, "r", archive_here)
    lake_dir = Path(store.lake.location.removeprefix("file://")).parent
    shutil.copytree(lake_dir, tmp_path / "backup")
    keep = ("lake", "keep", "--lake", lake_dir, "--journal", store.journal_url, "--topic", "debug-*")
    lifted = run_command(*keep, "--archive", "yes")
    assert lifted.exit_code == 0, lifted.err
    shutil.rmtree(lake_dir)
    shutil.copytree(tmp_path / "backup", lake_dir)
    before = files(store)
    with pytest.raises(GateRefusedError, match="its receipt proves no bytes"):
        steps.release(store, "r")
    assert files(store) == before
    # A person who records something in it sees what it has, and it counts again.
    seen = run_command(*keep[:-1], "other", "--keep", "forever")
    assert "lacks rules or holds" in seen.out + seen.err
    assert "lacks rules or holds" not in run_command(*keep[:-1], "other", "--keep", "1 year").out
    steps.release(store, "r")
    assert files(store) != before


@pytest.mark.parametrize("is_lifted", [False, True])
def test_what_others_delete_once_the_rule_is_lifted_is_lost(store: ManagedStore, is_lifted: bool) -> None:
    record_rule(store, RULE)
    steps.archive_sealed(store, "ahead", archive_here)
    if is_lifted:
        record_rule(store, RULE, archives=True)
    steps.make_plan(store, "r", MANUAL)
    for path in sorted(Path(store.root, "commitlog").iterdir())[:GOING]:
        path.unlink()
    if not is_lifted:
        steps.release(store, "r")
        record_rule(store, RULE, archives=True)
        assert places(store)[0][:2] == (Where.NOT_ARCHIVED, Status.OK)
        return
    with pytest.raises(FileGoneError, match="LOST"):
        steps.release(store, "r")
    (found,) = verify_store(store, VerifyLevel.BYTES)
    assert (found.ranges[0].where, found.ranges[0].status) == (Where.LOST, Status.FAILURE)
    assert found.ranges[0].detail.endswith("the lake has what other topics have of it")
    with opened(store) as context:
        measured = measure_lag(context)
        assert look_for_ranges(context, measured.snapshot, measured)[0][0].where is Place.LOST
    # Once a person has accepted that, it is what the lake has of it.
    steps.accept_loss(store, 0, GOING * SEGMENT_BYTES, "ann", "deleted by hand")
    assert places(store)[0][:2] == (Where.NOT_ARCHIVED, Status.OK)


@pytest.mark.parametrize("is_lifted", [False, True])
def test_archiving_ahead_tells_what_others_deleted_once_the_rule_was_lifted(
    store: ManagedStore, is_lifted: bool
) -> None:
    record_rule(store, RULE)
    steps.archive_sealed(store, "ahead", archive_here)
    if is_lifted:
        record_rule(store, RULE, archives=True)
    for path in sorted(Path(store.root, "commitlog").iterdir())[:GOING]:
        path.unlink()
    (said,) = steps.archive_sealed(store, "then", archive_here).notices
    assert ("no lake proves them" if is_lifted else "a lake proves them") in said
    record_rule(store, RULE, archives=True)
    assert steps.archive_sealed(store, "lifted", archive_here).refused == ()
    (found,) = verify_store(store, VerifyLevel.BYTES)
    lost = (Where.LOST, Status.FAILURE)
    assert (found.ranges[0].where, found.ranges[0].status) == (
        lost if is_lifted else (Where.NOT_ARCHIVED, Status.OK)
    )


DOUBTS: dict[str, Callable[[ManagedStore], object]] = {
    "younger than a day": lambda store: record_rule(store, RULE, age_ms=23 * 3_600_000),
    "in the lake alone": lambda store: record_rule(store, RULE, in_journal=False),
    "held": lambda store: (record_rule(store, RULE), CHANGES["held"](store)),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_no_rule_certainly_permits_enters(store: ManagedStore, doubt: str) -> None:
    DOUBTS[doubt](store)
    steps.make_plan(store, "r", MANUAL)
    rows = steps.archive_planned(store, "r", archive_here).receipts
    left_out = {"debug-b"} if doubt == "held" else set()
    assert [set(row.gone_streams) for row in rows] == [left_out] * GOING
    assert {topic for _, topic in rows_by_topic(open_lake(store.lake))} == {*TOPICS, None} - left_out


def test_what_the_lake_has_whole_stays_whole(store: ManagedStore) -> None:
    steps.make_plan(store, "r", MANUAL)
    steps.archive_planned(store, "r", archive_here)
    record_rule(store, RULE)
    for path in Path(store.root, "commitlog").iterdir():
        os.utime(path, ns=(path.stat().st_mtime_ns - 1, path.stat().st_mtime_ns - 1))
    steps.archive_sealed(store, "again", archive_here)
    assert [row.state for row in current_rows(store)] == [None] * GOING
    steps.release(store, "r")
    assert places(store)[0][:2] == (Where.ARCHIVED, Status.OK)
    assert all(json.loads(row.streams or "[]") for row in current_rows(store))


@pytest.mark.parametrize("faulty", ["damaged", "moved"])
def test_what_the_lake_has_is_archived_again_as_whole_as_it_was(store: ManagedStore, faulty: str) -> None:
    """A rule takes nothing out, whatever puts a new file in the place of one that proves nothing."""
    record_rule(store, Scope(topic="debug-b"))
    steps.archive_sealed(store, "ahead", archive_here)
    record_rule(store, RULE)
    lake = open_lake(store.lake)
    before = rows_by_topic(lake)
    messages = lake.messages()
    if faulty == "moved":
        messages.overwrite(messages.scan().to_arrow())
    else:
        for row in current_rows(store):
            damage(path_of(lake, row))
    steps.make_plan(store, "r", MANUAL)
    steps.archive_planned(store, "r", archive_here)
    assert [row.gone_streams.keys() for row in current_rows(store)] == [{"debug-b"}] * GOING
    assert rows_by_topic(open_lake(store.lake)) == before
    steps.release(store, "r")
    assert places(store)[0][:2] == (Where.NOT_ARCHIVED, Status.OK)


def test_a_quarantine_that_is_being_emptied_keeps_what_no_rule_permits_any_more(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that empties it is killed before it has removed a file, and the rule is lifted."""
    store = replace(store, policy=Policy(undo_window_hours=24))
    record_rule(store, RULE)
    do_everything(store)
    aside = Path(store.root, ".storage-engine", "quarantine", "r", "commitlog")
    late_ms = clock_ms() + DAY_MS + 60_000
    with monkeypatch.context() as patch:
        patch.setattr(emptying, "remove", killed)
        with pytest.raises(RuntimeError, match="killed"):
            steps.make_plan(store, "killed", PlanRequest(), late_ms)
    record_rule(store, RULE, archives=True)
    (said,) = steps.make_plan(store, "lifted", PlanRequest(), late_ms).notices
    assert "the quarantine of run r stays" in said
    assert "copy the files that you need" in said
    assert len(list(aside.iterdir())) == GOING
    record_rule(store, RULE)
    notices = steps.make_plan(store, "again", PlanRequest(), late_ms).notices
    assert any("the quarantine of run r was emptied" in said for said in notices)
    assert not aside.exists()


@pytest.mark.parametrize("by", ["broker", "run"])
def test_a_last_link_stays_that_no_rule_permits_to_go_any_more(
    store: ManagedStore, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The rule is lifted once the proofs were read by which last links are dropped."""
    store = replace(store, policy=Policy(shield=ShieldMode.ON))
    record_rule(store, RULE)
    assert tend_shield(store).links == GOING
    steps.make_plan(store, "r", MANUAL)
    if by == "broker":
        for path in sorted(Path(store.root, "commitlog").iterdir())[:GOING]:
            path.unlink()
    else:
        steps.archive_planned(store, "r", archive_here)

    def lifted_before(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            record_rule(store, RULE, archives=True)
            return function(*arguments, **more)

        return call

    with monkeypatch.context() as patch:
        if by == "broker":
            patch.setattr(shield, "witness_release", lifted_before(shield.witness_release))
            tend_shield(store)
        else:
            patch.setattr(releasing, "drop_released", lifted_before(releasing.drop_released))
            steps.release(store, "r")
    assert len(look_at_shield(store.root).gone) == GOING
    assert tend_shield(store).links == 0
    assert [row.state for row in current_rows(store)] == [None] * GOING


def killed(*_: object) -> Any:
    raise RuntimeError("killed")
