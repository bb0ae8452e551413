"""Sensors that wait for a cleanup's cause, the deleteWhen window or a disk level, or until a cleanup is due.

Each sensor looks once in its own process, then hands over to a trigger. When the trigger fires, the sensor
looks again in its own process, because only a worker of the store certainly sees the store's own disks.

If a running broker doesn't answer, its state is unknown. An unknown state is no cause: the sensor continues
to wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseOperator,
    BaseSensorOperator,
    PokeReturnValue,
)
from airflow.sdk.exceptions import AirflowRuntimeError

try:
    from airflow.sdk.exceptions import TaskDeferralTimeout
except ImportError:  # Airflow 3.1
    from airflow.exceptions import TaskDeferralTimeout  # type: ignore[no-redef]

from storage_engine.assets import archive_due, cleanup_due, tell
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BrokerUnavailableError, NotOnBrokerError, StorageEngineError
from storage_engine.hooks.configured_stores import DEFAULT_CONNECTION
from storage_engine.hooks.notifiers import Notifier, metrics_sent, name_commands, send_alarms, with_connection
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.links import StorageEngineReportLink
from storage_engine.model.plan import Cause
from storage_engine.retention.store.brokers import check_answers
from storage_engine.task_log import quiet_libraries
from storage_engine.triggers.cleanup import (
    DEFAULT_POLL_SECONDS,
    CleanupCauseTrigger,
    DeleteWindowTrigger,
    DiskLevelTrigger,
)

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context
    from airflow.triggers.base import BaseTrigger

    from storage_engine.retention.plan.cleanup_due import SenseResult


class _CauseSensor(BaseSensorOperator):
    """Waits for a cause, by default for any. Its XCom is the result of the look that found the cause.

    :param deferrable: free the worker slot while waiting.
    :param soft_fail: skip the task if the timeout passes without a cause. Airflow's other sensors also
        skip after errors. Here the task fails if the store can't be read, if a trigger broke, or if a running
        broker doesn't answer at the timeout. So an error is never taken for a quiet store.
    :param alarm_notifiers: notifiers to call once when the sensor fails, and once when it works again.
    """

    template_fields: Sequence[str] = ("storage_engine_conn_id",)
    operator_extra_links = (StorageEngineReportLink(),)
    ui_color = "#d9e8f5"

    def __init__(
        self,
        *,
        storage_engine_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = True,
        poke_interval: timedelta | float = DEFAULT_POLL_SECONDS,
        alarm_notifiers: Sequence[Notifier] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.storage_engine_conn_id = storage_engine_conn_id
        self.alarm_notifiers = alarm_notifiers
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> StorageEngineHook:
        return StorageEngineHook(self.storage_engine_conn_id)

    def holds(self, sensed: SenseResult) -> bool:
        """Return whether the awaited cause is present."""
        return bool(sensed.triggers)

    def trigger(self) -> BaseTrigger:
        """Return the trigger that waits for the cause."""
        return CleanupCauseTrigger(self.storage_engine_conn_id, poll_seconds=self.poke_interval)

    def poke(self, context: Context) -> PokeReturnValue:
        check_answers(self.hook.managed_store.root)
        try:
            return self.look(context)
        except (BrokerUnavailableError, NotOnBrokerError) as error:
            self.log.warning("%s: unknown, so no cause: %s", self.storage_engine_conn_id, error)
            return PokeReturnValue(is_done=False)

    def look(self, context: Context) -> PokeReturnValue:
        """Look once in this process.

        :raises BrokerError: the running broker doesn't answer.
        """
        from storage_engine.retention.plan.cleanup_due import sense

        sensed = sense(self.hook.managed_store)
        self.tell(sensed)
        return PokeReturnValue(is_done=self.holds(sensed), xcom_value=to_jsonable(sensed))

    def tell(self, sensed: SenseResult) -> None:
        """Log the result of a look in one line. Log notices for a person in another line."""
        causes = [trigger.detail for trigger in sensed.triggers] or ["no cause holds"]
        self.log.info("%s: %s", self.storage_engine_conn_id, "; ".join(causes))
        if notices := (*sensed.alarms, *sensed.notices):
            line = with_connection(join_texts("; ", notices), self.storage_engine_conn_id)
            self.log.warning("%s: %s", self.storage_engine_conn_id, line)

    def time_is_up(self, context: Context) -> Any:
        """End the wait without a cause.

        :raises AirflowSkipException: nothing is due, and ``soft_fail`` is on.
        :raises AirflowSensorTimeout: ``soft_fail`` is off, or the store's state is unknown.
        """
        raise self._timed_out()

    def execute(self, context: Context) -> Any:
        quiet_libraries()
        with self._end_reported(context), name_commands(self.storage_engine_conn_id):
            if not self.deferrable:
                return self._poke_until_done(context)
            return self._look_or_defer(context, time.time() + self.timeout)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None, deadline: float = 0.0
    ) -> Any:
        """Look again on a host that sees the store. If the cause isn't present there, wait for it again."""
        quiet_libraries()
        with name_commands(self.storage_engine_conn_id):
            return self._look_or_defer(context, deadline)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        with self._end_reported(context):
            try:
                return BaseOperator.resume_execution(self, next_method, next_kwargs, context)
            except TaskDeferralTimeout as error:
                if not self.soft_fail:
                    raise self._timed_out() from error
                return self.time_is_up(context)

    @contextmanager
    def _end_reported(self, context: Context) -> Iterator[None]:
        conn_id = self.storage_engine_conn_id
        with metrics_sent(conn_id), send_alarms(self.alarm_notifiers, conn_id, context):
            yield

    def _poke_until_done(self, context: Context) -> Any:
        """Wait in this process as Airflow's sensors do. At the timeout, end as a deferred sensor does."""
        soft_fail, self.soft_fail = self.soft_fail, False
        try:
            return super().execute(context)
        except AirflowSensorTimeout:
            self.soft_fail = soft_fail
            return self.time_is_up(context)
        finally:
            self.soft_fail = soft_fail

    def _look_or_defer(self, context: Context, deadline: float) -> Any:
        looked = self.poke(context)
        if not looked.is_done:
            remaining = deadline - time.time()
            if remaining <= 0:
                return self.time_is_up(context)
            self.defer(
                trigger=self.trigger(),
                method_name="execute_complete",
                kwargs={"deadline": deadline},
                timeout=timedelta(seconds=remaining),
            )
        return looked.xcom_value

    def _timed_out(self) -> Exception:
        from storage_engine.retention.plan.watching import watch

        message = f"{self.storage_engine_conn_id}: no cause for a cleanup within {self.timeout:.0f} s"
        if self.soft_fail:
            check_answers(self.hook.managed_store.root)
            state = watch(self.hook.managed_store)
            if state.known:
                return AirflowSkipException(message)
            message = join_texts("; ", (message, *state.notices))
        return AirflowSensorTimeout(message)


class StorageEngineDeleteWindowSensor(_CauseSensor):
    """Waits for the store's deleteWhen window."""

    def holds(self, sensed: SenseResult) -> bool:
        return any(trigger.cause is Cause.TIME_UP for trigger in sensed.triggers)

    def trigger(self) -> BaseTrigger:
        return DeleteWindowTrigger(self.storage_engine_conn_id)


class StorageEngineDiskLevelSensor(_CauseSensor):
    """Waits until the disks are so full that the broker would clean. An unknown level is no cause."""

    def holds(self, sensed: SenseResult) -> bool:
        return any(trigger.cause is Cause.SPACE_FULL for trigger in sensed.triggers)

    def trigger(self) -> BaseTrigger:
        return DiskLevelTrigger(self.storage_engine_conn_id, poll_seconds=self.poke_interval)


class StorageEngineCleanupSensor(_CauseSensor):
    """Waits for the deleteWhen window or a disk that is too full, whichever comes first."""


class StorageEngineDueSensor(_CauseSensor):
    """Waits until a cleanup is due: a cause is present, and a run would delete or archive something.

    With an asset alias as outlet, the sensor sends an event when a cleanup is due. It sends another when
    sealed segments wait to be archived ahead (:mod:`storage_engine.assets`). If no DAG takes up an event, the
    sensor's next run repeats it. The task is skipped if a run would do nothing despite a cause, and with
    ``soft_fail`` at its timeout.

    The task fails if work is due and each DAG for it is paused, because a person has to see that.

    :param cleanup_dag_id: a DAG that cleans up. It gets no event while one of its runs is queued or running.
    :param archive_dag_id: a DAG that archives ahead, with the same rule for its own runs.
    """

    def __init__(
        self, *, cleanup_dag_id: str | None = None, archive_dag_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.cleanup_dag_id = cleanup_dag_id
        self.archive_dag_id = archive_dag_id

    def look(self, context: Context) -> PokeReturnValue:
        from storage_engine.retention.steps import look_for_due
        from storage_engine.retention.store.context import opened

        with opened(self.hook.managed_store) as store:
            result = look_for_due(store)
        self.tell(result.sensed)
        if not result.why and not result.sensed.triggers:
            return PokeReturnValue(is_done=False)
        self.log.info("%s: %s", self.storage_engine_conn_id, "; ".join(result.why) or result.stays)
        unmet: list[str] = []
        if result.why and result.is_refused:
            self.log.info("a second person has refused this same plan lately")
        elif result.why:
            causes = sorted({str(trigger.cause) for trigger in result.sensed.triggers})
            due = {"why": list(result.why), "causes": causes, "segments": result.deletes}
            unmet += self._tell_of(
                context,
                cleanup_due(self.storage_engine_conn_id),
                {**due, "size_bytes": result.delete_bytes},
                self.cleanup_dag_id,
                () if result.is_asked else result.waiting,
            )
        is_sealed_told = self._tell_of_sealed(context, unmet)
        if not is_sealed_told and not result.why:
            raise AirflowSkipException(f"{self.storage_engine_conn_id}: {result.stays}")
        self._require_dag(unmet, of=bool(result.why and not result.is_refused) + is_sealed_told)
        return PokeReturnValue(is_done=True, xcom_value=to_jsonable(result))

    def time_is_up(self, context: Context) -> Any:
        ended, unmet = self._timed_out(), list[str]()
        if isinstance(ended, AirflowSkipException) and self._tell_of_sealed(context, unmet):
            self._require_dag(unmet, of=1)
            return None
        raise ended

    def _tell_of_sealed(self, context: Context, unmet: list[str]) -> bool:
        """Send an event if sealed segments wait to be archived ahead, and return whether there are any.

        :param unmet: list to which the reason is added if no DAG will archive them.
        """
        from storage_engine.retention.steps import segments_to_archive
        from storage_engine.retention.store.context import opened

        try:
            with opened(self.hook.managed_store) as store:
                count = segments_to_archive(store)
        except (StorageEngineError, OSError) as error:
            # The monitor fails with this error. Other due work still needs its event.
            self.log.warning(
                "%s: it isn't known whether segments wait to be archived: %s",
                self.storage_engine_conn_id,
                error,
            )
            return False
        if count:
            archive = archive_due(self.storage_engine_conn_id)
            unmet += self._tell_of(context, archive, {"segments": count}, self.archive_dag_id)
        return bool(count)

    def _tell_of(
        self,
        context: Context,
        asset: Asset,
        extra: dict[str, Any],
        told_dag_id: str | None,
        waiting: Sequence[str] = (),
    ) -> list[str]:
        """Send an event about due work, unless a run does the work already.

        :param waiting: keys of active runs that don't do this work, because they wait for a second person.
        :return: the reasons why no DAG will do the work; empty if a DAG will do it.
        """
        if told_dag_id is not None:
            if _is_paused(context["ti"], told_dag_id):
                conn_id = self.storage_engine_conn_id
                return [
                    Text(
                        f"{conn_id}: {told_dag_id} has something to do and is paused, so that no run of "
                        f"it goes on or begins: airflow dags unpause {told_dag_id}. What waits: ",
                        Command("doctor", f"--conn-id {quote(conn_id)}"),
                    )
                ]
            count = context["ti"].get_dr_count(dag_id=told_dag_id, states=["queued", "running"])
            if count > sum(key.startswith(f"{told_dag_id}/") for key in waiting):
                self.log.info("a run of %s does this work already", told_dag_id)
                return []
        tell(context, self.outlets, asset, {"store": self.storage_engine_conn_id, **extra})
        return []

    def _require_dag(self, unmet: Sequence[str], *, of: int) -> None:
        """Fail without another try, if no DAG will do any of the due work.

        If a DAG will do some of the work, only log the rest. A failed task sends no events.

        :param unmet: the reasons, one for each kind of work that no DAG will do.
        :param of: number of kinds of due work.
        :raises AirflowFailException: no DAG will do any of the work.
        """
        if unmet and len(unmet) == of:
            raise AirflowFailException(join_texts("; ", unmet))
        for reason in unmet:
            self.log.warning("%s", reason)


def _is_paused(task_instance: Any, dag_id: str) -> bool:
    """Return whether a DAG is known to be paused. Before Airflow 3.2 that is unknown."""
    ask = getattr(task_instance, "get_dag", None)
    if ask is None:
        return False
    try:
        return bool(ask(dag_id).is_paused)
    except AirflowRuntimeError:
        return False
