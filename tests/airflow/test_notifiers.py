"""What docs/alert.md shows of notifiers that are told once: Slack's and apprise's, in a real task."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.exceptions import AirflowRescheduleException
from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from storage_engine.hooks.notifiers import AlarmException, send_alarms
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from tests.docs.code_blocks import ROOT, blocks_of
from tests.rounds import later
from tests.services.lock_holder import lock_held
from tests.services.webhook import Posted, webhook

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

HERE = "tests/airflow/test_notifiers.py"
MODULE, OPTION = [
    block for block in blocks_of(ROOT / "docs" / "alert.md") if block.said.get("tested by") == HERE
]
STORE = "storage_engine_default"
BEHIND = "archive lag: expected at most 2.0 MiB sealed and not proven in the lake, found 7.0 MiB"


@pytest.fixture
def posted() -> Iterator[Posted]:
    with webhook() as found:
        yield found


@pytest.fixture
def company_alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Names what a module of this text has as the option does."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str) -> None:
        (folder / "company_alerts.py").write_text(text)
        option, _, value = OPTION.text.splitlines()[1].partition(" = ")
        monkeypatch.setenv(f"AIRFLOW__STORAGE_ENGINE__{option.upper()}", value)

    yield write
    sys.modules.pop("company_alerts", None)


def run_monitor() -> dict[str, str]:
    return run_dag("storage_monitor")


def run_dag(name: str, conf: dict[str, Any] | None = None) -> dict[str, str]:
    bag = DagBag(str(ROOT / "dags" / f"{name}.py"), load_op_links=False)
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    for task in dag.tasks:
        task.retries = 0
        if isinstance(task, StorageEngineDueSensor):
            task.timeout = 0
    return {one.task_id: str(one.state) for one in dag.test(run_conf=conf).get_task_instances()}


def test_slack_and_apprise_are_told_once_when_an_alarm_begins_and_once_when_it_ends(
    airflow_database: Path,
    store_connection: Any,
    company_alerts: Callable[[str], None],
    posted: Posted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    company_alerts(MODULE.text)
    slack = {"conn_type": "slackwebhook", "password": posted.url}
    apprise = {"path": posted.url.replace("http:", "json:", 1), "tag": "alerts"}
    monkeypatch.setenv("AIRFLOW_CONN_SLACK_ALERTS", json.dumps(slack))
    monkeypatch.setenv(
        "AIRFLOW_CONN_APPRISE_ALERTS", json.dumps({"conn_type": "apprise", "extra": {"config": apprise}})
    )
    store_connection(STORE, extra={"archive_lag_alarm_bytes": 2 << 20}, deleteWhen="99")
    for _ in range(2):
        assert run_monitor() == {"monitor": "failed", "sense": "skipped"}
    definition = json.loads(_connection())
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{STORE.upper()}",
        json.dumps({**definition, "extra": {**definition["extra"], "archive_lag_alarm_bytes": None}}),
    )
    assert run_monitor() == {"monitor": "success", "sense": "skipped"}
    told = [(body.get("text"), body.get("title"), body.get("message")) for body in posted.bodies]
    (began, _, _), (_, title, message), (ended, _, _), _ = told
    assert began.startswith(f"{STORE}: {BEHIND}")
    assert "storage-engine doctor --conn-id storage_engine_default" in began
    assert f"/dags/storage_monitor__{STORE}/" in began
    assert (title, message.startswith(BEHIND)) == (STORE, True)
    assert ended.startswith(f"{STORE}: ended: {BEHIND}")


@pytest.mark.again
def test_runs_that_fail_for_one_reason_are_told_once(
    airflow_database: Path, store_connection: Any, company_alerts: Callable[[str], None], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    company_alerts(f"""
def NOTIFIERS(context):
    with open({str(told)!r}, "a") as file:
        file.write(context["alarm"]["state"] + " " + context["alarm"]["what"] + "\\n")
""")
    store = store_connection(STORE, deleteWhen="99")
    for _ in range(2):
        with lock_held(Path(store.root) / "lock"):
            assert run_dag("storage_retention")["report"] == "failed"
    (began,) = told.read_text().splitlines()
    assert began.startswith("began plan failed, ")


def _connection() -> str:
    import os

    return os.environ[f"AIRFLOW_CONN_{STORE.upper()}"]


@pytest.mark.parametrize("body", [*later("raise RuntimeError('down')"), "import time; time.sleep(600)"])
def test_a_notifier_that_fails_or_hangs_changes_nothing_of_the_task(
    body: str,
    airflow_database: Path,
    store_connection: Any,
    company_alerts: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage_engine.retention.monitor.notifying.tell.__kwdefaults__", _quick())
    company_alerts(f"def NOTIFIERS(context):\n    {body}\n")
    store = store_connection(STORE, deleteWhen="99")
    assert run_monitor() == {"monitor": "success", "sense": "skipped"}
    store_connection("other", extra={"archive_lag_alarm_bytes": 2 << 20})
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "other")
    assert run_monitor() == {"monitor": "failed", "sense": "skipped"}
    assert store.root.exists()


def _quick() -> dict[str, Any]:
    from storage_engine.retention.monitor.notifying import tell

    return {**(tell.__kwdefaults__ or {}), "seconds": 1.0}


class _Instance:
    dag_id, task_id, try_number, max_tries, log_url = "d", "t", 1, 2, "http://log"


class _LastTry(_Instance):
    try_number = 3


def test_a_task_that_is_tried_again_tells_nothing_yet() -> None:
    told: list[str] = []

    def note(context: Any) -> None:
        told.append(context["alarm"]["what"])

    instance = _Instance()
    for instance.try_number in (1, 2, 3):
        with (
            pytest.raises(OSError, match="gone"),
            send_alarms([note], "nobody", {"ti": instance}),  # type: ignore[typeddict-item]
        ):
            raise OSError("gone")
        assert told == ["gone"] * (instance.try_number == 3)


def test_a_sensor_that_looks_again_later_is_no_alarm_and_a_task_out_of_time_is_one() -> None:
    told: list[str] = []

    def note(context: Any) -> None:
        told.append(context["alarm"]["what"])

    later = AirflowRescheduleException(datetime.now(UTC))  # type: ignore[no-untyped-call]
    for error in (later, AirflowTaskTimeout("out of time")):
        with (
            pytest.raises(type(error)),
            send_alarms([note], "nobody", {"ti": _LastTry()}),  # type: ignore[typeddict-item]
        ):
            raise error
    assert told == ["out of time"]


def test_a_task_that_fails_before_it_has_looked_ends_no_alarm(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_connection(STORE, deleteWhen="99")
    told: list[tuple[str, str]] = []

    def note(context: Any) -> None:
        told.append((context["alarm"]["state"], context["alarm"]["what"]))

    def end_with(error: Exception | None) -> None:
        with suppress(Exception), send_alarms([note], STORE, {"ti": _LastTry()}):  # type: ignore[typeddict-item]
            if error is not None:
                raise error

    for error in (AlarmException(["lost"]), OSError("journal"), AlarmException(["lost"]), None):
        end_with(error)
    assert told == [("began", "lost"), ("began", "journal"), ("ended", "journal"), ("ended", "lost")]


def test_nothing_that_fails_while_it_tells_ends_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("storage_engine.retention.monitor.notifying.tell", broken)
    with send_alarms([print], "nobody", {"ti": _Instance()}):  # type: ignore[typeddict-item]
        done = True
    assert done


def test_a_name_that_cannot_be_imported_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__ALARM_NOTIFIERS", "no_such_module.NOTIFIERS")
    bag = DagBag(str(ROOT / "dags" / "storage_monitor.py"), load_op_links=False)
    (error,) = bag.import_errors.values()
    assert "no_such_module.NOTIFIERS" in error
