"""What a journal's past costs: pages, and a run after 1,000 others. ``python -m benchmarks.journal``

The charts show 90 days with a sample a minute of two disks, and 10 segments a day of 100 topics each.
Incidents and segments are those of a store with a million events. Each has 100 ms of processor time. A run on
a store with 1,000 past runs may take 1.2 times the processor time of one with 10: both run in turn, and the
median counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, insert, select

from benchmarks.common import Bench, report
from storage_engine import cycle
from storage_engine.journal.journal import Journal, put_levels
from storage_engine.journal.reading.queries import (
    BucketSpan,
    JournalReader,
    disk_ids,
    level_extremes,
    sample_extremes,
)
from storage_engine.journal.records import Phase, Step
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.journal.tables.rows import SEQUENCE, project
from storage_engine.journal.tables.schema import events, plans, runs, samples
from storage_engine.lake.move.making import make_lake
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import TopicDay
from storage_engine.project.up import unpack_sample_store
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore

MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS
DAYS = 90
POINTS = 500
"""Buckets of a chart."""
SEGMENTS_A_DAY, TOPICS = 10, 100
EVENTS = 1_000_000
PAGE_LIMIT_SECONDS = 0.1
FEW, MANY = 10, 1_000
RUN_LIMIT = 1.2
ROUNDS = 5
TEMPLATE = "template"
Rows = dict[str, Any]


def _write_samples(journal: Journal, store_id: str) -> None:
    rows, seen = [], {}
    for number in range(DAYS * 1_440):
        at_ms = number * MINUTE_MS
        rows.append({
            "store_id": store_id, "levels": [], "at_ms": at_ms, "min_offset": number << 20,
            "max_offset": number << 21, "oldest_message_ms": at_ms - DAY_MS,
            "clock": {"boot_id": "b" * 36, "boottime_ms": at_ms, "started_at_ms": 0},
        })  # fmt: skip
        paths = ("/data/commitlog", "/data/store")
        seen[at_ms] = [DiskUsage(path, number % 90, 1 << 40, 1 << 39) for path in paths]

    def write(connection: Connection) -> None:
        connection.execute(insert(samples), rows)
        put_levels(connection, store_id, seen)

    journal._database.write(write)


def charts(directory: Path) -> Iterator[Bench]:
    """Time the queries of the charts of 90 days."""
    url = f"sqlite:///{directory / 'charts.db'}"
    journal = Journal(url)
    store_id = journal.add_store("/data/store", "rocketmq").store_id
    _write_samples(journal, store_id)
    reader = JournalReader(url)
    span = BucketSpan(0, DAYS * DAY_MS, DAYS * DAY_MS // POINTS)
    disks = reader.read(lambda connection: disk_ids(connection, store_id)).values()

    def levels(connection: Connection) -> Sequence[Any]:
        return [level_extremes(connection, disk_id, span) for disk_id in disks]

    yield _timed("chart-levels", partial(reader.read, levels), {"samples": DAYS * 1_440})
    extents = partial(reader.read, lambda connection: sample_extremes(connection, store_id, span))
    yield _timed("chart-extents", extents, {"samples": DAYS * 1_440})
    for number in range(DAYS * SEGMENTS_A_DAY):
        held = [TopicDay(f"topic-{at}", number // SEGMENTS_A_DAY, at << 20, at) for at in range(TOPICS)]
        journal.save_topic_days(store_id, {("commitlog", number << 30): held})
    days = partial(reader.topic_days, store_id, 0, DAYS)
    yield _timed("chart-topics", days, {"rows": DAYS * SEGMENTS_A_DAY * TOPICS})


def _timed(name: str, query: Callable[[], Sequence[object]], detail: dict[str, float]) -> Bench:
    seconds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        found = query()
        seconds.append(time.process_time() - began)
    median = statistics.median(seconds)
    return Bench(
        f"journal-{name}",
        PAGE_LIMIT_SECONDS / median,
        1.0,
        {"seconds": median, "found": len(found), **detail},
    )


def pages(directory: Path) -> Iterator[Bench]:
    """Time what is asked of the events of one store, a million in all."""
    url = f"sqlite:///{directory / 'pages.db'}"
    journal = Journal(url)
    store_id = journal.add_store("/data/store", "rocketmq").store_id
    other_id = journal.add_store("/data/other", "rocketmq").store_id

    def write(connection: Connection) -> None:
        for number in range(1, MANY + 1):
            run = {"store_id": store_id, "run_key": f"r{number}", "state": "finished", "request": {}}
            connection.execute(insert(runs).values(id=number, **run, created_at_ms=number))
            connection.execute(insert(events), _events_of(number))

    journal._database.write(write)
    reader = JournalReader(url)
    for name, query in (("incidents", reader.incidents), ("segments", reader.segments)):
        yield _timed(name, partial(query, store_id), {"events": EVENTS})
        yield _timed(f"no-{name}", partial(query, other_id), {"events": EVENTS})


def _events_of(number: int) -> list[Rows]:
    """Return the events of a run that archived and deleted segments; one run in ten failed."""
    each = EVENTS // MANY // 4
    phases = product((Step.ARCHIVE, Step.RELEASE), (Phase.INTENT, Phase.RESULT))
    said = [
        (step, phase, f"commitlog/{(number * each + at) << 30:020d}")
        for step, phase in phases
        for at in range(each)
    ]
    if number % 10 == 0:
        said[-1] = (Step.RELEASE, Phase.ERROR, "")
    return [
        {"run_id": number, "step": step.value, "phase": phase.value, "subject": subject, "at_ms": number,
         "payload": {"facts": "x" * 300}}
        for step, phase, subject in said
    ]  # fmt: skip


def _store(directory: Path) -> ManagedStore:
    sample = unpack_sample_store(directory)
    store = ManagedStore.local("sample", str(sample.root), directory / "managed", time_zone="UTC",
                               broker_conf=str(sample.broker_conf))  # fmt: skip
    make_lake(store.lake, store.broker)
    return store


def _run(store: ManagedStore, run_key: str) -> float:
    """Take every step but the validation, which looks at files, then those that archive ahead.

    :return: processor time in seconds.
    """
    began = time.process_time()
    with opened(store) as once:
        cleanup = cycle.Cleanup(once, run_key, PlanRequest(manual=True))
        for step in cycle.CLEANUP:
            if step is not cycle.validate:
                step(cleanup)
        for ahead in cycle.AHEAD:
            ahead(cleanup)
    return time.process_time() - began


def _give_past(store: ManagedStore, template: dict[str, list[Rows]], count: int) -> None:
    """Write so many runs that deleted other segments, each as the template's run did."""
    with opened(store) as once:
        store_id = once.record.store_id

    def write(connection: Connection) -> None:
        for number in range(1, count + 1):
            plan = {**template["plans"][0], "store_id": store_id, "run_key": f"past-{number}"}
            plan_id = connection.execute(insert(plans).values(**plan)).inserted_primary_key[0]
            run = {**template["runs"][0], "store_id": store_id, "run_key": f"past-{number}"}
            run["plan"] = {**run["plan"], "decisions_in": plan_id}
            run_id = connection.execute(insert(runs).values(**run)).inserted_primary_key[0]
            moved = [_moved(row, run_id, number) for row in template["events"]]
            connection.execute(insert(events), moved)
            project(connection, run_id, [row["payload"] for row in moved if SEQUENCE in row["payload"]])
            sample = {**template["samples"][0], "store_id": store_id}
            connection.execute(insert(samples).values(**sample))

    JournalDatabase(store.journal_url).write(write)


def _moved(row: Rows, run_id: int, number: int) -> Rows:
    """Return an event as that of a run about other segments, behind all that are there."""
    log, _, base_offset = row["subject"].rpartition("/")
    moved = {**row, "run_id": run_id}
    if base_offset.isdigit():
        offset = int(base_offset) + (number << 30)
        payload = {**row["payload"], "base_offset": offset}
        if SEQUENCE in payload:
            # The lake of now is asked for the receipts that runs have seen in it, and has none of these.
            payload |= {"lake_id": "past", "lake": "/past", "place": "/past/segments"}
        moved |= {"subject": f"{log}/{offset:020d}", "payload": payload}
    return moved


def _template(store: ManagedStore) -> dict[str, list[Rows]]:
    """Return the rows of a store's one cleanup."""

    def rows(connection: Connection, query: Select[Any]) -> list[Rows]:
        return [
            {key: value for key, value in row._mapping.items() if key != "id"}
            for row in connection.execute(query)
        ]

    def read(connection: Connection) -> dict[str, list[Rows]]:
        mine = runs.c.run_key == TEMPLATE
        run_id = connection.execute(select(runs.c.id).where(mine)).scalar_one()
        of_run = select(events).where(events.c.run_id == run_id, events.c.step != Step.STAMP.value)
        queries = {"runs": select(runs).where(mine), "plans": select(plans), "samples": select(samples)}
        return {name: rows(connection, query) for name, query in {**queries, "events": of_run}.items()}

    return JournalDatabase(store.journal_url).read(read)


def past(directory: Path) -> Iterator[Bench]:
    """Time a run after few and after many others, in turn."""
    first = _store(directory / "template")
    _run(first, TEMPLATE)
    template = _template(first)
    seconds: dict[int, list[float]] = {FEW: [], MANY: []}
    for round_ in range(ROUNDS):
        for count, found in seconds.items():
            store = _store(directory / f"{round_}-{count}")
            _give_past(store, template, count)
            found.append(_run(store, "now"))
    few, many = (statistics.median(seconds[count]) for count in (FEW, MANY))
    detail = {"seconds_after_10": few, "seconds_after_1000": many, "times": many / few}
    yield Bench("journal-run-after-1000-runs", few * RUN_LIMIT / many, 1.0, detail)


def run() -> list[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        return [*charts(Path(directory)), *pages(Path(directory)), *past(Path(directory))]


if __name__ == "__main__":
    report(run())
