"""Levels of a node's log directories, their growth, and how much they differ. Pure but for disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.rules import RetentionSettings
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.store import DiskUsage, fills_in_ms

_MILLION = 1_000_000
_UNLIKE = 2
_UNLIKE_BYTES = 1 << 30
_SOON_MS = 3 * DAY_MS
_FULL_PERCENT = 99


@dataclass(frozen=True, slots=True)
class DirectoryRoom:
    """A log directory by its bytes.

    :param came_bytes: written within a day.
    :param goes_bytes: bytes that retention deletes within a day, as far as known.
    """

    path: str
    logs: int
    size_bytes: int
    came_bytes: int
    goes_bytes: int
    disk: DiskUsage


def rooms_of(node: Node, topics: TopicSettings, at_ms: int) -> tuple[DirectoryRoom, ...]:
    """Measure a node's log directories.

    :param at_ms: end of the day that is looked at: now, or when a stopped node last did something.
    """
    return tuple(_room(directory, topics, at_ms) for directory in node.directories)


def _room(directory: LogDirectory, topics: TopicSettings, at_ms: int) -> DirectoryRoom:
    came = goes = 0
    for log in directory.logs:
        of_log = came_bytes(log, at_ms)
        came += of_log
        goes += _goes_bytes(log, topics.of(log.name.topic), of_log, at_ms)
    logs = (*directory.logs, *directory.aside)
    size = sum(log.size_bytes + sum(facts.size_bytes for _, facts in log.left_over) for log in logs)
    disk = DiskUsage.of(directory.path)
    return DirectoryRoom(str(directory.path), len(directory.logs), size, came, goes, disk)


def came_bytes(log: PartitionLog, at_ms: int) -> int:
    """Return about how much was written to a log within a day, by when its segments were last written to.

    A segment was begun when the one before it was closed: what of it lies within the day, counts.
    """
    since_ms, found = at_ms - DAY_MS, 0
    begun_ms: int | None = None
    for segment in log.segments:
        closed_ms = segment.log.mtime_ns // _MILLION
        if closed_ms > since_ms:
            inside = 1.0
            if begun_ms is not None and begun_ms < since_ms:
                inside = (closed_ms - since_ms) / (closed_ms - begun_ms)
            found += int(segment.log.size_bytes * inside)
        begun_ms = closed_ms
    return found


def _goes_bytes(log: PartitionLog, settings: RetentionSettings | str, came: int, at_ms: int) -> int:
    """Return about how much retention takes of a log within a day; of what isn't known, nothing."""
    if isinstance(settings, str) or settings.compact or not settings.delete:
        return 0
    if 0 <= settings.kept_bytes <= log.size_bytes:
        # It is as large as it may be: what comes takes the place of as much.
        return came
    if settings.kept_ms < 0:
        return 0
    ends = at_ms + DAY_MS - settings.kept_ms
    return sum(one.log.size_bytes for one in log.segments[:-1] if one.log.mtime_ns // _MILLION < ends)


def room_findings(rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield of each directory how much it has and when its disk is full, and how unlike they are."""
    for room in rooms:
        sharing = [one for one in rooms if one.disk.device == room.disk.device]
        fills_ms = _fills_ms(sharing, room.disk)
        severity = Severity.NOTE
        if fills_ms is not None and fills_ms < _SOON_MS:
            severity = Severity.URGENT if fills_ms < DAY_MS else Severity.WARNING
        disk = room.disk
        level = (
            "its disk can't be measured"
            if disk.used_percent is None
            else f"its disk is {disk.used_percent} % used, {bytes_text(disk.usable_bytes)} free"
        )
        yield Finding(
            severity,
            "log-directory",
            f"{room.path}: {count_text(room.logs, 'log')}, {bytes_text(room.size_bytes)}; {level}; within a "
            f"day {bytes_text(room.came_bytes)} came and {bytes_text(room.goes_bytes)} go: "
            f"{_full_text(fills_ms, sharing)}",
            "" if severity is Severity.NOTE else "lower retention.bytes of the largest topics, or add space",
        )


def full_disks(rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield of a stopped node which of its disks are so full that its broker may not start."""
    for room in rooms:
        if room.disk.used_percent is not None and room.disk.used_percent >= _FULL_PERCENT:
            yield Finding(
                Severity.URGENT,
                "disk-full",
                f"{room.path}: its disk has {bytes_text(room.disk.usable_bytes)} free, and no broker runs: "
                "one that starts has to write",
                Text(
                    "free space with proof: ", Command("kafka make-room"), ", with --broker for one that runs"
                ),
            )


def _fills_ms(sharing: Sequence[DirectoryRoom], disk: DiskUsage) -> int | None:
    """Return in how long a disk is full by what all its directories gain; None: not known, or never."""
    gained = sum(one.came_bytes - one.goes_bytes for one in sharing)
    return None if disk.usable_bytes is None else fills_in_ms(disk.usable_bytes, gained)


def _full_text(fills_ms: int | None, sharing: Sequence[DirectoryRoom]) -> str:
    if fills_ms is None:
        return "it doesn't fill" if all(one.disk.usable_bytes is not None for one in sharing) else "unknown"
    if fills_ms > 365 * DAY_MS:
        return "not full within a year"
    others = " by all directories on it" if len(sharing) > 1 else ""
    return f"full in {duration_text(fills_ms)}{others}"


def imbalance(node: Node, rooms: Sequence[DirectoryRoom]) -> Iterator[Finding]:
    """Yield that one log directory has far more than another: a broker places logs by their number alone."""
    places = {
        str(one.path)
        for one in node.directories
        if node.properties is None or one.path in node.properties.log_dirs
    }
    known = sorted((room for room in rooms if room.path in places), key=lambda room: room.size_bytes)
    if len(known) < 2:
        return
    least, most = known[0], known[-1]
    more = most.size_bytes - least.size_bytes
    if most.size_bytes < _UNLIKE * least.size_bytes or more < _UNLIKE_BYTES:
        return
    fuller = (most.disk.used_percent or 0) - (least.disk.used_percent or 0)
    yield Finding(
        Severity.WARNING if fuller >= 20 else Severity.NOTE,
        "directories-unlike",
        f"log directories are unlike: {most.path} has {bytes_text(most.size_bytes)} in "
        f"{count_text(most.logs, 'log')}, {least.path} {bytes_text(least.size_bytes)} in "
        f"{count_text(least.logs, 'log')}",
        "kafka-reassign-partitions.sh moves replicas between a broker's log directories",
    )


def internal_findings(node: Node, at_ms: int) -> Iterator[Finding]:
    """Yield the bytes that Kafka's own topics take, and their growth."""
    sizes: dict[str, list[tuple[int, int]]] = {}
    for _, log in node.logs:
        if log.name.is_internal and log.name.topic != METADATA_TOPIC:
            sizes.setdefault(log.name.topic, []).append((log.size_bytes, came_bytes(log, at_ms)))
    yield from (_internal(topic, found) for topic, found in _largest_first(sizes))


def _largest_first(
    sizes: Mapping[str, list[tuple[int, int]]],
) -> list[tuple[str, list[tuple[int, int]]]]:
    return sorted(sizes.items(), key=lambda one: -sum(size for size, _ in one[1]))


def _internal(topic: str, found: Sequence[tuple[int, int]]) -> Finding:
    size, came = sum(one for one, _ in found), sum(one for _, one in found)
    largest = max(one for one, _ in found)
    return Finding(
        Severity.NOTE,
        "internal-topic",
        f"{topic}: {count_text(len(found), 'log')} of {bytes_text(size)}, the largest {bytes_text(largest)}; "
        f"{bytes_text(came)} were written within a day",
    )
