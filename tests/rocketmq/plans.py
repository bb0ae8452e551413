"""Stores made of nothing but their facts, and the plans for them."""

from __future__ import annotations

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from storage_engine.core.clock import HOUR_MS
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Plan, PlanRequest
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import plan
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config

UTC = ZoneInfo("UTC")
NOON = 1_750_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS + 12 * HOUR_MS
SIZE = 100
DISK_BYTES = 10_000
LOG_DIRECTORIES = ("/d0/commitlog", "/d1/commitlog")


def config(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, {"deleteWhen": "12", **overrides}, root="/store")


def disk(path: str, percent: int | None, device: int) -> DiskUsage:
    if percent is None:
        return DiskUsage(path, None, error=f"{path}: gone")
    return DiskUsage(path, percent, DISK_BYTES, DISK_BYTES * (100 - percent) // 100, device=device)


def store(
    ages_hours: Sequence[float],
    *,
    disks: Sequence[int | None] = (50,),
    queue_disk: int | None = 50,
    max_offset: int | None = None,
    dispatched_offset: int | None = None,
    crashed: bool = False,
    confirmed_offset: int | None = None,
) -> StoreSnapshot:
    """A store whose segments were last written so many hours ago; the log ends inside the last one."""
    end = SIZE * (len(ages_hours) - 1) + SIZE // 2 if max_offset is None else max_offset
    segments = []
    for number, hours in enumerate(ages_hours):
        base = number * SIZE
        where = number % len(disks)
        facts = FileFacts(
            path=f"{LOG_DIRECTORIES[where]}/{base:020d}",
            device=where,
            inode=number,
            size_bytes=SIZE,
            mtime_ns=int(NOON - hours * HOUR_MS) * 1_000_000,
            ctime_ns=0,
        )
        state = SegmentState.SEALED if base + SIZE <= end else SegmentState.ACTIVE
        segments.append(Segment("commitlog", base, facts, state))
    dispatched = end if dispatched_offset is None else dispatched_offset
    return StoreSnapshot(
        broker="rocketmq",
        root="/store",
        taken_at_ms=NOON,
        logs=(LogSnapshot("commitlog", tuple(segments), end, dispatched, confirmed_offset=confirmed_offset),),
        log_disks=tuple(
            disk(LOG_DIRECTORIES[index], percent, device=index) for index, percent in enumerate(disks)
        ),
        dependents_disk=disk("/store/consumequeue", queue_disk, device=9),
        crashed=crashed,
    )


def decide(state: StoreSnapshot, settings: BrokerConfig | None = None, **request: int | bool | str) -> Plan:
    return plan(state, settings or config(), NOON, UTC, PlanRequest(**request))  # type: ignore[arg-type]
