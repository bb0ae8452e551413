"""Messages of a sample store: who sends how much to which queue, and when.

Every message is distinct. Bodies are slices of generated JSON and compress about as such bodies do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.core.clock import DAY_MS
from storage_engine.rocketmq.engine.append.new_message import host_bytes
from storage_engine.rocketmq.sample import message_kernels as kernels

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
"""Where a message's properties may end: without tags, without keys, with one key, with two."""
_ENDS_CHANCES = (0.05, 0.15, 0.6, 0.2)


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Messages of one queue that were sent at once.

    :param messages: as a client sends them.
    :param number: of the first one among all messages that producers send.
    """

    topic: str
    queue_id: int
    messages: bytes
    count: int
    number: int
    store_ms: int
    born_host: bytes


class Producers:
    """Makes what the producers of a store send, in the order in which it arrives."""

    def __init__(self, seed: int, messages: int, topics: int, days: float, end_ms: int) -> None:
        self._random = np.random.default_rng(seed)
        self._messages, self._end_ms = messages, end_ms
        self._span_ms = days * DAY_MS
        self.topics = tuple(
            _NAMES[i] if i < len(_NAMES) else f"{_NAMES[i % len(_NAMES)]}-{i // len(_NAMES) + 1:04d}"
            for i in range(topics)
        )
        self._pool = body_pool(self._random)
        # Few topics have most of the messages, and each has a typical size of its own.
        weights = 1 / np.arange(1, topics + 1)
        self._weights = weights / weights.sum()
        sizes = self._random.choice([0.3, 0.7, 1.0, 1.8], topics)
        self._mean_bytes = _MEAN_BODY_BYTES * sizes / (sizes @ self._weights)
        self._hosts = [
            host_bytes(f"10.0.{i}.{17 * i % 250 + 1}", int(self._random.integers(30_000, 60_000)))
            for i in range(32)
        ]

    def batches(self) -> Iterator[SentBatch]:
        """Yield batches until all messages are sent."""
        number = 0
        while number < self._messages:
            count = min(_MESSAGES_AT_ONCE, self._messages - number)
            yield from self._some(number, count)
            number += count

    def body(self, size_bytes: int) -> bytes:
        """Return a body for a message that is sent alone."""
        begin = int(self._random.integers(0, len(self._pool) - size_bytes))
        return self._pool[begin : begin + size_bytes].tobytes()

    def chance(self) -> float:
        """Return a number between 0 and 1."""
        return float(self._random.random())

    def store_ms(self, number: int) -> int:
        """Return when a message arrives: more of them by day than by night."""
        share = (number + 1) / self._messages
        days = self._span_ms / DAY_MS
        waves = 0.5 * math.sin(2 * math.pi * days * share) / (2 * math.pi * days)
        return self._end_ms - round(self._span_ms * max(0.0, 1 - share - waves * float(share < 1)))

    def _some(self, number: int, count: int) -> Iterator[SentBatch]:
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
        """Draw lengths: most near the topic's own, some far longer, some empty."""
        random = self._random
        spread = random.lognormal(-0.18, 0.6, len(topics))
        lengths = np.minimum(self._mean_bytes[topics] * spread, _LONGEST_BODY_BYTES).astype(np.int64)
        lengths[random.random(len(topics)) < 0.001] = _LONGEST_BODY_BYTES
        lengths[random.random(len(topics)) < 0.001] = 0
        return np.asarray(lengths, np.int64)

    def _properties(self, number: int, count: int) -> tuple[Bytes, Longs]:
        """Make rows of properties, and how long each is."""
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
