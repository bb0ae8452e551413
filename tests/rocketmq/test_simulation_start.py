"""What a simulation starts from is the store as its files and its disk are."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import DAY_MS
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.disk import DiskUsage
from storage_engine.rocketmq import BROKER
from tests.fixture_stores import unpack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose eight segments were written an hour apart, the last now."""
    store = unpack("clean-stop", tmp_path)
    files = sorted((store / "commitlog").iterdir())
    now_ns = time.time_ns()
    for age, file in enumerate(reversed(files)):
        os.utime(file, ns=(now_ns - age * 3_600 * 10**9,) * 2)
    return store


def test_a_start_has_the_disk_as_it_is_and_the_log_as_its_files_are(root: Path) -> None:
    store = BROKER.open_store(StoreSettings(str(root), time_zone="Asia/Shanghai"), None)
    now_ms = time.time_ns() // 1_000_000
    snapshot = store.snapshot(now_ms)
    start = store.course.start(snapshot)
    assert start is not None
    (log,) = snapshot.logs
    assert start.log_bytes == log.max_offset - log.min_offset
    assert sum(run.segments for run in start.runs) == len(log.sealed)
    assert (start.runs[0].written_ms(0)) == log.segments[0].mtime_ns // 1_000_000
    assert start.oldest_message_ms == store.course.oldest_message_ms(snapshot)
    (disk,) = snapshot.log_disks
    used_bytes = start.other_bytes + int(start.log_bytes * (1 + start.dependents_share))
    assert disk.total_bytes is not None
    assert disk.usable_bytes is not None
    assert used_bytes == pytest.approx(disk.total_bytes - disk.usable_bytes, rel=1e-4)
    assert 0 < start.dependents_share < 100
    assert start.time_zone == "Asia/Shanghai"
    course = BROKER.rules.course(BROKER.rules.values(store.course.rule_config()), start, 14 * DAY_MS)
    assert course.used_percent[0] == pytest.approx(used_bytes * 100 / disk.total_bytes, abs=0.02)


def test_the_ingest_is_what_the_last_writes_of_segments_tell_unless_it_is_known(root: Path) -> None:
    store = BROKER.open_store(StoreSettings(str(root), time_zone="UTC"), None)
    snapshot = store.snapshot(time.time_ns() // 1_000_000)
    start = store.course.start(snapshot)
    assert start is not None
    segment_bytes = snapshot.logs[0].segments[0].facts.size_bytes
    assert start.ingest.bytes_per_day == pytest.approx(24 * segment_bytes, rel=0.3)


def test_queues_on_another_disk_have_no_share_and_an_unknown_disk_no_start(root: Path) -> None:
    store = BROKER.open_store(StoreSettings(str(root), time_zone="UTC"), None)
    snapshot = store.snapshot(time.time_ns() // 1_000_000)
    apart = store.course.start(
        replace(snapshot, dependents_disk=replace(snapshot.dependents_disk, device=-5))
    )
    assert apart is not None
    assert apart.dependents_share == 0
    unknown = DiskUsage("/gone", None, error="gone")
    assert store.course.start(replace(snapshot, log_disks=(unknown,))) is None
