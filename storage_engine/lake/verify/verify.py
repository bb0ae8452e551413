"""Verification of a lake: that it is sound, and that lake and store together still have every byte of the
log.

Metadata is checked whole, every time: it costs no data. Data files are looked at in turns, the one that
was seen longest ago first, as far as a budget goes; what was seen is remembered, so that the next call goes
on from there. Nothing in the lake is changed. What is wrong with one segment is a result, never an exception:
the others are looked at all the same. The proof of a copy before its commit is made in
``lake/archive/archive.py``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import Table

from storage_engine.brokers import find_broker, store_called
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.long_work import no_collection, told
from storage_engine.core.wording import time_text
from storage_engine.exceptions import LakeUnavailableError, ReceiptError
from storage_engine.lake.acts.act_files import read_acts, read_expiries
from storage_engine.lake.archive.threads import reading_threads
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import careful_avro, data_file_of
from storage_engine.lake.coverage.coverage import (
    LocalSpan,
    ReleasedSpan,
    Witnesses,
    in_either,
    log_ranges,
    lost_ranges,
    names_of_logs,
)
from storage_engine.lake.coverage.spans import companion_fault
from storage_engine.lake.coverage.verify_turns import by_receipt, choose, coverage, standing_fault
from storage_engine.lake.file.scan import LiveFile, all_equal
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.file.table_entries import check_entries, list_entries, unreceipted_files
from storage_engine.lake.soundness.chain import check_chain, row_faults
from storage_engine.lake.soundness.receipts import by_store, current, read_receipts, receipts_in
from storage_engine.lake.soundness.soundness import Depth, Fault, Look, ReceiptFault
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.model.proof.receipt import ChainHead, Receipt, SegmentIdentity, ended, whole, with_rows
from storage_engine.model.report.validation import (
    Check,
    Finding,
    Status,
    StoreVerification,
    VerifyLevel,
    receipt_name,
)
from storage_engine.model.store import may_be_one

__all__ = ["Memory", "StoreVerification", "VerifyLevel", "verify"]

RESTORE_ADVICE = Text(
    "If the broker still has the segment, run ",
    Command("archive"),
    " again: a new data file takes the place of one that is lost or damaged. Otherwise bring the data "
    "file back from a second lake or a backup of the warehouse, under its name, or roll the table "
    "back. Until then nothing relies on this receipt.",
)

RENEW_ADVICE = Text(
    "Run ",
    Command("verify --level bytes --renew"),
    ": where the rows prove the segment as they are now, it adds a receipt that says so.",
)


_DEPTHS = {
    VerifyLevel.RECEIPTS: Depth.SIZES,
    VerifyLevel.FILES: Depth.STATISTICS,
    VerifyLevel.BYTES: Depth.ROWS,
    VerifyLevel.STORE: Depth.ROWS,
}

_ADVICE = {
    ReceiptFault.LISTED_TWICE: Text(
        "No byte is lost, but the gate deletes nothing on this receipt. If the broker still has the "
        "segment, run ",
        Command("archive"),
        " again: one new data file takes the place of both. Otherwise roll the table of rows back to "
        "the snapshot before the second commit, or delete and add the file once, and find out who "
        "wrote to the table.",
    ),
    ReceiptFault.ENTRY: Text(
        "The table's manifest was changed or damaged, or the receipt along with its hash: then "
        "receipts have a finding too. If not, no byte is lost, but queries may pass the file by, and "
        "the gate deletes nothing on this receipt. Run ",
        Command("archive"),
        " again, roll the table of rows back to a sound snapshot, or delete and add the file again.",
    ),
    ReceiptFault.STATISTICS: (
        "No byte is lost, but queries may pass the file by: a manifest was changed or damaged. Roll the "
        "table of rows back to a sound snapshot, or delete and add the file again."
    ),
    ReceiptFault.TREE: (
        "No byte is lost, but no single row can be proven by this receipt: the keys of its rows, or the "
        "receipt along with its hash, were changed. Roll the table back to the snapshot before the change, "
        "and find out who wrote to it. If the broker still has the segment, keep it until then."
    ),
}
"""Advice where bytes are proven although the receipt isn't sound."""

_OF_FILES = {ReceiptFault.MISSING, ReceiptFault.SIZE, ReceiptFault.SHA256}


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """Result of a close look at one segment.

    :param fault: why the lake can't be relied on for its bytes; "" when it can.
    :param findings: other faults; includes that the segment could not be looked at.
    :param level: how deep the look went: not below the level at which a fault was found.
    :param done: the look came to an end: its result may be remembered.
    :param local: the broker's file as it was found; None when it is not there, or vanished.
    """

    receipt: Receipt
    level: VerifyLevel
    fault: str
    findings: tuple[Finding, ...]
    done: bool
    local: LocalSpan | None


def look_at(
    reader: Reader, receipt: Receipt, known: Look | None, *, level: VerifyLevel, local: LocalSpan | None
) -> SegmentLook:
    """Check one segment at FILES, BYTES or STORE.

    :param known: faults that metadata found in its receipt; None: there are none.
    :param local: the broker's file; compared at STORE.
    """
    told = () if known is None else known.faults
    findings: list[Finding] = []
    with ExitStack() as opened:
        compared = _Compared.of(opened, local) if level is VerifyLevel.STORE else None
        try:
            look = reader.look(receipt, _DEPTHS[level], compared.take if compared else None)
        except (LakeUnavailableError, MemoryError) as error:
            return SegmentLook(receipt, level, "", (_unreadable(receipt, error),), False, local)
        if level is VerifyLevel.STORE and look.seen.rows_sha256 is not None:
            local = None if compared is None else compared.end(receipt)
    if any(fault.kind in _OF_FILES for fault in look.faults):
        if level is VerifyLevel.STORE and local is not None:
            local = _hashed(local)
        level = VerifyLevel.FILES
    findings += (_moved(fault) for fault in look.faults if fault.kind.loses and fault not in look.losses)
    findings += (unsound(it) for it in look.faults if not it.kind.loses and it not in told)
    return SegmentLook(receipt, level, "; ".join(map(str, look.losses)), tuple(findings), True, local)


def unsound(fault: Fault) -> Finding:
    """Return a fault that loses no byte as a finding."""
    return Finding(Status.FAILURE, receipt_name(fault.receipt), str(fault), _ADVICE[fault.kind])


@dataclass(slots=True)
class _Compared:
    """The broker's file, compared with a segment that the lake's rows are turned back into."""

    local: LocalSpan
    file: BinaryIO
    digest: hashlib._Hash
    different_at: int | None = None

    @classmethod
    def of(cls, opened: ExitStack, local: LocalSpan | None) -> _Compared | None:
        """Open the broker's file; None where there is none to compare, or a cleanup took it meanwhile."""
        if local is None:
            return None
        try:
            return cls(local, opened.enter_context(Path(local.path).open("rb")), hashlib.sha256())
        except FileNotFoundError:
            return None

    def take(self, position: int, chunk: memoryview) -> None:
        found = self.file.read(len(chunk))
        self.digest.update(found)
        if self.different_at is None and (at := _first_difference(found, chunk)) is not None:
            self.different_at = position + at

    def end(self, receipt: Receipt) -> LocalSpan:
        """Return the result for the broker's file."""
        self.digest.update(self.file.read())
        return replace(
            self.local,
            sha256=self.digest.hexdigest(),
            different_at=self.different_at,
            companions_fault=self.local.companions_fault or _companions_fault(receipt, Path(self.local.path)),
        )


def _companions_fault(receipt: Receipt, path: Path) -> str:
    """Return why what lies beside the broker's file isn't what the receipt has; "" where it is."""
    for companion in receipt.companions:
        try:
            fault = companion_fault(receipt.broker, companion, path.with_name(companion.name))
        except FileNotFoundError:
            if find_broker(receipt.broker).receipts.drops_companion(companion.name):
                continue
            fault = f"its companion {companion.name} is not on disk"
        if fault:
            return fault
    return ""


def _hashed(local: LocalSpan) -> LocalSpan | None:
    try:
        return replace(local, sha256=sha256_of(local.path))
    except FileNotFoundError:
        return None


def _first_difference(found: bytes, expected: memoryview) -> int | None:
    shared = min(len(found), len(expected))
    differs = np.frombuffer(found, np.uint8, shared) != np.frombuffer(expected, np.uint8, shared)
    if differs.any():
        return int(np.argmax(differs))
    return None if len(found) == len(expected) else shared


def _moved(fault: Fault) -> Finding:
    return Finding(
        Status.WARNING,
        receipt_name(fault.receipt),
        f"{fault}; its rows prove the same bytes",
        Text("Nothing is lost, but the gate deletes nothing on this receipt. ", RENEW_ADVICE),
    )


def _unreadable(receipt: Receipt, error: Exception) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(receipt),
        f"could not be checked: {str(error) or type(error).__name__}",
        "Nothing is known of it now. Make the file readable and verify again: it comes first.",
    )


_COMMIT_SECONDS = 10.0
"""How long an archiver may take between its two commits before its data files count as unreceipted."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """Facts about one store from the metadata.

    :param receipts: of segments that the lake has whole, or some streams of.
    :param ended: of those that expired: nothing is looked at but their chain.
    :param expiries: by which policy and since when, by the act's SHA-256.
    :param looks: at receipts that aren't sound, as far as metadata and sizes tell.
    :param broken: receipts that prove nothing as they are, and why.
    :param reader: looks closer.
    :param chained: the chain of receipts is whole.
    """

    store_id: str
    receipts: tuple[Receipt, ...]
    ended: tuple[Receipt, ...]
    expiries: Mapping[str, str]
    looks: Mapping[SegmentIdentity, Look]
    broken: Mapping[SegmentIdentity, str]
    reader: Reader
    chained: bool
    findings: tuple[Finding, ...]


def read_state(
    lake: Lake,
    store_id: str | None,
    remembered: Sequence[Check],
    known: Callable[[str], Collection[ChainHead]],
    *,
    statistics: bool = True,
) -> tuple[StoreMetadata, ...]:
    """Read and check the metadata of one store, or of every store that either table has.

    :param statistics: every statistic of a data file is compared after this.
    :param remembered: earlier checks of this lake, read before this is called.
    :param known: says by store which receipts the lake is known to have had.
    :raises LakeUnavailableError: the lake can't be read.
    """
    # What this process read of metadata before says nothing of the files as they are now.
    clear_manifest_cache()
    forget_files()
    segments = lake.segments()
    where = AlwaysTrue() if store_id is None else all_equal({"store_id": store_id})
    rows = by_store(read_receipts(segments, where))
    # After the receipts: whatever these name is in the table by now.
    table = lake.messages()
    entries = list_entries(table, store_id, statistics=statistics)
    acts = tuple(_faults_of_acts(lake))
    before = {check.store_id for check in remembered} if store_id is None else set()
    states = (
        _state(lake, table, name, rows.get(name, ()), entries.get(name, []), remembered, known(name))
        for name in sorted({*rows, *entries, *before} if store_id is None else {store_id})
    )
    return tuple(replace(state, findings=(*acts, *state.findings)) for state in states)


def _faults_of_acts(lake: Lake) -> Iterator[Finding]:
    """Yield faults of the lake's acts, which concern each of its stores."""
    try:
        read_acts(lake)
    except LakeUnavailableError as error:
        what, _, advice = Text(error).partition(". ")
        yield Finding(Status.FAILURE, "acts", what, advice)


def _state(
    lake: Lake,
    table: Table,
    store_id: str,
    every: Sequence[Receipt],
    entries: Sequence[LiveFile],
    remembered: Sequence[Check],
    known: Collection[ChainHead],
) -> StoreMetadata:
    every_row = current(every)
    findings, rows = [], with_rows(every_row)
    chained, faults = True, row_faults(every)
    try:
        check_chain(every, known, faults)
    except ReceiptError as error:
        chained = False
        findings.append(_chain(error))
    findings += _vanished(every, [check for check in remembered if check.store_id == store_id])
    reader = Reader(table, entries)
    looks = reader.faulty(rows, faults)
    findings += (unsound(fault) for look in looks.values() for fault in look.faults if not fault.kind.loses)
    since = _receipted_since(lake, table, store_id, every_row, entries)
    findings += check_entries(table, every_row, entries, since)
    return StoreMetadata(
        store_id=store_id,
        receipts=rows,
        ended=tuple(row for row in every_row if not row.has_rows),
        expiries=read_expiries(lake, (row.act_sha256 for row in ended(every_row))),
        looks=looks,
        broken={identity: str(look.losses[0]) for identity, look in looks.items() if look.losses},
        reader=reader,
        chained=chained,
        findings=tuple(findings),
    )


def _receipted_since(
    lake: Lake, table: Table, store_id: str, rows: Sequence[Receipt], entries: Sequence[LiveFile]
) -> frozenset[str]:
    """Data files that an archiver at work has committed, and whose receipts came only after ``rows``."""
    waiting = unreceipted_files(table, rows, entries)
    found: frozenset[str] = frozenset()
    until = time.monotonic() + _COMMIT_SECONDS
    while waiting - found:
        every_row = receipts_in(lake.segments(), store_id, with_ended=True)
        found = frozenset(data_file_of(table, row) for row in every_row)
        if time.monotonic() > until:
            break
        if waiting - found:
            time.sleep(0.5)
    return found - {data_file_of(table, row) for row in rows}


def _chain(error: ReceiptError) -> Finding:
    return Finding(
        Status.FAILURE,
        "receipts",
        Text(error),
        "No segment of this store is deleted on the strength of a receipt until the chain is whole: roll the "
        "table segments back to the snapshot before the change.",
    )


def _vanished(rows: Sequence[Receipt], remembered: Sequence[Check]) -> Iterator[Finding]:
    """Receipts that were seen before and are not there any more: the chain can't tell of its own end."""
    there = {row.row_hash for row in rows}
    slots = {(row.lineage, row.log, row.base_offset) for row in rows}
    gone = {check.receipt_hash: check for check in remembered if check.receipt_hash not in there}
    for check in gone.values():
        changed = (check.lineage, check.log, check.base_offset) in slots
        yield Finding(
            Status.FAILURE,
            check.segment,
            f"expected its receipt {check.receipt_hash[:16]}… as verified before, found "
            f"{'another one in its place' if changed else 'none'}",
            "Receipts are never changed or removed by storage-engine. Roll the table segments back to the "
            "snapshot that has it, and find out who wrote to it.",
        )


_REMEMBER_EVERY_SECONDS = 1.0


class Memory(Protocol):
    """Memory of looks, with their times, by lake; on disk when ``record`` returns."""

    def recall(self, lake_id: str) -> Iterable[Check]: ...

    def record(self, lake_id: str, checks: Sequence[Check]) -> None: ...


@careful_avro()
def verify(
    lake: Lake,
    level: VerifyLevel,
    *,
    store_id: str | None = None,
    local: Iterable[LocalSpan] = (),
    elsewhere: Sequence[Receipt] = (),
    released: Callable[[str], Iterable[ReleasedSpan]] = lambda _store_id: (),
    known: Callable[[str], Collection[ChainHead]] = lambda _store_id: (),
    memory: Memory | None = None,
    max_bytes: int | None = None,
    witnesses: Callable[[str], Witnesses] = lambda _store_id: Witnesses(),
) -> tuple[StoreVerification, ...]:
    """Check a lake, and lay a store over its part if it is given.

    :param store_id: only this one; None: every store the lake has anything of.
    :param local: ranges on the broker's disk, from :func:`local_spans`; of the one store only.
    :param elsewhere: receipts of that store that hold in another lake, or whose segments expired there.
    :param released: ranges deleted by the journal's record, by store.
    :param known: receipts that the lake is known to have had, by store.
    :param memory: earlier looks, and the place to remember these.
    :param max_bytes: how much to read of data files and segments; None: everything.
    :param witnesses: who else may know of what is missing, and which logs are on disk, by store; what
        replicas have in this lake is added.
    :return: one result a store, by store id.
    :raises LakeUnavailableError: the lake, as opposed to a data file in it, can't be read.
    """
    lake_id = str(lake.segments().metadata.table_uuid)
    with no_collection():
        # Before the receipts are read: who verifies at the same time may remember newer ones.
        remembered = list(memory.recall(lake_id)) if memory else []
        statistics = level.includes(VerifyLevel.FILES)
        states = read_state(lake, store_id, remembered, known, statistics=statistics)
        turn = _Turn(level, states, local, remembered, witnesses)
        now, first_seen = turn.choose(max_bytes), turn.first_seen()
    with _remembering(memory, lake_id) as remember:
        remember(first_seen)
        with told("Verifying", sum(receipt.size_bytes for receipt in now)) as advance:
            for look in turn.look(now):
                remember(turn.take(look))
                advance(look.receipt.size_bytes)
    if turn.unreadable:
        # A lake that went away says so here, instead of one segment at a time.
        lake.messages()
    with no_collection():
        return tuple(turn.result(lake, state, released(state.store_id), elsewhere) for state in states)


@contextmanager
def _remembering(memory: Memory | None, lake_id: str) -> Iterator[Callable[[Sequence[Check]], None]]:
    """Record checks now and then: a kill costs the last second's, a commit each would cost more."""
    waiting: list[Check] = []
    last = time.monotonic()

    def remember(checks: Sequence[Check]) -> None:
        nonlocal last
        waiting.extend(checks)
        if time.monotonic() - last > _REMEMBER_EVERY_SECONDS:
            flush()
            last = time.monotonic()

    def flush() -> None:
        if memory is not None and waiting:
            memory.record(lake_id, waiting)
        waiting.clear()

    try:
        yield remember
    finally:
        flush()


class _Turn:
    """One walk over some of a lake's segments, and what it found of them."""

    def __init__(
        self,
        level: VerifyLevel,
        states: Sequence[StoreMetadata],
        local: Iterable[LocalSpan],
        remembered: Sequence[Check],
        witnesses: Callable[[str], Witnesses],
    ) -> None:
        self._witnesses = {state.store_id: witnesses(state.store_id) for state in states}
        self._level = level
        self._states = {state.store_id: state for state in states}
        self._here = {(span.log, span.start_offset): span for span in local}
        self._receipts = [receipt for state in states for receipt in state.receipts]
        by_age = sorted(self._receipts, key=lambda receipt: receipt.lineage)
        self._newest = {(receipt.log, receipt.base_offset): receipt.lineage for receipt in by_age}
        self._history = by_receipt(remembered)
        self._looks: dict[SegmentIdentity, SegmentLook] = {}
        self.unreadable = False

    def first_seen(self) -> list[Check]:
        """Receipts to remember from now on, so that their removal shows. Not those of a broken chain."""
        now_ms = clock_ms()
        checks = [
            Check.of(receipt, VerifyLevel.RECEIPTS, now_ms, _fault_of(receipt, state.broken))
            for state in self._states.values()
            for receipt in state.receipts
        ]
        known = {key for key, checks in self._history.items() if checks}
        for check in checks:
            self._keep(check)
        return [c for c in checks if c.receipt_hash not in known and self._states[c.store_id].chained]

    def choose(self, max_bytes: int | None) -> list[Receipt]:
        """Return the segments to look at closely, in this order; those settled by metadata need no look."""
        if self._level is VerifyLevel.RECEIPTS:
            return []
        whole = [receipt for receipt in self._receipts if receipt.identity not in self._of(receipt).broken]
        moved = [receipt for receipt in self._receipts if self._is_moved(receipt)]
        if not self._level.includes(VerifyLevel.BYTES):
            moved = []
        urgent = {r.identity for r in (*whole, *moved) if standing_fault(self._history, r)}
        urgent |= {receipt.identity for receipt in moved}
        read: set[str] = set()

        @cache
        def cost_bytes(receipt: Receipt) -> int:
            # A file that segments share is hashed once.
            file_bytes = receipt.size_bytes if receipt.data_file in read else receipt.data_file_bytes
            read.update([receipt.data_file] if receipt.row_groups is not None else ())
            return file_bytes + (receipt.size_bytes if self._reachable(receipt) is VerifyLevel.STORE else 0)

        return choose([*whole, *moved], urgent, self._history, self._reachable, cost_bytes, max_bytes)

    def look(self, chosen: Sequence[Receipt]) -> Iterator[SegmentLook]:
        """Look at some segments at a time; in the order in which they are done."""
        threads = reading_threads(max((receipt.size_bytes for receipt in chosen), default=0))
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            looks = [pool.submit(self._look_at, receipt) for receipt in chosen]
            try:
                for look in as_completed(looks):
                    yield look.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def take(self, look: SegmentLook) -> list[Check]:
        """Take over the result of a look; return the checks that the journal is to remember."""
        receipt, level = look.receipt, look.level
        self._looks[receipt.identity] = look
        if self._span(receipt) is not None:
            if look.local is None:
                del self._here[receipt.log, receipt.base_offset]
            else:
                self._here[receipt.log, receipt.base_offset] = look.local
        if not look.done:
            self.unreadable = True
            return []
        local = look.local
        same = local is not None and local.sha256 == receipt.sha256 and not local.companions_fault
        if level is VerifyLevel.STORE and not same:
            # The lake's part is proven; the broker's file has to be looked at again.
            level = VerifyLevel.BYTES
        check = Check.of(receipt, level, clock_ms(), look.fault)
        self._keep(check)
        return [check]

    def result(
        self,
        lake: Lake,
        state: StoreMetadata,
        released: Iterable[ReleasedSpan],
        elsewhere: Sequence[Receipt],
    ) -> StoreVerification:
        looked = state.receipts if self._looks else ()
        looks = [self._looks[r.identity] for r in looked if r.identity in self._looks]
        broken = dict(state.broken)
        for look in looks:
            if look.done:
                broken.pop(look.receipt.identity, None)
                if look.fault:
                    broken[look.receipt.identity] = look.fault
        for receipt in state.receipts:
            old = standing_fault(self._history, receipt)
            if old and receipt.identity not in broken and receipt.identity not in self._looks:
                broken[receipt.identity] = f"{old.fault} (found {time_text(old.at_ms)}, not looked at since)"
        proving, proves_nothing = in_either(whole(state.receipts), broken, whole(elsewhere))
        in_part = ended(state.receipts)
        proves_nothing |= {row.identity: fault for row in in_part if (fault := _fault_of(row, broken))}
        everywhere = (*proving, *in_part, *state.ended, *ended(elsewhere))
        gone, here = tuple(released), tuple(self._here.values())
        lay_over = partial(log_ranges, here, everywhere, released=gone, broken=proves_nothing)
        witnesses = self._witnesses[state.store_id]
        witnesses = replace(witnesses, expiries={**witnesses.expiries, **state.expiries})
        ranges = lay_over(witnesses=witnesses)
        names = names_of_logs(witnesses.present, everywhere, gone)
        if others := replica_spans(lake, state.store_id, names, lost_ranges(ranges), witnesses.compared):
            ranges = lay_over(witnesses=replace(witnesses, replicas=(*witnesses.replicas, *others)))
        last = next(iter((*state.receipts[-1:], *state.ended[-1:])), None)
        return StoreVerification(
            store_id=state.store_id,
            name="" if last is None else store_called(last.store_name, last.broker, last.store_root),
            level=self._level,
            receipt_count=len(state.receipts),
            checked_count=len(looks),
            checked_bytes=sum(look.receipt.size_bytes for look in looks),
            coverage=coverage(state.receipts, broken, self._history, self._level, self._reachable),
            ranges=ranges,
            findings=(
                *state.findings,
                *(self._broken(r, fault) for r in state.receipts if (fault := _fault_of(r, broken))),
                *(finding for look in looks for finding in look.findings),
            ),
        )

    def _look_at(self, receipt: Receipt) -> SegmentLook:
        state = self._of(receipt)
        level, span = self._reachable(receipt), self._span(receipt)
        return look_at(state.reader, receipt, state.looks.get(receipt.identity), level=level, local=span)

    def _of(self, receipt: Receipt) -> StoreMetadata:
        return self._states[receipt.store_id]

    def _is_moved(self, receipt: Receipt) -> bool:
        look = self._of(receipt).looks.get(receipt.identity)
        return look is not None and look.is_displaced

    def _span(self, receipt: Receipt) -> LocalSpan | None:
        """The broker's file that a receipt is about: the newest lineage's, if it is on disk."""
        slot = (receipt.log, receipt.base_offset)
        present = self._witnesses[receipt.store_id].present.get(receipt.log, "")
        is_newest = self._newest[slot] == receipt.lineage
        if not (receipt.is_whole and is_newest and may_be_one(receipt.log_id or "", present)):
            return None
        span = self._here.get(slot)
        return None if span is None or span.shielded or span.lineage > receipt.lineage else span

    def _reachable(self, receipt: Receipt) -> VerifyLevel:
        """Return how close a look can be: a segment that is not on disk has no broker's file to compare."""
        if self._level is VerifyLevel.STORE and self._span(receipt) is None:
            return VerifyLevel.BYTES
        return self._level

    def _broken(self, receipt: Receipt, fault: str) -> Finding:
        # Whether rows that another engine has put elsewhere are the segment, only reading them tells.
        unread = self._is_moved(receipt) and receipt.identity not in self._looks
        advice = Text(RENEW_ADVICE, " ", RESTORE_ADVICE) if unread else RESTORE_ADVICE
        return Finding(Status.FAILURE, receipt_name(receipt), fault, advice)

    def _keep(self, check: Check) -> None:
        older = [old for old in self._history.get(check.receipt_hash, ()) if old.level is not check.level]
        self._history[check.receipt_hash] = [*older, check]


def _fault_of(receipt: Receipt, broken: Mapping[SegmentIdentity, str]) -> str:
    """Return why a receipt proves nothing; "" where it does. Most lakes have none, and 1,000,000 receipts."""
    return broken.get(receipt.identity, "") if broken else ""
