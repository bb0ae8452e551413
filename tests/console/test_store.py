"""One store on its page."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from storage_engine.console.forecast import Forecast, TimeToLevel, store_forecast
from storage_engine.console.recorded_rules import RecordedLevels, Windows
from storage_engine.console.store import MOST_LOGS, one_store, runs_page
from storage_engine.console.stores import Filling, StoreLine, with_forecast
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.retention.ranges.offset_ranges import OffsetRange, Place
from tests.console.conftest import NOW_MS


def test_a_store_is_told_with_all_that_stands_for_it(past: JournalReader) -> None:
    answer = one_store(past, "store_orders", NOW_MS)
    assert answer.row.store == "store_orders"
    assert [one.consumer_group for one in answer.groups] == ["cg_billing", "cg_search", "cg_done"]
    assert {one.topic for one in answer.topics} >= {"orders", "RMQ_SYS_TRACE_TOPIC"}
    standing = answer.standing
    assert standing is not None
    assert standing.hold is not None
    assert standing.hold.held
    assert [one.person for one in standing.waivers] == ["ben"]
    assert [one.person for one in standing.losses] == ["ann"]
    assert answer.findings is not None
    assert [one.severity for one in answer.findings.doctor] == ["urgent", "warning", "note"]
    assert [one.then for one in answer.findings.alarms] == [("storage-engine archive",)]
    assert answer.ranges is not None
    assert {one.where for one in answer.ranges} == {"archived", "lost", "due", "both", "local"}
    assert all(one.end_offset == other.start_offset for one, other in pairwise(answer.ranges))
    assert standing.shield is not None
    assert (standing.shield.segments, standing.shield.gone_bytes) == (3, 1 << 30)
    assert answer.rules is not None
    assert answer.rules.settings["fileReservedTime"] == "72"
    assert answer.rules.windows == Windows((4,), "Asia/Shanghai")
    assert answer.rules.levels == RecordedLevels(70, 75, 85, 90, 85)
    json.dumps(to_jsonable(answer))


def test_of_many_logs_the_worst_and_largest_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/k/server.properties", "kafka", name="k").store_id
    ranges = [
        OffsetRange(f"t-{n}", 1, 0, 9, 2, n, Place.LOST if n in (3, 4) else Place.BOTH, "accepted" * (n == 4))
        for n in range(MOST_LOGS + 50)
    ]
    journal.save_findings(store_id, {"ranges": ranges}, None)
    answer = one_store(JournalReader(url), "k", NOW_MS)
    assert answer.ranges is not None
    names = [one.log for one in answer.ranges]
    assert names == ["t-3", "t-4", *(f"t-{n}" for n in range(52, MOST_LOGS + 50))]
    assert answer.logs == MOST_LOGS + 50
    assert {one.place: (one.ranges, one.size_bytes) for one in answer.totals} == {
        "lost": (1, 3),
        "accepted": (1, 4),
        "both": (MOST_LOGS + 48, sum(range(MOST_LOGS + 50)) - 7),
    }
    assert answer.standing is not None
    assert not answer.standing.has_shield


@pytest.mark.parametrize("name", ["store_orders", "store_payments"])
def test_the_head_of_a_store_tells_the_time_to_full_of_its_forecast(past: JournalReader, name: str) -> None:
    row, forecast = one_store(past, name, NOW_MS).row, store_forecast(past, name, NOW_MS)
    (refuses,) = (one for one in forecast.time_to if one.name == "refuses")
    earliest_ms = refuses.low_ms if refuses.mid_ms is None else None
    assert (row.time_to_full_ms, row.full_at_earliest_ms) == (refuses.mid_ms, earliest_ms)
    assert (row.filling is Filling.YES) is (refuses.low_ms is not None)


@pytest.mark.parametrize(
    ("time_to", "known", "told"),
    [
        ([("refuses", 1, 5), ("full", 1, 7)], 3, (Filling.YES, 5, None)),
        ([("refuses", None, None), ("full", None, None)], 3, (Filling.NO, None, None)),
        ([("refuses", 4, None), ("full", None, None)], 3, (Filling.YES, None, 4)),
        ([("full", 1, 7)], 3, (Filling.YES, 7, None)),
        ([("refuses", 0, 0), ("full", 1, 7)], 0, (Filling.YES, 0, None)),
        ([], 3, (Filling.UNKNOWN, None, None)),
        ([], 0, (Filling.YES, 0, None)),
    ],
)
def test_the_time_to_full_is_the_middle_one_of_the_forecast(
    time_to: list[tuple[str, int | None, int | None]],
    known: int,
    told: tuple[Filling, int | None, int | None],
) -> None:
    times = tuple(TimeToLevel(name, 90, low_ms, mid_ms, None) for name, low_ms, mid_ms in time_to)
    line = StoreLine("s", filling=Filling.YES, time_to_full_ms=known)
    found = with_forecast(line, Forecast(bool(times), "", 0, 0, time_to=times))
    assert (found.filling, found.time_to_full_ms, found.full_at_earliest_ms) == told


def test_of_an_unknown_store_only_its_line_is_told(past: JournalReader) -> None:
    answer = one_store(past, "nope", NOW_MS)
    assert "knows no store" in answer.row.problem
    assert (answer.standing, answer.findings, answer.groups) == (None, None, ())
    assert runs_page(past, "nope").runs == ()


def test_runs_come_page_by_page_until_there_are_none(past: JournalReader) -> None:
    ids: list[int] = []
    page = runs_page(past, "store_payments")
    while page.runs:
        ids += [one.id for one in page.runs]
        page = runs_page(past, "store_payments", before_id=ids[-1])
    assert len(ids) == 45
    assert all(later > earlier for later, earlier in pairwise(ids))
