"""Verification of a lake: that it is sound, and that lake and store together have every byte of the log.

All metadata is checked every time, because this reads no data. Data files are checked in turns within a
budget, those that were checked longest ago first. The checks are remembered, so that the next call continues
from there. Nothing in the lake is changed. A fault of one segment is a result, never an exception: the other
segments are checked as well. The proof of a copy before its commit is in ``lake/archive/proving.py``.
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

from storage_engine.brokers import find_broker, store_text
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.long_work import no_collection, report_work
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
    log_ranges,
    lost_ranges,
    merge_lakes,
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
from storage_engine.model.proof.receipt import (
    ChainHead,
    Receipt,
    SegmentIdentity,
    ended,
    select_whole,
    with_rows,
)
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
    " again: a new data file takes the place of the lost or damaged one. Otherwise bring the data file "
    "back under its name from a second lake or a backup of the warehouse, or roll the table back. Until "
    "then this receipt permits nothing.",
)

RENEW_ADVICE = Text(
    "Run ",
    Command("verify --level bytes --renew"),
    ": if the rows still prove the segment where they are now, it adds a receipt that says so.",
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
        " again: one new data file takes the place of both entries. Otherwise roll the table of rows back "
        "to the snapshot before the second commit, or delete the file from the table and add it once, and "
        "find out who wrote to the table.",
    ),
    ReceiptFault.ENTRY: Text(
        "The table's manifest was changed or damaged, or the receipt together with its hash was changed: "
        "then receipts have a finding, too. If they have none, no byte is lost, but queries may skip the "
        "file, and the gate deletes nothing on this receipt. Run ",
        Command("archive"),
        " again, roll the table of rows back to a sound snapshot, or delete and add the file again.",
    ),
    ReceiptFault.STATISTICS: (
        "No byte is lost, but queries may skip the file: a manifest was changed or damaged. Roll the table "
        "of rows back to a sound snapshot, or delete and add the file again."
    ),
    ReceiptFault.TREE: (
        "No byte is lost, but no single row can be proven by this receipt: the keys of its rows were "
        "changed, or the receipt together with its hash. Roll the table back to the snapshot before the "
        "change, and find out who wrote to it. If the broker still has the segment, keep it until then."
    ),
}
"""Advice for faults of an unsound receipt whose bytes are proven nevertheless."""

_OF_FILES = {ReceiptFault.MISSING, ReceiptFault.SIZE, ReceiptFault.SHA256}


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """Result of a close look at one segment.

    :param level: depth of the look. It ends at the level at which a fault was found.
    :param fault: why the lake doesn't prove its bytes; "" if it does.
    :param findings: other faults, for example that the segment could not be read.
    :param done: whether the look was completed, so that its result may be remembered.
    :param local: facts of the broker's file; None if there is no file, or if it vanished.
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

    :param known: the :class:`Look` at the segment's metadata; None if it has no fault.
    :param local: the broker's file, which is compared at STORE.
    """
    earlier = () if known is None else known.faults
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
            local = _hash_span(local)
        level = VerifyLevel.FILES
    advice = Text("Nothing is lost, but the gate deletes nothing on this receipt. ", RENEW_ADVICE)
    findings += (
        Finding(Status.WARNING, receipt_name(receipt), f"{fault}; its rows prove the same bytes", advice)
        for fault in look.faults
        if fault.kind.loses and fault not in look.losses
    )
    findings += (unsound(fault) for fault in look.faults if not fault.kind.loses and fault not in earlier)
    return SegmentLook(receipt, level, "; ".join(map(str, look.losses)), tuple(findings), True, local)


def unsound(fault: Fault) -> Finding:
    """Return a finding for a fault that loses no byte."""
    return Finding(Status.FAILURE, receipt_name(fault.receipt), str(fault), _ADVICE[fault.kind])


@dataclass(slots=True)
class _Compared:
    """The comparison of a broker's file with the segment that the lake's rows give."""

    local: LocalSpan
    file: BinaryIO
    digest: hashlib._Hash
    different_at: int | None = None

    @classmethod
    def of(cls, opened: ExitStack, local: LocalSpan | None) -> _Compared | None:
        """Open the broker's file; None if there is no file, or if a cleanup has deleted it meanwhile."""
        if local is None:
            return None
        try:
            return cls(local, opened.enter_context(Path(local.path).open("rb")), hashlib.sha256())
        except FileNotFoundError:
            return None

    def take(self, position: int, chunk: memoryview) -> None:
        actual = self.file.read(len(chunk))
        self.digest.update(actual)
        if self.different_at is None and (at := _first_difference(actual, chunk)) is not None:
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
    """Return how the companions of the broker's file differ from the receipt's; "" if they don't."""
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


def _hash_span(local: LocalSpan) -> LocalSpan | None:
    try:
        return replace(local, sha256=sha256_of(local.path))
    except FileNotFoundError:
        return None


def _first_difference(actual: bytes, expected: memoryview) -> int | None:
    shared = min(len(actual), len(expected))
    differs = np.frombuffer(actual, np.uint8, shared) != np.frombuffer(expected, np.uint8, shared)
    if differs.any():
        return int(np.argmax(differs))
    return None if len(actual) == len(expected) else shared


def _unreadable(receipt: Receipt, error: Exception) -> Finding:
    return Finding(
        Status.FAILURE,
        receipt_name(receipt),
        f"could not be checked: {str(error) or type(error).__name__}",
        "Its state is not known now. Make the file readable and verify again: it is checked first.",
    )


_COMMIT_SECONDS = 10.0
"""How long another run may take between its two commits before its files count as files without a receipt."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """Facts about one store from the metadata.

    :param receipts: receipts of segments that have rows in the lake.
    :param ended: receipts of expired segments. Only their chain is checked.
    :param expiries: for each act that expired rows, by its SHA-256, a clause with the policy and the time.
    :param looks: a :class:`Look` for each unsound receipt, made from metadata and files' sizes.
    :param broken: receipts that prove nothing now, each with the reason.
    :param reader: reads more about a receipt, down to its rows.
    :param chained: whether the chain of receipts is whole.
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

    :param remembered: earlier checks of this lake. They must be read before this is called.
    :param known: returns the links that a store's chain is known to have had.
    :param statistics: read all statistics of data files, so that they can be compared later.
    :raises LakeUnavailableError: the lake can't be read.
    """
    # The files may have changed since this process read their metadata.
    clear_manifest_cache()
    forget_files()
    segments = lake.segments()
    where = AlwaysTrue() if store_id is None else all_equal({"store_id": store_id})
    rows = by_store(read_receipts(segments, where))
    # Loaded after the receipts, so that the table has all files that these name.
    table = lake.messages()
    entries = list_entries(table, store_id, statistics=statistics)
    acts: tuple[Finding, ...] = ()
    try:
        read_acts(lake)
    except LakeUnavailableError as error:
        # The fault concerns each store in the lake.
        fault, _, advice = Text(error).partition(". ")
        acts = (Finding(Status.FAILURE, "acts", fault, advice),)
    before = {check.store_id for check in remembered} if store_id is None else set()
    states = (
        _state(lake, table, name, rows.get(name, ()), entries.get(name, []), remembered, known(name))
        for name in sorted({*rows, *entries, *before} if store_id is None else {store_id})
    )
    return tuple(replace(state, findings=(*acts, *state.findings)) for state in states)


def _state(
    lake: Lake,
    table: Table,
    store_id: str,
    history: Sequence[Receipt],
    entries: Sequence[LiveFile],
    remembered: Sequence[Check],
    heads: Collection[ChainHead],
) -> StoreMetadata:
    every_row = current(history)
    findings, rows = [], with_rows(every_row)
    chained, faults = True, row_faults(history)
    try:
        check_chain(history, heads, faults)
    except ReceiptError as error:
        chained = False
        advice = (
            "No segment of this store is deleted by its receipt until the chain is whole: roll the table "
            "segments back to the snapshot before the change."
        )
        findings.append(Finding(Status.FAILURE, "receipts", Text(error), advice))
    findings += _find_vanished(history, [check for check in remembered if check.store_id == store_id])
    reader = Reader(table, entries)
    looks = reader.faulty(rows, faults)
    findings += (unsound(fault) for look in looks.values() for fault in look.faults if not fault.kind.loses)
    since = _read_receipted(lake, table, store_id, every_row, entries)
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


def _read_receipted(
    lake: Lake, table: Table, store_id: str, rows: Sequence[Receipt], entries: Sequence[LiveFile]
) -> frozenset[str]:
    """Return data files whose receipts are newer than ``rows``, after a short wait for running archives."""
    waiting = unreceipted_files(table, rows, entries)
    receipted: frozenset[str] = frozenset()
    until = time.monotonic() + _COMMIT_SECONDS
    while waiting - receipted:
        every_row = receipts_in(lake.segments(), store_id, with_ended=True)
        receipted = frozenset(data_file_of(table, row) for row in every_row)
        if time.monotonic() > until:
            break
        if waiting - receipted:
            time.sleep(0.5)
    return receipted - {data_file_of(table, row) for row in rows}


def _find_vanished(rows: Sequence[Receipt], remembered: Sequence[Check]) -> Iterator[Finding]:
    """Yield findings for remembered receipts that are missing. The chain doesn't show a missing end."""
    hashes = {row.row_hash for row in rows}
    slots = {(row.lineage, row.log, row.base_offset) for row in rows}
    missing = {check.receipt_hash: check for check in remembered if check.receipt_hash not in hashes}
    for check in missing.values():
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
    """Remembers checks with their times, by lake. They are on disk when ``record`` returns."""

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
    """Check a lake. If a store's ranges on disk are given, check them together with its part of the lake.

    :param store_id: the store to check; None for every store that the lake knows.
    :param local: that store's ranges on disk, from :func:`local_spans`.
    :param elsewhere: that store's sound receipts in other lakes, including those of segments that expired.
    :param released: ranges that were deleted according to the journal, by store.
    :param known: links that the chain is known to have had, by store.
    :param memory: has earlier checks, and records new ones.
    :param max_bytes: limit for reading data files and segments; None means no limit.
    :param witnesses: by store, the logs on disk and other places that may have missing ranges. Replicas in
        this lake are added.
    :return: one result for each store, by store id.
    :raises LakeUnavailableError: the lake can't be read. A single data file that can't be read is a finding.
    """
    lake_id = str(lake.segments().metadata.table_uuid)
    with no_collection():
        # Before the receipts are read, because another verification may remember newer receipts meanwhile.
        remembered = list(memory.recall(lake_id)) if memory else []
        statistics = level.includes(VerifyLevel.FILES)
        states = read_state(lake, store_id, remembered, known, statistics=statistics)
        turn = _Turn(level, states, local, remembered, witnesses)
        now, first_seen = turn.choose(max_bytes), turn.first_seen()
    with _remembering(memory, lake_id) as remember:
        remember(first_seen)
        with report_work("Verifying", sum(receipt.size_bytes for receipt in now)) as advance:
            for look in turn.look(now):
                remember(turn.take(look))
                advance(look.receipt.size_bytes)
    if turn.unreadable:
        # If the lake itself is unreachable, this raises an error, in the place of findings for each segment.
        lake.messages()
    with no_collection():
        return tuple(turn.result(lake, state, released(state.store_id), elsewhere) for state in states)


@contextmanager
def _remembering(memory: Memory | None, lake_id: str) -> Iterator[Callable[[Sequence[Check]], None]]:
    """Collect checks and record them about once a second.

    A kill loses the last second's checks, but a commit for each would cost more.
    """
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
    """One pass over some of a lake's segments, with the results."""

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
        """Return checks of receipts that are seen for the first time, so that their later removal is noticed.

        Receipts of a broken chain are left out.
        """
        now_ms = clock_ms()
        checks = [
            Check.of(receipt, VerifyLevel.RECEIPTS, now_ms, _fault_of(receipt, state.broken))
            for state in self._states.values()
            for receipt in state.receipts
        ]
        keys = {key for key, checks in self._history.items() if checks}
        for check in checks:
            self._keep(check)
        return [c for c in checks if c.receipt_hash not in keys and self._states[c.store_id].chained]

    def choose(self, max_bytes: int | None) -> list[Receipt]:
        """Return the segments to look at closely, in order.

        Receipts that prove nothing by their metadata are left out. Only BYTES and STORE include moved rows.
        """
        if self._level is VerifyLevel.RECEIPTS:
            return []
        proven = [receipt for receipt in self._receipts if receipt.identity not in self._of(receipt).broken]
        moved = [receipt for receipt in self._receipts if self._is_moved(receipt)]
        if not self._level.includes(VerifyLevel.BYTES):
            moved = []
        urgent = {r.identity for r in (*proven, *moved) if standing_fault(self._history, r)}
        urgent |= {receipt.identity for receipt in moved}
        read: set[str] = set()

        @cache
        def cost_bytes(receipt: Receipt) -> int:
            # A file that segments share is hashed once.
            file_bytes = receipt.size_bytes if receipt.data_file in read else receipt.data_file_bytes
            read.update([receipt.data_file] if receipt.row_groups is not None else ())
            return file_bytes + (receipt.size_bytes if self._reachable(receipt) is VerifyLevel.STORE else 0)

        return choose([*proven, *moved], urgent, self._history, self._reachable, cost_bytes, max_bytes)

    def look(self, chosen: Sequence[Receipt]) -> Iterator[SegmentLook]:
        """Look at several segments at a time, and yield the results in the order in which they are done."""
        threads = reading_threads(max((receipt.size_bytes for receipt in chosen), default=0))
        with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
            looks = [pool.submit(self._look_at, receipt) for receipt in chosen]
            try:
                for look in as_completed(looks):
                    yield look.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def take(self, look: SegmentLook) -> list[Check]:
        """Take over the result of a look, and return the checks that the journal is to record."""
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
            # The lake proves the segment, but the broker's file must be compared again.
            level = VerifyLevel.BYTES
        check = Check.of(receipt, level, clock_ms(), look.fault)
        self._keep(check)
        return [check]

    def result(
        self, lake: Lake, state: StoreMetadata, released: Iterable[ReleasedSpan], elsewhere: Sequence[Receipt]
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
        proving, proves_nothing = merge_lakes(select_whole(state.receipts), broken, select_whole(elsewhere))
        in_part = ended(state.receipts)
        proves_nothing |= {row.identity: fault for row in in_part if (fault := _fault_of(row, broken))}
        everywhere = (*proving, *in_part, *state.ended, *ended(elsewhere))
        releases, here = tuple(released), tuple(self._here.values())
        lay_over = partial(log_ranges, here, everywhere, released=releases, broken=proves_nothing)
        witnesses = self._witnesses[state.store_id]
        witnesses = replace(witnesses, expiries={**witnesses.expiries, **state.expiries})
        ranges = lay_over(witnesses=witnesses)
        names = names_of_logs(witnesses.present, everywhere, releases)
        if others := replica_spans(lake, state.store_id, names, lost_ranges(ranges), witnesses.compared):
            ranges = lay_over(witnesses=replace(witnesses, replicas=(*witnesses.replicas, *others)))
        last = next(iter((*state.receipts[-1:], *state.ended[-1:])), None)
        return StoreVerification(
            store_id=state.store_id,
            name="" if last is None else store_text(last.store_name, last.broker, last.store_root),
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
        """Return the broker's file of a segment; None if it isn't on disk, or is of an older lineage."""
        slot = (receipt.log, receipt.base_offset)
        present = self._witnesses[receipt.store_id].present.get(receipt.log, "")
        is_newest = self._newest[slot] == receipt.lineage
        if not (receipt.is_whole and is_newest and may_be_one(receipt.log_id or "", present)):
            return None
        span = self._here.get(slot)
        return None if span is None or span.shielded or span.lineage > receipt.lineage else span

    def _reachable(self, receipt: Receipt) -> VerifyLevel:
        """Return the deepest possible level for a segment: STORE needs its file on disk."""
        if self._level is VerifyLevel.STORE and self._span(receipt) is None:
            return VerifyLevel.BYTES
        return self._level

    def _broken(self, receipt: Receipt, fault: str) -> Finding:
        # Only a read of rows that another engine has moved shows whether they are the segment.
        unread = self._is_moved(receipt) and receipt.identity not in self._looks
        advice = Text(RENEW_ADVICE, " ", RESTORE_ADVICE) if unread else RESTORE_ADVICE
        return Finding(Status.FAILURE, receipt_name(receipt), fault, advice)

    def _keep(self, check: Check) -> None:
        older = [old for old in self._history.get(check.receipt_hash, ()) if old.level is not check.level]
        self._history[check.receipt_hash] = [*older, check]


def _fault_of(receipt: Receipt, broken: Mapping[SegmentIdentity, str]) -> str:
    """Return why a receipt proves nothing; "" if it proves its segment."""
    return broken.get(receipt.identity, "") if broken else ""
