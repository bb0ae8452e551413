"""The chart: at most so many points, in which peaks and drops survive."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert

from storage_engine.console.chart import (
    MOST_POINTS,
    Buckets,
    MeasuredColumns,
    chart,
    exact_refused_spans,
    read_columns,
    refused_spans,
)
from storage_engine.console.recorded_rules import RecordedLevels, Rules, Spans
from storage_engine.journal.journal import Journal, put_levels
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.schema import events, reports, runs, samples
from storage_engine.journal.tables.schema import levels as level_rows
from storage_engine.model.disk import DiskUsage
from tests.console.conftest import NOW_MS

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 1_440 * MINUTE_MS
LOG = "/data/store_orders/commitlog"


def test_a_chart_has_columns_of_one_length_cleanups_and_drift(past: JournalReader) -> None:
    for days in (45, 3):
        answer = chart(past, "store_orders", NOW_MS - days * DAY_MS, NOW_MS)
        assert 100 < len(answer.times_ms) <= MOST_POINTS
        assert all(earlier < later for earlier, later in pairwise(answer.times_ms))
        columns = [answer.retention_ms, answer.archive_lag_bytes, *answer.levels.values()]
        assert {len(column) for column in columns} == {len(answer.times_ms)}
        assert {LOG, "/data/store_orders/consumequeue"} == answer.levels.keys()
    whole = chart(past, "store_orders", NOW_MS - 45 * DAY_MS, NOW_MS)
    assert [mark.what.partition(":")[0] for mark in whole.drift] == ["segment-gone"]
    assert {one.causes for one in whole.cleanups} == {("time-up",), ("space-full",)}
    assert {one.outcome for one in whole.cleanups} == {"done", "failed"}
    # Rules that changed, and the hours and refused writes that are told by them.
    assert [(NOW_MS - one.at_ms) // DAY_MS for one in whole.rules] == [45, 25, 6]
    assert {(one.cleans_percent, one.forces_percent, one.refuses_percent) for one in whole.rules} == {
        (75, 85, 90)
    }
    assert len(whole.windows) == 45
    assert {end - start for start, end in whole.windows} == {HOUR_MS}
    (refused,) = whole.refused
    assert 8 * HOUR_MS < refused[1] - refused[0] < 12 * HOUR_MS
    assert chart(past, "nope", 0, NOW_MS).times_ms == ()


def test_a_gap_in_the_samples_is_a_gap_in_the_chart(past: JournalReader) -> None:
    for start_ms in (NOW_MS - 45 * DAY_MS, NOW_MS - 43 * DAY_MS):
        answer = chart(past, "store_orders", start_ms, NOW_MS - 38 * DAY_MS)
        unknown = [at for at, level in enumerate(answer.levels[LOG]) if level is None]
        assert len(unknown) == 1
        before, gap, after = answer.times_ms[unknown[0] - 1 : unknown[0] + 2]
        assert before < gap < after
        assert DAY_MS < after - before < 2 * DAY_MS


@pytest.mark.parametrize("days", [1, 45])
def test_two_samples_of_one_look_break_no_line(past: JournalReader, days: int) -> None:
    """The tasks of a look take a sample each, and the second one doesn't ask the lakes."""
    answer = chart(past, "store_payments", NOW_MS - days * DAY_MS, NOW_MS)
    looks = [at_ms for at_ms in answer.times_ms if at_ms + 700 in answer.times_ms]
    assert len(looks) > 40
    for column in (
        answer.retention_ms,
        answer.archive_lag_bytes,
        answer.levels[LOG.replace("orders", "payments")],
    ):
        assert None not in column


def test_of_many_gaps_a_hundred_are_shown(
    bench: tuple[Journal, JournalReader, str],
) -> None:
    journal, reader, store_id = bench
    write_levels(journal, store_id, [50] * 6_000)

    def leave_out(connection: Connection) -> None:
        for first in range(10, 5_900, 40):
            gone = (first * MINUTE_MS, (first + 24 + first % 3) * MINUTE_MS)
            for table in (samples, level_rows):
                connection.execute(delete(table).where(table.c.at_ms.between(*gone)))

    journal._database.write(leave_out)
    found = reader.read(lambda connection: read_columns(connection, store_id, 0, 6_000 * MINUTE_MS))
    assert len(found.times_ms) <= MOST_POINTS
    gaps = [at_ms for at_ms, level in zip(found.times_ms, found.levels["/s"], strict=True) if level is None]
    assert len(gaps) == 100
    assert all(9 * MINUTE_MS < at_ms % (40 * MINUTE_MS) < 37 * MINUTE_MS for at_ms in gaps)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Journal, JournalReader, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('levels')}/journal.db"
    journal = Journal(url)
    return journal, JournalReader(url), journal.add_store("/s", "rocketmq").store_id


def write_levels(journal: Journal, store_id: str, levels: list[int]) -> None:
    """Write one sample a minute; messages are kept for so many hours as the disk has percent."""
    rows = [
        {"store_id": store_id, "levels": [], "at_ms": at * MINUTE_MS, "archive_lag_bytes": level,
         "oldest_message_ms": at * MINUTE_MS - level * HOUR_MS}
        for at, level in enumerate(levels)
    ]  # fmt: skip

    def write(connection: Connection) -> None:
        connection.execute(delete(samples))
        connection.execute(delete(level_rows))
        connection.execute(insert(samples), rows)
        put_levels(
            connection,
            store_id,
            {at * MINUTE_MS: [DiskUsage("/s", level)] for at, level in enumerate(levels)},
        )

    journal._database.write(write)


@given(
    st.lists(st.tuples(st.integers(40, 99), st.integers(1, 200)), min_size=8, max_size=60),
    st.integers(1_400, 4_000),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_peaks_drops_and_crossings_survive(
    bench: tuple[Journal, JournalReader, str], steps: list[tuple[int, int]], count: int
) -> None:
    journal, reader, store_id = bench
    levels = [level for level, times in steps for _ in range(times)]
    levels = (levels * (count // len(levels) + 1))[:count]
    write_levels(journal, store_id, levels)
    end_ms = count * MINUTE_MS
    found = reader.read(lambda connection: read_columns(connection, store_id, 0, end_ms))
    assert len(found.times_ms) <= MOST_POINTS
    thinned = found.levels["/s"]
    assert found.retention_ms == tuple(level * HOUR_MS for level in thinned if level is not None)
    assert (thinned[0], thinned[-1], max(levels)) == (levels[0], levels[-1], max(map(int, thinned)))
    # What the chart says is what was, at its own time.
    assert list(thinned) == [levels[at_ms // MINUTE_MS] for at_ms in found.times_ms]
    buckets = found.buckets or Buckets(0, MINUTE_MS)
    for at, (earlier, later) in enumerate(pairwise(levels)):
        if earlier == later:
            continue
        first = buckets.start_of(at * MINUTE_MS)
        last = buckets.start_of((at + 1) * MINUTE_MS) + buckets.length_ms
        near = [level for at_ms, level in zip(found.times_ms, thinned, strict=True) if first <= at_ms < last]
        # A drop or a rise is in the chart as large as it was, and so crosses each level that it crossed.
        assert max(near) >= max(earlier, later)
        assert min(near) <= min(earlier, later)


def test_no_cleanup_and_no_drift_of_a_long_span_is_left_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal, reader = Journal(url), JournalReader(url)
    store_id = journal.add_store("/s", "rocketmq", name="s").store_id
    kinds = [("done", "space-full"), ("failed", "space-full"), ("done", "time-up"), ("blocked", "time-up")]
    numbers = range(1, 9_001)

    def write(connection: Connection) -> None:
        connection.execute(
            insert(runs),
            [
                {"id": n, "store_id": store_id, "run_key": f"dag/{n}", "state": "finished", "request": {},
                 "created_at_ms": n * 15 * MINUTE_MS, "finished_at_ms": n * 15 * MINUTE_MS + 1}
                for n in numbers
            ],
        )  # fmt: skip
        connection.execute(
            insert(reports),
            [
                {"run_id": n, "version": 1, "at_ms": n, "outcome": kinds[n % 97 % 4][0],
                 "causes": kinds[n % 97 % 4][1], "deleted_segments": 2, "freed_bytes": 3,
                 "report": bytes(3_000)}
                for n in numbers
            ],
        )  # fmt: skip
        details = {"disturbance": {"kind": "segment-gone", "detail": "it"}}
        connection.execute(
            insert(events),
            [
                {"run_id": n, "step": Step.DRIFT.value, "phase": Phase.RESULT.value, "subject": str(n),
                 "payload": details, "at_ms": n * 15 * MINUTE_MS}
                for n in numbers
            ],
        )  # fmt: skip

    journal._database.write(write)
    began = time.process_time()
    whole = chart(reader, "s", 0, 94 * DAY_MS)
    assert time.process_time() - began < 1
    assert 60 < len(whole.cleanups) <= 500
    assert sum(one.runs for one in whole.cleanups) == sum(one.times for one in whole.drift) == len(numbers)
    assert sum(one.freed_bytes for one in whole.cleanups) == 3 * len(numbers)
    assert {(one.outcome, *one.causes) for one in whole.cleanups} == set(kinds)
    assert all(one.at_ms <= one.until_ms for one in (*whole.cleanups, *whole.drift))
    # An old span has its own, however many came after it; and of few, each is told by itself.
    old = chart(reader, "s", DAY_MS, 2 * DAY_MS)
    assert [one.run_key for one in old.cleanups] == [f"dag/{n}" for n in range(96, 192)]
    assert {one.runs for one in old.cleanups} == {1}
    assert [one.at_ms for one in old.drift] == [n * 15 * MINUTE_MS for n in range(96, 192)]


def test_refused_spans_begin_and_end_where_looks_say_so() -> None:
    rules = [Rules(3, levels=RecordedLevels(refuses_percent=90))]
    levels = (95, 95, 90, 91, 92, 90, 99, None, 80, 91)
    columns = MeasuredColumns(tuple(range(len(levels))), (), {"/a": levels, "/b": (None,) * len(levels)}, ())
    # Nobody knows what was refused before the rules were recorded, nor within a gap.
    assert refused_spans(columns, rules) == ((3, 5), (6, 6), (9, 9))


def test_refused_writes_are_accepted_again_only_at_a_lower_level(
    bench: tuple[Journal, JournalReader, str],
) -> None:
    levels = [60, 91, 88, 86, 85, 88, 95, 89, 84, 70]
    levels[7:7] = [86] * 3_000
    rules = [Rules(0, levels=RecordedLevels(refuses_percent=90, accepts_percent=85))]
    columns = MeasuredColumns(tuple(range(len(levels))), (), {"/a": tuple(levels)}, ())
    assert refused_spans(columns, rules) == ((1, 4), (6, 3_008))
    journal, reader, store_id = bench
    write_levels(journal, store_id, levels)

    def refused(start: int, end: int) -> list[tuple[float, float]]:
        start_ms, end_ms = start * MINUTE_MS, end * MINUTE_MS

        def read(connection: Connection) -> Spans:
            columns = read_columns(connection, store_id, start_ms, end_ms)
            return exact_refused_spans(connection, store_id, columns, rules, start_ms, end_ms)

        return [(from_ms / MINUTE_MS, to_ms / MINUTE_MS) for from_ms, to_ms in reader.read(read)]

    assert refused(0, len(levels)) == [(1, 4), (6, 3_008)]
    # A span that begins within one knows by the looks before it.
    assert refused(2_000, 2_100) == [(2_000, 2_099)]
    assert refused(4, 6) == []


def test_refused_spans_of_months_end_at_the_looks_themselves(
    bench: tuple[Journal, JournalReader, str],
) -> None:
    journal, reader, store_id = bench
    refused = ((1_003, 1_717), (1_719, 1_720), (1_723, 3_999))
    levels = [95 if any(start <= at < end for start, end in refused) else 60 for at in range(4_500)]
    write_levels(journal, store_id, levels)
    end_ms, rules = 4_500 * MINUTE_MS, [Rules(0, levels=RecordedLevels(refuses_percent=90))]

    def read(connection: Connection) -> tuple[MeasuredColumns, object]:
        columns = read_columns(connection, store_id, 0, end_ms)
        return columns, exact_refused_spans(connection, store_id, columns, rules, 0, end_ms)

    columns, found = reader.read(read)
    assert columns.buckets is not None
    assert columns.buckets.length_ms > MINUTE_MS
    assert found == tuple((start * MINUTE_MS, end * MINUTE_MS) for start, end in refused)
