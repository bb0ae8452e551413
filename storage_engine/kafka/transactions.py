"""The open transactions of a log, and findings about hanging ones, which stay open longer than allowed.

Consumers of committed records, the cleaner and remote storage stop at the first open transaction.

A producer snapshot tells which transactions were open at its offset. The batches after it tell how they ended
(ProducerStateManager#loadFromSnapshot, #update, #completeTxn).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.wording import bytes_text, count_text, reason_text, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.file_names import METADATA_TOPIC, corrupt, read_stored
from storage_engine.kafka.format.layout import Node, PartitionLog
from storage_engine.kafka.format.producer_snapshot import Producer, parse_producer_snapshot
from storage_engine.model.broker.codec import Damage
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short, reason_of
from storage_engine.model.store import FileFacts

_LONGEST_MS = 900_000
"""Default of ``transaction.max.timeout.ms``: no producer may ask for a longer time."""
_GRACE_MS = 60_000
"""Grace after the time-out: the coordinator looks for expired transactions every 10 seconds, and then has to
write their markers."""
_MOST_BYTES = 2 << 30
_REMEDY = "Compare the log with a replica: it isn't known which transactions are open after these bytes."
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OpenInLogs:
    """Open transactions in a node's logs.

    :param by_log: the open transactions of each log that has any.
    :param unread: logs that were not read, because too many bytes follow their snapshots.
    :param faults: reasons why open transactions aren't known, by log.
    """

    by_log: Mapping[str, tuple[OpenTransaction, ...]]
    unread: tuple[str, ...]
    faults: Mapping[str, str]

    @property
    def first_offsets(self) -> dict[str, int]:
        """Return the first offset of each log's oldest open transaction."""
        return {log: transactions[0].first_offset for log, transactions in self.by_log.items()}


def find_open(node: Node, ends: Mapping[str, int], max_bytes: int = _MOST_BYTES) -> OpenInLogs:
    """Look for open transactions in all logs of a node.

    :param max_bytes: largest number of bytes to read after snapshots, in all logs together. Logs with fewer
        bytes come first.
    """
    by_log: dict[str, tuple[OpenTransaction, ...]] = {}
    faults: dict[str, str] = {}
    unread: list[str] = []
    left_bytes = max_bytes
    logs = {log.name.log: log for _, log in node.logs if log.name.topic != METADATA_TOPIC}
    sizes = {name: _bytes_behind(log, ends[name]) for name, log in logs.items() if name in ends}
    for name, size_bytes in sorted(sizes.items(), key=lambda item: item[1]):
        if size_bytes > left_bytes:
            unread.append(name)
            continue
        left_bytes -= size_bytes
        try:
            transactions = open_transactions(logs[name], ends[name])
        except StorageEngineError as error:
            faults[name] = reason_of(error)
        except OSError as error:
            faults[name] = reason_text(error)
        else:
            if transactions:
                by_log[name] = transactions
    return OpenInLogs(by_log, tuple(unread), faults)


def oldest_open(log: PartitionLog, end: int) -> OpenTransaction | None:
    """Return the oldest open transaction; None if no transaction was open in the newest snapshot.

    In that case the log isn't read for younger transactions: most logs have none, and reading costs time.

    :raises CorruptFileError: a damaged file hides which transactions are open.
    :raises OSError: a file can't be read.
    """
    snapshots = [snapshot for snapshot in log.snapshots if _offset_of(snapshot.path) <= end]
    if not snapshots:
        return None
    path = snapshots[-1].path
    producers = parse_producer_snapshot(read_stored(Path(path)), path)
    if all(producer.transaction_first_offset is None for producer in producers):
        return None
    return next(iter(open_transactions(log, end)), None)


def _bytes_behind(log: PartitionLog, end: int) -> int:
    """Return the size of the segments that end after the newest snapshot."""
    offsets = (_offset_of(snapshot.path) for snapshot in log.snapshots)
    begin = max((offset for offset in offsets if offset <= end), default=0)
    return sum(segment.log.size_bytes for segment, behind in log.with_ends(end) if behind > begin)


def transaction_findings(open_in_logs: OpenInLogs, node: Mapping[str, str], at_ms: int) -> Iterator[Finding]:
    """Yield findings about hanging transactions, and about logs whose open transactions aren't known.

    :param at_ms: now, or for a stopped node the time of its last activity.
    """
    text = node.get("transaction.max.timeout.ms", "").strip()
    longest_ms = (int(text) if text.isdecimal() else _LONGEST_MS) + _GRACE_MS
    for name, transactions in sorted(open_in_logs.by_log.items()):
        for transaction in transactions:
            if at_ms - transaction.written_ms > longest_ms:
                topic, _, partition = name.rpartition("-")
                first = transaction.first_offset
                yield Finding(
                    Severity.WARNING,
                    "hanging-transaction",
                    f"log {name}: the transaction of producer {transaction.producer_id} is open from offset "
                    f"{first} on, last written at {time_text(transaction.written_ms)}: readers of committed "
                    "records stop there, and so do the cleaner, remote storage and the archive",
                    f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {topic} --partition "
                    f"{partition} --start-offset {first}",
                )
    for name, why in sorted(open_in_logs.faults.items()):
        yield Finding(
            Severity.WARNING, "transactions-unknown", f"log {name}: its open transactions aren't known: {why}"
        )
    if open_in_logs.unread:
        yield Finding(
            Severity.NOTE,
            "transactions-unread",
            f"open transactions were not looked for in {count_text(len(open_in_logs.unread), 'log')}, "
            f"{named_in_short(open_in_logs.unread)}: more than {bytes_text(_MOST_BYTES)} follow their "
            "snapshots",
            "kafka-transactions.sh find-hanging asks the running brokers",
        )


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker.

    :param written_ms: time of its newest record, in milliseconds since the epoch; -1 if it has no time.
    """

    producer_id: int
    first_offset: int
    written_ms: int


def open_transactions(log: PartitionLog, end: int) -> tuple[OpenTransaction, ...]:
    """Return the transactions that are open at an offset, oldest first.

    Without a snapshot the whole log is read. A transaction without a record in the log isn't returned.

    :param end: the offset. Records and markers at or above it don't count.
    :raises CorruptFileError: the newest snapshot, or bytes after it that may contain a marker, are damaged.
    :raises OSError: a file can't be read.
    """
    begin = log.segments[0].base_offset if log.segments else end
    snapshots = _snapshots(log, end)
    producers: tuple[Producer, ...] = ()
    if snapshots:
        newest = snapshots[-1].path
        begin = _offset_of(newest)
        producers = parse_producer_snapshot(read_stored(newest), newest)
    between = [
        segment
        for segment, behind in log.with_ends(end)
        if begin < behind and segment.base_offset < end and segment.log.size_bytes
    ]
    if not between:
        transactions = [
            OpenTransaction(producer.producer_id, offset, producer.timestamp_ms)
            for producer in producers
            if (offset := producer.transaction_first_offset) is not None
        ]
        return tuple(sorted(transactions, key=lambda transaction: transaction.first_offset))
    # NumPy and the kernels aren't needed if the snapshot is at the log's end.
    from storage_engine.kafka.codec.transaction_states import UncommittedTransactions

    states = UncommittedTransactions.of_files((), producers, begin)
    for place, segment in enumerate(between, 1):
        damages: list[Damage] = []
        with mapped(segment.log.path) as data:
            behind = between[place].base_offset if place < len(between) else end
            states = states.continued(data, min(behind, end), damages)
            for damage in damages:
                # The broker may be writing the active segment, so damage at its end is no error.
                is_end = damage.offset + damage.size_bytes == len(data)
                if not (is_end and segment is log.segments[-1]):
                    raise corrupt(segment.log.path, damage.offset, damage.expected, damage.found, _REMEDY)
    return tuple(OpenTransaction(*entry) for entry in states.open)


def last_stable_offset(transactions: tuple[OpenTransaction, ...], high_watermark: int) -> int:
    """Return the offset below which no transaction is open (UnifiedLog#fetchLastStableOffsetMetadata)."""
    return min([high_watermark, *(transaction.first_offset for transaction in transactions)])


def forgotten_below(log: PartitionLog, end: int) -> int:
    """Return the offset below which open transactions may have begun unseen; 0 if the files show all of them.

    If older segments were deleted, a broker that starts also removes the snapshot of the first segment left
    (ProducerStateManager#truncateAndReload). Then no file tells which transactions were open at that segment.

    :param end: the offset at which the transactions are open.
    """
    return 0 if _snapshots(log, end) or not log.segments else log.segments[0].base_offset


def _snapshots(log: PartitionLog, end: int) -> list[FileFacts]:
    """Return the snapshots from the log's first offset up to ``end``, oldest first."""
    begin = log.segments[0].base_offset if log.segments else end
    return [snapshot for snapshot in log.snapshots if begin <= _offset_of(snapshot.path) <= end]


def _offset_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


@contextmanager
def mapped(path: str) -> Iterator[memoryview]:
    """Map a file's present bytes. Bytes that are appended meanwhile aren't included."""
    with durable.opened(path, _OPEN) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        if not size_bytes:
            yield memoryview(b"")
            return
        with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            yield data
