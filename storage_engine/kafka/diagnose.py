"""Findings about a node's directories, and reasons why expected deletions have not happened."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.own_directory import PLAIN_STAMP
from storage_engine.core.wording import bytes_text, count_text, reason_text, time_text
from storage_engine.exceptions import BrokerError, NotOnBrokerError, StorageEngineError, StoreNotFoundError
from storage_engine.kafka.format.checkpoints import HIGH_WATERMARK
from storage_engine.kafka.format.file_names import METADATA_TOPIC, DirectoryState, FileState
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.format.log_end import end_offset, segment_facts
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.server_properties import RETENTION_SETTINGS
from storage_engine.kafka.metadata.log_faults import (
    emptied,
    epochs_fault,
    holes,
    link_fault,
    start_fault,
    topic_fault,
)
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.cleaner import cleaner_findings
from storage_engine.kafka.stopped.directory_room import (
    full_disks,
    imbalance,
    internal_findings,
    room_findings,
    rooms_of,
)
from storage_engine.kafka.stopped.store_lock import lock_holder
from storage_engine.kafka.store.absent_logs import ADVICE, missing_logs, missing_text
from storage_engine.kafka.transactions import find_open, transaction_findings
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.diagnosis import (
    BrokerDiagnosis,
    Finding,
    SettingFrom,
    SettingInEffect,
    Severity,
    named_in_short,
    reason_of,
)

_MOST_NAMED = 10
_OVERDUE_MS = HOUR_MS
"""A minute is what a broker waits by default before it removes a directory."""
_SLOW_MOVE_MS = DAY_MS
_WORDS = {
    DirectoryState.DELETED: "belongs to a topic or replica that is gone",
    DirectoryState.FUTURE: "is the copy of a log that moves to this directory",
    DirectoryState.STRAY: "was set aside at a start: the cluster doesn't know it by its topic id",
}
_ADVICE = {
    DirectoryState.DELETED: "the broker removes it log.segment.delete.delay.ms after that, or when it starts",
    DirectoryState.FUTURE: "kafka-reassign-partitions.sh --verify says if the move goes on; --cancel ends it",
    DirectoryState.STRAY: "no broker removes it: see that its topic was deleted on purpose, then remove it",
}


def diagnose(
    settings: StoreSettings, now_ms: int, look: Callable[[Path], Node] = read_node
) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Inspecting.diagnose`.

    :param look: by which the node is looked at, such as beside its running cluster.
    """
    try:
        node = look(Path(settings.root))
    except (StoreNotFoundError, BrokerError, NotOnBrokerError):
        raise
    except StorageEngineError as error:
        remedy = str(error).partition(" Nothing was changed. ")[2].removesuffix(".")
        advice = remedy or "put it right while the broker is stopped"
        finding = Finding(Severity.URGENT, "layout", reason_of(error), advice)
        return BrokerDiagnosis(findings=(finding,), refused=True)
    topics = read_topic_settings(node)
    holders = {lock_holder(directory.path) for directory in node.directories} - {None}
    running = bool(holders) or node.live is not None
    at_ms = now_ms if running else _last_active_ms(node, now_ms)
    ends = dict(_ends(node))
    opened = find_open(node, ends)
    rooms = rooms_of(node, topics, at_ms)
    faulty: set[str] = set()
    findings = [
        *_states(node, running=running),
        *_missing(node),
        *_settings(node, topics),
        *_unknown_watermarks(node),
        *_watermarks_behind(node, topics, running=running),
        *_logs(node, topics, ends, now_ms, faulty),
        *transaction_findings(opened, topics.node, at_ms),
        *cleaner_findings(node, topics, opened.first_offsets, at_ms),
        *room_findings(rooms),
        *(() if running else full_disks(rooms)),
        *imbalance(node, rooms),
        *internal_findings(node, at_ms),
        *left_behind(node, at_ms, running=running),
    ]
    return BrokerDiagnosis(
        layout=_layout(node),
        running=bool(holders),
        running_text=", ".join(f"process {one}" for one in sorted(filter(None, holders))),
        settings=_in_effect(topics),
        findings=tuple(findings),
        faulty_logs=frozenset(faulty),
    )


def _last_active_ms(node: Node, now_ms: int) -> int:
    """Return when a stopped broker last did something: it writes its high watermarks every 5 seconds."""
    paths = (directory.path / HIGH_WATERMARK for directory in node.directories)
    known = [path.stat().st_mtime_ns // 1_000_000 for path in paths if path.exists()]
    return min(max(known, default=now_ms), now_ms)


def _ends(node: Node) -> Iterator[tuple[str, int]]:
    """Yield where logs end; one that vanishes meanwhile, or can't be read, is left out."""
    for _, log in node.logs:
        with suppress(OSError):
            yield log.name.log, end_offset(log)


def _layout(node: Node) -> tuple[str, ...]:
    internal = sum(log.name.is_internal for _, log in node.logs)
    return (
        "ZooKeeper" if node.zookeeper else "KRaft",
        count_text(len(node.directories), "directory"),
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
            f"no broker runs, and {named_in_short(unclean)} has no whole marker of a clean stop",
            "let the broker recover it: start it on all of its log.dirs",
        )
    if running and node.live is None:
        address = "HOST:PORT" if node.properties is None else node.properties.client_address
        yield Finding(
            Severity.NOTE,
            "running",
            "a broker runs on this node: its checkpoints are a little behind, and settings of its start "
            "may be in no file",
            f"ask its cluster as well: --broker {address}",
        )
    if len(node.broker_epochs) > 1:
        found = ", ".join(map(str, sorted(node.broker_epochs)))
        yield Finding(
            Severity.WARNING,
            "markers-differ",
            f"log directories have markers of different stops, of the broker's epochs {found}",
            "expect the controller to take the stop for an unclean one: see that other replicas are in sync",
        )
    for one in node.directories:
        if one.fault:
            yield Finding(
                Severity.URGENT,
                "directory-offline",
                f"{one.fault}: a broker takes {one.path} offline, and nothing of its "
                f"{count_text(len(one.logs), 'log')} is planned or archived",
                "compare the file with the logs, and bring it back from a backup while the broker is stopped",
            )
    unformatted = [str(one.path) for one in node.directories if one.meta is None and not one.fault]
    if unformatted:
        yield Finding(
            Severity.WARNING,
            "no-meta-properties",
            f"{named_in_short(unformatted)} has no meta.properties, so nothing says whose it is",
            "bring the file back from a backup: a broker doesn't start without it",
        )
    if not any((one.path / PLAIN_STAMP).is_file() for one in node.directories):
        yield Finding(
            Severity.NOTE,
            "no-stamp",
            "log directories have no stamp of a store: a copy of this node looks the same",
        )


def _missing(node: Node) -> Iterator[Finding]:
    """Yield logs that lie in no directory, by the node's own copy of the metadata, whatever runs."""
    if missing := missing_logs(node, read_topic_settings(replace(node, live=None))):
        yield Finding(Severity.WARNING, "logs-missing", missing_text(missing), ADVICE)


def _settings(node: Node, topics: TopicSettings) -> Iterator[Finding]:
    if topics.unknown:
        advice = "name the node's server.properties as STORE, on its own disk"
        if node.zookeeper:
            advice = "ask its running cluster, which tells them: --broker HOST:PORT"
        what = f"settings of topics are unknown, so nothing is planned: {topics.unknown}"
        yield Finding(Severity.WARNING, "settings-unknown", what, advice)


def _logs(
    node: Node, topics: TopicSettings, ends: Mapping[str, int], now_ms: int, faulty: set[str]
) -> Iterator[Finding]:
    """Yield faults of logs.

    :param faulty: receives the names of those that no archive takes as they are.
    """
    for directory, log in node.logs:
        try:
            if log.name.log not in ends:
                end_offset(log)
            else:
                end = ends[log.name.log]
                faults = list(_faults(directory, log, topics, end))
                if faults or link_fault(log):
                    faulty |= set() if log.name.is_internal else {log.name.log}
                yield from faults
                yield from _log(log, topics, now_ms)
        except OSError as error:
            yield Finding(Severity.WARNING, "unreadable", f"log {log.name.log}: {reason_text(error)}")


def _unknown_watermarks(node: Node) -> Iterator[Finding]:
    names = [
        log.name.log
        for directory, log in node.logs
        if not directory.fault
        and log.name.topic != METADATA_TOPIC
        and log.name.log not in directory.high_watermarks
    ]
    if names:
        yield Finding(
            Severity.WARNING,
            "high-watermark-unknown",
            f"no checkpoint has the high watermark of {count_text(len(names), 'log')}, "
            f"{named_in_short(names)}: nothing of those is planned to go or archived",
            "bring replication-offset-checkpoint back, or ask the running cluster",
        )


def _watermarks_behind(node: Node, topics: TopicSettings, *, running: bool) -> Iterator[Finding]:
    """Yield logs with closed segments above their high watermark, grouped by their remedy.

    Without another replica the checkpoint alone is behind, which its broker writes every 5 seconds: after a
    stop that wasn't clean, of which another finding tells, and while it runs. It takes the log's end for the
    high watermark as soon as it leads (Partition#maybeIncrementLeaderHW).
    """
    waiting: dict[str, list[str]] = {}
    for directory, log in node.logs:
        name, watermark = log.name.log, directory.high_watermarks.get(log.name.log)
        if watermark is None or not log.segments[:-1] or watermark >= log.segments[-1].base_offset:
            continue
        advice = "look for the replica that doesn't follow"
        if name in topics.only_replicas:
            if running or node.left_uncleanly:
                continue
            advice = "start the broker: it has the only replica, and sets the high watermark to the log's end"
        last = log.segments[-1].base_offset
        waiting.setdefault(advice, []).append(f"{name} ({watermark}, its last segment begins at {last})")
    for advice, logs in waiting.items():
        yield Finding(
            Severity.WARNING,
            "high-watermark-behind",
            f"the high watermark of {count_text(len(logs), 'log')} lies below the last segment, "
            f"{named_in_short(logs)}: nothing above it is deleted",
            advice,
        )


def _faults(directory: LogDirectory, log: PartitionLog, topics: TopicSettings, end: int) -> Iterator[Finding]:
    """Yield why no broker should start on a log, and no archive takes it."""
    name = log.name.log
    if not topics.unknown and (fault := topic_fault(log, topics)):
        yield Finding(
            Severity.URGENT,
            "topic-id",
            fault,
            "start no broker on it: it would set the log aside and serve the partition empty",
        )
    if fault := start_fault(directory, log, end):
        yield Finding(Severity.URGENT, "start-above-end", fault, "start no broker on it")
    if fault := epochs_fault(directory, log, end):
        yield Finding(
            Severity.URGENT,
            "leader-epochs",
            f"log {name}: {fault}",
            "compare it with a replica's, and put it right while the broker is stopped: a broker takes its "
            "log directory offline where it can't read it, and followers cut off their logs by it",
        )
    settings = topics.of(log.name.topic)
    if not isinstance(settings, str) and not settings.compact:
        for fault in tuple(emptied(directory, log)) or holes(directory, log, log.segments):
            yield Finding(
                Severity.URGENT,
                "hole",
                f"log {name}: {fault}",
                "compare it with a replica: readers skip a hole without an error",
            )


def _log(log: PartitionLog, topics: TopicSettings, now_ms: int) -> Iterator[Finding]:
    name, settings = log.name.log, topics.of(log.name.topic)
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


def left_behind(node: Node, at_ms: int, *, running: bool) -> Iterator[Finding]:
    """Yield files in a node's directories that belong to no log, with bytes and times.

    :param at_ms: now; of a stopped node when it last did something.
    """
    for directory in node.directories:
        for state in _WORDS:
            logs = [log for log in directory.aside if log.name.state is state and not log.is_link]
            yield from _directories(directory, state, logs, at_ms, running=running)
        yield from _links(directory)
        yield from _files(directory)


def _directories(
    directory: LogDirectory, state: DirectoryState, logs: list[PartitionLog], at_ms: int, *, running: bool
) -> Iterator[Finding]:
    known = sorted(((all_bytes(log.path), log) for log in logs), key=lambda one: -one[0])
    for size_bytes, log in known[:_MOST_NAMED]:
        since_ms = _since_ms(log, state)
        overdue = running and state is DirectoryState.DELETED and at_ms - since_ms > _OVERDUE_MS
        slow = state is DirectoryState.FUTURE and at_ms - since_ms > _SLOW_MOVE_MS
        is_wrong = state is DirectoryState.STRAY or overdue or slow
        yield Finding(
            Severity.WARNING if is_wrong else Severity.NOTE,
            f"directories-{state.value}",
            f"{log.path} {_WORDS[state]}: {bytes_text(size_bytes)} since {time_text(since_ms)}",
            "look in the broker's log for why it can't remove it" if overdue else _ADVICE[state],
        )
    if rest := known[_MOST_NAMED:]:
        size_bytes = sum(one for one, _ in rest)
        yield Finding(
            Severity.WARNING if state is DirectoryState.STRAY else Severity.NOTE,
            f"directories-{state.value}",
            f"{directory.path}: {count_text(len(rest), 'smaller one')} like these, {bytes_text(size_bytes)}",
            _ADVICE[state],
        )


def _links(directory: LogDirectory) -> Iterator[Finding]:
    for path in (path for log in (*directory.aside, *directory.logs) for path in log.links):
        with suppress(FileNotFoundError):
            yield Finding(
                Severity.WARNING,
                "symbolic-link",
                f"{path} is a symbolic link to {Path(path).readlink()}: what it stands for was not looked "
                "at, and is left alone",
                "find out who made it, and remove it while the broker is stopped: a broker follows it",
            )


def _since_ms(log: PartitionLog, state: DirectoryState) -> int:
    """Return when a directory got its name: a copy when it was made, the others when they were renamed."""
    path = log.path
    if state is DirectoryState.FUTURE and (path / PARTITION_METADATA).exists():
        return (path / PARTITION_METADATA).stat().st_mtime_ns // 1_000_000
    return path.stat().st_ctime_ns // 1_000_000


def all_bytes(path: Path) -> int:
    """Return the bytes of all files in a directory, indexes included; a file that vanishes counts as 0."""
    found = 0
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    found += entry.stat(follow_symlinks=False).st_size
    return found


def _files(directory: LogDirectory) -> Iterator[Finding]:
    sizes: Counter[FileState] = Counter()
    oldest_ns: dict[FileState, int] = {}
    for log in directory.logs:
        for state, facts in log.left_over:
            sizes[state] += facts.size_bytes
            oldest_ns[state] = min(oldest_ns.get(state, facts.ctime_ns), facts.ctime_ns)
    for state, size_bytes in sizes.items():
        since = time_text(oldest_ns[state] // 1_000_000)
        yield Finding(
            Severity.NOTE,
            f"files-{state.value}",
            f"{directory.path}: {bytes_text(size_bytes)} in .{state.value} files, since {since}",
            "the broker removes them after file.delete.delay.ms, or when it starts"
            if state is FileState.DELETED
            else "leave them: when the broker starts, it uses them to finish what was interrupted",
        )
