"""Ranges of a log that a run deleted, or found missing: rows of the lake's table ``deletions``.

The journal is the truth, and the rows are made from it. Nothing is ever released or refused on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DELETION = "deletion"
"""Field of a receipt's evidence: the :class:`RunDigest` of the last deletion before it, by the stamp."""


class What(StrEnum):
    """The way in which a range was deleted. Persisted."""

    RELEASED = "released"
    """A run deleted it, by its plan and past the gate."""
    GONE = "gone"
    """It was found to have gone by another's doing: its broker's, or a person's."""
    LOST = "lost"
    """It is in no place that is known, and a person has accepted that."""


@dataclass(frozen=True, slots=True)
class RunDigest:
    """The digest of a run's events, up to one of them.

    :param begun_at_ms: when the run began, in milliseconds since the epoch: of two journals' runs of one key
        it tells which.
    :param event_id: number of the last event that counts, in its journal.
    :param sha256: of the run and these events as canonical JSON, in hex.
    """

    run: str
    begun_at_ms: int
    event_id: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """Offsets [start_offset, end_offset) of a log that went in one run, for one cause.

    :param run_begun_at_ms: see :class:`RunDigest`; so are ``event_id`` and ``events_sha256``.
    :param what: one of :class:`What`.
    :param cause: in one word, as the journal has it.
    :param at_ms: when the journal recorded that the last of it had gone, in milliseconds since the epoch.
    :param store_name: the store's name when the row was written.
    :param topic_id: of the topic that the log was of then; None: not known, or the broker has none.
    :param first_store_timestamp_ms: of the messages in it, by the lake's receipts, in milliseconds since the
        epoch; None: no receipt of the store tells. ``last_store_timestamp_ms`` likewise.
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
        """Return how messages name it."""
        return f"{self.log} [{self.start_offset}, {self.end_offset})"
