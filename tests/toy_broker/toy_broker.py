"""A broker of text files: a log is a directory of files, each named by the number of its first line.

``toy.store`` marks a store. A line is a message; ``<number>.count`` says how many a file has, and only that
file does. ``<number>.index`` helps readers to find lines. The newest file of a log is written to; another
goes once nobody has written to it for ``keep_hours``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path

import pyarrow as pa

from storage_engine.core import durable
from storage_engine.exceptions import StoreBusyError, StoreNotFoundError
from storage_engine.model.broker.broker_store import (
    ALWAYS,
    BrokerStore,
    LockedStore,
    Remove,
    StoreDependents,
    StoreSettings,
)
from storage_engine.model.broker.broker_words import Aside, BrokerWords
from storage_engine.model.broker.codec import Columns, Damage, SegmentCodec
from storage_engine.model.broker.kind import Broker, Places
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, DependentFile, LogPlan, Plan, PlanRequest, Reason
from storage_engine.model.report.facts import FactsScope, LocalSegment, SegmentFact, StoreFacts
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.same_bytes.removing import remove_unchanged

MARKER, SUFFIX = "toy.store", ".txt"


class ToyCodec(SegmentCodec):
    """One row a line, with its bytes."""

    columns = Columns()
    encoded_columns = ("physical_offset", "size", "line")
    schema = pa.schema(
        {"physical_offset": pa.int64(), "size": pa.int32(), "kind": pa.string(), "line": pa.binary()}
    )

    def origin(self, base_offset: int) -> int:
        return 0

    def decode(
        self, data: memoryview, base_offset: int, *, chunk_bytes: int = 0, context: str = ""
    ) -> Iterator[tuple[pa.Table, tuple[Damage, ...]]]:
        lines = bytes(data).splitlines(keepends=True)
        sizes = [len(line) for line in lines]
        starts = list(accumulate(sizes, initial=self.origin(base_offset)))[:-1]
        yield pa.table([starts, sizes, ["message"] * len(lines), lines], schema=self.schema), ()

    def encode(self, rows: pa.Table, out: memoryview, first_position: int) -> int:
        for row in rows.select(self.encoded_columns).to_pylist():
            start = row["physical_offset"] - first_position
            out[start : start + row["size"]] = row["line"]
        return sum(rows["size"].to_pylist())


@dataclass(frozen=True)
class LineIndexes(StoreDependents):
    root: Path

    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        return tuple(
            DependentFile("line-index", FileFacts.of(path.resolve(strict=True)), "is of a file that is gone")
            for log, min_offset in min_offsets.items()
            for path in sorted((self.root / log).glob("*.index"))
            if int(path.stem) < min_offset
        )


@dataclass(frozen=True)
class ToyStore(BrokerStore):
    root: Path
    keep_hours: float

    @property
    def data_paths(self) -> tuple[Path, ...]:
        return (self.root,)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        directories = sorted({file.parent for file in self.root.glob(f"*/*{SUFFIX}")})
        logs, disk = tuple(map(self._log, directories)), DiskUsage.of(self.root)
        return StoreSnapshot(BROKER.name, str(self.root), now_ms, logs, (disk,), disk, crashed=False)

    def _log(self, directory: Path) -> LogSnapshot:
        *sealed, active = map(self._segment, sorted(directory.glob(f"*{SUFFIX}")))
        segments = (*sealed, replace(active, state=SegmentState.ACTIVE))
        return LogSnapshot(directory.name, segments, active.end_offset, active.end_offset)

    def _segment(self, file: Path, state: SegmentState = SegmentState.SEALED) -> Segment:
        base, count = int(file.stem), file.with_suffix(".count")
        end, companions = base + int(count.read_text()), (FileFacts.of(count),)
        return Segment(file.parent.name, base, FileFacts.of(file), state, end=end, companions=companions)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        logs = tuple(LogPlan(log.name, tuple(self._decide(log, now_ms))) for log in snapshot.logs)
        return Plan(snapshot.root, now_ms, (ALWAYS,), logs)

    def _decide(self, log: LogSnapshot, now_ms: int) -> Iterator[Decision]:
        oldest_ms, detail = now_ms - self.keep_hours * 3_600_000, f"files are kept for {self.keep_hours} h"
        going = list(takewhile(lambda segment: segment.mtime_ns / 1e6 < oldest_ms, log.sealed))
        for segment in log.segments:
            yield Decision(segment, Reason.EXPIRED if segment in going else Reason.NOT_EXPIRED, detail)

    @contextmanager
    def lock(self) -> Iterator[LockedStore]:
        with (self.root / MARKER).open() as marker:
            try:
                fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreBusyError(f"{self.root}: expected an unlocked marker, found a lock") from error
            yield LockedStore()

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        for segment in segments:
            remove_unchanged(segment, self.root, remove)

    @property
    def dependents(self) -> LineIndexes:
        return LineIndexes(self.root)


class ToyPlaces(Places):
    def store_around(self, path: Path) -> Path | None:
        real = Path(os.path.realpath(path))
        return next((root for root in (real, *real.parents) if (root / MARKER).exists()), None)

    def segment_path(self, log: str, base_offset: int) -> str:
        return f"{log}/{base_offset:020d}{SUFFIX}"


class Toy(Broker):
    name, words, codec = "toy", BrokerWords("Toy"), ToyCodec()
    places, aside = ToyPlaces(), Aside.IN_STORE

    def open_store(self, settings: StoreSettings, memory: object) -> ToyStore:
        root = Path(settings.root)
        if not (root / MARKER).is_file():
            raise StoreNotFoundError(f"{root}: expected a store with a file {MARKER}, found none")
        return ToyStore(root, float(settings.overrides.get("keep_hours", "24")))

    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        logs = self.open_store(settings, None).snapshot(0).logs
        found = [(s, (s.log, s.base_offset, s.end_offset)) for log in logs for s in log.segments]
        local = tuple(LocalSegment(*span, s.facts, s.companions) for s, span in found)
        return StoreFacts(local, tuple(_fact(s) for s, _ in found))


def _fact(s: Segment) -> SegmentFact:
    name, size = s.name.removesuffix(SUFFIX), s.facts.size_bytes
    return SegmentFact(f"{s.log}/{name}", s.log, name, s.base_offset, s.end_offset, -1, size, size)


BROKER = Toy()
