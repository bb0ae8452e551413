"""Reasons why a log's leader must not delete records up to the end of given segments.

Kafka's own call (DeleteRecords) checks little. All other facts are checked here, and an unknown fact
forbids the deletion. Only small files are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.file_names import PartitionDirectory
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, LogDirectory, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.format.server_properties import retention_settings
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.model.plan import LogPlan, Reason
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import FileFacts, Segment


@dataclass(frozen=True, slots=True)
class Prefix:
    """A log's first segments, oldest first, that are to be deleted."""

    name: PartitionDirectory
    directory: LogDirectory
    log: PartitionLog
    segments: tuple[Segment, ...]

    @property
    def boundary(self) -> int:
        return self.segments[-1].end_offset

    @property
    def key(self) -> tuple[str, int]:
        return self.name.topic, self.name.partition


def log_fault(prefix: Prefix, live: LivePartition | None, cluster_id: str) -> str:
    """Return why no record of a log may be deleted through its leader; "" if nothing forbids it.

    The reasons don't depend on which node leads the log.
    """
    if prefix.name.is_internal:
        return "it belongs to an internal topic"
    if prefix.directory.meta is None or prefix.directory.meta.cluster_id != cluster_id:
        return f"its directory isn't known to be of cluster {cluster_id}"
    if fault := leader_fault(live):
        return fault
    assert live is not None
    return _other_topic(prefix, live) or _other_policy(live)


def leader_fault(live: LivePartition | None) -> str:
    """Return why no leader can delete records of a log; "" if a leader is known."""
    if live is None or live.refused:
        return "the cluster doesn't tell all of it" + (f": {live.refused[0]}" if live else "")
    return "no replica leads it" if live.leader is None else ""


def cut_to_held(plan: LogPlan, unheld: Mapping[str, str], live: LiveFacts | None) -> LogPlan:
    """Return a plan for our own deletions. It keeps all segments of a log without a hold or a leader.

    :param unheld: reasons why logs aren't held, by name.
    """
    if not plan.to_delete:
        return plan
    partition = None if live is None else live.partitions.get(plan.log)
    if not (reason := unheld.get(plan.log, "") or leader_fault(partition)):
        return plan
    return plan.with_going(lambda going: replace(going, reason=Reason.NOT_HELD, detail=reason))


def boundary_fault(prefix: Prefix, live: LivePartition) -> str:
    """Return why a log may not be cut at the end of its first segments; "" if nothing forbids it."""
    if fault := beginning_fault(prefix, live):
        return fault
    if prefix.boundary > limit_of(live):
        return above_limit(prefix.boundary, live)
    return files_fault(prefix)


def beginning_fault(prefix: Prefix, live: LivePartition) -> str:
    """Return why a log may not be cut at any offset; "" if nothing forbids it.

    This node's files prove nothing about the leader's records before the first segment here. They also prove
    nothing about records that a cleaner removed here: each node has its own cleaner, so the leader may still
    have such records.
    """
    if live.log_start is None or live.high_watermark is None or live.last_stable_offset is None:
        return "its leader doesn't tell its log start, high watermark or last stable offset"
    first = prefix.segments[0].base_offset
    if live.log_start < first:
        return (
            f"its leader begins at {live.log_start}, and this node's first segment at {first}: this node's "
            "files don't prove the leader's records before that"
        )
    cleaned_to = prefix.directory.cleaned_offset(prefix.name.log)
    node = None if prefix.directory.meta is None else prefix.directory.meta.node_id
    if first < cleaned_to and live.leader != node:
        return (
            f"a cleaner removed records below offset {cleaned_to} on this node, and its leader, node "
            f"{live.leader}, may still have them: this node's files don't prove the leader's records"
        )
    return ""


def limit_of(live: LivePartition) -> int:
    """Return the offset above which a log may not be cut; -1 if not known.

    It is the lesser of high watermark and last stable offset. Kafka itself checks only the high watermark.
    """
    offsets = (live.high_watermark, live.last_stable_offset)
    return min(-1 if offset is None else offset for offset in offsets)


def above_limit(boundary: int, live: LivePartition) -> str:
    return (
        f"offset {boundary} lies above the high watermark {live.high_watermark} or the last stable offset "
        f"{live.last_stable_offset}"
    )


def _other_topic(prefix: Prefix, live: LivePartition) -> str:
    try:
        topic_id = read_topic_id(prefix.log.path / PARTITION_METADATA)
    except (StorageEngineError, OSError) as error:
        return f"its topic isn't certain: {reason_of(error)}"
    if live.topic_id is not None and topic_id == live.topic_id:
        return ""
    return f"its files are of topic {topic_id}, and the cluster's is {live.topic_id}"


def _other_policy(live: LivePartition) -> str:
    if live.topic_settings is None:
        return "its settings aren't known"
    try:
        kept: RetentionSettings = retention_settings({}, live.topic_settings)
    except StorageEngineError as error:
        return f"its settings aren't known: {reason_of(error)}"
    if "cleanup.policy" not in live.topic_settings or kept.compact or not kept.delete:
        return "its cleanup.policy isn't delete alone"
    return "remote storage has its segments" if kept.remote else ""


def files_fault(prefix: Prefix) -> str:
    """Return why the segments to delete aren't the log's unchanged first segments; "" if they are."""
    bases = [files.base_offset for files in prefix.log.segments]
    going = [segment.base_offset for segment in prefix.segments]
    if bases[: len(going)] != going or len(bases) <= len(going):
        return "the segments to delete aren't the log's first ones, or no segment follows them"
    if bases[len(going)] != prefix.boundary:
        return f"no segment begins at offset {prefix.boundary}"
    for segment in prefix.segments:
        try:
            facts = FileFacts.of(segment.facts.path)
        except OSError as error:
            return f"{segment.facts.path}: {error.strerror}"
        if (facts.device, facts.inode, facts.size_bytes) != (
            segment.facts.device,
            segment.facts.inode,
            segment.facts.size_bytes,
        ):
            return f"{segment.facts.path} isn't the file that it was a moment ago"
    return ""
