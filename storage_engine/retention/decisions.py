"""A person's decisions about a store, kept in the journal: a new lineage, the store's name and place, which
store a directory is, and acceptance of a loss.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from storage_engine.brokers import has_companions
from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import check_host, is_this_host
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, LakeUnavailableError, StoreIdentityError
from storage_engine.journal.journal import Journal, Phase, Step, StoreRecord
from storage_engine.journal.stores import name_taken, no_copy
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import ancestors_of, lake_id_of
from storage_engine.lake.coverage.coverage import lost_ranges
from storage_engine.lake.coverage.spans import companion_fault
from storage_engine.lake.file.jobs import file_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.soundness.receipts import list_stores
from storage_engine.model.broker.broker_store import BrokerStore, contradiction
from storage_engine.model.plan import RecordedPolicy
from storage_engine.model.proof.receipt import LakeHead, Receipt, SegmentIdentity, files_fault
from storage_engine.model.report.validation import RangeStatus
from storage_engine.model.settings.policy import ApprovalPolicy
from storage_engine.model.store import (
    Lineages,
    LogSnapshot,
    Segment,
    group_by_log,
    log_label,
    may_be_one,
    name_in_label,
)
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.hold.holding import Acceptance, check_hold_of_other_journal
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.proof.approvals import recorded_policy
from storage_engine.retention.proof.gate import is_proven_file
from storage_engine.retention.proof.proofs import current_receipts
from storage_engine.retention.ranges.deleted_ranges import AcceptedLoss, accepted_losses, record_loss
from storage_engine.retention.ranges.drift import gone_ranges, recorded_gone
from storage_engine.retention.ranges.missing_logs import missing_logs, present_logs
from storage_engine.retention.ranges.seen_logs import Missing
from storage_engine.retention.replicas import compare_logs
from storage_engine.retention.store.broker_answers import take_archivable, take_snapshot
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.context import Context, opened
from storage_engine.retention.store.identity import (
    add_to_journal,
    archived_lineages,
    carry_out,
    check_broker,
    check_free,
    check_no_original,
    check_same,
    identify,
    is_there,
)
from storage_engine.retention.store.known_heads import RESET, head_of, known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import (
    Stamp,
    read_stamp,
    replace_stamp,
    stamp_of_original,
    stamp_path,
    stamped_ids,
    update_stamp,
)
from storage_engine.retention.store.unnamed_lakes import lakes_unasked
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts

LOSSES_RUN = "losses"
"""Key of the run under which a store's accepted losses are recorded."""


def accept_loss(
    store: ManagedStore, start_offset: int, end_offset: int, person: str, reason: str, log: str | None = None
) -> AcceptedLoss:
    """Record that a person accepts the loss of a log's bytes.

    From then on validation warns of this loss, and doesn't fail.

    :param start_offset: first offset of the range, which ends at ``end_offset``. The whole range must be LOST
        or UNKNOWN. Then no lake has it, and by the journal its log is missing or others deleted it. A range
        that neither store nor lakes have counts as lost, too.
    :param log: the log of the range, or None for the first log that has lost all of the range.
    :raises BadInputError: a part of the range is in a known place, or no reason is given.
    :raises LakeUnavailableError: a lake that may have the bytes can't be asked, or lost known receipts.
    """
    _check_decision("accept-loss", person, reason, "fails over these messages")
    with opened(store) as context:
        return _accept(context, (start_offset, end_offset), person.strip(), reason.strip(), log)


def _accept(
    context: Context, offsets: tuple[int, int], person: str, reason: str, only: str | None
) -> AcceptedLoss:
    start_offset, end_offset = offsets
    _ask_every_lake(context)
    record = context.record
    rows = _list_lost(context)
    label = _label_of(rows, offsets, only)
    if label is None:
        rows += _gaps(context, rows)
        label = _label_of(rows, offsets, only)
    if label is None or start_offset >= end_offset:
        lost = (f"{row.label} [{row.start_offset}, {row.end_offset})" for row in rows)
        raise BadInputError(
            f"{context.store.root}: expected a range of {only or 'the log'} that is LOST or UNKNOWN, found "
            f"[{start_offset}, {end_offset}); LOST or UNKNOWN are: {', '.join(lost) or 'none'}. Nothing "
            "was recorded."
        )
    parts = [
        row
        for row in rows
        if row.label == label and row.start_offset < end_offset and start_offset < row.end_offset
    ]
    gap = "; ".join(dict.fromkeys(row.gap for row in parts if row.gap))
    log, log_id = parts[0].log, next((row.log_id for row in parts if row.log_id), "")
    loss = AcceptedLoss(log, record.lineage_of(log), start_offset, end_offset, person, reason, gap, log_id)
    record_loss(context.journal, begin_background_run(context, LOSSES_RUN), loss)
    return loss


def _ask_every_lake(context: Context) -> None:
    """:raises LakeUnavailableError: a lake that may have the lost bytes can't be asked, or wasn't named."""
    if not context.store.archives:
        return
    heads = known_heads(context.journal, context.record)
    lakes = [open_lake(config) for config in context.store.lakes]
    for lake in lakes:
        heads.check(lake, context.record.store_id, whole=True)
    if unasked := lakes_unasked(heads.heads, lakes, {}):
        raise LakeUnavailableError(
            f"{context.store.root}: expected an answer from every lake that may have the lost bytes, found "
            f"that {'; '.join(unasked)}. Nothing was recorded. Name that lake. If you already name another "
            "lake, name the missing one with --second-lake. If it is gone for good, record that with ",
            Command("stamp"),
            ".",
        )


@dataclass(frozen=True, slots=True)
class _Lost:
    """A range that no known place has.

    :param gap: facts about a gap between store and lake, if only the gap shows the loss; else "".
    :param log_id: identity of the range's log, or "" if unknown.
    :param is_other: another log has the name of the range's log by now.
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


def _list_lost(context: Context) -> list[_Lost]:
    """Return the ranges that the journal or the monitor's memory calls lost, and that no lake has."""
    record = context.record
    recorded = recorded_gone(context.journal, record)
    drifts = [drift for drift, lineage in recorded if lineage == record.lineage_of(drift.log)]
    missing: tuple[Missing, ...] = ()
    present: dict[str, str] = {}
    if context.broker.identities is not None:
        snapshot = context.snapshot(clock_ms())
        missing = missing_logs(context.store, context.journal, record, context.broker, snapshot)
        present = present_logs(context.broker, snapshot)
    accepted = accepted_losses(context.journal, record)

    def lost(row: RangeStatus) -> _Lost:
        cause = next((span for span in missing if _has_overlap(row, span)), None)
        lost_range = _Lost(row.log, row.start_offset, row.end_offset)
        if cause is not None:
            lost_range = replace(lost_range, log=cause.log, log_id=cause.log_id, is_other=cause.is_other)
        return replace(lost_range, is_accepted=any(_is_accepted(lost_range, loss) for loss in accepted))

    statuses = gone_ranges(context.journal, record, context.store, drifts, missing=missing, present=present)
    return list(map(lost, lost_ranges(statuses)))


def _has_overlap(row: RangeStatus, span: Missing) -> bool:
    name = log_label(span.log, span.log_id) if span.is_other else span.log
    return row.log == name and span.start_offset < row.end_offset and row.start_offset < span.end_offset


def _is_accepted(row: _Lost, loss: AcceptedLoss) -> bool:
    is_inside = loss.start_offset <= row.start_offset and row.end_offset <= loss.end_offset
    return is_inside and loss.log == row.log and may_be_one(loss.log_id, row.log_id)


def _gaps(context: Context, lost_rows: Sequence[_Lost]) -> list[_Lost]:
    """Return ranges outside ``lost_rows`` that neither store nor lakes have, as the monitor finds them.

    :raises LakeUnavailableError: no lake can be read.
    """
    measured = measure_lag(context) if context.store.archives else None
    snapshot = context.snapshot(clock_ms()) if measured is None else measured.snapshot
    return [
        _Lost(
            name := name_in_label(gap.log, gap.log_id),
            gap.start_offset,
            gap.end_offset,
            gap.detail,
            gap.log_id,
            name != gap.log,
        )
        for gap in look_for_ranges(context, snapshot, measured)[0]
        if gap.is_missing
        and not any(
            row.label == gap.log and row.start_offset < gap.end_offset and gap.start_offset < row.end_offset
            for row in lost_rows
        )
    ]


def _label_of(rows: Sequence[_Lost], offsets: tuple[int, int], only: str | None) -> str | None:
    """Return the label of the first log that has lost these offsets. Unaccepted losses come first."""
    ordered = sorted(rows, key=attrgetter("is_accepted"))
    labels = dict.fromkeys(row.label for row in ordered if only in (None, row.log, row.label))
    return next((label for label in labels if _lost_end(rows, label, offsets[0]) >= offsets[1]), None)


def _lost_end(rows: Sequence[_Lost], label: str, offset: int) -> int:
    """Return the end of a log's contiguous lost range that begins at an offset."""
    for row in sorted(rows, key=attrgetter("start_offset")):
        if row.label == label and row.start_offset <= offset < row.end_offset:
            offset = row.end_offset
    return offset


def contradictions(
    store: ManagedStore, record: StoreRecord, logs: Iterable[LogSnapshot]
) -> Iterator[Segment]:
    """Yield segments that differ from their receipt, or from a data file that has no receipt.

    A run that was killed between the commits of data and receipts leaves such a file. If a segment has other
    bytes than such a file, archiving refuses it, too.

    :raises LakeUnavailableError: a lake can't be read.
    """
    acts = read_own_acts(store.real_root)
    segments = {
        slot_prefix(SegmentIdentity(record.store_id, record.lineage_of(s.log), s.log, s.base_offset, "")): s
        for log in logs
        for s in log.segments
    }
    for config in store.archive_lakes:
        lake = open_lake(config)
        rows = {slot_prefix(row.identity): row for row in current_receipts(lake, record, with_ended=True)}
        for slot, segment in segments.items():
            if slot in rows and _contradicts(segment, rows[slot], acts):
                yield segment
        files = live_data_files(lake.messages(), record.store_id)
        for slot, digits in {split_data_file_name(file_name(file.location)) for file in files}:
            if (
                slot in segments
                and slot not in rows
                and not sha256_of(segments[slot].facts.path).startswith(digits)
            ):
                yield segments[slot]


def _contradicts(segment: Segment, row: Receipt, acts: OwnActs) -> bool:
    # If a receipt's companions are invalid, archiving again makes another receipt.
    if is_proven_file(segment, row, acts) or files_fault(row.files):
        return False
    proven = {companion.name: companion for companion in row.companions}
    paths = {path.name: path for path in (Path(file.path) for file in segment.companions)}
    return (
        (sha256_of(segment.facts.path), segment.end_offset) != (row.sha256, row.end)
        or not has_companions(row.broker, proven, paths)
        or any(companion_fault(row.broker, proven[name], path) for name, path in paths.items())
    )


STAMP_RUN = "stamp"
"""Key of the run under which a person's decisions about a store's stamp are recorded."""


def adopt(
    store: ManagedStore, person: str, reason: str, *, force: bool = False, log: str | None = None
) -> StoreRecord:
    """Open a new lineage. From now on, the store may have other bytes than the lake at the same offsets.

    The archived segments stay in the lake under the old lineage.

    :param log: the only log that gets a new lineage, or None for all logs.
    :param force: open a new lineage even if nothing on disk contradicts the archive. Then all segments on
        disk are archived once more, and queries see each of their rows twice.
    :raises BadInputError: no reason is given, the store has no such log, or no segment contradicts its
        receipt. Also raised if no log is named, and only some of several logs have such a segment.
    """
    _check_decision("adopt", person, reason, "compares the store with its archived segments")
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    with closing(open_store(store)) as broker:
        logs = take_snapshot(broker, clock_ms(), store.broker).logs
    chosen = [snapshot for snapshot in logs if log in (None, snapshot.name)]
    if log is not None and not chosen:
        example = min((snapshot.name for snapshot in logs), default="none")
        raise BadInputError(
            f"adopt: expected a log of {store.root}, such as {example}, found {log!r}. Nothing was changed. "
            "Name a log of this store, or no log for the whole store."
        )
    contradicted, sound = (set(), set()) if force else _contradicted_logs(store, record, chosen)
    if contradicted and sound and log is None:
        named = ", ".join(sorted(contradicted))
        raise BadInputError(
            f"{store.root}: expected every log to differ from its archived segments, found differences only "
            f"in {named}. Nothing was changed. Name each of these logs with --log. Otherwise the other logs "
            "are archived once more, and queries see each of their rows twice."
        )
    if not force and not contradicted:
        raise BadInputError(
            f"{store.root}: expected a segment whose bytes differ from the archived bytes at its offset, "
            "found none: there is nothing to adopt. Nothing was changed. With --force a new lineage is "
            "opened all the same: then all segments are archived once more, and queries see each row twice."
        )
    opened = journal.open_lineage(record.store_id, person, reason, None if len(chosen) == len(logs) else log)
    with suppress(OSError):
        # If the store can't be stamped, only the journal has the new lineage.
        update_stamp(store.real_root, opened.store_id, opened.lineages, ())
    return opened


def _contradicted_logs(
    store: ManagedStore, record: StoreRecord, logs: Sequence[LogSnapshot]
) -> tuple[set[str], set[str]]:
    """Return the names of logs whose bytes contradict the archive, and those of the other archived logs."""
    differing = {segment.log for segment in contradictions(store, record, logs)}
    lakes = store.archive_lakes
    receipts = (current_receipts(open_lake(config), record, with_ended=True) for config in lakes)
    rows = group_by_log(row for of_lake in receipts for row in of_lake)
    archived = [log.name for log in logs if log.name in rows]
    with closing(open_store(store)) as broker:
        for log in archived:
            if contradiction(broker, log, rows[log]):
                differing.add(log)
        if broker.replicas is not None:
            differing |= _diverged_logs(store, record, broker, lakes, {log.name for log in logs} - differing)
    return differing, set(archived) - differing


def _diverged_logs(
    store: ManagedStore,
    record: StoreRecord,
    broker: BrokerStore,
    lakes: Sequence[LakeConfig],
    logs: Collection[str],
) -> set[str]:
    """Return the logs whose bytes differ from the archived bytes of other replicas."""
    snapshot = take_snapshot(broker, clock_ms(), store.broker)
    archivable = [segment for segment in take_archivable(broker, snapshot).segments if segment.log in logs]
    return {
        log.log
        for config in lakes
        for log in compare_logs(broker, open_lake(config), record, archivable, archivable)
        if log.divergence
    }


def move(
    store: ManagedStore, name: str, person: str, reason: str = "", leave_unproven: int = 0
) -> StoreRecord:
    """Record that a store is at the place of ``store`` on this machine, with this name.

    :param leave_unproven: number of unproven segments in another journal's hold that the broker may delete.
    :raises GateRefusedError: another journal's hold keeps more than ``leave_unproven`` unproven segments.
    :raises BadInputError: the name is empty, or differs from the connection's name.
    :raises StoreIdentityError: it is unknown which store the directory is, the directory is a copy, or the
        place or the name is taken.
    :raises WrongHostError: the settings say that the store is on another machine.
    :raises LakeUnavailableError: only the lake knows the store's lineage, and it can't be read.
    """
    root = store.real_root
    if not name.strip() or (store.named and store.name != name):
        raise BadInputError(
            f"move: expected {store.name!r}, the name under which the store is managed here, found "
            f"{name!r}. Nothing was changed. A store of Airflow has the name of its connection."
        )
    check_host(store.root, store.host, None)
    journal = Journal(store.journal_url)
    subject = _find_moved(store, journal)
    namesake = journal.store_named(name)
    if namesake is not None and namesake.store_id != subject.store_id:
        raise name_taken(root, name, namesake)
    record = _record_of(store, subject) if isinstance(subject, Stamp) else subject
    accepted = Acceptance(leave_unproven, person, reason) if leave_unproven else None
    # Checked each time: after a killed move, and in a journal that once knew the store, no hold is on record.
    check_hold_of_other_journal(store, journal, record, accepted, clock_ms())
    if accepted is not None:
        reason = f"{reason}; at most {count_text(leave_unproven, 'segment')} left to the broker unproven"
    if isinstance(subject, Stamp):
        subject = add_to_journal(store, journal, record.store_id, record.lineages, name)
    # Who left segments unproven is recorded, even if the store isn't moved.
    if not leave_unproven and is_there(store, journal, subject, name):
        return subject
    return carry_out(store, journal, subject, name, person, reason.strip())


def _find_moved(store: ManagedStore, journal: Journal) -> StoreRecord | Stamp:
    """Return the journal's record of the store in this directory, found by the store's place or stamp.

    If the journal has no such record, return the stamp.

    :raises StoreIdentityError: nothing proves which store the directory is, or it is a copy.
    """
    root = store.real_root
    stamp = read_stamp(root)
    record = journal.find_store(root, store.host)
    is_elsewhere = record is not None and record.host is not None and not is_this_host(record.host)
    if record is not None and not (is_elsewhere and stamp is None):
        check_same(store, journal, record, stamp)
        if stamp is not None:
            check_no_original(root, stamp.root, stamp.store_id)
    elif stamp is None:
        raise StoreIdentityError(
            f"{stamp_path(root)}: expected the stamp of the store that was moved here, found none. "
            "Nothing was changed. If it was lost, run ",
            Command("stamp", "--store-id ID"),
            ", with --conn-id if it is a store of Airflow. A store without archived segments needs no move.",
        )
    else:
        check_no_original(root, stamp.root, stamp.store_id)
        record = journal.store_with_id(stamp.store_id)
        if record is None:
            return stamp
    check_broker(store, record)
    if record.host is None or is_this_host(record.host):
        # A stamp that was written here counts for more than the journal, which may follow a copy.
        stamped_here = stamp is not None and stamp.root == root
        check_no_original(root, record.real_path, record.store_id, stamped_there=stamped_here)
    return record


def _record_of(store: ManagedStore, stamp: Stamp) -> StoreRecord:
    """Return a new record for a store that another journal knew."""
    lineages = _lineages(store, stamp.store_id, [open_lake(config) for config in store.archive_lakes])
    return StoreRecord(
        stamp.store_id,
        store.real_root,
        store.broker,
        lineages.whole,
        clock_ms(),
        log_lineages=lineages.of_logs,
    )


def stamp(
    store: ManagedStore, person: str, reason: str, *, store_id: str | None = None, new: bool = False
) -> Stamp:
    """Decide which store a directory is, and write its stamp again.

    Of the lakes given here, only the present state counts from now on. What was known of other lakes still
    counts. The lakes are read before anything is changed.

    :param store_id: id of the store in this directory; None means the id in the journal, or in the stamp.
    :param new: the directory is a store of its own, copied from another one, and gets a new identity.
    :raises BadInputError: no reason is given; neither ``store_id``, journal nor stamp names a store; or
        journal, lakes and stamp don't know the named store.
    :raises StoreIdentityError: another store has this place or the new name, or the directory is a copy.
    :raises LakeUnavailableError: a lake can't be read.
    """
    _check_decision("stamp", person, reason, "compares the store with earlier knowledge of its lakes")
    journal = Journal(store.journal_url)
    if not new:
        _finish_killed(store, journal)
    chosen_id = str(uuid.uuid4()) if new else _find_store_id(store, journal, store_id)
    if new:
        _check_unknown(store, journal)
    lakes = [open_lake(config) for config in store.archive_lakes]
    if new:
        check_free(store, [row for lake in lakes for row in list_stores(lake)])
    answers = [_ask_lake(lake, chosen_id) for lake in lakes]
    is_known = new or journal.store_with_id(chosen_id)
    lineages = Lineages(1) if is_known else _lineages(store, chosen_id, lakes)
    record = _record(store, journal, chosen_id, lineages)
    kept_heads = (
        [] if new else [head for head in _heads_before(store, journal, record) if _is_other(head, answers)]
    )
    heads = (*(lake.head for lake in answers if lake.head), *kept_heads)
    before = _ids_before(store.real_root)
    written = Stamp(
        record.store_id,
        record.lineage,
        "",
        "",
        heads,
        log_lineages=record.log_lineages,
        policy=_policy_before(store, journal, before),
    )
    run = journal.run_without_plan(record.store_id, STAMP_RUN)
    intent = {"before": before, "stamp": to_jsonable(written)}
    journal.record(run, Step.STAMP, Phase.INTENT, [("", intent)])
    result = {**to_jsonable(written), "person": person.strip(), "reason": reason.strip(), RESET: True}
    # The stamp is written first: after the journal's record, earlier heads in the journal no longer count.
    replace_stamp(store.real_root, written)
    journal.record(run, Step.STAMP, Phase.RESULT, [("", result)])
    return written


def _finish_killed(store: ManagedStore, journal: Journal) -> None:
    """Finish a killed run: write its stamp to all directories of the store.

    The stamp is written only if the present stamps are of its store, or of stores that the directories were
    stamped with when the run began.
    """
    record = journal.find_store(store.real_root, store.host)
    run = journal.find_run(record.store_id, STAMP_RUN) if record else None
    events = journal.events(run, Step.STAMP) if run else ()
    if not events or events[-1].phase is not Phase.INTENT:
        return
    intent = events[-1].payload
    written = from_jsonable(Stamp, intent["stamp"])
    if stamped_ids(store.real_root) <= {*intent["before"], written.store_id}:
        replace_stamp(store.real_root, written)


def _ids_before(root: str) -> list[str]:
    """Return the store ids in the directory's stamps; none if a stamp is unreadable and will be replaced."""
    with suppress(StoreIdentityError):
        return sorted(stamped_ids(root))
    return []


def _policy_before(store: ManagedStore, journal: Journal, ids: Sequence[str]) -> RecordedPolicy | None:
    """Return the strictest approval policy on record for this directory under any store id, or None."""
    policies = [recorded_policy(journal, store_id) for store_id in ids]
    with suppress(StoreIdentityError):
        stamp = read_stamp(store.real_root)
        policies += [stamp.policy] if stamp is not None and stamp.policy is not None else []
    asks = [policy for policy in policies if policy.approval is not ApprovalPolicy.NONE]
    return max(asks, key=lambda policy: (policy.approval.rank, policy.at_ms), default=None)


@dataclass(frozen=True, slots=True)
class _AskedLake:
    """A lake that was asked: its present state counts.

    :param place: location of its table of receipts.
    :param lake_ids: its own UUID, and those of the lakes that it is a copy of.
    :param head: its last receipt of the store, or None.
    """

    location: str
    place: str
    lake_ids: frozenset[str]
    head: LakeHead | None


def _ask_lake(lake: Lake, store_id: str) -> _AskedLake:
    segments = lake.segments()
    last = check_links(segments, store_id, whole=True)
    head = head_of(lake, segments, last) if last.sequence >= 0 else None
    lake_ids = frozenset({lake_id_of(segments) or "", *ancestors_of(segments)} - {""})
    return _AskedLake(lake.location, segments.location(), lake_ids, head)


def _is_other(head: LakeHead, lakes: Sequence[_AskedLake]) -> bool:
    """Return whether a known receipt is in a lake that wasn't asked.

    The receipt's lake counts as asked if an asked lake has its id, is a copy of it, or is at its place.
    """
    return not any(
        head.lake_id in lake.lake_ids
        or (head.place == lake.place if head.place else head.location == lake.location)
        for lake in lakes
    )


def _heads_before(store: ManagedStore, journal: Journal, record: StoreRecord) -> tuple[LakeHead, ...]:
    """Return the store's last receipt in each lake. Of journal and stamp, the longer known chain counts."""
    stamp = read_stamp(store.real_root)
    other_heads = stamp.lakes if stamp is not None and stamp.store_id != record.store_id else ()
    longest: dict[tuple[str, str], LakeHead] = {}
    for head in known_heads(journal, replace(record, real_path=store.real_root)).heads:
        key = (head.lake_id, "" if head.lake_id else head.location)
        if head not in other_heads and (key not in longest or longest[key].sequence <= head.sequence):
            longest[key] = head
    return tuple(longest.values())


def _check_unknown(store: ManagedStore, journal: Journal) -> None:
    """Make sure that a directory may become a new store.

    :raises StoreIdentityError: the journal has a store here, or the directory's stamp names a known store.
    """
    present = journal.find_store(store.real_root, store.host)
    if present is not None:
        raise StoreIdentityError(
            f"{store.real_root}: expected a place that the journal doesn't know, found store "
            f"{present.store_id}. Nothing was changed. To stamp the directory as that store, leave out --new."
        )
    if (stamp := stamp_of_original(store.real_root)) is not None:
        record = journal.store_with_id(stamp.store_id)
        name = record.name if record and record.name else store.name
        raise no_copy(store.real_root, stamp.store_id, stamp.root, name)


def _find_store_id(store: ManagedStore, journal: Journal, store_id: str | None) -> str:
    """Return the id of the directory's store. Nothing is written.

    :raises BadInputError: neither option, journal nor stamp names a store.
    :raises StoreIdentityError: the journal has another store at this place, or the directory is a copy.
    """
    root = store.real_root
    stored = journal.find_store(root, store.host)
    stamp = read_stamp(root)
    chosen_id = store_id or (stored.store_id if stored else None) or (stamp.store_id if stamp else None)
    if chosen_id is None:
        raise BadInputError(
            f"{root}: expected a store that its stamp or the journal knows, found none. Nothing was "
            "changed. Give --new, or --store-id ID from ",
            Command("lake info"),
            ".",
        )
    if stored is not None and stored.store_id != chosen_id:
        raise StoreIdentityError(
            f"{root}: expected the journal to have store {chosen_id} or none at this place, found store "
            f"{stored.store_id}. Nothing was changed. Manage that store with a lake and a journal of its own."
        )
    places = {record.real_path for record in journal.all_stores() if record.store_id == chosen_id}
    if stamp is not None and stamp.store_id == chosen_id:
        # Its own stamp counts for more than the journal, which may follow a copy.
        places = {stamp.root}
    for place in places:
        check_no_original(root, place, chosen_id)
    return chosen_id


def _lineages(store: ManagedStore, store_id: str, lakes: Sequence[Lake]) -> Lineages:
    """Return the newest lineages of a store that the journal doesn't know, from the lakes and the stamp.

    :raises BadInputError: neither a lake nor the stamp knows the store.
    """
    stamp = read_stamp(store.real_root)
    stamped = stamp.lineages if stamp is not None and stamp.store_id == store_id else None
    rows = [row for lake in lakes for row in list_stores(lake) if row.store_id == store_id]
    if stamped is None and not rows:
        raise BadInputError(
            f"{store.real_root}: expected store {store_id} in journal or lake, found it in neither. Nothing "
            "was changed. If the journal isn't in the lake's directory, name the Airflow connection that "
            "says where it is: --conn-id ID."
        )
    return archived_lineages(rows, store_id, stamped)


def _record(store: ManagedStore, journal: Journal, store_id: str, lineages: Lineages) -> StoreRecord:
    record = journal.find_store(store.real_root, store.host)
    if record is not None and record.store_id == store_id:
        return record
    if journal.store_with_id(store_id) is not None:
        return journal.move_store(store_id, store.real_root)
    return add_to_journal(store, journal, store_id, lineages)


def _check_decision(command: str, person: str, reason: str, effect: str) -> None:
    if not (person.strip() and reason.strip()):
        raise BadInputError(
            f"{command}: expected a person and a reason, found one of them empty. Nothing was changed. After "
            f"this decision nothing {effect}, so the journal records who made it, and why."
        )
