"""kafka: commands that exist only for nodes of Kafka."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from storage_engine import cycle
from storage_engine.cli.clean import show_dry_run, show_report, take_steps
from storage_engine.cli.options.options import REPLICAS_STOPPED
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.lag import LagOfPlan
from storage_engine.cli.output.next_line import say_next
from storage_engine.cli.output.output import print_json, say, say_notes
from storage_engine.cli.output.plan_output import print_plan
from storage_engine.cli.output.progress import archive_with_progress, waiting
from storage_engine.cli.shell.shared_options import Group, command, json_option, wants_json
from storage_engine.cli.shell.values import key_value_pairs, reason_text, size_bytes
from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import HoldMemory
from storage_engine.model.plan import PlanRequest, wanted_bytes
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.settings.store_settings import BROKER_DELETES

if TYPE_CHECKING:
    from storage_engine.model.broker.broker_store import BrokerStore
    from storage_engine.retention.steps import LagQuestion, TaskResult
    from storage_engine.retention.store.managed_store import ManagedStore
    from storage_engine.spark.consumer_lag import ConsumerLagResult


_POLICY = ("lag_policy", "minimum_retention_hours", "approval", "archive_bytes_per_second")


@command("make-room")
@takes_store(second_lake=True, policy=_POLICY)
@click.option(
    "--bytes",
    "free_bytes",
    metavar="SIZE",
    callback=size_bytes,
    help="Stop once each of the node's disks has this much free space, such as 20GiB.",
)
@click.option(
    "--free-percent",
    type=click.IntRange(1, 99),
    help="Stop once this share of each of the node's disks is free. Default: delete all that may be deleted.",
)
@click.option(
    "--force",
    callback=reason_text,
    metavar="REASON",
    help="Also delete unexpired segments, until the requested space is free; REASON is recorded.",
)
@click.option("--replicas-stopped", callback=reason_text, metavar="REASON", help=REPLICAS_STOPPED)
@click.option(
    "--dry-run", is_flag=True, help="Show the planned deletions and the consumers' losses; change nothing."
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--run-key", help="Continue this interrupted run; default: a new one.")
@json_option
def make_room(
    managed: ManagedStore,
    free_bytes: int | None,
    free_percent: int | None,
    force: str | None,
    replicas_stopped: str | None,
    dry_run: bool,
    yes: bool,
    run_key: str | None,
) -> int:
    """Free space on the disks of STORE, a stopped node, so that its broker starts again.

    Only segments that are proven in the lake are deleted. If another node leads a log, its leader deletes the
    records first, through the cluster at --broker. Then the file is deleted here. Nothing is written to the
    node's disks, so the command works when they are full.

    Without --broker, segments are deleted only if no other node has a replica, or you say that such nodes are
    stopped.
    """
    if force and free_bytes is None and free_percent is None:
        raise click.UsageError("--force: expected --bytes or --free-percent with it, found neither.")
    request = PlanRequest(
        forced=bool(force),
        reason=force or "",
        target_used_percent=None if free_percent is None else 100 - free_percent,
        replicas_stopped=replicas_stopped or "",
        free_bytes=free_bytes,
    )
    from storage_engine.model.broker.broker_store import check_manageable
    from storage_engine.retention.plan.deciding import decide
    from storage_engine.retention.store.brokers import open_to_make_room

    with closing(open_to_make_room(managed, _memory(managed))) as store:
        check_manageable(store)
        _check_place(managed, store)
        with waiting("Asking the cluster" if managed.is_live else "Looking at the node"):
            lag = LagOfPlan(_for_readers(managed))
            hold_back = lag if dry_run or managed.policy.lag_policy is LagPolicy.BLOCK else None
            kind, policy = managed.broker, managed.policy
            decided = decide(store, request, clock_ms(), kind=kind, policy=policy, hold_back=hold_back)
        if dry_run:
            return show_dry_run("kafka make-room", managed, decided, lag)
        if not wants_json():
            print_plan(managed, decided, None)
        if decided.plan.to_delete and not yes:
            _confirm()
        return _run(managed, store, run_key or f"make-room-{clock_ms()}", request)


def _memory(managed: ManagedStore) -> HoldMemory | None:
    """Return the journal's memory of the store's hold; None if no journal knows the store.

    No journal is made.
    """
    from storage_engine.journal.journal import Journal, hold_memory
    from storage_engine.journal.tables.database import missing_sqlite_file

    if missing_sqlite_file(managed.journal_url):
        return None
    journal = Journal(managed.journal_url)
    record = journal.find_store(managed.real_root, managed.host)
    return None if record is None else hold_memory(journal, record.store_id)


def _check_place(managed: ManagedStore, store: BrokerStore) -> None:
    """Make sure that none of our own files is on the disks whose space is to be freed.

    :raises BadInputError: lake, journal or reports are on one of these disks.
    """
    from storage_engine.retention.store.context import shared_disks

    if managed.live is not None and managed.live.allow_same_disk:
        return
    if shared := shared_disks(managed, store.data_paths):
        listed = ", ".join(f"{name} ({path})" for name, path in shared)
        raise BadInputError(
            f"{managed.root}: expected no files of Storage Engine on the node's disks, whose space is to be "
            f"freed, found these on them: {listed}. Nothing was changed. Name a lake on another disk."
        )


def _for_readers(managed: ManagedStore) -> ManagedStore:
    """Return the store. Its cluster, if it has one, is only asked for the groups' positions."""
    if managed.live is None:
        return managed
    return replace(managed, live=replace(managed.live, deletes=BROKER_DELETES))


def _confirm() -> None:
    if wants_json() or not sys.stdin.isatty():
        raise click.UsageError("Nothing was changed. Look at the plan, with --dry-run; --yes carries it out.")
    if not click.confirm("\nArchive these segments with proof, and then delete them?"):
        raise click.Abort


def _run(managed: ManagedStore, store: BrokerStore, run_key: str, request: PlanRequest) -> int:
    from storage_engine.retention.report.report import build_report
    from storage_engine.retention.store.context import opened

    # The node itself is stopped, and is changed while its broker's locks are held.
    with opened(replace(managed, live=None), store) as context:
        before = tuple(map(DiskUsage.of, store.data_paths))
        cleanup = cycle.Cleanup(
            context,
            run_key,
            request,
            measure_lag=partial(_lag, _for_readers(managed)),
            archive_with=archive_with_progress,
        )
        take_steps(cleanup)
        finished = cycle.report(cleanup)
        report = build_report(context, run_key)
        room = tuple(
            DiskRoom(then.path, then.usable_bytes, now.usable_bytes, wanted_bytes(now, request))
            for then, now in zip(before, map(DiskUsage.of, store.data_paths), strict=True)
        )
        is_enough = _is_enough(room, request, deleted=bool(report.freed_bytes))
        show_report("kafka make-room", cleanup, report, finished, room=room)
        if not wants_json():
            _say_room(room, is_enough=is_enough, deleted=bool(report.freed_bytes))
        return 0 if finished.ok and is_enough else 1


def _lag(managed: ManagedStore, cleanup: cycle.Cleanup, question: LagQuestion) -> ConsumerLagResult:
    from storage_engine.spark.consumer_lag import lag_here

    return lag_here(managed, question.segments, question.decided_at_ms)


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """Free bytes of a disk, before and after a run.

    :param free_bytes_before: free bytes before the run, and ``free_bytes`` after it; None if not known.
    :param wanted_bytes: bytes that should be free; None if the disk's size isn't known.
    """

    path: str
    free_bytes_before: int | None
    free_bytes: int | None
    wanted_bytes: int | None

    @property
    def is_enough(self) -> bool:
        if self.free_bytes is None or self.wanted_bytes is None:
            return False
        return self.free_bytes >= self.wanted_bytes


def _is_enough(room: Sequence[DiskRoom], request: PlanRequest, *, deleted: bool) -> bool:
    """Return whether the requested space is free. If no space was requested, return whether any was freed."""
    is_bounded = request.free_bytes is not None or request.target_used_percent is not None
    return all(disk.is_enough for disk in room) and (is_bounded or deleted)


def _say_room(room: Sequence[DiskRoom], *, is_enough: bool, deleted: bool) -> None:
    say()
    for disk in room:
        target = f", {bytes_text(disk.wanted_bytes)} were asked for" if disk.wanted_bytes else ""
        free = "unknown" if disk.free_bytes is None else bytes_text(disk.free_bytes)
        say(f"Disk {disk.path}: {free} free, {bytes_text(disk.free_bytes_before)} before{target}")
    if is_enough:
        say_next(None, "start the node's broker. Its logs keep their new starts, and follow their leaders")
        return
    outcome = "the requested space isn't free" if deleted else "nothing was deleted"
    say_next(
        None,
        f"{outcome}, and the report says why each segment stays. With --bytes or --free-percent, --force "
        "REASON also deletes segments that have not expired",
    )


@command("run-tasks")
@takes_store(second_lake=True)
@click.option("--replicas-stopped", callback=reason_text, metavar="REASON", help=REPLICAS_STOPPED)
@click.option(
    "--deleted-topic",
    "deleted_topics",
    metavar="TOPIC=REASON",
    multiple=True,
    callback=key_value_pairs,
    help=(
        "Also remove files of this deleted topic that no lake has; REASON says how you know that it is "
        "deleted; repeatable."
    ),
)
@click.option("--run-key", help="Continue this interrupted run; default: a new one.")
@json_option
def run_tasks(
    managed: ManagedStore, replicas_stopped: str | None, deleted_topics: dict[str, str], run_key: str | None
) -> int:
    """Do the five background tasks of STORE's stopped broker. If the broker runs, show their state.

    cleanupLogs archives, proves and deletes as storage-engine clean does, and finishes deletions that the
    broker had begun. deleteLogs removes the files of deleted topics. The other three are verified. Exit code
    1: a task is overdue.
    """
    from storage_engine.retention.monitor.broker_tasks import check_topic_words
    from storage_engine.retention.steps import run_broker_tasks
    from storage_engine.retention.store.brokers import may_clean_now
    from storage_engine.retention.store.context import opened

    run_key = run_key or f"tasks-{clock_ms()}"
    with opened(managed) as store:
        notices = check_topic_words(store, run_key, deleted_topics)
        done, ok = "", True
        if may_clean_now(managed) and not managed.is_live:
            with waiting("cleanupLogs"):
                request = PlanRequest(replicas_stopped=replicas_stopped or "")
                done, ok = _clean(cycle.Cleanup(store, run_key, request))
        with waiting("tasks"):
            results = run_broker_tasks(store, run_key, words=deleted_topics)
    if wants_json():
        rows = [{**to_jsonable(result), "text": result.text} for result in results]
        print_json(
            "kafka run-tasks", {"run_key": run_key, "cleanup": done, "tasks": rows, "notices": notices}
        )
    else:
        _say_tasks(results, done)
        say_notes(notices)
    return 1 if not ok or any(result.alarms for result in results) else 0


def _clean(cleanup: cycle.Cleanup) -> tuple[str, bool]:
    """Take every step of a cleanup. Return its result as a clause, and whether it ended well."""
    for step in cycle.CLEANUP[:-1]:
        step(cleanup)
    finished = cycle.report(cleanup)
    finished.raise_refused()
    released = cycle.release(cleanup)
    deleted = count_text(len(released.deleted), "segment")
    return f"{deleted} deleted, {bytes_text(released.freed_bytes)} freed", finished.ok


def _say_tasks(results: tuple[TaskResult, ...], done: str) -> None:
    for number, result in enumerate(results):
        say(result.text.replace(": ", f": {done}; ", 1) if done and not number else result.text)
    if any(result.alarms for result in results):
        say_next(Command("doctor"), "The report says which tasks are overdue, and what to do")


@click.group(cls=Group)
def kafka() -> None:
    """Work on nodes of Kafka."""


kafka.add_command(make_room)
kafka.add_command(run_tasks)
