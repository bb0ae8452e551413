"""Runs that were witnessed when they deleted, and that the journal doesn't have by key and beginning. Pure.

An older copy of the journal lacks all that came after a moment. Anything else was changed by somebody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.deletions import DeletingRun, EventsAround
from storage_engine.model.proof.deleted_range import DeletedRange, RunDigest, What
from storage_engine.retention.ranges.deleted_ranges import RunHistory, ranges_by_event


class Absence(StrEnum):
    """Why a journal lacks a run."""

    OLDER_COPY = "older-copy"
    """It was put back from before the run, or is a new one, and may have gone on since."""
    REMOVED = "removed"
    """It has events from before and after the run's."""
    ALTERED = "altered"
    """It has the run with another key or beginning."""


@dataclass(frozen=True, slots=True)
class AbsentRun:
    """
    :param digests: what witnessed the run; at least one.
    :param rows: the lakes' rows of it.
    """

    run: str
    begun_at_ms: int
    digests: tuple[RunDigest, ...]
    rows: tuple[DeletedRange, ...]

    @property
    def event_id(self) -> int:
        """Return the number of its last event that was witnessed."""
        return max(digest.event_id for digest in self.digests)

    @property
    def at_ms(self) -> int:
        """Return when that event was recorded, in milliseconds since the epoch; no earlier than the run."""
        return max((row.at_ms for row in self.rows), default=self.begun_at_ms)


@dataclass(frozen=True, slots=True)
class ExplainedAbsence:
    """
    :param altered: the run that the journal has in its place; None: none, by ``why``.
    """

    absent: AbsentRun
    why: Absence
    altered: DeletingRun | None = None

    @property
    def clause(self) -> str:
        """Return what was found in the journal, as a clause."""
        if self.altered is not None:
            found = f"run {self.altered.run_key} begun {time_text(self.altered.begun_at_ms)}"
            return f"found {found} in its place: it was changed since"
        if self.why is Absence.REMOVED:
            return "found none of it between the events before and after it: it was removed or renamed"
        return "found no such run"


def find_absent(
    runs: Iterable[DeletingRun], digests: Iterable[RunDigest], rows: Collection[DeletedRange]
) -> tuple[AbsentRun, ...]:
    """Return the runs of witnesses that a journal doesn't have by key and beginning.

    :param runs: those of the journal that deleted something.
    :param rows: the lakes' rows of any run, witnesses as well.
    """
    journalled = {(run.run_key, run.begun_at_ms) for run in runs}
    witnesses: dict[tuple[str, int], tuple[dict[RunDigest, None], list[DeletedRange]]] = {}
    of_rows = [(row.digest, [row]) for row in rows]
    for digest, its_rows in (*((digest, list[DeletedRange]()) for digest in digests), *of_rows):
        if (digest.run, digest.begun_at_ms) not in journalled:
            of_run = witnesses.setdefault((digest.run, digest.begun_at_ms), ({}, []))
            of_run[0][digest] = None
            of_run[1].extend(its_rows)
    return tuple(
        AbsentRun(*key, tuple(its_digests), tuple(its_rows))
        for key, (its_digests, its_rows) in witnesses.items()
    )


def explain_absence(
    absent: AbsentRun, histories: Iterable[RunHistory], around: EventsAround
) -> ExplainedAbsence:
    """Return why a journal lacks a run.

    Numbers of events grow with time. A copy that was put back uses again the numbers that it lacks, so that
    an event of a lower number is newer than the run; where it hasn't gone on, none has a higher number.

    :param histories: of runs of the journal that may be it.
    :param around: the events before and after the last one that was witnessed.
    """
    for history in histories:
        if _is_altered(absent, history):
            return ExplainedAbsence(absent, Absence.ALTERED, history.run)
    is_newer_before = around.before_ms is not None and around.before_ms > absent.at_ms
    is_older_after = around.after_ms is None or around.after_ms < absent.begun_at_ms
    return ExplainedAbsence(
        absent, Absence.OLDER_COPY if is_newer_before or is_older_after else Absence.REMOVED
    )


def _is_altered(absent: AbsentRun, history: RunHistory) -> bool:
    """Return whether a run of a journal is the absent one: no key is begun twice, no range released twice."""
    run = history.run
    if run.run_key == absent.run and run.begun_at_ms <= absent.at_ms:
        return True
    restored = replace(history, run=replace(run, run_key=absent.run, begun_at_ms=absent.begun_at_ms))
    return not restored.differing(absent.digests) or _releases_same(absent.rows, history)


def _releases_same(rows: Iterable[DeletedRange], history: RunHistory) -> bool:
    released = [row for row in rows if row.what == What.RELEASED]
    try:
        parts = tuple(ranges_by_event(history, None)) if released else ()
    except (BadInputError, *MALFORMED):
        # What can't be understood is told of the run itself.
        return False
    return any(
        (part.what, part.log, part.lineage) == (row.what, row.log, row.lineage)
        and part.start_offset < row.end_offset
        and row.start_offset < part.end_offset
        for row in released
        for part in parts
    )
