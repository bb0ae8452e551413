"""lake expire: what leaves a lake by its rules, what stays and why, and what an undo brings back."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import contextmanager

import pytest

from storage_engine.core.clock import DAY_MS, ClockReading, clock_ms
from storage_engine.journal.journal import Journal
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.move.making import make_lake
from storage_engine.model.keep.acts import decide_hold, decide_lift
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.retention.housekeeping import lake_expiry
from storage_engine.retention.store import known_heads
from tests.cli.conftest import LONG_AGO_NS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]

OTHERS = {"no-rule": 1}
"""One segment has a topic of the broker's own, which no wildcard matches; another one has no topic at all."""


@pytest.fixture
def days_ago(monkeypatch):
    """What is recorded within it is recorded so many days ago, by both clocks."""

    @contextmanager
    def ago(days):
        at_ms = clock_ms() - days * DAY_MS
        with monkeypatch.context() as patch:
            patch.setattr(act_files, "clock_ms", lambda: at_ms)
            patch.setattr(act_files, "read_clock_at", lambda *_: at_ms * 1_000_000)
            yield

    return ago


@pytest.fixture
def cleaned(cli, store_copy, lake, days_ago):
    """A store whose first four segments are in the lake alone, and the lake, which keeps nothing."""
    store = store_copy("clean-stop")
    for path in sorted((store / "commitlog").iterdir())[:4]:
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    assert cli("archive", store, "--lake", lake).exit_code == 0
    with days_ago(2):
        assert cli("lake", "keep", "--lake", lake, "--keep", "0 days").exit_code == 0
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    return store, lake


@pytest.fixture
def second(tmp_path, monkeypatch):
    """Another lake that the store's journal knows."""
    second = make_lake(LakeConfig.local(tmp_path / "second"))
    place = second.segments().location()
    head = LakeHead(str(lake_id_of(second.segments())), second.location, 0, "0" * 64, place)
    known = known_heads.journalled_heads
    for module in (known_heads, lake_expiry):
        monkeypatch.setattr(module, "journalled_heads", lambda *of: (*known(*of), head))
    return second


def reasons(cli, lake, *words):
    """How many segments leave or stay why, by the JSON of a dry run."""
    done = cli("lake", "expire", "--lake", lake, "--dry-run", "--json", *words)
    assert done.exit_code == 0, done
    assert all(verdict["detail"] for verdict in done.json["verdicts"])
    return Counter(verdict["reason"] for verdict in done.json["verdicts"])


def test_nothing_leaves_a_lake_that_was_put_back_from_before_a_hold(cli, cleaned, tmp_path) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    shutil.copytree(lake, tmp_path / "backup")
    journal = tmp_path / "journal.db"
    shutil.move(lake / "journal.db", journal)
    named = ("--lake", lake, "--journal", f"sqlite:///{journal}")
    assert cli("lake", "keep", *named, "--hold", "case 7").exit_code == 0
    shutil.rmtree(lake)
    shutil.copytree(tmp_path / "backup", lake)
    done = cli("lake", "expire", *named, "--dry-run", "--json").json
    assert "acts-lost" in {verdict["reason"] for verdict in done["verdicts"]} <= {"acts-lost", "no-rule"}
    before = files(lake)
    assert cli("lake", "expire", *named).exit_code == 0
    assert files(lake) == before


def test_a_hold_of_another_lake_of_the_store_keeps_and_so_does_one_that_is_not_there(
    cli, cleaned, second, tmp_path
) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    assert reasons(cli, lake)["past"] == 4
    assert "4 segments expired" in cli("lake", "expire", "--lake", lake).out
    before = files(lake)
    record_act(second, lambda acts: decide_hold(acts, Scope(log="commitlog"), "case 7"))
    assert reasons(cli, lake)["held"] == 3
    assert "Nothing expires." in cli("lake", "expire", "--lake", lake, "--trash-days", 0).out
    (tmp_path / "second").rename(tmp_path / "away")
    assert reasons(cli, lake) == {"store-unknown": 2, **OTHERS}
    assert reasons(cli, lake, "--store-gone", "A") == {"store-unknown": 2, **OTHERS}
    assert "Nothing expires." in cli("lake", "expire", "--lake", lake, "--trash-days", 0).out
    assert files(lake) == before


def test_what_a_killed_run_left_stays_once_another_lake_holds_it(cli, cleaned, second, monkeypatch) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(lake_expiry, "finish_acts", lambda *_, **__: None)
        assert "4 segments expired" in cli("lake", "expire", "--lake", lake).out
    hold = record_act(second, lambda acts: decide_hold(acts, Scope(log="commitlog"), "case 7"))[-1]
    assert "Nothing expires." in cli("lake", "expire", "--lake", lake).out
    assert reasons(cli, lake)["held"] == 7
    record_act(second, lambda acts: decide_lift(acts, hold.sha256))
    assert "Nothing expires." in cli("lake", "expire", "--lake", lake).out
    assert reasons(cli, lake) == {"not-past": 6, **OTHERS}


def test_a_hold_that_another_lake_lifted_keeps_for_a_day(cli, cleaned, second, days_ago, monkeypatch):
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    with days_ago(9):
        hold = record_act(second, lambda acts: decide_hold(acts, Scope(log="commitlog"), "case 7"))[-1]
    assert reasons(cli, lake)["held"] == 7
    record_act(second, lambda acts: decide_lift(acts, hold.sha256))
    assert reasons(cli, lake) == {"not-past": 6, **OTHERS}
    later_ms = clock_ms() + DAY_MS
    monkeypatch.setattr(lake_expiry, "clock_ms", lambda: later_ms)
    assert reasons(cli, lake)["past"] == 4


def test_where_no_journal_says_which_other_lakes_there_are_no_file_goes_for_good(
    cli, cleaned, tmp_path
) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    assert "4 segments expired" in cli("lake", "expire", "--lake", lake).out
    before, trash = files(lake), ("--trash-days", 0)
    (lake / "journal.db").rename(tmp_path / "away.db")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    Journal(other).all_stores()
    for words in ((), ("--journal", other)):
        assert "Nothing expires." in cli("lake", "expire", "--lake", lake, *trash, *words).out
        assert files(lake) == before
    assert "6 files left the trash" in cli("lake", "expire", "--lake", lake, *trash, "--store-gone", "A").out


def test_a_hold_by_the_name_that_the_journal_alone_knows_keeps(cli, cleaned) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    journal = Journal(f"sqlite:///{lake / 'journal.db'}")
    (record,) = journal.all_stores()
    assert "4 segments expired" in cli("lake", "expire", "--lake", lake).out
    journal.name_store(record.store_id, "payments")
    before = files(lake)
    hold = cli("lake", "keep", "--lake", lake, "--store", "payments", "--hold", "why")
    assert hold.exit_code == 0
    assert reasons(cli, lake)["held"] == 3
    assert "Nothing expires." in cli("lake", "expire", "--lake", lake, "--trash-days", 0).out
    assert files(lake) == before


def files(lake):
    return {path.name for path in lake.rglob("messages/data/**/*.parquet")}


def test_what_a_store_no_longer_has_expires_comes_back_and_goes_for_good(cli, cleaned) -> None:
    store, lake = cleaned
    assert reasons(cli, lake) == {"in-store": 6, **OTHERS}, "the plan that deleted them lists them"
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    counts = {"past": 4, "in-store": 2, **OTHERS}
    before = files(lake)
    assert reasons(cli, lake) == counts
    done = cli("lake", "expire", "--lake", lake)
    assert "4 segments expired, 4.0 MiB" in done.out
    assert files(lake) == before
    topics = cli("lake", "keep", "--lake", lake, "--json").json["lakes"][0]["topics"]
    assert sum(topic["size_bytes"] for topic in topics) < 3 << 20, "of seven segments four are gone"
    again = cli("lake", "expire", "--lake", lake)
    assert "Nothing expires." in again.out
    undo = done.out.split("--undo ")[1].split()[0]
    assert "Restored the segments" in cli("lake", "expire", "--lake", lake, "--undo", undo).out
    assert reasons(cli, lake) == counts
    assert cli("verify", store, "--lake", lake, "--level", "bytes").exit_code == 0
    maintained = cli("maintain", "--lake", lake)
    assert "by the lake's rules 4 segments expired" in maintained.out
    assert cli("maintain", "--lake", lake, "--dry-run").exit_code == 0
    gone = cli("lake", "expire", "--lake", lake, "--trash-days", 0)
    assert "4 files left the trash" in gone.out
    assert len(before - files(lake)) == 4
    acts = cli("lake", "info", "--lake", lake, "--json").json["acts"]
    assert acts == len(["keep", "expire", "undo", "expire", "removed"])


def test_what_is_not_known_keeps_and_so_does_a_hold(cli, cleaned, tmp_path, monkeypatch) -> None:
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    url = f"sqlite:///{lake / 'journal.db'}"
    journal = Journal(url)
    (record,) = journal.all_stores()
    with journal.lease(record.store_id):
        assert reasons(cli, lake) == {"store-unknown": 6, **OTHERS}
    run = journal.last_planned_run(record.store_id)
    assert run is not None
    journal.begin_run(record.store_id, "open", run.request)
    journal.record_plan(journal.run(record.store_id, "open"), run.plan, {})
    assert reasons(cli, lake)["store-unknown"] == 6
    journal.finish_run(journal.run(record.store_id, "open"), {})
    assert reasons(cli, lake)["past"] == 4
    with monkeypatch.context() as patch:
        now = lake_expiry.read_clock()
        patch.setattr(
            lake_expiry,
            "read_clock",
            lambda: ClockReading(now.boot_id, now.boottime_ms, now.started_at_ms + DAY_MS),
        )
        assert reasons(cli, lake)["clock"] == 6
        assert "Nothing expires." in cli("lake", "expire", "--lake", lake, "--trash-days", 0).out
    copy = tmp_path / "copy"
    assert cli("lake", "copy", "--lake", lake, "--to", copy).exit_code == 0
    assert reasons(cli, copy, "--journal", url)["copy"] == 6
    refused = cli("lake", "expire", "--lake", copy, "--journal", url)
    assert (refused.exit_code, "found a copy of" in refused.err) == (1, True)
    hold = cli("lake", "keep", "--lake", lake, "--topic", "orders", "--hold", "why", "--json").json
    assert reasons(cli, lake)["held"] == 7
    assert (
        cli("lake", "keep", "--lake", lake, "--lift", hold["lakes"][0]["holds"][0]["hold_id"]).exit_code == 0
    )
    assert reasons(cli, lake)["not-past"] == 6, "for a day"
    monkeypatch.setattr(lake_expiry, "clock_ms", lambda: clock_ms() + 2 * DAY_MS)
    (lake / "journal.db").rename(lake / "away.db")
    assert reasons(cli, lake) == {"store-unknown": 6, **OTHERS}
    assert reasons(cli, lake, "--store-gone", "A") == {"past": 6, **OTHERS}
    wrong = cli("lake", "expire", "--lake", lake, "--store-gone", "B")
    assert (wrong.exit_code, "expected the name or the id of one store" in wrong.err) == (2, True)


def test_topics_that_are_past_leave_their_segments_and_the_others_stay(
    cli, cleaned, days_ago, tmp_path, monkeypatch
):
    store, lake = cleaned
    assert cli("clean", store, "--lake", lake, "--manual").exit_code == 0
    with days_ago(2):
        for topic in ("orders", "events*"):
            assert cli("lake", "keep", "--lake", lake, "--topic", topic, "--keep", "1 year").exit_code == 0
    few, most = ("--rewrite-at-percent", 10), ("--rewrite-within-days", 1)
    of_store = {"in-store": 1, **OTHERS}
    assert reasons(cli, lake) == {"not-past": 5, **of_store}, "a fifth of their bytes is past, for a day"
    others = {"in-store": 2}
    assert reasons(cli, lake, *few) == {"thinned": 4, "not-past": 1, **others}
    found = cli("lake", "expire", "--lake", lake, "--dry-run", "--json", *few).json["verdicts"]
    thinned = [it for it in found if it["reason"] == "thinned"]
    assert {tuple(it["gone"]) for it in thinned} == {("ledger_ordered",)}
    assert all(0.1 < it["gone_bytes"] / it["segment"]["size_bytes"] < 0.3 for it in thinned)
    assert files(lake) == (before := files(lake))
    done = cli("lake", "expire", "--lake", lake, *few)
    assert "By the lake's rules 4 segments lost expired topics, 8" in done.out
    assert reasons(cli, lake, *few) == {"not-past": 5, **others}
    topics = {
        it["topic"]: it for it in cli("lake", "keep", "--lake", lake, "--json").json["lakes"][0]["topics"]
    }
    gone_bytes = sum(it["gone_bytes"] for it in thinned)
    assert 0 < topics["ledger_ordered"]["size_bytes"] < gone_bytes / 3, "of one segment of five"
    assert cli("verify", store, "--lake", lake, "--level", "store").exit_code == 0
    restored = cli("restore", "--lake", lake, "--to", tmp_path / "restored")
    assert "commitlog [0, 4194304) EXPIRED: in the lake in part only (partial) by policy" in restored.err
    assert min(path.name for path in (tmp_path / "restored" / "commitlog").iterdir()) >= f"{4 << 20:020d}"
    undo = done.out.split("--undo ")[1].split()[0]
    assert "Restored the segments" in cli("lake", "expire", "--lake", lake, "--undo", undo).out
    assert reasons(cli, lake, *most)["thinned"] == 4
    gone = cli("lake", "expire", "--lake", lake, *most)
    assert "4 segments lost expired topics" in gone.out
    gone = cli("lake", "expire", "--lake", lake, "--trash-days", 0, "--json").json
    assert sorted(it["location"].rpartition("/")[2] for it in gone["removed"]) == sorted(before - files(lake))
    assert len(gone["removed"]) == 4
    assert cli("verify", store, "--lake", lake, "--level", "bytes").exit_code == 0
    # A hold that is recorded while a file is written again counts: what was written goes.
    real, held = lake_expiry.thin_segment, []

    def thin_beside_a_hold(opened, *of):
        thinning = real(opened, *of)
        held.append(record_act(opened, lambda acts: decide_hold(acts, Scope(topic="orders"), "why")))
        return thinning

    monkeypatch.setattr(lake_expiry, "thin_segment", thin_beside_a_hold)
    before = files(lake)
    assert reasons(cli, lake, "--store-gone", "A", *most)["thinned"] == 2
    # What leaves whole had left before the first hold.
    gone = cli("lake", "expire", "--lake", lake, "--store-gone", "A", *most).out
    assert "By the lake's rules 1 segment expired" in gone, gone
    assert (len(held), files(lake)) == (2, before)
    assert reasons(cli, lake, "--store-gone", "A", *most)["held"] == 6
