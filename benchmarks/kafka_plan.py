"""A plan of a Kafka node with 10,000 partitions, by its files: ``python -m benchmarks.kafka_plan``.

Each partition has two closed segments, an active one, their indexes and snapshots, as a busy node's have on
average. Of a fifth of the topics the closed segments have expired. Measured is what the engine does for
``plan``: it looks at the node, decides, and checks both. The limit is two seconds with the files' facts in
the system's cache. ``look`` and ``decide`` in the results say what takes how long.
"""

from __future__ import annotations

import argparse
import base64
import os
import struct
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Bench, report
from storage_engine.core.long_work import no_collection
from storage_engine.crc import crc32c_of
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.store.broker_answers import propose, take_snapshot

TOPICS, PARTITIONS = 1000, 10
SEGMENTS = 3
EXPIRED_EVERY = 5
LIMIT_SECONDS = 2.0
NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000
ROUNDS = 3
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


def batch(base: int, values: list[bytes], at_ms: int, keys: Sequence[bytes] = ()) -> bytes:
    """Return a batch of records. :param keys: of each; none: they have no keys."""
    records = bytearray()
    texts = [_signed(len(key)) + key for key in keys] or [_signed(-1)] * len(values)
    for delta, (key, value) in enumerate(zip(texts, values, strict=True)):
        body = b"\0\0" + _signed(delta) + key + _signed(len(value)) + value + b"\0"
        records += _signed(len(body)) + body
    behind = struct.pack(">hiqqqhii", 0, len(values) - 1, at_ms, at_ms, -1, -1, -1, len(values))
    behind += records
    head = struct.pack(">qiibI", base, len(behind) + 9, 0, 2, crc32c_of(behind))
    return head + behind


def _signed(value: int) -> bytes:
    return _unsigned((value << 1) ^ (value >> 63))


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(value: str) -> bytes:
    return _unsigned(len(value) + 1) + value.encode()


def _record(kind: int, fields: bytes) -> bytes:
    return bytes([1, kind, 0]) + fields + b"\0"


def _only_replica(partition: int, topic_id: uuid.UUID) -> bytes:
    """Return the fields of a partition that this node alone has: replicas, in sync, removing, adding."""
    one, none = _unsigned(2) + struct.pack(">i", 1), _unsigned(1)
    lists = one + one + none + none
    return struct.pack(">i", partition) + topic_id.bytes + lists + struct.pack(">iii", 1, 0, 0)


def write_node(
    root: Path,
    topics: int = TOPICS,
    partitions: int = PARTITIONS,
    expired_every: int = EXPIRED_EVERY,
    now_ms: int = NOW_MS,
) -> Path:
    """Write a node.

    :param expired_every: of each so many topics the closed segments of one have expired.
    :param now_ms: when the last records were written.
    :return: its ``server.properties``.
    """
    logs, meta = root / "logs", root / "meta"
    records: list[bytes] = []
    for path in (logs, meta / "__cluster_metadata-0"):
        path.mkdir(parents=True)
    for path in (logs, meta):
        (path / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={_CLUSTER}\n")
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    marks = []
    for number in range(topics):
        topic, topic_id = f"topic-{number:05d}", uuid.UUID(int=number + 1)
        kept_ms = DAY_MS if number % expired_every == 0 else 30 * DAY_MS
        records.append(_record(2, _text(topic) + topic_id.bytes))
        records.append(_record(4, b"\2" + _text(topic) + _text("retention.ms") + _text(str(kept_ms))))
        said = f"version: 0\ntopic_id: {base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip('=')}"
        for partition in range(partitions):
            write_log(logs / f"{topic}-{partition}", said, now_ms)
            records.append(_record(3, _only_replica(partition, topic_id)))
            marks.append(f"{topic} {partition} {2 * SEGMENTS}\n")
    listed = f"0\n{len(marks)}\n{''.join(marks)}"
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (logs / name).write_text(listed)
    (meta / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(batch(0, records, now_ms))
    properties = root / "server.properties"
    properties.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={logs}\nmetadata.log.dir={meta}\n"
    )
    return properties


def write_log(path: Path, said: str, now_ms: int) -> None:
    """Write a partition: a segment every two days, the last one active."""
    path.mkdir()
    (path / "partition.metadata").write_text(said)
    (path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for number in range(SEGMENTS):
        base, at_ms = 2 * number, now_ms - 2 * (SEGMENTS - 1 - number) * DAY_MS
        data = batch(base, [b"v" * 100] * 2, at_ms)
        (path / f"{base:020d}.log").write_bytes(data)
        (path / f"{base:020d}.timeindex").write_bytes(struct.pack(">qi", at_ms, 1))
        (path / f"{base:020d}.index").write_bytes(b"" if number else bytes(8))
        if number:
            (path / f"{base:020d}.snapshot").write_bytes(struct.pack(">hIi", 1, crc32c_of(bytes(4)), 0))


def seconds_of(properties: Path) -> tuple[float, float, int]:
    """Look and decide once. :return: the seconds of each, and how many segments would go."""
    store = KafkaStore(OpenNode(properties))
    began = time.perf_counter()
    with no_collection():
        snapshot = take_snapshot(store, NOW_MS, "kafka")
        looked = time.perf_counter()
        plan = propose(store, snapshot, NOW_MS, PlanRequest())
    done = time.perf_counter()
    return looked - began, done - looked, len(plan.to_delete)


def run(topics: int = TOPICS, directory: Path | None = None) -> list[Bench]:
    with tempfile.TemporaryDirectory(dir=directory) as work:
        properties = write_node(Path(work, "node"), topics)
        os.sync()
        began = time.process_time()
        rounds = [seconds_of(properties) for _ in range(ROUNDS)]
        processor_seconds = (time.process_time() - began) / ROUNDS
    # The first topic of each so many, also of the last ones.
    expected = -(-topics // EXPIRED_EVERY) * PARTITIONS * (SEGMENTS - 1)
    if any(going != expected for _, _, going in rounds):
        raise AssertionError(f"expected {expected} segments to go, found {[going for _, _, going in rounds]}")
    look, decide, _ = min(rounds, key=lambda one: one[0] + one[1])
    detail = {
        "partitions": topics * PARTITIONS,
        "look_seconds": look,
        "decide_seconds": decide,
        "first_seconds": rounds[0][0] + rounds[0][1],
        "processor_seconds": processor_seconds,
    }
    return [Bench("kafka-plan-of-partitions", LIMIT_SECONDS / (look + decide), 1.0, detail)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS, help="of ten partitions each")
    parser.add_argument(
        "--directory", type=Path, help="on the disk to measure; default: where temporary files go"
    )
    asked = parser.parse_args()
    report(run(asked.topics, asked.directory))
