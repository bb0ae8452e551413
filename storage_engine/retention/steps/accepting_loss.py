"""Go on after a loss: a person's decision, which the journal keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from storage_engine.clock import clock_ms
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.coverage import lost_ranges
from storage_engine.model.policy import ArchiveMode
from storage_engine.retention.drift import gone_ranges, recorded_gone
from storage_engine.retention.known_heads import known_heads
from storage_engine.retention.losses import AcceptedLoss, record_loss
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.missing_logs import as_drift, missing_logs
from storage_engine.retention.steps.archiving import begin_background_run
from storage_engine.retention.steps.context import Context, opened
from storage_engine.retention.steps.recording_ranges import store_ranges
from storage_engine.retention.steps.sealed import measure_lag

LOSSES_RUN = "losses"
"""Run of a store under which accepted losses are recorded."""


def accept_loss(
    store: ManagedStore, start_offset: int, end_offset: int, person: str, reason: str, log: str | None = None
) -> AcceptedLoss:
    """Record that bytes of the log are lost and that a person goes on without them.

    From then on validation warns of them, and doesn't fail.

    :param start_offset: with ``end_offset`` a range of which every byte is LOST or UNKNOWN, by what the
        journal has of segments that others deleted and of logs that are missing, and by the lakes. A gap
        between store and lakes is one, too.
    :param log: that it is of; None: the first in which all of it is.
    :raises BadInputError: a part of the range is in a known place, or nobody says why.
    :raises LakeUnavailableError: a lake can't be asked, or lacks what it is known to have had: what seems to
        be lost may come back with it.
    """
    if not (person.strip() and reason.strip()):
        raise BadInputError(
            "accept-loss: expected a person and a reason, found an empty one. From then on nothing fails "
            "over these messages, so the journal keeps who decided that, and why."
        )
    with opened(store) as context:
        return _accepted(context, (start_offset, end_offset), person.strip(), reason.strip(), log)


def _accepted(
    context: Context, offsets: tuple[int, int], person: str, reason: str, only: str | None
) -> AcceptedLoss:
    start_offset, end_offset = offsets
    known = known_heads(context.journal, context.record)
    for config in context.store.lakes if context.store.policy.archive is not ArchiveMode.OFF else ():
        known.check(open_lake(config), context.record.store_id)
    record = context.record
    rows = _told(context)
    log = _log_of(rows, offsets, only)
    if log is None:
        rows += _gaps(context, rows)
        log = _log_of(rows, offsets, only)
    if log is None or start_offset >= end_offset:
        named = (f"{row.log} [{row.start_offset}, {row.end_offset})" for row in rows)
        raise BadInputError(
            f"{context.store.root}: expected a range of {only or 'the log'} that is LOST or "
            f"UNKNOWN, found [{start_offset}, {end_offset}); of these there is {', '.join(named) or 'none'}. "
            "Nothing was recorded."
        )
    gap = "; ".join(
        dict.fromkeys(
            row.gap
            for row in rows
            if row.gap and row.log == log and row.start_offset < end_offset and start_offset < row.end_offset
        )
    )
    loss = AcceptedLoss(log, record.lineage_of(log), start_offset, end_offset, person, reason, gap)
    record_loss(context.journal, begin_background_run(context, LOSSES_RUN), loss)
    return loss


@dataclass(frozen=True, slots=True)
class _Lost:
    """A range that is in no place that is known.

    :param gap: what is known of it, where nothing but a gap between store and lake tells that it is gone.
    """

    log: str
    start_offset: int
    end_offset: int
    gap: str = ""


def _told(context: Context) -> list[_Lost]:
    """Return what journal and memory tell of, as far as no lake has it."""
    record = context.record
    recorded = recorded_gone(context.journal, record)
    gone = [one for one, lineage in recorded if lineage == record.lineage_of(one.log)]
    if context.broker.tells_absences:
        snapshot = context.snapshot(clock_ms())
        missing = missing_logs(context.store, context.journal, record, context.broker, snapshot)
        gone += as_drift(missing)
    found = lost_ranges(gone_ranges(context.journal, record, context.store, gone))
    return [_Lost(row.log, row.start_offset, row.end_offset) for row in found]


def _gaps(context: Context, told: Sequence[_Lost]) -> list[_Lost]:
    """Return what else store and lakes together don't have, by the decision that the monitor tells.

    :raises LakeUnavailableError: no lake can be read.
    """
    is_archived = context.store.policy.archive is not ArchiveMode.OFF
    measured = measure_lag(context) if is_archived else None
    snapshot = context.snapshot(clock_ms()) if measured is None else measured.snapshot
    return [
        _Lost(one.log, one.start_offset, one.end_offset, one.detail)
        for one in store_ranges(context, snapshot, measured)
        if one.is_missing
        and not any(
            row.log == one.log and row.start_offset < one.end_offset and one.start_offset < row.end_offset
            for row in told
        )
    ]


def _log_of(rows: Sequence[_Lost], offsets: tuple[int, int], only: str | None) -> str | None:
    """Return the first log that has all of some offsets among what is lost of it."""
    logs = dict.fromkeys(row.log for row in rows if only in (None, row.log))
    return next((log for log in logs if _reaches(rows, log, offsets[0]) >= offsets[1]), None)


def _reaches(rows: Sequence[_Lost], log: str, offset: int) -> int:
    """Return up to where a log is lost without a gap from an offset on."""
    for row in sorted(rows, key=attrgetter("start_offset")):
        if row.log == log and row.start_offset <= offset < row.end_offset:
            offset = row.end_offset
    return offset
