"""A node's directories made by hand: topics in the cluster's metadata, logs with batches and small files."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage_engine.kafka.format.partition_metadata import text_of
from tests.kafka.batches import Record, batch, with_crc

CLUSTER = "r8MMkFXnTH6hs0mB1uUMyw"
TRANSACTIONAL, CONTROL = 0x10, 0x20
WRITTEN_MS = 1_800_000_000_000
"""When what a test writes was written, where it says nothing else."""


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: str) -> bytes:
    return unsigned(len(value.encode()) + 1) + value.encode()


def metadata_record(kind: int, fields: bytes, version: int = 0) -> bytes:
    """Return a record of the cluster's metadata without tagged fields."""
    return unsigned(1) + unsigned(kind) + unsigned(version) + fields + unsigned(0)


def feature_level(name: str, level: int) -> bytes:
    return metadata_record(12, text(name) + struct.pack(">h", level))


def partition(
    topic_id: uuid.UUID,
    number: int,
    replicas: Sequence[int],
    *,
    removing: Sequence[int] = (),
    adding: Sequence[int] = (),
) -> bytes:
    """Return the record that makes a partition (PartitionRecord)."""

    def listed(nodes: Sequence[int]) -> bytes:
        return unsigned(len(nodes) + 1) + b"".join(struct.pack(">i", one) for one in nodes)

    lists = b"".join(map(listed, (replicas, replicas, removing, adding)))
    return metadata_record(
        3, struct.pack(">i", number) + topic_id.bytes + lists + struct.pack(">iii", 1, 0, 0)
    )


def batch_of(
    base: int, count: int = 2, *, ms: int = WRITTEN_MS, producer: int = -1, attributes: int = 0
) -> bytes:
    """Return a batch of records of one moment."""
    whole = batch([Record(ms, b"k", b"v" * 10)] * count, base_offset=base, attributes=attributes)
    return with_crc(whole[:43] + struct.pack(">qh", producer, 0) + whole[53:])


class MadeNode:
    """A node below a directory. Nothing is there before :meth:`write`, but for the logs.

    :ivar watermarks: high watermarks, by log; a log that :meth:`add` makes has its end there.
    :ivar replicas: nodes that have a log, by its name; of one that :meth:`add` makes it is this node alone.
    """

    def __init__(self, root: Path, directories: Sequence[str] = ("logs",)) -> None:
        self.root = root
        self.directories = [root / name for name in directories]
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.settings: dict[str, dict[str, str]] = {}
        self.node_settings: dict[str, str] = {}
        self.more_records: list[bytes] = []
        self.watermarks: dict[str, int] = {}
        self.replicas: dict[str, Sequence[int]] = {}
        for path in (*self.directories, root / "meta"):
            path.mkdir(parents=True)
            (path / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={CLUSTER}\n")
            (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":9}')

    @property
    def properties(self) -> Path:
        return self.root / "server.properties"

    def add(
        self,
        name: str,
        segments: Mapping[int, Sequence[bytes]],
        *,
        settings: Mapping[str, str] | None = None,
        directory: int = 0,
    ) -> Path:
        """Make a log. :return: its directory."""
        topic = name.rpartition("-")[0]
        topic_id = self.topic_ids.setdefault(topic, uuid.uuid5(uuid.NAMESPACE_DNS, topic))
        self.settings.setdefault(topic, {}).update(settings or {})
        path = self.directories[directory] / name
        path.mkdir()
        (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {text_of(topic_id)}")
        end = 0
        for base, batches in segments.items():
            (path / f"{base:020d}.log").write_bytes(b"".join(batches))
            end = base
            for one in batches:
                end = struct.unpack_from(">q", one)[0] + struct.unpack_from(">i", one, 23)[0] + 1
        first = next((one for batches in segments.values() for one in batches), b"")
        if first:
            epoch = struct.unpack_from(">i", first, 12)[0]
            (path / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} {min(segments)}\n")
        self.watermarks[name] = end
        self.replicas.setdefault(name, (1,))
        return path

    def checkpoint(self, name: str, offsets: Mapping[str, int], directory: int = 0) -> None:
        """Write one of a log directory's checkpoints."""
        lines = [f"{log.rpartition('-')[0]} {log.rpartition('-')[2]} {at}\n" for log, at in offsets.items()]
        (self.directories[directory] / name).write_text(f"0\n{len(lines)}\n{''.join(lines)}")

    def write(self) -> Path:
        """Write what belongs to the whole node. :return: its file."""
        for number, path in enumerate(self.directories):
            known = {name: at for name, at in self.watermarks.items() if (path / name).is_dir()}
            self.checkpoint("replication-offset-checkpoint", known, number)
        log = self.root / "meta" / "__cluster_metadata-0"
        log.mkdir(exist_ok=True)
        values = [metadata_record(2, text(name) + one.bytes) for name, one in self.topic_ids.items()]
        for name, nodes in self.replicas.items():
            topic, _, number = name.rpartition("-")
            values.append(partition(self.topic_ids[topic], int(number), nodes))
        for topic, settings in self.settings.items():
            for name, value in settings.items():
                fields = struct.pack(">b", 2) + text(topic) + text(name) + text(value)
                values.append(metadata_record(4, fields))
        records = [Record(WRITTEN_MS, None, value) for value in [*values, *self.more_records]]
        (log / f"{0:020d}.log").write_bytes(batch(records) if records else b"")
        (log / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        own = "".join(f"{name}={value}\n" for name, value in self.node_settings.items())
        listed = ",".join(map(str, self.directories))
        self.properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\nlog.dirs={listed}\n"
            f"metadata.log.dir={self.root / 'meta'}\n{own}"
        )
        return self.properties
