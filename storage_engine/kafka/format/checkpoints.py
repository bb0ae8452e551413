"""Checkpoints: text files with a version, the number of entries, and a line for each entry (CheckpointFile).

A log directory has four checkpoints with an offset for each partition. A log's ``leader-epoch-checkpoint``
contains the offset at which each leader's epoch begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from storage_engine.kafka.format.file_names import corrupt, read_stored

START_EVIDENCE = "log_start_offset"
"""Key in a receipt's evidence. Its value is the log's start, if this start is inside the segment."""

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"

VERSION = 0
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)
_MAX_INT = (1 << 31) - 1
_MAX_LONG = (1 << 63) - 1
_PLAIN_HEAD = re.compile(rb"0\n([0-9]{1,9})\n")
_PLAIN_LINE = re.compile(rb"([A-Za-z0-9._-]+) ([0-9]{1,9}) ([0-9]{1,18})\n")
_REMEDY = (
    "Compare it with the logs, and correct it while the broker is stopped: a broker takes the whole log "
    "directory offline because of it."
)
_EPOCH_REMEDY = "Compare it with a replica's: followers cut off their logs by it."


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """A leader's epoch. Its leader appended the records from ``start_offset`` on."""

    epoch: int
    start_offset: int


def read_offsets(path: Path) -> Mapping[str, int]:
    """Read one of a log directory's checkpoints: the offset of each log, by ``<topic>-<partition>``.

    A file of 0 bytes, as the broker has just created it, contains no offsets.

    :raises CorruptFileError: the version, the count or a line is wrong.
    :raises OSError: the checkpoint is missing, or can't be read.
    """
    return parse_offsets(read_stored(path), str(path))


def parse_offsets(data: bytes, path: str) -> Mapping[str, int]:
    """Return the offsets in a checkpoint's bytes; see :func:`read_offsets`."""
    if (plain := _plain_offsets(data)) is not None:
        return plain
    offsets: dict[str, int] = {}
    for at, line in _lines(data, path, _REMEDY):
        words = line.split(" ")
        numbers = [_number(word, most) for word, most in zip(words[1:], (_MAX_INT, _MAX_LONG), strict=False)]
        if len(words) != 3 or not words[0] or len(numbers) != 2 or None in numbers:
            raise corrupt(path, at, "topic, partition and offset", repr(line[:200]), _REMEDY)
        partition, offset = numbers
        offsets[f"{words[0]}-{partition}"] = offset or 0
    return offsets


def _plain_offsets(data: bytes) -> dict[str, int] | None:
    """Parse a checkpoint that has exactly the form that a broker writes; None if it hasn't.

    This is a fast path: a log directory may have tens of thousands of logs.
    """
    head = _PLAIN_HEAD.match(data)
    if head is None:
        return None
    lines = _PLAIN_LINE.findall(data, head.end())
    used_bytes = sum(map(len, chain.from_iterable(lines))) + 3 * len(lines)
    if len(lines) != int(head[1]) or head.end() + used_bytes != len(data):
        return None
    return {f"{topic.decode('ascii')}-{int(number)}": int(offset) for topic, number, offset in lines}


def read_leader_epochs(path: str | Path) -> tuple[LeaderEpoch, ...]:
    """Read a log's epochs, oldest first.

    :raises CorruptFileError: the version, the count or a line is wrong, or epochs or offsets don't grow.
    :raises OSError: the file can't be read.
    """
    return parse_leader_epochs(read_stored(path), str(path))


def parse_leader_epochs(data: bytes, path: str) -> tuple[LeaderEpoch, ...]:
    """Return the epochs in a checkpoint's bytes; see :func:`read_leader_epochs`."""
    epochs: list[LeaderEpoch] = []
    for at, line in _lines(data, path, _EPOCH_REMEDY):
        words = line.split(" ")
        epoch = _number(words[0], _MAX_INT)
        start = _number(words[1], _MAX_LONG) if len(words) == 2 else None
        if epoch is None or start is None:
            raise corrupt(path, at, "epoch and start offset", repr(line[:200]), _EPOCH_REMEDY)
        if epochs and (epoch <= epochs[-1].epoch or start < epochs[-1].start_offset):
            above = f"an epoch above {epochs[-1].epoch} that begins at {epochs[-1].start_offset} or behind"
            raise corrupt(path, at, above, repr(line), _EPOCH_REMEDY)
        epochs.append(LeaderEpoch(epoch, start))
    return tuple(epochs)


def offsets_text(offsets: Iterable[tuple[str, int, int]]) -> bytes:
    """Return the text of a log directory's checkpoint, from topic, partition and offset of each log."""
    return _text(f"{topic} {partition} {offset}" for topic, partition, offset in offsets)


def leader_epochs_text(epochs: Iterable[LeaderEpoch]) -> bytes:
    return _text(f"{epoch.epoch} {epoch.start_offset}" for epoch in epochs)


def _text(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(entries)), *entries)).encode()


def _number(word: str, most: int) -> int | None:
    """Return a whole number from 0 to ``most``; None if the text is no such number."""
    value = int(word) if _NUMBER.match(word) else -1
    return value if 0 <= value <= most else None


def _lines(data: bytes, path: str, remedy: str) -> Iterator[tuple[int, str]]:
    """Yield the lines after version and count, each with its position."""
    if not data:
        return
    lines = list(_split(data))
    at, version = lines[0]
    if version != str(VERSION).encode():
        raise corrupt(path, at, f"version {VERSION}", _word_text(version), remedy)
    at, count = lines[1] if len(lines) > 1 else (len(data), b"")
    expected = _number(count.decode("ascii", "replace"), _MAX_INT)
    if expected is None:
        raise corrupt(path, at, "the number of lines", _word_text(count), remedy)
    entries = lines[2:]
    if len(entries) != expected:
        raise corrupt(path, at, f"{expected} lines behind it", str(len(entries)), remedy)
    for at, line in entries:
        try:
            yield at, line.decode()
        except UnicodeDecodeError as error:
            raise corrupt(path, at + error.start, "UTF-8", _word_text(line), remedy) from error


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines with their positions, as Java's readers split them: CRLF also ends a line."""
    at = 0
    for line in data.removesuffix(b"\n").split(b"\n"):
        yield at, line.removesuffix(b"\r")
        at += len(line) + 1


def _word_text(word: bytes) -> str:
    return repr(word[:60].decode("utf-8", "backslashreplace")) if word else "nothing"
