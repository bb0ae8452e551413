"""Makes RocketMQ stores of any size, in seconds: valid frames, realistic bodies, consume queues.

For what a sample store can't be: messages of one size, small segments by the thousand, a log that begins
anywhere. Every message is distinct, and its body is made as a sample's.
"""

from __future__ import annotations

import argparse
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.memory import address_of
from storage_engine.crc import crc32, crc_engine
from storage_engine.native import copy_bytes, int64, kernel
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.format.index_file import java_hash
from storage_engine.rocketmq.sample.writing import HEX, body_pool, digits

QUEUES_PER_TOPIC = 8
ENTRY_BYTES = 20
_FIRST_TIMESTAMP_MS = 1_790_000_000_000
_MAGIC = frame.MAGIC_V1 - (1 << 32)
_TAGS = ("TagA", "TagB", "TagC", "TagD")
_PROPERTIES = (
    ("MSG_REGION", "DefaultRegion"),
    ("UNIQ_KEY", "0" * 56),
    ("CLUSTER", "DefaultCluster"),
    ("TAGS", "TagA"),
    ("KEYS", "ORD-0000000000"),
    ("WAIT", "true"),
    ("TRACE_ON", "true"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a generated store looks like.

    :param body_bytes: mean length of a body; the lengths vary by a quarter around it.
    :param topics: each has eight queues.
    :param first_offset: of the first segment.
    :param fill_percent: how much of the last segment has been written; 100: it is sealed like the others.
    """

    segments: int = 4
    segment_bytes: int = 64 << 20
    body_bytes: int = 1024
    topics: int = 16
    first_offset: int = 0
    fill_percent: int = 50
    seed: int = 1


@kernel
def _fill_bodies(
    pool: int,
    sources: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int32],
    out: int,
    function: int,
    table: int,
    crcs: npt.NDArray[np.int32],
) -> None:
    for i in range(len(crcs)):
        size = int64(offsets[i + 1]) - offsets[i]
        copy_bytes(out + offsets[i], pool + sources[i], size)
        crcs[i] = crc32(function, table, out + offsets[i], size) & 0x7FFFFFFF


def _properties(
    random: np.random.Generator, serials: npt.NDArray[np.int64], tags: npt.NDArray[np.int64]
) -> pa.Array[Any]:
    """A map array in which every row has the same names, and its own keys and tag."""
    rows = len(serials)
    names = b"".join(name.encode() for name, _ in _PROPERTIES)
    values = np.tile(np.frombuffer(b"".join(v.encode() for _, v in _PROPERTIES), np.uint8), (rows, 1))
    begins = np.cumsum([0, *(len(value) for _, value in _PROPERTIES)])
    unique = begins[1]
    values[:, unique : unique + 46] = HEX[random.integers(0, 16, 46)]
    values[:, unique + 46 : unique + 56] = digits(serials, 10)
    values[:, begins[3] + 3] = 65 + tags
    values[:, begins[4] + 4 : begins[5]] = digits(serials // 3, 10)

    def strings(content: npt.NDArray[np.uint8], lengths: list[int]) -> pa.Array[Any]:
        offsets = np.zeros(rows * len(lengths) + 1, np.int32)
        np.cumsum(np.tile(lengths, rows), out=offsets[1:])
        return pa.Array.from_buffers(
            pa.string(),
            rows * len(lengths),
            [None, pa.py_buffer(offsets.data), pa.py_buffer(content.tobytes())],
        )

    keys = strings(np.tile(np.frombuffer(names, np.uint8), rows), [len(name) for name, _ in _PROPERTIES])
    items = strings(values.reshape(-1), [len(value) for _, value in _PROPERTIES])
    return pa.MapArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * len(_PROPERTIES)), keys, items
    )


def _texts(choices: list[str], codes: npt.NDArray[np.int64]) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(codes.astype(np.int32), pa.array(choices)).cast(pa.string())


class StoreGenerator:
    """Makes one segment after the other; queue offsets and serial numbers run on."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.random = np.random.default_rng(shape.seed)
        self.pool = body_pool(self.random)
        self.topics = [f"orders_{i:04d}" for i in range(shape.topics)]
        self.next_queue_offset = np.zeros(shape.topics * QUEUES_PER_TOPIC, np.int64)
        self.serial = 0

    def segment(self, base_offset: int, fill_bytes: int | None = None) -> tuple[bytearray, pa.Table]:
        """Bytes of a segment, with a blank tail unless ``fill_bytes`` of it are written, and its rows."""
        shape, random = self.shape, self.random
        header = frame.BODY_AT + 1 + len(self.topics[0]) + 2
        block = sum(len(name) + len(value) + 2 for name, value in _PROPERTIES)
        room = shape.segment_bytes - frame.BLANK_HEADER_BYTES if fill_bytes is None else fill_bytes
        spread = shape.body_bytes // 4
        most = room // (header + block + shape.body_bytes - spread) + 1
        lengths = random.integers(shape.body_bytes - spread, shape.body_bytes + spread + 1, most)
        ends = np.cumsum(lengths + header + block)
        rows = int(np.searchsorted(ends, room, side="right"))
        lengths, sizes = lengths[:rows], lengths[:rows] + header + block
        begins = ends[:rows] - sizes

        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        sources = random.integers(0, len(self.pool) - 2 * shape.body_bytes - 1, rows)
        bodies = np.empty(int(offsets[-1]), np.uint8)
        crcs = np.empty(rows, np.int32)
        engine = crc_engine()
        _fill_bodies(
            address_of(self.pool), sources, offsets, address_of(bodies), engine.function, engine.table, crcs
        )

        topic = random.integers(0, shape.topics, rows)
        queue = random.integers(0, QUEUES_PER_TOPIC, rows)
        slot = topic * QUEUES_PER_TOPIC + queue
        order = np.argsort(slot, kind="stable")
        counts = np.bincount(slot, minlength=len(self.next_queue_offset))
        rank = np.empty(rows, np.int64)
        rank[order] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        queue_offsets = self.next_queue_offset[slot] + rank
        self.next_queue_offset += counts
        serials = self.serial + np.arange(rows, dtype=np.int64)
        self.serial += rows
        tags = random.integers(0, len(_TAGS), rows)
        times = (_FIRST_TIMESTAMP_MS + serials // 20) * 1000
        clients = [f"10.0.{i}.{17 * i % 250}" for i in range(32)]
        zeros = np.zeros(rows, np.int32)
        columns: dict[str, Any] = {
            "physical_offset": base_offset + begins,
            "size": sizes.astype(np.int32),
            "kind": _texts(["message"], zeros),
            "magic": np.full(rows, _MAGIC, np.int32),
            "topic": _texts(self.topics, topic),
            "queue_id": queue.astype(np.int32),
            "queue_offset": queue_offsets,
            "flag": zeros,
            "sys_flag": zeros,
            "body_crc": crcs,
            "born_timestamp": pa.array(times - 3000).cast(CODEC.schema.field("born_timestamp").type),
            "store_timestamp": pa.array(times).cast(CODEC.schema.field("store_timestamp").type),
            "born_host": _texts(clients, random.integers(0, len(clients), rows)),
            "born_port": random.integers(30000, 60000, rows).astype(np.int32),
            "store_host": _texts(["192.168.100.20"], zeros),
            "store_port": np.full(rows, 10911, np.int32),
            "reconsume_times": zeros,
            "prepared_transaction_offset": np.zeros(rows, np.int64),
            "tags": _texts(list(_TAGS), tags),
            "properties": _properties(random, serials, tags),
            "properties_terminated": np.ones(rows, bool),
            "body": pa.Array.from_buffers(
                pa.binary(), rows, [None, pa.py_buffer(offsets.data), pa.py_buffer(bodies.data)]
            ),
        }
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(rows, field.type)
            for field in CODEC.schema
        ]
        table = pa.Table.from_arrays(arrays, schema=CODEC.schema)
        out = bytearray(shape.segment_bytes)
        written = CODEC.encode(table, memoryview(out), base_offset)
        if fill_bytes is None:
            struct.pack_into(">iI", out, written, shape.segment_bytes - written, frame.MAGIC_BLANK)
        return out, table


def _append_queue_entries(root: Path, table: pa.Table, file_bytes: int) -> None:
    """Write a segment's consume queue entries into files of ``file_bytes``, as the broker lays them out."""
    entries = np.zeros(table.num_rows, np.dtype([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")]))
    entries["offset"] = table.column("physical_offset").to_numpy()
    entries["size"] = table.column("size").to_numpy()
    tags = table.column("tags").combine_chunks().dictionary_encode()
    hashes = np.array([java_hash(tag) for tag in tags.dictionary.to_pylist()])
    entries["tag"] = hashes[tags.indices.to_numpy()]
    topics = table.column("topic").combine_chunks().dictionary_encode()
    slot = topics.indices.to_numpy().astype(np.int64) * QUEUES_PER_TOPIC + table.column("queue_id").to_numpy()
    order = np.argsort(slot, kind="stable")
    queue_offsets = table.column("queue_offset").to_numpy()
    names = topics.dictionary.to_pylist()
    for group in np.split(order, np.flatnonzero(np.diff(slot[order])) + 1):
        topic, queue = divmod(int(slot[group[0]]), QUEUES_PER_TOPIC)
        directory = root / "consumequeue" / names[topic] / str(queue)
        directory.mkdir(parents=True, exist_ok=True)
        content = memoryview(entries[group].tobytes())
        at = int(queue_offsets[group[0]]) * ENTRY_BYTES
        while content:
            base, inside = at - at % file_bytes, at % file_bytes
            piece = content[: file_bytes - inside]
            path = directory / f"{base:020d}"
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.truncate(file_bytes)
                file.seek(inside)
                file.write(piece)
            content = content[len(piece) :]
            at += len(piece)


def write_store(root: Path, shape: Shape, *, queue_file_bytes: int = 300_000 * ENTRY_BYTES) -> list[Path]:
    """Write a store that was stopped cleanly: its last segment is active, all others are sealed.

    :return: the commitlog's files, oldest first.
    """
    generator = StoreGenerator(shape)
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
    paths = []
    for number in range(shape.segments):
        base_offset = shape.first_offset + number * shape.segment_bytes
        last = number == shape.segments - 1
        active = last and shape.fill_percent < 100
        fill = shape.segment_bytes * shape.fill_percent // 100 if active else None
        data, table = generator.segment(base_offset, fill)
        paths.append(root / "commitlog" / f"{base_offset:020d}")
        paths[-1].write_bytes(data)
        _append_queue_entries(root, table, queue_file_bytes)
    last_ms = _FIRST_TIMESTAMP_MS + (generator.serial - 1) // 20
    (root / "checkpoint").write_bytes(struct.pack(">qqq", last_ms, last_ms, 0).ljust(4096, b"\0"))
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="directory of the new store")
    for name, default in (
        ("segments", 4),
        ("segment-bytes", 64 << 20),
        ("body-bytes", 1024),
        ("topics", 16),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    root = options.pop("root")
    for path in write_store(root, Shape(**options)):
        print(path)


if __name__ == "__main__":
    main()
