"""Sends alarms to Airflow's notifiers, and a store's figures from the journal if Airflow's metrics are on.

An alarm is sent once when it begins, and once when it has ended, not each time that a task fails. Commands in
a task's errors and notices get the task's connection as an argument.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    Stats,
    conf,
)

from storage_engine.commands import Arguments, Command, Text, join_texts, with_arguments
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import unexpected_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.catalog.place import own_directory

if TYPE_CHECKING:
    from airflow.sdk import Context

    from storage_engine.retention.monitor.notifying import Notification


Notifier = Callable[[Any], object]
"""A ``BaseNotifier``, or a function that takes the context."""
_log = logging.getLogger(__name__)


class AlarmException(AirflowFailException):
    """Fails a task that has looked after a store and found something that a person should know at once.

    :param text: the text at the end of the task's log; "" to show the alarms there.
    """

    def __init__(self, alarms: Sequence[str], text: str = "") -> None:
        super().__init__(text or join_texts("; ", alarms))
        self.alarms = tuple(alarms)


@contextmanager
def send_alarms(notifiers: Sequence[Notifier], conn_id: str, context: Context) -> Iterator[None]:
    """Send a task's failures as alarms.

    An alarm begins with a final failure or an AlarmException. It ends with the next success or skip.
    """
    if not notifiers:
        yield
        return
    try:
        yield
    except AirflowSkipException:
        _tell(notifiers, conn_id, context, ())
        raise
    except AirflowRescheduleException:
        # The sensor will look again later: its task hasn't ended.
        raise
    except AlarmException as error:
        _tell(notifiers, conn_id, context, error.alarms)
        raise
    except (Exception, AirflowTaskTimeout) as error:
        instance = context["ti"]
        ends_here = isinstance(error, (AirflowFailException, AirflowSensorTimeout))
        if ends_here or instance.try_number > instance.max_tries:
            _tell(notifiers, conn_id, context, (Text(error) or type(error).__name__,), has_failed=True)
        raise
    _tell(notifiers, conn_id, context, ())


def _tell(
    notifiers: Sequence[Notifier],
    conn_id: str,
    context: Context,
    alarms: Sequence[str],
    *,
    has_failed: bool = False,
) -> None:
    """Notify all notifiers. An error here is only logged as a warning: the task's work stays done."""
    try:
        from storage_engine.retention.monitor.notifying import Subject, tell

        instance = context["ti"]
        details = {
            "source": f"{instance.dag_id}.{instance.task_id}",
            "advice": str(Command("doctor", f"--conn-id {quote(conn_id)}")),
            "link": str(getattr(instance, "log_url", None) or ""),
        }
        subject = Subject(conn_id, "", "", **details)
        # If the connection can't be used, the task has that error itself.
        with suppress(Exception):
            subject = Subject.of(StorageEngineHook(conn_id).managed_store, **details)
        means = [_NotifierMeans(notifier, number, context) for number, notifier in enumerate(notifiers)]
        texts = [with_connection(alarm, conn_id) for alarm in alarms]
        for notice in tell(subject, texts, means, has_failed=has_failed):
            _log.warning("%s", notice)
    except Exception as error:
        _log.warning("the notifiers could not be called: %s", unexpected_text(error))


@dataclass(frozen=True, slots=True)
class _NotifierMeans:
    """:param number: the notifier's position in the option's list."""

    notifier: Notifier
    number: int
    context: Context

    @property
    def name(self) -> str:
        return getattr(self.notifier, "__name__", type(self.notifier).__name__)

    @property
    def key(self) -> str:
        return f"notifier {self.number} {self.name}"

    def send(self, told: Notification, seconds: float) -> None:
        """Call a copy of the notifier, because a notifier keeps its rendered templates."""
        from storage_engine.retention.monitor.notifying import within

        alarm = told.to_dict()
        context = {**self.context, "alarm": alarm, "exception": alarm["text"]}
        within(seconds, lambda: copy.copy(self.notifier)(context))


def with_connection(text: str, storage_engine_conn_id: str) -> str:
    """Add the connection's arguments to each command that a text names.

    Commands of a text about the second lake get that lake's directory. Without one they get no arguments.
    """
    arguments = Arguments(conn_id=storage_engine_conn_id)
    if with_arguments(text, arguments) == text:
        return str(text)
    # If the connection can't be used, that is another error, and commands get only its id.
    with suppress(StorageEngineError, AirflowException):
        lakes = StorageEngineHook(storage_engine_conn_id).managed_store.lakes
        directories = [own_directory(lake) for lake in lakes]
        places = tuple(
            lake.location if directory is None else f"{directory}/"
            for lake, directory in zip(lakes, directories, strict=True)
        )
        second = None if len(lakes) < 2 or directories[1] is None else str(directories[1])
        arguments = replace(arguments, places=places, second_lake_dir=second)
    return with_arguments(text, arguments)


@contextmanager
def name_commands(storage_engine_conn_id: str) -> Iterator[None]:
    """Add the connection's arguments to commands in errors raised inside. An error keeps its class."""
    try:
        yield
    except (StorageEngineError, AirflowException) as error:
        error.args = (with_connection(Text(error), storage_engine_conn_id), *error.args[1:])
        raise


_ANSWER_SECONDS = 5


@contextmanager
def metrics_sent(conn_id: str) -> Iterator[None]:
    """Send a store's figures when its task ends, with or without an error.

    No figures are sent while the task waits, or after a timeout. The store isn't read, so no disk delays
    the task.
    """
    try:
        yield
    except AirflowRescheduleException:
        # The sensor will look again later: its task hasn't ended.
        raise
    except Exception:
        _send(conn_id)
        raise
    _send(conn_id)


def _send(conn_id: str) -> None:
    """Send the figures. For plain StatsD, which drops tags, metric names contain connection and path.

    An error here is only logged as a warning: the task's work stays done.
    """
    try:
        datadog, influxdb, statsd, otel = (
            conf.getboolean("metrics", name, fallback=False)
            for name in ("statsd_datadog_enabled", "statsd_influxdb_enabled", "statsd_on", "otel_on")
        )
        if not (datadog or statsd or otel):
            return
        drops_tags = statsd and not (datadog or influxdb)
        from storage_engine.console.metrics import read_samples
        from storage_engine.journal.reading.queries import JournalReader

        journal = JournalReader(StorageEngineHook(conn_id).journal_url, _ANSWER_SECONDS)
        for sample in read_samples(journal, [conn_id], clock_ms()):
            tags = {"store": conn_id, **({"path": sample.path} if sample.path else {})}
            labels = (re.sub(r"[^\w-]+", "_", value) for value in tags.values()) if drops_tags else ()
            Stats.gauge(".".join(["storage_engine", *labels, sample.metric]), sample.value, tags=tags)
    except Exception as error:
        _log.warning("%s: metrics of the store can't be sent: %s", conn_id, error)
