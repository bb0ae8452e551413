"""The state of each record's transaction in a log: committed, aborted or open.

A record belongs to the transaction that its producer has open at the record's offset. The next marker of the
same producer ends the transaction. So it is enough to know aborted and open transactions. The sources are:

- small files: the transaction indexes of all segments, and the producer snapshot at the offset where these
  segments end (:meth:`UncommittedTransactions.of_files`);
- the log itself, from that offset on or from the log's start (:meth:`UncommittedTransactions.continued`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from storage_engine.arrow.memory import Arena
from storage_engine.crc import crc32c_of
from storage_engine.kafka.codec.batch_kernels import FAULT_COUNT
from storage_engine.kafka.codec.compression import Decompressor
from storage_engine.kafka.codec.decode import decode_chunk
from storage_engine.kafka.codec.record_batch import (
    BatchChunk,
    BatchKind,
    CrcCheck,
    Longs,
    SegmentBytes,
    as_array,
    field,
    iterate_batches,
    merge_damages,
    scan_damages,
)
from storage_engine.kafka.codec.record_schema import text_array
from storage_engine.kafka.format import batch_headers as header
from storage_engine.kafka.format.file_names import corrupt
from storage_engine.kafka.format.producer_snapshot import Producer
from storage_engine.kafka.format.transaction_index import ENTRY_BYTES, AbortedTransaction
from storage_engine.model.broker.codec import Damage

# The stubs of pyarrow.compute accept no text beside a column.
pc: Any = pyarrow.compute

_OPEN_END: Final = (1 << 63) - 1
_NO_TIME: Final = -1
_INDEX_REMEDY = (
    "Compare the segment and its index with a replica. The log's markers decide, as in the broker."
)
_DATA, _COMMIT, _ABORT = 0, 1, 2


class TransactionState(IntEnum):
    """Outcome of a record's transaction. A record outside of any transaction counts as committed."""

    COMMITTED = 0
    ABORTED = 1
    OPEN = 2


STATE_WORDS = text_array(*(state.name.lower() for state in TransactionState))


@dataclass(frozen=True, slots=True, eq=False)
class UncommittedTransactions:
    """A log's transactions that did not commit, by producer and first offset. Picklable.

    :param last_offsets: offset of each ABORT marker; for an open transaction the largest 64-bit number.
    :param written_ms: time of an open transaction's newest record, in ms since the epoch; -1 if not known.
    :param end_offset: the state of every record below it is known.
    """

    producer_ids: Longs
    first_offsets: Longs
    last_offsets: Longs
    written_ms: Longs
    end_offset: int

    @classmethod
    def none(cls, end_offset: int) -> UncommittedTransactions:
        """Return the states of a log without transactions below ``end_offset``."""
        return cls._of([], end_offset)

    @classmethod
    def of_files(
        cls, aborted: Iterable[AbortedTransaction], producers: Iterable[Producer], end_offset: int
    ) -> UncommittedTransactions:
        """Return the states of a log's transactions, from the log's small files.

        :param aborted: entries of the transaction indexes of *all* segments from the first record of
            interest up to ``end_offset``. A segment without an index has no aborted transaction.
        :param producers: producers in the snapshot whose name is ``end_offset``.
        """
        ranges = [(entry.producer_id, entry.first_offset, entry.last_offset, _NO_TIME) for entry in aborted]
        ranges += [
            (producer.producer_id, producer.transaction_first_offset, _OPEN_END, producer.timestamp_ms)
            for producer in producers
            if producer.transaction_first_offset is not None
        ]
        return cls._of(ranges, end_offset)

    @classmethod
    def of_open(cls, transactions: Iterable[tuple[int, int]], end_offset: int) -> UncommittedTransactions:
        """Return the states of a log in which these transactions are open, and none is aborted."""
        ranges = [(producer, first, _OPEN_END, _NO_TIME) for producer, first in transactions]
        return cls._of(ranges, end_offset)

    @classmethod
    def _of(cls, ranges: list[tuple[int, int, int, int]], end_offset: int) -> UncommittedTransactions:
        table = np.array(ranges, np.int64).reshape(-1, 4)
        table = table[np.lexsort((table[:, 1], table[:, 0]))]
        producers, firsts, lasts, times = (column.copy() for column in table.T)
        return cls(producers, firsts, lasts, times, end_offset)

    @property
    def first_open_offset(self) -> int | None:
        """Return the first offset of the oldest open transaction; None if no transaction is open.

        This offset bounds the last stable offset.
        """
        firsts = self.first_offsets[self.last_offsets == _OPEN_END]
        return int(firsts.min()) if len(firsts) else None

    @property
    def open(self) -> tuple[tuple[int, int, int], ...]:
        """Return the producer, first offset and newest time of each open transaction, oldest first."""
        places = np.flatnonzero(self.last_offsets == _OPEN_END)
        places = places[np.argsort(self.first_offsets[places], kind="stable")]
        columns = (self.producer_ids, self.first_offsets, self.written_ms)
        return tuple(zip(*(column[places].tolist() for column in columns), strict=True))

    @property
    def aborted(self) -> tuple[tuple[int, int, int], ...]:
        """Return the producer, first and last offset of each aborted transaction, in order of markers."""
        ended = np.flatnonzero(self.last_offsets != _OPEN_END)
        ended = ended[np.argsort(self.last_offsets[ended])]
        columns = (self.producer_ids, self.first_offsets, self.last_offsets)
        return tuple(zip(*(column[ended].tolist() for column in columns), strict=True))

    def continued(
        self, data: SegmentBytes, end_offset: int, damages: list[Damage] | None = None
    ) -> UncommittedTransactions:
        """Return the states after the batches of [self.end_offset, end_offset) were also read.

        :param data: a segment, or several consecutive segments, that contain these batches. Other batches are
            ignored. Only headers and markers are read, and no CRC is checked: the decoder checks them.
        :param damages: receives ranges that are no batch. They may hide a marker.
        """
        events = _events(as_array(data), self.end_offset, end_offset, [] if damages is None else damages)
        is_open = self.last_offsets == _OPEN_END
        carried = (
            self.producer_ids[is_open],
            self.first_offsets[is_open],
            np.full(np.count_nonzero(is_open), _DATA, np.int64),
            self.written_ms[is_open],
        )
        together = [np.concatenate(pair) for pair in zip(carried, events, strict=True)]
        order = np.lexsort((together[1], together[0]))
        producers, firsts, kinds, times = (column[order] for column in together)
        # A transaction is a run of events of one producer up to a marker.
        ends = np.append((kinds[:-1] != _DATA) | (producers[1:] != producers[:-1]), True)[: len(kinds)]
        last = np.flatnonzero(ends)
        first = np.append(0, last + 1)[: len(last)]
        uncommitted = (kinds[first] == _DATA) & (kinds[last] != _COMMIT)
        first, last = first[uncommitted], last[uncommitted]
        last_offsets = np.where(kinds[last] == _ABORT, firsts[last], _OPEN_END)
        columns = (self.producer_ids, self.first_offsets, self.last_offsets, self.written_ms)
        ended = [column[~is_open] for column in columns]
        new = (producers[first], firsts[first], last_offsets, times[last])
        table = np.column_stack([np.concatenate(pair) for pair in zip(ended, new, strict=True)])
        return self._of(table.tolist(), max(end_offset, self.end_offset))

    def states(self, producer_ids: Longs, offsets: Longs) -> npt.NDArray[np.uint8]:
        """Return a TransactionState for each record or batch of a transaction.

        :param offsets: in any order; for a batch the offset of any of its records.
        :raises ValueError: an offset isn't below ``end_offset``.
        """
        if len(offsets) and offsets.max() >= self.end_offset:
            raise ValueError(f"expected offsets below {self.end_offset}, found {offsets.max()}")
        result = np.full(len(offsets), TransactionState.COMMITTED, np.uint8)
        count = len(self.producer_ids)
        if not count or not len(offsets):
            return result
        # Sorted together, each offset comes after the transactions that begin at or before it.
        behind = np.concatenate((np.zeros(count, np.int8), np.ones(len(offsets), np.int8)))
        order = np.lexsort(
            (
                behind,
                np.concatenate((self.first_offsets, offsets)),
                np.concatenate((self.producer_ids, producer_ids)),
            )
        )
        is_query = order >= count
        queries = order[is_query] - count
        before = (np.cumsum(~is_query) - 1)[is_query]
        queries, before = queries[before >= 0], before[before >= 0]
        inside = (self.producer_ids[before] == producer_ids[queries]) & (
            offsets[queries] <= self.last_offsets[before]
        )
        queries, before = queries[inside], before[inside]
        is_open = self.last_offsets[before] == _OPEN_END
        result[queries] = np.where(is_open, TransactionState.OPEN, TransactionState.ABORTED)
        return result

    def state_column(self, rows: pa.Table) -> pa.Array[Any]:
        """Return the states of decoded rows as words, ``committed``, ``aborted`` or ``open``.

        A reader with ``isolation.level=read_committed`` gets exactly the ``committed`` rows. Only messages of
        format 2 have a state. It is null for markers, headers of batches and older formats.

        :param rows: as the codec decodes them, with whole batches.
        :raises ValueError: an offset isn't below ``end_offset``, or the rows begin inside a batch.
        """
        # Only messages and markers have record attributes. Comparing the words of kinds takes longer.
        is_record = np.asarray(rows.column("record_attributes").is_valid())
        if len(is_record) and is_record[0]:
            raise ValueError("expected rows that begin with a batch, found a record")
        attributes = np.asarray(pc.fill_null(rows.column("attributes"), 0))
        is_message = is_record & (attributes & header.CONTROL == 0)
        transactional = attributes & header.TRANSACTIONAL != 0
        if not transactional.any():
            return _committed_states(is_message)
        heads = np.flatnonzero(~is_record)
        transactional = transactional[heads]
        batches: Any = pa.array(heads[transactional])
        states = np.full(len(heads), TransactionState.COMMITTED, np.uint8)
        states[transactional] = self.states(
            np.asarray(rows.column("producer_id").take(batches)),
            np.asarray(rows.column("offset").take(batches)),
        )
        if not states.any():
            return _committed_states(is_message)
        spread = states[np.cumsum(~is_record) - 1]
        codes = pa.array(spread.view(np.int8), pa.int8(), mask=~is_message)
        return pa.DictionaryArray.from_arrays(codes, STATE_WORDS).cast(pa.string())


def _committed_states(is_message: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Return the states of rows whose messages are all committed."""
    word = TransactionState.COMMITTED.name.lower().encode()
    ends = np.zeros(len(is_message) + 1, np.int32)
    np.cumsum(is_message, out=ends[1:])
    texts = pa.py_buffer(word * int(ends[-1]))
    ends *= len(word)
    valid = pa.py_buffer(np.packbits(is_message, bitorder="little").data)
    return pa.Array.from_buffers(pa.string(), len(is_message), [valid, pa.py_buffer(ends.data), texts])


def check_transaction_index(
    index: tuple[AbortedTransaction, ...], replayed: UncommittedTransactions, begin_offset: int, path: str
) -> None:
    """Compare a segment's transaction index with the segment's own markers.

    :param replayed: the states at the segment's end, read from its batches.
    :raises CorruptFileError: index and markers differ.
    """
    expected = [entry for entry in replayed.aborted if entry[2] >= begin_offset]
    entries = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in index]
    for place in range(max(len(expected), len(entries))):
        ours, theirs = expected[place : place + 1], entries[place : place + 1]
        if ours != theirs:
            raise corrupt(
                path, place * ENTRY_BYTES, _entries_text(ours), _entries_text(theirs), _INDEX_REMEDY
            )


def _entries_text(entries: Sequence[tuple[int, int, int]]) -> str:
    return (
        " and ".join(f"producer {entry[0]}, offsets {entry[1]} to {entry[2]}" for entry in entries)
        or "no entry"
    )


def _events(
    data: npt.NDArray[np.uint8], begin_offset: int, end_offset: int, damages: list[Damage]
) -> tuple[Longs, Longs, Longs, Longs]:
    """Return the producers, offsets, kinds (data, commit, abort) and times of a log's transactional batches.

    :param damages: receives ranges that are no batch.
    """
    empty = np.empty(0, np.int64)
    parts = [(empty, empty, empty, empty)]
    for chunk in iterate_batches(data, max(1, len(data)), CrcCheck.NONE):
        is_batch = (chunk.kinds == BatchKind.BATCH) | _has_whole_header(data, chunk)
        damages += merge_damages(scan_damages(data, 0, chunk.chosen(~is_batch)))
        batches = chunk.chosen(is_batch)
        bases = field(data, batches.positions, header.BASE_OFFSET_AT, 8)
        attributes = field(data, batches.positions, header.ATTRIBUTES_AT, 2)
        is_inside = (bases >= begin_offset) & (bases < end_offset) & (attributes & header.TRANSACTIONAL != 0)
        batches, bases = batches.chosen(is_inside), bases[is_inside]
        is_control = attributes[is_inside] & header.CONTROL != 0
        kinds = np.full(len(bases), _DATA, np.int64)
        kinds[is_control] = _marker_kinds(data, batches.chosen(is_control))
        is_event = kinds >= 0
        producers = field(data, batches.positions, header.PRODUCER_ID_AT, 8)
        times = field(data, batches.positions, header.MAX_TIMESTAMP_AT, 8)
        parts.append((producers[is_event], bases[is_event], kinds[is_event], times[is_event]))
    producers, bases, kinds, times = (np.concatenate(values) for values in zip(*parts, strict=True))
    return producers, bases, kinds, times


def _has_whole_header(data: npt.NDArray[np.uint8], chunk: BatchChunk) -> npt.NDArray[np.bool_]:
    """Return which ranges are batches with the right CRC but an impossible count of records.

    A broker reads only the header of such a batch (ProducerAppendInfo#append). Markers are left out: a broker
    reads their records, too.
    """
    is_whole: npt.NDArray[np.bool_] = chunk.faults == FAULT_COUNT
    for i in np.flatnonzero(is_whole).tolist():
        batch = data[int(chunk.positions[i]) :][: int(chunk.sizes[i])].tobytes()
        is_control = int.from_bytes(batch[header.ATTRIBUTES_AT :][:2], "big") & header.CONTROL
        crc = int.from_bytes(batch[header.CRC_AT :][:4], "big")
        is_whole[i] = not is_control and crc == crc32c_of(batch[header.ATTRIBUTES_AT :])
    return is_whole


def _marker_kinds(data: npt.NDArray[np.uint8], markers: BatchChunk) -> Longs:
    """Return the kinds of control batches; -1 for a control batch that ends no transaction."""
    kinds = np.full(len(markers.positions), -1, np.int64)
    for rows, _ in decode_chunk(data, 0, markers, Decompressor(), Arena()):
        words = rows.column("control")
        positions = rows.column("physical_offset").to_numpy()
        places = np.searchsorted(markers.positions, positions, side="right") - 1
        for word, kind in (("commit", _COMMIT), ("abort", _ABORT)):
            kinds[places[np.asarray(pc.fill_null(pc.equal(words, word), False))]] = kind
    return kinds
