"""The base of all operators of a store: the store's connection, and the key of its run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCOM_RETURN_KEY, AirflowFailException, BaseOperator
from airflow.sdk import AssetAlias

from storage_engine import cycle, task_log
from storage_engine.assets import tell
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import BadInputError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION
from storage_engine.hooks.notifiers import (
    AlarmException,
    Notifier,
    metrics_sent,
    name_commands,
    send_alarms,
    with_connection,
)
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.links import StorageEngineReportLink
from storage_engine.model.plan import Person, Realm, Starter
from storage_engine.model.report.validation import ValidationResult
from storage_engine.operators.lineage import Lineage, is_wanted, operator_lineage, validation_lineage
from storage_engine.retention.store.brokers import check_answers
from storage_engine.task_log import quiet_libraries, together

_BY_ITSELF = ("scheduled", "asset_triggered")
"""Kinds of DAG runs that no person starts."""

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset, Context

    from storage_engine.model.plan import PlanRequest
    from storage_engine.retention.store.managed_store import ManagedStore


class StoreOperator(BaseOperator):
    """Does one step of a run for one store. If Airflow sends metrics, it also sends the store's metrics.

    :param storage_engine_conn_id: connection of the store (templated).
    :param alarm_notifiers: notifiers to call once when an alarm of this task begins, and once when it ends.
    """

    template_fields: Sequence[str] = ("storage_engine_conn_id",)
    operator_extra_links = (StorageEngineReportLink(),)
    _lineage: Lineage | None = None
    ui_color = "#e6f0e4"

    def __init__(
        self,
        *,
        storage_engine_conn_id: str = DEFAULT_CONNECTION,
        alarm_notifiers: Sequence[Notifier] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.storage_engine_conn_id = storage_engine_conn_id
        self.alarm_notifiers = alarm_notifiers

    def execute(self, context: Context) -> Any:
        quiet_libraries()
        conn_id = self.storage_engine_conn_id
        alarms = send_alarms(self.alarm_notifiers, conn_id, context)
        with metrics_sent(conn_id), alarms, name_commands(conn_id):
            check_queue(self.store_hook, self.queue)
            check_answers(self.store.root)
            return self.do_step(context)

    @abstractmethod
    def do_step(self, context: Context) -> Any:
        """Run this operator's step, and return the task's XCom."""

    def lineage_so_far(self, cleanup: cycle.Cleanup) -> Lineage | None:
        """Return the tables that a failing step's attempts have read and written, or None."""
        return None

    def keep_lineage(self, make: Callable[[], Lineage | None]) -> None:
        """Keep the lineage of the task, if Airflow sends lineage. An error here doesn't fail the task."""
        if not is_wanted():
            return
        try:
            self._lineage = make()
        except Exception as error:
            self.log.warning("could not record the task's lineage: %s", error)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the lineage that the task has kept. This opens neither journal nor lake."""
        return operator_lineage(self._lineage)

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    @contextmanager
    def cleanup(
        self, context: Context, request: PlanRequest | None = None, **means: Any
    ) -> Iterator[cycle.Cleanup]:
        """Open the store for this task's step of a run.

        :param request: the request beyond the store's own settings.
        :param means: functions that do heavy work outside of this process.
        """
        from storage_engine.retention.store.context import opened

        with opened(self.store) as store:
            cleanup = cycle.Cleanup(store, run_key(context), request, **means)
            try:
                yield cleanup
            except Exception:
                self.keep_lineage(lambda: self.lineage_so_far(cleanup))
                raise

    def emit(self, context: Context, asset: Asset, figures: object) -> None:
        """Send an event of an asset when the task succeeds, if the task has an asset alias as outlet.

        :param figures: a frozen dataclass. The event has its fields, and also the store and the run.
        """
        extra = {"store": self.storage_engine_conn_id, "run_key": run_key(context), **to_jsonable(figures)}
        tell(context, self.outlets, asset, extra)

    @property
    def tells(self) -> bool:
        """Return whether this task has to send asset events."""
        return any(isinstance(outlet, AssetAlias) for outlet in self.outlets)

    def say(self, lines: Iterable[str]) -> None:
        """Log the task's result, one line for each text."""
        for line in lines:
            self.log.info("%s", line)

    def warn(self, *notices: str) -> None:
        """Log notices for a person in one line. Commands in it are complete, so a person can copy them."""
        if line := together(notice for notice in notices if notice):
            self.log.warning("%s", with_connection(line, self.storage_engine_conn_id))

    def tell_validation(self, result: ValidationResult, what: str) -> None:
        """Keep and log the results of a validation.

        :raises AirflowFailException: a check failed.
        """
        from storage_engine.model.report.validation import Status

        self.keep_lineage(lambda: validation_lineage(self.store, result))
        self.say(task_log.validation_lines(result))
        self.warn(task_log.broken_text(result))
        if result.overall is Status.FAILURE:
            raise AirflowFailException(
                f"{what} found {count_text(len(result.failures), 'rule')} broken: "
                f"{', '.join(check.expectation for check in result.failures)}. The report has the details."
            )

    def fail_on(self, alarms: Sequence[str], result: dict[str, Any], context: Context) -> dict[str, Any]:
        """Return a task's result, if there are no alarms.

        :raises AlarmException: there are alarms.
        """
        if alarms:
            # Failing ends the task here, before its result would be pushed.
            context["ti"].xcom_push(key=XCOM_RETURN_KEY, value=result)
            raise AlarmException(alarms)
        return result

    @cached_property
    def store_hook(self) -> StorageEngineHook:
        return StorageEngineHook(self.storage_engine_conn_id)

    @cached_property
    def store(self) -> ManagedStore:
        return self.store_hook.managed_store


def check_queue(hook: StorageEngineHook, queue: str | None) -> None:
    """Make sure that a task runs on the queue in its store's connection. Only older connections name a queue.

    :raises BadInputError: the connection names another queue.
    """
    if hook.queue is not None and hook.queue != queue:
        raise BadInputError(
            f"connection {hook.storage_engine_conn_id}: expected its tasks on queue {hook.queue}, which the "
            f"connection names, found a task on queue {queue}. Nothing was read or changed. Name the queue "
            "in the option stores "
            "of [storage_engine], with the store's conn_id."
        )


def starter(context: Context) -> Starter:
    """Return the person or schedule that started a DAG run, by Airflow's record.

    An older Airflow doesn't record who starts a run by hand. Then the starter has no name, and no approver is
    certainly another person.
    """
    run = context["dag_run"]
    name = getattr(run, "triggering_user_name", None)
    kind = getattr(run, "run_type", None)
    if not name and getattr(kind, "value", kind) in _BY_ITSELF:
        return Starter(Realm.AIRFLOW, None)
    return Starter(Realm.AIRFLOW, Person(Realm.AIRFLOW, name or ""))


def run_key(context: Context) -> str:
    """Return the key of a DAG run's steps. A cleared or retried task has it, too, and continues the run."""
    dag_run = context["dag_run"]
    return f"{dag_run.dag_id}/{dag_run.run_id}"
