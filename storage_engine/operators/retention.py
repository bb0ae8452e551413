"""Operators for the steps of a run. Each is idempotent: work that the journal knows is not repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    XCOM_RETURN_KEY,
    AirflowFailException,
    AirflowSkipException,
    SkipMixin,
)

from storage_engine import cycle, task_log
from storage_engine.assets import segments_deleted
from storage_engine.commands import Text, join_texts
from storage_engine.core.jsonable import from_jsonable, jsonable_fields, to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError, NotApprovedError, RunStateError
from storage_engine.hooks.notifiers import AlarmException
from storage_engine.model.plan import PlanRequest
from storage_engine.operators.base import StoreOperator, run_key, starter
from storage_engine.operators.lineage import Lineage, release_lineage

if TYPE_CHECKING:
    from airflow.sdk import Context


Result = dict[str, Any]


class StorageEnginePlanOperator(StoreOperator, SkipMixin):
    """Decides which segments are deleted and which stay, each with its reason, and records the plan.

    If no segment is to be deleted, the tasks directly downstream are skipped. A report task with the trigger
    rule ``all_done`` still runs. In a dry run, the task for consumer lag follows and skips the rest.

    :param request: a request beyond the store's own settings: a PlanRequest, its fields as a mapping, or its
        fields as JSON text (templated), or None for no request.
    """

    template_fields: Sequence[str] = ("storage_engine_conn_id", "request")

    def __init__(
        self, *, request: PlanRequest | Mapping[str, Any] | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        # Plain values, since templates are rendered inside of mappings but not of dataclasses.
        self.request = to_jsonable(request) if isinstance(request, PlanRequest) else request

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.plan.preview import places_lines
        from storage_engine.retention.steps import recorded_plan

        request = _request(self.request)
        with self.cleanup(context, request, starter=starter(context)) as cleanup:
            planned = cycle.plan(cleanup)
            plan = recorded_plan(cleanup.store, cleanup.run_key)
        try:
            self.say(places_lines(plan, self.store, self.store_hook.spark))
        except BadInputError as error:
            # The plan is valid. A job that needs this Spark fails with the same error.
            self.warn(f"it isn't known where the segments will be archived: {error}")
        self.say(task_log.plan_lines(plan, dry_run=request.dry_run))
        self.warn(*plan.notices, *planned.unread)
        result: Result = {**to_jsonable(planned), "dry_run": request.dry_run}
        if not planned.deletes:
            # Skipping ends the task here, before its result would be pushed.
            context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=result)
            self.skip(context["ti"], self.get_direct_relatives(upstream=False))
        return result


class StorageEngineReleaseOperator(StoreOperator):
    """Deletes the planned segments that pass the gate, oldest first.

    The task succeeds if it refuses some logs but not all. The other logs get their remaining steps. Then the
    report fails and names the refused logs.

    With an asset alias as outlet, it sends an event on the deleted segments (:mod:`storage_engine.assets`).
    """

    def lineage_so_far(self, cleanup: cycle.Cleanup) -> Lineage:
        from storage_engine.retention.report.report import released_segments

        return release_lineage(self.store, released_segments(cleanup.store, cleanup.run_key))

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.lag.unread_losses import loss_count, unread_lines
        from storage_engine.retention.proof.refusing import log_text
        from storage_engine.retention.report.report import deleted_counts

        with self.cleanup(context) as cleanup:
            try:
                result = cycle.release(cleanup)
            except NotApprovedError as error:
                # Another try would find no other answer.
                raise AirflowFailException(Text(error)) from error
            counts = deleted_counts(cleanup.store, cleanup.run_key) if self.tells else None
        self.keep_lineage(lambda: release_lineage(self.store, result.deleted))
        if counts is not None:
            self.emit(context, segments_deleted(self.storage_engine_conn_id), counts)
        unread = unread_lines(self.store, result.unread, done=True)
        self.say(task_log.release_lines(result))
        self.warn(*map(log_text, result.refused), *unread, *result.notices, result.kept_text)
        return {
            "deleted_offsets": [segment.base_offset for segment in result.deleted],
            "kept_offsets": [kept.base_offset for kept in result.kept],
            "freed_bytes": result.freed_bytes,
            "new_min_offset": result.new_min_offset,
            "unread_messages": loss_count(result.unread.rows),
            "unread": list(unread),
            "refused_logs": len(result.refused),
        }


class StorageEngineCleanDependentsOperator(StoreOperator):
    """Deletes the consume queue and index files that point only at deleted segments."""

    def do_step(self, context: Context) -> Result:
        with self.cleanup(context) as cleanup:
            cleaned = cycle.clean_dependents(cleanup)
        self.say(task_log.dependents_lines(cleaned))
        self.warn(*cleaned.notices)
        return jsonable_fields(cleaned)


class StorageEngineFlushCheckpointOperator(StoreOperator):
    """Flushes the files that the cleanup has left. It reads the broker's checkpoint, and never writes it.

    Beside a running broker, it flushes nothing, but measures and reports how far the broker is behind.
    """

    def do_step(self, context: Context) -> Result:
        with self.cleanup(context) as cleanup:
            result = cycle.flush_checkpoint(cleanup)
        self.say(task_log.checkpoint_lines(result))
        self.warn(*result.notices, *result.alarms)
        return jsonable_fields(result)


class StorageEngineBrokerTaskOperator(StoreOperator):
    """Looks after one of the broker's background tasks. Fails if that background task is behind.

    Beside a running broker, this operator only looks. In the store of a stopped broker, it removes files that
    the broker had begun to remove, if a lake has the same bytes. Without archiving, the files stay.

    :param broker_task: the broker's name of the task.
    """

    ui_color = "#f5efd9"

    def __init__(self, *, broker_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.broker_task = broker_task

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.steps import run_broker_tasks
        from storage_engine.retention.store.context import opened

        with opened(self.store) as store:
            tasks = run_broker_tasks(store, run_key(context), self.broker_task)
        if not tasks:
            raise AirflowSkipException(f"{self.storage_engine_conn_id}: its broker has no {self.broker_task}")
        (task,) = tasks
        self.say([task.text])
        self.warn(*task.notices)
        return self.fail_on(task.alarms, jsonable_fields(task), context)


class StorageEngineMonitorOperator(StoreOperator):
    """Looks after a store, and fails if a person should know something at once.

    For a running broker, it renews the hold on the store, takes samples, and measures how far the broker is
    behind with flush, dispatch, index and checkpoint. For a stopped broker, it takes samples.

    It fails if another program changed a held store, or if data of a store was lost. It also fails if a hold
    isn't possible, or if a limit of the policy is exceeded. ``on_failure_callback`` can notify a person.
    """

    ui_color = "#f5efd9"

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.steps import monitor
        from storage_engine.retention.store.context import opened

        with opened(self.store) as store:
            result = monitor(store, run_key(context))
        unknown = f"the consumer groups' lag isn't known: {result.lag_error}" if result.lag_error else ""
        behind = result.archive_lag.notes if result.archive_lag else ()
        self.say(task_log.monitor_lines(result))
        self.warn(*result.sensed.notices, *behind, unknown)
        return self.fail_on(result.alarms, jsonable_fields(result), context)


class StorageEngineValidateOperator(StoreOperator):
    """Checks that store and lake together still have every byte, and that changed parts are right.

    :param full: check every frame and every archived row instead of only the boundaries of changed parts.
    """

    def __init__(self, *, full: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.full = full

    def do_step(self, context: Context) -> Result:
        with self.cleanup(context) as cleanup:
            result = cycle.validate(cleanup, full=self.full)
        self.tell_validation(result, "Validation")
        return {
            "overall": result.overall.value,
            "checks": len(result.checks),
            "ranges": [f"[{r.start_offset}, {r.end_offset}) {r.where.value}" for r in result.ranges],
        }


class StorageEngineArchiveLagOperator(StoreOperator):
    """Measures how many sealed segments aren't proven in a lake. Fails above a threshold of the policy.

    A notifier can be called for this as ``on_failure_callback``. The measurement is complete, even if the
    task fails. The XCom is the lag, with the exceeded thresholds as ``alarms``.
    """

    ui_color = "#f5efd9"

    def do_step(self, context: Context) -> Result:
        with self.cleanup(context) as cleanup:
            lag = cycle.archive_lag(cleanup)
        if lag is None:
            raise AirflowSkipException(f"{self.storage_engine_conn_id}: the policy is archive: off")
        self.say([lag.text])
        self.warn(*lag.notes)
        alarms = lag.alarms(self.store.policy)
        return self.fail_on(alarms, {**to_jsonable(lag), "alarms": list(alarms)}, context)


class StorageEngineMaintainOperator(StoreOperator):
    """Removes expired parts of the store's lakes, reports and journal, and files of killed jobs.

    The task may be killed at any instant and run again.

    :param compact: also rewrite small data files of the lakes as larger files.
    """

    ui_color = "#e8e8e8"

    def __init__(self, *, compact: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.compact = compact

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.housekeeping.maintaining import maintain_lakes, maintain_store

        lakes = maintain_lakes(self.store, compact=self.compact)
        done = maintain_store(self.store)
        self.say(task_log.maintenance_lines(lakes, done))
        self.warn(*(notice for lake in lakes for notice in lake.notices), *done.notices)
        return jsonable_fields(done)


class StorageEngineReportOperator(StoreOperator):
    """Writes the run's report, whatever the run's result, and fails if the run failed.

    If a run did nothing, for the same reasons as in the last report, it gets no new report. The task names
    the last report.

    This is the last task of a store. A DAG run takes its state from its last tasks. Without this task, a run
    with a failure in the middle would end as a success.
    """

    ui_color = "#f5efd9"

    def do_step(self, context: Context) -> Result:
        from storage_engine.retention.report.report import Outcome
        from storage_engine.retention.report.report_text import outcome_text
        from storage_engine.retention.store.managed_store import PAGE

        failed = self._failed_before(context)
        with self.cleanup(context) as cleanup:
            try:
                result = cycle.report(cleanup)
            except RunStateError as error:
                if not failed:
                    raise
                raise AirflowFailException(Text(f"{failed} There is nothing to report: ", error)) from error
        page = Path(result.report_json).with_name(PAGE)
        since = f", unchanged since {result.unchanged_since}" if result.unchanged_since else ""
        self.say([f"{outcome_text(result.outcome)}{since}; report: {page}"])
        self.warn(*result.notices)
        problems = [failed, *result.errors] if failed or result.outcome is Outcome.FAILED else []
        problems += [result.not_approved, result.refused, *result.wrong_lakes]
        if text := join_texts(" ", filter(None, problems)):
            # The alarm names no run, so that the next run's alarm counts as the same.
            raise AlarmException([text], Text(text, f" Report: {result.report_text}"))
        return {**to_jsonable(result), "report_html": str(page)}

    def _failed_before(self, context: Context) -> str:
        """Return a sentence about earlier tasks that failed or could not start; "" without such tasks."""
        upstream = [task.task_id for task in self.get_flat_relatives(upstream=True)]
        run = context["dag_run"]
        states = context["ti"].get_task_states(dag_id=run.dag_id, task_ids=upstream, run_ids=[run.run_id])
        of_run = states.get(run.run_id, {})
        failed = sorted(task_id for task_id in upstream if of_run.get(task_id) == "failed")
        not_begun = sum(of_run.get(task_id) == "upstream_failed" for task_id in upstream)
        if not failed and not not_begun:
            return ""
        verb = "was" if not_begun == 1 else "were"
        after = f", {count_text(not_begun, 'task')} after it {verb} not done" if not_begun else ""
        return f"{', '.join(failed) or 'A task'} failed{after}."


def _request(value: Mapping[str, Any] | str | None) -> PlanRequest:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadInputError(f"plan request: expected JSON, found {value!r}.") from None
    return from_jsonable(PlanRequest, value or {}, "plan request")
