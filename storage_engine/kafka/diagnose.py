"""Findings about a node's log directories: faults, overdue deletions, and files left behind.

Other findings tell how full the directories' disks are, how fast these disks fill, and how much directories
differ in size. This module only reads files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.core.wording import bytes_text, count_text, duration_text, reason_text, time_text
from storage_engine.exceptions import BrokerError, NotOnBrokerError, StorageEngineError, StoreNotFoundError
from storage_engine.kafka.format.checkpoints import HIGH_WATERMARK
from storage_engine.kafka.format.file_names import METADATA_TOPIC, DirectoryState, FileState
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.format.log_end import end_offset, segment_facts
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.server_properties import RETENTION_SETTINGS
from storage_engine.kafka.metadata.log_faults import (
    epochs_fault,
    find_emptied,
    holes,
    link_fault,
    start_fault,
    topic_fault,
)
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.kafka.stopped.cleaner import cleaner_findings
from storage_engine.kafka.stopped.store_lock import lock_holder
from storage_engine.kafka.store.absent_logs import ADVICE, missing_logs, missing_text
from storage_engine.kafka.transactions import find_open, transaction_findings
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.disk import DiskUsage, fills_in_ms
from storage_engine.model.report.diagnosis import (
    BrokerDiagnosis,
    Finding,
    SettingFrom,
    SettingInEffect,
    Severity,
    named_in_short,
    reason_of,
)

_MILLION = 1_000_000
_UNLIKE = 2
_UNLIKE_BYTES = 1 << 30
_SOON_MS = 3 * DAY_MS
_FULL_PERCENT = 99


@dataclass(frozen=True, slots=True)
class DirectoryRoom:
    """The size and growth of a log directory.

    :param logs: the number of its logs.
    :param came_bytes: bytes written within the last day.
    :param goes_bytes: bytes that retention deletes within the next day, as far as known.
    """

    path: str
    logs: int
    size_bytes: int
    came_bytes: int
    goes_bytes: int
    disk: DiskUsage


def rooms_of(node: Node, topics: TopicSettings, at_ms: int) -> tuple[DirectoryRoom, ...]:
    """Measure a node's log directories.

    :param at_ms: end of the day that is measured: now, or for a stopped node the time of its last activity.
    """
    return tuple(_room(directory, topics, at_ms) for directory in node.directories)


def _room(directory: LogDirectory, topics: TopicSettings, at_ms: int) -> DirectoryRoom:
    written = expiring = 0
    for log in directory.logs:
        of_log = came_bytes(log, at_ms)
        written += of_log
        expiring += _goes_bytes(log, topics.of(log.name.topic), of_log, at_ms)
    logs = (*directory.logs, *directory.aside)
    size = sum(log.size_bytes + log.left_over_bytes for log in logs)
    disk = DiskUsage.of(directory.path)
    return DirectoryRoom(str(directory.path), len(directory.logs), size, written, expiring, disk)


def came_bytes(log: PartitionLog, at_ms: int) -> int:
    """Estimate the bytes written to a log within the last day, by the times of its segments' last writes.

    A segment was begun when the segment before it was closed. If only a part of the time between begin and
    close lies within the day, the same part of the segment's bytes counts.
    """
    since_ms, total = at_ms - DAY_MS, 0
    begun_ms: int | None = None
    for segment in log.segments:
        closed_ms = segment.log.mtime_ns // _MILLION
        if closed_ms > since_ms:
            inside = 1.0
            if begun_ms is not None and begun_ms < since_ms:
                inside = (closed_ms - since_ms) / (closed_ms - begun_ms)
            total += int(segment.log.size_bytes * inside)
        begun_ms = closed_ms
    return total


def _goes_bytes(log: PartitionLog, settings: RetentionSettings | str, written: int, at_ms: int) -> int:
    """Estimate the bytes of a log that retention deletes within the next day; 0 if settings are unknown."""
    if isinstance(settings, str) or settings.compact or not settings.delete:
        return 0
    if 0 <= settings.kept_bytes <= log.size_bytes:
        # The log has its full size, so as many bytes are deleted as are written.
        return written
    if settings.kept_ms < 0:
        return 0
    ends = at_ms + DAY_MS - settings.kept_ms
    return sum(
        segment.log.size_bytes for segment in log.segments[:-1] if segment.log.mtime_ns // _MILLION < ends
    )


def room_findings(rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield a finding for each directory, with its size and the time until its disk is full."""
    for room in rooms:
        disk = room.disk
        sharing = [peer for peer in rooms if peer.disk.device == disk.device]
        gained = sum(peer.came_bytes - peer.goes_bytes for peer in sharing)
        fills_ms = None if disk.usable_bytes is None else fills_in_ms(disk.usable_bytes, gained)
        severity = Severity.NOTE
        if fills_ms is not None and fills_ms < _SOON_MS:
            severity = Severity.URGENT if fills_ms < DAY_MS else Severity.WARNING
        level = (
            "its disk can't be measured"
            if disk.used_percent is None
            else f"its disk is {disk.used_percent} % used, {bytes_text(disk.usable_bytes)} free"
        )
        yield Finding(
            severity,
            "log-directory",
            f"{room.path}: {count_text(room.logs, 'log')}, {bytes_text(room.size_bytes)}; {level}; within a "
            f"day {bytes_text(room.came_bytes)} were written and {bytes_text(room.goes_bytes)} expire: "
            f"{_full_text(fills_ms, sharing)}",
            "" if severity is Severity.NOTE else "lower retention.bytes of the largest topics, or add space",
        )


def full_disks(rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield a finding for each disk of a stopped node that is so full that its broker may not start."""
    for room in rooms:
        if room.disk.used_percent is not None and room.disk.used_percent >= _FULL_PERCENT:
            yield Finding(
                Severity.URGENT,
                "disk-full",
                f"{room.path}: its disk has {bytes_text(room.disk.usable_bytes)} free, and no broker runs: "
                "a broker has to write when it starts",
                Text(
                    "free space with proof: ",
                    Command("kafka make-room"),
                    ", with --broker for a running broker",
                ),
            )


def _full_text(fills_ms: int | None, sharing: Sequence[DirectoryRoom]) -> str:
    if fills_ms is None:
        return "it doesn't fill" if all(room.disk.usable_bytes is not None for room in sharing) else "unknown"
    if fills_ms > 365 * DAY_MS:
        return "not full within a year"
    others = ", if all directories on this disk grow as now" if len(sharing) > 1 else ""
    return f"full in {duration_text(fills_ms)}{others}"


def imbalance(node: Node, rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield a finding if log directories differ much in size: brokers spread logs by number, not by size."""
    places = {
        str(directory.path)
        for directory in node.directories
        if node.properties is None or directory.path in node.properties.log_dirs
    }
    by_size = sorted((room for room in rooms if room.path in places), key=lambda room: room.size_bytes)
    if len(by_size) < 2:
        return
    least, most = by_size[0], by_size[-1]
    more = most.size_bytes - least.size_bytes
    if most.size_bytes < _UNLIKE * least.size_bytes or more < _UNLIKE_BYTES:
        return
    fuller = (most.disk.used_percent or 0) - (least.disk.used_percent or 0)
    yield Finding(
        Severity.WARNING if fuller >= 20 else Severity.NOTE,
        "directories-unlike",
        f"log directories differ in size: {most.path} has {bytes_text(most.size_bytes)} in "
        f"{count_text(most.logs, 'log')}, {least.path} {bytes_text(least.size_bytes)} in "
        f"{count_text(least.logs, 'log')}",
        "kafka-reassign-partitions.sh moves replicas between a broker's log directories",
    )


def internal_findings(node: Node, at_ms: int) -> Iterator[Finding]:
    """Yield a finding for each of Kafka's own topics, with its size and growth, the largest topic first."""
    sizes: dict[str, list[tuple[int, int]]] = {}
    for _, log in node.logs:
        if log.name.is_internal and log.name.topic != METADATA_TOPIC:
            sizes.setdefault(log.name.topic, []).append((log.size_bytes, came_bytes(log, at_ms)))
    for topic, logs in sorted(sizes.items(), key=lambda item: -sum(size for size, _ in item[1])):
        size, written = sum(amount for amount, _ in logs), sum(amount for _, amount in logs)
        largest = max(amount for amount, _ in logs)
        yield Finding(
            Severity.NOTE,
            "internal-topic",
            f"{topic}: {count_text(len(logs), 'log')} of {bytes_text(size)}, the largest "
            f"{bytes_text(largest)}; {bytes_text(written)} were written within a day",
        )


_MOST_NAMED = 10
_OVERDUE_MS = HOUR_MS
"""Time until a deletion counts as overdue. By default, a broker removes a directory after a minute."""
_SLOW_MOVE_MS = DAY_MS
_WORDS = {
    DirectoryState.DELETED: "belongs to a topic or replica that is gone",
    DirectoryState.FUTURE: "is the copy of a log that moves to this directory",
    DirectoryState.STRAY: "was set aside at a start: the cluster doesn't know it by its topic id",
}
_ADVICE = {
    DirectoryState.DELETED: "the broker removes it log.segment.delete.delay.ms later, or when it starts",
    DirectoryState.FUTURE: "kafka-reassign-partitions.sh --verify shows the move's state; --cancel ends it",
    DirectoryState.STRAY: "no broker removes it: check that its topic was deleted on purpose, and remove it",
}


def diagnose(
    settings: StoreSettings, now_ms: int, look: Callable[[Path], Node] = read_node
) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Inspecting.diagnose`.

    :param look: reads the node: only its files, or also the answers of its running cluster.
    """
    try:
        node = look(Path(settings.root))
    except (StoreNotFoundError, BrokerError, NotOnBrokerError):
        raise
    except StorageEngineError as error:
        remedy = str(error).partition(" Nothing was changed. ")[2].removesuffix(".")
        advice = remedy or "correct it while the broker is stopped"
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
        running_text=", ".join(f"process {holder}" for holder in sorted(filter(None, holders))),
        settings=_settings_in_effect(topics),
        findings=tuple(findings),
        faulty_logs=frozenset(faulty),
    )


def _last_active_ms(node: Node, now_ms: int) -> int:
    """Return when a stopped broker was last active: it writes high watermarks every 5 seconds."""
    paths = (directory.path / HIGH_WATERMARK for directory in node.directories)
    times = [path.stat().st_mtime_ns // 1_000_000 for path in paths if path.exists()]
    return min(max(times, default=now_ms), now_ms)


def _ends(node: Node) -> Iterator[tuple[str, int]]:
    """Yield the logs' end offsets. A log that vanishes meanwhile or can't be read is left out."""
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


def _settings_in_effect(topics: TopicSettings) -> tuple[SettingInEffect, ...]:
    named = sorted(RETENTION_SETTINGS & set(topics.node))
    return tuple(SettingInEffect(name, topics.node[name], SettingFrom.CONFIG_FILE) for name in named)


def _states(node: Node, *, running: bool) -> Iterator[Finding]:
    unclean = [str(directory.path) for directory in node.directories if directory.left_uncleanly]
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
            "a broker runs on this node: its checkpoints are a little behind, and settings on its command "
            "line are in no file",
            f"ask its cluster as well: --broker {address}",
        )
    if len(node.broker_epochs) > 1:
        epochs = ", ".join(map(str, sorted(node.broker_epochs)))
        yield Finding(
            Severity.WARNING,
            "markers-differ",
            f"log directories have markers of different stops, of the broker's epochs {epochs}",
            "the controller will treat the stop as unclean: make sure that other replicas are in sync",
        )
    for directory in node.directories:
        if directory.fault:
            yield Finding(
                Severity.URGENT,
                "directory-offline",
                f"{directory.fault}: a broker takes {directory.path} offline, and its "
                f"{count_text(len(directory.logs), 'log')} are neither planned nor archived",
                "compare the file with the logs, and bring it back from a backup while the broker is stopped",
            )
    unformatted = [
        str(directory.path)
        for directory in node.directories
        if directory.meta is None and not directory.fault
    ]
    if unformatted:
        yield Finding(
            Severity.WARNING,
            "no-meta-properties",
            f"{named_in_short(unformatted)} has no meta.properties, so its node and cluster are unknown",
            "bring the file back from a backup: a broker doesn't start without it",
        )
    if not any((directory.path / PLAIN_STAMP).is_file() for directory in node.directories):
        yield Finding(
            Severity.NOTE,
            "no-stamp",
            "log directories have no stamp of a store: this node can't be told from a copy of it",
        )


def _missing(node: Node) -> Iterator[Finding]:
    """Yield a finding about logs that are missing on the node, by its own copy of the metadata."""
    if missing := missing_logs(node, read_topic_settings(replace(node, live=None))):
        yield Finding(Severity.WARNING, "logs-missing", missing_text(missing), ADVICE)


def _settings(node: Node, topics: TopicSettings) -> Iterator[Finding]:
    if topics.unknown:
        advice = "name the node's server.properties as STORE, on its own disk"
        if node.zookeeper:
            advice = "ask its running cluster for them: --broker HOST:PORT"
        text = f"settings of topics are unknown, so nothing is planned: {topics.unknown}"
        yield Finding(Severity.WARNING, "settings-unknown", text, advice)


def _logs(
    node: Node, topics: TopicSettings, ends: Mapping[str, int], now_ms: int, faulty: set[str]
) -> Iterator[Finding]:
    """Yield faults of logs. ``faulty`` receives the names of logs that can't be archived in this state."""
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
            f"{named_in_short(names)}: these logs are not archived, and no deletion from them is planned",
            "bring replication-offset-checkpoint back, or ask the running cluster",
        )


def _watermarks_behind(node: Node, topics: TopicSettings, *, running: bool) -> Iterator[Finding]:
    """Yield logs with closed segments above their high watermark, grouped by their remedy.

    If a log has no other replica, only the checkpoint is behind. The broker writes the checkpoint every 5
    seconds. So the checkpoint is behind while the broker runs, and after an unclean stop. Another finding
    reports that stop. The broker raises the high watermark to the log's end as soon as it leads
    (Partition#maybeIncrementLeaderHW).
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
        waiting.setdefault(advice, []).append(f"{name} ({watermark}; the last segment begins at {last})")
    for advice, logs in waiting.items():
        yield Finding(
            Severity.WARNING,
            "high-watermark-behind",
            f"the high watermark of {count_text(len(logs), 'log')} lies below the last segment, "
            f"{named_in_short(logs)}: nothing above it is deleted",
            advice,
        )


def _faults(directory: LogDirectory, log: PartitionLog, topics: TopicSettings, end: int) -> Iterator[Finding]:
    """Yield faults of a log that a broker must not start on. Such a log is not archived."""
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
            "compare it with a replica's, and correct it while the broker is stopped: a broker that can't "
            "read it takes the log directory offline, and followers cut off their logs by it",
        )
    settings = topics.of(log.name.topic)
    if not isinstance(settings, str) and not settings.compact:
        for fault in tuple(find_emptied(directory, log)) or holes(directory, log, log.segments):
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
    facts = [segment_facts(segment, active=segment is log.segments[-1]) for segment in log.segments]
    future = next((fact for fact in facts if fact.largest_timestamp_ms > now_ms), None)
    if future is not None:
        yield Finding(
            Severity.WARNING,
            "future-timestamp",
            f"log {name}: segment {future.base_offset} has a record of "
            f"{time_text(future.largest_timestamp_ms)}, in the future: retention.ms deletes neither this "
            "segment nor newer ones",
            "wait until then, set retention.bytes, or delete records up to it",
        )
    if len(facts) == 1 and facts[0].size_bytes and now_ms - facts[0].largest_timestamp_ms > settings.kept_ms:
        yield Finding(
            Severity.NOTE,
            "active-segment",
            f"log {name}: all its records have expired, but they are in the active segment, which the broker "
            "has to close first",
        )


def left_behind(node: Node, at_ms: int, *, running: bool) -> Iterator[Finding]:
    """Yield files in a node's directories that belong to no log, with bytes and times.

    :param at_ms: now, or for a stopped node the time of its last activity.
    """
    for directory in node.directories:
        for state in _WORDS:
            logs = [log for log in directory.aside if log.name.state is state and not log.is_link]
            yield from _directories(directory, state, logs, at_ms, running=running)
        for path in (path for log in (*directory.aside, *directory.logs) for path in log.links):
            with suppress(FileNotFoundError):
                yield Finding(
                    Severity.WARNING,
                    "symbolic-link",
                    f"{path} is a symbolic link to {Path(path).readlink()}: its target was not looked at, "
                    "and is left alone",
                    "find out who made it, and remove it while the broker is stopped: a broker follows it",
                )
        yield from _files(directory)


def _directories(
    directory: LogDirectory, state: DirectoryState, logs: list[PartitionLog], at_ms: int, *, running: bool
) -> Iterator[Finding]:
    by_size = sorted(((all_bytes(log.path), log) for log in logs), key=lambda item: -item[0])
    for size_bytes, log in by_size[:_MOST_NAMED]:
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
    if rest := by_size[_MOST_NAMED:]:
        size_bytes = sum(size for size, _ in rest)
        yield Finding(
            Severity.WARNING if state is DirectoryState.STRAY else Severity.NOTE,
            f"directories-{state.value}",
            f"{directory.path}: {count_text(len(rest), 'smaller directory')} like these, "
            f"{bytes_text(size_bytes)}",
            _ADVICE[state],
        )


def _since_ms(log: PartitionLog, state: DirectoryState) -> int:
    """Return when a directory got its present name: when a copy was begun, or a directory renamed."""
    path = log.path
    if state is DirectoryState.FUTURE and (path / PARTITION_METADATA).exists():
        return (path / PARTITION_METADATA).stat().st_mtime_ns // 1_000_000
    return path.stat().st_ctime_ns // 1_000_000


def all_bytes(path: Path) -> int:
    """Return the bytes of all files in a directory, indexes included. A file that vanishes counts as 0."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


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
            else "leave them: when the broker starts, it uses them to finish an interrupted operation",
        )
