"""What a broker takes of a store that nobody holds, against all passes of that time by its rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.core.clock import HOUR_MS
from storage_engine.model.disk import DiskUsage, percent_rounded_up
from storage_engine.model.plan import PlanRequest
from storage_engine.model.simulation import CourseStart, Ingest
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import plan
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.simulation import unheld_segments
from tests.rounds import rounds

UTC = ZoneInfo("UTC")
NOON = 1_750_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS + 12 * HOUR_MS
DAY_MS = 24 * HOUR_MS
SIZE = 1_000
DISK_BYTES = 100_000


def config(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, overrides, root="/store")


def store(ages_hours: Sequence[int], used_bytes: int) -> StoreSnapshot:
    """Sealed segments with these ages, oldest first, and an active one, on a disk that is so full."""
    last = len(ages_hours)
    segments = tuple(
        Segment(
            "commitlog",
            i * SIZE,
            FileFacts(f"/store/commitlog/{i * SIZE:020d}", 1, i + 1, SIZE, (NOON - age * HOUR_MS) * 10**6, 0),
            SegmentState.ACTIVE if i == last else SegmentState.SEALED,
        )
        for i, age in enumerate([*ages_hours, 0])
    )
    end = last * SIZE + SIZE // 2
    disk = level(used_bytes)
    return StoreSnapshot(
        broker="rocketmq",
        root="/store",
        taken_at_ms=NOON,
        logs=(LogSnapshot("commitlog", segments, end, end),),
        log_disks=(disk,),
        dependents_disk=disk,
        crashed=False,
    )


def level(used_bytes: int, device: int = 1) -> DiskUsage:
    percent = percent_rounded_up(used_bytes, DISK_BYTES)
    return DiskUsage("/store", percent, DISK_BYTES, DISK_BYTES - used_bytes, device=device)


def start_of(seen: StoreSnapshot, used_bytes: int, bytes_per_day: int = 0) -> CourseStart:
    (log,) = seen.logs
    return CourseStart(
        now_ms=NOON,
        disk_bytes=DISK_BYTES,
        other_bytes=used_bytes - log.max_offset,
        segment_bytes=SIZE,
        runs=(),
        active_bytes=SIZE // 2,
        oldest_message_ms=NOON,
        time_zone="UTC",
        ingest=Ingest(bytes_per_day),
    )


def taken(seen: StoreSnapshot, used_bytes: int, conf: BrokerConfig, bytes_per_day: int = 0) -> list[int]:
    start = start_of(seen, used_bytes, bytes_per_day)
    return [one.base_offset for one in unheld_segments(seen, conf, NOON + DAY_MS, UTC, start)]


def deleted_pass_by_pass(seen: StoreSnapshot, used_bytes: int, conf: BrokerConfig) -> list[int]:
    """What the plan of the real cleanup deletes, pass by pass, every half an hour of the day."""
    gone: list[int] = []
    for at_ms in range(NOON, NOON + DAY_MS + 1, HOUR_MS // 2):
        while True:
            (log,) = seen.logs
            left = tuple(one for one in log.segments if one.base_offset not in gone)
            now = level(used_bytes - len(gone) * SIZE)
            there = replace(seen, logs=(replace(log, segments=left),), log_disks=(now,), dependents_disk=now)
            going = plan(there, conf, at_ms, UTC, PlanRequest()).to_delete
            if not going:
                break
            gone += [one.base_offset for one in going]
    return gone


@settings(deadline=None, max_examples=rounds("STORAGE_ENGINE_UNHELD_DAYS", 20, 400))
@given(
    ages=st.lists(st.integers(-2, 120), max_size=8),
    other_percent=st.integers(5, 88),
    delete_when=st.sampled_from(["04", "12", "11;13", "99"]),
    forcibly=st.booleans(),
)
def test_a_day_takes_what_its_passes_take(
    ages: list[int], other_percent: int, delete_when: str, forcibly: bool
) -> None:
    conf = config(
        deleteWhen=delete_when, fileReservedTime="48", cleanFileForciblyEnable=str(forcibly).lower()
    )
    used = other_percent * DISK_BYTES // 100 + len(ages) * SIZE + SIZE // 2
    seen = store(ages, used)
    assert taken(seen, used, conf) == deleted_pass_by_pass(seen, used, conf)


@pytest.mark.parametrize(
    ("delete_when", "used_percent", "forcibly", "goes"),
    [
        ("04", 50, "true", [0, 1000]),
        ("99", 50, "true", []),
        # Above diskMaxUsedSpaceRatio at any hour, also what expires later that day.
        ("99", 80, "true", [0, 1000]),
        # By its restored force whatever its age, all but the active one: others fill the disk.
        ("99", 95, "true", [0, 1000, 2000, 3000]),
        ("99", 95, "false", [0, 1000]),
    ],
)
def test_age_hours_levels_and_force_decide(
    delete_when: str, used_percent: int, forcibly: str, goes: list[int]
) -> None:
    conf = config(deleteWhen=delete_when, fileReservedTime="48", cleanFileForciblyEnable=forcibly)
    used = used_percent * DISK_BYTES // 100
    seen = store([60, 40, 3, 2], used)
    assert taken(seen, used, conf) == goes


def test_a_disk_that_fills_within_the_day_counts() -> None:
    conf = config(deleteWhen="99", fileReservedTime="480")
    seen, used = store([60, 40, 3, 2], 80_000), 80_000
    assert taken(seen, used, conf) == []
    assert taken(seen, used, conf, bytes_per_day=10_000) == [0, 1000, 2000, 3000]


@pytest.mark.parametrize(("forcibly", "goes"), [("true", [0, 1000, 2000, 3000]), ("false", [0, 1000])])
def test_levels_that_are_not_known_count_as_reached(forcibly: str, goes: list[int]) -> None:
    """Its level or its growth may make a broker delete by force, or at any hour."""
    conf = config(deleteWhen="99", fileReservedTime="48", cleanFileForciblyEnable=forcibly)
    seen = store([60, 40, 3, 2], 50_000)
    unknown = DiskUsage("/store", None, error="/store: can't be measured", device=2)
    for other, start in (
        (seen, None),
        (replace(seen, dependents_disk=unknown), start_of(seen, 50_000)),
        (replace(seen, dependents_disk=level(80_000, device=2)), start_of(seen, 50_000)),
    ):
        found = unheld_segments(other, conf, NOON + DAY_MS, UTC, start)
        assert [one.base_offset for one in found] == goes
