"""Findings about a node that only its running cluster can tell. Of files only topics' ids are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from storage_engine.core.wording import bytes_text, count_text
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node
from storage_engine.kafka.hold.hold_state import is_same_topic
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short

NOT_SERVED = "its broker serves none of its logs, and serves those of other directories: it has failed"


def live_findings(node: Node, facts: LiveFacts) -> Iterator[Finding]:
    """Yield the cluster's findings about a node's partitions that a person should look at.

    :param facts: as the cluster said them, whatever the node's files say.
    """
    node_id = node_id_of(node)
    for _, log in node.logs:
        known = facts.partitions.get(log.name.log)
        if known is None:
            continue
        if not is_same_topic(log, known):
            yield Finding(
                Severity.URGENT,
                "topic-id",
                f"log {log.name.log}: its topic has another id in the running cluster: it was deleted and "
                "made again, and these files are of the one that is gone",
                "keep the directory: it has the only copy of its records",
            )
        elif known.replicas:
            yield from _partition(log.name.log, known, node_id)
    yield from _unknown(facts)


def _partition(name: str, known: LivePartition, node_id: int | None) -> Iterator[Finding]:
    if known.leader is None:
        yield Finding(
            Severity.URGENT,
            "no-leader",
            f"log {name}: no replica leads it: nothing is written, and how far it is replicated isn't known",
            "start one of its replicas: " + ", ".join(map(str, known.replicas)),
        )
    behind = [one for one in known.replicas if one not in known.in_sync]
    if behind and known.leader is not None:
        nodes = ("node " if len(behind) == 1 else "nodes ") + ", ".join(map(str, behind))
        yield Finding(
            Severity.WARNING,
            "not-in-sync",
            f"log {name}: its replica on {nodes} isn't in sync with leader {known.leader}: the high "
            "watermark may be left behind, and nothing above it is deleted",
            f"look at the broker of {nodes}: is it running, and does it reach the leader?",
        )
    if node_id is not None and node_id not in known.replicas:
        yield Finding(
            Severity.WARNING,
            "no-replica",
            f"log {name}: node {node_id} has no replica of it by the cluster's word, only "
            f"{', '.join(map(str, known.replicas))}: it deletes the directory when it notices",
        )


def offline_directories(node: Node) -> Iterator[Path]:
    """Yield log directories of which a broker serves nothing, though it serves others of its own.

    It takes one offline that fails (ReplicaManager#handleLogDirFailure).

    :param node: with its cluster's answers.
    """
    node_id, live = node_id_of(node), node.live
    if live is None or node_id is None:
        return
    served: dict[Path, list[bool]] = defaultdict(list)
    for directory, log in node.logs:
        known = live.partitions.get(log.name.log)
        if known is not None and node_id in known.replicas:
            served[directory.path].append(node_id in known.in_sync or known.leader == node_id)
    if any(map(any, served.values())):
        yield from (path for path, of_logs in served.items() if not any(of_logs))


def offline_findings(node: Node) -> Iterator[Finding]:
    """Yield a finding for each log directory of which the broker serves nothing."""
    for path in offline_directories(node):
        yield Finding(
            Severity.URGENT,
            "directory-offline",
            f"{path}: {NOT_SERVED}",
            "look into its disk, and into the broker's log for the error; start the broker again then",
        )


def waiting_files(node: Node) -> Iterator[Finding]:
    """Yield files below the leaders' starts: their records are deleted, and the files are still there.

    :param node: with its cluster's answers.
    """
    starts = {} if node.live is None else {name: one.log_start for name, one in node.live.partitions.items()}
    waiting = [
        (log.name.log, files.log.size_bytes)
        for _, log in node.logs
        for files, following in pairwise(log.segments)
        if (start := starts.get(log.name.log)) is not None and following.base_offset <= start
    ]
    if waiting:
        names = list(dict.fromkeys(name for name, _ in waiting))
        yield Finding(
            Severity.NOTE,
            "waiting-files",
            f"{bytes_text(sum(size for _, size in waiting))} of {named_in_short(names)} lie below where "
            "their leaders begin: they are deleted, and the broker removes their files in its next round",
            "wait for log.retention.check.interval.ms, and file.delete.delay.ms after that",
        )


def _unknown(facts: LiveFacts) -> Iterator[Finding]:
    """Yield facts that the cluster didn't tell, by the reason."""
    refused: dict[str, list[str]] = defaultdict(list)
    for name, known in facts.partitions.items():
        for why in known.refused:
            refused[why].append(name)
    for why, names in refused.items():
        what = (
            f"the cluster doesn't tell all of {count_text(len(names), 'log')}, {named_in_short(names)}: {why}"
        )
        yield Finding(Severity.WARNING, "live-unknown", what.removesuffix("."))


def node_id_of(node: Node) -> int | None:
    """Return the node's own id; None: it isn't said."""
    said = (one.meta.node_id for one in node.directories if one.meta is not None)
    return next((one for one in said if one is not None), None)
