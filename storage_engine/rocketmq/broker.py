"""A RocketMQ store as retention sees it: settings, rules and files behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from storage_engine.model.owed import Owed
from storage_engine.model.plan import DependentFile, Plan, PlanRequest, Trigger
from storage_engine.model.store import SegmentState, StoreSnapshot
from storage_engine.model.watch import Watch
from storage_engine.rocketmq import dependents, rules
from storage_engine.rocketmq.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.checkpoint import read_checkpoint
from storage_engine.rocketmq.owed import owed
from storage_engine.rocketmq.plan import plan
from storage_engine.rocketmq.store import RocketMQStore
from storage_engine.rocketmq.store_lock import Hold
from storage_engine.rocketmq.watch import watch
from storage_engine.rocketmq.window import time_zone as zone_of


@dataclass(frozen=True, slots=True)
class RocketMQBrokerStore:
    """Implements :class:`storage_engine.model.broker.BrokerStore`."""

    files: RocketMQStore
    config: BrokerConfig
    zone: ZoneInfo

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        return self.files.snapshot(now_ms)

    def watch(self, now_ms: int) -> Watch:
        return watch(self.files.layout, self.config, now_ms, self.zone)

    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        return rules.triggers(snapshot, self.config, now_ms, self.zone, request)

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        return plan(snapshot, self.config, now_ms, self.zone, request)

    def owed(self, snapshot: StoreSnapshot) -> tuple[Owed, ...]:
        return owed(self.files.layout, snapshot)

    def hold(self) -> AbstractContextManager[Hold]:
        return self.files.hold()

    def dependents(self, min_offset: int) -> tuple[DependentFile, ...]:
        return dependents.expired_dependents(self.files.layout, self.config, min_offset)

    def delete_dependents(self, files: Sequence[DependentFile]) -> None:
        dependents.delete_dependents(files)

    def checkpoint(self) -> Mapping[str, int]:
        found = read_checkpoint(self.files.layout.checkpoint)
        return asdict(found) if found is not None else {}

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...]:
        layout = self.files.layout
        (log,) = snapshot.logs
        active = [Path(s.facts.path) for s in log.segments if s.state is SegmentState.ACTIVE]
        others = (layout.checkpoint, layout.index, layout.consumequeue, layout.root, *layout.log_paths)
        return tuple(path for path in (*active, *others) if path.exists())


def open_store(
    root: str, broker_conf: str | None, overrides: Mapping[str, str], time_zone: str | None
) -> RocketMQBrokerStore:
    """Open a store by its broker's settings; see :class:`storage_engine.model.broker.OpenStore`.

    :raises BadInputError: settings that its broker would not work with, or an unknown time zone.
    :raises StoreNotFoundError: a directory of the store is missing.
    """
    config = load_broker_config(broker_conf, overrides, root=root)
    return RocketMQBrokerStore(RocketMQStore.open(config), config, zone_of(time_zone))
