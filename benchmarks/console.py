"""What the console's answers cost beside their limits, in processor time. ``python -m benchmarks.console``

The charts show 90 days with a sample a minute, and one every ten minutes, of three disks. The overview has
200 stores in one journal, each with a sample every two hours, 90 runs with reports, findings and rules. A
forecast is that of a chart's store.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, insert

from benchmarks.common import Bench, report
from storage_engine.console.chart import chart
from storage_engine.console.forecast import store_forecast
from storage_engine.console.stores import all_stores
from storage_engine.journal.journal import Journal, put_levels
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.schema import reports, runs, samples
from storage_engine.model.disk import DiskUsage
from storage_engine.model.report.diagnosis import Finding, Severity

MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS
DAYS = 90
NOW_MS = 1_795_521_600_000
START_MS = NOW_MS - DAYS * DAY_MS
CHART_SECONDS, OVERVIEW_SECONDS = 0.2, 0.5
STORES, RUNS_A_STORE = 200, 90
ROUNDS = 5


def _write_samples(journal: Journal, store_id: str, name: str, every_ms: int) -> int:
    moments = range(START_MS, NOW_MS, every_ms)
    rows = [
        {
            "store_id": store_id, "levels": [], "at_ms": at_ms, "min_offset": (at_ms - START_MS) << 10,
            "max_offset": (at_ms - START_MS) << 11, "oldest_message_ms": at_ms - DAY_MS,
            "archive_lag_bytes": at_ms % (1 << 30),
        }
        for at_ms in moments
    ]  # fmt: skip
    seen = {
        at_ms: [DiskUsage(f"/{name}/{path}", at_ms // MINUTE_MS % 90, 1 << 40, 1 << 39) for path in "abc"]
        for at_ms in moments
    }

    def write(connection: Connection) -> None:
        connection.execute(insert(samples), rows)
        put_levels(connection, store_id, seen)

    journal._database.write(write)
    return len(rows)


def _write_runs(journal: Journal, store_id: str) -> None:
    def write(connection: Connection) -> None:
        for number in range(RUNS_A_STORE):
            at_ms = START_MS + number * DAY_MS
            run = {
                "store_id": store_id, "run_key": f"dag/{number}", "state": "finished", "request": {},
                "created_at_ms": at_ms, "finished_at_ms": at_ms,
            }  # fmt: skip
            (run_id,) = connection.execute(insert(runs).values(**run)).inserted_primary_key
            connection.execute(
                insert(reports).values(
                    run_id=run_id, version=1, outcome="done", causes="time-up", deleted_segments=9,
                    freed_bytes=9 << 30, report=bytes(4_000), at_ms=at_ms, validation="OK", lost_ranges=0,
                )
            )  # fmt: skip

    journal._database.write(write)


def _timed(name: str, limit_seconds: float, ask: Callable[[], object], detail: dict[str, float]) -> Bench:
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        ask()
        seconds.append(time.process_time() - began)
    median = statistics.median(seconds)
    return Bench(f"console-{name}", limit_seconds / median, 1.0, {"seconds": median, **detail})


def charts(directory: Path) -> Iterator[Bench]:
    """Time the chart of 90 days, and what else is told by its samples."""
    for name, every_ms in (("minute", MINUTE_MS), ("ten-minutes", 10 * MINUTE_MS)):
        url = f"sqlite:///{directory / name}.db"
        journal = Journal(url)
        store_id = journal.add_store(f"/{name}", "rocketmq", name=name).store_id
        count = _write_samples(journal, store_id, name, every_ms)
        _write_runs(journal, store_id)
        reader = JournalReader(url)
        points = len(chart(reader, name, START_MS, NOW_MS).times_ms)
        detail: dict[str, float] = {"samples": count, "points": points}
        ask_chart = partial(chart, reader, name, START_MS, NOW_MS)
        yield _timed(f"chart-{name}", CHART_SECONDS, ask_chart, detail)
        ask_forecast = partial(store_forecast, reader, name, NOW_MS)
        yield _timed(f"forecast-{name}", CHART_SECONDS, ask_forecast, {"samples": count})


def overview(directory: Path) -> Iterator[Bench]:
    """Time the page of all stores."""
    url = f"sqlite:///{directory / 'stores.db'}"
    journal = Journal(url)
    names = [f"store-{number}" for number in range(STORES)]
    ranges = [
        {"log": "commitlog", "where": "both", "reason": "not-expired", "detail": "x" * 60} for _ in range(20)
    ]
    finding = Finding(Severity.WARNING, "disk-cleans", "the disk is above 75 %" * 3, "add space")
    for name in names:
        store_id = journal.add_store(f"/{name}", "rocketmq", name=name).store_id
        _write_samples(journal, store_id, name, 120 * MINUTE_MS)
        _write_runs(journal, store_id)
        journal.save_rules(store_id, {"settings": {}, "levels": {"cleans_percent": 75}, "windows": None})
        journal.save_findings(store_id, {"doctor": (finding,) * 5, "ranges": ranges}, ())
    detail: dict[str, float] = {"stores": STORES}
    yield _timed("overview", OVERVIEW_SECONDS, partial(all_stores, JournalReader(url), names, NOW_MS), detail)


def run() -> list[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        return [*charts(Path(directory)), *overview(Path(directory))]


if __name__ == "__main__":
    report(run())
