"""A held store's watch, and whether each segment is in the log, the shield or the lake."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.heartbeat import no_watch
from storage_engine.shield.index import look_at_shield
from tests.fixture_stores import file_sha256
from tests.integration.live_store import Disk, LiveLog

SEGMENTS, ENOUGH = 22, 36
"""At least; for some tests, since a watch with nothing to mend looks for new ones each half minute only."""


SECONDS = 180
WATCH = "from storage_engine.cli.main import main; main()"


@dataclass
class Said:
    """What a watch says, of which a test reads what came since it began."""

    path: Path
    begin: int = 0

    def text(self) -> str:
        return self.path.read_text()[self.begin :]


@dataclass
class Watch:
    process: subprocess.Popen[bytes]
    said: Said


def hold_enough(log: LiveLog, disk: Disk, store: ManagedStore) -> None:
    disk.fill_to(60)
    log.wait_until_idle()
    steps.hold(store)
    log.sha256 = {base: log.sha256[base] for base in log.names() if base in log.sha256}
    if len(log.sha256) < SEGMENTS:
        log.fill(ENOUGH - len(log.sha256))


@contextmanager
def watch_of(store: ManagedStore, path: Path, *more: str) -> Iterator[Watch]:
    """A watch process; killed at the end, unless it has ended."""
    assert store.live is not None
    lake = str(Path(store.report_dir).parent)
    words = ["watch", store.root, "--lake", lake, "--broker", store.live.address, "--allow-same-disk"]
    with path.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", WATCH, *words, "--may-change-settings", *more],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    said = Said(path)
    try:
        until(lambda: "watching" in said.text() or process.poll() is not None, said)
        assert process.poll() is None, said.text()
        yield Watch(process, said)
    finally:
        process.kill()
        process.wait()


def end_watch(watch: Watch, store: ManagedStore) -> None:
    """Kill a watch, if it hasn't ended yet, and wait until nobody takes its last sign for life."""
    watch.process.kill()
    watch.process.wait()
    until(lambda: bool(no_watch(Path(store.root))), watch.said)


def until(is_so: Callable[[], bool], said: Said) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        began = time.monotonic()
        if is_so():
            return
        assert time.monotonic() < deadline, said.text()
        # Whoever reads the lake or the shield each time takes a fifth of a processor.
        time.sleep(0.05 + 4 * (time.monotonic() - began))


def is_shielded(store: ManagedStore, log: LiveLog, segments: int = ENOUGH) -> bool:
    """Whether so many of the oldest segments have a link whose bytes were read; a small disk takes 38."""
    links = look_at_shield(store.root).links
    kept = {seen.link.base_offset for seen in links if seen.link.sha256 and seen.is_same}
    return kept >= set(sorted(set(log.sha256) & set(log.names()))[:segments])


def store_id_of(store: ManagedStore) -> str:
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    return record.store_id


def in_neither_place(store: ManagedStore, log: LiveLog) -> list[int]:
    """Segments whose bytes are not in the log, nor provably in the lake."""
    lake = open_lake(store.lake)
    rows = receipts(lake, store_id_of(store))
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    archived = {row.base_offset: row.sha256 for row in rows}

    def is_here(base: int) -> bool:
        try:
            return file_sha256(log.path(base)) == log.sha256[base]
        except FileNotFoundError:
            return False

    return [base for base in log.sha256 if archived.get(base) != log.sha256[base] and not is_here(base)]


def is_all_kept(store: ManagedStore, log: LiveLog) -> bool:
    """Whether nothing is in the shield alone, and every segment in the log or the lake, byte for byte."""
    return not look_at_shield(store.root).gone and not in_neither_place(store, log)


def assert_nothing_is_lost(store: ManagedStore) -> None:
    (verified,) = verify_store(store, VerifyLevel.BYTES)
    assert {row.where.value for row in verified.ranges} == {"LOCAL", "ARCHIVED"}
    assert not [one for one in monitor(store, f"tended-{time.time_ns()}").alarms if "LOST" in one]
