"""A quarantine ends with its window, or first where space is the cause; what nothing proves stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import JUMP_MS, clock_ms, read_clock
from storage_engine.core.wording import time_text
from storage_engine.exceptions import QuarantineError, RunStateError
from storage_engine.journal.journal import Journal, Phase, Run, Step
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.move.making import make_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.keep.acts import decide_hold, decide_lift
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.plan import Cause, PlanRequest
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.housekeeping.maintaining import maintain_directory, maintain_store
from storage_engine.retention.quarantine import emptying, places
from storage_engine.retention.quarantine import undo as undoing
from storage_engine.retention.quarantine.emptying import expired_or_in_the_way
from storage_engine.retention.quarantine.places import Place, move_back
from storage_engine.retention.quarantine.records import quarantines
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.quarantine.conftest import WITH_UNDO, clean, files_of, quarantine_of_root
from tests.rounds import later

pytestmark = pytest.mark.slow

MIB = 1 << 20
DAY_MS = 24 * 3_600_000
NO_RUN = PlanRequest()
AT_NO_HOUR = {"deleteWhen": "99"}
Stores = Callable[..., ManagedStore]


def over(store: ManagedStore) -> int:
    """When the window of a store's only quarantine is over."""
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    (one,) = quarantines(journal, record.store_id)
    return one.until_ms


def aside(store: ManagedStore) -> list[str]:
    """The runs that have something in quarantine."""
    directory = quarantine_of_root(store)
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


def test_the_next_run_empties_what_is_over_and_keeps_what_is_not(undoable: Stores) -> None:
    store = undoable()
    now_ms = clock_ms()
    clean(store, "first", 1)
    clean(replace(store, policy=replace(WITH_UNDO, undo_window_hours=72)), "second", 1)
    steps.make_plan(store, "early", NO_RUN, now_ms + DAY_MS - 60_000)
    assert aside(store) == ["first", "second"]
    plan = steps.make_plan(store, "third", NO_RUN, now_ms + DAY_MS + 60_000)
    assert aside(store) == ["second"]
    assert any(text.startswith("the quarantine of run first was emptied, ") for text in plan.notices)
    with pytest.raises(QuarantineError, match=r"found it emptied at .*\(its window was over at"):
        undo(store, "first", "ann")
    undo(store, "second", "ann")


def test_a_dry_run_says_what_would_be_emptied_and_empties_nothing(undoable: Stores) -> None:
    store = undoable()
    clean(store, "first", 1)
    late_ms = clock_ms() + DAY_MS + 60_000
    over = steps.make_plan(store, "over", PlanRequest(dry_run=True), late_ms)
    asked = PlanRequest(manual=True, forced=True, target_used_percent=0, dry_run=True)
    in_the_way = steps.make_plan(store, "in-the-way", asked)
    assert aside(store) == ["first"]
    said = "the quarantine of run first would be emptied: "
    assert any(text.startswith(f"{said}its window was over at") for text in over.notices)
    assert f"{said}space is short" in in_the_way.notices


def test_a_policy_without_undo_still_ends_what_an_earlier_one_began(undoable: Stores) -> None:
    store = undoable()
    clean(store, "r", 1)
    without = replace(store, policy=Policy(ArchiveMode.OFF))
    clean(without, "next", 1)
    assert aside(store) == ["r"]
    with pytest.raises(RunStateError, match="expected a run that set files aside"):
        undo(without, "next", "ann")
    steps.make_plan(without, "later", NO_RUN, clock_ms() + DAY_MS + 60_000)
    assert aside(store) == []


@pytest.mark.parametrize("how", ["directory", *later("store")])
def test_maintenance_empties_what_is_over(managed: Stores, how: str) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 2)
    finish(store, "r")

    def maintain(now_ms: int, *, dry_run: bool = False) -> tuple[str, ...]:
        if how == "store":
            return maintain_store(store, now_ms, dry_run=dry_run).quarantines
        url, reports = store.journal_url, Path(store.report_dir)
        return maintain_directory(url, reports, now_ms, dry_run=dry_run, lakes=store.lakes).quarantines

    assert maintain(clock_ms()) == ()
    later_ms = clock_ms() + DAY_MS + 60_000
    (sentence,) = maintain(later_ms, dry_run=True)
    assert sentence.startswith("the quarantine of run r would be emptied: its window was over at ")
    assert aside(store) == ["r"]
    (sentence,) = maintain(later_ms)
    assert sentence.startswith("the quarantine of run r was emptied, ")
    assert aside(store) == []
    assert maintain(later_ms) == ()
    assert "emptied at " in report_text(build_report(store, "r"))
    assert build_report(store, "r").freed_bytes == 2 * MIB


@pytest.mark.parametrize("lost", ["data file", "lake"])
def test_what_the_lake_does_not_prove_any_more_stays_and_comes_back(
    managed: Stores, lake_dir: Path, lost: str
) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    before = files_of(store.root)
    clean(store, "r", 2)
    if lost == "lake":
        lake_dir.rename(lake_dir.with_name("burnt"))
    else:
        data_file = next((lake_dir / "warehouse").rglob("messages/data/**/*.parquet"))
        data_file.write_bytes(data_file.read_bytes()[:-1] + b"\0")
    (sentence,) = maintain_store(store, clock_ms() + DAY_MS + 60_000).quarantines
    assert sentence.startswith("the quarantine of run r stays, though its window was over at ")
    assert "isn't proven in the lake any more" in sentence
    undo(store, "r", "ann")
    assert files_of(store.root) == before


@pytest.mark.again
def test_what_had_to_stay_starts_no_run_for_a_day_and_is_told_as_it_is(
    managed: Stores, lake_dir: Path, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = managed(policy=Policy(undo_window_hours=24), overrides=AT_NO_HOUR)
    clean(store, "r", 2)
    over_ms = clock_ms() + DAY_MS + 60_000
    assert steps.look_for_due(store, over_ms).why == (
        f"the quarantine of run r would be emptied: its window was over at {time_text(over(store))}",
    )
    data_file = next((lake_dir / "warehouse").rglob("messages/data/**/*.parquet"))
    whole = data_file.read_bytes()
    data_file.write_bytes(whole[:-1] + b"\0")
    steps.make_plan(store, "tried", NO_RUN, over_ms)
    steps.make_plan(store, "again", NO_RUN, over_ms + 60_000)
    for later_ms in (60_000, DAY_MS - 1):
        assert steps.look_for_due(store, over_ms + later_ms).why == ()
    (line,) = steps.look_for_due(store, over_ms + DAY_MS).why
    assert line.startswith("the quarantine of run r would be checked again, because its window was over")
    assert "it had to stay: " in line
    (record,) = journal_of(store).all_stores()
    ask = partial(expired_or_in_the_way, journal_of(store), record.store_id)
    # A full disk waits for no day, nor does a store for a moment that a wrong clock wrote down.
    assert [ask(over_ms + later_ms, space_is_short=True) for later_ms in (60_000, 3_600_000)] == [(), (line,)]
    assert ask(over_ms - 1, space_is_short=False) == (line,)
    dry = maintain_store(store, over_ms + 60_000, dry_run=True)
    assert dry.quarantines == (line,)
    stays = [one for one in JournalReader(store.journal_url).incidents(record.store_id) if one.subject]
    assert [one.step for one in stays] == ["empty-quarantine"]
    assert all(step.error == "" for step in build_report(store, "r").steps)
    data_file.write_bytes(whole)
    steps.make_plan(store, "mended", NO_RUN, over_ms + 120_000)
    assert aside(store) == []


def test_nothing_is_emptied_for_its_age_by_a_clock_that_was_set_forward(
    undoable: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = undoable()
    clean(store, "r", 1)
    now = read_clock()
    assert now is not None
    later = replace(now, started_at_ms=now.started_at_ms + 80 * JUMP_MS)
    monkeypatch.setattr(emptying, "read_clock", lambda: later)
    plan = steps.make_plan(store, "next", NO_RUN, clock_ms() + 80 * JUMP_MS)
    assert any("no quarantine is emptied by its age" in text for text in plan.notices)
    assert aside(store) == ["r"]


def test_while_another_run_has_the_store_nothing_is_emptied(
    undoable: Stores, journal_of: Callable[[ManagedStore], Journal]
) -> None:
    store = undoable()
    clean(store, "r", 1)
    journal = journal_of(store)
    (record,) = journal.all_stores()
    with journal.lease(record.store_id):
        plan = steps.make_plan(store, "next", NO_RUN, clock_ms() + DAY_MS + 60_000)
        assert any(text.startswith("no quarantine was emptied: ") for text in plan.notices)
    assert aside(store) == ["r"]


def test_a_disk_that_is_not_there_is_not_taken_for_an_emptied_quarantine(
    undoable: Stores, tmp_path: Path
) -> None:
    store = undoable()
    volume = tmp_path / "volume"
    volume.mkdir()
    shutil.move(Path(store.root) / "commitlog", volume / "commitlog")
    store = replace(store, overrides={**store.overrides, "storePathCommitLog": str(volume / "commitlog")})
    clean(store, "r", 1)
    unmounted = volume.rename(tmp_path / "unmounted")
    volume.mkdir()  # what an unmounted disk leaves
    maintained = maintain_directory(
        store.journal_url, Path(store.report_dir), clock_ms() + 2 * DAY_MS, lakes=store.lakes
    )
    (sentence,) = maintained.quarantines
    assert "isn't there. Check that its disk is mounted" in sentence
    volume.rmdir()
    unmounted.rename(volume)
    undo(store, "r", "ann")


def test_what_a_person_has_begun_to_bring_back_is_not_emptied(
    undoable: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = undoable()
    before = files_of(store.root)
    clean(store, "r", 2)
    back: list[Path] = []

    def killed(place: Place, path: Path) -> None:
        if back:
            raise KeyboardInterrupt
        back.append(path)
        move_back(place, path)

    with monkeypatch.context() as patched:
        patched.setattr(undoing, "move_back", killed)
        with pytest.raises(KeyboardInterrupt):
            undo(store, "r", "ann")
    assert maintain_store(store, clock_ms() + 2 * DAY_MS).quarantines == ()
    undo(store, "r", "ann")
    assert files_of(store.root) == before


def test_a_run_that_goes_on_after_its_quarantine_was_emptied_sets_nothing_aside(undoable: Stores) -> None:
    store = undoable()
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    steps.release(store, "r")
    maintain_store(store, clock_ms() + 2 * DAY_MS)
    assert aside(store) == []
    assert any(steps.clean_dependents(store, "r").deleted.values())
    assert aside(store) == []


@pytest.fixture
def disk_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[ManagedStore, int], None]:
    """Let a store's disk be as full as it has segments, in commitlog and quarantine: 5 % each."""

    def fill(store: ManagedStore, percent_of_others: int) -> None:
        def usage(path: object) -> DiskUsage:
            count = len(list(Path(store.root).rglob("commitlog/0*")))
            percent = percent_of_others + 5 * count
            return DiskUsage(str(path), percent, 100 * MIB, (100 - percent) * MIB, device=1)

        monkeypatch.setattr(DiskUsage, "of", usage)

    return fill


def test_where_space_is_the_cause_the_oldest_quarantine_is_emptied_before_a_segment_goes(
    undoable: Stores, disk_of: Callable[[ManagedStore, int], None]
) -> None:
    store = undoable(overrides=AT_NO_HOUR)
    for key in ("first", "second", "third"):
        clean(store, key, 1)
    # Eight segments, three of them set aside: 45 + 40 %. Above 75 % space is a cause.
    disk_of(store, 45)
    plan = steps.make_plan(store, "full", PlanRequest())
    assert aside(store) == ["third"]
    assert plan.delete_offsets == ()
    assert plan.causes == ()
    assert [text.split(",")[0] for text in plan.notices if "quarantine" in text] == [
        "the quarantine of run first was emptied",
        "the quarantine of run second was emptied",
    ]
    # What is left of it doesn't suffice: then segments go as well.
    disk_of(store, 60)
    plan = steps.make_plan(store, "fuller", PlanRequest())
    assert aside(store) == []
    assert plan.causes == (Cause.SPACE_FULL.value,)
    assert len(plan.delete_offsets) == 4


def test_a_level_that_a_person_asks_for_empties_quarantines_first(
    undoable: Stores, disk_of: Callable[[ManagedStore, int], None]
) -> None:
    store = undoable(overrides=AT_NO_HOUR)
    clean(store, "first", 2)
    disk_of(store, 20)
    plan = steps.make_plan(store, "asked", PlanRequest(manual=True, target_used_percent=50))
    assert aside(store) == []
    assert plan.delete_offsets == ()


def test_a_run_without_a_cause_of_space_empties_nothing(undoable: Stores) -> None:
    store = undoable()
    clean(store, "first", 1)
    clean(store, "second", 1)
    assert aside(store) == ["first", "second"]


@pytest.mark.again
def test_history_that_an_undo_needs_does_not_expire(
    undoable: Stores, journal_of: Callable[[ManagedStore], Journal], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = undoable()
    before = files_of(store.root)
    clean(store, "r")
    finish(store, "r")
    for key in ("next", "last"):
        steps.make_plan(store, key)
        finish(store, key)
    # A quarantine that can't be emptied, as its store's disk isn't there, outlives its window.
    monkeypatch.setattr(emptying, "quarantines", lambda *_: ())
    maintain_store(store, clock_ms() + 200 * DAY_MS)
    undo(store, "r", "ann")
    assert files_of(store.root) == before


def test_lakes_that_are_not_named_prove_nothing(managed: Stores) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 1)
    url, reports = store.journal_url, Path(store.report_dir)
    no_lakes: tuple[LakeConfig, ...] = ()
    (sentence,) = maintain_directory(url, reports, clock_ms() + 2 * DAY_MS, lakes=no_lakes).quarantines
    assert "isn't proven in the lake any more (no valid receipt in a lake)" in sentence
    assert aside(store) == ["r"]


@pytest.mark.parametrize("unknown", [False, True])
def test_what_a_lake_holds_stays_until_the_hold_is_lifted(
    managed: Stores, lake_dir: Path, unknown: bool
) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 1)
    acts = record_act(open_lake(store.lake), lambda acts: decide_hold(acts, Scope(topic="orders"), "case 7"))
    later_ms = clock_ms() + DAY_MS + 60_000
    away = lake_dir.with_name("away")
    if unknown:
        lake_dir.rename(away)
    # Where the only lake is away, nothing is proven either, and that is what the second one would say.
    for dry_run in (True,) if unknown else (True, False):
        (sentence,) = maintain_store(store, later_ms, dry_run=dry_run).quarantines
        assert f"{'would stay' if dry_run else 'stays'}, though its window was over" in sentence
        assert ("it is unknown whether a hold of lake" if unknown else "holds topic orders, by ") in sentence
    assert aside(store) == ["r"]
    if unknown:
        away.rename(lake_dir)
    record_act(open_lake(store.lake), lambda found: decide_lift(found, acts[-1].sha256))
    (sentence,) = maintain_store(store, later_ms).quarantines
    assert sentence.startswith("the quarantine of run r was emptied, ")
    assert aside(store) == []


def test_a_hold_that_is_recorded_while_a_quarantine_is_emptied_keeps_what_is_left(
    managed: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 1)
    record = Journal.record

    def recorded(journal: Journal, run: Run, step: Step, phase: Phase, *more: Any, **named: Any) -> None:
        record(journal, run, step, phase, *more, **named)
        if (step, phase) == (Step.EMPTY_QUARANTINE, Phase.INTENT):
            record_act(open_lake(store.lake), lambda acts: decide_hold(acts, Scope(), "case 7"))

    monkeypatch.setattr(Journal, "record", recorded)
    later_ms = clock_ms() + DAY_MS + 60_000
    (sentence,) = maintain_store(store, later_ms).quarantines
    assert sentence.startswith("the rest of the quarantine of run r stays, though its window was over")
    assert "holds everything, by " in sentence
    assert aside(store) == ["r"]


def test_a_hold_that_is_recorded_while_a_file_shrinks_keeps_the_others(
    managed: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "STEP_BYTES", MIB // 2)
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 2)
    commitlog = quarantine_of_root(store) / "r" / "commitlog"
    segments = sorted(commitlog.iterdir())
    unlink, gone = os.unlink, list[Path]()

    def unlinked(name: str, *more: Any, **named: Any) -> None:
        unlink(name, *more, **named)
        if not gone and len(left := list(commitlog.iterdir())) < len(segments):
            gone.extend(set(segments) - set(left))
            record_act(open_lake(store.lake), lambda acts: decide_hold(acts, Scope(), "case 7"))

    monkeypatch.setattr(os, "unlink", unlinked)
    later_ms = clock_ms() + DAY_MS + 60_000
    (sentence,) = maintain_store(store, later_ms).quarantines
    assert sentence.startswith("the rest of the quarantine of run r stays, though its window was over")
    assert len(gone) == 1
    assert list(commitlog.iterdir()) == [path for path in segments if path not in gone]


def test_a_hold_of_a_lake_that_is_not_named_any_more_keeps(
    managed: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = managed(policy=Policy(undo_window_hours=24))
    clean(store, "r", 1)
    other = make_lake(LakeConfig.local(tmp_path / "other"))
    place = other.segments().location()
    head = LakeHead(str(lake_id_of(other.segments())), other.location, 0, "0" * 64, place)
    known = known_heads.journalled_heads
    monkeypatch.setattr(known_heads, "journalled_heads", lambda *of: (*known(*of), head))
    hold = record_act(other, lambda acts: decide_hold(acts, Scope(log="commitlog"), "case 7"))[-1].sha256
    later_ms = clock_ms() + DAY_MS + 60_000
    (sentence,) = maintain_store(store, later_ms).quarantines
    assert f"lake {other.location} holds log commitlog, by " in sentence
    away = (tmp_path / "other").rename(tmp_path / "away")
    (sentence,) = maintain_store(store, later_ms).quarantines
    assert "has a hold on it" in sentence
    assert aside(store) == ["r"]
    away.rename(tmp_path / "other")
    record_act(other, lambda acts: decide_lift(acts, hold))
    assert maintain_store(store, later_ms).quarantines[0].startswith("the quarantine of run r was emptied, ")
