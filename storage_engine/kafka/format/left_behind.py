"""What brokers leave in log directories: directories of logs set aside, and files of interrupted work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.kafka.format.file_names import DirectoryState, FileState
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.model.report.diagnosis import Finding, Severity

_MOST_NAMED = 10
_OVERDUE_MS = HOUR_MS
"""A minute is what a broker waits by default before it removes a directory."""
_SLOW_MOVE_MS = DAY_MS
_WORDS = {
    DirectoryState.DELETED: "is of a topic or replica that is gone",
    DirectoryState.FUTURE: "is the copy of a log that moves to this directory",
    DirectoryState.STRAY: "was set aside at a start: the cluster doesn't know it by its topic id",
}
_ADVICE = {
    DirectoryState.DELETED: "the broker removes it log.segment.delete.delay.ms after that, or when it starts",
    DirectoryState.FUTURE: "kafka-reassign-partitions.sh --verify says if the move goes on; --cancel ends it",
    DirectoryState.STRAY: "no broker removes it: see that its topic is gone on purpose, then remove it",
}


def left_behind(node: Node, at_ms: int, *, running: bool) -> Iterator[Finding]:
    """Yield what lies in a node's directories beside its logs, with bytes and since when.

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
                "find out who made it, and take it away while the broker is stopped: a broker follows it",
            )


def _since_ms(log: PartitionLog, state: DirectoryState) -> int:
    """Return when a directory got its name: a copy when it was made, the others when they were renamed."""
    path = log.path
    if state is DirectoryState.FUTURE and (path / PARTITION_METADATA).exists():
        return (path / PARTITION_METADATA).stat().st_mtime_ns // 1_000_000
    return path.stat().st_ctime_ns // 1_000_000


def all_bytes(path: Path) -> int:
    """Return what the files of a directory take, indexes and all; what goes meanwhile counts nothing."""
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
            else "leave them: when the broker starts it ends by them what was interrupted",
        )
