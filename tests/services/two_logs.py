"""A broker with two logs: each is a RocketMQ store of its own, below one root. Both begin at offset 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storage_engine.core import durable
from storage_engine.model.broker.broker_store import (
    Pending,
    Remove,
    StoreConsumers,
    StoreDependents,
    StoreSettings,
)
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.model.lag import Unread
from storage_engine.model.plan import DependentFile, Plan, PlanRequest
from storage_engine.model.store import LogSnapshot, Segment, StoreSnapshot
from storage_engine.rocketmq import RocketMQ
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.rocketmq.store.broker import FileProcess, FileShield, RocketMQBrokerStore, open_files

LEFT, RIGHT = "left", "right"
BROKER = "two_logs"


class TwoLogsBroker(RocketMQ):
    name = BROKER
    words = BrokerWords("Two Logs")
    is_default = False

    def open_store(self, settings: StoreSettings, memory: object) -> Any:
        return TwoLogs(
            {name: open_files(replace(settings, root=f"{settings.root}/{name}")) for name in (LEFT, RIGHT)},
            settings.root,
        )

    running = None


def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker be found as one of our own packages is."""
    package = ModuleType(f"storage_engine.{BROKER}")
    package.BROKER = TwoLogsBroker()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)


def renamed(segment: Segment, log: str) -> Segment:
    return replace(segment, log=log)


@dataclass(frozen=True)
class TwoLogs:
    """What retention asks of a store, each log's part answered by the store that it is."""

    parts: Mapping[str, RocketMQBrokerStore]
    root: str

    def __getattr__(self, name: str) -> Any:
        """What doesn't concern logs."""
        return getattr(self.parts[LEFT], name)

    def renewed(self, memory: object) -> None:
        """Let it be opened again."""

    def close(self) -> None:
        """Leave nothing open, as nothing was."""

    @property
    def data_paths(self) -> tuple[Path, ...]:
        return tuple(path for part in self.parts.values() for path in part.data_paths)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        seen = {name: part.snapshot(now_ms) for name, part in self.parts.items()}
        logs = tuple(_renamed(*snapshot.logs, name) for name, snapshot in seen.items())
        crashed = any(snapshot.crashed for snapshot in seen.values())
        return replace(seen[LEFT], broker=BROKER, root=self.root, logs=logs, crashed=crashed)

    @property
    def shield(self) -> TwoShields:
        return TwoShields(self.parts[LEFT].files, self.parts)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        plans = [self.parts[log.name].plan(_only(snapshot, log), now_ms, request) for log in snapshot.logs]
        return replace(plans[0], logs=tuple(log for plan in plans for log in plan.logs))

    @property
    def dependents(self) -> TwoDependents:
        return TwoDependents(self.parts, self.root)

    @property
    def process(self) -> TwoProcesses:
        return TwoProcesses(self.parts[LEFT].files.layout, self.parts)

    @property
    def consumers(self) -> TwoConsumers:
        return TwoConsumers(self.parts)

    @contextmanager
    def lock(self) -> Iterator[Any]:
        with ExitStack() as stack:
            held = [stack.enter_context(part.lock()) for part in self.parts.values()]
            yield held[0]

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        for segment in segments:
            self.parts[segment.log].delete_segments([segment], meanwhile, remove)


@dataclass(frozen=True, slots=True)
class TwoShields(FileShield):
    parts: Mapping[str, RocketMQBrokerStore]

    def sealed_files(self) -> tuple[Segment, ...]:
        return tuple(
            renamed(one, name) for name, part in self.parts.items() for one in part.shield.sealed_files()
        )


@dataclass(frozen=True)
class TwoConsumers(StoreConsumers):
    parts: Mapping[str, RocketMQBrokerStore]

    def pending(self, snapshot: StoreSnapshot) -> tuple[Pending, ...]:
        return tuple(
            replace(item, log=log.name)
            for log in snapshot.logs
            for item in self.parts[log.name].consumers.pending(_only(snapshot, log))
        )

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        found = [
            self.parts[log.name].consumers.unread(_only(snapshot, log), {LOG: offset}, deleted=deleted)
            for log in snapshot.logs
            if (offset := new_min_offsets.get(log.name)) is not None
        ]
        rows = tuple(row for one in found for row in one.rows)
        return Unread(rows, error="; ".join(one.error for one in found if one.error))


@dataclass(frozen=True)
class TwoDependents(StoreDependents):
    parts: Mapping[str, RocketMQBrokerStore]
    root: str

    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        found = (self.parts[log].dependents.find({LOG: offset}) for log, offset in min_offsets.items())
        return tuple(file for files in found for file in files)

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        for name, part in self.parts.items():
            mine = [file for file in files if file.facts.path.startswith(f"{self.root}/{name}/")]
            part.dependents.delete(mine, meanwhile, remove)


@dataclass(frozen=True, slots=True)
class TwoProcesses(FileProcess):
    parts: Mapping[str, RocketMQBrokerStore]

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...]:
        found = (self.parts[log.name].process.flush_paths(_only(snapshot, log)) for log in snapshot.logs)
        return tuple(path for paths in found for path in paths)


def _renamed(log: LogSnapshot, name: str) -> LogSnapshot:
    return replace(log, name=name, segments=tuple(renamed(segment, name) for segment in log.segments))


def _only(snapshot: StoreSnapshot, log: LogSnapshot) -> StoreSnapshot:
    return replace(snapshot, logs=(log,))
