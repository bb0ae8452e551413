"""Find Kafka topics' records in a lake: each partition's ranges, by the receipts of all its stores.

A partition is identified by a cluster's id, a topic's id and a number, and not by the name of its directory.
Replicas may have archived the same offsets. Each offset is served once.
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
from storage_engine.core.wording import meant
from storage_engine.exceptions import BadInputError, ReceiptError
from storage_engine.kafka.format.checkpoints import START_EVIDENCE
from storage_engine.kafka.format.file_names import PartitionDirectory, partition_directory
from storage_engine.kafka.format.partition_metadata import cluster_of, topic_of
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake, has_no_broker
from storage_engine.lake.coverage.coverage import Interval, subtract_intervals
from storage_engine.lake.soundness.chain import row_fault
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipt_history
from storage_engine.model.proof.receipt import NO_EXPIRIES, Receipt, SegmentIdentity, end_text, ended, whole
from storage_engine.model.store import grouped

_ID_SHOWN = 8
"""How many characters of its id an older topic of the same name shows after its name."""


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Offsets [first, end) of a partition that are read from one receipt's segment.

    :param refused: why nothing of the range is served. "": it is served.
    """

    receipt: Receipt
    first: int
    end: int
    refused: str = ""


@dataclass(frozen=True)
class ArchivedPartition:
    """The ranges that a lake has of a partition.

    :param topic: the topic's name that consumers see.
    :param ranges: sorted by offset. They don't overlap.
    :param start: the first offset that is served. It is where the log began when it was archived, or later.
    :param expired: the offsets that a keep rule removed, as (first, end, rule). Readers continue after them.
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
        """Return the range that has an offset, or else the first range after it.

        :param offset: an offset below ``end``.
        """
        return self.ranges[bisect_right(self._ends, offset)]

    def ranges_from(self, offset: int) -> tuple[ArchivedRange, ...]:
        """Return the range that has an offset, or else the first range after it, and all that follow."""
        return self.ranges[bisect_right(self._ends, offset) :]

    def holes(self) -> list[tuple[int, int]]:
        """Return the offsets between ranges that no receipt has, as (first, end)."""
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
    """The partitions that a lake has of one cluster.

    :param topics: for each topic's name, its partitions by number.
    :param unnamed: the logs whose receipts don't tell the topic's id. They can't be told from other logs of
        the same name.
    """

    cluster: str
    topics: Mapping[str, Mapping[int, ArchivedPartition]]
    unnamed: tuple[str, ...]

    def gaps(self) -> Iterator[str]:
        """Yield a line for each run of offsets that readers don't get.

        These are expired offsets and holes.
        """
        for partitions in self.topics.values():
            for partition in partitions.values():
                where = f"{partition.topic}-{partition.number}"
                for first, end, by_what in partition.expired:
                    yield f"{where}: offsets [{first}, {end}) EXPIRED: {by_what}"
                for first, end in partition.holes():
                    yield f"{where}: no receipt has the offsets [{first}, {end})"


def read_archive(lake: Lake, cluster: str | None) -> Archive:
    """Read which logs of one Kafka cluster a lake has.

    :param cluster: the cluster's id. None: the lake has only one cluster.
    :raises BadInputError: the lake belongs to another kind of broker, it doesn't have the cluster, or it has
        several and ``cluster`` is None.
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
    expiries = merged_expiries([(lake, ended(rows))])
    return archive_of(rows, cluster, lake.location, expiries, first_proven)


def archive_of(
    rows: Iterable[Receipt],
    cluster: str | None,
    location: str,
    expiries: Mapping[str, str] = NO_EXPIRIES,
    first_proven: Mapping[SegmentIdentity, int] = MappingProxyType({}),
) -> Archive:
    """Return the partitions that receipts belong to. Pure.

    :param rows: the receipts that count, of every log's newest lineage. Expired ranges aren't served.
    :param expiries: for each act's SHA-256, under which policy and since when something expired.
    :param first_proven: when each segment was proven for the first time. If it lacks a segment, the time in
        the segment's receipt counts. Several topics may have had the same name. The name goes to the topic
        whose segment was first proven last. Later proofs and compactions don't change that.
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
    chosen = _cluster({cluster_of(log_id) for log_id in logs}, cluster, location)
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


def _cluster(clusters: set[str], cluster: str | None, location: str) -> str:
    if cluster is None and len(clusters) == 1:
        return clusters.pop()
    if cluster in clusters:
        return str(cluster)
    listed = ", ".join(sorted(clusters))
    expected = "an archived cluster" if cluster else "one cluster, or --cluster to choose one"
    near = meant(cluster, clusters) if cluster else ""
    raise BadInputError(
        f"lake {location}: expected {expected}, found {cluster or f'those of {listed}'}.{near} Nothing was "
        f"started. The lake has: {listed}."
    )


def _partition(
    topic: str, rows: Sequence[Receipt], expiries: Mapping[str, str], topic_id: str
) -> ArchivedPartition:
    """Sort a partition's receipts of all stores into one sequence of offsets.

    A receipt that can't be trusted counts only for offsets that no other receipt has. If such a receipt says
    that offsets expired, this is ignored.
    """
    faults = {id(row): row_fault(row) for row in rows}
    ordered = sorted(whole(rows), key=lambda row: (bool(faults[id(row)]), row.base_offset, -row.end))
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
    # A log begins inside a segment once records have been deleted from it (DeleteRecords).
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
    """Return the partition directory that a receipt's log names.

    :raises ReceiptError: the name isn't a partition directory's.
    """
    directory = partition_directory(row.log)
    if directory is None:
        raise ReceiptError(
            f"receipt of {row.log}/{row.base_offset:020d}: expected the name of a partition's log, found "
            "another name. Nothing was started. The receipts were tampered with. Run verify."
        )
    return directory
