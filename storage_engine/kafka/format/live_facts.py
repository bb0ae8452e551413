"""What a running cluster says of partitions, for who looks at a node's files. Nothing is asked here.

Plan and doctor take it beside the files. What is None was not answered: it is unknown, and frees nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LivePartition:
    """What a cluster says of one partition at one moment.

    :param topic_id: of the topic that has the name now; files of another one are of a topic that is gone.
    :param leader: node that leads it. All offsets are those of its log, not of a follower's.
    :param log_start: its first offset.
    :param high_watermark: the end for who reads uncommitted records too.
    :param last_stable_offset: the end for who reads committed records alone.
    :param topic_settings: all that are in effect, by Kafka's names, those of the node and defaults too.
    :param own_settings: names of those that the topic itself has.
    :param replicas: nodes that have one, the preferred leader first.
    :param in_sync: those that follow (ISR).
    :param leader_epoch: how often the partition has changed its leader, by who leads it.
    :param refused: what the cluster did not tell, and why, as a list of clauses.
    """

    topic_id: uuid.UUID | None = None
    leader: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    topic_settings: Mapping[str, str] | None = None
    own_settings: frozenset[str] = frozenset()
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    leader_epoch: int | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What a running cluster said.

    :param cluster_id: its own; a node's files that name another one are of another cluster.
    :param partitions: by ``<topic>-<partition>``; one that is missing was not answered.
    """

    asked_at_ms: int
    cluster_id: str
    partitions: Mapping[str, LivePartition]
