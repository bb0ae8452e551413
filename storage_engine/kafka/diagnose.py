"""What is wrong with a node's directories, and why what its owners expect to be gone is still there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from storage_engine.exceptions import BrokerError, StorageEngineError, StoreNotFoundError
from storage_engine.kafka.file_names import DirectoryState, FileState
from storage_engine.kafka.layout import LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.lock_holder import lock_holder
from storage_engine.kafka.log_end import end_offset, segment_facts
from storage_engine.kafka.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.partition_metadata import read_topic_id, text_of
from storage_engine.kafka.server_properties import RETENTION_SETTINGS
from storage_engine.kafka.topic_settings import TopicSettings, read_topic_settings
from storage_engine.model.broker_store import StoreSettings
from storage_engine.model.diagnosis import (
    BrokerDiagnosis,
    Finding,
    SettingFrom,
    SettingInEffect,
    Severity,
    named_in_short,
    reason_of,
)
from storage_engine.wording import bytes_text, count_text, time_text

_ASIDE = {
    DirectoryState.DELETED: "are deleted by the broker, file.delete.delay.ms after their topic",
    DirectoryState.FUTURE: "are copies that a move between log directories has begun",
    DirectoryState.STRAY: "were set aside, as the cluster doesn't know them by their topic id",
}


def diagnose(
    settings: StoreSettings, now_ms: int, look: Callable[[Path], Node] = read_node
) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.Broker.diagnose`.

    :param look: by which the node is looked at, such as beside its running cluster.
    """
    try:
        node = look(Path(settings.root))
    except (StoreNotFoundError, BrokerError):
        raise
    except StorageEngineError as error:
        finding = Finding(
            Severity.URGENT, "layout", reason_of(error), "put it right while the broker is stopped"
        )
        return BrokerDiagnosis(findings=(finding,), refused=True)
    topics = read_topic_settings(node)
    holders = {lock_holder(directory.path) for directory in node.directories} - {None}
    findings = [
        *_states(node, running=bool(holders)),
        *_settings(node, topics),
        *_topic_ids(node, topics),
        *_logs(node, topics, now_ms),
        *_left_over(node),
    ]
    return BrokerDiagnosis(
        layout=_layout(node),
        running=bool(holders),
        running_text=", ".join(f"process {one}" for one in sorted(filter(None, holders))),
        settings=_in_effect(topics),
        findings=tuple(findings),
    )


def _layout(node: Node) -> tuple[str, ...]:
    internal = sum(log.name.is_internal for _, log in node.logs)
    return (
        "ZooKeeper" if node.zookeeper else "KRaft",
        f"{len(node.directories)} directories",
        f"{count_text(len(node.logs), 'log')}, {internal} of them Kafka's own",
    )


def _in_effect(topics: TopicSettings) -> tuple[SettingInEffect, ...]:
    named = sorted(RETENTION_SETTINGS & set(topics.node))
    return tuple(SettingInEffect(name, topics.node[name], SettingFrom.CONFIG_FILE) for name in named)


def _states(node: Node, *, running: bool) -> Iterator[Finding]:
    unclean = [str(one.path) for one in node.directories if one.left_uncleanly]
    if unclean and not running:
        yield Finding(
            Severity.WARNING,
            "stopped-uncleanly",
            f"no broker runs, and {named_in_short(unclean)} has no marker of a clean stop",
            "let the broker recover it: start it on all of its log.dirs",
        )
    unformatted = [str(one.path) for one in node.directories if one.meta is None]
    if unformatted:
        yield Finding(
            Severity.WARNING,
            "no-meta-properties",
            f"{named_in_short(unformatted)} has no meta.properties, so nothing says whose it is",
            "bring the file back from a backup: a broker doesn't start without it",
        )
    yield Finding(
        Severity.NOTE,
        "no-stamp",
        "log directories have no stamp of a store: a copy of this node looks the same",
    )


def _settings(node: Node, topics: TopicSettings) -> Iterator[Finding]:
    if topics.unknown:
        advice = "" if node.zookeeper else "name the node's server.properties as STORE, on its own disk"
        what = f"settings of topics are unknown, so nothing is planned: {topics.unknown}"
        yield Finding(Severity.WARNING, "settings-unknown", what, advice)


def _topic_ids(node: Node, topics: TopicSettings) -> Iterator[Finding]:
    if topics.unknown:
        return
    for _, log in node.logs:
        known = topics.metadata.topic_ids.get(log.name.topic)
        path = log.path / PARTITION_METADATA
        if known is None or not path.exists():
            continue
        try:
            found = read_topic_id(path)
        except StorageEngineError as error:
            yield Finding(Severity.URGENT, "topic-id", reason_of(error))
            continue
        if found != known:
            yield Finding(
                Severity.URGENT,
                "topic-id",
                f"{path} has topic id {text_of(found)}, and the cluster's metadata have {text_of(known)}",
                "start no broker on it: it would set the log aside and serve the partition empty",
            )


def _logs(node: Node, topics: TopicSettings, now_ms: int) -> Iterator[Finding]:
    for directory, log in node.logs:
        try:
            yield from _log(directory, log, topics, now_ms)
        except OSError as error:
            yield Finding(Severity.WARNING, "unreadable", f"log {log.name.log}: {error}")


def _log(directory: LogDirectory, log: PartitionLog, topics: TopicSettings, now_ms: int) -> Iterator[Finding]:
    name = log.name.log
    end = end_offset(log)
    start = directory.log_starts.get(name)
    if start is not None and start > end:
        yield Finding(
            Severity.URGENT,
            "start-above-end",
            f"log {name}: its start {start} in the checkpoint lies above its end {end}",
            "start no broker on it: it would delete all of its segments",
        )
    watermark = directory.high_watermarks.get(name)
    if watermark is not None and log.segments[:-1] and watermark < log.segments[-1].base_offset:
        yield Finding(
            Severity.WARNING,
            "high-watermark-behind",
            f"log {name}: high watermark {watermark}, but its last segment begins at "
            f"{log.segments[-1].base_offset}: nothing above it is deleted",
            "look for the replica that doesn't follow",
        )
    settings = topics.of(log.name.topic)
    if isinstance(settings, str) or settings.compact or settings.kept_ms < 0 or log.name.is_internal:
        return
    facts = [segment_facts(one, active=one is log.segments[-1]) for one in log.segments]
    future = next((one for one in facts if one.largest_timestamp_ms > now_ms), None)
    if future is not None:
        yield Finding(
            Severity.WARNING,
            "future-timestamp",
            f"log {name}: segment {future.base_offset} has a record of "
            f"{time_text(future.largest_timestamp_ms)}, in the future: retention.ms stops there",
            "wait until then, set retention.bytes, or delete records up to it",
        )
    if len(facts) == 1 and facts[0].size_bytes and now_ms - facts[0].largest_timestamp_ms > settings.kept_ms:
        yield Finding(
            Severity.NOTE,
            "active-segment",
            f"log {name}: all of it has expired, in its active segment: the broker closes it first",
        )


def _left_over(node: Node) -> Iterator[Finding]:
    for directory in node.directories:
        for state, words in _ASIDE.items():
            logs = [log for log in directory.aside if log.name.state is state]
            if logs:
                size = sum(log.size_bytes for log in logs)
                what = f"{directory.path}: {len(logs)} directories {words} ({bytes_text(size)})"
                severity = Severity.WARNING if state is DirectoryState.STRAY else Severity.NOTE
                yield Finding(severity, f"directories-{state.value}", what)
        found: Counter[FileState] = Counter()
        for log in directory.logs:
            for left, facts in log.left_over:
                found[left] += facts.size_bytes
        for left, size in found.items():
            what = f"{directory.path}: {bytes_text(size)} in .{left.value} files"
            yield Finding(Severity.NOTE, f"files-{left.value}", what, _advice(left))


def _advice(state: FileState) -> str:
    if state is FileState.DELETED:
        return "the broker removes them after file.delete.delay.ms, or when it starts"
    return "leave them: when the broker starts it ends by them what was interrupted"
