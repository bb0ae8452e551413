"""What consumer groups add to ``plan`` of a Kafka node: ``python -m benchmarks.kafka_groups``.

The node has 2,000 partitions, whose closed segments have all expired. It is planned without a group, with 200
groups that committed in 20 partitions each, one of each topic, so that they read all of them, and with all
400,000 pairs committed. Each is a process of its own; measured is its time of processor.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Bench, report
from benchmarks.kafka_plan import NOW_MS, SEGMENTS, batch, write_node

TOPICS, PARTITIONS, GROUPS = 20, 100, 200
LIMIT_SECONDS, LIMIT_SOME_SECONDS, LIMIT_ALL_SECONDS = 2.5, 1.0, 5.0
"""Without groups; what groups add that committed in few partitions; what they add that did in all."""
_RECORDS_PER_BATCH = 1000


def commits(topics: int, partitions: int, groups: int, *, everywhere: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of committed offsets, which lie anywhere in what goes."""
    for group in range(groups):
        for topic in range(topics):
            for partition in range(partitions) if everywhere else (group % partitions,):
                key = struct.pack(">h", 1) + _text(f"group-{group:04d}") + _text(f"topic-{topic:05d}")
                offset = (group // partitions + partition) % (2 * SEGMENTS)
                value = struct.pack(">hqih", 3, offset, -1, 0) + struct.pack(">q", NOW_MS)
                yield key + struct.pack(">i", partition), value


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def write_offsets(properties: Path, topics: int, partitions: int, groups: int, *, everywhere: bool) -> None:
    """Write the log of committed offsets of a node of :func:`~benchmarks.kafka_plan.write_node`."""
    path = properties.parent / "logs" / "__consumer_offsets-0"
    path.mkdir(exist_ok=True)
    records = list(commits(topics, partitions, groups, everywhere=everywhere))
    with (path / f"{0:020d}.log").open("wb") as file:
        for first in range(0, len(records), _RECORDS_PER_BATCH):
            keys, values = zip(*records[first : first + _RECORDS_PER_BATCH], strict=True)
            file.write(batch(first, list(values), NOW_MS, keys))


def plan_seconds(properties: Path) -> float:
    """Plan in a process of its own. :return: seconds of processor time."""
    command = [
        sys.executable,
        "-c",
        "from storage_engine.cli.main import main; main()",
        "plan",
        str(properties),
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise AssertionError(f"expected plan to end with 0, found {process.returncode}")
    return used.ru_utime + used.ru_stime


def run(
    topics: int = TOPICS,
    partitions: int = PARTITIONS,
    groups: int = GROUPS,
    directory: Path | None = None,
) -> list[Bench]:
    with tempfile.TemporaryDirectory(dir=directory) as work:
        properties = write_node(
            Path(work, "node"), topics, partitions, expired_every=1, now_ms=int(time.time() * 1000)
        )
        plan_seconds(properties)
        without = plan_seconds(properties)
        added = []
        for everywhere in (False, True):
            write_offsets(properties, topics, partitions, groups, everywhere=everywhere)
            added.append(plan_seconds(properties) - without)
    detail = {"partitions": topics * partitions, "groups": groups, "without_groups_seconds": without}
    some, everywhere_added = added
    return [
        Bench("kafka-plan-without-groups", LIMIT_SECONDS / without, 1.0, detail),
        Bench("kafka-plan-few-commits", LIMIT_SOME_SECONDS / some, 1.0, detail | {"added_seconds": some}),
        Bench(
            "kafka-plan-all-commits",
            LIMIT_ALL_SECONDS / everywhere_added,
            1.0,
            detail | {"added_seconds": everywhere_added},
        ),
    ]


if __name__ == "__main__":
    report(run())
