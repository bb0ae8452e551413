"""Check a lake in turns that the journal remembers, and lay a store over what lake and journal know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from storage_engine.brokers import store_called
from storage_engine.core.clock import clock_ms
from storage_engine.core.long_work import told
from storage_engine.exceptions import JournalUnavailableError, ReceiptError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.lake.acts.expiries import merged_expiries
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.coverage.coverage import Witnesses
from storage_engine.lake.coverage.elsewhere import in_either
from storage_engine.lake.coverage.local_spans import local_spans
from storage_engine.lake.restore.filled import filled_notes
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults, moved_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.deleted_range import RunDigest
from storage_engine.model.proof.heads import ChainHead, LakeHead
from storage_engine.model.proof.receipt import Receipt, ended, whole, with_rows
from storage_engine.model.report.validation import RangeStatus, Status, Where
from storage_engine.model.report.verification import Finding, StoreVerification, VerifyLevel
from storage_engine.model.store.store import SegmentId, StoreSnapshot
from storage_engine.retention.proof.history import compared_receipts, released_spans
from storage_engine.retention.proof.proofs import LakeProofs, Proofs, reachable_lakes, without_older
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.proof.verification_memory import VerificationMemory
from storage_engine.retention.ranges.deletion_proofs import deletion_findings
from storage_engine.retention.ranges.drift import all_gone_spans
from storage_engine.retention.ranges.missing_logs import missing_logs, missing_spans, present_logs
from storage_engine.retention.ranges.segment_ends import own_ends, proven_ends
from storage_engine.retention.store.broker_answers import take_snapshot
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import KnownHeads, journalled_heads, known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp
from storage_engine.retention.store.unnamed_lakes import (
    heads_unasked,
    how_to_name,
    lake_named,
    lakes_unasked,
)
from storage_engine.same_bytes.own_acts import read_own_acts

_PROVEN = (Where.BOTH, Status.OK)
_ADOPT = (
    "Archive it. Where that is refused, as it is the archived store again, run storage-engine adopt first: "
    "its log goes on otherwise than the archived one."
)


def verify_lake(
    lake_config: LakeConfig,
    journal_url: str,
    level: VerifyLevel,
    *,
    max_bytes: int | None = None,
    renew: bool = False,
) -> tuple[StoreVerification, ...]:
    """Check every store's part of a lake.

    :param journal_url: where it is remembered what was checked when; made if it isn't there.
    :param level: up to BYTES.
    :param max_bytes: how much to read of data files; the next call goes on with what was seen longest ago.
    :param renew: first prove segments again whose rows another engine has moved, and add receipts for them,
        whatever the budget: they block deletion. Without it nothing in the lake is changed.
    :raises LakeUnavailableError: the lake is missing or can't be read.
    :raises JournalUnavailableError: the journal can't be written, and a budget needs it: the same segments
        would be checked each time. Without a budget everything is checked, and nothing remembered.
    """
    lake = open_lake(lake_config)
    check = partial(verify, lake, level)
    try:
        memory, journal = VerificationMemory(journal_url), Journal(journal_url)
        check = partial(
            check,
            released=partial(released_spans, journal),
            known=partial(_journalled, lake, journal),
            witnesses=partial(_journalled_witnesses, lake, journal),
            memory=memory,
            max_bytes=max_bytes,
        )
    except JournalUnavailableError:
        if max_bytes is not None:
            raise
    renewed = {s.store_id: _renew(lake, s.store_id) for s in list_stores(lake)} if renew else {}
    return tuple(
        _with_journal(replace(result, renewed_count=renewed.get(result.store_id, 0)), journal_url, lake, None)
        for result in check()
    )


def verify_store(
    store: ManagedStore,
    level: VerifyLevel,
    *,
    max_bytes: int | None = None,
    renew: bool = False,
) -> tuple[StoreVerification, ...]:
    """Check the lakes' parts of ``store``, and that store and lakes together still have every byte.

    :param max_bytes: how much to read of data files and, at STORE, of the store's own; as for a whole lake.
    :param renew: as for a whole lake.
    :return: one result a lake that can be asked; what the other one proves counts in its ranges.
    :raises StoreNotFoundError: there is no such store.
    :raises LakeUnavailableError: no lake can be read.
    :raises JournalUnavailableError: the journal can't be read, or can't be written and a budget needs it.
    """
    lakes, unreachable = reachable_lakes(store)
    with closing(open_store(store)) as broker:
        snapshot = take_snapshot(broker, clock_ms(), store.broker)
        journal = Journal(store.journal_url)
        record = identify(store, journal)
        absent = missing_logs(store, journal, record, broker, snapshot)
        present = present_logs(broker, store.broker, snapshot)
        store_id, known = record.store_id, known_heads(journal, record)
        lakes, unreachable = without_older(lakes, unreachable, known, store_id)
        renewed = [_renew(lake, store_id) if renew else 0 for lake in lakes]
        rows = [receipts(lake, store_id, with_ended=True) for lake in lakes]
        ends = own_ends(broker, snapshot, _proven_ends(snapshot, record, rows))
    released = (
        *all_gone_spans(journal, record, unreachable),
        *missing_spans(journal, record, absent),
    )
    kept = shielded_spans(store.real_root, record.lineages)
    memory: VerificationMemory | None = None
    try:
        memory = VerificationMemory(store.journal_url)
    except JournalUnavailableError:
        if max_bytes is not None:
            raise
    others = heads_unasked(known.heads, lakes, unreachable)
    witnesses = Witnesses(
        present,
        unasked=lakes_unasked(known.heads, lakes, unreachable),
        compared=partial(compared_receipts, journal, store_id),
        expiries=merged_expiries(zip(lakes, map(ended, rows), strict=True)),
    )
    results: list[StoreVerification] = []
    for i, lake in enumerate(lakes):
        elsewhere = [row for j, other in enumerate(lakes) if j != i for row in _holding(other, rows[j])]
        everywhere, _ = in_either(whole(rows[i]), {}, whole(elsewhere))
        found = verify(
            lake,
            level,
            store_id=store_id,
            local=(*local_spans(snapshot, everywhere, record.lineages, ends=ends), *kept),
            elsewhere=elsewhere,
            released=lambda _store_id: released,
            witnesses=lambda _store_id: witnesses,
            known=partial(_known_of, known, lake),
            memory=memory,
            max_bytes=max_bytes,
        )
        credited = _credited_count(journal, record, lake, snapshot)
        stamp = read_stamp(store.real_root)
        results += [
            _with_journal(
                replace(result, renewed_count=renewed[i], credited_count=credited),
                store.journal_url,
                lake,
                None if stamp is None else stamp.deletion,
            )
            for result in found
        ]
    missing = tuple(
        Finding(
            Status.WARNING, f"lake {location}", f"could not be verified: {why}", "Verify when it is back."
        )
        for location, why in unreachable.items()
    )
    missing += tuple(
        Finding(Status.WARNING, "restored store", f"{note}; no receipt proves these bytes", _ADOPT)
        for note in filled_notes(store.real_root, _unproven(snapshot, results))
    )
    return tuple(
        replace(
            result, findings=(*result.findings, *missing, *other_lake_findings(others, result, any(rows)))
        )
        for result in results
    )


def _with_journal(
    result: StoreVerification, journal_url: str, lake: Lake, stamped: RunDigest | None
) -> StoreVerification:
    """Add the journal's name of the store, and what it tells otherwise of deletions than was witnessed."""
    try:
        found = deletion_findings(JournalReader(journal_url), lake, result.store_id, stamped)
        known = Journal(journal_url, read_only=True).store_with_id(result.store_id)
        name = store_called(known.name, known.broker, known.real_path) if known else result.name
        return replace(result, findings=(*result.findings, *found), name=name)
    except JournalUnavailableError as error:
        if missing_sqlite_file(journal_url):
            return result
        detail = f"what it knows of deletions was not compared: {str(error).removesuffix('.')}"
        unasked = Finding(Status.WARNING, "journal", detail, "Verify when it can be read.")
        return replace(result, findings=(*result.findings, unasked))


def _proven_ends(
    snapshot: StoreSnapshot, record: StoreRecord, rows: Sequence[Sequence[Receipt]]
) -> dict[SegmentId, int]:
    """Return where sealed segments end by their receipts."""
    by_id: dict[SegmentId, list[Receipt]] = {}
    for row in (one for of_lake in rows for one in whole(of_lake)):
        if row.lineage == record.lineage_of(row.log):
            by_id.setdefault(SegmentId(row.log, row.base_offset), []).append(row)
    return proven_ends(snapshot, lambda id_: by_id.get(id_, ()), read_own_acts(record.real_path))


def _unproven(snapshot: StoreSnapshot, results: Sequence[StoreVerification]) -> set[tuple[str, int]]:
    """Return the segments on disk, by log and base offset, that weren't found to have a receipt's bytes."""
    proven: dict[str, list[RangeStatus]] = {}
    for it in (it for result in results for it in result.ranges if (it.where, it.status) == _PROVEN):
        proven.setdefault(it.log, []).append(it)
    return {
        (log.name, one.base_offset)
        for log in snapshot.logs
        for one in log.segments
        if not any(it.start_offset <= one.base_offset < it.end_offset for it in proven.get(log.name, ()))
    }


def _credited_count(journal: Journal, record: StoreRecord, lake: Lake, snapshot: StoreSnapshot) -> int:
    """Return for how many sealed segments receipts of replicas in a lake count."""
    from storage_engine.retention.replicas.replicas import archived_by_replicas

    proofs = Proofs((LakeProofs(lake, {}, {}),), acts=read_own_acts(record.real_path))
    sealed = [segment for log in snapshot.logs for segment in log.sealed]
    return len(archived_by_replicas(journal, record, proofs, sealed))


def other_lake_findings(
    others: Sequence[LakeHead], result: StoreVerification, has_rows: bool
) -> Iterator[Finding]:
    """Yield the lakes that a store was archived into and that nobody named, where that leaves a gap. Pure.

    :param others: what those lakes held last of the store.
    :param has_rows: a lake that was named has receipts of the store.
    """
    late = [f"{log} from {offset}" for log, offset in sorted(result.begins.items()) if offset > 0]
    if has_rows and not late:
        return
    here = f"only {', '.join(late)} on is known here" if has_rows else "the named lakes have none of it"
    for head in others:
        yield Finding(
            Status.WARNING if has_rows else Status.FAILURE,
            f"lake {lake_named(head)}",
            f"the store was archived into it, by its stamp or journal, up to receipt {head.sequence}; {here}",
            f"Name that lake: {how_to_name(head)}; --second-lake names another one beside it.",
        )


def _journalled(lake: Lake, journal: Journal, store_id: str) -> tuple[ChainHead, ...]:
    """Return the receipts of a store that a lake has to have by the journal's word."""
    return _known_of(KnownHeads(tuple(journalled_heads(journal, store_id))), lake, store_id)


def _journalled_witnesses(lake: Lake, journal: Journal, store_id: str) -> Witnesses:
    """Return which other lakes and stores have receipts of a store's bytes by the journal's word."""
    unasked = lakes_unasked(journalled_heads(journal, store_id), (lake,), {})
    return Witnesses(unasked=unasked, compared=partial(compared_receipts, journal, store_id))


def _known_of(known: KnownHeads, lake: Lake, _store_id: str) -> tuple[ChainHead, ...]:
    return known.of(lake, lake.segments())


def _renew(lake: Lake, store_id: str) -> int:
    """Prove moved segments again; how many.

    Where the chain of receipts is broken none is: that is the first thing that verifying says.
    """
    moved = moved_receipts(lake, with_rows(receipts(lake, store_id, with_ended=True)))
    if not moved:
        return 0
    with told("Renewing", sum(row.size_bytes for row in moved)) as advance, suppress(ReceiptError):
        return len(reprove(lake, store_id, moved, advance))
    return 0


def _holding(lake: Lake, rows: Sequence[Receipt]) -> list[Receipt]:
    """Return the receipts that hold, with those of segments that expired."""
    broken = losses(find_faults(lake, whole(rows)))
    return [row for row in rows if row.identity not in broken]
