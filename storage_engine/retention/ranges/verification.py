"""Checks of a lake's files, a part at a time, and comparison of a store with lake and journal.

The journal remembers which files were checked when. Lake, receipts and stamp are witnesses of deletions:
their facts are compared with the journal's record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from storage_engine.brokers import store_text
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, JournalUnavailableError, ReceiptError, StorageEngineError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import runs_said_to_delete
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.coverage.coverage import Witnesses, merge_lakes
from storage_engine.lake.coverage.spans import local_spans
from storage_engine.lake.file.scan import all_equal, read_rows
from storage_engine.lake.restore.restore_span import filled_notes
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults, moved_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.deleted_range import DELETION, DeletedRange, RunDigest
from storage_engine.model.proof.receipt import ChainHead, LakeHead, Receipt, ended, select_whole, with_rows
from storage_engine.model.report.validation import (
    Finding,
    RangeStatus,
    Status,
    StoreVerification,
    VerifyLevel,
    Where,
)
from storage_engine.model.store import SegmentId, StoreSnapshot
from storage_engine.retention.proof.history import compared_receipts, released_spans
from storage_engine.retention.proof.proofs import LakeProofs, Proofs, drop_older_lakes, reachable_lakes
from storage_engine.retention.proof.shielding import shielded_spans
from storage_engine.retention.proof.verification_memory import VerificationMemory
from storage_engine.retention.ranges.deleted_ranges import (
    Absence,
    ExplainedAbsence,
    RunHistory,
    ranges_by_event,
)
from storage_engine.retention.ranges.deletion_histories import (
    explain_absent_runs,
    read_deleting_runs,
    read_history,
    read_run_contradictions,
)
from storage_engine.retention.ranges.drift import all_gone_spans
from storage_engine.retention.ranges.missing_logs import missing_logs, missing_spans, present_logs
from storage_engine.retention.ranges.offset_ranges import own_ends, proven_ends
from storage_engine.retention.store.broker_answers import take_snapshot
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import KnownHeads, journalled_heads, known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp
from storage_engine.retention.store.unnamed_lakes import (
    heads_unasked,
    lake_name_text,
    lake_option,
    lakes_unasked,
)
from storage_engine.same_bytes.own_acts import read_own_acts

_NAMED = 3
"""Number of changed ranges of a run that a text names. The others are only counted."""

_ADVICE = (
    "Nothing was changed. Find out who writes to the journal. Bring the journal back from a backup that "
    "agrees with the lake."
)


def deletion_findings(
    reader: JournalReader, lake: Lake, store_id: str, stamped: RunDigest | None
) -> Iterator[Finding]:
    """Yield findings on runs whose record in the journal differs from the witnesses of their deletions.

    :param stamped: the deletion in the store's stamp; None without a deletion, or if the stamp wasn't read.
    :raises JournalUnavailableError: the journal can't be read.
    """
    rows: Sequence[DeletedRange] = ()
    try:
        rows = read_deletions(lake, store_id)
    except StorageEngineError as error:
        advice = (
            "Nothing depends on this table. If it is lost, the store's next run makes it from the journal."
        )
        yield Finding(Status.WARNING, "table deletions", Text("could not be read: ", error), advice)
    sources: dict[RunDigest, list[str]] = {}
    for digest, source in dict.fromkeys(_list_witnesses(lake, store_id, rows, stamped)):
        sources.setdefault(digest, []).append(source)
    runs = read_deleting_runs(reader, store_id)
    if not runs and not any(row.store_id == store_id for row in reader.stores()):
        # This journal never knew the store, such as one beside a copy of its lake.
        return
    explained_runs = explain_absent_runs(reader, store_id, runs, sources, rows)
    yield from (_absence_finding(explained, sources) for explained in explained_runs)
    altered = {explained.altered.run_id for explained in explained_runs if explained.altered is not None}
    of_runs: dict[tuple[str, int], dict[RunDigest, Sequence[str]]] = {}
    for digest, names in sources.items():
        of_runs.setdefault((digest.run, digest.begun_at_ms), {})[digest] = names
    for run in runs:
        key = (run.run_key, run.begun_at_ms)
        history = read_history(reader, store_id, run)
        run_rows = [row for row in rows if (row.run, row.run_begun_at_ms) == key]
        if wrong := history.differing(of_runs.get(key, {})):
            yield _changed_finding(history, wrong, of_runs[key], run_rows)
        elif run.run_id not in altered:
            yield from _contradiction_findings(reader, history)
    deleting = {run.run_id for run in runs}
    for run in reader.read(partial(runs_said_to_delete, store_id=store_id)):
        if run.run_id not in deleting:
            yield from _contradiction_findings(reader, read_history(reader, store_id, run))


def _contradiction_findings(reader: JournalReader, history: RunHistory) -> Iterator[Finding]:
    if clauses := read_run_contradictions(reader, history):
        detail = (
            "expected its plan, result, end and report to agree with each other and with its events; "
            f"found otherwise{_clauses(clauses)}"
        )
        yield Finding(Status.FAILURE, f"run {history.run.run_key}", detail, _ADVICE)


def _absence_finding(explained: ExplainedAbsence, sources: Mapping[RunDigest, Sequence[str]]) -> Finding:
    absent, is_older = explained.absent, explained.why is Absence.OLDER_COPY
    begun = f" begun {time_text(absent.begun_at_ms)}" if explained.altered is not None else ""
    source = " and ".join(dict.fromkeys(name for digest in absent.digests for name in sources[digest]))
    return Finding(
        Status.WARNING if is_older else Status.FAILURE,
        f"run {absent.run}",
        f"expected it in the journal{begun}, with its deletions{_clauses(row.name for row in absent.rows)}, "
        f"by {source}; {explained.clause}",
        "If the journal was put back from an older copy, bring back the newer one; otherwise find "
        "out who removed the run."
        if is_older
        else _ADVICE,
    )


def _list_witnesses(
    lake: Lake, store_id: str, rows: Iterable[DeletedRange], stamped: RunDigest | None
) -> Iterator[tuple[RunDigest, str]]:
    for row in rows:
        yield row.digest, "the lake's table deletions"
    for digest in _read_evidence(lake, store_id):
        yield digest, "a receipt's evidence"
    if stamped is not None:
        yield stamped, "the store's stamp"


def _read_evidence(lake: Lake, store_id: str) -> Iterator[RunDigest]:
    table = lake.segments()
    if "evidence" not in table.schema().column_names:
        # A lake of an older version.
        return
    rows = read_rows(table, all_equal({"store_id": store_id}), ("evidence",))
    for text in rows["evidence"].unique().to_pylist():
        # A changed receipt shows by its hash. Evidence that can't be understood is no witness.
        try:
            evidence = json.loads(text or "{}")
            if DELETION in evidence:
                yield from_jsonable(RunDigest, evidence[DELETION])
        except (ValueError, TypeError, BadInputError):
            continue


def _changed_finding(
    history: RunHistory,
    wrong: Mapping[RunDigest, str],
    sources: Mapping[RunDigest, Sequence[str]],
    rows: Sequence[DeletedRange],
) -> Finding:
    digest, actual = next(iter(wrong.items()))
    names = " and ".join(dict.fromkeys(source for witness in wrong for source in sources[witness]))
    detail = (
        f"expected its plan, intents, results and losses with the SHA-256 {digest.sha256}, by {names}, "
        f"found {actual} by the journal: it was changed since{_changes(history, rows)}"
    )
    return Finding(Status.FAILURE, f"run {digest.run}", detail, _ADVICE)


def _changes(history: RunHistory, rows: Sequence[DeletedRange]) -> str:
    try:
        ranges = tuple(ranges_by_event(history, None))
    except (BadInputError, KeyError, TypeError, ValueError) as error:
        return f"; the record can't be understood any more ({error})"
    return _clauses(change for row in rows for change in _differences(row, ranges))


def _differences(row: DeletedRange, ranges: Iterable[DeletedRange]) -> Iterator[str]:
    """Yield clauses on the differences between the journal's ranges and a lake's row of a deletion."""
    parts = [
        part
        for part in ranges
        if (part.log, part.lineage, part.what) == (row.log, row.lineage, row.what)
        and part.start_offset < row.end_offset
        and row.start_offset < part.end_offset
        and part.event_id <= row.event_id
    ]
    if not parts:
        yield f"{row.name} is not among its deletions"
        return
    changes = []
    if causes := sorted({part.cause for part in parts} - {row.cause}):
        changes.append(f"the cause {row.cause} became {', '.join(causes)}")
    if (at_ms := max(part.at_ms for part in parts)) != row.at_ms:
        changes.append(f"the time {time_text(row.at_ms)} became {time_text(at_ms)}")
    if people := sorted({part.who for part in parts} - {row.who}):
        changes.append(f"the decider {row.who} became {', '.join(people)}")
    if changes:
        yield f"{row.name}: {', '.join(changes)}"


def _clauses(clauses: Iterable[str]) -> str:
    all_clauses = list(clauses)
    more = f"; and {len(all_clauses) - _NAMED} more" if len(all_clauses) > _NAMED else ""
    return f" ({'; '.join(all_clauses[:_NAMED])}{more})" if all_clauses else ""


_PROVEN = (Where.BOTH, Status.OK)
_ADOPT = Text(
    "Archive the store. If that is refused, and this store really is the archived one, run ",
    Command("adopt"),
    " first: its log differs from the archived one from some offset on.",
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

    :param journal_url: the journal that remembers the times of checks. It is created if it is missing.
    :param level: the depth of the check, up to BYTES.
    :param max_bytes: bytes of data files to read. The next call begins with the files checked longest ago.
    :param renew: first prove segments again whose rows another engine has moved, whatever the budget. The
        move blocks their deletion. This adds receipts. Verification changes nothing else in the lake.
    :raises LakeUnavailableError: the lake is missing or can't be read.
    :raises JournalUnavailableError: the journal can't be written, and a budget needs it: otherwise each call
        would check the same segments. Without a budget everything is checked, and nothing is remembered.
    """
    lake = open_lake(lake_config)
    check = partial(verify, lake, level)
    try:
        memory, journal = VerificationMemory(journal_url), Journal(journal_url)
        check = partial(
            check,
            released=partial(released_spans, journal),
            known=partial(_journal_heads, lake, journal),
            witnesses=partial(_journal_witnesses, lake, journal),
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
    store: ManagedStore, level: VerifyLevel, *, max_bytes: int | None = None, renew: bool = False
) -> tuple[StoreVerification, ...]:
    """Check a store's parts of its lakes, and that the store and its lakes together still have every byte.

    :param max_bytes: as in :func:`verify_lake`; at STORE the bytes of the store's own files count, too.
    :param renew: as in :func:`verify_lake`.
    :return: one result for each lake that can be asked. Its ranges also count the proofs of the other lake.
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
        present = present_logs(broker, snapshot)
        store_id, heads = record.store_id, known_heads(journal, record)
        lakes, unreachable = drop_older_lakes(lakes, unreachable, heads, store_id)
        renewed = [_renew(lake, store_id) if renew else 0 for lake in lakes]
        rows = [receipts(lake, store_id, with_ended=True) for lake in lakes]
        ends = own_ends(broker, snapshot, _proven_ends(snapshot, record, rows))
    released = (*all_gone_spans(journal, record, unreachable), *missing_spans(journal, record, absent))
    kept = shielded_spans(store.real_root, record.lineages)
    memory = _open_memory(store.journal_url, is_needed=max_bytes is not None)
    others = heads_unasked(heads.heads, lakes, unreachable)
    witnesses = Witnesses(
        present,
        unasked=lakes_unasked(heads.heads, lakes, unreachable),
        compared=partial(compared_receipts, journal, store_id),
        expiries=merged_expiries(zip(lakes, map(ended, rows), strict=True)),
    )
    results: list[StoreVerification] = []
    for i, lake in enumerate(lakes):
        elsewhere = [row for j, other in enumerate(lakes) if j != i for row in _valid_rows(other, rows[j])]
        everywhere, _ = merge_lakes(select_whole(rows[i]), {}, select_whole(elsewhere))
        verifications = verify(
            lake,
            level,
            store_id=store_id,
            local=(*local_spans(snapshot, everywhere, record.lineages, ends=ends), *kept),
            elsewhere=elsewhere,
            released=lambda _store_id: released,
            witnesses=lambda _store_id: witnesses,
            known=partial(_heads_in_lake, heads, lake),
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
            for result in verifications
        ]
    missing = (
        *_unreachable_findings(unreachable),
        *(
            Finding(Status.WARNING, "restored store", f"{note}. No receipt proves these bytes", _ADOPT)
            for note in filled_notes(store.real_root, _list_unproven(snapshot, results))
        ),
    )
    return tuple(
        replace(
            result, findings=(*result.findings, *missing, *other_lake_findings(others, result, any(rows)))
        )
        for result in results
    )


def _open_memory(journal_url: str, *, is_needed: bool) -> VerificationMemory | None:
    try:
        return VerificationMemory(journal_url)
    except JournalUnavailableError:
        if is_needed:
            raise
        return None


def _unreachable_findings(unreachable: Mapping[str, str]) -> Iterator[Finding]:
    for location, reason in unreachable.items():
        detail = Text("could not be verified: ", reason)
        yield Finding(Status.WARNING, f"lake {location}", detail, "Verify again when the lake is back.")


def _with_journal(
    result: StoreVerification, journal_url: str, lake: Lake, stamped: RunDigest | None
) -> StoreVerification:
    """Add the journal's name of the store, and findings where its deletions differ from lake and stamp."""
    try:
        findings = tuple(deletion_findings(JournalReader(journal_url), lake, result.store_id, stamped))
        record = Journal(journal_url, read_only=True).store_with_id(result.store_id)
        name = store_text(record.name, record.broker, record.real_path) if record else result.name
        return replace(result, findings=(*result.findings, *findings), name=name)
    except JournalUnavailableError as error:
        if missing_sqlite_file(journal_url):
            return result
        detail = Text("its record of deletions was not compared: ", Text(error).removesuffix("."))
        unasked = Finding(Status.WARNING, "journal", detail, "Verify again when the journal can be read.")
        return replace(result, findings=(*result.findings, unasked))


def _proven_ends(
    snapshot: StoreSnapshot, record: StoreRecord, rows: Sequence[Sequence[Receipt]]
) -> dict[SegmentId, int]:
    """Return the end offsets of sealed segments from their receipts."""
    by_id: dict[SegmentId, list[Receipt]] = {}
    for row in (receipt for group in rows for receipt in select_whole(group)):
        if row.lineage == record.lineage_of(row.log):
            by_id.setdefault(SegmentId(row.log, row.base_offset), []).append(row)
    return proven_ends(snapshot, lambda id_: by_id.get(id_, ()), read_own_acts(record.real_path))


def _list_unproven(snapshot: StoreSnapshot, results: Sequence[StoreVerification]) -> set[tuple[str, int]]:
    """Return log and base offset of each segment on disk that begins in no proven range of the results."""
    proven: dict[str, list[RangeStatus]] = {}
    for part in (row for result in results for row in result.ranges if (row.where, row.status) == _PROVEN):
        proven.setdefault(part.log, []).append(part)
    return {
        (log.name, segment.base_offset)
        for log in snapshot.logs
        for segment in log.segments
        if not any(
            part.start_offset <= segment.base_offset < part.end_offset for part in proven.get(log.name, ())
        )
    }


def _credited_count(journal: Journal, record: StoreRecord, lake: Lake, snapshot: StoreSnapshot) -> int:
    """Return how many sealed segments are proven by replicas' receipts in a lake."""
    from storage_engine.retention.replicas import archived_by_replicas

    proofs = Proofs((LakeProofs(lake, {}, {}),), acts=read_own_acts(record.real_path))
    sealed = [segment for log in snapshot.logs for segment in log.sealed]
    return len(archived_by_replicas(journal, record, proofs, sealed))


def other_lake_findings(
    others: Sequence[LakeHead], result: StoreVerification, has_rows: bool
) -> Iterator[Finding]:
    """Yield findings on a store's lakes that weren't named, if the named lakes lack a part of it. Pure.

    :param others: the store's last receipts in the lakes that weren't named.
    :param has_rows: one of the named lakes has receipts of the store.
    """
    late = [f"{log} from {offset}" for log, offset in sorted(result.begins.items()) if offset > 0]
    if has_rows and not late:
        return
    note = (
        f"the named lakes have only {', '.join(late)} on" if has_rows else "the named lakes have none of it"
    )
    for head in others:
        yield Finding(
            Status.WARNING if has_rows else Status.FAILURE,
            f"lake {lake_name_text(head)}",
            f"the stamp or the journal says that it has the store up to receipt {head.sequence}; {note}",
            f"Name that lake: {lake_option(head)}; to name two lakes, use --second-lake for one of them.",
        )


def _journal_heads(lake: Lake, journal: Journal, store_id: str) -> tuple[ChainHead, ...]:
    """Return the last receipts of a store that a lake must have according to the journal."""
    return _heads_in_lake(KnownHeads(tuple(journalled_heads(journal, store_id))), lake, store_id)


def _journal_witnesses(lake: Lake, journal: Journal, store_id: str) -> Witnesses:
    unasked = lakes_unasked(journalled_heads(journal, store_id), (lake,), {})
    return Witnesses(unasked=unasked, compared=partial(compared_receipts, journal, store_id))


def _heads_in_lake(heads: KnownHeads, lake: Lake, _store_id: str) -> tuple[ChainHead, ...]:
    return heads.of(lake, lake.segments())


def _renew(lake: Lake, store_id: str) -> int:
    """Prove moved segments again, and return their number, or 0 if the chain of receipts is broken."""
    moved = moved_receipts(lake, with_rows(receipts(lake, store_id, with_ended=True)))
    if not moved:
        return 0
    with report_work("Renewing", sum(row.size_bytes for row in moved)) as advance, suppress(ReceiptError):
        return len(reprove(lake, store_id, moved, advance))
    return 0


def _valid_rows(lake: Lake, rows: Sequence[Receipt]) -> list[Receipt]:
    broken = losses(find_faults(lake, select_whole(rows)))
    return [row for row in rows if row.identity not in broken]
