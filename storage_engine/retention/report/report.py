"""A run's report: the fate of each segment with its reason, and figures for other readers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from storage_engine.commands import Text
from storage_engine.core.jsonable import filled, from_jsonable, to_recorded
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.journal.journal import Event, Phase, Run, Step, Waiver
from storage_engine.journal.reading.run_rows import GONE
from storage_engine.model.broker.broker_store import Pending
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldStatus
from storage_engine.model.lag import ArchiveLag, LagSummary, QueueLag, Unread
from storage_engine.model.plan import DependentFile, Plan, PlanRequest, Reason, Trigger
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Status, ValidationResult
from storage_engine.model.store import SegmentId
from storage_engine.retention.archive.archiving import HASHED_AGAIN, TOOK, again_notices, recorded_faults
from storage_engine.retention.archive.sealed import recorded_archive_lag
from storage_engine.retention.hold.holding import alarms_of, recorded_hold
from storage_engine.retention.lag.consumer_lag import planned_unread, recorded_lag, released_unread
from storage_engine.retention.lag.unread_losses import lake_directory, unread_lines
from storage_engine.retention.proof.approvals import Told, read_approval
from storage_engine.retention.proof.history import SegmentRelease, releases, segment_subject
from storage_engine.retention.proof.proofs import read_proofs, unreachable_error
from storage_engine.retention.proof.refusing import REFUSED, RefusedLog, refused_by_plan
from storage_engine.retention.quarantine.records import Quarantine, QuarantineState, quarantine_of
from storage_engine.retention.release.checkpointing import (
    CheckpointResult,
    DependentsResult,
    deleted_dependents,
)
from storage_engine.retention.release.releasing import ReleaseResult
from storage_engine.retention.store.context import RAN, WHOLE, AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import known_heads


def record_validation(store: AnyStore, run_key: str, result: ValidationResult) -> None:
    """Record a validation of this run. The latest one counts.

    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    payload = {"result": to_recorded(result), "took_ms": result.duration_ms}
    context.journal.record(context.run(run_key), Step.VALIDATE, Phase.RESULT, [(WHOLE, payload)])


def recorded_validation(context: Context, run: Run) -> ValidationResult | None:
    """Return the run's latest validation, or None."""
    results = context.journal.events(run, Step.VALIDATE, Phase.RESULT)
    return from_jsonable(ValidationResult, results[-1].payload["result"]) if results else None


class Fate(StrEnum):
    DELETED = "deleted"
    KEPT = "kept"
    PENDING = "pending"
    """The plan deletes the segment, which is still on disk."""
    MISSING = "missing"
    """The plan deletes the segment, which is gone though no run deleted it."""
    GONE_PROVEN = "gone-proven"
    """The plan deletes the segment, which is gone though no run deleted it. A lake proves the segment."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment of the plan: its fate, the reason, and the proof.

    :param proof: the ground on which it was deleted, or "" if it was not deleted.
    """

    log: str
    base_offset: int
    path: str
    size_bytes: int
    planned: bool
    fate: Fate
    reason: Reason
    detail: str
    proof: str
    proof_detail: str
    sha256: str | None
    data_file: str | None


def segment_reports(
    plan: Plan | None, gone: Mapping[str, SegmentRelease], released: ReleaseResult | None
) -> tuple[SegmentReport, ...]:
    """Return the segments of a plan, each with its fate.

    :param gone: by subject, the segments that this run or another one deleted.
    """
    stayed = {segment_subject(k.log, k.base_offset): k for k in (released.kept if released else ())}
    missing = {
        (log.log, offset): Fate.MISSING
        for log in (released.refused if released else ())
        for offset in log.missing
    }
    for absent in released.gone if released else ():
        missing[absent.log, absent.base_offset] = Fate.GONE_PROVEN if absent.is_proven else Fate.MISSING
    rows = []
    for decision in plan.decisions if plan else ():
        segment = decision.segment
        subject = segment_subject(segment.log, segment.base_offset)
        release, stay = gone.get(subject), stayed.get(subject)
        otherwise = Fate.KEPT if stay or not decision.deletes else Fate.PENDING
        rows.append(
            filled(
                SegmentReport,
                stay or decision,
                log=segment.log,
                base_offset=segment.base_offset,
                path=segment.facts.path,
                size_bytes=segment.disk_bytes,
                planned=decision.deletes,
                fate=Fate.DELETED if release else missing.get(segment.id) or otherwise,
                proof=release.passage.value if release else "",
                proof_detail=release.passage_detail if release else "",
                sha256=release.sha256 if release else None,
                data_file=release.data_file if release else None,
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of one step of a run.

    :param took_ms: duration, or None if the step is not done.
    :param error: the last failure, or "" if there was none or if the step was done later.
    """

    step: str
    done: bool
    took_ms: int | None
    error: str


def step_reports(events: Sequence[Event], unproven: Collection[SegmentId]) -> tuple[StepReport, ...]:
    """Return the steps that a run took, in their order.

    :param unproven: segments that the run intended to archive, and that have no receipt.
    """
    rows: list[StepReport] = []
    for step in Step:
        step_events = [event for event in events if event.step == step and event.subject == WHOLE]
        if step is Step.ARCHIVE and _is_past(step_events, events, unproven):
            rows += _archive_step(events, unproven)
            continue
        results = [event for event in step_events if event.phase is Phase.RESULT]
        errors = [event for event in step_events if event.phase is Phase.ERROR]
        if not (results or errors):
            continue
        failed = errors[-1].payload if step_events[-1].phase is Phase.ERROR else {}
        # Older releases recorded no parts.
        parts = failed.get("parts", [failed.get("message", "")])
        rows.append(
            StepReport(
                step=step.value,
                done=bool(results),
                took_ms=results[-1].payload.get("took_ms") if results else None,
                error=Text(f"{failed['type']}: ", Text.from_json(parts)) if failed else "",
            )
        )
    return tuple(rows)


def ran_texts(events: Sequence[Event]) -> tuple[str, ...]:
    """Return where a run last measured consumer lag, and each place where it archived."""
    results = [
        (event.step, str(event.payload.get(RAN) or "")) for event in events if event.phase is Phase.RESULT
    ]
    lag = [ran for step, ran in results if step == Step.LAG][-1:]
    archive = [ran for step, ran in results if step in (Step.ARCHIVE, Step.SEALED)]
    texts = [f"Consumer lag {ran}" for ran in lag if ran] + [f"Archive {ran}" for ran in archive if ran]
    return tuple(dict.fromkeys(texts))


def _is_past(errors: Sequence[Event], events: Sequence[Event], unproven: Collection[SegmentId]) -> bool:
    """Return whether archiving never failed, or succeeded after its last failure."""
    results = [
        event.event_id for event in events if (event.step, event.phase) == (Step.ARCHIVE, Phase.RESULT)
    ]
    return not errors or (not unproven and max(results, default=-1) > errors[-1].event_id)


def _archive_step(events: Sequence[Event], unproven: Collection[SegmentId]) -> tuple[StepReport, ...]:
    """Return the archiving step, built from its results for segments, if segments had to be archived."""
    rows = [event for event in events if event.step == Step.ARCHIVE]
    took = [event.payload[TOOK] for event in rows if event.phase is Phase.RESULT and TOOK in event.payload]
    step = StepReport(Step.ARCHIVE.value, not unproven, sum(took) if took else None, "")
    return (step,) if rows else ()


class Outcome(StrEnum):
    DONE = "done"
    """All segments that were approved and passed the gate are deleted, and validation found no failure."""
    NOTHING_TO_DO = "nothing-to-do"
    BLOCKED = "blocked"
    """Segments are due, but none may be deleted; the segments say why."""
    UNFINISHED = "unfinished"
    """A step isn't done yet: repeat the run under its key."""
    FAILED = "failed"
    """A step failed and was not done later, or validation found a failure."""
    RELEASED_IN_PART = "released-in-part"
    """Segments of some logs are deleted. Other logs were refused, and lose no further segment."""
    UNDONE = "undone"
    """All files that the run deleted were brought back."""
    DRY_RUN = "dry-run"
    """The run was only asked what it would delete; nothing was archived or deleted."""


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A segment that the run intended to archive and that has a receipt.

    :param by_this_run: false if the segment was proven before the run began.
    :param lake: location of the lake that has it.
    :param hashed_again: the segment was touched after its receipt, and this run found its bytes unchanged.
    :param first_stored_at_ms: when the segment's oldest message was stored, or None if unknown.
    :param last_stored_at_ms: likewise for the newest message.
    """

    log: str
    base_offset: int
    size_bytes: int
    sha256: str
    message_count: int
    row_count: int
    damaged_bytes: int
    data_file: str
    data_file_bytes: int
    proven_at_ms: int
    by_this_run: bool
    lake: str
    first_stored_at_ms: int | None = None
    last_stored_at_ms: int | None = None
    hashed_again: bool = False


InLakes = tuple[tuple[ArchivedSegment, ...], tuple[SegmentId, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Report:
    """A run's actions with their reasons, as page, mail and JSON show them.

    :param unproven: base offsets of segments that the run intended to archive and that have no receipt.
    :param unproven_logs: the log of each segment in ``unproven``; empty in reports from before this field
        existed.
    :param archived_ahead: number of segments that the run archived though the plan doesn't delete them.
    :param archive_lag: sealed, unproven segments at the run's end, or None if it was not measured.
    :param alarms: exceeded limits of archive lag or a running broker's work, and ranges that others deleted.
    :param hold: the hold's status at the run's last look, with all drift of the run, or None if no broker
        runs.
    :param unread: consumers' losses by the deletion; before the deletion, those that the plan foresees.
    :param unread_lines: the losses as lines of text, with the commands that export the messages.
    :param owed: messages that the broker had yet to deliver or decide at planning; empty under policy IGNORE.
    :param notices: notices for a person, which didn't change the run.
    :param freed_bytes: size of deleted files, without those in a quarantine or left for the broker to remove.
    :param quarantine: quarantine of the deleted files, or None if they were deleted for good.
    :param refused: logs of which no further segment was deleted, while other logs' segments were.
    :param lake_directory: the lake's value of ``--lake``, or LAKE if no local directory is known.
    :param wrong_lakes: why lakes of the store can't be used as they are, such as a copy, and what to do.
    :param hashed_again: number of archived segments that the run found unchanged and doesn't delete.
    :param ran: where lag was measured and segments were archived; empty in an older report.
    :param approval: a sentence on a second person's answer about the plan, or "" if nobody was asked.
    """

    outcome: Outcome
    store: str
    store_id: str
    lineage: int
    broker: str
    root: str
    run_key: str
    request: PlanRequest
    began_at_ms: int
    finished_at_ms: int | None
    plan_digest: str | None
    decided_at_ms: int | None
    triggers: tuple[Trigger, ...]
    hold: HoldStatus | None
    levels: tuple[DiskUsage, ...]
    crashed: bool
    segments: tuple[SegmentReport, ...]
    archived: tuple[ArchivedSegment, ...]
    unproven: tuple[int, ...]
    archived_ahead: int
    archive_lag: ArchiveLag | None
    alarms: tuple[str, ...]
    waiver: Waiver | None
    freed_bytes: int
    new_min_offset: int | None
    dependents: tuple[DependentFile, ...]
    lag: LagSummary | None
    lagging: tuple[QueueLag, ...]
    lag_policy: str
    owed: tuple[Pending, ...]
    pending_policy: str
    archive_mode: str
    checkpoint: CheckpointResult | None
    validation: ValidationResult | None
    notices: tuple[str, ...]
    steps: tuple[StepReport, ...]
    lake: str
    second_lake: str | None
    journal: str
    quarantine: Quarantine | None = None
    unread: Unread = field(default_factory=Unread)
    unread_lines: tuple[str, ...] = ()
    refused: tuple[RefusedLog, ...] = ()
    lake_directory: str = "LAKE"
    unproven_logs: tuple[str, ...] = ()
    wrong_lakes: tuple[str, ...] = ()
    hashed_again: int = 0
    ran: tuple[str, ...] = ()
    approval: str = ""

    @property
    def has_several_logs(self) -> bool:
        """Return whether the report has several logs, so that offsets alone don't name its segments."""
        return len({row.log for row in self.segments} | {row.log for row in self.archived}) > 1

    @property
    def unproven_ids(self) -> tuple[tuple[str, int], ...]:
        """Return log and base offset of the segments without a receipt. In an older report the log is ""."""
        logs = self.unproven_logs or ("",) * len(self.unproven)
        return tuple(zip(logs, self.unproven, strict=True))

    @property
    def ok(self) -> bool:
        ended_well = (Outcome.DONE, Outcome.NOTHING_TO_DO, Outcome.UNDONE, Outcome.DRY_RUN)
        return self.outcome in ended_well and not self.wrong_lakes


def build_report(store: AnyStore, run_key: str) -> Report:
    """Return the report of a run, finished or not, from the journal and the lakes.

    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    return read_report(context, context.run(run_key))


def read_report(context: Context, run: Run, in_lakes: InLakes | None = None) -> Report:
    """Return the same as :func:`build_report`, for an open context. Without ``in_lakes``, lakes are read."""
    store, plan = context.store, run.plan
    events = context.journal.events(run)
    released = context.result(run, Step.RELEASE, ReleaseResult)
    deleted, _ = releases(event for event in events if event.step == Step.RELEASE)
    by_others = {release.subject: release for release in (released.deleted_by_others if released else ())}
    archived, unproven, lake_notice, wrong_lakes = in_lakes or read_lakes(context, run)
    decided_from = next((e.payload for e in events if (e.step, e.phase) == (Step.PLAN, Phase.RESULT)), {})
    steps = step_reports(events, unproven)
    validation = recorded_validation(context, run)
    refused = _refused_logs(plan, released, events, deleted)
    unarchived = _list_unarchived(unproven, deleted.values(), refused)
    lag = recorded_lag(context, run)
    archive_lag = recorded_archive_lag(context, run)
    cleaned = context.result(run, Step.DEPENDENTS, DependentsResult)
    checkpoint = context.result(run, Step.CHECKPOINT, CheckpointResult)
    hold = recorded_hold(context, run)
    quarantine = quarantine_of(context.journal, run)
    waiver = context.journal.find_waiver(plan.digest) if plan else None
    lost = released_unread(context, run)
    unread = planned_unread(context, run) if lost is None else lost
    approval = read_approval(context.journal, run)
    return Report(
        outcome=_outcome(run, released, steps, validation, unarchived, refused, approval, quarantine),
        store=context.name,
        store_id=run.store_id,
        lineage=context.record.lineage,
        broker=store.broker,
        root=store.real_root,
        run_key=run.run_key,
        request=run.request,
        began_at_ms=run.created_at_ms,
        finished_at_ms=run.finished_at_ms,
        plan_digest=run.plan_digest,
        decided_at_ms=plan.decided_at_ms if plan else None,
        triggers=plan.triggers if plan else (),
        hold=hold,
        levels=tuple(from_jsonable(DiskUsage, level) for level in decided_from.get("levels", ())),
        crashed=bool(decided_from.get("crashed", False)),
        segments=segment_reports(plan, {**by_others, **deleted}, released),
        archived=archived,
        unproven=tuple(segment.base_offset for segment in unproven),
        unproven_logs=tuple(segment.log for segment in unproven),
        archived_ahead=len(_find_ahead(events, hashed_again=False)),
        hashed_again=len(_find_ahead(events, hashed_again=True)),
        archive_lag=archive_lag,
        alarms=_alarms(context, archive_lag, checkpoint, hold),
        waiver=waiver,
        freed_bytes=_freed_bytes(quarantine, deleted.values(), released),
        new_min_offset=released.new_min_offset if released else None,
        dependents=deleted_dependents(context, run),
        lag=lag.summary if lag else None,
        lagging=lag.at_risk if lag else (),
        lag_policy=store.policy.lag_policy.value,
        owed=tuple(from_jsonable(Pending, item) for item in decided_from.get("owed", ())),
        pending_policy=store.policy.pending_policy.value,
        archive_mode=store.policy.archive.value,
        checkpoint=checkpoint,
        validation=validation,
        notices=(
            *_notices(plan, events, released, cleaned, by_others),
            *lake_notice,
            *(checkpoint.notices if checkpoint else ()),
        ),
        steps=steps,
        lake=store.lake.location,
        second_lake=store.second_lake.location if store.second_lake else None,
        journal=context.journal.name,
        # The signs are long, and only an undo needs them.
        quarantine=None if quarantine is None else replace(quarantine, signs={}),
        unread=unread,
        unread_lines=unread_lines(context, unread, done=bool(deleted), waived=waiver is not None),
        refused=refused,
        lake_directory=lake_directory(store.lake),
        wrong_lakes=wrong_lakes,
        ran=ran_texts(events),
        approval=approval.text,
    )


def _refused_logs(
    plan: Plan | None,
    released: ReleaseResult | None,
    events: Sequence[Event],
    deleted: Mapping[str, SegmentRelease],
) -> tuple[RefusedLog, ...]:
    refused = (*(refused_by_plan(plan) if plan else ()), *(released.refused if released else ()))
    other_logs = {log.log for log in refused} | {release.log for release in deleted.values()}
    return (*refused, *(log for log in _list_not_archived(events) if log.log not in other_logs))


def _list_unarchived(
    unproven: Iterable[SegmentId], deleted: Iterable[SegmentRelease], refused: Iterable[RefusedLog]
) -> set[SegmentId]:
    """Return the unproven segments that still wait for a receipt.

    Left out are segments deleted without a receipt, and those of refused logs, which the next run handles.
    """
    deleted_ids, stay = {release.segment.id for release in deleted}, {log.log for log in refused}
    return {slot for slot in unproven if slot not in deleted_ids and slot.log not in stay}


def _alarms(
    context: Context, lag: ArchiveLag | None, checkpoint: CheckpointResult | None, hold: HoldStatus | None
) -> tuple[str, ...]:
    gone = tuple(drift for drift in hold.disturbances if drift.kind in GONE) if hold else ()
    return (
        *(lag.alarms(context.store.policy) if lag else ()),
        *(checkpoint.alarms if checkpoint else ()),
        *(alarms_of(context, replace(hold, disturbances=gone)) if hold else ()),
    )


def _freed_bytes(
    quarantine: Quarantine | None, deleted: Iterable[SegmentRelease], released: ReleaseResult | None
) -> int:
    if quarantine is not None and (quarantine.there or quarantine.came_back):
        return 0
    freed_bytes = sum(release.segment.disk_bytes for release in deleted)
    if quarantine is None and released is not None:
        # A running broker may remove files later.
        return min(freed_bytes, released.freed_bytes)
    return freed_bytes


def _notices(
    plan: Plan | None,
    events: Iterable[Event],
    released: ReleaseResult | None,
    cleaned: DependentsResult | None,
    others: Iterable[str],
) -> Iterator[str]:
    planned = plan.notices if plan else ()
    yield from planned
    yield from again_notices(recorded_faults(events))
    yield from _step_notices("segments were deleted", released, planned)
    yield from _step_notices("the files that pointed into them were deleted", cleaned, planned)
    for subject in others:
        yield f"{subject} was deleted by another run meanwhile"


def _list_not_archived(events: Sequence[Event]) -> tuple[RefusedLog, ...]:
    """Return the logs that could not be archived at the last attempt."""
    refused: dict[str, RefusedLog] = {}
    for event in (event for event in events if event.step == Step.ARCHIVE):
        if REFUSED in event.payload:
            refused[event.subject] = from_jsonable(RefusedLog, event.payload[REFUSED])
        elif event.phase is Phase.RESULT:
            refused.pop(event.subject.rpartition("/")[0], None)
    return tuple(refused.values())


def _step_notices(
    act: str, result: ReleaseResult | DependentsResult | None, planned: Collection[str]
) -> Iterator[str]:
    """Yield a step's notices, without those of the plan."""
    notices = result.notices if result else ()
    yield from (Text(f"while {act}: ", notice) for notice in notices if notice not in planned)


def read_lakes(context: Context, run: Run) -> InLakes:
    """Return a run's archived and unproven segments, why some are unknown, and the faults of wrong lakes."""
    ids = [
        SegmentId(str(event.payload["log"]), int(event.payload["base_offset"]))
        for event in context.journal.events(run, Step.ARCHIVE, Phase.INTENT)
    ]
    results = context.journal.events(run, Step.ARCHIVE, Phase.RESULT)
    hashed = {event.subject for event in results if event.payload.get(HASHED_AGAIN)}
    if not ids:
        return (), (), (), ()
    heads = known_heads(context.journal, context.record)
    proofs = read_proofs(context.store.lakes, context.record, set(ids), known=heads)
    if not proofs.asked:
        unknown = (
            Text("it is unknown which segments are archived: ", reason) for _, reason in proofs.unreachable
        )
        return (), tuple(ids), tuple(unknown), ()
    proven = {key: (lake, row) for lake in reversed(proofs.asked) for key in ids for row in lake.of(key)}
    archived = tuple(
        _archived_segment(proven[key][1], run, proven[key][0].lake.location, segment_subject(*key) in hashed)
        for key in ids
        if key in proven
    )
    lacking = tuple(
        key
        for key in ids
        if not (
            proofs.permits.clause_of_log(key.log)
            if key not in proven
            else proven[key][1].is_whole or proofs.permits.clause_of_receipt(proven[key][1])
        )
    )
    return archived, lacking, proofs.outages, proofs.wrong_lakes


def _find_ahead(events: Sequence[Event], *, hashed_again: bool) -> set[str]:
    """Return subjects of segments that the run proved, though its plan doesn't delete them.

    :param hashed_again: if true, return only segments that were proven before and hashed again. If false,
        return only the others.
    """
    results = (event for event in events if (event.step, event.phase) == (Step.SEALED, Phase.RESULT))
    return {row.subject for row in results if bool(row.payload.get(HASHED_AGAIN)) is hashed_again} - {WHOLE}


def _archived_segment(receipt: Receipt, run: Run, lake: str, hashed_again: bool) -> ArchivedSegment:
    return filled(
        ArchivedSegment,
        receipt,
        by_this_run=receipt.proven_at_ms >= run.created_at_ms,
        lake=lake,
        first_stored_at_ms=receipt.first_store_timestamp_ms,
        last_stored_at_ms=receipt.last_store_timestamp_ms,
        hashed_again=hashed_again,
    )


def _outcome(
    run: Run,
    released: ReleaseResult | None,
    steps: Sequence[StepReport],
    validation: ValidationResult | None,
    unproven: Collection[SegmentId],
    refused: Sequence[RefusedLog],
    approval: Told,
    quarantine: Quarantine | None,
) -> Outcome:
    plan = run.plan
    if quarantine is not None and quarantine.state is QuarantineState.UNDONE:
        return Outcome.UNDONE
    archive_error = any(row.error for row in steps if row.step == Step.ARCHIVE)
    failed = any(row.error for row in steps if row.step != Step.ARCHIVE)
    if failed or (archive_error and (unproven or released is None)):
        return Outcome.FAILED
    if validation is not None and validation.overall is Status.FAILURE:
        return Outcome.FAILED
    if plan is None:
        return Outcome.UNFINISHED if unproven else Outcome.DONE
    if run.request.dry_run:
        return Outcome.DRY_RUN
    if not plan.to_delete:
        reasons = {decision.reason for decision in plan.decisions}
        crashed = Reason.STORE_CRASHED in reasons and bool(plan.triggers)
        return Outcome.BLOCKED if crashed or Reason.PENDING_BLOCKED in reasons else Outcome.NOTHING_TO_DO
    if released is None and approval.is_refused:
        return Outcome.BLOCKED
    if released is None or not any(row.step == Step.DEPENDENTS and row.done for row in steps):
        return Outcome.UNFINISHED
    if refused:
        return Outcome.RELEASED_IN_PART
    return Outcome.DONE if released.deleted or not released.kept else Outcome.BLOCKED


LOGS_NAMED = 100
"""Greatest number of logs whose spans are listed, so that figures fit into messages."""


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The offsets of one log, from the first to the end."""

    log: str
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures of some segments.

    :param messages: number of messages, or None if a segment has no receipt.
    :param lake: location of the lake that has them, or "" if several lakes or none have them.
    :param first_message_ms: when the broker stored the first message, or None if no receipt says it.
    """

    segments: int
    size_bytes: int
    messages: int | None
    first_message_ms: int | None
    last_message_ms: int | None
    lake: str
    spans: tuple[OffsetSpan, ...]
    more_logs: int = field(default=0)


def archived_receipts(store: AnyStore, run_key: str, step: Step) -> Mapping[str, list[Receipt]]:
    """Return the receipts of the segments that a run archived, by lake.

    Killed attempts count as well.

    :raises LakeUnavailableError: no lake can be read.
    """
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key)
    if run is None:
        return {}
    intents = context.journal.events(run, step, Phase.INTENT)
    slots = {(str(event.payload["log"]), int(event.payload["base_offset"])) for event in intents}
    return {
        location: new
        for location, rows in _receipts(context, slots).items()
        if (new := [row for row in rows if row.proven_at_ms >= run.created_at_ms])
    }


def archived_counts(store: AnyStore, run_key: str, step: Step) -> tuple[Counts, ...]:
    """Return the figures of :func:`archived_receipts`, by lake."""
    return tuple(
        _counts([(row.log, row.base_offset, row.end, row.size_bytes) for row in rows], rows, location)
        for location, rows in archived_receipts(store, run_key, step).items()
    )


def released_segments(store: AnyStore, run_key: str) -> tuple[SegmentRelease, ...]:
    """Return the segments that a run has deleted so far, whatever its outcome."""
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key)
    deleted, _ = releases(() if run is None else context.journal.events(run, Step.RELEASE))
    return tuple(deleted.values())


def deleted_counts(store: AnyStore, run_key: str) -> Counts | None:
    """Return the figures of a run's deletions. If no lake can be read, they lack the lakes' figures.

    :return: the figures, or None if nothing was deleted.
    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    run: Run = context.run(run_key)
    released = context.result(run, Step.RELEASE, ReleaseResult)
    if released is None or not released.deleted:
        return None
    proven = {(row.log, row.base_offset) for row in released.deleted if row.receipt_hash is not None}
    try:
        by_lake = _receipts(context, proven)
    except LakeUnavailableError:
        by_lake = {}
    rows = {(row.log, row.base_offset): row for receipts in by_lake.values() for row in receipts}
    lakes = {row.lake for row in released.deleted if row.lake}
    is_complete = len(rows) == len(released.deleted)
    return _counts(
        [(row.log, row.base_offset, row.end_offset, row.segment.disk_bytes) for row in released.deleted],
        list(rows.values()) if is_complete else [],
        lakes.pop() if len(lakes) == 1 else "",
    )


def _receipts(context: Context, slots: Collection[tuple[str, int]]) -> Mapping[str, list[Receipt]]:
    """Return the receipts of segments by lake. The first of the lakes that have a segment counts."""
    if not slots:
        return {}
    heads = known_heads(context.journal, context.record)
    proofs = read_proofs(context.store.lakes, context.record, slots, known=heads)
    if not proofs.asked:
        raise unreachable_error([reason for _, reason in proofs.unreachable])
    receipts: dict[str, list[Receipt]] = {}
    for slot in sorted(slots):
        lake_proofs = next((lake for lake in proofs.asked if lake.of(slot)), None)
        if lake_proofs is not None:
            receipts.setdefault(lake_proofs.lake.location, []).append(lake_proofs.of(slot)[-1])
    return receipts


def _counts(
    segments: Collection[tuple[str, int, int, int]], receipts: Collection[Receipt], lake: str
) -> Counts:
    """Return the figures of some segments: numbers, messages according to their receipts, and spans of
    offsets.

    :param segments: log, first offset, end offset and size of each segment.
    :param receipts: the receipts of all of them, or none.
    """
    logs = sorted({log for log, *_ in segments})
    spans = tuple(
        OffsetSpan(
            log,
            min(first for name, first, _, _ in segments if name == log),
            max(end for name, _, end, _ in segments if name == log),
        )
        for log in logs[:LOGS_NAMED]
    )
    return Counts(
        segments=len(segments),
        size_bytes=sum(size_bytes for *_, size_bytes in segments),
        messages=sum(row.message_count for row in receipts) if receipts else None,
        first_message_ms=min(_drop_none(row.first_store_timestamp_ms for row in receipts), default=None),
        last_message_ms=max(_drop_none(row.last_store_timestamp_ms for row in receipts), default=None),
        lake=lake,
        spans=spans,
        more_logs=len(logs) - len(spans),
    )


def _drop_none(values: Iterable[int | None]) -> list[int]:
    return [value for value in values if value is not None]
