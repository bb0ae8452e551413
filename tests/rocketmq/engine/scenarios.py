"""Messages of every kind that a store may be given, made from a seed, and stores that are then damaged."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.rocketmq.engine.append.append import (
    NewBatch,
    NewMessage,
    PutResult,
    host_bytes,
    properties_block,
)
from storage_engine.rocketmq.engine.append.mapped_file_queue import WritableFile
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config

Sent = NewMessage | NewBatch

BATCH_TOPIC = "batches"
SIZES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 400,
    "mappedFileSizeConsumeQueueExt": 500,
    "mapperFileSizeBatchConsumeQueue": 460,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "batchTopics": BATCH_TOPIC,
}
"""Small files, so that few messages fill many."""


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """Bytes of a file that stays mapped until :meth:`release` (SelectMappedBufferResult)."""

    data: memoryview
    file: WritableFile

    def release(self) -> None:
        self.data.release()
        self.file.unpin()


def pin_range(file: WritableFile, position: int, size_bytes: int) -> PinnedRange | None:
    """Pin a file and return bytes of it that readers see; None where there are none."""
    end = position + size_bytes
    if not 0 <= position < end <= file.read_position or not file.pin():
        return None
    if file._mapping is None:
        file.unpin()
        return None
    return PinnedRange(memoryview(file._mapping)[position:end], file)


def read_log(store: MessageStore, physical_offset: int, size_bytes: int) -> PinnedRange | None:
    """Return bytes of the log, which stay mapped until they are released; None where there are none."""
    file = store.files.find(physical_offset)
    return None if file is None else pin_range(file, physical_offset - file.base_offset, size_bytes)


_BATCH_HEADER = struct.Struct(">iiiii")


def encode_batch(messages: list[tuple[bytes, bytes, int]]) -> bytes:
    """Return messages as a client sends a batch (MessageDecoder#encodeMessages).

    :param messages: body, property block and flag of each.
    """
    parts = []
    for body, properties, flag in messages:
        size = _BATCH_HEADER.size + len(body) + 2 + len(properties)
        parts += [
            _BATCH_HEADER.pack(size, 0, 0, flag, len(body)),
            body,
            struct.pack(">h", len(properties)),
            properties,
        ]
    return b"".join(parts)


def write_conf(path: Path, root: Path, **settings: object) -> BrokerConfig:
    """Write a broker.conf for a store, and return what it says."""
    values = {"storePathRootDir": root, "storePathCommitLog": root / "commitlog", **SIZES, **settings}
    path.write_text(
        "".join(f"{key}={str(v).lower() if isinstance(v, bool) else v}\n" for key, v in values.items())
    )
    return load_broker_config(path, root=root)


def messages(seed: int, count: int, *, light: bool = False) -> list[Sent]:
    """Make messages: keys, delays, transactions, batches, IPv6 hosts, long topics, bodies of all sizes."""
    chance = random.Random(seed)
    return [_sent(chance, number, light) for number in range(count)]


def _sent(chance: random.Random, number: int, light: bool) -> Sent:
    kind = chance.random()
    topic = chance.choice(["orders", "payments", "%RETRY%group", "тема", "t" * 130, "SCHEDULE_TOPIC_XXXX"])
    body = chance.randbytes(chance.choice([0, 1, 60, 300, 1500, 9000]))
    properties = {}
    if chance.random() < 0.7:
        properties["TAGS"] = chance.choice(["a", "TagB", "标签", "x" * 60])
    if chance.random() < 0.6:
        properties["KEYS"] = chance.choice([f"k{number}", f"k{number} same  twice", "ключ", " "])
    if chance.random() < 0.6:
        properties["UNIQ_KEY"] = f"{number:032X}"
    if topic.startswith("SCHEDULE"):
        properties["DELAY"] = str(chance.choice([1, 3, 18, 99, 0]))
    hosts = [
        host_bytes(chance.choice(["10.1.2.3", "2001:db8::7"]), chance.randrange(1, 65536)) for _ in range(2)
    ]
    if kind < 0.15:
        parts = [
            (chance.randbytes(chance.randrange(200)), properties_block(properties), chance.randrange(9))
            for _ in range(chance.randrange(1, 9))
        ]
        shared = properties_block({"WAIT": "true"} if chance.random() < 0.5 else {})
        return NewBatch("orders", encode_batch(parts), shared, 1, 0, 1_700_000_000_000, hosts[0], hosts[1])
    sys_flag, prepared = 0, 0
    if kind < 0.25:
        topic = BATCH_TOPIC
        if chance.random() < 0.6:
            sys_flag = 0x80 | 0x40
            properties["INNER_NUM"] = str(chance.randrange(1, 5))
    elif kind < 0.4:
        sys_flag, prepared = chance.choice([4, 8, 12]), chance.randrange(1 << 40)
    if light and chance.random() < 0.4 and not topic.startswith("%RETRY"):
        properties["INNER_MULTI_DISPATCH"] = chance.choice(["%LMQ%a", "%LMQ%a,%LMQ%b"])
        properties["WAIT"] = "true"
    block = properties_block(properties)
    return NewMessage(
        topic,
        body,
        block[:-1] if chance.random() < 0.3 else block,
        chance.randrange(3),
        chance.randrange(-9, 9),
        sys_flag,
        1_700_000_000_000 + number,
        hosts[0],
        hosts[1],
        chance.randrange(3),
        prepared,
    )


def write_lines(path: Path, sent: Sequence[Sent]) -> None:
    """Write messages as MessageStores.java reads them."""
    path.write_text("".join(_line(one) + "\n" for one in sent), encoding="utf-8")


def _line(one: Sent) -> str:
    batch = isinstance(one, NewBatch)
    hosts = [part for host in (one.born_host, one.store_host) for part in _host(host)]
    parts = ["batch" if batch else "one", one.topic, one.queue_id]
    parts += [0 if isinstance(one, NewBatch) else one.flag, one.sys_flag, one.born_timestamp_ms, *hosts]
    parts += [one.reconsume_times, 0 if isinstance(one, NewBatch) else one.prepared_transaction_offset]
    body = one.messages if isinstance(one, NewBatch) else one.body
    return "\t".join(map(str, [*parts, body.hex(), one.properties.hex()]))


def _host(host: bytes) -> tuple[str, int]:
    return str(ipaddress.ip_address(host[:-4])), int(struct.unpack(">i", host[-4:])[0])


def put_all(store: MessageStore, sent: Sequence[Sent]) -> list[PutResult]:
    return [store.put_batch(one) if isinstance(one, NewBatch) else store.put(one) for one in sent]


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a directory, by path."""
    if not directory.is_dir():
        return {}
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}
