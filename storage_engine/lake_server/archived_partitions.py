"""The ranges of Kafka partitions in a lake, from the receipts of all stores.

A partition is identified by its cluster's id, topic's id and number, not by its directory's name. Replicas
may have archived the same offsets. Each offset is served once.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType

from storage_engine.commands import Command
from storage_engine.core.wording import did_you_mean
from storage_engine.exceptions import BadInputError, ReceiptError
from storage_engine.kafka.format.checkpoints import START_EVIDENCE
from storage_engine.kafka.format.file_names import PartitionDirectory, partition_directory
from storage_engine.kafka.format.partition_metadata import cluster_of, topic_of
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake, has_no_broker
from storage_engine.lake.coverage.coverage import Interval, subtract_intervals
from storage_engine.lake.soundness.chain import row_fault
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipt_history
from storage_engine.model.proof.receipt import (
    NO_EXPIRIES,
    Receipt,
    SegmentIdentity,
    end_text,
    ended,
    select_whole,
)
from storage_engine.model.store import grouped

_ID_SHOWN = 8
"""Number of characters of the id that follow an older topic's name if a newer topic has the same name."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Offsets [first, end) of a partition that are read from one receipt's segment.

    :param refused: why the range isn't served; "" if it is.
    """

    receipt: Receipt
    first: int
    end: int
    refused: str = ""


@dataclass(frozen=True)
class ArchivedPartition:
    """A partition's ranges in a lake.

    :param topic: the topic's name for consumers.
    :param ranges: sorted by offset, without overlaps.
    :param start: the first served offset. It isn't below the log's start offset at the time of archiving.
    :param expired: offsets that expired, as (first, end, reason). Readers continue after them.
    :param topic_id: the topic's id, as Kafka writes it.
    """

    topic: str
    number: int
    ranges: tuple[ArchivedRange, ...]
    start: int
    expired: tuple[tuple[int, int, str], ...] = ()
    topic_id: str = ""

    @property
    def end(self) -> int:
        """Return the offset after the last archived one."""
        return self.ranges[-1].end if self.ranges else self.start

    @cached_property
    def _ends(self) -> list[int]:
        return [archived.end for archived in self.ranges]

    def range_at(self, offset: int) -> ArchivedRange:
        """Return the range with an offset, or the first range after it. The offset must be below ``end``."""
        return self.ranges[bisect_right(self._ends, offset)]

    def ranges_from(self, offset: int) -> tuple[ArchivedRange, ...]:
        """Return the range with an offset, or else the first range after it, and all following ranges."""
        return self.ranges[bisect_right(self._ends, offset) :]

    def holes(self) -> list[tuple[int, int]]:
        """Return the offsets between ranges that didn't expire and that no receipt has, as (first, end)."""
        holes = []
        for left, right in zip(self.ranges[:-1], self.ranges[1:], strict=True):
            first = left.end
            for begun, ended_at, _ in self.expired:
                if begun <= first < ended_at:
                    first = ended_at
            if first < right.first:
                holes.append((first, right.first))
        return holes


@dataclass(frozen=True)
class Archive:
    """One cluster's partitions in a lake.

    :param topics: partitions by their topic's name and their number.
    :param unnamed: logs whose receipts lack the topic's id. Another topic's log may have the same name.
    """

    cluster: str
    topics: Mapping[str, Mapping[int, ArchivedPartition]]
    unnamed: tuple[str, ...]

    def gaps(self) -> Iterator[str]:
        """Yield a line for each range of expired offsets and for each hole."""
        for partitions in self.topics.values():
            for partition in partitions.values():
                where = f"{partition.topic}-{partition.number}"
                for first, end, by_what in partition.expired:
                    yield f"{where}: offsets [{first}, {end}) EXPIRED: {by_what}"
                for first, end in partition.holes():
                    yield f"{where}: no receipt has the offsets [{first}, {end})"


def read_archive(lake: Lake, cluster: str | None) -> Archive:
    """Return a Kafka cluster's partitions in a lake.

    :param cluster: the cluster's id; None if the lake has only one cluster.
    :raises BadInputError: the lake is of another kind of broker, it doesn't have the cluster, or it has
        several clusters and ``cluster`` is None.
    :raises LakeUnavailableError: the lake can't be read.
    """
    if lake.broker != "kafka" and not has_no_broker(lake):
        raise BadInputError(
            f"lake {lake.location}: expected a lake of Kafka, found a lake of {lake.broker}. Its consumers "
            "speak another protocol. Nothing was started. Export its messages, or restore its segments."
        )
    stores = {store.store_id: store for store in list_stores(lake)}
    histories = [receipt_history(lake, store_id) for store_id in stores]
    rows = tuple(
        row
        for history in histories
        for row in current(history)
        if row.lineage == stores[row.store_id].log_lineages[row.log]
    )
    first_proven = first_proven_ms(row for history in histories for row in history)
    return archive_of(rows, cluster, lake.location, merged_expiries([(lake, ended(rows))]), first_proven)


def archive_of(
    rows: Iterable[Receipt],
    cluster: str | None,
    location: str,
    expiries: Mapping[str, str] = NO_EXPIRIES,
    first_proven: Mapping[SegmentIdentity, int] = MappingProxyType({}),
) -> Archive:
    """Return the partitions of receipts. Pure.

    If several topics have one name, only the topic with the newest segment gets the plain name. The newest
    segment is the last one that was proven for the first time. Later proofs and compactions don't count.

    :param rows: the receipts that count, of every log's newest lineage. Expired ranges aren't served.
    :param expiries: clauses with an expiry's policy and time, by its act's SHA-256.
    :param first_proven: when each segment was proven for the first time, in milliseconds since the epoch. If
        it lacks a segment, the time in the segment's receipt counts.
    :raises BadInputError: the receipts don't have the cluster, they have several and ``cluster`` is None, or
        none of them has a topic's id.
    """
    logs: dict[str, list[Receipt]] = defaultdict(list)
    unnamed = set()
    for row in rows:
        if row.log_id is None:
            unnamed.add(row.log)
        else:
            logs[row.log_id].append(row)
    if not logs:
        raise BadInputError(
            f"lake {location}: expected archived segments of Kafka whose topic has an id, found "
            f"{', '.join(sorted(unnamed)) or 'none'}. Nothing was started. Archive a node: ",
            Command("archive"),
        )
    chosen = _choose_cluster({cluster_of(log_id) for log_id in logs}, cluster, location)
    of_topic = grouped((log_id for log_id in logs if cluster_of(log_id) == chosen), topic_of)
    newest: dict[str, tuple[int, str]] = {}
    names: dict[str, str] = {}
    for topic_id, of_id in of_topic.items():
        proven = ((first_proven.get(row.identity, row.proven_at_ms), row) for at in of_id for row in logs[at])
        proven_ms, last = max(proven, key=itemgetter(0))
        names[topic_id] = _directory(last).topic
        newest[names[topic_id]] = max(newest.get(names[topic_id], (-1, "")), (proven_ms, topic_id))
    topics: dict[str, dict[int, ArchivedPartition]] = {}
    for topic_id, name in names.items():
        title = name if newest[name][1] == topic_id else f"{name}@{topic_id[:_ID_SHOWN]}"
        partitions = [_partition(title, logs[log_id], expiries, topic_id) for log_id in of_topic[topic_id]]
        topics[title] = {partition.number: partition for partition in partitions}
    return Archive(chosen, topics, tuple(sorted(unnamed)))


def _choose_cluster(clusters: set[str], cluster: str | None, location: str) -> str:
    if cluster is None and len(clusters) == 1:
        return clusters.pop()
    if cluster in clusters:
        return str(cluster)
    listed = ", ".join(sorted(clusters))
    expected = "an archived cluster" if cluster else "one cluster, or --cluster to choose one"
    near = did_you_mean(cluster, clusters) if cluster else ""
    raise BadInputError(
        f"lake {location}: expected {expected}, found {cluster or f'those of {listed}'}.{near} Nothing was "
        f"started. The lake has: {listed}."
    )


def _partition(
    topic: str, rows: Sequence[Receipt], expiries: Mapping[str, str], topic_id: str
) -> ArchivedPartition:
    """Return a partition's ranges from the receipts of all stores.

    A receipt that can't be trusted counts only for offsets that no other receipt has, and never for expired
    offsets.
    """
    faults = {id(row): row_fault(row) for row in rows}
    ordered = sorted(select_whole(rows), key=lambda row: (bool(faults[id(row)]), row.base_offset, -row.end))
    removed = [row for row in ended(rows) if not faults[id(row)]]
    expired = tuple(
        sorted((row.base_offset, row.end, end_text(row.state, row.act, expiries)) for row in removed)
    )
    if not ordered:
        end = max(row.end for row in rows)
        return ArchivedPartition(topic, _directory(rows[0]).partition, (), end, expired, topic_id)
    contents: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in ordered:
        if not faults[id(row)]:
            contents[row.base_offset, row.end].add(row.sha256)
    ranges: list[ArchivedRange] = []
    cover: list[Interval] = []
    for row in ordered:
        refused = f"its receipt can't be trusted: {fault}" if (fault := faults[id(row)]) else ""
        if not fault and len(contents[row.base_offset, row.end]) > 1:
            refused = "two stores have archived different bytes for the same offsets"
        for span in list(subtract_intervals(row.base_offset, row.end, cover)):
            insort(cover, span)
            ranges.append(ArchivedRange(row, *span, refused))
    ranges.sort(key=lambda archived: archived.first)
    first = ranges[0]
    # After DeleteRecords, a log's start offset may be inside a segment.
    start = first.receipt.known.get(START_EVIDENCE)
    inside = isinstance(start, int) and first.first < start < first.end
    return ArchivedPartition(
        topic,
        _directory(first.receipt).partition,
        tuple(ranges),
        int(start) if inside and isinstance(start, int) else first.first,
        expired,
        topic_id,
    )


def _directory(row: Receipt) -> PartitionDirectory:
    directory = partition_directory(row.log)
    if directory is None:
        raise ReceiptError(
            f"receipt of {row.log}/{row.base_offset:020d}: expected the name of a partition's log, found "
            "another name. Nothing was started. The receipts were tampered with. Run verify."
        )
    return directory
