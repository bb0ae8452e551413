"""Who consumes what of a node's logs, and from which offset on: by the running cluster, or by the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from storage_engine.arrow.lag_columns import POSITIONS_SCHEMA
from storage_engine.core.wording import count_text
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.metadata.consumer_offsets import TOPIC, read_consumer_offsets
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.model.lag.lag import LagSource, PositionsFrom
from storage_engine.model.report.diagnosis import named_in_short

if TYPE_CHECKING:
    from storage_engine.kafka.cluster.client import Cluster

Place = tuple[str, str, int]
"""Group, topic and partition."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """Who consumes of a node's logs.

    :param committed: the next offset of each group; None: it reads there, and its position isn't known.
    :param logs: those whose consumers are all known; None: all of the node's.
    """

    committed: Mapping[Place, int | None]
    source: LagSource
    logs: tuple[str, ...] | None = None

    @property
    def table(self) -> pa.Table:
        """Return a row for each group in each partition that it reads, by topic, partition and group."""
        order = sorted(self.committed, key=lambda one: (one[1], one[2], one[0]))
        rows = [
            {"topic": topic, "queue_id": number, "group": group, "committed_offset": self.committed[place]}
            for place in order
            for group, topic, number in (place,)
        ]
        return pa.Table.from_pylist(rows, schema=POSITIONS_SCHEMA)


def consumers_of(node: Node, cluster: Cluster | None) -> Consumers:
    """Return who consumes of a node's logs.

    :param cluster: None: its records on the node's disk are read.
    :raises BrokerError: the cluster can't be asked.
    :raises CorruptFileError: the cluster's metadata can't be read.
    """
    partitions: dict[str, list[int]] = {}
    for _, log in node.logs:
        if not log.name.is_internal:
            partitions.setdefault(log.name.topic, []).append(log.name.partition)
    if cluster is None:
        return _on_disk(node, partitions)
    from storage_engine.kafka.cluster.consumers import group_positions

    found = group_positions(cluster, partitions)
    source = LagSource(PositionsFrom.BROKER, None, found.notices)
    known = _known_logs(node, found.unseen_topics) if found.all_groups else ()
    return Consumers(_in_all_partitions(found.committed, partitions), source, known)


def _on_disk(node: Node, partitions: Mapping[str, list[int]]) -> Consumers:
    logs = [(directory, log) for directory, log in node.logs if log.name.topic == TOPIC]
    found = read_consumer_offsets(logs, may_be_torn=node.left_uncleanly)
    there = {log.name.partition for _, log in logs}
    everywhere = read_topic_settings(node).metadata.partitions_of(TOPIC)
    notices = [*found.unknown]
    if not everywhere and not there:
        notices.append(f"no partition of {TOPIC} is on this node, so which groups read isn't known")
    elif not everywhere:
        notices.append(
            f"of {TOPIC} this node has {count_text(len(there), 'partition')}; how many there are isn't known"
        )
    elif missing := everywhere - there:
        notices.append(
            f"groups of {count_text(len(missing), 'partition')} of {TOPIC} aren't known: of "
            f"{len(everywhere)} this node has {len(there)}"
        )
    silent = sorted(found.groups - {group for group, _, _ in found.offsets})
    if silent:
        notices.append(f"what groups without any offset read isn't known: {named_in_short(silent)}")
    source = LagSource(PositionsFrom.FILES, None, tuple(notices))
    all_known = bool(everywhere) and everywhere <= there and not (silent or found.unknown)
    committed: dict[Place, int | None] = {
        place: offset for place, offset in found.offsets.items() if place[1] in partitions
    }
    return Consumers(_in_all_partitions(committed, partitions), source, None if all_known else ())


def _known_logs(node: Node, unseen: frozenset[str]) -> tuple[str, ...] | None:
    if not unseen:
        return None
    return tuple(log.name.log for _, log in node.logs if log.name.topic not in unseen)


def _in_all_partitions(
    committed: Mapping[Place, int | None], partitions: Mapping[str, list[int]]
) -> dict[Place, int | None]:
    """Return positions in the node's partitions alone; a group reads all partitions of a topic of its."""
    reads = {(group, topic) for group, topic, _ in committed}
    return {
        (group, topic, number): committed.get((group, topic, number))
        for group, topic in reads
        for number in partitions.get(topic, ())
    }
