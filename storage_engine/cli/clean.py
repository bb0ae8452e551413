"""clean: a whole cleanup of one store, once. undo: restore the files that a run deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from storage_engine import cycle
from storage_engine.cli.options.options import CLEAN, REPLICAS_STOPPED, check_store
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.lag import LagOfPlan, print_groups
from storage_engine.cli.output.next_line import say_cleanup, say_next
from storage_engine.cli.output.notify_option import AlarmsTold, alarms_told, notify_option
from storage_engine.cli.output.output import answer, error_json, print_json, say, say_notes
from storage_engine.cli.output.plan_output import ASSUMED, by_hand, plan_json, print_plan
from storage_engine.cli.output.progress import archive_with_progress, waiting
from storage_engine.cli.shell.shared_options import command, json_option, said_by, wants_json
from storage_engine.cli.shell.values import reason_text
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import person
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import UNCHANGED, bytes_text, count_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.plan import Plan, PlanRequest

if TYPE_CHECKING:
    from storage_engine.retention.monitor.notifying import Means
    from storage_engine.retention.plan.deciding import Decided
    from storage_engine.retention.quarantine.undo import UndoResult
    from storage_engine.retention.report.finishing import FinishResult
    from storage_engine.retention.report.report import Report
    from storage_engine.retention.steps import ArchiveResult, ReleaseResult
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(second_lake=True, policy=CLEAN)
@click.option("--manual", is_flag=True, help="Run by hand: expired segments are deleted at any hour.")
@click.option(
    "--max-segments",
    type=click.IntRange(min=1),
    help="Delete at most this many; default: deleteFileBatchMax.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the planned deletions and the consumers' losses; change nothing."
)
@click.option("--replicas-stopped", callback=reason_text, metavar="REASON", help=REPLICAS_STOPPED)
@click.option("--run-key", help="Continue this interrupted run; default: a new one.")
@notify_option
@json_option
def clean(
    managed: ManagedStore,
    manual: bool,
    max_segments: int | None,
    dry_run: bool,
    replicas_stopped: str | None,
    run_key: str | None,
    notify: tuple[Means, ...],
) -> int:
    """Archive, prove and delete the segments of STORE that its rules let expire now.

    The order is: plan, lag, archive with proof, delete segments, delete files that point into them, flush,
    validate. To finish a run that was killed, give its --run-key again.
    """
    from storage_engine.retention.plan.preview import preview
    from storage_engine.retention.store.brokers import refuse_cleanup

    refuse_cleanup(managed)
    request = PlanRequest(manual=manual, max_segments=max_segments, replicas_stopped=replicas_stopped or "")
    if dry_run:
        lag = LagOfPlan(managed)
        decided = preview(managed, request, hold_back=lag)
        return show_dry_run(
            "clean",
            managed,
            decided,
            lag,
            lambda: by_hand(managed, request, decided, hold_back=LagOfPlan(managed)),
        )
    with alarms_told(managed, "clean", notify) as tell_alarms:
        if run_key is None or not _is_begun(managed, run_key):
            # Bad input must leave no trace, not even a run. The run's own plan checks all of this again.
            preview(managed, request)
        return _run(managed, run_key or f"clean-{clock_ms()}", request, tell_alarms)


def _is_begun(managed: ManagedStore, run_key: str) -> bool:
    """Return whether the journal has a run with this key. Such a run continues with its own plan."""
    from storage_engine.journal.journal import Journal

    with suppress(StorageEngineError):
        journal = Journal(managed.journal_url, read_only=True)
        store = journal.find_store(managed.real_root, managed.host)
        return store is not None and journal.find_run(store.store_id, run_key) is not None
    return False


def show_dry_run(
    kind: str,
    managed: ManagedStore,
    decided: Decided,
    lag: LagOfPlan,
    find_manual_plan: Callable[[], Plan | None] = lambda: None,
) -> int:
    """Show what a run would do now, and which records consumers would lose. Change nothing.

    :param kind: as of :func:`print_json`.
    :param find_manual_plan: returns the plan of a run by hand, for :func:`print_plan`.
    """
    from storage_engine.brokers import find_broker

    def print_words(_: object) -> None:
        say("Dry run: this is what a run would do now.")
        print_plan(managed, decided, find_manual_plan())
        print_groups(lag.groups, lag.source, find_broker(managed.broker).words.queue)
        say("\nDry run: nothing was archived, deleted or changed.")

    consumers = {"groups": lag.groups, "source": lag.source}
    return answer(kind, {"dry_run": True, "plan": plan_json(managed, decided), **consumers}, print_words)


def _run(managed: ManagedStore, run_key: str, request: PlanRequest, tell_alarms: AlarmsTold) -> int:
    from storage_engine.retention.quarantine.undo import undone_before
    from storage_engine.retention.store.brokers import assumes_defaults
    from storage_engine.retention.store.context import opened

    with opened(managed) as store:
        cleanup = cycle.Cleanup(store, run_key, request, archive_with=archive_with_progress)
        undone = undone_before(store, run_key)
        if undone is not None:
            tell(
                f"run {run_key} was undone by {undone.person}: {count_text(undone.segments, 'segment')} came "
                "back, and nothing is done now. Without --run-key a new run begins, which deletes them again "
                "if the rules let it."
            )
            return _end(cleanup, tell_alarms)
        if assumes_defaults(managed):
            tell(ASSUMED)
        take_steps(cleanup)
        return _end(cleanup, tell_alarms)


def take_steps(cleanup: cycle.Cleanup) -> None:
    """Make or read a run's plan, and take every step after it. If a step fails, write the report."""
    key = cleanup.run_key
    tell(f"run {key}; if it is interrupted, --run-key {key} continues it")
    planned = cycle.plan(cleanup)
    tell(
        f"plan: {count_text(planned.deletes, 'segment')} to delete, "
        f"{bytes_text(planned.delete_bytes)}; {planned.kept} to keep"
    )
    try:
        _take_steps(cleanup)
    except Exception:
        tell(f"stopped; the plan is {planned.digest}; the report: {cycle.report(cleanup).report_text}")
        raise


def _take_steps(cleanup: cycle.Cleanup) -> None:
    """Take the steps between plan and report, and print the result of each."""
    from storage_engine.retention.report.finishing import validated_since

    for step in cycle.CLEANUP[1:-1]:
        if step is cycle.validate:
            since = validated_since(cleanup.store, cleanup.run_key)
            if since is not None:
                tell(f"validate: nothing was deleted, and nothing changed since {since} was validated")
                continue
            tell("validate: store and lake …")
        with nullcontext() if step is cycle.archive else waiting(step.__name__.replace("_", " ")):
            result = step(cleanup)
        for line in LINES[step](cleanup, result) if step in LINES else ():
            tell(line)


def _end(cleanup: cycle.Cleanup, tell_alarms: AlarmsTold) -> int:
    from storage_engine.retention.report.report import build_report
    from storage_engine.retention.store.managed_store import PAGE

    finished = cycle.report(cleanup)
    report = build_report(cleanup.store, cleanup.run_key)
    problems = (*finished.errors, finished.refused, finished.not_approved, *finished.wrong_lakes)
    page = Path(finished.report_json).with_name(PAGE).absolute()
    tell_alarms(*report.alarms, *filter(None, problems), link=page.as_uri())
    show_report("clean", cleanup, report, finished)
    if not wants_json():
        _say_next(cleanup, report)
    return 0 if finished.ok else 1


def show_report(
    kind: str, cleanup: cycle.Cleanup, report: Report, finished: FinishResult, **more: object
) -> None:
    """Print a run's report. A person is also told where the report is.

    :param kind: as of :func:`print_json`.
    :param more: further values for JSON.
    :raises StorageEngineError: a log was refused. JSON also contains the error.
    """
    if wants_json():
        print_json(kind, {**_report_json(cleanup, report, finished), **more})
        return
    _print_report(report, finished)
    if finished.refused:
        finished.raise_refused()


def _report_json(cleanup: cycle.Cleanup, report: Report, finished: FinishResult) -> dict[str, Any]:
    """Return a run's report as plain values, with the run's error if it has one."""
    from storage_engine.retention.report.finishing import report_json
    from storage_engine.retention.store.brokers import assumes_defaults
    from storage_engine.retention.store.context import managed_of

    values = {
        "dry_run": False,
        "assumes_defaults": assumes_defaults(managed_of(cleanup.store)),
        "report": report_json(report),
        "report_json": finished.report_json,
    }
    if (error := finished.ending_error) is None:
        return values
    return {**values, "error": error_json(error, said_by(click.get_current_context()))}


def _print_report(report: Report, finished: FinishResult) -> None:
    from storage_engine.retention.report.report_text import report_text
    from storage_engine.retention.store.managed_store import PAGE

    say(report_text(report))
    say_notes(finished.notices)
    if finished.unchanged_since is not None:
        say(f"Unchanged since {finished.unchanged_since}; its report is at:")
    say(f"Report   {finished.report_json}")
    say(f"Page     {Path(finished.report_json).with_name(PAGE)}")


def _say_next(cleanup: cycle.Cleanup, report: Report) -> None:
    from storage_engine.retention.report.report import Outcome
    from storage_engine.retention.store.context import managed_of

    if report.outcome is Outcome.DONE and report.freed_bytes:
        say_next(
            Command("verify"), "The deleted segments are in the lake, and can be checked there at any time"
        )
    elif report.outcome is Outcome.NOTHING_TO_DO:
        say_cleanup(managed_of(cleanup.store), report.request)
    elif report.outcome in (Outcome.BLOCKED, Outcome.FAILED, Outcome.UNFINISHED):
        say_next(Command("doctor"), "The report says why the other segments stay, and what to do")


def _archive_lines(cleanup: cycle.Cleanup, done: ArchiveResult) -> Iterator[str]:
    yield from (Text("archive: ", notice) for notice in done.notices)
    if done.waiver is None:
        yield f"archive: {count_text(len(done.receipts), 'segment')} archived and proven now"
        if done.hashed_again:
            yield f"archive: {count_text(len(done.hashed_again), 'segment')} {UNCHANGED}"
    else:
        yield Text("archive: not done (", done.error, ")")
        yield f"archive: {done.waiver.person} waived receipts for this plan: {done.waiver.reason}"


def _release_lines(cleanup: cycle.Cleanup, released: ReleaseResult) -> Iterator[str]:
    from storage_engine.brokers import find_broker
    from storage_engine.model.broker.broker_words import Aside
    from storage_engine.retention.store.context import managed_of

    deleted = count_text(len(released.deleted), "segment")
    yield f"release: {deleted} deleted, {bytes_text(released.freed_bytes)} freed"
    if released.kept_text:
        yield f"release: {released.kept_text}"
    if released.refused:
        yield f"release: {count_text(len(released.refused), 'log')} refused, as the report says"
    managed = managed_of(cleanup.store)
    window_hours = managed.policy.undo_window_hours
    if window_hours is not None and released.deleted:
        is_outside = find_broker(managed.broker).aside is Aside.OUTSIDE
        until = ", if run before its broker starts" if is_outside else ""
        yield Text(
            f"quarantine: the deleted files free no space for {window_hours} h, or until space is the cause "
            "of a run; ",
            Command("undo", quote(cleanup.run_key)),
            f" brings them back{until}",
        )


LINES: Mapping[Callable[..., object], Callable[[cycle.Cleanup, Any], Iterable[str]]] = {
    cycle.archive: _archive_lines,
    cycle.release: _release_lines,
    cycle.clean_dependents: lambda _, done: (
        f"dependents: {count_text(sum(done.deleted.values()), 'file')} deleted, "
        f"{bytes_text(done.freed_bytes)} freed",
    ),
    cycle.flush_checkpoint: lambda _, flushed: (f"flush: {flushed.flushed} files and directories",),
    cycle.validate: lambda _, result: (f"validate: {result.overall.value}",),
}
"""The result of a step, in words."""


def tell(line: str) -> None:
    """Print a line about a step, unless only JSON is wanted."""
    if not wants_json():
        say(line, err=True)


@command()
@click.argument("run")
@takes_store(second_lake=True, connection=True)
@json_option
def undo(run: str, managed: ManagedStore) -> int:
    """Restore the files that RUN deleted from STORE: segments, consume queue and index files.

    The run must have had --undo-window-hours, or undo_window_hours in its connection, and its window must not
    be over. The broker must be stopped, and a Kafka broker must not have run since. Of several runs, undo the
    newest first. The command may be killed at any instant and run again.
    """
    from storage_engine.retention.quarantine.undo import undo as bring_back
    from storage_engine.retention.quarantine.undo import undone_before
    from storage_engine.retention.report.finishing import finish

    if not managed.is_live:
        check_store(managed)
    before = None if managed.is_live else undone_before(managed, run)
    done = before or bring_back(managed, run, person())
    finished = finish(managed, run)
    if wants_json():
        print_json("undo", {**to_jsonable(done), "report_json": finished.report_json})
        return 0
    files = f"{count_text(done.segments, 'segment')} and {count_text(done.dependents, 'file')}"
    if before is not None:
        say(
            f"Run {run} was undone before, and nothing was done now. Then {files} that point into them "
            f"came back, {bytes_text(done.size_bytes)}."
        )
        say(f"Report   {finished.report_json}")
        return 0
    say(f"{files} that point into them are back, {bytes_text(done.size_bytes)}; {_begin_text(done)}.")
    say_notes(done.notices)
    say(
        "The next run deletes them again, if its rules allow that: stop its schedule, or set "
        "minimum_retention_hours."
    )
    say(f"Report   {finished.report_json}")
    return 0


def _begin_text(done: UndoResult) -> str:
    if len(done.min_offsets) > 1:
        return f"{count_text(len(done.min_offsets), 'log')} begin as before"
    return f"the log begins at {next(iter(done.min_offsets.values()), done.min_offset)}"
