"""Dispatch: from the frames of the commitlog to queue entries and index (ReputMessageService).

A buffer's frames are read by one kernel, sorted by queue and written queue by queue, in the order of the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage_engine.arrow_memory import address_of
from storage_engine.clock import clock_ms
from storage_engine.crc import crc_engine
from storage_engine.rocketmq.engine import dispatch_kernels as kernels
from storage_engine.rocketmq.engine.batch_queue_writer import BatchQueueWriter
from storage_engine.rocketmq.engine.engine_settings import LIGHT_PREFIX, EngineSettings
from storage_engine.rocketmq.engine.index_writer import IndexWriter
from storage_engine.rocketmq.engine.new_message import parse_properties
from storage_engine.rocketmq.engine.queue_table import QueueTable
from storage_engine.rocketmq.frame import (
    SCHEDULE_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from storage_engine.rocketmq.index_file import java_hash

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]

ROWS_AT_ONCE = 1 << 14
_SEED = np.uint64(secrets.randbits(64))
_DISPATCH = "INNER_MULTI_DISPATCH"
_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"
_NO_LIGHT_QUEUES = ("%RETRY%", "rmq_sys_")


@dataclass(frozen=True, slots=True)
class Walk:
    """Frames that were read, and where and why the walk ended."""

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
        self._state = np.empty(2, np.int64)

    def read(self, data: Bytes, position: int, end: int, limit: int, *, check_crc: bool) -> Walk:
        """Read the frames from a position on, at most :data:`ROWS_AT_ONCE`.

        :param end: of what may be read.
        :param limit: no frame may reach beyond it.
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
            address_of(self._delays),
            self._levels,
            address_of(self._rows),
            ROWS_AT_ONCE,
            self._state,
        )
        return Walk(self._rows[:count], int(self._state[0]), int(self._state[1]))


class Dispatcher:
    """Writes the entries of messages into queues and index (DefaultMessageStore#doDispatch)."""

    def __init__(
        self,
        settings: EngineSettings,
        queues: QueueTable,
        index: IndexWriter | None,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        """:param index: None: messages are not indexed.
        :param clock: names new index files.
        """
        self._settings, self._queues, self._index, self._clock = settings, queues, index, clock
        self.timestamp_ms = 0
        """Store time of the newest message that has an entry."""

    def dispatch(self, data: Bytes, rows: Rows) -> None:
        """Write what queues and index need of these messages, in their order.

        :param rows: of :class:`FrameReader`, contiguous.
        :raises OSError: an entry can't be written.
        """
        if not len(rows):
            return
        for row in rows[rows[:, kernels.MARKS] & kernels.MALFORMED != 0]:
            _correct_tags_code(data, row)
        kind = rows[:, kernels.SYS_FLAG] & TRANSACTION_MASK
        chosen = np.flatnonzero((kind == TRANSACTION_NOT) | (kind == TRANSACTION_COMMIT))
        if len(chosen):
            self._write_entries(data, rows, chosen)
            self.timestamp_ms = int(rows[chosen[-1], kernels.STORE_MS])
        if self._settings.multi_dispatch:
            self._dispatch_further(data, rows[chosen])
        if self._index is not None:
            self._index.put(address_of(data), data, rows, self._clock())

    def _write_entries(self, data: Bytes, rows: Rows, chosen: Rows) -> None:
        keys = rows[chosen, kernels.QUEUE_KEY]
        order = chosen[np.argsort(keys, kind="stable")]
        if kernels.first_stranger(address_of(data), address_of(rows), order) >= 0:
            # Two queues share a hash: each message goes alone.
            for i in chosen.tolist():
                self._write_queue(data, rows[i : i + 1])
            return
        keys = rows[order, kernels.QUEUE_KEY]
        begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])).tolist()
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            self._write_queue(data, rows[order[begin:end]])

    def _write_queue(self, data: Bytes, rows: Rows) -> None:
        """Write entries of one queue."""
        topic = _text(data, rows[0], kernels.TOPIC_AT, kernels.TOPIC_BYTES)
        writer = self._queues.find(topic, int(rows[0, kernels.QUEUE_ID]))
        if isinstance(writer, BatchQueueWriter):
            writer.append(
                rows[:, kernels.PHYSICAL_OFFSET],
                rows[:, kernels.SIZE],
                rows[:, kernels.TAGS_CODE],
                rows[:, kernels.STORE_MS],
                rows[:, kernels.INNER_BASE],
                rows[:, kernels.INNER_NUM],
            )
            return
        writer.append(
            rows[:, kernels.PHYSICAL_OFFSET],
            rows[:, kernels.SIZE],
            rows[:, kernels.TAGS_CODE],
            rows[:, kernels.QUEUE_OFFSET],
            rows[:, kernels.STORE_MS],
        )

    def _dispatch_further(self, data: Bytes, rows: Rows) -> None:
        """Write entries of messages that belong to more queues (ConsumeQueue#multiDispatchLmqQueue)."""
        for row in rows[rows[:, kernels.MARKS] & kernels.MULTI_DISPATCH != 0]:
            topic = _text(data, row, kernels.TOPIC_AT, kernels.TOPIC_BYTES)
            if topic.startswith(_NO_LIGHT_QUEUES) or topic == SCHEDULE_TOPIC or self._queues.is_batch(topic):
                continue
            begin = int(row[kernels.PROPERTIES_AT])
            block = bytes(data[begin : begin + int(row[kernels.PROPERTIES_BYTES])])
            properties = parse_properties(block)
            names = properties.get(_DISPATCH, "").split(",")
            offsets = properties.get(_OFFSETS, "").split(",")
            if len(names) != len(offsets) or not all(offset.isdecimal() for offset in offsets):
                continue
            for name, offset in zip(names, offsets, strict=True):
                if "/" in name:
                    continue
                light = self._settings.light_queues and name.startswith(LIGHT_PREFIX)
                writer = self._queues.find(name, 0 if light else int(row[kernels.QUEUE_ID]))
                if not isinstance(writer, BatchQueueWriter):
                    fields = (kernels.PHYSICAL_OFFSET, kernels.SIZE, kernels.TAGS_CODE)
                    physical, size, tags_code = (row[field : field + 1] for field in fields)
                    writer.append(physical, size, tags_code, np.array([int(offset)]), None)


def _text(data: Bytes, row: Rows, at: int, length: int) -> str:
    begin = int(row[at])
    return bytes(data[begin : begin + int(row[length])]).decode(errors="replace")


def _correct_tags_code(data: Bytes, row: Rows) -> None:
    """Set the code of tags that aren't UTF-8, as Java reads such bytes."""
    if row[kernels.TAGS_BYTES] and not row[kernels.MARKS] & kernels.DELAYED:
        row[kernels.TAGS_CODE] = java_hash(_text(data, row, kernels.TAGS_AT, kernels.TAGS_BYTES))
