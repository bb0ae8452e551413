"""Ranges of a log that a run deleted, or found missing: rows of the lake's table ``deletions``.

The journal is the source, and the rows are copies. No deletion is ever permitted or refused because of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DELETION = "deletion"
"""Field of a receipt's evidence: :class:`RunDigest` of the last deletion before it, from the store's stamp.
"""


class What(StrEnum):
    """The way in which a range was deleted. Persisted."""

    RELEASED = "released"
    """A run deleted the range: its plan named it, and the gate permitted it."""
    GONE = "gone"
    """A run found that the range was gone: the broker or a person had deleted it."""
    LOST = "lost"
    """The range is in no known place, and a person has accepted the loss."""


@dataclass(frozen=True, slots=True)
class RunDigest:
    """The digest of a run's events, up to one event.

    :param begun_at_ms: when the run began, in milliseconds since the epoch. It distinguishes runs with the
        same key in two journals.
    :param event_id: number of the last included event in its journal.
    :param sha256: SHA-256 of the run and these events as canonical JSON, in hex.
    """

    run: str
    begun_at_ms: int
    event_id: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """Offsets [start_offset, end_offset) of a log that one run deleted or found deleted, for one cause.

    :param run_begun_at_ms: as in :class:`RunDigest`, like ``event_id`` and ``events_sha256``.
    :param cause: the cause in one word, as in the journal.
    :param at_ms: when the journal recorded the last part of the range as gone, in ms since the epoch.
    :param store_name: the store's name when the row was written.
    :param topic_id: id of the log's topic at that time; None if unknown, or the broker has no topic ids.
    :param first_store_timestamp_ms: store time of the first message in the range, from the lake's receipts,
        in milliseconds since the epoch; None if no receipt of the store has it. ``last_store_timestamp_ms``
        is that of the last message.
    """

    store_id: str
    lineage: int
    log: str
    start_offset: int
    end_offset: int
    run: str
    run_begun_at_ms: int
    what: str
    cause: str
    detail: str
    who: str
    at_ms: int
    event_id: int
    events_sha256: str
    store_name: str | None = None
    topic_id: str | None = None
    first_store_timestamp_ms: int | None = None
    last_store_timestamp_ms: int | None = None

    @property
    def digest(self) -> RunDigest:
        return RunDigest(self.run, self.run_begun_at_ms, self.event_id, self.events_sha256)

    @property
    def name(self) -> str:
        return f"{self.log} [{self.start_offset}, {self.end_offset})"
