"""Names of files in a log directory, and the reading of such files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from storage_engine.core.untrusted import read_file
from storage_engine.exceptions import CorruptFileError

METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__remote_log_metadata",
        METADATA_TOPIC,
    }
)
"""Topics whose records only Kafka itself writes and reads."""


class DirectoryState(StrEnum):
    """Purpose of a directory in a log directory, by its name."""

    LOG = "log"
    DELETED = "delete"
    """Directory of a topic or replica that was deleted; removed after ``log.segment.delete.delay.ms``."""
    FUTURE = "future"
    """Unfinished copy of a log that is in another log directory of the node."""
    STRAY = "stray"
    """Directory that a broker set aside at its start: the cluster has no such topic, or its id differs."""


class FileKind(StrEnum):
    """Kind of a log's file, by its suffix."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


class FileState(StrEnum):
    """The broker's next action on a file, when it starts or later."""

    IN_USE = ""
    DELETED = "deleted"
    """Removed after ``file.delete.delay.ms``, or at the next start."""
    CLEANED = "cleaned"
    """Half written by the cleaner or by a split of a segment; removed at the next start."""
    SWAP = "swap"
    """Fully written by the cleaner or by a split of a segment; replaces other files at the next start."""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The parts of a directory's name. ``unique`` tells directories of a log apart; "" for the log itself."""

    topic: str
    partition: int
    state: DirectoryState
    unique: str

    @property
    def log(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_internal(self) -> bool:
        return self.topic in INTERNAL_TOPICS


class LogFile(NamedTuple):
    """The parts of a file's name. ``offset`` is the segment's. A snapshot has the producers below it."""

    offset: int
    kind: FileKind
    state: FileState


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z", re.ASCII)
_ASIDE = re.compile(r"(?P<log>.+)\.(?P<unique>[0-9a-f]{32})-(?P<state>delete|future|stray)\Z", re.ASCII)
_ASIDE_ENDINGS = ("-delete", "-future", "-stray")
OFFSET_DIGITS: Final = 20
"""Number of digits at the start of a file's name."""
_SUFFIXES = {
    f".{kind.value}{f'.{state.value}' if state.value else ''}": (kind, state)
    for kind in FileKind
    for state in FileState
}
_MAX_PARTITION = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


def partition_directory(name: str) -> PartitionDirectory | None:
    """Parse the name of a log's directory (LocalLog#parseTopicPartitionName); None for other names."""
    aside = _ASIDE.match(name) if name.endswith(_ASIDE_ENDINGS) else None
    log = aside["log"] if aside else name
    topic, _, number = log.rpartition("-")
    if not _TOPIC.match(topic) or topic in (".", "..") or not (number.isascii() and number.isdecimal()):
        return None
    # A log's own name has no leading zeros: a broker would make another directory for it.
    if str(int(number)) != number or int(number) > _MAX_PARTITION:
        return None
    state = DirectoryState(aside["state"]) if aside else DirectoryState.LOG
    return PartitionDirectory(topic, int(number), state, aside["unique"] if aside else "")


def log_file(name: str) -> LogFile | None:
    """Return the parts of the name of a segment's file (LogFileUtils); None if it is no segment's file."""
    parsed = kind_and_state(name)
    offset = offset_of(name[:OFFSET_DIGITS])
    return None if parsed is None or offset is None else LogFile(offset, *parsed)


def kind_and_state(name: str) -> tuple[FileKind, FileState] | None:
    """Return a file's kind and state, by its name's suffix; None if it is no file of a log."""
    return _SUFFIXES.get(name[OFFSET_DIGITS:])


def offset_of(digits: str) -> int | None:
    """Return the offset at the start of a file's name; None if the name begins with no offset."""
    if not (digits.isascii() and digits.isdecimal()):
        return None
    offset = int(digits)
    return offset if offset <= _MAX_OFFSET else None


MAX_TEXT_BYTES = 64 << 20
"""Longest checkpoint or properties file that is read: enough for a million partitions."""


def read_stored(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a whole file. It must be an ordinary file and no symbolic link.

    :raises CorruptFileError: the file is of another kind, or too long.
    :raises OSError: the file can't be read.
    """
    return read_file(path, max_bytes, follow_links=False)


def check_entries(size_bytes: int, entry_bytes: int, path: str, remedy: str) -> None:
    """Make sure that a file contains only whole entries.

    :raises CorruptFileError: its size isn't a multiple of an entry's size.
    """
    rest = size_bytes % entry_bytes
    if rest:
        raise corrupt(path, size_bytes - rest, f"entries of {entry_bytes} bytes", f"{rest} bytes", remedy)


def corrupt(path: str | Path, at: int, expected: str, found: str, remedy: str) -> CorruptFileError:
    """Make the error for a damaged file. ``at`` is the position of the first unexpected byte."""
    return CorruptFileError(
        f"{path}: at byte {at} expected {expected}, found {found}. Nothing was changed. {remedy}"
    )
