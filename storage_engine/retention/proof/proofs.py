"""Lakes' proofs of a store's segments, and the segments that archive rules permit to delete without a copy.

A store may have two lakes, and a receipt in one of them is enough. A lake that can't be asked proves nothing
and contradicts nothing. Then a segment without a receipt in the other lake is unproven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.brokers import same_companions, store_text
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import (
    GateRefusedError,
    LakeIdentityError,
    LakeUnavailableError,
    ReceiptError,
    StorageEngineError,
)
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord, Waiver
from storage_engine.lake.acts.act_files import read_acts, read_store_names
from storage_engine.lake.acts.unarchived import NO_PERMITS, WAIT_MS, ArchivePermits, may_leave_out
from storage_engine.lake.catalog.catalog import Lake, check_broker, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import copy_of, lake_id_of
from storage_engine.lake.catalog.nesting import refuse_nested_proof
from storage_engine.lake.catalog.writing import mark_commits, ready_to_write
from storage_engine.lake.soundness.chain import check_links, forget_links
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth, chain_faults, reasons
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.keep.acts import not_archived_text, policies_of, policy_of
from storage_engine.model.keep.keep_rules import holds_since
from storage_engine.model.plan import Decision
from storage_engine.model.proof.deleted_range import RunDigest
from storage_engine.model.proof.receipt import LakeHead, Receipt, SegmentIdentity
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.model.store import Segment, SegmentId, group_by_log
from storage_engine.retention.proof.gate import (
    NO_ACTS,
    Consent,
    Passage,
    Verdict,
    files_fault_of,
    is_proven_file,
    judge,
)
from storage_engine.retention.store.context import WHOLE, AnyStore, Context, managed_of
from storage_engine.retention.store.known_heads import KnownHeads, acts_elsewhere, head_of, known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import missing_stamps, read_stamp, update_stamp
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts


def current_receipts(
    lake: Lake,
    record: StoreRecord,
    *,
    log: str | None = None,
    base_offsets: tuple[int, int] | None = None,
    with_ended: bool = False,
) -> tuple[Receipt, ...]:
    """Return the receipts that prove a store's segments in each log's current lineage.

    There is one for each segment, in the order of logs and offsets.

    :param log: the only log whose receipts are returned, or None for all logs.
    :param base_offsets: first and last base offset to return, both included, or None for all.
    :param with_ended: also return receipts of expired segments and partial receipts.
    :raises LakeUnavailableError: the table can't be read.
    """
    only = None if log is None and record.log_lineages else record.lineage_of(log or "")
    rows = receipts(
        lake, record.store_id, lineage=only, log=log, base_offsets=base_offsets, with_ended=with_ended
    )
    return tuple(row for row in rows if row.lineage == record.lineage_of(row.log))


Slot = tuple[str, int]
"""Log and base offset of a segment."""


@dataclass(frozen=True, slots=True)
class OtherNodesProof:
    """Other nodes' receipts that together have a segment's bytes.

    :param sha256: the segment's SHA-256 when compared, or "" if its file facts show each write.
    """

    receipts: tuple[Receipt, ...]
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class LakeProofs:
    """One lake's receipts of a store, in the present lineages of its logs.

    :param faults: the receipts that aren't sound, and why.
    :param of_logs: all receipts of the store by log; empty unless ``read_proofs`` got ``whole_logs``.
    :param covers: other nodes' receipts, for segments that none of the store's own receipts proves.
    :param permits: the rules by which a receipt may lack topics of its segment.
    """

    lake: Lake
    rows: Mapping[Slot, Sequence[Receipt]]
    faults: Mapping[SegmentIdentity, str]
    of_logs: Mapping[str, Sequence[Receipt]] = field(default_factory=dict)
    covers: Mapping[SegmentId, OtherNodesProof] = field(default_factory=dict)
    permits: ArchivePermits = NO_PERMITS

    def of(self, slot: Slot) -> Sequence[Receipt]:
        return self.rows.get(slot, ())

    def valid(self, slot: Slot) -> list[Receipt]:
        """Return a segment's sound receipts. They may lack only topics that archive rules leave out now."""
        sound = (row for row in self.of(slot) if row.identity not in self.faults)
        return [row for row in sound if row.is_whole or self.permits.clause_of_receipt(row)]


@dataclass(frozen=True, slots=True)
class Proofs:
    """Lakes' proofs of some of a store's segments.

    :param asked: the lakes that answered, in the order of the store's settings.
    :param unreachable: the lakes that didn't answer, each with the reason.
    :param wrong_lakes: why unreachable lakes can't be used as they are, such as a copy. Outages that end by
        themselves are left out.
    :param permits: the rules by which logs may be deleted without a copy.
    """

    asked: tuple[LakeProofs, ...]
    unreachable: tuple[tuple[LakeConfig, str], ...] = ()
    acts: OwnActs = NO_ACTS
    wrong_lakes: tuple[str, ...] = ()
    permits: ArchivePermits = NO_PERMITS

    @property
    def notices(self) -> tuple[str, ...]:
        """Return a notice for each lake that could not be asked."""
        return tuple(Text("a lake could not be asked: ", reason) for _, reason in self.unreachable)

    @property
    def outages(self) -> tuple[str, ...]:
        """Return the notices on lakes whose outage may end by itself."""
        wrong = {Text("a lake could not be asked: ", reason) for reason in self.wrong_lakes}
        return tuple(notice for notice in self.notices if notice not in wrong)

    def unproven(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that no valid receipt of the same file proves and no rule leaves out."""
        unarchived = self.permits.unarchived(segments)
        return [
            segment
            for segment in segments
            if segment.log not in unarchived
            and not any(
                is_proven_file(segment, row, self.acts)
                for proofs in self.asked
                for row in proofs.valid(segment.id)
            )
        ]

    def left_out(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that a rule leaves out and that no valid receipt of the same file proves."""
        logs = self.permits.unarchived(segments)
        of_rules = [segment for segment in segments if segment.log in logs]
        return replace(self, permits=NO_PERMITS).unproven(of_rules) if of_rules else []

    def touched(self, unproven: Sequence[Segment]) -> list[Segment]:
        """Return the segments that were proven at their present length, but whose files were touched after
        their proof.

        Only a hash shows whether their bytes are the same. Before they are hashed, they may not be deleted.
        """
        return [
            segment
            for segment in unproven
            if any(
                row.size_bytes == segment.facts.size_bytes and not files_fault_of(segment, row)
                for proofs in self.asked
                for row in proofs.valid(segment.id)
            )
        ]

    def lake_of(self, receipt: Receipt) -> str:
        slot = (receipt.log, receipt.base_offset)
        return next(
            proofs.lake.location
            for proofs in self.asked
            if receipt in proofs.of(slot)
            or any(receipt in cover.receipts for cover in proofs.covers.values())
        )

    def disagree(self, slot: Slot) -> bool:
        """Return whether lakes prove different bytes or different companions of one segment."""
        rows = [row for proofs in self.asked for row in proofs.valid(slot)]
        return not all(
            (
                rows[0].content[:2] == row.content[:2]
                and same_companions(rows[0].broker, rows[0].companions, row.companions)
            )
            for row in rows[1:]
        )

    def judge(
        self, decision: Decision, planned: Segment, policy: Policy, waiver: Waiver | None, consent: Consent
    ) -> Verdict:
        """Return the gate's verdict by the first lake whose proof lets the segment pass.

        If two lakes prove different bytes or companions of the segment, they prove nothing.
        """
        slot = planned.id
        if self.disagree(slot):
            detail = "; ".join(
                f"{proofs.lake.location} has SHA-256 {row.sha256}{_companions_text(row)}"
                for proofs in self.asked
                for row in proofs.valid(slot)
            )
            return Verdict(decision, Passage.REFUSED, None, f"its lakes disagree: {detail}")
        verdicts = [
            judge(
                decision,
                planned,
                proofs.of(slot),
                proofs.faults,
                policy,
                None,
                self.acts,
                lacking=next(map(self.permits.clause_of_receipt, proofs.of(slot)), ""),
                consent=consent,
            )
            for proofs in self.asked
        ]
        for passage in (Passage.PROVEN, Passage.HASH_AGAIN):
            # A lake that has the whole segment comes first.
            for verdict in sorted(verdicts, key=lambda v: v.receipt is not None and not v.receipt.is_whole):
                if verdict.passage is passage:
                    return verdict
        for proofs in () if consent.refuses else self.asked:
            if policy.archive is not ArchiveMode.OFF and (cover := proofs.covers.get(slot)):
                called = {store_text(row.store_name, row.broker, row.store_root) for row in cover.receipts}
                stores = ", ".join(sorted(called))
                detail = f"its bytes were compared just now with the archived bytes of other nodes: {stores}"
                return Verdict(
                    decision, Passage.PROVEN, cover.receipts[0], detail, cover.receipts, cover.sha256
                )
        doubts = join_texts("; ", [*dict.fromkeys(verdict.detail for verdict in verdicts), *self.notices])
        receipts, faults = (self.asked[0].of(slot), self.asked[0].faults) if self.asked else ((), {})
        unarchived = self.permits.clause_of_log(planned.log)
        without = judge(
            decision, planned, receipts, faults, policy, waiver, self.acts, unarchived, consent=consent
        )
        if without.passage is not Passage.REFUSED or waiver is not None or not doubts:
            return without
        return Verdict(decision, Passage.REFUSED, None, doubts)


def _companions_text(row: Receipt) -> str:
    if row.end_offset is None and row.files is None:
        return ""
    _, end, companions = row.content
    return (
        f" up to offset {end} with {', '.join(f'{name} {sha256}' for name, sha256 in companions) or 'none'}"
    )


def read_proofs(
    lakes: Sequence[LakeConfig],
    record: StoreRecord,
    wanted: Collection[Slot],
    *,
    known: KnownHeads,
    to_delete: bool = False,
    whole_chain: bool = False,
    read_files: bool = False,
    whole_logs: bool = False,
    looked: Callable[[], None] | None = None,
) -> Proofs:
    """Ask each lake for the receipts of these segments, and check whether the receipts are sound.

    If a lake lacks receipts that it is known to have had, it counts as one that can't be asked. If its chain
    of receipts is broken, none of its receipts is sound.

    :param known: receipts that the lakes are known to have had.
    :param to_delete: segments are to be deleted by these proofs. Then the lake has to be writable, and its
        marks are brought up to date.
    :param whole_chain: follow each lake's chain of receipts from its first row on, as with ``to_delete``. Set
        this before others, such as a broker, may delete segments.
    :param read_files: also read the data files: a file of the right length may be damaged.
    :param whole_logs: also return all receipts of the store by log. Only those of ``wanted`` are checked.
    :param looked: called after each receipt whose files were read; reading may take long.
    :return: the proofs. A lake that is a copy, or inside the store or another lake, counts as unreachable.
    :raises BadInputError: a lake has segments of another kind of broker.
    """
    lake_proofs: list[LakeProofs] = []
    unreachable: list[tuple[LakeConfig, str]] = []
    wrong_lakes: list[str] = []
    for config in lakes:
        try:
            refuse_nested_proof(config, Path(record.real_path))
            lake = open_lake(config)
            check_broker(lake, record.broker)
            _refuse_copy(lake)
            _refuse_same(lake, [proofs.lake for proofs in lake_proofs])
            if to_delete:
                ready_to_write(lake)
                mark_commits(lake)
                # A deletion needs links that are read now, not those that this process remembers.
                forget_links()
            chain = to_delete or whole_chain
            lake_proofs.append(_read(lake, record, wanted, known, chain, read_files, whole_logs, looked))
        except LakeUnavailableError as error:
            unreachable.append((config, Text(error)))
            if isinstance(error, LakeIdentityError):
                wrong_lakes.append(Text(error))
    acts = read_own_acts(record.real_path)
    all_asked = [proofs.lake for proofs in lake_proofs]
    permits = read_permits(all_asked, record, known) if not unreachable else NO_PERMITS
    lake_proofs = [replace(proofs, permits=permits) for proofs in lake_proofs]
    return Proofs(tuple(lake_proofs), tuple(unreachable), acts, tuple(wrong_lakes), permits)


def read_permits(lakes: Sequence[Lake], record: StoreRecord, known: KnownHeads) -> ArchivePermits:
    """Return the archive rules by which a store's segments may be deleted without a copy.

    Nothing is permitted if a lake's acts can't be read, aren't one chain, or lack an act that the journal
    recorded. If the journal has no archive rule, no acts are read.

    :param lakes: the lakes to ask. Other lakes with segments of the store are asked as well.
    """
    if not (lakes and known.archive_rules):
        return NO_PERMITS
    now_ms = clock_ms()
    try:
        own_acts = [*map(read_acts, lakes)]
        if any(known.lacks_acts(lake, lake_acts) for lake, lake_acts in zip(lakes, own_acts, strict=True)):
            return NO_PERMITS
        acts = [*own_acts, *(lake_acts for _, lake_acts in acts_elsewhere(known.heads, lakes))]
        holds = tuple(
            hold for of_lake in acts for hold in holds_since(policies_of(of_lake), now_ms - WAIT_MS)
        )
        rules = tuple(policy_of(of_lake).archive_rules for of_lake in acts)
        by_name = holds or any(r.archives and r.scope.store != "*" for of_lake in rules for r in of_lake)
        names = [n for lake in lakes if by_name for n in read_store_names(lake).get(record.store_id, ())]
    except LakeUnavailableError:
        return NO_PERMITS
    names.append(store_text(record.name, record.broker, record.real_path))
    return ArchivePermits(
        record.store_id, tuple(names), record.broker, rules, known.archive_rules, now_ms, holds
    )


def reachable_lakes(store: ManagedStore) -> tuple[list[Lake], dict[str, str]]:
    """Return the store's lakes that can be asked, and by location why the others can't.

    :raises BadInputError: a lake has segments of another kind of broker.
    :raises LakeUnavailableError: no lake can be asked; the error has the reason of each lake.
    """
    lakes: list[Lake] = []
    unreachable: dict[str, str] = {}
    for config in store.lakes:
        try:
            lake = open_lake(config)
            check_broker(lake, store.broker)
            _refuse_same(lake, lakes)
            lakes.append(lake)
        except LakeUnavailableError as error:
            unreachable[config.location] = Text(error)
    if not lakes:
        raise unreachable_error(list(unreachable.values()))
    return lakes, unreachable


def drop_older_lakes(
    lakes: Sequence[Lake], unreachable: Mapping[str, str], known: KnownHeads, store_id: str
) -> tuple[list[Lake], dict[str, str]]:
    """Drop each lake that lacks receipts which it is known to have had, as if it couldn't be asked.

    :return: lakes and reasons, as from :func:`reachable_lakes`.
    :raises LakeUnavailableError: no lake is left; the error has the reason of each.
    """
    current: list[Lake] = []
    reasons = dict(unreachable)
    for lake in lakes:
        try:
            # A broken chain is reported where the receipts are checked.
            with suppress(ReceiptError):
                known.check(lake, store_id)
            current.append(lake)
        except LakeUnavailableError as error:
            reasons[lake.location] = Text(error)
    if lakes and not current:
        raise unreachable_error(list(reasons.values()))
    return current, reasons


def unreachable_error(reasons: Sequence[str]) -> LakeUnavailableError:
    if len(reasons) == 1:
        return LakeUnavailableError(reasons[0])
    named = zip(("first", "second"), reasons, strict=True)
    return LakeUnavailableError(
        "Expected one of the store's two lakes to be reachable, found neither. Nothing was deleted. ",
        join_texts("; ", (Text(f"({name}) ", reason) for name, reason in named)),
    )


def _refuse_same(lake: Lake, others: Sequence[Lake]) -> None:
    """Refuse a lake that is named twice: it would be no second place.

    :raises LakeIdentityError: the lake is one of the others.
    """
    lake_id = lake_id_of(lake.segments()) if others else None
    if lake_id is not None and lake_id in {lake_id_of(other.segments()) for other in others}:
        raise LakeIdentityError(
            f"lake {lake.location}: expected a second lake of its own, found lake {lake_id} twice. Nothing "
            "in it was changed. Name another directory or catalog, or no second lake."
        )


def _refuse_copy(lake: Lake) -> None:
    """Refuse a copy of a lake.

    It is no second place for segments of the original, and nothing can be archived into it.

    :raises LakeIdentityError: the lake is a copy.
    """
    original = copy_of(lake.segments())
    if original is not None:
        raise LakeIdentityError(
            f"lake {lake.location}: expected a lake to archive into, found a copy of lake {original}, which "
            "proves no segment for a release. Nothing in it was changed. Name the original, or a second "
            "lake of its own. If the original is gone for good, run ",
            Command("lake promote"),
            " on the copy.",
        )


def _read(
    lake: Lake,
    record: StoreRecord,
    slots: Collection[Slot],
    heads: KnownHeads,
    whole_chain: bool,
    read_files: bool,
    whole_logs: bool,
    looked: Callable[[], None] | None,
) -> LakeProofs:
    offsets = [base_offset for _, base_offset in slots]
    span = None if whole_logs else (min(offsets, default=0), max(offsets, default=0))
    rows: dict[Slot, list[Receipt]] = {}
    every_row = current_receipts(lake, record, base_offsets=span, with_ended=True)
    counting = [row for row in every_row if row.is_whole or row.lacks_by_rules]
    of_logs = group_by_log(counting) if whole_logs else {}
    for row in counting:
        if (row.log, row.base_offset) in slots:
            rows.setdefault((row.log, row.base_offset), []).append(row)
    flat_rows = [row for of_slot in rows.values() for row in of_slot]
    try:
        heads.check(lake, record.store_id, whole=whole_chain)
    except ReceiptError as error:
        return LakeProofs(lake, rows, reasons(chain_faults(flat_rows, Text(error))), of_logs)
    depth = Depth.FILES if read_files else Depth.SIZES
    return LakeProofs(lake, rows, broken_receipts(lake, flat_rows, depth, looked), of_logs)


COPIES_ENTER = (
    "Copies of them that the broker keeps under other topics are archived: for retries, dead letters, "
    "delays, timers and transactions"
)


def read_store_permits(store: ManagedStore, journal: Journal, record: StoreRecord) -> ArchivePermits:
    """Return the archive rules by which a store's segments may be deleted without a copy.

    :raises StorageEngineError: the journal can't be read, or a lake is of another kind of broker.
    """
    heads = known_heads(journal, record)
    if store.policy.archive is ArchiveMode.OFF or not heads.archive_rules:
        return NO_PERMITS
    return read_proofs(store.lakes, record, (), known=heads).permits


def look_up_permits(place: AnyStore) -> ArchivePermits:
    """Return the rules by which segments may be deleted without a copy; unknown rules permit nothing."""
    store = managed_of(place)
    if not may_leave_out(store.broker):
        return NO_PERMITS
    try:
        if isinstance(place, Context):
            return read_store_permits(store, place.journal, place.record)
        journal = Journal(store.journal_url, read_only=True)
        record = journal.find_store(store.real_root, store.host)
        return NO_PERMITS if record is None else read_store_permits(store, journal, record)
    except StorageEngineError:
        return NO_PERMITS


def unarchived_notices(permits: ArchivePermits, segments: Sequence[Segment]) -> tuple[str, ...]:
    """Return notices on segments or messages that may be deleted without a copy, each with its rule."""
    if permits.of_rows is not None:
        return tuple(
            f"messages may be deleted without a copy if no lake has them: {not_archived_text(rule)}. "
            f"{COPIES_ENTER}"
            for rule in permits.old_rules
            if segments
        )
    logs_of: dict[str, list[str]] = {}
    for log, clause in permits.unarchived(segments).items():
        logs_of.setdefault(clause, []).append(log)
    return tuple(
        f"{count_text(sum(s.log in logs for s in segments), 'segment')} of {named_in_short(logs)} may "
        f"be deleted without a copy if no lake has them: {clause}"
        for clause, logs in logs_of.items()
    )


def lacking_notices(permits: ArchivePermits, receipts: Sequence[Receipt]) -> tuple[str, ...]:
    """Return notices on topics that were left out when segments were archived, each with its rule."""
    counts = Counter(map(permits.clause_of_receipt, receipts))
    return tuple(
        f"{count_text(count, 'segment')} archived without {rule}" for rule, count in counts.items() if rule
    )


def stamp_store(
    context: Context, run: Run, heads: Sequence[LakeHead], deletion: RunDigest | None = None
) -> str:
    """Write a stamp to the store's directory, durably: the lakes' last receipts, and the last deletion.

    :param deletion: the last deletion, or None to keep the earlier one in the stamp.
    :return: why the stamp can't be written, as in a read-only directory, or "" if it was written.
    :raises StoreIdentityError: the directory has another store's stamp, or an unreadable one.
    """
    root, record = context.store.real_root, context.record
    before = read_stamp(root)
    try:
        stamp = update_stamp(root, record.store_id, record.lineages, heads, deletion)
    except OSError as error:
        return f"{root}: the store could not be stamped ({error.strerror or error})"
    if stamp != before:
        context.journal.record(run, Step.STAMP, Phase.RESULT, [(WHOLE, to_jsonable(stamp))])
    return ""


def replaced_notices(root: str) -> tuple[str, ...]:
    """Return a notice for each directory of a store without its stamp, if other directories have it.

    Call this before the store is stamped again: afterwards each directory has a stamp.

    :raises StoreIdentityError: stamps can't be read, or are of two stores.
    """
    return tuple(
        f"{path}: expected the store's stamp, as in its other directories, found none: was its disk "
        "replaced? See whether its logs are there"
        for path in missing_stamps(root)
    )


def witness_release(context: Context, run: Run, proofs: Proofs, known: KnownHeads) -> tuple[str, ...]:
    """Stamp the store with the receipts by which segments are about to be deleted.

    :return: a notice that the store can't be stamped, or notices on directories without a stamp.
    :raises GateRefusedError: the store can't be stamped, and the journal lacks a lake's last receipt.
    """
    heads = []
    unknown = []
    for lake_proofs in proofs.asked:
        segments = lake_proofs.lake.segments()
        last = check_links(segments, context.record.store_id, known.of(lake_proofs.lake, segments))
        if last.sequence >= 0:
            heads.append(head_of(lake_proofs.lake, segments, last))
            if not known.in_journal(lake_proofs.lake, segments):
                unknown.append(lake_proofs.lake.location)
    if not heads:
        return ()
    replaced = replaced_notices(context.store.real_root)
    missing = stamp_store(context, run, heads)
    if missing and unknown:
        raise GateRefusedError(
            f"{missing}, and the journal has none of its receipts in {', '.join(unknown)}: expected a "
            "witness that the lake is not an older copy, found none. Nothing was deleted. Make the "
            "directory writable, or archive into the lake with this journal."
        )
    if missing:
        return (f"{missing}: journal and catalog agree on the last receipt",)
    return replaced
