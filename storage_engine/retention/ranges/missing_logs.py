"""Memory of where a store's logs began and ended, and the ranges that went missing later.

Runs and the monitor update the memory. Validation and pages check whether lakes have the missing ranges. A
range in no lake is lost.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from storage_engine.commands import Command, Text
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import RunStateError
from storage_engine.journal.journal import Journal, Step, StoreRecord
from storage_engine.lake.coverage.coverage import ReleasedSpan, lost_ranges
from storage_engine.model.broker.broker_store import BrokerStore, IdentifiedLogs
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short
from storage_engine.model.report.validation import RangeStatus
from storage_engine.model.store import Absence, StoreSnapshot
from storage_engine.retention.proof.verification_memory import KeptRows
from storage_engine.retention.ranges.deleted_ranges import accepted_losses, excused_parts
from storage_engine.retention.ranges.drift import gone_ranges, span_of_missing
from storage_engine.retention.ranges.seen_logs import (
    Missing,
    SeenLog,
    absent_logs,
    logs_of_plan,
    logs_of_snapshot,
    merge_logs,
    missing_ranges,
)
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.managed_store import ManagedStore

_ADVICE = Text(
    "see why: ", Command("verify"), "; then bring it back, or accept the loss: ", Command("accept-loss")
)


def missing_findings(
    store: ManagedStore, journal: Journal, record: StoreRecord, missing: Sequence[Missing]
) -> Iterator[Finding]:
    """Yield findings on ranges of missing logs that no lake has, and on unknown ranges.

    Accepted losses are left out.

    :param store: the store; all of its lakes have to answer.
    :raises StorageEngineError: lake or journal can't be read.
    """
    accepted = accepted_losses(journal, record)
    for is_unknown, severity, clause in (
        (False, Severity.URGENT, "of missing logs lost, because no lake has it"),
        (
            True,
            Severity.WARNING,
            "of missing logs in no lake, and it is unknown whether it should be on disk",
        ),
    ):
        named = [
            f"{row.log} [{part.start_offset}, {part.end_offset})"
            for absent in missing
            if absent.is_unknown is is_unknown
            for row in lost_ranges(gone_ranges(journal, record, store, (), missing=[absent]))
            for part in excused_parts(_span(absent, row), accepted)
            if not part.excused
        ]
        if named:
            text = f"{count_text(len(named), 'range')} {clause}: {named_in_short(named)}"
            yield Finding(severity, "logs-unknown" if is_unknown else "logs-lost", text, _ADVICE)


def _span(absent: Missing, row: RangeStatus) -> ReleasedSpan:
    start, end = max(absent.start_offset, row.start_offset), min(absent.end_offset, row.end_offset)
    return ReleasedSpan(absent.log, start, end, log_id=absent.log_id)


_VERSION = 1

_SEEN = KeptRows("storage_engine_seen_logs", "logs")


@dataclass(frozen=True, slots=True)
class _Logs:
    logs: tuple[SeenLog, ...]


def kept_logs(journal_url: str, store_id: str) -> tuple[SeenLog, ...] | None:
    """Return the remembered logs of a store, or None if none were ever kept. Nothing is changed.

    :raises RunStateError: another release kept the logs, in another version.
    :raises StorageEngineError: the journal can't be read.
    """
    stored = _SEEN.read(journal_url, store_id)
    if stored is None:
        return None
    version, content = stored
    if version != _VERSION:
        raise RunStateError(
            f"store {store_id}: expected its remembered logs in version {_VERSION}, found version "
            f"{version}. Nothing was changed. Use the release of storage-engine that remembered them."
        )
    return from_jsonable(_Logs, json.loads(zlib.decompress(content))).logs


def keep_logs(journal_url: str, store_id: str, logs: Sequence[SeenLog]) -> None:
    """Keep a store's logs as they were last seen. They replace the earlier ones.

    :raises StorageEngineError: the journal can't be written.
    """
    _SEEN.write(journal_url, store_id, _VERSION, json.dumps(to_jsonable(_Logs(tuple(logs)))))


_UNEXPLAINED = Absence(False, "nothing tells why", is_unknown=True)


def remember_logs(context: Context, snapshot: StoreSnapshot) -> None:
    """Remember the present offsets of logs. Missing logs stay remembered, and rightly deleted ones don't.

    :raises StorageEngineError: the journal can't be read or written.
    :raises OSError: a file can't be read.
    """
    if (identities := context.broker.identities) is None:
        return
    store, record = context.store, context.record
    known_logs = _read_known(store, context.journal, record)
    here = logs_of_snapshot(snapshot, identities.read(snapshot), record.lineages, known_logs)
    logs = merge_logs(known_logs, here, _ask_absences(identities, absent_logs(known_logs, here)))
    if logs != known_logs:
        keep_logs(store.journal_url, record.store_id, logs)


def missing_logs(
    store: ManagedStore, journal: Journal, record: StoreRecord, broker: BrokerStore, snapshot: StoreSnapshot
) -> tuple[Missing, ...]:
    """Return remembered logs of open lineages that should be on disk and are missing.

    :raises StorageEngineError: the journal can't be read.
    :raises OSError: a file can't be read.
    """
    if (identities := broker.identities) is None:
        return ()
    known_logs = _read_known(store, journal, record)
    here = logs_of_snapshot(snapshot, identities.read(snapshot), record.lineages, known_logs)
    ranges = missing_ranges(known_logs, here, _ask_absences(identities, absent_logs(known_logs, here)))
    return tuple(span for span in ranges if span.lineage == record.lineage_of(span.log))


def missing_spans(
    journal: Journal, record: StoreRecord, missing: Iterable[Missing]
) -> tuple[ReleasedSpan, ...]:
    """Return missing ranges as spans that were deleted from their logs. Accepted losses are excused."""
    accepted = accepted_losses(journal, record)
    return tuple(part for absent in missing for part in excused_parts(span_of_missing(absent), accepted))


def present_logs(broker: BrokerStore, snapshot: StoreSnapshot) -> dict[str, str]:
    """Return the identity of each log that a store has on disk, by name, or "" if it is unknown.

    :raises OSError: a file can't be read.
    """
    identities = broker.identities
    return {} if identities is None else {log: row.log_id for log, row in identities.read(snapshot).items()}


def _read_known(store: ManagedStore, journal: Journal, record: StoreRecord) -> tuple[SeenLog, ...]:
    """Return the logs that the journal remembers, or those of the last plan if it remembers none yet."""
    kept = kept_logs(store.journal_url, record.store_id)
    if kept is not None:
        return kept
    last = journal.last_result(record.store_id, Step.PLAN)
    plan = None if last is None else journal.run(record.store_id, last.run_key).plan
    return () if plan is None else logs_of_plan(plan)


def _ask_absences(identities: IdentifiedLogs, absent: Iterable[SeenLog]) -> dict[SeenLog, Absence]:
    """Ask the broker's package why logs are missing, in rounds: a round has at most one log of a name."""
    absences: dict[SeenLog, Absence] = {}
    waiting = list(absent)
    while waiting:
        batch: dict[str, SeenLog] = {}
        for entry in waiting:
            batch.setdefault(entry.log, entry)
        answers = identities.absences({log: entry.identity for log, entry in batch.items()})
        absences |= {entry: answers.get(log, _UNEXPLAINED) for log, entry in batch.items()}
        waiting = [entry for entry in waiting if batch[entry.log] is not entry]
    return absences
