"""A DAG of a team's own that waits for segments, of docs/airflow.md, and a notifier, of docs/alert.md."""

from __future__ import annotations

import email
import email.policy
import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.retention.steps import sense
from storage_engine.sensors.cleanup import StorageEngineDueSensor
from tests.docs.code_blocks import ROOT, blocks_of

# What Airflow and its dependencies warn about in their own code is not ours to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

HERE = "tests/airflow/test_own_dags.py"
PAGES = [ROOT / "docs" / name for name in ("airflow.md", "alert.md")]
OWN_DAG, NOTIFIER, OPTION = [
    block for page in PAGES for block in blocks_of(page) if block.said.get("tested by") == HERE
]
STORE = "storage_engine_default"


class _Mailbox(socketserver.ThreadingTCPServer):
    """A mail server that takes everything."""

    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mails: list[email.message.EmailMessage] = []


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Mailbox)
        self.wfile.write(b"220 ready\r\n")
        for line in self.rfile:
            verb = line[:4].upper().strip()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                mail = email.message_from_bytes(text, policy=email.policy.default)
                server.mails.append(mail)  # type: ignore[arg-type]
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                return


@contextmanager
def mailbox() -> Iterator[_Mailbox]:
    with _Mailbox() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def mails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the page's notifier sends, which the page's option names."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "company_alerts.py").write_text(NOTIFIER.text)
    monkeypatch.syspath_prepend(str(folder))
    option, _, value = OPTION.text.splitlines()[1].partition(" = ")
    monkeypatch.setenv(f"AIRFLOW__STORAGE_ENGINE__{option.upper()}", value)
    with mailbox() as server:
        port = server.server_address[1]
        plain = "disable_ssl=true&disable_tls=true"
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", f"smtp://127.0.0.1:{port}/?{plain}")
        yield server.mails
    sys.modules.pop("company_alerts", None)


def run(file: str) -> dict[str, str]:
    bag = DagBag(str(ROOT / "dags" / file), load_op_links=False)
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    for task in dag.tasks:
        task.retries = 0
        if isinstance(task, StorageEngineDueSensor):
            task.timeout = 0
    return {one.task_id: str(one.state) for one in dag.test().get_task_instances()}


def text_of(mail: Any) -> str:
    return str(mail.get_body(("html",)).get_content())


@pytest.mark.again
def test_an_alarm_calls_the_notifier_once_and_says_what_it_is(
    airflow_database: Path, store_connection: Any, mails: list[Any]
) -> None:
    store_connection(STORE, extra={"archive_lag_alarm_bytes": 2 << 20}, deleteWhen="99")
    assert run("storage_monitor.py") == {"monitor": "failed", "sense": "skipped"}
    (mail,) = mails
    assert mail["subject"] == f"storage_monitor__{STORE}.monitor failed"
    assert (
        "archive lag: expected at most 2.0 MiB sealed and not proven in the lake, found 7.0 MiB"
        in text_of(mail)
    )


@pytest.mark.again
def test_a_run_that_fails_in_the_middle_calls_it_once_with_the_reason(
    airflow_database: Path, store_connection: Any, mails: list[Any]
) -> None:
    store = store_connection(STORE, deleteWhen=";".join(map(str, range(24))))
    for path in (store.root / "commitlog").iterdir():
        os.utime(path, (10**9, 10**9))
    sense(StorageEngineHook(STORE).managed_store)
    (store.directory / "lake" / "catalog.db").write_bytes(b"what is left of it" * 100)
    states = run("storage_retention.py")
    assert (states["archive"], states["release"], states["report"]) == ("failed", "upstream_failed", "failed")
    (mail,) = mails
    assert mail["subject"] == f"storage_retention__{STORE}.report failed"
    said = text_of(mail)
    assert "archive failed, 4 tasks after it were not done. archive: LakeUnavailableError: " in said
    assert "report.txt" in said


def test_a_name_that_cannot_be_imported_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__ON_FAILURE_CALLBACK", "no_such_module.ON_FAILURE")
    bag = DagBag(str(ROOT / "dags" / "storage_monitor.py"), load_op_links=False)
    (error,) = bag.import_errors.values()
    assert "no_such_module.ON_FAILURE" in error


def own_dag(folder: Path) -> Any:
    """The page's DAG, as Airflow finds it."""
    (folder / "settle_orders.py").write_text(OWN_DAG.text.replace("orders_a", STORE))
    bag = DagBag(str(folder), load_op_links=False)
    assert bag.import_errors == {}
    (dag,) = bag.dags.values()
    return dag


def test_a_dag_of_ones_own_waits_for_segments(tmp_path: Path) -> None:
    dag = own_dag(tmp_path)
    assert [asset.uri for asset in dag.schedule] == [f"x-storage-engine://stores/{STORE}/archived"]
