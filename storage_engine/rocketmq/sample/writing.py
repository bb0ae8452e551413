"""Writing a sample store: our engine takes messages by a clock that runs through the days.

Nothing is written by a thread or at a time of the machine's, so that the same request gives the same bytes.
A delayed message waits in its level's queue until it is due (ScheduleMessageService). A half message waits
until an operation message names it; a commit writes it once more (EndTransactionProcessor).
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage_engine.core import durable
from storage_engine.core.clock import DAY_MS
from storage_engine.core.long_work import told
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.sample import SampleRequest, SampleStore
from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC, TRANSACTION_COMMIT
from storage_engine.rocketmq.engine.append.new_message import (
    NewBatch,
    NewMessage,
    PutResult,
    PutStatus,
    properties_block,
)
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.index_file import read_header
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.pending import GROUP, HALF_TOPIC, OPERATION_TOPIC
from storage_engine.rocketmq.sample.messages import (
    QUEUES_PER_TOPIC,
    SHARED_PROPERTIES,
    STORE_HOST,
    Producers,
    SentBatch,
)
from storage_engine.rocketmq.store import store_lock
from storage_engine.rocketmq.store.restored_config import NO_QUEUES, config_files

DELAYED_SHARE: Final = 0.15
TRANSACTION_SHARE: Final = 0.15
"""How often one comes before a batch, which has 32 messages on average."""

_ROLLBACK_SHARE = 0.2
_UNDECIDED_SHARE = 0.002
_LONGEST_DECISION_MS = 30_000
_PRODUCERS = "sample_producers"
Put = Callable[[NewMessage, int], PutResult]
"""Stores a message at a store time."""
_GROUPS = (("billing", 0.0), ("search", 0.001), ("reports", 0.4))
"""Consumer groups of a topic, and which share of its messages each still has to read."""
_LAGGING_SHARE = 0.1
_EVERY_SECOND = 2
_OWN_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC, OPERATION_TOPIC)
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 0}

Ends = Mapping[tuple[str, int], int]
Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A message as its producer wants it delivered."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_ms: int
    born_host: bytes

    def message(self, *, sys_flag: int = 0, prepared: int = 0) -> NewMessage:
        return NewMessage(
            self.topic,
            self.body,
            properties_block(self.properties),
            self.queue_id,
            0,
            sys_flag,
            self.born_ms,
            self.born_host,
            STORE_HOST,
            0,
            prepared,
        )

    def parked(self, topic: str, queue_id: int, extra: dict[str, str]) -> NewMessage:
        """Return it as it waits in a topic of the broker's."""
        real = {"REAL_TOPIC": self.topic, "REAL_QID": str(self.queue_id)}
        properties = {**self.properties, **real, **extra}
        return replace(self, topic=topic, queue_id=queue_id, properties=properties).message()


class SpecialMessages:
    """Sends delayed messages and transactions, and does what the broker does when their time comes."""

    def __init__(self, producers: Producers, put: Put, delays_ms: tuple[int, ...]) -> None:
        self._producers, self._put, self._delays_ms = producers, put, delays_ms
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = 0
        self.delivered = [0] * len(delays_ms)
        """By delay level less one: how many of its messages were delivered."""
        self.waiting = 0
        self._halves = 0
        self._operations = 0
        self._decided_by: dict[int, int] = {}
        """By queue offset of a half message: that of the operation message that names it."""

    @property
    def undecided(self) -> int:
        """Return how many transactions nobody has decided."""
        return self._halves - len(self._decided_by)

    def work_until(self, store_ms: int) -> None:
        """Deliver and decide what is due by now, in order."""
        while self._due and self._due[0][0] <= store_ms:
            due_ms, _, act = heapq.heappop(self._due)
            act(due_ms)

    def send_delayed(self, topic: str, born_host: bytes, store_ms: int) -> None:
        """Send a message that waits for its level's time."""
        level = 1 + int(self._producers.chance() * len(self._delays_ms))
        wanted = self._wanted(topic, born_host, store_ms)
        self._put(wanted.parked(SCHEDULE_TOPIC, level - 1, {"DELAY": str(level)}), store_ms)
        self.waiting += 1

        def deliver(due_ms: int) -> None:
            self._put(wanted.message(), due_ms)
            self.delivered[level - 1] += 1
            self.waiting -= 1

        self._at(store_ms + self._delays_ms[level - 1], deliver)

    def send_transaction(self, topic: str, born_host: bytes, store_ms: int) -> None:
        """Send a half message, and let its producer decide about it later, or never."""
        wanted = self._wanted(topic, born_host, store_ms)
        wanted.properties["PGROUP"] = _PRODUCERS
        half = self._put(wanted.parked(HALF_TOPIC, 0, {"TRAN_MSG": "true"}), store_ms)
        self._halves += 1
        fate = self._producers.chance()

        def decide(due_ms: int) -> None:
            if fate > _ROLLBACK_SHARE:
                commit = wanted.message(sys_flag=TRANSACTION_COMMIT, prepared=half.physical_offset)
                self._put(commit, due_ms)
            properties = properties_block({"TAGS": "d"})
            operation = NewMessage(
                OPERATION_TOPIC,
                b"%d," % half.queue_offset,
                properties,
                0,
                0,
                0,
                due_ms,
                STORE_HOST,
                STORE_HOST,
            )
            self._put(operation, due_ms)
            self._decided_by[half.queue_offset] = self._operations
            self._operations += 1

        if fate >= _UNDECIDED_SHARE:
            self._at(store_ms + int(self._producers.chance() * _LONGEST_DECISION_MS), decide)

    def positions(self) -> dict[str, dict[int, int]]:
        """Return how far the broker's own group has read the topics of transactions.

        It stays before the first half message that is undecided, and before what names later ones.
        """
        if not self._halves:
            return {}
        first = next((i for i in range(self._halves) if i not in self._decided_by), self._halves)
        later = [operation for half, operation in self._decided_by.items() if half > first]
        return {
            f"{HALF_TOPIC}@{GROUP}": {0: first},
            f"{OPERATION_TOPIC}@{GROUP}": {0: min(later, default=self._operations)},
        }

    def _wanted(self, topic: str, born_host: bytes, store_ms: int) -> _Wanted:
        size_bytes = 100 + int(self._producers.chance() * 2000)
        queue_id = int(self._producers.chance() * QUEUES_PER_TOPIC)
        self._number += 1
        properties = {
            "UNIQ_KEY": f"5A{self._number:030X}",
            "WAIT": "true",
            "TAGS": "TagS",
            "KEYS": f"SPC-{self._number:010d}",
        }
        body = self._producers.body(size_bytes)
        return _Wanted(topic, queue_id, body, properties, store_ms, born_host)

    def _at(self, due_ms: int, act: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (due_ms, self._number, act))


_UNFINISHED = ".unfinished"
"""The store until it is whole; it then gets its name."""
_CONF = "broker.conf"
_LEAST_SEGMENT_BYTES = 1 << 20
_DISPATCH_BYTES = 16 << 20
"""Written before queues and index get their entries."""


def write_sample(request: SampleRequest) -> SampleStore:
    """Write a store that was stopped cleanly, and its broker.conf beside it.

    A try that was cut short leaves nothing that keeps the next one from beginning again.

    :raises BadInputError: the directory has something in it, or the log's files are too small.
    :raises OSError: the disk refuses.
    """
    directory = request.directory.absolute()
    # Of nan no comparison holds.
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
            with told("Writing messages", request.messages, "messages") as advance:
                for batch in producers.batches():
                    writer.write(batch)
                    advance(batch.count)
            writer.finish(request.end_ms)
            ends = dict(store.queues.next_offsets)
            log_bytes = store.positions().wrote
        finally:
            store.stop()
    offsets, lagging = _group_offsets(ends)
    groups = len(offsets)
    own = writer.special.positions()
    for name, content in _config_files(ends, writer.special.delivered, {**offsets, **own}).items():
        durable.make_dirs((made / name).parent)
        (made / name).write_bytes(content)
    _set_times(layout, writer.times, request.end_ms)
    durable.write_file(conf, _broker_conf(sample_settings(root, request.segment_bytes)))
    made.rename(root)
    durable.fsync_path(directory)
    return SampleStore(
        store=str(root),
        configuration=str(conf),
        messages=sum(ends.values()),
        log_bytes=log_bytes,
        log_files=len(list((root / "commitlog").iterdir())),
        topics=len(producers.topics),
        groups=groups,
        lagging_groups=lagging,
        pending=writer.special.waiting + writer.special.undecided,
    )


def _clear(directory: Path) -> None:
    """Make sure that nothing is in a directory but what a try that was cut short left, and remove that.

    :raises BadInputError: something else is.
    :raises StoreBusyError: that try still writes.
    """
    if not directory.exists():
        return
    found = {path.name for path in directory.iterdir()} if directory.is_dir() else {""}
    left = directory / _UNFINISHED
    if not found <= ({_UNFINISHED, _CONF} if _UNFINISHED in found else set()):
        raise BadInputError(
            f"{directory}: expected a directory that is new or empty, found something in it. Nothing was "
            "written. Name another."
        )
    if found:
        durable.make_dirs(left / "commitlog")
        with store_lock.lock(resolve_layout(load_broker_config(None, {}, root=left))):
            shutil.rmtree(left)


class _Clock:
    """The store time, which the messages move."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def read(self) -> int:
        return self.now_ms

    def go_to(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)


@dataclass(frozen=True, slots=True)
class _Times:
    """Where in the log each batch begins, and when it was stored."""

    offsets: list[int]
    store_ms: list[int]

    def at(self, offset: int) -> int:
        """Return the store time of the message at an offset."""
        return self.store_ms[max(0, int(np.searchsorted(self.offsets, offset, "right")) - 1)]


class _Writer:
    """Puts what producers send, and what the broker makes of it, into the store."""

    def __init__(self, store: MessageStore, clock: _Clock, producers: Producers) -> None:
        self._store, self._clock, self._producers = store, clock, producers
        self.special = SpecialMessages(producers, self._put, store.settings.delays_ms())
        self.times = _Times([], [])
        self._undispatched_bytes = 0

    def write(self, batch: SentBatch) -> None:
        """Put a batch, and before it what is due by its time."""
        self.special.work_until(batch.store_ms)
        if self._producers.chance() < DELAYED_SHARE:
            self.special.send_delayed(batch.topic, batch.born_host, batch.store_ms)
        if self._producers.chance() < TRANSACTION_SHARE:
            self.special.send_transaction(batch.topic, batch.born_host, batch.store_ms)
        self._clock.go_to(batch.store_ms)
        sent = NewBatch(
            batch.topic,
            batch.messages,
            SHARED_PROPERTIES,
            batch.queue_id,
            0,
            batch.store_ms,
            batch.born_host,
            STORE_HOST,
        )
        self._note(self._store.put_batch(sent))

    def finish(self, end_ms: int) -> None:
        """Do what is due by the end, and leave a delayed message and a transaction pending."""
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
                "sample isn't whole. Free its disk, or make the files of the log larger, and run again."
            )
        self.times.offsets.append(result.physical_offset)
        self.times.store_ms.append(result.store_timestamp_ms)
        self._undispatched_bytes += result.size_bytes
        if self._undispatched_bytes >= _DISPATCH_BYTES:
            self._store.dispatch()
            self._undispatched_bytes = 0
        return result


def _set_times(layout: StoreLayout, times: _Times, end_ms: int) -> None:
    """Give each file the mtime that it would have: that of the last message in it, or pointed to by it."""
    for path in sorted(layout.root.rglob("*")):
        if path.is_file():
            _set_time(path, end_ms)
    log = sorted((layout.root / "commitlog").iterdir())
    for path, behind in pairwise(log):
        _set_time(path, times.at(int(behind.name) - 1))
    for queue in iter_queues(layout.consumequeue):
        for file in consume_queue.list_files(queue.path):
            entry = consume_queue.last_entry((file,))
            if entry is not None:
                _set_time(file.path, times.at(entry.physical_offset))
    for path in sorted(layout.index.iterdir()) if layout.index.is_dir() else ():
        _set_time(path, read_header(path).end_timestamp_ms)


def _set_time(path: Path, time_ms: int) -> None:
    os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))


def sample_settings(root: Path, segment_bytes: int) -> dict[str, str]:
    """Return what the broker of a sample store is set to: small files, so that there are many."""
    entries = 15_000
    return {
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "mappedFileSizeCommitLog": str(segment_bytes),
        "mappedFileSizeConsumeQueue": str(20 * entries),
        "maxHashSlotNum": "50000",
        "maxIndexNum": "200000",
    }


def _broker_conf(values: Mapping[str, str]) -> bytes:
    """Return settings as a broker reads them."""
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def _group_offsets(ends: Ends) -> tuple[Offsets, int]:
    """Return how far each consumer group has read, and how many groups are far behind.

    :param ends: of queues, by topic and queue id.
    """
    offsets: Offsets = {}
    lagging = 0
    topics = sorted({topic for topic, _ in ends} - set(_OWN_TOPICS))
    for number, topic in enumerate(topics):
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

    :param delivered: by delay level less one, how many messages of it were delivered.
    :param offsets: of all groups, the broker's own too.
    """
    rows = sorted((topic, queue, end - 1, False) for (topic, queue), end in ends.items())
    columns = zip(*rows, strict=True)
    queues = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, NO_QUEUES.schema, strict=True)],
        schema=NO_QUEUES.schema,
    )
    groups = sorted({name.partition("@")[2] for name in offsets})
    levels = {level + 1: count for level, count in enumerate(delivered) if (SCHEDULE_TOPIC, level) in ends}
    return {
        **config_files(queues),
        # Which of the two is read is the broker's enableLmq.
        "config/consumerOffset.json": _json({"offsetTable": offsets}),
        "config/lmqConsumerOffset.json": _json({"offsetTable": offsets}),
        "config/delayOffset.json": _json({"offsetTable": levels}),
        "config/subscriptionGroup.json": _json(
            {"subscriptionGroupTable": {group: _group(group) for group in groups}, "forbiddenTable": {}}
        ),
    }


def _group(name: str) -> dict[str, Any]:
    """Return a SubscriptionGroupConfig; what isn't said is the broker's default."""
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
