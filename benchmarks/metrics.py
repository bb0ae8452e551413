"""What a scrape of the metrics takes beside its limit. ``python -m benchmarks.metrics``

One journal has 50 stores of three disks, each with a sample every ten minutes for 90 days, a run with its
events a day, a hold that was renewed every ten minutes for 30 days, findings, rules, groups and verified
segments. One store was never held: what isn't there is looked for, too. Server and client are one process, of
which the processor time is taken.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from prometheus_client import CollectorRegistry, start_http_server
from sqlalchemy import Connection, insert

from benchmarks import console
from benchmarks.common import Bench, report
from storage_engine.cli.metrics import Collector
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.schema import events, reports, runs
from storage_engine.model.lag import GroupLag
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.report.validation import Check, VerifyLevel
from storage_engine.retention.proof.verification_memory import VerificationMemory
from tests.services.console_course import clock_at

STORES, GROUPS, EVENTS_A_RUN, SEGMENTS = 50, 40, 40, 1_000
LOOK_MS = 10 * console.MINUTE_MS
KEPT_DAYS = 30
REPORT = {
    "version": 1, "outcome": "done", "causes": "time-up", "deleted_segments": 9, "freed_bytes": 9 << 30,
    "report": bytes(4_000), "validation": "OK", "lost_ranges": 0,
}  # fmt: skip
MUST_SECONDS = 0.1
ROUNDS = 15


def write_journal(url: str) -> None:
    """Write the stores."""
    journal = Journal(url)
    finding = Finding(Severity.WARNING, "disk-cleans", "the disk is above 75 %" * 3, "add space")
    ranges = [{"log": "commitlog", "where": "both", "reason": "", "detail": "x" * 60} for _ in range(20)]
    for number in range(STORES):
        name = f"store-{number}"
        store_id = journal.add_store(f"/{name}", "rocketmq", name=name).store_id
        console._write_samples(journal, store_id, name, 10 * console.MINUTE_MS)
        _write_runs(journal, store_id, held=number > 0)
        _write_verifications(url, store_id)
        journal.save_rules(store_id, {"settings": {}, "levels": {"cleans_percent": 75}, "windows": None})
        found = {
            "doctor": (finding,) * 5, "ranges": ranges, "lag_error": "", "lost": "", "lost_ranges": 0,
            "due": {"size_bytes": 9 << 30, "unproven_bytes": 0},
        }  # fmt: skip
        with clock_at(console.NOW_MS):
            journal.save_findings(
                store_id, found, [GroupLag(f"g{at}", 5, 0, 9, at << 20) for at in range(GROUPS)]
            )


def _write_runs(journal: Journal, store_id: str, *, held: bool) -> None:
    """Write a cleanup a day, and the looks between them for as long as those are kept, which renew a hold."""
    looks = range(console.NOW_MS - min(KEPT_DAYS, console.DAYS) * console.DAY_MS, console.NOW_MS, LOOK_MS)
    cleanups = range(console.START_MS, console.NOW_MS, console.DAY_MS)
    status = {"held": True, "ends_at_ms": console.NOW_MS + console.DAY_MS, "notices": ["x" * 200]}
    run = {"store_id": store_id, "request": {}}
    result = {"phase": "result", "subject": ""}

    def write(connection: Connection) -> None:
        for at_ms in sorted({*looks, *cleanups}):
            is_cleanup = at_ms in cleanups
            done = {"state": "finished", "finished_at_ms": at_ms} if is_cleanup else {"state": "running"}
            made = {**run, **done, "run_key": f"run/{at_ms}", "created_at_ms": at_ms}
            (run_id,) = connection.execute(insert(runs).values(**made)).inserted_primary_key
            event = {**result, "run_id": run_id, "at_ms": at_ms}
            if is_cleanup:
                connection.execute(insert(reports).values(**REPORT, run_id=run_id, at_ms=at_ms))
                deleted = {**event, "step": "release", "payload": {"result": "x" * 200}}
                connection.execute(insert(events), [deleted] * EVENTS_A_RUN)
            elif held:
                renewed = {**event, "step": "hold", "payload": {"result": status}}
                connection.execute(insert(events).values(**renewed))

    journal._database.write(write)


def _write_verifications(url: str, store_id: str) -> None:
    """Write when each of a store's archived segments was verified."""
    level, at_ms = VerifyLevel.BYTES, console.START_MS
    VerificationMemory(url).record(
        "lake",
        [
            Check(store_id, 1, "commitlog", at, f"{at:x}{store_id}", level, at_ms + at)
            for at in range(SEGMENTS)
        ],
    )


@contextmanager
def answering(url: str) -> Iterator[Callable[[], bytes]]:
    """Serve a journal's metrics as the command does; gives what asks for them."""
    registry = CollectorRegistry()
    registry.register(Collector((JournalReader(url),), ()))
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def ask() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            text: bytes = answer.read()
        return text

    try:
        yield ask
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run() -> list[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/journal.db"
        write_journal(url)
        # The moment that the journal ends at.
        with patch("storage_engine.cli.metrics.clock_ms", lambda: console.NOW_MS), answering(url) as ask:
            taken, walls = [], []
            for _ in range(ROUNDS + 1):
                wall, began = time.perf_counter(), time.process_time()
                text = ask()
                taken.append(time.process_time() - began)
                walls.append(time.perf_counter() - wall)
        size = Path(f"{directory}/journal.db").stat().st_size
    series = sum(line.startswith(b"storage_engine_") for line in text.splitlines())
    seconds = statistics.median(taken[1:])
    detail = {
        "seconds": seconds,
        "wall_seconds": statistics.median(walls[1:]),
        "stores": STORES,
        "series": series,
        "journal_bytes": size,
    }
    return [Bench("metrics-scrape", MUST_SECONDS / seconds, 1.0, detail)]


if __name__ == "__main__":
    report(run())
