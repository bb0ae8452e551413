"""What lake, receipts and stamp witnessed of deletions, held against the journal that tells of them now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.reading.run_rows import runs_said_to_delete
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.filters import all_equal
from storage_engine.lake.file.scan import read_rows
from storage_engine.model.proof.deleted_range import DELETION, DeletedRange, RunDigest
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import Finding
from storage_engine.retention.ranges.absent_runs import Absence, ExplainedAbsence
from storage_engine.retention.ranges.deleted_ranges import RunHistory, ranges_by_event
from storage_engine.retention.ranges.deletion_histories import (
    explain_absent_runs,
    read_deleting_runs,
    read_history,
    read_run_contradictions,
)

_NAMED = 3
"""Of more ranges of a run than these that were changed only the number is told."""

_ADVICE = (
    "Nothing was changed. Find out who writes to the journal; bring it back from a backup that agrees with "
    "the lake."
)


def deletion_findings(
    reader: JournalReader, lake: Lake, store_id: str, stamped: RunDigest | None
) -> tuple[Finding, ...]:
    """Return the runs of which the journal tells something else than was witnessed when they deleted.

    :param stamped: by the store's stamp; None: there is none, or nobody asked.
    :raises JournalUnavailableError: the journal can't be read.
    """
    return tuple(_findings(reader, lake, store_id, stamped))


def _findings(
    reader: JournalReader, lake: Lake, store_id: str, stamped: RunDigest | None
) -> Iterator[Finding]:
    rows: Sequence[DeletedRange] = ()
    try:
        rows = read_deletions(lake, store_id)
    except StorageEngineError as error:
        yield Finding(
            Status.WARNING,
            "table deletions",
            f"could not be read: {error}",
            "Nothing rests on it. Where it is lost the store's next run makes it again from the journal.",
        )
    sources: dict[RunDigest, list[str]] = {}
    for digest, source in dict.fromkeys(_witnessed(lake, store_id, rows, stamped)):
        sources.setdefault(digest, []).append(source)
    runs = read_deleting_runs(reader, store_id)
    if not runs and not any(row.store_id == store_id for row in reader.stores()):
        # A journal that never knew the store, such as one beside a copy of its lake.
        return
    explained_runs = explain_absent_runs(reader, store_id, runs, sources, rows)
    yield from (_absence(explained, sources) for explained in explained_runs)
    altered = {explained.altered.run_id for explained in explained_runs if explained.altered is not None}
    of_runs: dict[tuple[str, int], dict[RunDigest, Sequence[str]]] = {}
    for digest, names in sources.items():
        of_runs.setdefault((digest.run, digest.begun_at_ms), {})[digest] = names
    for run in runs:
        key = (run.run_key, run.begun_at_ms)
        history = read_history(reader, store_id, run)
        mine = [row for row in rows if (row.run, row.run_begun_at_ms) == key]
        if wrong := history.differing(of_runs.get(key, {})):
            yield _changed(history, wrong, of_runs[key], mine)
        elif run.run_id not in altered:
            yield from _contradictions(reader, history)
    deleting = {run.run_id for run in runs}
    for run in reader.read(partial(runs_said_to_delete, store_id=store_id)):
        if run.run_id not in deleting:
            yield from _contradictions(reader, read_history(reader, store_id, run))


def _contradictions(reader: JournalReader, history: RunHistory) -> Iterator[Finding]:
    if clauses := read_run_contradictions(reader, history):
        yield Finding(
            Status.FAILURE,
            f"run {history.run.run_key}",
            "expected its plan, result, end and report to agree with each other and with its events; "
            f"found otherwise{_listed(clauses)}",
            _ADVICE,
        )


def _absence(explained: ExplainedAbsence, sources: Mapping[RunDigest, Sequence[str]]) -> Finding:
    absent, is_older = explained.absent, explained.why is Absence.OLDER_COPY
    begun = f" begun {time_text(absent.begun_at_ms)}" if explained.altered is not None else ""
    source = " and ".join(dict.fromkeys(name for digest in absent.digests for name in sources[digest]))
    return Finding(
        Status.WARNING if is_older else Status.FAILURE,
        f"run {absent.run}",
        f"expected it in the journal{begun}, with what it deleted{_listed(row.name for row in absent.rows)}, "
        f"as {source} has it; {explained.clause}",
        "If the journal was put back from an older copy, bring back the newer one; otherwise find "
        "out who removed the run."
        if is_older
        else _ADVICE,
    )


def _witnessed(
    lake: Lake, store_id: str, rows: Iterable[DeletedRange], stamped: RunDigest | None
) -> Iterator[tuple[RunDigest, str]]:
    for row in rows:
        yield row.digest, "the lake's table deletions"
    for digest in _evidence(lake, store_id):
        yield digest, "a receipt's evidence"
    if stamped is not None:
        yield stamped, "the store's stamp"


def _evidence(lake: Lake, store_id: str) -> Iterator[RunDigest]:
    table = lake.segments()
    if "evidence" not in table.schema().column_names:
        # A lake of an older version.
        return
    rows = read_rows(table, all_equal({"store_id": store_id}), ("evidence",))
    for text in rows["evidence"].unique().to_pylist():
        # Whoever changed a receipt is found out by its hash; what is none says nothing here.
        try:
            evidence = json.loads(text or "{}")
            if DELETION in evidence:
                yield from_jsonable(RunDigest, evidence[DELETION])
        except (ValueError, TypeError, BadInputError):
            continue


def _changed(
    history: RunHistory,
    wrong: Mapping[RunDigest, str],
    sources: Mapping[RunDigest, Sequence[str]],
    rows: Sequence[DeletedRange],
) -> Finding:
    """Return that the journal's events of a run aren't those that were witnessed."""
    digest, found = next(iter(wrong.items()))
    names = " and ".join(dict.fromkeys(source for it in wrong for source in sources[it]))
    return Finding(
        Status.FAILURE,
        f"run {digest.run}",
        f"expected its plan, intents, results and losses with the SHA-256 {digest.sha256}, as {names} has "
        f"it, found {found} by the journal: it was changed since{_changes(history, rows)}",
        _ADVICE,
    )


def _changes(history: RunHistory, rows: Sequence[DeletedRange]) -> str:
    try:
        now = tuple(ranges_by_event(history, None))
    except (BadInputError, KeyError, TypeError, ValueError) as error:
        return f"; it can't be understood any more ({error})"
    return _listed(change for row in rows for change in _change(row, now))


def _change(row: DeletedRange, now: Iterable[DeletedRange]) -> Iterator[str]:
    """Yield what a journal says otherwise than a row of what went, as a clause."""
    parts = [
        part
        for part in now
        if (part.log, part.lineage, part.what) == (row.log, row.lineage, row.what)
        and part.start_offset < row.end_offset
        and row.start_offset < part.end_offset
        and part.event_id <= row.event_id
    ]
    if not parts:
        yield f"{row.name} is not among what it deleted"
        return
    said = []
    if causes := sorted({part.cause for part in parts} - {row.cause}):
        said.append(f"the cause {row.cause} became {', '.join(causes)}")
    if (at_ms := max(part.at_ms for part in parts)) != row.at_ms:
        said.append(f"the time {time_text(row.at_ms)} became {time_text(at_ms)}")
    if people := sorted({part.who for part in parts} - {row.who}):
        said.append(f"{row.who}, who decided it, became {', '.join(people)}")
    if said:
        yield f"{row.name}: {', '.join(said)}"


def _listed(clauses: Iterable[str]) -> str:
    every = list(clauses)
    more = f"; and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f" ({'; '.join(every[:_NAMED])}{more})" if every else ""
