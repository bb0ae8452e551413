"""clean: the whole job on one store, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from storage_engine.cli.lag import in_process_lag
from storage_engine.cli.options import json_option
from storage_engine.cli.output import print_json, progress, say
from storage_engine.cli.plan_output import plan_json, print_plan
from storage_engine.cli.policy_options import CLEAN
from storage_engine.cli.store_argument import takes_store
from storage_engine.exceptions import LogsRefusedError, StorageEngineError
from storage_engine.lake.archive import SegmentJob, archive_all
from storage_engine.lake.catalog import open_lake
from storage_engine.model.plan import PlanRequest
from storage_engine.model.receipt import Receipt
from storage_engine.retention import steps
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.finishing import finish, report_json
from storage_engine.retention.lag_table import lag_part, merge
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.preview import preview
from storage_engine.retention.quarantine.undo import undone_before
from storage_engine.retention.report import build_report
from storage_engine.retention.report_files import PAGE
from storage_engine.retention.report_text import report_text
from storage_engine.retention.unchanged import validated_since
from storage_engine.wording import bytes_text, count_text


@click.command()
@takes_store(second_lake=True, policy=CLEAN)
@click.option("--manual", is_flag=True, help="A person asks: expired segments go at any hour.")
@click.option(
    "--max-segments", type=click.IntRange(min=1), help="At most so many; default: deleteFileBatchMax."
)
@click.option("--dry-run", is_flag=True, help="Show the plan, change nothing.")
@click.option("--run-key", help="Go on with this run, which was interrupted; default: a new one.")
@json_option
def clean(
    managed: ManagedStore,
    manual: bool,
    max_segments: int | None,
    dry_run: bool,
    run_key: str | None,
    as_json: bool,
) -> int:
    """Archive, prove and delete what the rules let expire of STORE now, then clean up behind it.

    The order is: plan, lag, archive with proof, delete, clean consume queues and index, flush, validate.
    A run that was killed is finished by giving its --run-key again.
    """
    request = PlanRequest(manual=manual, max_segments=max_segments)
    if dry_run:
        seen = preview(managed, request)
        if as_json:
            print_json(plan_json(seen))
        else:
            print_plan(managed, seen)
        return 0
    return _run(managed, run_key or f"clean-{clock_ms()}", request, as_json)


def _run(managed: ManagedStore, run_key: str, request: PlanRequest, as_json: bool) -> int:
    tell = _silent if as_json else _tell
    # Bad input leaves no trace, not even a run; the plan looks at all of this once more.
    preview(managed, request)
    undone = undone_before(managed, run_key)
    if undone is not None:
        tell(
            f"run {run_key} was undone by {undone.person}: {count_text(undone.segments, 'segment')} came "
            "back, and nothing is done now. Without --run-key a new run begins, which deletes them again if "
            "the rules let it."
        )
        return _end(managed, run_key, as_json)
    tell(f"run {run_key}; if it is interrupted, --run-key {run_key} goes on with it")
    plan = steps.make_plan(managed, run_key, request)
    tell(
        f"plan: {count_text(plan.deletes, 'segment')} to delete, "
        f"{bytes_text(plan.delete_bytes)}; {plan.kept} to keep"
    )
    try:
        _archive_and_release(managed, run_key, tell)
    except (StorageEngineError, OSError):
        tell(f"stopped; the plan is {plan.digest}; the report: {finish(managed, run_key).report_text}")
        raise
    return _end(managed, run_key, as_json)


def _end(managed: ManagedStore, run_key: str, as_json: bool) -> int:
    """Write and show a run's report."""
    finished = finish(managed, run_key)
    report = build_report(managed, run_key)
    if as_json:
        error = {"type": LogsRefusedError.__name__, "message": finished.refused}
        print_json({**report_json(report), **({"error": error} if finished.refused else {})})
    else:
        say(report_text(report))
        if finished.unchanged_since is not None:
            say(f"Unchanged since {finished.unchanged_since}; its report is at:")
        say(f"Report   {finished.report_json}")
        say(f"Page     {Path(finished.report_json).with_name(PAGE)}")
        finished.raise_refused()
    return 0 if finished.ok else 1


def _archive_and_release(managed: ManagedStore, run_key: str, tell: Callable[[str], None]) -> None:
    from storage_engine.quality.validate import validate_store

    asked = steps.lag_question(managed, run_key)
    if asked.answered is None:
        tables = in_process_lag(managed, asked.segments)
        lag = merge(map(lag_part, tables), tables.source, tables.logs)
        steps.record_lag(managed, run_key, *lag, tables.logs)
    _archive(managed, run_key, tell)
    released = steps.release(managed, run_key)
    tell(
        f"release: {count_text(len(released.deleted), 'segment')} deleted, "
        f"{bytes_text(released.freed_bytes)} freed"
    )
    if released.refused:
        tell(f"release: {count_text(len(released.refused), 'log')} refused, as the report says")
    dependents = steps.clean_dependents(managed, run_key)
    tell(
        f"dependents: {count_text(sum(dependents.deleted.values()), 'file')} deleted, "
        f"{bytes_text(dependents.freed_bytes)} freed"
    )
    if managed.policy.undo_window_hours is not None and released.deleted:
        tell(
            f"quarantine: what went frees nothing for {managed.policy.undo_window_hours} h, or until space "
            f"is the cause of a run; storage-engine undo {run_key} brings it back"
        )
    flushed = steps.flush_checkpoint(managed, run_key)
    tell(f"flush: {flushed.flushed} files and directories")
    if not (released.deleted or any(dependents.deleted.values())):
        since = validated_since(managed, run_key)
        if since is not None:
            tell(f"validate: nothing was deleted, and nothing changed since {since} was validated")
            return
    tell("validate: Great Expectations …")
    tell(f"validate: {validate_store(managed, run_key).overall.value}")


def _archive(managed: ManagedStore, run_key: str, tell: Callable[[str], None]) -> None:
    def here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
        with progress("Archiving", sum(job.facts.size_bytes for job in jobs)) as advance:
            return archive_all(open_lake(jobs[0].lake), jobs, advance)

    done = steps.archive_planned(managed, run_key, here)
    for notice in done.notices:
        tell(f"archive: {notice}")
    if done.waiver is None:
        tell(f"archive: {count_text(len(done.receipts), 'segment')} archived and proven now")
    else:
        tell(f"archive: not done ({done.error})")
        tell(f"archive: {done.waiver.person} waived receipts for this plan: {done.waiver.reason}")


def _tell(line: str) -> None:
    say(line, err=True)


def _silent(line: str) -> None:
    pass
