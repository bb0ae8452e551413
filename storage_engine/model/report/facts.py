"""Facts for validation that a broker's package reads from a store: plain rows, one dataclass for each table.

Facts are gathered without judging: a hole, a wrong name or a dead entry becomes a row, not an error.
``subject`` says what a row is about. An offset or count is -1, a text "", where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from storage_engine.model.store import FileFacts


@dataclass(frozen=True, slots=True)
class SegmentFact:
    """A segment file by its name and its first frame.

    :param name: of the file, without an ending that all have.
    :param base_offset: by the file's name; -1 where the name is no offset.
    :param first_frame_offset: physical offset in the first frame's header; -1 where no message begins it.
    :param expected_size_bytes: the configured size, or that of most files.
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
    """A segment that was walked frame by frame, up to the logical end.

    :param damaged_bytes: bytes that belong to no valid frame.
    :param accepted_damaged_bytes: how many of them its receipt records.
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
    :param first_live_offset: physical offset of the first entry at or above the log's min offset; -1: none.
    :param lowest_live_offset: lowest physical offset of that entry and those read behind it.
    :param first_offset: physical offset of the last entry; -1: none.
    :param last_offset: end of the last entry's message.
    :param expected_message: topic, queue and queue offset of the first live entry.
    :param found_message: those of the frame it points at; "" where there is nothing to compare.
    :param left_over_files: files that point only below the log's min offset, without the last one.
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
    """The messages of one queue in a segment that was walked, looked up in their consume queue.

    :param missing: messages that no consumer would find there.
    """

    subject: str
    messages: int
    missing: int


@dataclass(frozen=True, slots=True)
class IndexFact:
    """An index file by its header; -1 where it has no entry."""

    subject: str
    log_min_offset: int
    log_max_offset: int
    floor: int
    first_offset: int
    last_offset: int
    left_over_files: int


@dataclass(frozen=True, slots=True)
class CheckpointFact:
    """One value of the checkpoint and the bounds it has to lie within; -1 where it says nothing."""

    subject: str
    low: int
    value: int
    high: int


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A well-named segment file and what it holds of the log, up to the logical end.

    :param companions: see ``Segment``.
    :param unread: why it can't be read, so that its content is unknown; "": it was read.
    """

    log: str
    start_offset: int
    end_offset: int
    facts: FileFacts
    companions: tuple[FileFacts, ...] = ()
    unread: str = ""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Everything that was found; ``notes`` says what was not looked at, and why.

    :param cleaned_to: by log, below which offset a cleaner of the broker has been.
    :param missing: by log that should be here and is missing, the sign of it.
    :param without_suites: suites that never find anything to check in such a store.
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
    """The part of a store to look at.

    :param full: every frame of every segment and every queue.
    :param queues: streams that a run touched, by the codec's columns for them; None: all.
    :param files: dependent files that a run deleted; their queues count as touched.
    :param accepted_damage: by (log, base offset), the damaged bytes that receipts record.
    """

    full: bool
    queues: Set[tuple[Any, ...]] | None
    files: tuple[str, ...]
    accepted_damage: Mapping[tuple[str, int], int]
