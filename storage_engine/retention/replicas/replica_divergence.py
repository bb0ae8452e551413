"""Whether other replicas archived other bytes than a store's logs have, or the same ones of other leaders.

Replicas of a log have equal batches. Where they have not, one of them lost records or is damaged, and the
lake must not take both for the same log without a person's word. A log that was adopted has a lineage of
its own: it may differ from now on, and only what is equal is credited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from storage_engine.brokers import store_called
from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.coverage.coverage import ComparedReceipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.verify.replica_coverage import (
    EVERY_RECORD,
    Difference,
    ReplicaComparison,
    compare_with_replicas,
    is_replica,
    replica_receipts,
)
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.by_log import by_log
from storage_engine.model.store.known_logs import is_unique
from storage_engine.model.store.store import Segment
from storage_engine.retention.store.broker_answers import answer_for_left, ask

NOTHING = "Nothing of it was archived."
"""Stands between what is wrong with a log and what to do about it."""
_FIRST_LINEAGE = 1


@dataclass(frozen=True, slots=True)
class ComparedLog:
    """A log beside what other replicas have archived of it.

    :param log_id: the broker's own identity of the log.
    :param divergence: what shows that it isn't theirs; "": nothing does, or it may differ.
    """

    log: str
    log_id: str
    found: ReplicaComparison
    divergence: str


def has_replicas(broker: BrokerStore) -> bool:
    """Return whether a broker's logs have an identity that their replicas share."""
    return getattr(broker.range_sha256, "__func__", None) is not BrokerStore.range_sha256


def compare_logs(
    broker: BrokerStore,
    lake: Lake,
    record: StoreRecord,
    segments: Sequence[Segment],
    there: Sequence[Segment],
    compared: ComparedReceipts = frozenset,
    depth: Depth = Depth.SIZES,
) -> Iterator[ComparedLog]:
    """Yield the logs of some segments that other stores have archived in a lake, too.

    :param there: all archivable segments of these logs, by which bytes are compared.
    :param compared: receipts that were found equal before.
    :param depth: to which their receipts' files are read.
    :raises LakeUnavailableError: the lake can't be read.
    """
    if not segments or not has_replicas(broker):
        return
    wanted = by_log(sorted(segments, key=attrgetter("log", "base_offset")))
    # The newest are the last that a broker deletes.
    newest = [of_log[-1] for of_log in wanted.values()]
    doing = "tell what it knows of segments beside their files"
    contexts = ask(record.broker, doing, lambda: broker.contexts(newest))
    log_ids = {one.log: context.log_id for one, context in contexts.items() if context.log_id is not None}
    wanted = {log: of_log for log, of_log in wanted.items() if log in log_ids}
    files = by_log(sorted(there, key=attrgetter("log", "base_offset")))
    spans = {
        log_ids[log]: (files[log][0].base_offset, files[log][-1].end_offset)
        if is_unique(log_ids[log])
        else EVERY_RECORD
        for log in wanted
    }
    receipts = replica_receipts(lake, record.store_id, spans)
    for log, of_log in wanted.items():
        if rows := receipts.get(log_ids[log], ()):
            compare = partial(_compare, broker, lake, record, of_log, rows, depth)
            left, found = answer_for_left(files[log], compare)
            said = divergence(broker, record, log, found.same)
            if (
                found.same
                or is_unique(log_ids[log])
                or (found.differences and is_replica(lake, record.store_id, rows, compared))
            ):
                # Of those with equal names only what has, or had, some of the same bytes is a replica.
                said = said or _other_bytes(record, found, left)
            yield ComparedLog(log, log_ids[log], found, said)


def _compare(
    broker: BrokerStore,
    lake: Lake,
    record: StoreRecord,
    segments: Sequence[Segment],
    rows: Sequence[Receipt],
    depth: Depth,
    files: Sequence[Segment],
) -> ReplicaComparison:
    """Compare those of some segments that are among a log's files, by what lies inside of these."""
    first, end = (files[0].base_offset, files[-1].end_offset) if files else (0, 0)
    there = {one.id for one in files}

    def hash_range(start: int, behind: int) -> str | None:
        doing = "read a range of offsets"
        return ask(record.broker, doing, partial(broker.range_sha256, files, start, behind))

    return compare_with_replicas(
        lake,
        [one for one in segments if one.id in there],
        [row for row in rows if first <= row.base_offset and row.end <= end],
        hash_range,
        depth,
    )


def divergence(broker: BrokerStore, record: StoreRecord, log: str, rows: Sequence[Receipt]) -> str:
    """Return what else than bytes shows that a log isn't the one that other replicas archived.

    :param rows: their receipts of bytes that this log has, too.
    :return: "": nothing does, or the log may differ, as a person adopted it.
    """
    if not rows or record.lineage_of(log) != _FIRST_LINEAGE:
        return ""
    doing = "tell whether a log is the archived one"
    return ask(record.broker, doing, partial(broker.contradiction, log, rows))


def _other_bytes(record: StoreRecord, found: ReplicaComparison, files: Sequence[Segment]) -> str:
    if not found.differences:
        return ""
    first = min(found.differences, key=lambda one: one.receipt.base_offset)
    if record.lineage_of(first.receipt.log) != _FIRST_LINEAGE:
        return ""
    return _difference_text(first, files)


def _difference_text(one: Difference, files: Sequence[Segment]) -> str:
    row = one.receipt
    path = next(
        (file.facts.path for file in files if file.end_offset > row.base_offset), files[-1].facts.path
    )
    ours = f"SHA-256 {one.sha256}" if one.sha256 else "no batches that begin and end there"
    return (
        f"its replica of store {store_called(row.store_name, row.broker, row.store_root)} archived offsets "
        f"[{row.base_offset}, {row.end}) with SHA-256 {row.sha256}, and here they have {ours}, in {path}"
    )
