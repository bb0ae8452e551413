"""Facts for validation that a broker's package reads from a store: plain rows, one dataclass for each table.

Facts are gathered without a verdict: a gap, a wrong name or a dead entry becomes a row, not an error.

``subject`` names the thing that a row is about. A missing offset or count is -1, a missing text is "".
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from storage_engine.model.store import FileFacts


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """A segment file by its name and its first frame.

    :param name: the file's name, without an ending that all such files have.
    :param base_offset: base offset in the file's name; -1 where the name is no offset.
    :param first_frame_offset: physical offset in the first frame's header; -1 if there is no such frame.
    :param expected_size_bytes: the configured size, or the size of most files.
    """

    subject: str
    log: str
    name: str
    base_offset: int
    end_offset: int
    first_frame_offset: int
    expected_size_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FrameFact:
    """A segment that was read frame by frame, up to the logical end.

    :param damaged_bytes: bytes that belong to no valid frame.
    :param accepted_damaged_bytes: how many of these bytes the segment's receipt records.
    """

    subject: str
    frames: int
    accepted_damaged_bytes: int
    damaged_bytes: int


@dataclass(frozen=True, slots=True)
class QueueFileFact:
    """A consume queue file; offsets count entries."""

    subject: str
    queue: str
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class QueueFact:
    """A queue's live part.

    :param floor: the smallest offset that any entry may have (0).
    :param first_live_offset: physical offset of the first entry at or above the log's min offset, or -1.
    :param lowest_live_offset: lowest physical offset of the first live entry and the entries read after it.
    :param first_offset: physical offset of the queue's last entry; -1 if the queue has no entry.
    :param last_offset: the greatest end of a message that the last entry or any read entry points to, or -1.
    :param expected_message: topic, queue and queue offset of the first live entry.
    :param found_message: topic, queue and queue offset of the frame that the first live entry points to, or
        "".
    :param left_over_files: number of files that point only below the log's min offset. The queue's last file
        never counts.
    """

    subject: str
    log_min_offset: int
    log_max_offset: int
    first_live_offset: int
    lowest_live_offset: int
    floor: int
    first_offset: int
    last_offset: int
    expected_message: str
    found_message: str
    left_over_files: int


@dataclass(frozen=True, slots=True)
class DispatchFact:
    """One queue's messages in a segment that was read. Each was looked up in the consume queue.

    :param missing: number of messages that the consume queue lacks, so that consumers don't find them.
    """

    subject: str
    messages: int
    missing: int


@dataclass(frozen=True, slots=True)
class IndexFact:
    """Values in an index file's header. Its first and last offset are -1 if the file has no entry."""

    subject: str
    log_min_offset: int
    log_max_offset: int
    floor: int
    first_offset: int
    last_offset: int
    left_over_files: int


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """One value of the checkpoint, with its limits. The value is -1 if the value or a limit is unknown."""

    subject: str
    low: int
    value: int
    high: int


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment file with a valid name, and its part of the log up to the logical end.

    :param unread: why the file can't be read, so that its content is unknown; "" if it was read.
    """

    log: str
    start_offset: int
    end_offset: int
    facts: FileFacts
    companions: tuple[FileFacts, ...] = ()
    unread: str = ""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """All facts of a store. ``notes`` name what was not checked, with the reason.

    :param cleaned_to: for each log, the offset below which the broker's cleaner has worked.
    :param missing: for each missing log, the sign that it should exist.
    :param without_suites: suites that never have anything to check in such a store.
    """

    local: tuple[LocalSegment, ...]
    segments: tuple[SegmentFact, ...]
    frames: tuple[FrameFact, ...] = ()
    dispatch: tuple[DispatchFact, ...] = ()
    queue_files: tuple[QueueFileFact, ...] = ()
    queues: tuple[QueueFact, ...] = ()
    index_files: tuple[IndexFact, ...] = ()
    checkpoint: tuple[CheckpointFact, ...] = ()
    notes: tuple[str, ...] = ()
    cleaned_to: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    without_suites: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class FactsScope:
    """The part of a store to check.

    :param full: check every frame of every segment and every queue.
    :param queues: streams that a run changed, as values of the codec's stream columns; None for all streams.
    :param files: dependent files that a run deleted; their queues count as changed.
    :param accepted_damage: the damaged bytes that receipts record, by (log, base offset).
    """

    full: bool
    queues: Set[tuple[Any, ...]] | None
    files: tuple[str, ...]
    accepted_damage: Mapping[tuple[str, int], int]
