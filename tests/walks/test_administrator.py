"""An administrator who gives rights by roles of FAB: who sees which store, and who may start its DAGs."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from demo.dag_run import RunsApi
from storage_engine.project.up import ApiError, ProcessTree, unpack_sample_store
from tests.docs.code_blocks import ROOT, blocks_of, commands_of
from tests.services.installs import CONSTRAINTS
from tests.services.newcomer import Newcomer
from tests.walks.own_airflow import eventually

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1800)]

MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
ROLES = ("Viewer", "User", "Op", "Admin", "Orders")
CONSOLE = "/storage-engine/console"


def commands_of_security_page() -> list[str]:
    """Return the commands that make a role for one store."""
    blocks = blocks_of(ROOT / "docs" / "security.md")
    lines = [one.line for block in blocks if block.language == "console" for one in commands_of(block)]
    found = [line for line in lines if line.startswith("airflow roles")]
    assert len(found) == 2
    return found


def set_up(administrator: Newcomer, home: Path) -> None:
    """Install Airflow with FAB and the provider, with two stores; one of them has been looked at."""
    administrator.installs("airflow-provider-storage-engine")
    (airflow,) = re.findall(r"^apache-airflow==\S+", CONSTRAINTS.read_text(), re.MULTILINE)
    administrator.installs(airflow, "apache-airflow-providers-fab", constraints=False)
    administrator.types("airflow db migrate")
    for name in ("orders", "payments"):
        sample = unpack_sample_store(home / name)
        init = f"storage-engine init --airflow --conn-id {name} --store {sample.root}"
        administrator.types(f"{init} --broker-conf {sample.broker_conf} --add-connection --yes")
    administrator.types("storage-engine init-lake --conn-id orders --allow-same-disk")
    administrator.types("airflow dags reserialize")
    administrator.types("airflow dags test storage_retention__orders --conf '{\"dry_run\": true}'")
    for line in commands_of_security_page():
        administrator.types(line)
    for role in ROLES:
        person = f"--username {role} --password {role} --firstname a --lastname b --email {role}@example.org"
        administrator.types(f"airflow users create --role {role} {person}")


@contextmanager
def api_server(administrator: Newcomer, address: str) -> Iterator[None]:
    tree = ProcessTree()
    words = [str(administrator.venv / "bin" / "airflow"), "api-server", "--host", "127.0.0.1"]
    try:
        tree.start("api-server", words, administrator.environment, administrator.home / "api-server.log")
        eventually("the API server answers", lambda: RunsApi(address, None).get_once("/api/v2/version"))
        yield
    finally:
        tree.stop()


def status(api: RunsApi, path: str, body: dict[str, object] | None = None) -> int | None:
    try:
        api.get_once(path) if body is None else api.post(path, body)
    except ApiError as error:
        return error.status
    return 200


def test_roles_of_fab_open_the_stores_that_they_name(tmp_path: Path, wheels: Path) -> None:
    administrator = Newcomer(tmp_path / "home", wheels)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    administrator.environment |= {
        "AIRFLOW_HOME": str(administrator.home / "airflow"),
        "AIRFLOW__CORE__AUTH_MANAGER": MANAGER,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    set_up(administrator, tmp_path)
    with api_server(administrator, address):
        nobody = RunsApi(address, None)
        for path in ("/", "/static/icon.svg", "/api/stores", "/api/stores/orders", "/api/dag?dag=x"):
            assert status(nobody, CONSOLE + path) == 401
        people = {role: RunsApi.log_in(address, role, role) for role in ROLES}

        for role, api in people.items():
            stores = {row["store"] for row in api.get(f"{CONSOLE}/api/stores")["stores"]}
            assert stores == ({"orders"} if role == "Orders" else {"orders", "payments"}), role
            assert status(api, f"{CONSOLE}/api/stores/orders") == 200
            assert status(api, f"{CONSOLE}/api/stores/payments") == (404 if role == "Orders" else 200)
            assert status(api, f"{CONSOLE}/api/stores/none") == 404

        entries = {role for role, api in people.items() if status(api, "/api/v2/plugins") == 200}
        assert entries == {"Op", "Admin", "Orders"}

        run = {"logical_date": None, "conf": {"dry_run": True}}
        for role, api in people.items():
            dags = api.get(f"{CONSOLE}/api/stores/orders")["dags"]
            (retention,) = (one for one in dags if one["purpose"] == "retention")
            assert retention["may_run"] is (role in ("User", "Op", "Admin")), role
            started = status(api, f"/api/v2/dags/{retention['dag_id']}/dagRuns", run)
            assert started == (200 if retention["may_run"] else 403), role
            assert role != "Orders" or dags == [retention]
    administrator.summary("administrator")
