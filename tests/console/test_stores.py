"""All stores on one page."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event

from storage_engine.console.recorded_rules import LevelState
from storage_engine.console.stores import (
    Filling,
    FindingLine,
    ProblemKind,
    StoreLine,
    StoreState,
    all_stores,
    without_monitor,
)
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import GroupLag
from storage_engine.model.report.diagnosis import Finding, Severity
from tests.console.conftest import NAMES, NOW_MS

HOUR_MS = 3_600_000
GIB = 1 << 30


def test_the_worst_store_is_first_and_says_why(past: JournalReader) -> None:
    answer = all_stores(past, NAMES, NOW_MS)
    assert answer.problem == ""
    assert [one.store for one in answer.stores] == ["store_orders", "store_payments"]
    worst = answer.stores[0]
    assert worst.state is StoreState.URGENT
    assert worst.urgent is not None
    assert worst.urgent.kind == "alarm"
    assert worst.last_run is not None
    assert worst.last_run.dag_id == "storage_retention__store_orders"
    assert (worst.last_run.outcome, worst.last_run.deleted_segments) == ("done", 9)
    assert worst.lagging_groups == 1
    assert {one.state for one in worst.levels} == {LevelState.OK}
    assert worst.archive_lag_bytes is not None
    assert worst.retention_ms is not None
    assert 72 * HOUR_MS <= worst.retention_ms <= 96 * HOUR_MS


@pytest.mark.parametrize(
    ("used_percent", "state", "kind"),
    [
        (72, StoreState.OK, None),
        (82, StoreState.WARNING, "disk-cleans"),
        (87, StoreState.URGENT, "disk-forces"),
        (92, StoreState.URGENT, "disk-full"),
    ],
)
def test_a_level_at_which_the_broker_acts_is_told_whatever_doctor_said(
    tmp_path: Path, used_percent: int, state: StoreState, kind: str | None
) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/a", "rocketmq", name="a").store_id
    levels = {
        "notice_percent": 70,
        "cleans_percent": 75,
        "forces_percent": 85,
        "refuses_percent": 90,
    }
    journal.save_rules(store_id, {"levels": levels})
    journal.save_findings(store_id, {"doctor": ()}, ())
    journal.add_sample(store_id, [DiskUsage("/a", used_percent)], NOW_MS - 1_000)
    (line,) = all_stores(JournalReader(url), ("a",), NOW_MS).stores
    assert (line.state, line.urgent and line.urgent.kind) == (state, kind)
    if line.urgent is not None:
        assert line.urgent.what.startswith(f"/a is {used_percent} % used: the broker ")


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"doctor": (), "alarms": ("the store isn't held",), "lost": ""}, "alarm"),
        ({"doctor": (), "alarms": ([["stamp", "--new"], " helps"],), "lost": ""}, "alarm"),
        (
            {"doctor": (), "alarms": (), "lost": "1 range neither on disk nor in a lake: commitlog [0, 5)"},
            "lost",
        ),
        ({"doctor": [{"what": "written by a newer release"}]}, None),
    ],
)
def test_what_the_last_look_found_is_told_and_what_can_not_be_read_hides_no_other_store(
    tmp_path: Path, found: dict[str, object], kind: str | None
) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    for name in ("a", "b"):
        store_id = journal.add_store(f"/{name}", "rocketmq", name=name).store_id
        journal.save_findings(store_id, found if name == "a" else {"doctor": ()}, ())
        journal.add_sample(store_id, [DiskUsage(f"/{name}", 20)], NOW_MS - 1_000)
    lines = {one.store: one for one in all_stores(JournalReader(url), ("a", "b"), NOW_MS).stores}
    assert lines["b"].state is StoreState.OK
    a = lines["a"]
    if kind is None:
        assert (a.state, a.problem_kind) == (StoreState.UNKNOWN, ProblemKind.JOURNAL)
        assert "can't be read" in a.problem
    else:
        assert a.urgent is not None
        assert (a.state, a.urgent.kind) == (StoreState.URGENT, kind)
        told = a.urgent.what.removesuffix(" helps")
        assert a.urgent.then == ((told,) if told == "storage-engine stamp --new" else ())


def test_a_store_that_nobody_looked_at_is_unknown_and_never_ok(tmp_path: Path, past: JournalReader) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    journal.add_store("/a", "rocketmq", name="never")
    stale = journal.add_store("/b", "rocketmq", name="stale").store_id
    journal.add_sample(stale, [DiskUsage("/b", 50)], NOW_MS - 5 * HOUR_MS)
    gone = JournalReader(f"sqlite:///{tmp_path}/none.db")
    known = all_stores(JournalReader(url), ("never", "stale", "nope"), NOW_MS)
    answer = all_stores(gone, ("lost",), NOW_MS)
    found = {one.store: one for one in (*known.stores, *answer.stores)}
    assert {one.state for one in found.values()} == {StoreState.UNKNOWN}
    assert "looked at this store yet" in found["never"].problem
    assert "for 5 h" in found["stale"].problem
    assert "knows no store" in found["nope"].problem
    assert "found none" in found["lost"].problem
    assert "found none" in answer.problem
    assert {name: one.problem_kind for name, one in found.items()} == {
        "never": ProblemKind.NEVER_LOOKED,
        "stale": ProblemKind.STALE,
        "nope": ProblemKind.NO_STORE,
        "lost": ProblemKind.JOURNAL,
    }
    (ahead,) = all_stores(JournalReader(url), ("stale",), NOW_MS - 8 * HOUR_MS).stores
    assert (ahead.state, ahead.problem_kind) == (StoreState.UNKNOWN, ProblemKind.FUTURE)
    assert "is 3 h ahead" in ahead.problem


def test_no_lagging_group_is_told_from_groups_that_nobody_measured(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal, reader = Journal(url), JournalReader(f"sqlite:///{tmp_path}/journal.db")
    store_id = journal.add_store("/a", "rocketmq", name="a").store_id

    def lagging() -> int | None:
        (line,) = all_stores(reader, ("a",), NOW_MS).stores
        return line.lagging_groups

    assert lagging() is None
    journal.save_findings(store_id, {"lag_error": "the broker can't be asked"}, None)
    assert lagging() is None
    journal.save_findings(store_id, {"lag_error": ""}, ())
    assert lagging() == 0
    groups = [GroupLag("far", 5, 0, 9, HOUR_MS), GroupLag("near", 5, 0, 9, 90 * HOUR_MS)]
    journal.save_findings(store_id, {"lag_error": ""}, groups)
    assert lagging() == 1


def test_time_to_full_is_that_of_the_last_day_and_of_the_disk_that_is_full_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/a", "rocketmq", name="a").store_id
    for hours in (20, 10, 0):
        disks = [
            DiskUsage("/a", 50, 100 * GIB, (30 + hours) * GIB),
            DiskUsage("/b", 50, 100 * GIB, (5 + 2 * hours) * GIB),
            DiskUsage("/emptied", 50, 100 * GIB, (90 - hours) * GIB),
        ]
        journal.add_sample(store_id, disks, NOW_MS - hours * HOUR_MS)
    finding = Finding(Severity.WARNING, "a-kind", "something")
    journal.save_findings(store_id, {"doctor": (finding,)}, None)
    (line,) = all_stores(JournalReader(url), ("a",), NOW_MS).stores
    assert (line.filling, line.time_to_full_ms) == (Filling.YES, 5 * HOUR_MS // 2)
    assert line.state is StoreState.WARNING


def usage(path: str, free_gib: int | None) -> DiskUsage:
    return DiskUsage(path, None) if free_gib is None else DiskUsage(path, 50, 100 * GIB, free_gib * GIB)


@pytest.mark.parametrize(
    ("looks", "filling", "time_to_full_ms"),
    [
        ([(20, (30, 50)), (0, (30, 60))], Filling.NO, None),
        ([(20, (30, None)), (0, (30, None))], Filling.UNKNOWN, None),
        ([(20, (30, None)), (0, (20, None))], Filling.YES, 40 * HOUR_MS),
        # One look, or two within some minutes, tell no pace.
        ([(0, (30, 60))], Filling.UNKNOWN, None),
        ([(0, (0, 60))], Filling.YES, 0),
        ([(20, (0, 60)), (0, (0, 60))], Filling.YES, 0),
    ],
)
def test_not_filling_is_told_from_unknown_and_from_full(
    tmp_path: Path,
    looks: list[tuple[int, tuple[int | None, int | None]]],
    filling: Filling,
    time_to_full_ms: int | None,
) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/a", "rocketmq", name="a").store_id
    for hours, free in looks:
        disks = [usage(path, one) for path, one in zip(("/a", "/b"), free, strict=True)]
        journal.add_sample(store_id, disks, NOW_MS - hours * HOUR_MS)
    (line,) = all_stores(JournalReader(url), ("a",), NOW_MS).stores
    assert (line.filling, line.time_to_full_ms) == (filling, time_to_full_ms)


def test_many_stores_take_no_more_queries_than_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    names = [f"store-{number}" for number in range(30)]
    for name in names:
        journal.add_store(f"/{name}", "rocketmq", name=name)
    reader = JournalReader(url)
    counts = []
    for asked in (names[:1], names):
        said: list[str] = []

        def note(
            connection: object, cursor: object, statement: str, *more: object, said: list[str] = said
        ) -> None:
            said.append(statement)

        event.listen(reader._engine, "before_cursor_execute", note)
        assert len(all_stores(reader, asked, NOW_MS).stores) == len(asked)
        event.remove(reader._engine, "before_cursor_execute", note)
        counts.append(len(said))
    assert counts[0] == counts[1]


def test_a_store_at_which_nobody_looks_keeps_what_is_urgent_already() -> None:
    full = FindingLine("urgent", "full", "the disk is full", "")
    for told, kind in (
        (full, "full"),
        (FindingLine("warning", "w", "w", ""), "dag-paused"),
        (None, "dag-paused"),
    ):
        line = without_monitor(StoreLine("s", urgent=told), "storage_monitor__s", ProblemKind.MONITOR_PAUSED)
        assert line.urgent is not None
        assert (line.state, line.urgent.kind) == (StoreState.URGENT, kind)
    unknown = StoreLine("s", problem="no", problem_kind=ProblemKind.JOURNAL)
    assert without_monitor(unknown, "storage_monitor__s", ProblemKind.MONITOR_GONE) == unknown
