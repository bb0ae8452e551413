"""On logs by chance a cleanup of a stopped node leaves what Kafka's own UnifiedLog left of the same logs."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from storage_engine.kafka.format.layout import read_node
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.batches import Record, batch, with_crc
from tests.kafka.made_node import MadeNode
from tests.kafka.retention_runs import RetentionRun, kept_runs
from tests.rounds import later, rounds

LOGS = rounds("STORAGE_ENGINE_KAFKA_LOGS", 25, 300)


def segment_of(base: int, end: int, size_bytes: int, newest_ms: int) -> bytes:
    """Return a batch of the offsets [base, end) that has so many bytes; nothing where there are none."""
    padding = size_bytes
    while size_bytes:
        whole = batch([Record(newest_ms, None, b"v" * padding)], base_offset=base)
        if len(whole) <= size_bytes:
            break
        padding -= len(whole) - size_bytes
    else:
        return b""
    # A header alone tells how long it is, and the last offset: nothing looks into records here.
    whole += b"\0" * (size_bytes - len(whole))
    lengthened = whole[:8] + struct.pack(">i", size_bytes - 12) + whole[12:]
    return with_crc(lengthened[:23] + struct.pack(">i", end - base - 1) + lengthened[27:])


def add(node: MadeNode, name: str, run: RetentionRun, starts: dict[str, int]) -> None:
    log, settings = run.log, run.settings
    bases = [one.base_offset for one in log.segments]
    ends = [*bases[1:], log.end_offset]
    known = zip(log.segments, ends, strict=True)
    segments = {
        one.base_offset: [segment_of(one.base_offset, end, one.size_bytes, one.largest_timestamp_ms)]
        for one, end in known
    }
    path = node.add(
        name,
        segments if all(one.size_bytes for one in log.segments) else {},
        settings={
            "cleanup.policy": "delete" if settings.delete else "",
            "retention.ms": str(settings.retention_ms),
            "retention.bytes": str(settings.retention_bytes),
        },
    )
    for one in log.segments:
        file = path / f"{one.base_offset:020d}.log"
        os.utime(file, (one.largest_timestamp_ms / 1_000,) * 2)
        assert file.stat().st_size == one.size_bytes
    assert log.high_watermark is not None
    node.watermarks[name] = log.high_watermark
    if log.start_offset > bases[0]:
        starts[name] = log.start_offset


@pytest.mark.parametrize("version", ["4.3.1", *later("3.9.2")])
def test_what_is_left_is_what_the_broker_s_class_left(version: str, tmp_path: Path) -> None:
    plain = [
        run
        for run in kept_runs()
        if run.version == version
        and not run.settings.compact
        and not run.settings.remote
        and all(one.size_bytes for one in run.log.segments)
    ]
    # Those of which something goes, first.
    chosen = sorted(plain, key=lambda run: not run.deleted)[:LOGS]
    assert len(chosen) == LOGS
    (now_ms,) = {run.now_ms for run in chosen}
    node, starts = MadeNode(tmp_path / "node"), dict[str, int]()
    expected = {}
    for number, run in enumerate(chosen):
        name = f"t{number}-0"
        add(node, name, run, starts)
        *closed, active = (one.base_offset for one in run.log.segments)
        # Where all has expired the broker closes the active one first, which nobody can while it is stopped.
        expected[name] = [*(base for base in closed if base not in run.deleted), active]
    node.checkpoint("log-start-offset-checkpoint", starts)
    store = ManagedStore.local(
        "k",
        str(node.write()),
        tmp_path / "managed",
        broker="kafka",
        policy=Policy(archive=ArchiveMode.OFF),
    )
    steps.make_plan(store, "run", now_ms=now_ms)
    released = steps.release(store, "run", now_ms)
    assert not released.refused
    found = {
        log.name.log: [one.base_offset for one in log.segments] for _, log in read_node(node.properties).logs
    }
    assert {name: found[name] for name in expected} == expected
    assert len(released.deleted) == sum(len(run.log.segments) for run in chosen) - sum(
        map(len, expected.values())
    )
    assert len(released.deleted) > LOGS
