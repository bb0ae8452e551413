"""A hold, which keeps a running broker from deleting segments that aren't archived.

When the hold ends, the store is left as it was found. If the broker is stopped, nothing has to be held
between runs, and all functions here do nothing.

A command that ends the hold is refused if the broker's own rules may then delete unproven segments within a
day. A person may accept the number of these segments. Each unknown range counts as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.clock import DAY_MS, HOUR_MS, clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import bytes_text, count_text, reason_text, time_text
from storage_engine.exceptions import GateRefusedError, StorageEngineError, StoreBusyError
from storage_engine.journal.journal import (
    WATCH_RUN,
    Event,
    Journal,
    Phase,
    Run,
    Step,
    drift_since_renewal,
    hold_memory,
    record_drift,
    untold_mends,
)
from storage_engine.journal.reading.run_rows import GONE
from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.coverage.coverage import ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults
from storage_engine.lake.storage.pace import pace_at
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.broker.broker_store import BrokerStore, UnheldSegments, course_of, hold_of
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.report.validation import Where
from storage_engine.model.settings.policy import archive_limit
from storage_engine.model.store import FileFacts, LogNames, Segment, SegmentId, SegmentState
from storage_engine.retention.archive.archivable import still_unproven
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.sealed import MeasuredLag, measure_lag
from storage_engine.retention.hold.hold_text import hold_end_text
from storage_engine.retention.proof.proofs import Proofs, read_proofs, read_store_permits
from storage_engine.retention.ranges.deleted_ranges import accepted_losses
from storage_engine.retention.ranges.drift import drift_alarms, gone_ranges, ranges_of_drift
from storage_engine.retention.shield import asked_notices, tend_shield
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.context import WHOLE, AnyStore, Context, open_context, opened
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import mark_shield
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.shield.index import (
    Place,
    SeenLink,
    log_was_written,
    look_at_shield,
    remove_shield,
    shield_path,
)
from storage_engine.shield.links import drop_links, log_has_bytes


def expiry_alarms(context: Context, measured: MeasuredLag, now_ms: int) -> tuple[str, ...]:
    """Return an alarm if segments that no lake proves will be deleted within the policy's margin.

    Segments that may not be archived yet, as with an open transaction, count: the broker deletes these, too.

    :raises OSError: a file can't be read.
    """
    snapshot, until_ms = measured.snapshot, now_ms + context.store.policy.archive_margin_hours * HOUR_MS
    moments = course_of(context.broker).deletes_at_ms(snapshot, now_ms)
    due = {
        segment.id: (at_ms, segment)
        for log in snapshot.logs
        for segment in log.sealed
        if segment.id not in measured.archived
        and segment.facts.size_bytes
        and (at_ms := moments.get(segment.id)) is not None
        and at_ms <= until_ms
    }
    if not due:
        return ()
    first_ms = min(at_ms for at_ms, _ in due.values())
    logs = list(dict.fromkeys(segment.log for segment in due))
    size = bytes_text(sum(segment.disk_bytes for _, segment in due.values()))
    when = "now" if first_ms <= now_ms else f"from {time_text(first_ms)} on"
    return (
        f"{count_text(len(due), 'segment')}, {size}, of {named_in_short(logs)} may be deleted by the "
        f"broker {when}, and no lake proves them: archive them, or let it keep them longer",
    )


UNMANAGE_RUN: Final = "unmanage"
"""Key of the run under which a store's unproven segments are recorded when its hold ends."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A person's decision to leave a store to its broker though some segments are unproven.

    :param at_most: greatest number of such segments. Each unknown range counts as one.
    """

    at_most: int
    person: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnprovenSegments:
    """Segments that are deleted within a span of time though no lake proves them.

    :param unknown: clauses on other ranges that may be deleted and can't be counted.
    :param unasked: why lakes couldn't be asked. None of their segments counts as proven.
    """

    segments: tuple[Segment, ...] = ()
    unknown: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Return the least number of segments: each range that can't be counted counts as one."""
        return len(self.segments) + len(self.unknown)

    @property
    def text(self) -> str:
        """Return the text on the segments for a finding."""
        parts = []
        if self.segments:
            first = ", ".join(f"{segment.log} {segment.name}" for segment in self.segments[:_NAMED])
            more = f" and {len(self.segments) - _NAMED} more" if len(self.segments) > _NAMED else ""
            size = bytes_text(sum(segment.facts.size_bytes for segment in self.segments))
            count = count_text(len(self.segments), "segment")
            parts.append(f"{count}, {size}, that no lake proves ({first}{more})")
        if active := sum(segment.state is SegmentState.ACTIVE for segment in self.segments):
            parts.append(f"{active} of them active, which no lake can have before the broker closes them")
        if self.unknown:
            parts.append(f"ranges that can't be counted: {'; '.join(self.unknown)}")
        if self.unasked:
            parts.append(f"and a lake didn't answer: {'; '.join(self.unasked)}")
        return ", ".join(parts)


def unheld_by(broker: BrokerStore, now_ms: int, until_ms: int) -> UnheldSegments:
    """Return the segments that a store's broker deletes by ``until_ms`` if the hold ends now."""
    try:
        return hold_of(broker).unheld_segments(now_ms, until_ms)
    except (StorageEngineError, OSError) as error:
        return UnheldSegments((), (f"all segments that its broker deletes ({_clause_text(error)})",))


def find_unproven_segments(
    store: ManagedStore, journal: Journal, record: StoreRecord, unheld: UnheldSegments
) -> UnprovenSegments:
    """Return the unheld segments that the lakes should prove and don't.

    A lake that can't be asked proves none. Under the policy ``archive: off``, no segment is returned.
    """
    if not store.archives:
        return UnprovenSegments()
    segments: tuple[Segment, ...] = unheld.segments
    unasked: tuple[str, ...] = ()
    if segments:
        try:
            heads, slots = known_heads(journal, record), {segment.id for segment in segments}
            proofs = read_proofs(store.lakes, record, slots, known=heads, whole_chain=True)
            unasked = tuple(_clause_text(why) for _, why in proofs.unreachable)
            segments = tuple(still_unproven(journal, record, replace(proofs, unreachable=()), segments))
        except (StorageEngineError, OSError) as error:
            unasked = (_clause_text(error),)
    return UnprovenSegments(segments, unheld.unknown, unasked if segments else ())


def _clause_text(error: object) -> str:
    return Text(error).without(" Nothing was changed.").removesuffix(".")


def _find_unproven(context: Context, now_ms: int, until_ms: int) -> UnprovenSegments:
    unheld = unheld_by(context.broker, now_ms, until_ms)
    return find_unproven_segments(context.store, context.journal, context.record, unheld)


def refusal(left: UnprovenSegments, acceptance: Acceptance | None) -> str:
    """Return why a hold may not end, without the store's name, or "" if it may end. Pure."""
    if left.count <= (0 if acceptance is None else acceptance.at_most):
        return ""
    expected = "no segment" if acceptance is None else f"at most {acceptance.at_most}"
    remedy = Text("Archive them: ", Command("archive")) if left.segments else "Mend the cause"
    return Text(
        f"expected {expected} that no lake proves and that its broker deletes within a day after the hold, "
        f"found {left.text}. Nothing was changed. ",
        remedy,
        f". To end the hold all the same: --leave-unproven {left.count} --reason TEXT.",
    )


def check_unproven(context: Context, acceptance: Acceptance | None, now_ms: int) -> UnprovenSegments:
    """Make sure that a store's hold may end.

    :return: the unproven segments that its broker would delete within a day; no more than were accepted.
    :raises GateRefusedError: there are more than a person has accepted.
    """
    unproven = _find_unproven(context, now_ms, now_ms + DAY_MS)
    if why := refusal(unproven, acceptance):
        raise GateRefusedError(f"{context.store.real_root}: ", why)
    return unproven


def check_hold_of_other_journal(
    store: ManagedStore, journal: Journal, record: StoreRecord, acceptance: Acceptance | None, now_ms: int
) -> None:
    """Make sure that a journal may take over a store. Another journal's hold isn't renewed by this journal.

    :param record: the store's record in the journal, or the record that the store is to have.
    :raises GateRefusedError: another journal holds the store. Without that hold the broker deletes unproven
        segments within a day, more than a person has accepted.
    """
    if hold_memory(journal, record.store_id).load() is not None:
        return
    with closing(open_store(store)) as broker:
        held_until_ms = None if broker.hold is None else broker.hold.held_until_ms()
        if held_until_ms is None or held_until_ms <= now_ms:
            return
        unheld = unheld_by(broker, now_ms, now_ms + DAY_MS)
        unproven = find_unproven_segments(store, journal, record, unheld)
    if why := refusal(unproven, acceptance):
        raise GateRefusedError(
            f"{store.real_root}: another journal holds the store until {time_text(held_until_ms)}, and this "
            "journal doesn't renew that hold: ",
            why,
            " Or unmanage the store with that journal first.",
        )


def end_alarms(context: Context, status: HoldStatus | None, now_ms: int) -> tuple[str, ...]:
    """After half of a hold's time, return an alarm: when it ends, and which unproven segments are at risk."""
    if status is None or status.ends_at_ms is None or not status.is_half_over(now_ms):
        return ()
    until_ms = (status.deletes_from_ms or status.ends_at_ms) + DAY_MS
    text = hold_end_text(status, _find_unproven(context, now_ms, until_ms).text)
    return (Text(f"{text}. Renew it: ", Command("hold"), "; or archive: ", Command("archive")),)


def record_intent(context: Context, left: UnprovenSegments | None, acceptance: Acceptance | None) -> None:
    """Record durably which unproven segments are about to be left to the broker, and who decided it.

    :param left: these segments. None records nothing: no broker runs, the hold stays, or a killed call has
        recorded them.
    """
    if left is None or not (left.count or _open_intent(context)):
        return
    payload = {
        "person": "" if acceptance is None else acceptance.person,
        "reason": "" if acceptance is None else acceptance.reason,
        "at_most": 0 if acceptance is None else acceptance.at_most,
        "segments": len(left.segments),
        "size_bytes": sum(segment.facts.size_bytes for segment in left.segments),
        "unknown": [*left.unknown, *left.unasked],
    }
    _record(context, Phase.INTENT, payload)


def record_result(context: Context) -> None:
    """Record that the open intent's segments are now left to the broker. Without an intent, do nothing."""
    if (intent := _open_intent(context)) is not None:
        _record(context, Phase.RESULT, intent.payload)


def _open_intent(context: Context) -> Event | None:
    events = context.journal.store_events(context.record.store_id, Step.UNMANAGE)
    return events[-1] if events and events[-1].phase is Phase.INTENT else None


def _record(context: Context, phase: Phase, payload: Mapping[str, Any]) -> None:
    run = begin_background_run(context, UNMANAGE_RUN)
    context.journal.record(run, Step.UNMANAGE, phase, [(WHOLE, payload)])


Spans = list[tuple[int, int]]
"""Ranges of offsets, each as (first, end)."""


def with_unproven(record: StoreRecord, store: ManagedStore, drifts: Iterable[Drift]) -> tuple[Drift, ...]:
    """Return the drift. For a deleted log it also says which ranges no lake has, or that this is unknown."""
    return tuple(
        replace(drift, detail=f"{drift.detail} {_unproven_text(record, store, drift)}", log_id="")
        if drift.kind is DriftKind.TOPIC_REPLACED and drift.log_id
        else drift
        for drift in drifts
    )


def _unproven_text(record: StoreRecord, store: ManagedStore, drift: Drift) -> str:
    if not store.archives:
        return "No lake has any of it, as nothing is archived (archive: off)."
    spans: Spans = []
    unasked = []
    offsets = (drift.start_offset, drift.end_offset)
    for config in store.lakes:
        try:
            spans += proven_of_log(open_lake(config), record, drift.log, drift.log_id, offsets)
        except (StorageEngineError, OSError) as error:
            reason = reason_text(error).removesuffix(".")
            unasked.append(Text(f"the lake at {config.location} can't be asked: ", reason))
    gaps = subtract_intervals(drift.start_offset, drift.end_offset, merge_intervals(spans))
    missing = [f"[{first}, {end})" for first, end in gaps]
    if not missing:
        return "A lake has all of these."
    if unasked:
        return f"Whether a lake has offsets {', '.join(missing)} is unknown, as {'; '.join(unasked)}."
    return f"No lake has offsets {', '.join(missing)} of it."


def proven_of_log(lake: Lake, record: StoreRecord, log: str, log_id: str, offsets: tuple[int, int]) -> Spans:
    """Return the ranges of a log that sound receipts prove, of this store or of another replica of the log.

    If the log has several lineages, the last one counts: an earlier one had other bytes.

    :param offsets: the first and the end offset of the wanted range.
    :raises LakeUnavailableError: the lake can't be read.
    """
    rows = [row for row in receipts(lake, record.store_id, log=log) if row.log_id == log_id]
    newest = max((row.lineage for row in rows), default=0)
    rows = [row for row in rows if row.lineage == newest]
    unsound = losses(find_faults(lake, rows))
    names = LogNames(ids={log: log_id})
    others = replica_spans(lake, record.store_id, names, [ReleasedSpan(log, *offsets)], frozenset)
    own_spans = [(row.base_offset, row.end) for row in rows if row.identity not in unsound]
    return [*own_spans, *((span.start_offset, span.end_offset) for span in others if not span.ended)]


def record_hold_drift(context: Context, status: HoldStatus, run: Run | None = None) -> None:
    """Record new drift of a hold under a run, or under :data:`WATCH_RUN` if no run is given."""
    if status.disturbances:
        status = with_rule_notes(context, status)
        run = run or begin_background_run(context, WATCH_RUN)
        record_drift(context.journal, context.record, run, status.disturbances)


def with_rule_notes(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a hold's status with a note on each range whose deletion a rule permits without a copy."""
    if not any(drift.kind in GONE and drift.log for drift in status.disturbances):
        return status
    permits = read_store_permits(context.store, context.journal, context.record)
    drifts = list(status.disturbances)
    for i, drift in enumerate(drifts):
        if drift.kind in GONE:
            drifts[i] = replace(drift, unarchived=drift.unarchived or permits.clause_of_log(drift.log))
    return replace(status, disturbances=tuple(drifts))


def with_lake_notes(context: Context, status: HoldStatus) -> HoldStatus:
    """Return a hold's status with the ranges of deleted logs that no lake has."""
    return replace(status, disturbances=with_unproven(context.record, context.store, status.disturbances))


def alarms_of(context: Context, status: HoldStatus) -> tuple[str, ...]:
    """Return a sentence on each drift. For a deleted range it names the place, such as ARCHIVED or LOST."""
    drifts = with_lake_notes(context, with_rule_notes(context, status)).disturbances
    return drift_alarms(drifts, gone_ranges(context.journal, context.record, context.store, drifts))


def remove_shield_of(store: ManagedStore, acceptance: Acceptance | None = None) -> tuple[str, ...]:
    """Remove a shield, even if the store's policy wants one.

    :param acceptance: a person's consent that some segments are deleted unproven afterwards.
    :return: notices on the links that stay.
    :raises GateRefusedError: the shield has the only copy of some bytes, or it alone protects segments that
        the running broker deletes within a day. Nothing was deleted.
    """
    with opened(store) as context:
        make_removable(context)
        unproven, now_ms = None, clock_ms()
        if context.broker.is_live and not hold_of(context.broker).status(now_ms).held:
            unproven = check_unproven(context, acceptance, now_ms)
        record_intent(context, unproven, acceptance)
        notices = remove_all(context)
        record_result(context)
        return notices


def make_removable(context: Context) -> None:
    """Archive segments that only the shield has.

    :raises GateRefusedError: the shield still has bytes that are neither in the log nor proven in a lake, or
        the former bytes of a segment that others wrote to.
    """
    store, notices = context.store, ""
    if _find_alone(store) and store.archives:
        notices = join_texts(" ", (Text(notice, ".") for notice in tend_shield(store, tends=True).notices))
    files = [file for file in _find_alone(store) if not _is_accepted(context, file)]
    _refuse_written(store.real_root, [file for file in files if file.place is Place.IN_LOG])
    if files:
        raise GateRefusedError(
            f"{store.real_root}: expected a shield whose segments are all in the log or proven in a "
            f"lake, found {count_text(len(files), 'segment')} that only the shield has, "
            f"{_offsets_text(files)}. Nothing was deleted. ",
            notices,
            " Mend what keeps them out of the lake, or accept their loss (",
            Command("accept-loss"),
            f"), or move their files out of {shield_path(store.real_root)}, and run this again.",
        )


def _refuse_written(root: str, written: Sequence[SeenLink]) -> None:
    """Refuse to remove a shield whose segments in the log were written to since they were linked.

    :raises GateRefusedError: the shield has the only copy of their former bytes. Nothing was deleted.
    """
    if written:
        raise GateRefusedError(
            f"{root}: expected the log's segments as they were when the shield linked them, found "
            f"{count_text(len(written), 'segment')} that others wrote to later, {_offsets_text(written)}. "
            "Nothing was deleted: only the shield has the former bytes of these segments. Move their files "
            f"(for example {written[0].facts.path}) out of {shield_path(root)}, and run this again."
        )


def _offsets_text(links: Sequence[SeenLink]) -> str:
    offsets = ", ".join(str(file.link.base_offset) for file in links[:5])
    return f"at offset {offsets}{', …' if len(links) > 5 else ''}"


def remove_all(context: Context) -> tuple[str, ...]:
    """Remove a shield after :func:`make_removable`. Links of segments that left the log meanwhile stay.

    :return: notices on the remaining links for a person.
    """
    root, record = context.store.real_root, context.record
    alone = _find_alone(context.store)
    drop_links(root, [file.link.name for file in alone if _is_accepted(context, file)])
    names = {file.link.name for file in alone}
    files = look_at_shield(root).links
    drop_links(root, [file.link.name for file in files if file.link.name not in names], in_log=True)
    if not look_at_shield(root).links and remove_shield(root):
        mark_shield(root, record.store_id, record.lineages, False)
    return asked_notices(context)


def _find_alone(store: ManagedStore) -> list[SeenLink]:
    """Return the links that may have bytes which the log no longer has. Touched segments are compared."""
    root = store.real_root
    links, acts = look_at_shield(root).links, read_own_acts(root)
    spend = pace_at(archive_limit(store.policy, beside=store.is_live, emergency=False)).spend
    return [
        file
        for file in links
        if file.place is not Place.IN_LOG
        or (log_was_written(file, acts) and not log_has_bytes(root, file, spend))
    ]


def _is_accepted(context: Context, file: SeenLink) -> bool:
    """Return whether a person has accepted the loss of a link's segment."""
    link = file.link
    of_lineage = context.record.at_lineage(link.lineage, [link.log])
    return any(
        loss.log == link.log and loss.start_offset <= link.base_offset and link.end_offset <= loss.end_offset
        for loss in accepted_losses(context.journal, of_lineage)
    )


_ACCOUNTED = frozenset({Where.ARCHIVED, Where.NOT_ARCHIVED})


def hold_what_is_due(context: Context, measured: MeasuredLag | None, now_ms: int) -> HoldStatus:
    """Hold unproven segments that the broker would delete within the policy's margin.

    The hold on segments that are archived by now ends.

    :param measured: the lakes' proofs. None asks the lakes.
    :raises GateRefusedError: nothing can be held; the error says why, and what to do.
    :raises BrokerError: the broker can't be asked.
    """
    if not context.store.archives:
        return HoldStatus(False, left_to_broker=True, described="nothing of it is archived (archive: off)")
    proven, unknown = _find_proven(context, measured)
    margin_ms = context.store.policy.archive_margin_hours * HOUR_MS
    status = hold_of(context.broker).hold_due(proven, margin_ms, now_ms)
    # Drift that an interrupted look recorded is added, because that look didn't report it.
    drifts = (*drift_since_renewal(context.journal, context.record), *status.disturbances)
    marked = with_rule_notes(context, replace(status, disturbances=tuple(dict.fromkeys(drifts))))
    unarchived = _keep_unarchived(context, marked.disturbances)
    return replace(status, disturbances=unarchived, notices=(*status.notices, *unknown))


def _find_proven(
    context: Context, measured: MeasuredLag | None
) -> tuple[Mapping[SegmentId, FileFacts], tuple[str, ...]]:
    """Return the segments that lakes prove, with their files, and notes; no segment if proofs are unknown."""
    try:
        measured = measured or measure_lag(context)
    except (StorageEngineError, OSError) as error:
        reason = reason_text(error).removesuffix(".")
        return {}, (Text("the lakes' proofs are unknown, so no segment counts as proven: ", reason),)
    every = (segment for log in measured.snapshot.logs for segment in log.segments)
    segments = [segment for segment in every if segment.id in measured.archivable]
    unproven, broken = measured.unproven, _find_broken(context, measured.proofs)
    if broken:
        sound = tuple(of_lake for of_lake in measured.proofs.asked if of_lake.lake.location not in broken)
        proofs = replace(measured.proofs, asked=sound)
        unproven |= {s.id for s in still_unproven(context.journal, context.record, proofs, segments)}
    notes = (*measured.lag.notes, *broken.values())
    return {segment.id: segment.facts for segment in segments if segment.id not in unproven}, notes


def _find_broken(context: Context, proofs: Proofs) -> Mapping[str, str]:
    """Check the whole chain of receipts of each lake. Return location → why the chain is broken."""
    heads, broken = known_heads(context.journal, context.record), {}
    for of_lake in proofs.asked:
        try:
            heads.check(of_lake.lake, context.record.store_id, whole=True)
        except (StorageEngineError, OSError) as error:
            broken[of_lake.lake.location] = reason_text(error)
    return broken


def _keep_unarchived(context: Context, drifts: Sequence[Drift]) -> tuple[Drift, ...]:
    """Leave out deleted ranges that are archived by now, or whose deletion a rule permits without a copy."""
    rows = gone_ranges(context.journal, context.record, context.store, drifts)
    return tuple(
        drift
        for drift in drifts
        if drift.kind not in GONE or any(row.where not in _ACCOUNTED for row in ranges_of_drift(drift, rows))
    )


@dataclass(frozen=True, slots=True)
class HoldResult:
    """:param beside: the settings say that a broker runs on the store. Otherwise there is nothing to hold.
    :param renewed: this call began, renewed or ended the hold. False if no broker runs, or if another run is
        working on the store.
    """

    store: str
    store_id: str
    beside: bool
    renewed: bool
    status: HoldStatus


def hold(
    store: AnyStore,
    now_ms: int | None = None,
    *,
    run_key: str | None = None,
    measured: MeasuredLag | None = None,
) -> HoldResult:
    """Begin or renew the hold on a store whose broker keeps running.

    If the broker deletes by its own rules, only the unproven segments that it would soon delete are held.

    :param now_ms: the moment to decide for; None for this machine's clock.
    :param measured: the lakes' proofs, if the broker deletes by its own rules. None asks the lakes.
    :param run_key: the run that records the hold's status, begun if it is missing. None records only drift.
    :raises GateRefusedError: the store can't be held; the error says why, and what to do.
    :raises BrokerError: the broker can't be asked.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    if run_key is None:
        return _result(context, *_renew(context, None, now_ms, measured))
    run = begin_background_run(context, run_key)
    with context.errors(run, Step.HOLD):
        return _result(context, *_renew_and_save(context, run, now_ms, measured))


def unmanage(store: AnyStore, now_ms: int | None = None, acceptance: Acceptance | None = None) -> HoldResult:
    """End the hold: put back every file's time and every setting. Then the broker's own rules count again.

    The shield is removed as well. Before the first setting is put back, the unproven segments are counted.

    :param acceptance: a person's consent that some segments are deleted unproven.
    :raises StoreBusyError: another run is working on the store; nothing was changed.
    :raises GateRefusedError: more unproven segments would be deleted within a day than were accepted, or the
        shield has the only copy of some. Nothing was changed.
    :raises BrokerError: the broker can't be asked.
    """
    context = open_context(store)
    now_ms = clock_ms() if now_ms is None else now_ms
    make_removable(context)
    unproven = None
    with context.journal.lease(context.record.store_id):
        if context.broker.is_live and _is_protected(context):
            unproven = check_unproven(context, acceptance, now_ms)
        record_intent(context, unproven, acceptance)
        status = hold_of(context.broker).end(now_ms)
        record_hold_drift(context, status)
        record_result(context)
    # This comes after the hold's end, because a watch makes links only for a held store.
    notices = remove_all(context)
    if unproven is not None and unproven.count:
        notices += (f"left to its broker, as a person accepted: {unproven.text}",)
    status = with_lake_notes(context, status)
    return _result(context, replace(status, notices=(*status.notices, *notices)), True)


def _is_protected(context: Context) -> bool:
    """Return whether a hold exists, or a shield that ends with the hold."""
    memory = hold_memory(context.journal, context.record.store_id)
    return memory.load() is not None or shield_path(context.store.real_root).exists()


def keep_held(context: Context, run: Run, now_ms: int) -> tuple[str, ...]:
    """Begin or renew the hold for a run, and record its status.

    :return: notices for a person; empty if no broker runs.
    :raises GateRefusedError: the store can't be held; the error says why, and what to do.
    """
    if not context.broker.is_live:
        return ()
    status, _ = _renew_and_save(context, run, now_ms)
    notices = (*status.notices, *status.alarms, *alarms_of(context, status))
    if not status.held:
        raise GateRefusedError(join_texts("; ", notices))
    return notices


def recorded_hold(context: Context, run: Run) -> HoldStatus | None:
    """Return a run's last recorded status of its hold, with all drift of the run, or None."""
    statuses = [
        from_jsonable(HoldStatus, event.payload["result"])
        for event in context.journal.events(run, Step.HOLD, Phase.RESULT)
    ]
    if not statuses:
        return None
    disturbances = dict.fromkeys(drift for status in statuses for drift in status.disturbances)
    return replace(statuses[-1], disturbances=tuple(disturbances))


def _renew_and_save(
    context: Context, run: Run, now_ms: int, measured: MeasuredLag | None = None
) -> tuple[HoldStatus, bool]:
    started_ns = time.monotonic_ns()
    status, renewed = _renew(context, run, now_ms, measured)
    if context.broker.is_live:
        context.save(run, Step.HOLD, status, started_ns)
    return status, renewed


def _renew(
    context: Context, run: Run | None, now_ms: int, measured: MeasuredLag | None
) -> tuple[HoldStatus, bool]:
    """Return the hold's status, and whether the hold was renewed."""
    status, renewed = _try_to_renew(context, run, now_ms, measured)
    return with_lake_notes(context, status), renewed


def _try_to_renew(
    context: Context, run: Run | None, now_ms: int, measured: MeasuredLag | None
) -> tuple[HoldStatus, bool]:
    if not context.broker.is_live:
        return hold_of(context.broker).renew(now_ms), False
    # Drift is recorded under this run before the renewal, and again for what the renewal finds.
    record_hold_drift(context, hold_of(context.broker).status(now_ms), run)
    done = untold_mends(context.journal, context.record)
    try:
        # Two of our processes must not change the same files and settings at a time.
        with context.journal.lease(context.record.store_id, waits=False):
            if context.store.cleans_up:
                status = hold_of(context.broker).renew(now_ms)
            else:
                status = hold_what_is_due(context, measured, now_ms)
            record_hold_drift(context, status, run)
            return replace(status, disturbances=(*done, *status.disturbances)), True
    except StoreBusyError as error:
        status = hold_of(context.broker).status(now_ms)
        if status.left_to_broker:
            # No segment was judged, and an alarm says so.
            alarms = (Text("segments that will be deleted soon were not looked for: ", error),)
            drifts = drift_since_renewal(context.journal, context.record)
            return replace(status, disturbances=drifts, alarms=alarms), False
        notices = (*status.notices, Text("the hold was only looked at: ", error))
        return replace(status, disturbances=(*done, *status.disturbances), notices=notices), False


def _result(context: Context, status: HoldStatus, renewed: bool) -> HoldResult:
    beside = context.broker.is_live
    return HoldResult(context.name, context.record.store_id, beside, renewed and beside, status)
