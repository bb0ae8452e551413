"""What of a store goes without a copy by archive rules, for who says so; the gate asks by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from storage_engine.core.wording import count_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.acts.unarchived import NO_PERMITS, ArchivePermits, may_leave_out
from storage_engine.model.keep.acts import not_archived_text
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store.store import Segment
from storage_engine.retention.proof.proofs import read_proofs
from storage_engine.retention.store.context import AnyStore, Context, managed_of
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore

COPIES_ENTER = (
    "Copies of them that the broker keeps under other topics are archived: for retries, dead letters, "
    "delays, timers and transactions"
)


def read_store_permits(store: ManagedStore, journal: Journal, record: StoreRecord) -> ArchivePermits:
    """Return what the archive rules of a store's lakes permit to go without a copy.

    :raises StorageEngineError: the journal can't be read, or a lake is of another kind of broker.
    """
    known = known_heads(journal, record)
    if store.policy.archive is ArchiveMode.OFF or not known.archive_rules:
        return NO_PERMITS
    return read_proofs(store.lakes, record, (), known=known).permits


def look_up_permits(place: AnyStore) -> ArchivePermits:
    """Return the same of any store. Nothing is changed; what can't be told permits nothing."""
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
    """Return which segments, or which topics' messages, go without a copy, by which rule, as sentences."""
    if permits.of_rows is not None:
        return tuple(
            f"messages may go without a copy, as far as no lake has them: {not_archived_text(rule)}. "
            f"{COPIES_ENTER}"
            for rule in permits.old_rules
            if segments
        )
    logs_of: dict[str, list[str]] = {}
    for log, clause in permits.unarchived(segments).items():
        logs_of.setdefault(clause, []).append(log)
    return tuple(
        f"{count_text(sum(one.log in logs for one in segments), 'segment')} of {named_in_short(logs)} go "
        f"without a copy, as far as no lake has them: {clause}"
        for clause, logs in logs_of.items()
    )


def lacking_notices(permits: ArchivePermits, receipts: Sequence[Receipt]) -> tuple[str, ...]:
    """Return which topics stayed out of the lake when segments were archived, by which rule, as sentences."""
    counts = Counter(map(permits.clause_of_receipt, receipts))
    return tuple(
        f"{count_text(count, 'segment')} archived without {it}" for it, count in counts.items() if it
    )
