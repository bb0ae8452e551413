"""Segments that were deleted by none of our runs. Each is recorded, with whether a lake proves it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import FileGoneError, GateRefusedError
from storage_engine.journal.journal import Run, hold_memory, record_drift
from storage_engine.lake.acts.unarchived import NO_PERMITS, ArchivePermits
from storage_engine.lake.coverage.coverage import Interval, merge_intervals, subtract_intervals
from storage_engine.model.broker.broker_store import is_used_by_others
from storage_engine.model.hold import UNPROVEN, Drift, DriftKind
from storage_engine.model.plan import LogPlan
from storage_engine.model.settings.store_settings import WE_DELETE
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot, group_by_log, may_be_one
from storage_engine.retention.archive.archivable import MissingRange, Unproven, prove_gone
from storage_engine.retention.proof.proofs import current_receipts, reachable_lakes, read_store_permits
from storage_engine.retention.proof.refusing import Refusal, refusal
from storage_engine.retention.proof.shielding import kept_text
from storage_engine.retention.ranges.missing_logs import kept_logs, present_logs
from storage_engine.retention.replicas import NOTHING
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.stamp import missing_stamps


@dataclass(frozen=True, slots=True)
class Gone:
    """An approved segment that is gone, although none of our runs deleted it.

    :param is_proven: a lake proves the segment. If not, its broker was free to delete it, or a rule permits a
        deletion without a copy.
    """

    log: str
    base_offset: int
    is_proven: bool


_BROKERS = f"{UNPROVEN}: its broker may delete by its own rules"
_NOBODYS = f"{UNPROVEN}: none of its segments should be deleted"
_PROVEN = "a lake proves them"
_REMEDY = Text("Find out who deleted it; ", Command("verify"), " names all that is lost.")


@dataclass(frozen=True, slots=True)
class GoneResult:
    """Results for segments that are gone although none of our runs deleted them.

    :param segments: segments that a lake proves, or whose deletion was permitted. Their logs continue.
    :param refusals: refusals of logs that lost segments which should have stayed, or that have a hole.
    """

    segments: tuple[Gone, ...] = ()
    notices: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def find_moved(
    context: Context, snapshot: StoreSnapshot, moved: Sequence[Segment]
) -> dict[SegmentId, Segment]:
    """Return, by former id, the segment that now has the records of a moved segment.

    A broker may have moved the log to another directory, or its cleaner may have merged segments.
    Logs whose name another log has by now are left out. So are segments whose records no present segment has.

    :raises StorageEngineError: the broker can't tell its logs apart.
    :raises OSError: a file can't be read.
    """
    if not moved:
        return {}
    logs = {log.name: log.segments for log in snapshot.logs}
    now, before = present_logs(context.broker, snapshot), _read_log_ids(context)
    by_id: dict[SegmentId, Segment] = {}
    for segment in moved:
        of_log, log_ids = logs.get(segment.log, ()), before.get(segment.log, ())
        index = bisect_right(of_log, segment.base_offset, key=attrgetter("base_offset")) - 1
        # A log without a known identity may be the same log.
        is_log = not log_ids or any(map(partial(may_be_one, now.get(segment.log, "")), log_ids))
        if is_log and index >= 0 and segment.end_offset <= of_log[index].end_offset:
            by_id[segment.id] = of_log[index]
    return by_id


def _read_log_ids(context: Context) -> dict[str, set[str]]:
    """Return, by name, the identities of logs that earlier runs saw, in their present lineages."""
    log_ids: dict[str, set[str]] = {}
    for log in kept_logs(context.store.journal_url, context.record.store_id) or ():
        if log.lineage == context.record.lineage_of(log.log):
            log_ids.setdefault(log.log, set()).add(log.identity.log_id)
    return log_ids


def settle_gone(
    context: Context,
    run: Run,
    logs: Sequence[LogPlan],
    is_left: Callable[[Segment], bool],
    is_ours: Callable[[Segment], bool],
    nothing: str,
) -> GoneResult:
    """Record planned segments that were deleted by none of our runs, and name the logs concerned.

    Brokers delete from a log's beginning. So the run continues with a log that lost its oldest segments, if
    the data files of a lake prove them, or if the broker was free to delete them. The log is refused if only
    an unreachable lake has such a segment, or if lakes disagree about it. It is also refused if an older
    segment is left before a deleted one: that is a hole.

    :param is_left: returns whether a planned segment is on disk.
    :param is_ours: returns whether one of our runs intended to delete a missing segment.
    :param nothing: a sentence that says what wasn't changed.
    """
    absent: list[Segment] = []
    refusals: list[Refusal] = []
    for log in logs:
        missing, hole = _find_missing(log.to_delete, is_left, is_ours)
        # Under archive: off no lake can prove a missing segment: the log is refused.
        if (
            missing
            and hole is None
            and (not context.store.archives or _may_be_away(context, missing[0].facts))
        ):
            hole = missing[0]
        if hole is None:
            absent += missing
        else:
            refusals.append(_refuse_hole(context, hole, nothing))
    unproven, unclear = prove_gone(context, absent)
    refusals += [_refuse_hole(context, segments[0], nothing) for segments in group_by_log(unclear).values()]
    proven = [segment for segment in absent if segment.id not in unproven.ids and segment not in unclear]
    drifts = [_drift(*span, _PROVEN) for span in _merge_ranges(proven)]
    record_drift(context.journal, context.record, run, drifts)
    without_proof = record_gone_unproven(context, run, unproven, nothing)
    return GoneResult(
        (*(Gone(*segment.id, is_proven=True) for segment in proven), *without_proof.segments),
        (*_notices(drifts), *without_proof.notices),
        (*refusals, *without_proof.refusals),
    )


def _find_missing(
    planned: Sequence[Segment], is_left: Callable[[Segment], bool], is_ours: Callable[[Segment], bool]
) -> tuple[list[Segment], Segment | None]:
    """Return a log's missing segments that none of our runs deleted, and the first that left a hole."""
    absent: list[Segment] = []
    hole: Segment | None = None
    is_behind = False
    for segment in planned:
        if is_left(segment):
            is_behind = True
        elif not is_ours(segment):
            absent.append(segment)
            hole = segment if is_behind and hole is None else hole
    return absent, hole


def _may_be_away(context: Context, facts: FileFacts) -> bool:
    """Return whether a file's disk may be missing: its directory changed its device or lacks the stamp."""
    path = Path(facts.path)
    lacking = missing_stamps(context.store.real_root)
    return is_away(path.parent, facts.device) or any(map(path.is_relative_to, lacking))


def is_away(directory: Path, device: int) -> bool:
    """Return whether a directory's device isn't that of its segments any more, as at an empty mount point."""
    try:
        return directory.stat().st_dev != device
    except FileNotFoundError:
        return False


def record_gone_unproven(context: Context, run: Run, gone: Unproven, nothing: str) -> GoneResult:
    """Record ranges that were deleted without a proof, and refuse logs whose segments should have stayed.

    In a store that is held, that we delete from, or that no broker uses, every segment should have stayed. A
    broker that deletes by its own rules is free to delete segments that aren't held, even unproven ones. If a
    rule permits the deletion of a log's segments without a copy, any process may delete them.

    :param gone: segments that aren't on disk any more.
    """
    away = [segment for segment in gone.segments if _may_be_away(context, segment.facts)]
    gone = replace(gone, segments=tuple(segment for segment in gone.segments if segment not in away))
    may_go = {
        log
        for log in group_by_log(gone.segments)
        if log in gone.unarchived or _broker_may_delete(context, log)
    }
    drifts = [
        _drift(*gap, _BROKERS if gap[0] in may_go else _NOBODYS, unarchived=gone.unarchived.get(gap[0], ""))
        for gap in _merge_ranges(gone.segments)
    ]
    record_drift(context.journal, context.record, run, drifts)
    root = context.store.real_root
    refusals = [_refuse_hole(context, segments[0], nothing) for segments in group_by_log(away).values()]
    for log, segments in group_by_log(gone.segments).items():
        if log in may_go:
            continue
        unclear = [segment for segment in segments if segment.id in gone.touched or kept_text(root, segment)]
        lost = [segment for segment in segments if segment not in unclear]
        ranges = [(segment.base_offset, segment.end_offset) for segment in lost]
        refusals.append(
            _refuse_lost(context, log, ranges, lost[0].facts.path)
            if lost
            else _refuse_hole(context, unclear[0], nothing)
        )
    return GoneResult(
        tuple(Gone(*segment.id, is_proven=False) for segment in gone.segments if segment.log in may_go),
        tuple(_notices(drift for drift in drifts if drift.log in may_go)),
        tuple(refusals),
    )


def record_missing(context: Context, run: Run, missing: Sequence[MissingRange]) -> GoneResult:
    """Record ranges that are missing and in no lake, and refuse logs whose segments should have stayed."""
    lacking = missing_stamps(context.store.real_root) if missing else ()
    permits = read_store_permits(context.store, context.journal, context.record) if missing else NO_PERMITS
    left_out = _read_left_out(context, permits) if missing else {}
    drift: list[Drift] = []
    notices: list[Drift] = []
    refusals: list[Refusal] = []
    for log, ranges in group_by_log(missing).items():
        facts = ranges[0].facts
        if lacking or is_away(Path(facts.path).parent, facts.device):
            offsets = [(gap.start_offset, gap.end_offset) for gap in ranges]
            error = GateRefusedError(
                f"{context.store.root}: log {log}: expected offsets {_ranges_text(offsets)}, found "
                f"that a disk of the store may be missing. {NOTHING} Mount it and run again."
            )
            refusals.append(refusal(log, error, NOTHING))
            continue
        by_cause: dict[tuple[bool, str], list[Interval]] = {}
        unarchived, in_part = permits.clause_of_log(log), left_out.get(log, ())
        for gap in ranges:
            lost = list(subtract_intervals(gap.start_offset, gap.end_offset, in_part))
            let_go = subtract_intervals(gap.start_offset, gap.end_offset, lost)
            # The record keeps these ranges proven after the rule ends.
            proven = [_drift(log, *span, _PROVEN, gap.log_id) for span in let_go]
            drift += proven
            notices += proven
            if not lost:
                continue
            may_go = bool(unarchived) or _broker_may_delete(context, log, is_over=gap.is_earlier)
            by_cause.setdefault((may_go, gap.log_id), []).extend(lost)
        for (may_go, log_id), intervals in by_cause.items():
            why = _BROKERS if may_go else _NOBODYS
            lost_drift = [_drift(log, *span, why, log_id, unarchived) for span in merge_intervals(intervals)]
            drift += lost_drift
            if may_go:
                notices += lost_drift
            else:
                refusals.append(_refuse_lost(context, log, intervals, facts.path))
    record_drift(context.journal, context.record, run, drift)
    return GoneResult((), tuple(_notices(notices)), tuple(refusals))


def _read_left_out(context: Context, permits: ArchivePermits) -> Mapping[str, list[Interval]]:
    """Return, by log, the ranges whose receipts lack topics, if archive rules leave all of these out now.

    :raises LakeUnavailableError: a lake can't be read.
    """
    if permits.of_rows is None:
        return {}
    lakes, _ = reachable_lakes(context.store)
    rows = [row for lake in lakes for row in current_receipts(lake, context.record, with_ended=True)]
    of_logs = group_by_log(row for row in rows if permits.clause_of_receipt(row))
    return {
        log: merge_intervals((row.base_offset, row.end) for row in of_log) for log, of_log in of_logs.items()
    }


def _drift(log: str, first: int, end: int, why: str, log_id: str = "", unarchived: str = "") -> Drift:
    return Drift(
        DriftKind.SEGMENT_GONE,
        f"log {log}: records of offsets [{first}, {end}) were deleted meanwhile, by none of our runs, and "
        f"{unarchived or why}.",
        log,
        first,
        end,
        log_id=log_id,
        unarchived=unarchived,
    )


def _notices(drifts: Iterable[Drift]) -> Iterator[str]:
    return (drift.detail.removesuffix(".") for drift in drifts)


def _refuse_lost(context: Context, log: str, ranges: Iterable[Interval], path: str) -> Refusal:
    why = (
        f"expected records of offsets {_ranges_text(ranges)} on disk or in a lake, "
        "found them in neither: LOST."
    )
    refused = refusal(log, FileGoneError(why), remedy=_REMEDY).said
    error = Text(f"{context.store.root}: log {log}: {why} Nothing was changed by this call. ", _REMEDY)
    return Refusal(refused, FileGoneError(error, path=path))


def _ranges_text(ranges: Iterable[Interval]) -> str:
    return ", ".join(f"[{first}, {end})" for first, end in merge_intervals(ranges))


def _refuse_hole(context: Context, segment: Segment, nothing: str) -> Refusal:
    error = GateRefusedError(
        f"{segment.facts.path}: expected the segment at offset {segment.base_offset}, found "
        f"no file, and none of our runs deleted it. {nothing}"
        f"{kept_text(context.store.real_root, segment)} Run verify to see whether its bytes are in "
        "the lake or lost, and run again."
    )
    return refusal(segment.log, error, nothing)


def _broker_may_delete(context: Context, log: str, *, is_over: bool = False) -> bool:
    """Return whether a running broker deletes from a log by its own rules. If that is unknown, return False.

    :param is_over: whether the segments were deleted before this run. A broker may have run at that time,
        even if none runs now.
    """
    store, broker = context.store, context.broker
    if store.live is not None and store.live.deletes == WE_DELETE:
        return False
    if store.is_live and not store.cleans_up:
        return (hold := broker.hold) is not None and not hold.holds(log)
    if hold_memory(context.journal, context.record.store_id).load() is not None:
        return False
    held_until_ms = None if (hold := broker.hold) is None else hold.held_until_ms()
    if held_until_ms is not None and held_until_ms > clock_ms():
        # The hold is another journal's, which may be lost.
        return False
    return is_over or broker.is_live or is_used_by_others(broker)


def _merge_ranges(segments: Sequence[Segment]) -> Iterator[tuple[str, int, int]]:
    """Yield the offsets of segments by log. Adjoining segments are one range."""
    for log, of_log in group_by_log(segments).items():
        for first, end in merge_intervals((segment.base_offset, segment.end_offset) for segment in of_log):
            yield log, first, end
