"""info, runs: all managed stores, and the runs on them. Nothing here makes or changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from storage_engine.cli.options.options import (
    check_either,
    conn_id_option,
    lake_option,
    second_lake_option,
    store_of_connection,
)
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.cli.options.stores_file import NamedStore, named_stores
from storage_engine.cli.output.output import answer, print_json, print_table, put, say
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import is_this_host
from storage_engine.core.long_work import no_collection
from storage_engine.core.wording import bytes_text, count_text, did_you_mean, duration_text, time_text
from storage_engine.exceptions import BadInputError, JournalUnavailableError, StorageEngineError
from storage_engine.journal.reading.answers import RunRow, Standing, StoredReport
from storage_engine.journal.records import RunState, StoreRecord

if TYPE_CHECKING:
    from storage_engine.journal.reading.queries import JournalReader
    from storage_engine.retention.doctor.overview import ManagedOverview, Overview
    from storage_engine.retention.store.managed_store import ManagedStore


def _base(lake_dir: Path | None, second_lake_dir: Path | None, conn_id: str | None) -> ManagedStore:
    """Return a store with the journal and lakes that a call names.

    :raises click.UsageError: the call names both a lake and a connection, or neither.
    """
    check_either(lake_dir, conn_id)
    if conn_id is not None:
        return store_of_connection(conn_id)
    assert lake_dir is not None
    return managed_store(lake_dir, lake_dir, second_lake_dir=second_lake_dir)


def _print_named(stores: Mapping[str, NamedStore]) -> None:
    (file,) = {store.file for store in stores.values()}
    if wants_json():
        rows = [{"name": name, "fields": store.fields} for name, store in sorted(stores.items())]
        print_json("info", {"stores_file": file, "named_stores": rows})
        return
    lines = [(name, store.path("root"), store.path("lake")) for name, store in sorted(stores.items())]
    print_table(f"Stores of {file}", ("name", "root~", "lake~"), lines)


def _check_name(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Refuse an empty text as a name: mostly it comes from a variable that isn't set. A click callback."""
    if text is not None and not text.strip():
        raise click.BadParameter("expected a name, found an empty text", context, parameter)
    return text


@command()
@click.argument("which", metavar="[STORE]", required=False, callback=_check_name)
@lake_option(required=False)
@second_lake_option
@conn_id_option
@json_option
def info(which: str | None, lake_dir: Path | None, second_lake_dir: Path | None, conn_id: str | None) -> int:
    """Show the managed stores: ranges on disk and in lakes, last run, last verification, holds and workers.

    STORE is a store's name, path or id. Without it, all stores of the journal and the lakes are shown, or the
    connection's store. Ranges on another host's disk aren't shown. Without a lake or a connection, the file
    of stores names the lakes, and a call without STORE lists its stores.
    """
    stores_of_file = named_stores() if lake_dir is None and conn_id is None else {}
    if which is None and stores_of_file:
        _print_named(stores_of_file)
        return 0
    is_named = which in stores_of_file
    if is_named:
        named = stores_of_file[str(which)]
        base = named.managed(named.path("lake"), second_lake_dir or named.path("second_lake"))
    else:
        base = _base(lake_dir, second_lake_dir, conn_id)
    overview = _overview(base)
    text = base.real_root if conn_id is not None or is_named else which
    stores = overview.stores if text is None else (_choose(overview, text, base),)
    answer("info", {**_overview_json(overview), "stores": stores}, lambda _: print_overview(overview, stores))
    return 0 if overview.is_known else 1


@no_collection()
def _overview(base: ManagedStore) -> Overview:
    """Return the overview. Its libraries are imported only here, so that a wrong call fails at once."""
    from storage_engine.arrow.alone import load_arrow_alone

    load_arrow_alone()
    from storage_engine.retention.doctor.overview import overview

    return overview(base, base.lakes, clock_ms())


def _choose(overview: Overview, text: str, base: ManagedStore) -> ManagedOverview:
    """Return the store with this name, path or id.

    :raises BadInputError: no store has it, or several stores have this default name.
    :raises JournalUnavailableError: ``text`` is the path of ``base``, and the journal is missing.
    """
    names = [store.name for store in overview.stores]
    by_word = {
        word: store for store in overview.stores for word in (store.store_id, store.path, store.name) if word
    }
    if names.count(text) > 1:
        # Several stores have this default name, so it names none of them.
        del by_word[text]
    real = str(Path(text).resolve())
    if text not in by_word and real not in by_word:
        if overview.journal_missing and text == base.real_root:
            raise JournalUnavailableError(overview.journal_missing)
        raise _unknown(text, by_word, overview.journal_missing or overview.journal)
    return by_word.get(text) or by_word[real]


def _unknown(text: str, by_word: dict[str, Any], where: str) -> BadInputError:
    named = ", ".join(by_word) or "none"
    return BadInputError(
        f"{where}: expected one of the stores that are managed ({named}), found {text!r}."
        f"{did_you_mean(text, by_word)}",
        page="command-line",
    )


def _overview_json(overview: Overview) -> dict[str, Any]:
    lakes = [
        {
            "location": lake.location,
            "lake_id": lake.lake_id,
            "copy_of": lake.copy_of,
            "refused": lake.refused or None,
            "size_bytes": sum(table.file_bytes for table in lake.tables),
        }
        for lake in overview.lakes
    ]
    return {"journal": overview.journal, "journal_missing": overview.journal_missing or None, "lakes": lakes}


@command()
@click.argument("run", required=False, callback=_check_name)
@click.option(
    "--store",
    "which",
    metavar="STORE",
    callback=_check_name,
    help="Name, path or id of the store, where there are several.",
)
@lake_option(required=False)
@conn_id_option
@click.option(
    "--max", "max_count", type=click.IntRange(min=1), default=20, show_default=True, help="Most runs to show."
)
@json_option
def runs(
    run: str | None, which: str | None, lake_dir: Path | None, conn_id: str | None, max_count: int
) -> int:
    """List a store's runs, the newest first: their cause, deleted segments and outcome.

    With RUN, show the report of that run from the journal.
    """
    from storage_engine.journal.reading.queries import JournalReader
    from storage_engine.retention.doctor.overview import same_place

    base = _base(lake_dir, None, conn_id)
    reader = JournalReader(base.journal_url)
    stores = reader.stores()
    if run is None and which is None and not stores:
        nothing: dict[str, Any] = {"store_id": None, "store": None, "runs": [], "notices": []}
        return answer("runs", nothing, f"{reader.name}: no run of any store has begun.")
    row = _store(reader.name, stores, which, base if conn_id is not None else None)
    if run is not None:
        return _show_report(reader, row, run)
    run_rows = reader.runs(row.store_id, limit=max_count)
    place = same_place(base, row)
    reports = {run_row.run_key: _report_file(place, run_row.run_key) for run_row in run_rows}
    notices = _quarantine_notices(place, row)
    if wants_json():
        rows = [{"run": run_row, "report_json": reports[run_row.run_key]} for run_row in run_rows]
        values = {"store_id": row.store_id, "store": _name_of(row), "runs": rows}
        print_json("runs", {**values, "notices": notices})
    else:
        print_runs(_name_of(row), run_rows, reports)
        for notice in notices:
            say("Note: ", notice, ".")
    return 0


def _quarantine_notices(store: ManagedStore, row: StoreRecord) -> tuple[str, ...]:
    """Return notices on quarantined files that the journal doesn't know, for a store on this host."""
    from storage_engine.journal.journal import Journal
    from storage_engine.retention.quarantine.places import unknown_notices
    from storage_engine.retention.quarantine.records import known_directories

    if not Path(store.root).exists():
        return ()
    with suppress(StorageEngineError, OSError):
        directories = known_directories(Journal(store.journal_url, read_only=True), row.store_id)
        return unknown_notices(store, (), directories)
    return ()


def _name_of(row: StoreRecord) -> str:
    from storage_engine.brokers import store_text

    return store_text(row.name, row.broker, row.real_path)


def _store(
    journal: str, stores: Sequence[StoreRecord], which: str | None, base: ManagedStore | None
) -> StoreRecord:
    """Return the named store of a journal or, without a name, its only store.

    :param journal: the journal's name.
    :raises BadInputError: the journal has no such store, or has several and none is named.
    """
    text = which or (None if base is None else base.real_root)
    names = [_name_of(row) for row in stores]
    by_word = {name: row for name, row in zip(names, stores, strict=True) if names.count(name) == 1}
    by_word |= {word: row for row in stores for word in (row.store_id, row.real_path, row.name) if word}
    if text is not None:
        record = by_word.get(text) or by_word.get(str(Path(text).resolve()))
        if record is None:
            raise _unknown(text, by_word, journal)
        return record
    if len(stores) != 1:
        raise BadInputError(
            f"{journal}: expected --store, since the journal has {len(stores)} stores: "
            f"{', '.join(names) or 'none'}. Name one.",
            page="command-line",
        )
    return stores[0]


def _report_file(store: ManagedStore, run_key: str) -> str | None:
    from storage_engine.retention.store.managed_store import REPORT_JSON, run_directory

    path = run_directory(store, run_key) / REPORT_JSON
    return str(path) if path.is_file() else None


def _show_report(reader: JournalReader, row: StoreRecord, run: str) -> int:
    """:raises BadInputError: there is no such run, or it has no report."""
    from storage_engine.retention.report.finishing import report_of_stored
    from storage_engine.retention.report.report_text import report_text

    stored: StoredReport | None = reader.report(row.store_id, run)
    if stored is None:
        keys = [item.run_key for item in reader.runs(row.store_id, limit=1_000)]
        if run in keys:
            raise BadInputError(
                f"run {run}: expected its report in {reader.name}, found none: it isn't finished, was "
                "no cleanup, or its report has expired. Nothing was changed. To finish it: ",
                Command("clean", f"--run-key {quote(run)}"),
                ".",
                page="command-line",
            )
        raise BadInputError(
            f"{reader.name}: expected a run of store {_name_of(row)}, found none called "
            f"{run!r}.{did_you_mean(run, keys)} ",
            Command("runs"),
            " lists them.",
            page="command-line",
        )
    values = {"store_id": row.store_id, "run_key": run, "report": stored.report}
    return answer("runs", values, lambda _: put(report_text(report_of_stored(stored)).rstrip()))


def print_overview(overview: Overview, stores: Sequence[ManagedOverview]) -> None:
    """Print a line each for the journal and the lakes, then the facts about each store."""
    say(
        f"Journal {overview.journal}"
        if not overview.journal_missing
        else Text("Journal: ", overview.journal_missing)
    )
    for lake in overview.lakes:
        size = bytes_text(sum(table.file_bytes for table in lake.tables))
        kind = f"a copy of lake {lake.copy_of}, read-only, {size}" if lake.copy_of else size
        say(f"Lake    {lake.location}: ", Text("refused: ", lake.refused) if lake.refused else kind)
    if not stores and not overview.is_known:
        say("Which stores are managed isn't known: a lake can't be read, or is refused.")
    elif not stores:
        say("No store is managed: nothing was archived yet, and no run has begun.")
    for store in stores:
        print_table(f"Store {store.name}", ("what", "value"), _facts(store, overview.is_known))


def _facts(store: ManagedOverview, lakes_known: bool) -> Iterator[tuple[str, str]]:
    yield "id", store.store_id
    if store.path is not None:
        yield "path", store.path
        here = " (this one)" if is_this_host(store.host) else ""
        yield "host", f"{store.host}{here}" if store.host else "not known"
    yield "broker", store.broker or "not known"
    yield from _disk_lines(store)
    for note in store.filled:
        yield "with filler", note
    if not store.archived:
        yield "in lake", "nothing" if lakes_known else "not known"
    for part in store.archived:
        size = f"{count_text(part.segments, 'segment')}, {bytes_text(part.size_bytes)}"
        yield "in lake", f"{size}, in {part.lake}"
        states = ((part.ranges, ""), (part.expired, ": EXPIRED"), (part.in_part, ": in part NOT ARCHIVED"))
        for ranges, state in states:
            for log, lineage, start, end in ranges:
                yield "", f"{log} [{start}, {end}), lineage {lineage}{state}"
    if store.standing is None:
        yield "last run", "not known"
    else:
        yield "last run", "none" if store.last_run is None else _run_text(store.last_run)
        yield from _standing(store.standing)
    for look in store.quarantines:
        until = f"until {time_text(look.until_ms)}" if look.until_ms is not None else "no window known"
        text = look.error or f"{count_text(look.files, 'file')}, {bytes_text(look.size_bytes)}, {until}"
        yield "quarantine", f"run {look.run_key or 'unknown'}: {text}"


def _disk_lines(store: ManagedOverview) -> Iterator[tuple[str, str]]:
    if store.on_disk is None:
        yield "on disk", f"not seen: {store.not_seen}"
        return
    for at, span in enumerate(store.on_disk):
        size = f"{count_text(span.segments, 'segment')}, {bytes_text(span.size_bytes)}"
        yield "" if at else "on disk", f"{span.log} [{span.start_offset}, {span.end_offset}), {size}"


def _run_text(run: RunRow) -> str:
    text = f"{run.run_key}, {time_text(run.created_at_ms)}: {_outcome(run)}"
    if run.deleted_segments is None:
        return text
    return (
        f"{text}, {count_text(run.deleted_segments, 'segment')} deleted, {bytes_text(run.freed_bytes)} freed"
    )


def _outcome(run: RunRow) -> str:
    """Return how a run ended or, if it has no report, its last step."""
    return run.outcome or ("no cleanup" if run.state == RunState.OPEN else run.state)


def _standing(standing: Standing) -> Iterator[tuple[str, str]]:
    now_ms = clock_ms()
    if standing.verified is None:
        yield "verified", "never"
    else:
        coverage = standing.verified
        fault = f"; {count_text(coverage.faulty, 'receipt')} at fault" if coverage.faulty else ""
        receipts = f"{count_text(coverage.receipts or 0, 'receipt')} since {time_text(coverage.oldest_ms)}"
        yield "verified", f"{time_text(coverage.newest_ms)}; {receipts}{fault}"
    if standing.hold is not None:
        by = f"by run {standing.hold.run_key}, {time_text(standing.hold.at_ms)}"
        ends_ms = standing.hold.ends_at_ms
        if standing.hold.described:
            yield "held", f"left to its broker; {standing.hold.described}, {by}"
        elif not standing.hold.held:
            yield "held", f"no, {by}"
        elif ends_ms is not None and ends_ms <= now_ms:
            yield "held", f"no: ended {time_text(ends_ms)}, without a renewal; last {by}"
        else:
            yield "held", f"until {time_text(ends_ms)}, {by}" if ends_ms is not None else f"yes, {by}"
    if standing.worker is not None:
        yield "in work", f"by {standing.worker}, until {time_text(standing.worker_until_ms)} at most"
    for waiver in standing.waivers:
        text = f"{waiver.reason} ({waiver.person}, {time_text(waiver.at_ms)})"
        yield "waived", f"plan {waiver.plan_digest[:16]}: {text}"
    for loss in standing.losses:
        text = f"{loss.reason} ({loss.person}, {time_text(loss.at_ms)})"
        yield "loss", f"{loss.log} [{loss.start_offset}, {loss.end_offset}), lineage {loss.lineage}: {text}"


def print_runs(store_name: str, run_rows: Sequence[RunRow], reports: Mapping[str, str | None]) -> None:
    if not run_rows:
        say(f"Store {store_name}: no run has begun.")
        return
    print_table(
        f"Runs of {store_name}",
        ("run", "began", "took", "outcome", "why", "deleted#", "freed#", "report"),
        (
            (
                run.run_key,
                time_text(run.created_at_ms),
                _took(run),
                _outcome(run),
                ", ".join(run.causes) or "no cause",
                run.deleted_segments,
                bytes_text(run.freed_bytes),
                f"as {run.unchanged_since}" if run.unchanged_since else reports[run.run_key] or "",
            )
            for run in run_rows
        ),
    )


def _took(run: RunRow) -> str:
    if run.finished_at_ms is None:
        return ""
    took_ms = run.finished_at_ms - run.created_at_ms
    return duration_text(took_ms) if took_ms >= 1_000 else f"{took_ms} ms"
