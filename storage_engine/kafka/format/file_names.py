"""Names of files in a log directory, and how such files are read."""

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
"""Whose records Kafka itself writes and reads."""


class DirectoryState(StrEnum):
    """Purpose of a directory in a log directory."""

    LOG = "log"
    DELETED = "delete"
    """Directory of a topic or replica that is gone; removed after ``log.segment.delete.delay.ms``."""
    FUTURE = "future"
    """A copy that is being made of a log in another log directory of the node."""
    STRAY = "stray"
    """Set aside at a start: its cluster doesn't know it, or knows it by another topic id."""


class FileKind(StrEnum):
    """Kind of a log's file, by its suffix."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"


class FileState(StrEnum):
    """Fate of a file when the broker starts, or later."""

    IN_USE = ""
    DELETED = "deleted"
    """Removed after ``file.delete.delay.ms``, or at the next start."""
    CLEANED = "cleaned"
    """Half written by the cleaner or a split; removed at the next start."""
    SWAP = "swap"
    """Written whole by the cleaner or a split; takes the place of others at the next start."""


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The parts of a directory's name.

    :param unique: tells directories of the same name apart; "" for a log.
    """

    topic: str
    partition: int
    state: DirectoryState
    unique: str

    @property
    def log(self) -> str:
        """Return ``<topic>-<partition>``."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_internal(self) -> bool:
        return self.topic in INTERNAL_TOPICS


class LogFile(NamedTuple):
    """The parts of the name of a log's file.

    :param offset: of the segment's first record; of a snapshot, below which it knows the producers.
    """

    offset: int
    kind: FileKind
    state: FileState


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z", re.ASCII)
_ASIDE = re.compile(r"(?P<log>.+)\.(?P<unique>[0-9a-f]{32})-(?P<state>delete|future|stray)\Z", re.ASCII)
_ASIDE_ENDINGS = ("-delete", "-future", "-stray")
OFFSET_DIGITS: Final = 20
"""Digits that a file's name begins with."""
_SUFFIXES = {
    f".{kind.value}{f'.{state.value}' if state.value else ''}": (kind, state)
    for kind in FileKind
    for state in FileState
}
_MAX_PARTITION = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1


def partition_directory(name: str) -> PartitionDirectory | None:
    """Return the partition in a directory's name (LocalLog#parseTopicPartitionName); None: it is no log's."""
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
    """Return the segment's file that a name stands for (LogFileUtils); None: it is no segment's file."""
    found = kind_and_state(name)
    offset = offset_of(name[:OFFSET_DIGITS])
    return None if found is None or offset is None else LogFile(offset, *found)


def kind_and_state(name: str) -> tuple[FileKind, FileState] | None:
    """Return a file's kind and state by its name behind the :data:`OFFSET_DIGITS`; None: it has none."""
    return _SUFFIXES.get(name[OFFSET_DIGITS:])


def offset_of(digits: str) -> int | None:
    """Return the offset that a file's name begins with; None: it begins with none."""
    if not (digits.isascii() and digits.isdecimal()):
        return None
    offset = int(digits)
    return offset if offset <= _MAX_OFFSET else None


MAX_TEXT_BYTES = 64 << 20
"""Longest checkpoint or properties file that is read: of a million partitions and more."""


def read_stored(path: str | Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a whole file, which must be an ordinary one and no symbolic link.

    :raises CorruptFileError: it is of another kind, or too long.
    :raises OSError: it can't be read.
    """
    return read_file(path, max_bytes, follow_links=False)


def check_entries(size_bytes: int, entry_bytes: int, path: str, remedy: str) -> None:
    """Make sure that a file's size is a multiple of what an entry takes.

    :raises CorruptFileError: a file of so many bytes has no whole entries.
    """
    rest = size_bytes % entry_bytes
    if rest:
        raise corrupt(path, size_bytes - rest, f"entries of {entry_bytes} bytes", f"{rest} bytes", remedy)


def corrupt(path: str | Path, at: int, expected: str, found: str, remedy: str) -> CorruptFileError:
    """Make the error of a file.

    :param at: position of the first byte that isn't as it should be.
    """
    return CorruptFileError(
        f"{path}: at byte {at} expected {expected}, found {found}. Nothing was changed. {remedy}"
    )
