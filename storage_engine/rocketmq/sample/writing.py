"""Writing of a sample store: our engine stores messages at times of a simulated clock.

Neither threads nor the machine's clock have an influence, so that the same request gives the same bytes. A
delayed message waits in its level's queue until it is due (ScheduleMessageService). A half message waits
until an operation message names it; a commit writes it once more (EndTransactionProcessor).

The producers of a sample store decide how much is sent to which queue, and when. Every message is distinct.
Bodies are slices of generated JSON, and compress about as well as real JSON.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.arrow.memory import address_of
from storage_engine.core import durable
from storage_engine.core.clock import DAY_MS
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.kind import SampleRequest, SampleStore
from storage_engine.rocketmq.codec.frame_layout import SCHEDULE_TOPIC, TRANSACTION_COMMIT
from storage_engine.rocketmq.engine.append.append import (
    NewBatch,
    NewMessage,
    PutResult,
    PutStatus,
    host_bytes,
    properties_block,
)
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import read_header
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.pending import GROUP, HALF_TOPIC, OPERATION_TOPIC
from storage_engine.rocketmq.restored_store import NO_CONFIG_QUEUES, config_files
from storage_engine.rocketmq.sample import message_kernels as kernels
from storage_engine.rocketmq.store import store_lock

DELAYED_SHARE: Final = 0.15
TRANSACTION_SHARE: Final = 0.15
"""Shares of batches (about 32 messages each). Such a batch follows a delayed message or a transaction."""

_ROLLBACK_SHARE = 0.2
_UNDECIDED_SHARE = 0.002
_LONGEST_DECISION_MS = 30_000
_PRODUCERS = "sample_producers"
Put = Callable[[NewMessage, int], PutResult]
"""Stores a message at a store time."""
_GROUPS = (("billing", 0.0), ("search", 0.001), ("reports", 0.4))
"""Consumer groups of a topic, each with the share of messages that it still has to read."""
_LAGGING_SHARE = 0.1
_EVERY_SECOND = 2
_OWN_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC)
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 0}

Ends = Mapping[tuple[str, int], int]
Offsets = dict[str, dict[int, int]]
QUEUES_PER_TOPIC: Final = 8
STORE_HOST: Final = host_bytes("192.168.100.20", 10911)
SHARED_PROPERTIES: Final = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_NAMES = ("orders", "payments", "shipments", "invoices", "returns", "prices", "stock", "visits")
_POOL_BYTES = 8 << 20
_MEAN_BODY_BYTES = 1024
_LONGEST_BODY_BYTES = 64 << 10
_BATCH_MESSAGES = 32
_MESSAGES_AT_ONCE = 1 << 13
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_DIGITS = np.frombuffer(b"0123456789", np.uint8)
_TAGS = np.frombuffer(b"TagATagBTagCTagD", np.uint8).reshape(4, 4)
_ROW = (
    b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01ORD-0000000000 CUS-00000000"
)
_UNIQUE_AT = _ROW.index(b"0" * 32)
_TAG_AT = _ROW.index(b"TagA")
_ORDER_AT = _ROW.index(b"ORD-") + 4
_CUSTOMER_AT = _ROW.index(b"CUS-") + 4
_ENDS = np.array([_ROW.index(b"\x02TAGS"), _ROW.index(b"\x02KEYS"), _ROW.index(b" CUS"), len(_ROW)], np.int64)
"""Possible ends of a message's properties: before the tags, before the keys, after one key, after two."""
_ENDS_CHANCES = (0.05, 0.15, 0.6, 0.2)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A message in the form in which it is finally delivered."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_ms: int
    born_host: bytes

    def message(self, *, sys_flag: int = 0, prepared: int = 0) -> NewMessage:
        properties = properties_block(self.properties)
        sent = (self.born_ms, self.born_host, STORE_HOST)
        return NewMessage(self.topic, self.body, properties, self.queue_id, 0, sys_flag, *sent, 0, prepared)

    def parked(self, topic: str, queue_id: int, extra: dict[str, str]) -> NewMessage:
        """Return the message in the form in which it waits in one of the broker's own topics."""
        real = {"REAL_TOPIC": self.topic, "REAL_QID": str(self.queue_id)}
        properties = {**self.properties, **real, **extra}
        return replace(self, topic=topic, queue_id=queue_id, properties=properties).message()


class SpecialMessages:
    """Sends delayed messages and half messages, and delivers or decides each at its time."""

    def __init__(self, producers: Producers, put: Put, delays_ms: tuple[int, ...]) -> None:
        self._producers, self._put, self._delays_ms = producers, put, delays_ms
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = 0
        self.delivered = [0] * len(delays_ms)
        """Number of delivered messages of each delay level; the index is the level minus one."""
        self.waiting = 0
        self._halves = 0
        self._operations = 0
        self._decided_by: dict[int, int] = {}
        """Queue offset of each decided half message → queue offset of its operation message."""

    @property
    def undecided(self) -> int:
        return self._halves - len(self._decided_by)

    def work_until(self, store_ms: int) -> None:
        """Deliver messages and decide transactions that are due by this time, in order."""
        while self._due and self._due[0][0] <= store_ms:
            due_ms, _, act = heapq.heappop(self._due)
            act(due_ms)

    def send_delayed(self, topic: str, born_host: bytes, store_ms: int) -> None:
        level = 1 + int(self._producers.chance() * len(self._delays_ms))
        draft = self._make_draft(topic, born_host, store_ms)
        self._put(draft.parked(SCHEDULE_TOPIC, level - 1, {"DELAY": str(level)}), store_ms)
        self.waiting += 1

        def deliver(due_ms: int) -> None:
            self._put(draft.message(), due_ms)
            self.delivered[level - 1] += 1
            self.waiting -= 1

        self._schedule(store_ms + self._delays_ms[level - 1], deliver)

    def send_transaction(self, topic: str, born_host: bytes, store_ms: int) -> None:
        """Send a half message, and schedule its decision. A few half messages are never decided."""
        draft = self._make_draft(topic, born_host, store_ms)
        draft.properties["PGROUP"] = _PRODUCERS
        half = self._put(draft.parked(HALF_TOPIC, 0, {"TRAN_MSG": "true"}), store_ms)
        self._halves += 1
        fate = self._producers.chance()

        def decide(due_ms: int) -> None:
            if fate > _ROLLBACK_SHARE:
                self._put(draft.message(sys_flag=TRANSACTION_COMMIT, prepared=half.physical_offset), due_ms)
            properties, body = properties_block({"TAGS": "d"}), b"%d," % half.queue_offset
            sent = (due_ms, STORE_HOST, STORE_HOST)
            self._put(NewMessage(OPERATION_TOPIC, body, properties, 0, 0, 0, *sent), due_ms)
            self._decided_by[half.queue_offset] = self._operations
            self._operations += 1

        if fate >= _UNDECIDED_SHARE:
            self._schedule(store_ms + int(self._producers.chance() * _LONGEST_DECISION_MS), decide)

    def positions(self) -> dict[str, dict[int, int]]:
        """Return the positions of the broker's own group in the topics of transactions.

        The group has read neither the first undecided half message, nor operations on later half messages.
        """
        if not self._halves:
            return {}
        first = next((i for i in range(self._halves) if i not in self._decided_by), self._halves)
        later = [operation for half, operation in self._decided_by.items() if half > first]
        return {
            f"{HALF_TOPIC}@{GROUP}": {0: first},
            f"{OPERATION_TOPIC}@{GROUP}": {0: min(later, default=self._operations)},
        }

    def _make_draft(self, topic: str, born_host: bytes, store_ms: int) -> _Draft:
        size_bytes = 100 + int(self._producers.chance() * 2000)
        queue_id = int(self._producers.chance() * QUEUES_PER_TOPIC)
        self._number += 1
        properties = {
            "UNIQ_KEY": f"5A{self._number:030X}",
            "WAIT": "true",
            "TAGS": "TagS",
            "KEYS": f"SPC-{self._number:010d}",
        }
        return _Draft(topic, queue_id, self._producers.body(size_bytes), properties, store_ms, born_host)

    def _schedule(self, due_ms: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (due_ms, self._number, act))


_UNFINISHED = ".unfinished"
"""Name of the store's directory until the store is complete."""
_CONF = "broker.conf"
_LEAST_SEGMENT_BYTES = 1 << 20
_DISPATCH_BYTES = 16 << 20
"""Number of bytes of messages after which queues and index get their entries."""


def write_sample(request: SampleRequest) -> SampleStore:
    """Write a store that was stopped cleanly, and its broker.conf beside it.

    An interrupted attempt can be repeated.

    :raises BadInputError: the directory isn't empty, files are too small, or the store begins before 1970.
    :raises OSError: the disk is full, or can't be written.
    """
    directory = request.directory.absolute()
    # False for days=nan, too.
    fits = request.end_ms >= request.days * DAY_MS
    if request.segment_bytes < _LEAST_SEGMENT_BYTES or not fits:
        raise BadInputError(
            f"{directory}: expected files of the log of at least {_LEAST_SEGMENT_BYTES} bytes and a first "
            f"message after 1970, found {request.segment_bytes} bytes and {request.days:g} days before "
            f"{time_text(request.end_ms)}. Nothing was written."
        )
    _clear(directory)
    made, root, conf = directory / _UNFINISHED, directory / "store", directory / _CONF
    config = load_broker_config(None, sample_settings(made, request.segment_bytes), root=made)
    durable.make_dirs(made / "commitlog")
    layout = resolve_layout(config)
    producers = Producers(request.seed, request.messages, request.topics, request.days, request.end_ms)
    with store_lock.lock(layout):
        clock = _Clock(producers.store_ms(0))
        store = MessageStore(layout, settings_for(config, layout), clock.read)
        store.start(services=False)
        try:
            writer = _Writer(store, clock, producers)
            with report_work("Writing messages", request.messages, "messages") as advance:
                for batch in producers.batches():
                    writer.write(batch)
                    advance(batch.count)
            writer.finish(request.end_ms)
            ends = dict(store.queues.next_offsets)
            log_bytes = store.positions().wrote
        finally:
            store.stop()
    offsets, lagging = _group_offsets(ends)
    all_offsets = {**offsets, **writer.special.positions()}
    for name, content in _config_files(ends, writer.special.delivered, all_offsets).items():
        durable.make_dirs((made / name).parent)
        (made / name).write_bytes(content)
    _set_times(layout, writer.times, request.end_ms)
    settings = sample_settings(root, request.segment_bytes)
    durable.write_file(conf, "".join(f"{key}={value}\n" for key, value in settings.items()).encode())
    made.rename(root)
    durable.fsync_path(directory)
    return SampleStore(
        store=str(root),
        configuration=str(conf),
        messages=sum(ends.values()),
        log_bytes=log_bytes,
        log_files=len(list((root / "commitlog").iterdir())),
        topics=len(producers.topics),
        groups=len(offsets),
        lagging_groups=lagging,
        pending=writer.special.waiting + writer.special.undecided,
    )


def _clear(directory: Path) -> None:
    """Remove the remains of an interrupted attempt. All other content is an error.

    :raises BadInputError: the directory has other content.
    :raises StoreBusyError: the earlier attempt is still writing.
    """
    if not directory.exists():
        return
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    unfinished = directory / _UNFINISHED
    if not names <= ({_UNFINISHED, _CONF} if _UNFINISHED in names else set()):
        raise BadInputError(
            f"{directory}: expected a directory that is new or empty, found something in it. Nothing was "
            "written. Name another."
        )
    if names:
        durable.make_dirs(unfinished / "commitlog")
        with store_lock.lock(resolve_layout(load_broker_config(None, {}, root=unfinished))):
            shutil.rmtree(unfinished)


class _Clock:
    """Clock of store times. Only messages advance it."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def read(self) -> int:
        return self.now_ms

    def go_to(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)


@dataclass(frozen=True, slots=True)
class _Times:
    """Physical offsets and store times of the messages in the log, ascending."""

    offsets: list[int]
    store_ms: list[int]

    def at(self, offset: int) -> int:
        return self.store_ms[max(0, int(np.searchsorted(self.offsets, offset, "right")) - 1)]


class _Writer:
    """Writes the messages of producers and those of the broker's own topics into the store."""

    def __init__(self, store: MessageStore, clock: _Clock, producers: Producers) -> None:
        self._store, self._clock, self._producers = store, clock, producers
        self.special = SpecialMessages(producers, self._put, store.settings.delays_ms())
        self.times = _Times([], [])
        self._undispatched_bytes = 0

    def write(self, batch: SentBatch) -> None:
        """Write a batch, and before it all messages that are due by its time."""
        self.special.work_until(batch.store_ms)
        if self._producers.chance() < DELAYED_SHARE:
            self.special.send_delayed(batch.topic, batch.born_host, batch.store_ms)
        if self._producers.chance() < TRANSACTION_SHARE:
            self.special.send_transaction(batch.topic, batch.born_host, batch.store_ms)
        self._clock.go_to(batch.store_ms)
        sent = (batch.store_ms, batch.born_host, STORE_HOST)
        new = NewBatch(batch.topic, batch.messages, SHARED_PROPERTIES, batch.queue_id, 0, *sent)
        self._note(self._store.put_batch(new))

    def finish(self, end_ms: int) -> None:
        """Do all work due by the end. Then send a delayed message and a half message, which stay pending."""
        self.special.work_until(end_ms)
        topic = self._producers.topics[0]
        self.special.send_delayed(topic, STORE_HOST, end_ms)
        self.special.send_transaction(topic, STORE_HOST, end_ms)
        self._store.dispatch()

    def _put(self, message: NewMessage, store_ms: int) -> PutResult:
        self._clock.go_to(store_ms)
        return self._note(self._store.put(message))

    def _note(self, result: PutResult) -> PutResult:
        if result.status is not PutStatus.PUT_OK:
            if self._store.failure is not None:
                raise self._store.failure
            raise BadInputError(
                f"{self._store.layout.root}: expected each message to be stored, found {result.status}. The "
                "sample isn't whole. Free space on its disk, or make the log's files larger, and run again."
            )
        self.times.offsets.append(result.physical_offset)
        self.times.store_ms.append(result.store_timestamp_ms)
        self._undispatched_bytes += result.size_bytes
        if self._undispatched_bytes >= _DISPATCH_BYTES:
            self._store.dispatch()
            self._undispatched_bytes = 0
        return result


def _set_times(layout: StoreLayout, times: _Times, end_ms: int) -> None:
    """Set each file's mtime to the store time of the last message that it contains or points to."""
    for path in sorted(layout.root.rglob("*")):
        if path.is_file():
            _set_time(path, end_ms)
    for path, behind in pairwise(sorted((layout.root / "commitlog").iterdir())):
        _set_time(path, times.at(int(behind.name) - 1))
    for queue in iter_queues(layout.consumequeue):
        for file in consume_queue.FORMAT.files(queue.path):
            if entry := consume_queue.last_entry((file,)):
                _set_time(file.path, times.at(entry.physical_offset))
    for path in sorted(layout.index.iterdir()) if layout.index.is_dir() else ():
        _set_time(path, read_header(path).end_timestamp_ms)


def _set_time(path: Path, time_ms: int) -> None:
    os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))


def sample_settings(root: Path, segment_bytes: int) -> dict[str, str]:
    """Return the settings of a sample store's broker, with small files, so that there are many of them."""
    return {
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "mappedFileSizeCommitLog": str(segment_bytes),
        "mappedFileSizeConsumeQueue": str(20 * 15_000),
        "maxHashSlotNum": "50000",
        "maxIndexNum": "200000",
    }


def _group_offsets(ends: Ends) -> tuple[Offsets, int]:
    """Return the offsets of each consumer group, and the number of groups that are far behind.

    :param ends: ends of queues, by topic and queue id.
    """
    offsets: Offsets = {}
    lagging = 0
    for number, topic in enumerate(sorted({topic for topic, _ in ends} - set(_OWN_TOPICS))):
        for group, unread in _GROUPS:
            if unread > _LAGGING_SHARE:
                if number % _EVERY_SECOND:
                    continue
                lagging += 1
            queues = {queue: end for (name, queue), end in sorted(ends.items()) if name == topic}
            offsets[f"{topic}@{topic}_{group}"] = {
                queue: end - int(end * unread) for queue, end in queues.items()
            }
    return offsets, lagging


def _config_files(ends: Ends, delivered: list[int], offsets: Offsets) -> dict[str, bytes]:
    """Return the files of ``config`` by their path below the store's root.

    :param delivered: number of delivered messages of each delay level; the index is the level minus one.
    :param offsets: offsets of all groups, also of the broker's own.
    """
    rows = sorted((topic, queue, end - 1, False) for (topic, queue), end in ends.items())
    names = NO_CONFIG_QUEUES.column_names
    queues = pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=NO_CONFIG_QUEUES.schema
    )
    groups = sorted({name.partition("@")[2] for name in offsets})
    levels = {level + 1: count for level, count in enumerate(delivered) if (SCHEDULE_TOPIC, level) in ends}
    return {
        **config_files(queues),
        # The broker reads one of these two files, by its setting enableLmq.
        "config/consumerOffset.json": _json({"offsetTable": offsets}),
        "config/lmqConsumerOffset.json": _json({"offsetTable": offsets}),
        "config/delayOffset.json": _json({"offsetTable": levels}),
        "config/subscriptionGroup.json": _json(
            {"subscriptionGroupTable": {group: _group(group) for group in groups}, "forbiddenTable": {}}
        ),
    }


def _group(name: str) -> dict[str, Any]:
    """Return a SubscriptionGroupConfig. Missing values have the broker's defaults."""
    return {
        "groupName": name,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps({"dataVersion": _VERSION, **content}, indent=1).encode()


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Messages of one queue that were sent at once.

    :param messages: the messages in the form in which a client sends them.
    :param number: how many messages all producers have sent before.
    """

    topic: str
    queue_id: int
    messages: bytes
    count: int
    number: int
    store_ms: int
    born_host: bytes


class Producers:
    """Makes the messages of a store's producers, in the order of their arrival."""

    def __init__(self, seed: int, messages: int, topics: int, days: float, end_ms: int) -> None:
        self._random = np.random.default_rng(seed)
        self._messages, self._end_ms = messages, end_ms
        self._span_ms = days * DAY_MS
        self.topics = tuple(
            _NAMES[i] if i < len(_NAMES) else f"{_NAMES[i % len(_NAMES)]}-{i // len(_NAMES) + 1:04d}"
            for i in range(topics)
        )
        self._pool = body_pool(self._random)
        # A few topics have most of the messages. Each topic has its own typical size of a message.
        weights = 1 / np.arange(1, topics + 1)
        self._weights = weights / weights.sum()
        sizes = self._random.choice([0.3, 0.7, 1.0, 1.8], topics)
        self._mean_bytes = _MEAN_BODY_BYTES * sizes / (sizes @ self._weights)
        self._hosts = [
            host_bytes(f"10.0.{i}.{17 * i % 250 + 1}", int(self._random.integers(30_000, 60_000)))
            for i in range(32)
        ]

    def batches(self) -> Iterator[SentBatch]:
        number = 0
        while number < self._messages:
            count = min(_MESSAGES_AT_ONCE, self._messages - number)
            yield from self._draw_batches(number, count)
            number += count

    def body(self, size_bytes: int) -> bytes:
        begin = int(self._random.integers(0, len(self._pool) - size_bytes))
        return self._pool[begin : begin + size_bytes].tobytes()

    def chance(self) -> float:
        return float(self._random.random())

    def store_ms(self, number: int) -> int:
        """Return the time at which message ``number`` arrives. More messages arrive by day than by night."""
        share = (number + 1) / self._messages
        days = self._span_ms / DAY_MS
        waves = 0.5 * math.sin(2 * math.pi * days * share) / (2 * math.pi * days)
        return self._end_ms - round(self._span_ms * max(0.0, 1 - share - waves * float(share < 1)))

    def _draw_batches(self, number: int, count: int) -> Iterator[SentBatch]:
        random = self._random
        sizes = random.integers(1, 2 * _BATCH_MESSAGES, count)
        ends = np.minimum(np.cumsum(sizes), count)
        ends = ends[: int(np.searchsorted(ends, count)) + 1]
        begins = np.concatenate(([0], ends[:-1]))
        topics = random.choice(len(self.topics), len(ends), p=self._weights)
        queues = random.integers(0, QUEUES_PER_TOPIC, len(ends))
        hosts = random.integers(0, len(self._hosts), len(ends))
        lengths = self._body_bytes(np.repeat(topics, ends - begins))
        rows, property_bytes = self._properties(number, count)
        starts = np.concatenate(([0], np.cumsum(kernels.HEADER_BYTES + lengths + 2 + property_bytes)))
        out = np.empty(int(starts[-1]), np.uint8)
        sources = random.integers(0, len(self._pool) - _LONGEST_BODY_BYTES, count)
        kernels.write_messages(
            address_of(self._pool),
            sources,
            lengths,
            address_of(rows),
            rows.shape[1],
            property_bytes,
            starts,
            address_of(out),
        )
        for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            yield SentBatch(
                self.topics[topics[i]],
                int(queues[i]),
                out[starts[begin] : starts[end]].tobytes(),
                end - begin,
                number + begin,
                self.store_ms(number + begin),
                self._hosts[hosts[i]],
            )

    def _body_bytes(self, topics: Longs) -> Longs:
        """Draw lengths of bodies: most are near the topic's typical length, some are very long, some 0."""
        random = self._random
        spread = random.lognormal(-0.18, 0.6, len(topics))
        lengths = np.minimum(self._mean_bytes[topics] * spread, _LONGEST_BODY_BYTES).astype(np.int64)
        lengths[random.random(len(topics)) < 0.001] = _LONGEST_BODY_BYTES
        lengths[random.random(len(topics)) < 0.001] = 0
        return np.asarray(lengths, np.int64)

    def _properties(self, number: int, count: int) -> tuple[Bytes, Longs]:
        random = self._random
        rows = np.tile(np.frombuffer(_ROW, np.uint8), (count, 1))
        numbers = number + np.arange(count, dtype=np.int64)
        rows[:, _UNIQUE_AT : _UNIQUE_AT + 22] = HEX[random.integers(0, 16, 22)]
        rows[:, _UNIQUE_AT + 22 : _UNIQUE_AT + 32] = digits(numbers, 10)
        rows[:, _TAG_AT : _TAG_AT + 4] = _TAGS[random.integers(0, len(_TAGS), count)]
        rows[:, _ORDER_AT : _ORDER_AT + 10] = digits(numbers // 3, 10)
        rows[:, _CUSTOMER_AT : _CUSTOMER_AT + 8] = digits(random.integers(0, 10_000, count), 8)
        return rows, _ENDS[random.choice(len(_ENDS), count, p=_ENDS_CHANCES)]


def body_pool(random: np.random.Generator) -> Bytes:
    """Make JSON records whose fields are random digits and hexadecimal letters."""
    template = np.frombuffer(
        b'{"order":"0000000000","customer":"XXXXXXXXXXXXXXXX","amount":000000,"note":"XXXXXXXXXXXX"},',
        np.uint8,
    )
    pool = np.tile(template, (_POOL_BYTES // len(template), 1))
    for letter, alphabet in ((b"0", _DIGITS), (b"X", HEX)):
        places = np.flatnonzero(template == letter[0])
        drawn = np.frombuffer(random.bytes(len(pool) * len(places)), np.uint8)
        pool[:, places] = alphabet[drawn % len(alphabet)].reshape(len(pool), len(places))
    return pool.reshape(-1)


def digits(values: Longs, width: int) -> Bytes:
    """Return numbers as rows of decimal digits."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % 10 + 48).astype(np.uint8)
