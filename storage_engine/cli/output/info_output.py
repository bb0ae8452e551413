"""How ``info`` and ``runs`` print, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from storage_engine.cli.output.output import print_table, say
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import is_this_host
from storage_engine.core.wording import bytes_text, count_text, duration_text, time_text
from storage_engine.journal.reading.answers import RunRow, Standing
from storage_engine.journal.records import RunState

if TYPE_CHECKING:
    from storage_engine.lake.move.describing import LakeInfo
    from storage_engine.retention.doctor.overview import ManagedOverview, Overview


def print_overview(found: Overview, stores: Sequence[ManagedOverview]) -> None:
    """Print journal and lakes in a line each, then each store with what is known of it."""
    say(f"Journal {found.journal}" if not found.journal_missing else f"Journal: {found.journal_missing}")
    for lake in found.lakes:
        say(_lake(lake))
    if not stores and not found.is_known:
        say("Which stores are managed isn't known: a lake can't be read, or is refused.")
    elif not stores:
        say("No store is managed: nothing was archived yet, and no run has begun.")
    for store in stores:
        print_table(
            f"Store {store.name}",
            ("what", "value"),
            _facts(store, found.is_known),
        )


def _lake(lake: LakeInfo) -> str:
    size = bytes_text(sum(table.file_bytes for table in lake.tables))
    kind = f"a copy of lake {lake.copy_of}, read-only, {size}" if lake.copy_of else size
    return f"Lake    {lake.location}: {f'refused: {lake.refused}' if lake.refused else kind}"


def _facts(store: ManagedOverview, lakes_known: bool) -> Iterator[tuple[str, str]]:
    yield "id", store.store_id
    if store.path is not None:
        yield "path", store.path
        here = " (this one)" if is_this_host(store.host) else ""
        yield "host", f"{store.host}{here}" if store.host else "not known"
    yield "broker", store.broker or "not known"
    yield from _on_disk(store)
    for note in store.filled:
        yield "with filler", note
    if not store.archived:
        yield "in lake", "nothing" if lakes_known else "not known"
    for part in store.archived:
        yield (
            "in lake",
            f"{count_text(part.segments, 'segment')}, {bytes_text(part.size_bytes)}, in {part.lake}",
        )
        for log, lineage, start, end in part.ranges:
            yield "", f"{log} [{start}, {end}), lineage {lineage}"
        for log, lineage, start, end in part.expired:
            yield "", f"{log} [{start}, {end}), lineage {lineage}: EXPIRED"
        for log, lineage, start, end in part.in_part:
            yield "", f"{log} [{start}, {end}), lineage {lineage}: in part NOT ARCHIVED"
    if store.standing is None:
        yield "last run", "not known"
    else:
        yield "last run", "none" if store.last_run is None else _run(store.last_run)
    if store.standing is not None:
        yield from _standing(store.standing)
    for one in store.quarantines:
        until = f"until {time_text(one.until_ms)}" if one.until_ms is not None else "no window known"
        what = one.error or f"{count_text(one.files, 'file')}, {bytes_text(one.size_bytes)}, {until}"
        yield "quarantine", f"run {one.run_key or 'unknown'}: {what}"


def _on_disk(store: ManagedOverview) -> Iterator[tuple[str, str]]:
    if store.on_disk is None:
        yield "on disk", f"not seen: {store.not_seen}"
        return
    for at, one in enumerate(store.on_disk):
        where = f"{one.log} [{one.start_offset}, {one.end_offset})"
        yield (
            "" if at else "on disk",
            f"{where}, {count_text(one.segments, 'segment')}, {bytes_text(one.size_bytes)}",
        )


def _run(run: RunRow) -> str:
    went = "" if run.deleted_segments is None else f", {_went(run)}"
    return f"{run.run_key}, {time_text(run.created_at_ms)}: {_outcome(run)}{went}"


def _outcome(run: RunRow) -> str:
    """Return how a run ended; of one without a report, how far it came."""
    return run.outcome or ("no cleanup" if run.state == RunState.OPEN else run.state)


def _went(run: RunRow) -> str:
    return f"{count_text(run.deleted_segments or 0, 'segment')} deleted, {bytes_text(run.freed_bytes)} freed"


def _standing(found: Standing) -> Iterator[tuple[str, str]]:
    now_ms = clock_ms()
    if found.verified is None:
        yield "verified", "never"
    else:
        seen = found.verified
        fault = f"; {count_text(seen.faulty, 'receipt')} at fault" if seen.faulty else ""
        receipts = count_text(seen.receipts or 0, "receipt")
        yield "verified", f"{time_text(seen.newest_ms)}; {receipts} since {time_text(seen.oldest_ms)}{fault}"
    if found.hold is not None:
        by = f"by run {found.hold.run_key}, {time_text(found.hold.at_ms)}"
        ends_ms = found.hold.ends_at_ms
        if found.hold.described:
            yield "held", f"left to its broker; {found.hold.described}, {by}"
        elif not found.hold.held:
            yield "held", f"no, {by}"
        elif ends_ms is not None and ends_ms <= now_ms:
            yield "held", f"no: ended {time_text(ends_ms)}, as nobody renewed it; last {by}"
        else:
            yield "held", f"until {time_text(ends_ms)}, {by}" if ends_ms is not None else f"yes, {by}"
    if found.worker is not None:
        yield "in work", f"by {found.worker}, until {time_text(found.worker_until_ms)} at most"
    for waiver in found.waivers:
        said = f"{waiver.reason} ({waiver.person}, {time_text(waiver.at_ms)})"
        yield "waived", f"plan {waiver.plan_digest[:16]}: {said}"
    for loss in found.losses:
        said = f"{loss.reason} ({loss.person}, {time_text(loss.at_ms)})"
        yield "loss", f"{loss.log} [{loss.start_offset}, {loss.end_offset}), lineage {loss.lineage}: {said}"


def print_runs(called: str, found: Sequence[RunRow], reports: Mapping[str, str | None]) -> None:
    """Print a store's runs, a row each.

    :param called: what the store is called.
    """
    if not found:
        say(f"Store {called}: no run has begun.")
        return
    print_table(
        f"Runs of {called}",
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
            for run in found
        ),
    )


def _took(run: RunRow) -> str:
    if run.finished_at_ms is None:
        return ""
    took_ms = run.finished_at_ms - run.created_at_ms
    return duration_text(took_ms) if took_ms >= 1_000 else f"{took_ms} ms"
