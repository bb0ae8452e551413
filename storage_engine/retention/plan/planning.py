"""Planning: the one decision on which segments a run deletes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable, to_recorded
from storage_engine.exceptions import StoreNotFoundError, UnsupportedLayoutError
from storage_engine.journal.journal import Run, Step, StoreRecord
from storage_engine.lake.catalog.place import check_any_catalog_file
from storage_engine.model.plan import Plan, PlanRequest, Starter, of_only_log
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.archive.gone import is_away
from storage_engine.retention.hold.holding import keep_held
from storage_engine.retention.lag.consumer_lag import UNREAD, planned_unread
from storage_engine.retention.lag.unread_losses import loss_count, unread_lines
from storage_engine.retention.plan.deciding import check_quarantine, decide
from storage_engine.retention.proof.approvals import record_starter
from storage_engine.retention.proof.history import releases
from storage_engine.retention.proof.proofs import read_store_permits, replaced_notices, unarchived_notices
from storage_engine.retention.quarantine.emptying import tend_quarantines
from storage_engine.retention.quarantine.places import unknown_notices
from storage_engine.retention.quarantine.records import known_directories
from storage_engine.retention.ranges.missing_logs import remember_logs
from storage_engine.retention.shield import asked_notices
from storage_engine.retention.store.brokers import refuse_cleanup, refuse_in_use
from storage_engine.retention.store.context import AnyStore, Context, approved_plan, managed_of, open_context
from storage_engine.retention.store.identity import move_notice


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The plan in short; :func:`recorded_plan` returns the whole plan.

    :param deletes: number of segments to delete.
    :param delete_offsets: their base offsets, oldest first; empty if the plan has several logs.
    :param new_min_offset: where the log will begin, or None if the plan has several logs.
    :param unread_messages: number of messages that some consumer loses, as far as it is known.
    :param unread: lines on consumers' losses, with the command that exports the messages.
    """

    run_key: str
    store_id: str
    lineage: int
    digest: str
    causes: tuple[str, ...]
    deletes: int
    delete_offsets: tuple[int, ...]
    delete_bytes: int
    kept: int
    new_min_offset: int | None
    notices: tuple[str, ...]
    unread_messages: int = 0
    unread: tuple[str, ...] = ()


def make_plan(
    store: AnyStore,
    run_key: str,
    request: PlanRequest | None = None,
    now_ms: int | None = None,
    *,
    starter: Starter | None = None,
) -> PlanResult:
    """Plan a run. A run that already has a plan keeps it. If a broker runs, the store is held first.

    :param run_key: names the run for all its steps: Airflow's run id, or any other unique text.
    :param now_ms: the moment to decide for; None for this machine's clock.
    :param starter: the person who begins the run; None for the account of this process.
    :raises RunStateError: the run was begun with another request.
    :raises BadInputError: the store is only archived or can't be planned; files that point into its segments
        couldn't be cleaned up; or its files can't be set aside, although the policy requires that.
    :raises StoreBusyError: another run, or a broker that wasn't named, has the store.
    :raises GateRefusedError: the store of a running broker can't be held; the error says why, and what to do.
    :raises LakeMissingError: no lake of the store exists, so no planned segment could be archived.
    """
    managed = managed_of(store)
    refuse_cleanup(managed)
    if managed.policy.archive is ArchiveMode.REQUIRED:
        check_any_catalog_file(managed.lakes)
    context = open_context(store)
    if (limit := context.broker.limit) is not None:
        raise UnsupportedLayoutError(limit.why)
    request = request or PlanRequest()
    run = context.journal.begin_run(context.record.store_id, run_key, request)
    if run.plan is None:
        now_ms = clock_ms() if now_ms is None else now_ms
        started_ns = time.monotonic_ns()
        with context.errors(run, Step.PLAN):
            if not request.dry_run:
                refuse_in_use(context.store, context.broker, partial(context.journal.is_leased, run.store_id))
            moved = move_notice(context.journal, context.record)
            held = keep_held(context, run, now_ms)
            emptied = tend_quarantines(context, request, now_ms)
            decided = decide(
                context.broker, request, now_ms, kind=context.store.broker, policy=context.store.policy
            )
            _refuse_missing_directories(context, decided.snapshot)
            decided_from: dict[str, Any] = {
                "levels": to_jsonable(decided.disks),
                "crashed": decided.snapshot.crashed,
                "checkpoint": dict(decided.checkpoint),
                "owed": to_recorded(decided.pending),
                UNREAD: to_recorded(decided.unread),
            }
            check_quarantine(context.store, context.broker.data_paths, decided)
            remember_logs(context, decided.snapshot)
            shielded = asked_notices(context, decided.plan.to_delete)
            permits = read_store_permits(context.store, context.journal, context.record)
            shielded = (*unarchived_notices(permits, decided.plan.to_delete), *shielded)
            replaced = replaced_notices(context.store.real_root)
            directories = known_directories(context.journal, run.store_id)
            aside = unknown_notices(context.store, context.broker.data_paths, directories)
            notices = (*moved, *held, *emptied, *decided.plan.notices, *shielded, *replaced, *aside)
            plan = replace(add_identity(decided.plan, context.record), notices=notices)
            record_starter(context, run, starter)
            decided_from["took_ms"] = (time.monotonic_ns() - started_ns) // 1_000_000
            run = context.journal.record_plan(run, plan, decided_from)
            context.sample(decided.snapshot, decided.plan.decided_at_ms)
    return _result(context, run)


def add_identity(plan: Plan, record: StoreRecord) -> Plan:
    """Return a plan with its store's identity, as a run records it."""
    lineages = {log: lineage for log, lineage in record.log_lineages.items() if log in plan.log_names}
    return replace(plan, store_id=record.store_id, lineage=record.lineage, log_lineages=lineages)


def _refuse_missing_directories(context: Context, snapshot: StoreSnapshot) -> None:
    """Make sure that no directory of a log is missing: without it the log would seem to begin elsewhere.

    Stores whose logs have identities aren't checked here: each of their directories has a stamp.

    :raises StoreNotFoundError: a directory that had segments at the last plan is now on another disk.
    """
    last = context.journal.last_result(context.record.store_id, Step.PLAN)
    if last is None or context.broker.identities is not None:
        return
    run = context.journal.run(context.record.store_id, last.run_key)
    done, _ = releases(context.journal.events(run, Step.RELEASE))
    deleted = {release.segment.id for release in done.values()}
    decisions = () if run.plan is None else run.plan.decisions
    files = [decision.segment.facts for decision in decisions if decision.segment.id not in deleted]
    devices = {Path(facts.path).parent: facts.device for facts in files}
    present = {Path(segment.facts.path).parent for log in snapshot.logs for segment in log.segments}
    paths = context.broker.data_paths
    for directory, device in devices.items():
        if directory not in present and directory in paths and is_away(directory, device):
            raise StoreNotFoundError(
                f"{directory}: expected the disk with the segments that the plan of run {last.run_key!r} "
                f"knew, device {device}, found another device and no segment. Without these segments the "
                "log's begin or end would be wrong. Nothing was changed. Mount the disk; if its segments "
                "are gone for good, remove the directory from the broker's settings."
            )


def recorded_plan(store: AnyStore, run_key: str) -> Plan:
    """Return the whole plan of a run.

    :raises RunStateError: there is no such run, or it has no plan.
    """
    return approved_plan(open_context(store).run(run_key))


def is_dry_run(store: AnyStore, run_key: str) -> bool:
    """Return whether a run only plans, measures lag and reports.

    :raises RunStateError: there is no such run.
    """
    return open_context(store).run(run_key).request.dry_run


def _result(context: Context, run: Run) -> PlanResult:
    plan = approved_plan(run)
    unread = planned_unread(context, run)
    to_delete = plan.to_delete
    return PlanResult(
        run_key=run.run_key,
        store_id=run.store_id,
        lineage=context.record.lineage,
        digest=plan.digest,
        causes=tuple(dict.fromkeys(trigger.cause.value for trigger in plan.triggers)),
        deletes=len(to_delete),
        delete_offsets=tuple(segment.base_offset for segment in to_delete if len(plan.logs) == 1),
        delete_bytes=sum(segment.disk_bytes for segment in to_delete),
        kept=sum(not decision.deletes for decision in plan.decisions),
        new_min_offset=of_only_log({log.log: log.new_min_offset for log in plan.logs}),
        notices=plan.notices,
        unread_messages=loss_count(unread.rows),
        unread=unread_lines(context, unread, done=False),
    )
