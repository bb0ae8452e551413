"""A throw-away Airflow for the tests: its own AIRFLOW_HOME, set before anything imports Airflow."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move import making
from tests.services.toy import installed

REPOSITORY = Path(__file__).parents[2]


def _isolate() -> Path:
    """Point this process at a fresh AIRFLOW_HOME and drop what the user's own Airflow is set up with."""
    for name in [name for name in os.environ if name.startswith(("AIRFLOW", "_AIRFLOW"))]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="storage-engine-airflow-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        # As whoever sets the DAGs up leaves them.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    return home


HOME = _isolate()


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Airflow leaves its in-process tasks' files to the garbage collector, which would warn of them later."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """AIRFLOW_HOME of this test process."""
    return HOME


@pytest.fixture(scope="session")
def airflow_database(airflow_home: Path) -> Path:
    """A metadata database; made once, when the first test needs it."""
    from airflow.utils.db import initdb

    with warnings.catch_warnings(action="ignore"):
        initdb()
    return airflow_home / "airflow.db"


@dataclass(frozen=True)
class StoreConnection:
    """A fresh store that an Airflow connection leads to."""

    conn_id: str
    root: Path
    directory: Path

    @property
    def reports(self) -> Path:
        return self.directory / "reports"


ConnectionFactory = Callable[..., StoreConnection]


@pytest.fixture
def store_connection(
    store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ConnectionFactory:
    """Unpack a store and define a connection to it in the environment.

    Keyword arguments are broker settings; ``extra`` adds fields of the connection; ``make_lake`` is whether
    its lake is made, too.
    """

    def connect(
        conn_id: str = "a_store",
        *,
        extra: dict[str, Any] | None = None,
        make_lake: bool = True,
        **overrides: str,
    ) -> StoreConnection:
        root = store_copy("clean-stop")
        directory = tmp_path / conn_id
        fields = {
            "root": str(root),
            "time_zone": "UTC",
            "overrides": overrides,
            "lake_directory": str(directory / "lake"),
            "journal_url": f"sqlite:///{directory / 'journal.db'}",
            "report_dir": str(directory / "reports"),
            **(extra or {}),
        }
        definition = {"conn_type": "storage_engine", "extra": fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(definition))
        if make_lake:
            making.make_lake(LakeConfig.local(directory / "lake"))
        return StoreConnection(conn_id, root, directory)

    return connect


@pytest.fixture
def toy_broker(tmp_path: Path) -> Iterator[None]:
    """The broker of another package, which is installed while a test runs."""
    with installed(tmp_path):
        yield


@pytest.fixture
def load_dag() -> Callable[[str], Any]:
    """Parse a DAG file as the DAG processor does, and return its one DAG."""
    from airflow.dag_processing.dagbag import DagBag

    def load(file: str) -> Any:
        bag = DagBag(str(REPOSITORY / "dags" / file), load_op_links=False)
        assert bag.import_errors == {}
        (dag,) = bag.dags.values()
        return dag

    return load


@pytest.fixture
def airflow_web(airflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An auth manager as Airflow's web server has it, which lets who is logged in read no DAG yet."""
    from storage_engine.plugins import journals
    from tests.airflow.web_client import SomeDagsManager, airflow_app

    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of the tests " + "x" * 64)
    monkeypatch.setattr(journals, "_addresses", {})
    manager = SomeDagsManager()
    monkeypatch.setattr(airflow_app._AuthManagerState, "instance", manager)
    return manager
