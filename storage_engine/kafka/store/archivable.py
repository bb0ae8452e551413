"""The segments of a node that may be archived, with facts about them that their files don't contain.

Records above the high watermark or the last stable offset are not archived. So all records in the lake are
replicated, and each of their transactions has ended. If a fact about a log isn't known, the log is not
archived.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StorageEngineError, StoreLayoutError
from storage_engine.kafka.codec.segment_context import SegmentTransactions
from storage_engine.kafka.format.checkpoints import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    START_EVIDENCE,
    LeaderEpoch,
    read_leader_epochs,
)
from storage_engine.kafka.format.file_names import read_stored
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import log_id_text, read_topic_id
from storage_engine.kafka.format.transaction_index import parse_transaction_index
from storage_engine.kafka.metadata.log_faults import (
    epochs_fault,
    find_emptied,
    holes,
    link_fault,
    start_fault,
    topic_fault,
)
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.stopped.store_lock import lock_holder
from storage_engine.kafka.transactions import OpenTransaction, forgotten_below, mapped, open_transactions
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import WENT, Archivable, LogSnapshot, Segment, SegmentContext, SegmentId

_LAST_OFFSET = (1 << 63) - 1
_INDEX_SUFFIX = ".txnindex"


def archivable_segments(
    seen: LogSnapshot, directory: LogDirectory, log: PartitionLog, settings: TopicSettings
) -> tuple[tuple[Segment, ...], str]:
    """Return the segments of a log that may be archived now, and why other sealed segments may not.

    :return: the segments, and the reason with how long it applies; "" if all sealed segments may be archived.
    :raises StoreLayoutError: a person has to act: the log has a fault, or a fact about it isn't known.
    """
    if not seen.sealed:
        return (), ""
    if reason := _kept_out(log, settings):
        return (), reason
    if seen.unread:
        raise StoreLayoutError(f"log {seen.name}: expected its end, found that {seen.unread}")
    if fault := _fault(directory, log, settings, seen.max_offset):
        raise StoreLayoutError(fault)
    sealed = tuple(segment for segment in seen.sealed if segment.facts.size_bytes)
    if not sealed:
        return (), ""
    watermark = directory.high_watermarks.get(seen.name)
    if watermark is None:
        raise StoreLayoutError(
            f"{directory.path / HIGH_WATERMARK}: log {seen.name}: expected its high watermark, found none"
        )
    below = tuple(segment for segment in sealed if segment.end_offset <= watermark)
    if not below:
        return (), f"it reaches above the high watermark {watermark}, until all replicas in sync have it"
    try:
        txn = _oldest_open(log, below[-1].end_offset, seen.max_offset)
    except (StorageEngineError, OSError) as error:
        raise StoreLayoutError(
            f"log {seen.name}: expected its open transactions, found that they aren't known: "
            f"{reason_of(error)}"
        ) from error
    first_open = None if txn is None else txn.first_offset
    if (stable_offset := directory.stable_offsets.get(seen.name)) is not None:
        first_open = stable_offset if first_open is None else min(first_open, stable_offset)
    stable = tuple(segment for segment in below if first_open is None or segment.end_offset <= first_open)
    if len(stable) < len(below):
        by = f" of producer {txn.producer_id}" if txn and txn.first_offset == first_open else ""
        return stable, f"a transaction{by} is open from offset {first_open} on, until it ends"
    if len(below) < len(sealed):
        why = f"later records lie above the high watermark {watermark}, until all replicas in sync have them"
        return stable, why
    return stable, ""


def archivable_of_node(node: Node, topics: TopicSettings, seen: Iterable[LogSnapshot]) -> Archivable:
    """Return the segments of a node's logs that may be archived now, and why other segments may not."""
    logs = {log.name.log: (directory, log) for directory, log in _logs_by_own_marks(node)}
    segments: list[Segment] = []
    kept_out: dict[str, str] = {}
    refused: dict[str, str] = {}
    for log in seen:
        if log.name not in logs:
            kept_out[log.name] = WENT
            continue
        try:
            chosen, reason = archivable_segments(log, *logs[log.name], topics)
        except (StoreLayoutError, FileNotFoundError) as error:
            # The fault may come from a deletion by the broker at this moment.
            if logs[log.name][1].has_lost_files():
                kept_out[log.name] = WENT
            else:
                refused[log.name] = str(error)
            continue
        segments += chosen
        if reason:
            kept_out[log.name] = reason
    return Archivable(tuple(segments), kept_out, refused)


def _kept_out(log: PartitionLog, settings: TopicSettings) -> str:
    """Return why a log's settings keep it out of the lake, and for how long; "" if they don't."""
    topic = settings.of(log.name.topic)
    if isinstance(topic, str):
        return ""
    if topic.compact:
        return "its cleanup.policy contains compact, so the cleaner rewrites its segments: as long as it does"
    return "its segments are copied to remote storage: as long as they are" if topic.is_copied else ""


def _fault(directory: LogDirectory, log: PartitionLog, settings: TopicSettings, end: int) -> str:
    """Return the fault or the unknown fact that keeps a log from being archived; "" if there is none."""
    if directory.fault:
        return f"log {log.name.log}: {directory.fault}"
    topic = settings.of(log.name.topic)
    if isinstance(topic, str):
        return f"log {log.name.log}: expected its cleanup.policy, found that it isn't known: {topic}"
    if directory.meta is None or not directory.meta.cluster_id:
        return f"log {log.name.log}: expected the id of its cluster in {directory.path}, found none"
    try:
        # Without a topic id, a receipt couldn't name the log's topic.
        return (
            link_fault(log)
            or topic_fault(log, settings)
            or _topic_id_fault(log)
            or start_fault(directory, log, end)
            or next(find_emptied(directory, log), "")
            or epochs_fault(directory, log, end)
        )
    except OSError as error:
        reason = reason_text(error)
        return f"log {log.name.log}: expected its small files, found one that can't be read: {reason}"


def _topic_id_fault(log: PartitionLog) -> str:
    path = f"{log.directory}/{PARTITION_METADATA}"
    return "" if os.path.exists(path) else f"{path}: expected the topic's id, found no file"  # noqa: PTH110  takes a third


def _oldest_open(log: PartitionLog, end: int, log_end: int) -> OpenTransaction | None:
    """Return the oldest transaction that is open now and has records below an offset, or None.

    In most cases the snapshot at that offset has no open transaction. Then nothing else is read.
    """
    has_snapshot = any(snapshot.path.endswith(f"/{end:020d}.snapshot") for snapshot in log.snapshots)
    if has_snapshot and not open_transactions(log, end):
        return None
    return next((txn for txn in open_transactions(log, log_end) if txn.first_offset < end), None)


def contexts_of(
    directory: LogDirectory, log: PartitionLog, segments: Sequence[Segment]
) -> Iterator[tuple[SegmentId, SegmentContext]]:
    """Yield, for a log's archivable segments, the facts that their files don't contain.

    :param segments: segments of this log, oldest first.
    :raises StoreLayoutError: records are missing between these segments, or between them and the segments
        before and after them.
    :raises CorruptFileError: a producer snapshot or the log's epochs are damaged, or a transaction index
        contradicts its segment.
    :raises OSError: a file can't be read, or a segment vanished since it was listed.
    """
    log_id = log_id_of(directory, log)
    by_offset = {files.base_offset: place for place, files in enumerate(log.segments)}
    for segment in segments:
        if segment.base_offset not in by_offset:
            raise went_meanwhile(segment.facts.path)
    begin, behind = by_offset[segments[0].base_offset], by_offset[segments[-1].base_offset] + 2
    # The segment before them is included, so that a hole after it is found, too.
    if begin and Path(log.segments[begin - 1].log.path).exists():
        begin -= 1
    if hole := next(holes(directory, log, log.segments[begin:behind]), ""):
        raise StoreLayoutError(
            f"log {log.name.log}: expected segments without holes between them, found that {hole}. Nothing "
            "of it was archived. Restore the segment, or let its broker copy the log from a replica."
        )
    epochs, log_start = _epochs(log), directory.log_starts.get(log.name.log, 0)
    for segment in segments:
        first, end = segment.base_offset, segment.end_offset
        open_before = tuple((txn.producer_id, txn.first_offset) for txn in open_transactions(log, first))
        _check_transaction_index(segment, open_before, forgotten_below(log, first))
        in_force = epochs_in(epochs, first, end)
        evidence: dict[str, Any] = {
            "leader_epochs": [[epoch.epoch, epoch.start_offset] for epoch in in_force]
        }
        if first < log_start < end:
            evidence[START_EVIDENCE] = log_start
        transactions = SegmentTransactions(
            log.name.topic, log.name.partition, end, open_before, tuple(_aborted_later(log, end))
        )
        yield segment.id, SegmentContext(log_id, evidence, transactions.as_text())


def went_meanwhile(path: str) -> FileNotFoundError:
    """Return the error for a file that was listed before and no longer exists."""
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _check_transaction_index(
    segment: Segment, open_before: Sequence[tuple[int, int]], forgotten: int
) -> None:
    """Compare a segment's transaction index with the segment's markers. Both are archived.

    With a damaged index, consumers of committed records get aborted records. A broker creates the index again
    only after an unclean stop. A missing or empty index isn't compared: then only the markers count.

    :param open_before: transactions that were open at the segment's start.
    :param forgotten: transactions that began below this offset may be known from the index alone.
    :raises CorruptFileError: index and markers differ.
    """
    indexes = (file for file in segment.companions if file.path.endswith(_INDEX_SUFFIX) and file.size_bytes)
    if (index := next(indexes, None)) is None:
        return
    from storage_engine.kafka.codec.transaction_states import UncommittedTransactions, check_transaction_index

    entries = parse_transaction_index(read_stored(Path(index.path)), index.path)
    began_below = [
        (entry.producer_id, entry.first_offset) for entry in entries if entry.first_offset < forgotten
    ]
    transactions = UncommittedTransactions.of_open([*open_before, *began_below], segment.base_offset)
    with mapped(segment.facts.path) as data:
        transactions = transactions.continued(data, segment.end_offset)
    check_transaction_index(entries, transactions, segment.base_offset, index.path)


def log_id_of(directory: LogDirectory, log: PartitionLog) -> str:
    """Return a log's identity in its cluster: cluster id, topic id and partition.

    :raises CorruptFileError: the file with the topic's id is damaged.
    :raises OSError: the file can't be read.
    """
    cluster_id = directory.meta.cluster_id if directory.meta is not None else ""
    return log_id_text(cluster_id, read_topic_id(log.path / PARTITION_METADATA), log.name.partition)


def _epochs(log: PartitionLog) -> tuple[LeaderEpoch, ...]:
    path = log.path / LEADER_EPOCHS
    return read_leader_epochs(path) if path.exists() else ()


def epochs_in(epochs: Sequence[LeaderEpoch], first: int, end: int) -> tuple[LeaderEpoch, ...]:
    """Return the epochs of the offsets [first, end): the epoch at the first offset, and later epochs."""
    before = [epoch for epoch in epochs if epoch.start_offset <= first]
    return (*before[-1:], *(epoch for epoch in epochs if first < epoch.start_offset < end))


def contradiction_of(log: PartitionLog, log_id: str, log_end: int, receipts: Sequence[Receipt]) -> str:
    """Return the contradiction between a log and the receipts of its name; "" if there is none.

    The log may belong to another topic of that name. It may have lost archived records, for example by an
    unclean election. Other leaders may have written other records at the same offsets.

    :raises CorruptFileError: the log's epochs can't be read.
    """
    for receipt in receipts:
        if receipt.log_id not in (None, log_id):
            return (
                f"it is log {log_id} (cluster, topic id, partition), and the archived log is {receipt.log_id}"
            )
    archived_to = max((receipt.end for receipt in receipts), default=0)
    if archived_to > log_end:
        return f"it ends at {log_end}, and offsets up to {archived_to} are archived"
    epochs = _epochs(log)
    for receipt in receipts:
        archived = [LeaderEpoch(*words) for words in receipt.known.get("leader_epochs", ())]
        # Below the log's first epoch, records were deleted, and no file tells their epochs.
        first = max(receipt.base_offset, epochs[0].start_offset if epochs else receipt.end)
        if first < receipt.end and _steps(archived, first, receipt.end) != _steps(epochs, first, receipt.end):
            return (
                f"its leaders' epochs of offsets [{first}, {receipt.end}) are "
                f"{_epochs_text(epochs, first, receipt.end)}, and the archived ones are "
                f"{_epochs_text(archived, first, receipt.end)}"
            )
    return ""


def _steps(epochs: Sequence[LeaderEpoch], first: int, end: int) -> list[tuple[int, int]]:
    """Return the epochs of the offsets [first, end), each with its first offset in this range."""
    return [(epoch.epoch, max(epoch.start_offset, first)) for epoch in epochs_in(epochs, first, end)]


def _epochs_text(epochs: Sequence[LeaderEpoch], first: int, end: int) -> str:
    steps = _steps(epochs, first, end)
    return ", ".join(f"{epoch} from {start} on" for epoch, start in steps) or "unknown"


def _aborted_later(log: PartitionLog, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (producer, first, last offset) of transactions that were open at an offset and aborted later.

    In most cases the snapshot at that offset has no open transaction. Then no segment is read.
    """
    if not (open_there := open_transactions(log, end)):
        return
    # NumPy and the kernels, which a log without transactions doesn't need here.
    from storage_engine.kafka.codec.transaction_states import UncommittedTransactions

    transactions = UncommittedTransactions.of_open(
        ((txn.producer_id, txn.first_offset) for txn in open_there), end
    )
    for files, behind in log.with_ends(_LAST_OFFSET):
        if files.base_offset < end or not files.log.size_bytes:
            continue
        with mapped(files.log.path) as data:
            transactions = transactions.continued(data, behind)
        first_open = transactions.first_open_offset
        if first_open is None or first_open >= end:
            break
    yield from (entry for entry in transactions.aborted if entry[1] < end)


def _logs_by_own_marks(node: Node) -> Iterator[tuple[LogDirectory, PartitionLog]]:
    """Yield logs with their directories. A stopped broker's high watermarks come from its own checkpoint.

    A leader's high watermark doesn't apply to a stopped replica: the replica's last records may differ from
    the leader's, and are cut off at the next start.
    """
    by_path: dict[Path, LogDirectory] = {}
    if node.live is not None:
        stopped = [directory.path for directory in node.directories if lock_holder(directory.path) is None]
        by_path = {
            directory.path: directory
            for directory in read_node(node.root).directories
            if directory.path in stopped
        }
    for directory, log in node.logs:
        yield by_path.get(directory.path, directory), log
