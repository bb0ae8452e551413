"""Go on after a loss: a person's decision, which the journal keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.coverage.coverage import lost_ranges
from storage_engine.model.report.validation import RangeStatus
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.known_logs import log_label, may_be_one, name_in_label
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.monitor.recording_ranges import store_ranges
from storage_engine.retention.ranges.drift import gone_ranges, recorded_gone
from storage_engine.retention.ranges.losses import AcceptedLoss, accepted_losses, record_loss
from storage_engine.retention.ranges.missing_logs import missing_logs, present_logs
from storage_engine.retention.ranges.seen_logs import Missing
from storage_engine.retention.store.context import Context, opened
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.unnamed_lakes import lakes_unasked

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
    _ask_every_lake(context)
    record = context.record
    rows = _told(context)
    label = _label_of(rows, offsets, only)
    if label is None:
        rows += _gaps(context, rows)
        label = _label_of(rows, offsets, only)
    if label is None or start_offset >= end_offset:
        named = (f"{row.label} [{row.start_offset}, {row.end_offset})" for row in rows)
        raise BadInputError(
            f"{context.store.root}: expected a range of {only or 'the log'} that is LOST or "
            f"UNKNOWN, found [{start_offset}, {end_offset}); of these there is {', '.join(named) or 'none'}. "
            "Nothing was recorded."
        )
    mine = [
        row
        for row in rows
        if row.label == label and row.start_offset < end_offset and start_offset < row.end_offset
    ]
    gap = "; ".join(dict.fromkeys(row.gap for row in mine if row.gap))
    log, log_id = mine[0].log, next((row.log_id for row in mine if row.log_id), "")
    loss = AcceptedLoss(log, record.lineage_of(log), start_offset, end_offset, person, reason, gap, log_id)
    record_loss(context.journal, begin_background_run(context, LOSSES_RUN), loss)
    return loss


def _ask_every_lake(context: Context) -> None:
    """
    :raises LakeUnavailableError: one that may have what seems lost can't be asked, or wasn't named.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return
    known = known_heads(context.journal, context.record)
    lakes = [open_lake(config) for config in context.store.lakes]
    for lake in lakes:
        known.check(lake, context.record.store_id, whole=True)
    if unasked := lakes_unasked(known.heads, lakes, {}):
        raise LakeUnavailableError(
            f"{context.store.root}: expected that every lake is asked that may have what seems to be "
            f"lost, found that {'; '.join(unasked)}. Nothing was recorded. Name it, or both with "
            "--second-lake; if it is gone for good, ",
            Command("stamp"),
            " says so.",
        )


@dataclass(frozen=True, slots=True)
class _Lost:
    """A range that is in no place that is known.

    :param gap: what is known of it, where nothing but a gap between store and lake tells that it is gone.
    :param log_id: which log it is of; "": it isn't known.
    :param is_other: another log has the name of that one by now.
    :param is_accepted: a person has accepted it before.
    """

    log: str
    start_offset: int
    end_offset: int
    gap: str = ""
    log_id: str = ""
    is_other: bool = False
    is_accepted: bool = False

    @property
    def label(self) -> str:
        return log_label(self.log, self.log_id) if self.is_other else self.log


def _told(context: Context) -> list[_Lost]:
    """Return what journal and memory tell of, as far as no lake has it."""
    record = context.record
    recorded = recorded_gone(context.journal, record)
    gone = [one for one, lineage in recorded if lineage == record.lineage_of(one.log)]
    missing: tuple[Missing, ...] = ()
    present: dict[str, str] = {}
    if context.broker.identities is not None:
        snapshot = context.snapshot(clock_ms())
        missing = missing_logs(context.store, context.journal, record, context.broker, snapshot)
        present = present_logs(context.broker, snapshot)
    accepted = accepted_losses(context.journal, record)

    def lost(row: RangeStatus) -> _Lost:
        of = next((one for one in missing if _is_of(row, one)), None)
        found = _Lost(row.log, row.start_offset, row.end_offset)
        if of is not None:
            found = replace(found, log=of.log, log_id=of.log_id, is_other=of.is_other)
        return replace(found, is_accepted=any(_is_accepted(found, one) for one in accepted))

    found = gone_ranges(context.journal, record, context.store, gone, missing=missing, present=present)
    return list(map(lost, lost_ranges(found)))


def _is_of(row: RangeStatus, one: Missing) -> bool:
    name = log_label(one.log, one.log_id) if one.is_other else one.log
    return row.log == name and one.start_offset < row.end_offset and row.start_offset < one.end_offset


def _is_accepted(found: _Lost, loss: AcceptedLoss) -> bool:
    is_inside = loss.start_offset <= found.start_offset and found.end_offset <= loss.end_offset
    return is_inside and loss.log == found.log and may_be_one(loss.log_id, found.log_id)


def _gaps(context: Context, told: Sequence[_Lost]) -> list[_Lost]:
    """Return what else store and lakes together don't have, by the decision that the monitor tells.

    :raises LakeUnavailableError: no lake can be read.
    """
    is_archived = context.store.policy.archive is not ArchiveMode.OFF
    measured = measure_lag(context) if is_archived else None
    snapshot = context.snapshot(clock_ms()) if measured is None else measured.snapshot
    return [
        _Lost(
            name := name_in_label(one.log, one.log_id),
            one.start_offset,
            one.end_offset,
            one.detail,
            one.log_id,
            name != one.log,
        )
        for one in store_ranges(context, snapshot, measured)
        if one.is_missing
        and not any(
            row.label == one.log and row.start_offset < one.end_offset and one.start_offset < row.end_offset
            for row in told
        )
    ]


def _label_of(rows: Sequence[_Lost], offsets: tuple[int, int], only: str | None) -> str | None:
    """Return the first log that has all of some offsets among what is lost of it, not accepted ones first."""
    ordered = sorted(rows, key=attrgetter("is_accepted"))
    labels = dict.fromkeys(row.label for row in ordered if only in (None, row.log, row.label))
    return next((label for label in labels if _reaches(rows, label, offsets[0]) >= offsets[1]), None)


def _reaches(rows: Sequence[_Lost], label: str, offset: int) -> int:
    """Return up to where a log is lost without a gap from an offset on."""
    for row in sorted(rows, key=attrgetter("start_offset")):
        if row.label == label and row.start_offset <= offset < row.end_offset:
            offset = row.end_offset
    return offset
