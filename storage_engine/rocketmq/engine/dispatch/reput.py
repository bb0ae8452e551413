"""Dispatch of the commitlog's messages into consume queues and index (ReputMessageService).

A kernel reads the frames of a buffer. They are grouped by queue. Each queue gets its entries in log order.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from storage_engine.arrow.memory import address_of
from storage_engine.core.clock import clock_ms
from storage_engine.crc import crc_engine
from storage_engine.rocketmq.codec.frame_layout import SCHEDULE_TOPIC
from storage_engine.rocketmq.engine.append.append import (
    parse_properties,
)
from storage_engine.rocketmq.engine.dispatch import dispatch_kernels as kernels
from storage_engine.rocketmq.engine.dispatch.dispatch_kernels import group_by_queue
from storage_engine.rocketmq.engine.dispatch.index_writer import IndexWriter, text_of
from storage_engine.rocketmq.engine.dispatch.queue_writer import BatchQueueWriter, QueueTable, QueueWriter
from storage_engine.rocketmq.engine.engine_settings import (
    DISPATCH,
    DISPATCH_OFFSETS,
    LIGHT_PREFIX,
    NO_LIGHT_QUEUES,
    EngineSettings,
)
from storage_engine.rocketmq.format.index_file import java_hash

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]

ROWS_AT_ONCE = 1 << 14
_SEED = np.uint64(secrets.randbits(64))
_ENTRY_FIELDS = (kernels.PHYSICAL_OFFSET, kernels.SIZE, kernels.TAGS_CODE)


@dataclass(frozen=True, slots=True)
class Walk:
    """Rows of the frames that were read, and the position and reason at which reading ended."""

    rows: Rows
    position: int
    reason: int


class FrameReader:
    """Reads frames as the broker's recovery and dispatch do (CommitLog#checkMessageAndReturnSize)."""

    def __init__(self, settings: EngineSettings) -> None:
        delays = settings.delays_ms()
        self._check = kernels.PROPERTY_CRC if settings.force_verify_property_crc else kernels.BODY_CRC
        self._delays = np.array(delays or (0,), np.int64)
        self._levels = len(delays)
        self._rows = np.empty((ROWS_AT_ONCE, kernels.FIELDS), np.int64)
        self._delays_address, self._rows_address = address_of(self._delays), address_of(self._rows)
        self._state = np.empty(2, np.int64)

    def read(self, data: Bytes, position: int, end: int, limit: int, *, check_crc: bool) -> Walk:
        """Read at most :data:`ROWS_AT_ONCE` frames from a position on.

        :param end: end of the bytes that may be read.
        :param limit: end that no frame may exceed.
        :return: rows that stay valid until the next call.
        """
        crc = crc_engine()
        count = kernels.read_frames(
            address_of(data),
            position,
            end,
            limit,
            crc.function,
            crc.table,
            self._check if check_crc else kernels.NO_CRC,
            _SEED,
            self._delays_address,
            self._levels,
            self._rows_address,
            ROWS_AT_ONCE,
            self._state,
        )
        return Walk(self._rows[:count], int(self._state[0]), int(self._state[1]))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows of a dispatch, grouped by queue.

    :param order: numbers of the rows that have an entry.
    :param begins: positions in ``order`` at which each queue begins, and the end of the last queue.
    :param marks: marks of all rows combined.
    :param last: number of the last row that has an entry; -1 if no row has one.
    """

    order: Rows
    order_address: int
    begins: list[int]
    marks: int
    last: int


class _Sorter:
    """Sorts rows by queue, always in the same working memory."""

    def __init__(self) -> None:
        self._table, self._queues = np.empty(2 * ROWS_AT_ONCE, np.int64), np.empty(ROWS_AT_ONCE, np.int64)
        self._order, self._begins = np.empty(ROWS_AT_ONCE, np.int64), np.empty(ROWS_AT_ONCE + 1, np.int64)
        self._addresses = list(map(address_of, (self._table, self._queues, self._order, self._begins)))

    def sort(self, base: int, rows: int, count: int) -> _Groups:
        """Sort ``count`` rows. The result stays valid until the next call.

        :param base: address of the buffer.
        :param rows: address of the rows, at most :data:`ROWS_AT_ONCE`.
        """
        table, queues, order, begins = self._addresses
        slots = 1 << count.bit_length()
        number, marks, last = group_by_queue(base, rows, count, table, slots, queues, order, begins)
        return _Groups(self._order, order, self._begins[: number + 1].tolist(), marks, last)


class Dispatcher:
    """Writes the entries of messages into queues and index (DefaultMessageStore#doDispatch)."""

    def __init__(
        self,
        settings: EngineSettings,
        queues: QueueTable,
        index: IndexWriter | None,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        """:param index: None if messages are not indexed.
        :param clock: returns the time that becomes the name of a new index file, in ms since the epoch.
        """
        self._settings, self._queues, self._index, self._clock = settings, queues, index, clock
        self._sorter = _Sorter()
        self.timestamp_ms = 0
        """Store time of the newest message that has an entry."""

    def dispatch(self, data: Bytes, rows: Rows) -> None:
        """Write the entries of messages into queues and index, in the order of the messages.

        :param rows: contiguous rows that a :class:`FrameReader` has read.
        """
        if not len(rows):
            return
        address = address_of(rows)
        groups = self._sorter.sort(address_of(data), address, len(rows))
        if groups.marks & kernels.MALFORMED:
            _correct_tags_codes(data, rows)
        for begin, end in pairwise(groups.begins):
            first = rows[groups.order[begin]]
            topic = text_of(data, first, kernels.TOPIC_AT)
            writer = self._queues.find(topic, int(first[kernels.QUEUE_ID]))
            chosen = groups.order_address + 8 * begin
            if not isinstance(writer, QueueWriter) or not writer.append_next(address, chosen, end - begin):
                _append(writer, rows[groups.order[begin:end]])
        if groups.last >= 0:
            self.timestamp_ms = int(rows[groups.last, kernels.STORE_MS])
        if self._settings.multi_dispatch and groups.marks & kernels.MULTI_DISPATCH:
            self._dispatch_further(data, rows[np.sort(groups.order[: groups.begins[-1]])])
        if self._index is not None:
            self._index.put(address_of(data), data, rows, self._clock())

    def _dispatch_further(self, data: Bytes, rows: Rows) -> None:
        """Write entries of messages that belong to further queues (ConsumeQueue#multiDispatchLmqQueue)."""
        for row in rows[rows[:, kernels.MARKS] & kernels.MULTI_DISPATCH != 0]:
            topic = text_of(data, row, kernels.TOPIC_AT)
            if topic.startswith(NO_LIGHT_QUEUES) or topic == SCHEDULE_TOPIC or self._queues.is_batch(topic):
                continue
            begin = int(row[kernels.PROPERTIES_AT])
            properties = parse_properties(bytes(data[begin : begin + int(row[kernels.PROPERTIES_BYTES])]))
            names = properties.get(DISPATCH, "").split(",")
            offsets = properties.get(DISPATCH_OFFSETS, "").split(",")
            if len(names) != len(offsets) or not all(offset.isdecimal() for offset in offsets):
                continue
            for name, offset in zip(names, offsets, strict=True):
                if "/" in name:
                    continue
                light = self._settings.light_queues and name.startswith(LIGHT_PREFIX)
                writer = self._queues.find(name, 0 if light else int(row[kernels.QUEUE_ID]))
                if not isinstance(writer, BatchQueueWriter):
                    physical, size, tags_code = (row[field : field + 1] for field in _ENTRY_FIELDS)
                    writer.append(physical, size, tags_code, np.array([int(offset)]), None)


def _append(writer: QueueWriter | BatchQueueWriter, rows: Rows) -> None:
    """Write entries of one queue."""
    physical, sizes, tags_codes = (rows[:, field] for field in _ENTRY_FIELDS)
    store_ms = rows[:, kernels.STORE_MS]
    if isinstance(writer, BatchQueueWriter):
        bases, counts = rows[:, kernels.INNER_BASE], rows[:, kernels.INNER_NUM]
        writer.append(physical, sizes, tags_codes, store_ms, bases, counts)
    else:
        writer.append(physical, sizes, tags_codes, rows[:, kernels.QUEUE_OFFSET], store_ms)


def _correct_tags_codes(data: Bytes, rows: Rows) -> None:
    """Set the codes of tags that aren't UTF-8, decoded as Java decodes such bytes."""
    for number in np.flatnonzero(rows[:, kernels.MARKS] & kernels.MALFORMED).tolist():
        row = rows[number]
        if row[kernels.TAGS_BYTES] and not row[kernels.MARKS] & kernels.DELAYED:
            row[kernels.TAGS_CODE] = java_hash(text_of(data, row, kernels.TAGS_AT))
