"""Delayed messages and transactions of a sample store, as the broker stores them on their way.

A delayed message waits in its level's queue until it is due (ScheduleMessageService). A half message waits
until an operation message names it; a commit writes it once more (EndTransactionProcessor).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from storage_engine.rocketmq.codec.frame import SCHEDULE_TOPIC, TRANSACTION_COMMIT
from storage_engine.rocketmq.engine.append.new_message import NewMessage, PutResult, properties_block
from storage_engine.rocketmq.pending.half_messages import GROUP, HALF_TOPIC, OPERATION_TOPIC
from storage_engine.rocketmq.sample.messages import QUEUES_PER_TOPIC, STORE_HOST, Producers

DELAYED_SHARE: Final = 0.15
TRANSACTION_SHARE: Final = 0.15
"""How often one comes before a batch, which has 32 messages on average."""

_ROLLBACK_SHARE = 0.2
_UNDECIDED_SHARE = 0.002
_LONGEST_DECISION_MS = 30_000
_PRODUCERS = "sample_producers"
Put = Callable[[NewMessage, int], PutResult]
"""Stores a message at a store time."""


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
