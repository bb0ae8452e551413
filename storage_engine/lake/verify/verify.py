"""Checking what the lake holds, and that lake and store together still have every byte of the log.

Metadata is checked whole, every time: it costs no data. Data files are looked at in turns, the one that
was seen longest ago first, as far as a budget goes; what was seen is remembered, so that the next call goes
on from there. Nothing in the lake is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Protocol

from storage_engine.brokers import store_called
from storage_engine.commands import Text
from storage_engine.core.collector import no_collection
from storage_engine.core.long_work import told
from storage_engine.core.wording import time_text
from storage_engine.lake.archive.threads import reading_threads
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import careful_avro
from storage_engine.lake.coverage.coverage import (
    LocalSpan,
    ReleasedSpan,
    Witnesses,
    in_either,
    log_ranges,
    lost_ranges,
    names_of_logs,
)
from storage_engine.lake.coverage.verify_turns import by_receipt, choose, coverage, standing_fault
from storage_engine.lake.verify.replica_coverage import replica_spans
from storage_engine.lake.verify.verify_metadata import StoreMetadata, read_state
from storage_engine.lake.verify.verify_segment import RENEW_ADVICE, RESTORE_ADVICE, SegmentLook, look_at
from storage_engine.model.proof.receipt import ChainHead, Receipt, SegmentIdentity, ended, whole
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import (
    Check,
    Finding,
    StoreVerification,
    VerifyLevel,
    receipt_name,
)
from storage_engine.model.store.known_logs import may_be_one

__all__ = ["Memory", "StoreVerification", "VerifyLevel", "verify"]

_REMEMBER_EVERY_SECONDS = 1.0


class Memory(Protocol):
    """What was looked at when, by lake; on disk when ``record`` returns."""

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
    :param local: what is on the broker's disk, from :func:`local_spans`; of the one store only.
    :param elsewhere: receipts of that store that hold in another lake, or whose segments expired there.
    :param released: what the journal says was deleted, by store.
    :param known: receipts that the lake is known to have had, by store.
    :param memory: what was looked at before, and where to remember what is looked at now.
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
        now_ms = _now_ms()
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
        """Return what to look at closely now, in this order; what metadata has settled needs no look."""
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
        """Keep what a look found; return what is to be remembered of it."""
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
        check = Check.of(receipt, level, _now_ms(), look.fault)
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
