"""Files and answers that others wrote, damaged at random: every parser answers with one of our errors."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from demo.brokers import reading
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.cli.output.lag import in_process_lag
from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.facts import FactsScope
from storage_engine.model.store import SegmentId
from storage_engine.rocketmq import file_facts
from storage_engine.rocketmq.format.mapped_files import file_name
from storage_engine.rocketmq.inspect import inspect, look_up
from storage_engine.rocketmq.lag.consumer_offsets import parse_offsets
from storage_engine.rocketmq.remoting import answers
from storage_engine.rocketmq.remoting.answers import AnswerError
from storage_engine.rocketmq.remoting.command import (
    FrameError,
    RemotingCommand,
    SerialiseType,
    decode,
)
from storage_engine.rocketmq.store.broker import open_files
from tests.rocketmq.remoting.test_command import encode_as
from tests.rounds import later, rounds

pytestmark = pytest.mark.slow

NOW_MS = 1_800_000_000_000
EVERYTHING = FactsScope(full=True, queues=None, files=(), accepted_damage={})
LIKELY = b'\x00\xff\x7f\x80"\\[]{}:,-.09eEnul'
"""Bytes at which a parser's mind changes."""
ODD_NAMES = ("9" * 20, file_name((1 << 63) - 1), "x", file_name(20), "٠" * 20)

FILE_ROUNDS = rounds("STORAGE_ENGINE_FUZZ_FILES", 40, 1000)
ANSWER_ROUNDS = rounds("STORAGE_ENGINE_FUZZ_ANSWERS", 300, 20_000)


def damaged(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    kind = chance.choice(["bytes", "bytes", "bytes", "cut", "longer", "filled", "noise", "doubled"])
    within = chance.choice([64, 4096, len(found)])
    at = chance.randrange(max(1, min(len(found), within)))
    length = chance.choice([1, 4, 8, 20, 2000])
    if kind == "bytes":
        for _ in range(chance.choice([1, 3, 20])):
            found[chance.randrange(max(1, min(len(found), within)))] = chance.choice(LIKELY)
    elif kind == "cut":
        del found[at:]
    elif kind == "longer":
        found += chance.choice([b"\0", b"9", b"[", b"\xff"]) * chance.choice([1, 50, 5000])
    elif kind == "filled":
        found[at : at + length] = chance.choice([b"\0", b"\xff"]) * len(found[at : at + length])
    elif kind == "noise":
        found[at : at + length] = chance.randbytes(len(found[at : at + length]))
    else:
        found[at:at] = found[at : at + length] * chance.choice([1, 300])
    return bytes(found)


@contextmanager
def with_damage(path: Path, chance: random.Random) -> Iterator[None]:
    """Damage a file's content, or give it another name, until the block ends."""
    other = path.with_name(chance.choice(ODD_NAMES))
    if chance.random() < 0.1 and not other.exists():
        path.rename(other)
        yield
        other.rename(path)
    else:
        before = path.read_bytes()
        path.write_bytes(damaged(before, chance))
        yield
        path.write_bytes(before)


def look_at_everything(root: Path) -> None:
    """Call all that reads a store; each of it may fail with one of our errors only."""
    settings = StoreSettings(str(root))
    with suppress(StorageEngineError):
        file_facts.collect(settings, EVERYTHING)
    with suppress(StorageEngineError):
        list(in_process_lag(managed_store(root, None), (SegmentId("commitlog", 0),)))
    with suppress(StorageEngineError):
        open_files(settings).process.checkpoint()
    with suppress(StorageEngineError):
        store = open_files(settings)
        snapshot = store.snapshot(NOW_MS)
        store.plan(snapshot, NOW_MS, PlanRequest(manual=True))
        store.consumers.pending(snapshot)
        for look in (
            lambda: inspect(store.files, NOW_MS, messages=True, queues=True, snapshot=snapshot),
            lambda: look_up(store.files.layout, store.config, "orders", "k"),
            lambda: store.dependents.find({"commitlog": snapshot.logs[0].max_offset}),
        ):
            with suppress(StorageEngineError):
                look()


@pytest.mark.parametrize("name", ["cqext-batchcq", "rocksdb-pending", *later("edge-frames")])
def test_a_damaged_store_is_an_error_of_ours(name: str, store_copy: Callable[[str], Path]) -> None:
    root = store_copy(name)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    kinds: dict[str, list[Path]] = {}
    for path in files:
        parts = path.relative_to(root).parts
        kinds.setdefault("/".join(parts) if parts[0] == "config" else parts[0], []).append(path)
    for seed in range(FILE_ROUNDS):
        chance = random.Random(f"{name} {seed}")
        with with_damage(chance.choice(kinds[chance.choice(sorted(kinds))]), chance):
            try:
                look_at_everything(root)
            except Exception as error:
                pytest.fail(f"seed {seed}: {error!r}")


TABLE = {"minOffset": 0, "maxOffset": 7, "lastUpdateTimestamp": 1, "brokerOffset": 1, "consumerOffset": 2}
QUEUES = b'{"offsetTable":{{"topic":"t","queueId":3,"brokerName":"b"}:%s}}' % json.dumps(TABLE).encode()
INFO = {
    "brokerVersionDesc": "V5_3_3",
    "bootTimestamp": "1",
    "commitLogMinOffset": "0",
    "commitLogMaxOffset": "5",
    "commitLogDiskRatio_/d": "0.5",
    "consumeQueueDiskRatio": "0.5",
    "earliestMessageTimeStamp": "-1",
    "dispatchBehindBytes": "0",
    "timerOffsetBehind": "0",
}
BROKER = {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": "127.0.0.1:10911"}}
ANSWERS: list[tuple[Callable[[bytes], object], bytes]] = [
    (answers.runtime_info, json.dumps({"table": INFO}).encode()),
    (answers.config, b"deleteWhen=04\nfileReservedTime=72\n"),
    (reading.topic_config, b'{"topicName":"t","readQueueNums":4,"writeQueueNums":4,"perm":6}'),
    (answers.groups, b'{"subscriptionGroupTable":{"g":{}}}'),
    (answers.clustering_subscriptions, b'{"messageModel":"CLUSTERING","subscriptionTable":{"t":{}}}'),
    (reading.topic_stats, QUEUES),
    (reading.consume_stats, QUEUES),
    (
        answers.cluster_info,
        json.dumps({"brokerAddrTable": {"b": BROKER}, "clusterAddrTable": {"c": ["b"]}}).encode(),
    ),
    (
        lambda body: reading.topic_route("t", body),
        json.dumps({"brokerDatas": [BROKER], "queueDatas": [{"brokerName": "b", "perm": 6}]}).encode(),
    ),
    (reading.split_frames, bytes(200)),
    (lambda body: answers.message_at(body, 0), bytes(200)),
    (lambda body: answers.runtime_info(b'{"table":%s}' % body), b"[" * 2000),
]


@pytest.mark.parametrize(("parse", "body"), ANSWERS)
def test_a_damaged_answer_is_an_answer_error(parse: Callable[[bytes], object], body: bytes) -> None:
    for seed in range(ANSWER_ROUNDS):
        content = damaged(body, random.Random(seed))
        with suppress(AnswerError):
            answers.check_answer(lambda content=content: parse(content))  # type: ignore[misc]


def test_a_damaged_table_of_offsets_is_malformed() -> None:
    body = b'{"offsetTable":{"t@g":{0:402,1:397},"u@g":{0:1}},"lmqOffsetTable":{"%LMQ%x@g":7}}'
    for seed in range(ANSWER_ROUNDS):
        with suppress(*MALFORMED):
            parse_offsets(damaged(body, random.Random(seed)))


@pytest.mark.parametrize("kind", list(SerialiseType))
def test_a_damaged_frame_is_a_frame_error(kind: SerialiseType) -> None:
    command = RemotingCommand(0, 7, 1, "a remark", {"minOffset": "5"}, b"body")
    whole = encode_as(command, kind)[4:]
    for seed in range(ANSWER_ROUNDS):
        with suppress(FrameError):
            found = decode(damaged(whole, random.Random(seed)))
            found.remark.encode()
