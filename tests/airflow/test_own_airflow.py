"""A store comes into an Airflow that is there: what init prints is what its own commands then do."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.code_blocks import blocks_of, commands_of

PAGE = Path(__file__).parents[2] / "docs" / "airflow.md"
pytestmark = [pytest.mark.integration, pytest.mark.again]


class Installation:
    """An Airflow of a person, with the settings file that Airflow itself writes at its first start."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("AIRFLOW", "_AIRFLOW"))
            },
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.run("airflow db migrate")
        # With the spark_default of a YARN cluster that nobody has.
        self.run("airflow connections create-default-connections")

    def run(self, line: str, *, status: int = 0) -> str:
        """Run a line as it was printed; returns what it says."""
        done = subprocess.run(
            ["bash", "-c", line], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, (line, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("own") / "airflow")


def _printed(text: str, beginning: str) -> str:
    """Return the command that a printed step has."""
    (found,) = [line.strip() for line in text.splitlines() if line.strip().startswith(beginning)]
    return found


def test_a_store_of_any_id_comes_into_an_airflow_that_has_its_section_already(
    airflow: Installation, store_copy, tmp_path: Path
) -> None:
    settings = airflow.home / "airflow.cfg"
    assert settings.read_text().count("\n[storage_engine]\n") == 1, "Airflow writes the section by itself"
    root = store_copy("clean-stop")
    words = ["--conn-id", "orders", "--store", str(root), "--lake", str(tmp_path / "lake")]
    init = f"storage-engine init --airflow {shlex.join(words)}"

    before = settings.read_bytes()
    airflow.run(f"{init} < /dev/null", status=2)
    assert settings.read_bytes() == before
    assert not (airflow.home / "dags").exists()

    said = airflow.run(f"{init} --yes")
    blocks = [block for block in blocks_of(PAGE) if block.language == "console"]
    shown = [command.line for block in blocks for command in commands_of(block)]
    for line in shown:
        if "orders" in line and " init --airflow" not in line and not line.startswith("export"):
            assert f"   {line}\n" in said, f"{PAGE.name} shows another command than init prints"
    assert settings.read_text().count("\n[storage_engine]\n") == 1
    assert airflow.run("airflow config get-value storage_engine stores").strip() == "orders"
    told = " ".join(said.split())
    assert "Archive and consumer lag run as Spark jobs by the connection storage_engine_spark" in told
    assert '"spark_conn_id": "storage_engine_spark"' in _printed(said, "airflow connections add orders")

    airflow.run(_printed(said, "airflow connections add orders"))
    airflow.run(_printed(said, "airflow connections add storage_engine_spark"))
    airflow.run(_printed(said, "storage-engine init-lake --conn-id orders") + " --allow-same-disk")
    assert "Testing connections is disabled in Airflow configuration" in airflow.run(
        "airflow connections test orders", status=1
    )
    test = _printed(said, "AIRFLOW__CORE__TEST_CONNECTION=Enabled")
    assert "Connection success!" in airflow.run(test)

    airflow.run("airflow dags reserialize")
    assert "No data found" in airflow.run("airflow dags list-import-errors -o plain")
    files = {path.stem for path in (airflow.home / "dags").glob("*.py")}
    # The store is none of Kafka's, so that init names it in no ``kafka_stores``.
    of_this_store = files - {"storage_maintenance", "storage_kafka_log_manager"}
    expected = {"storage_maintenance__lake"} | {f"{stem}__orders" for stem in of_this_store}
    listed = airflow.run("airflow dags list -o plain").splitlines()
    assert {line.split()[0] for line in listed if line.startswith("storage_")} == expected
    airflow.run(_printed(said, "airflow dags unpause storage_forced_cleanup__orders"))
    airflow.run(_printed(said, "airflow dags trigger storage_forced_cleanup__orders"))
    airflow.run(_printed(said, "airflow dags unpause --yes"))
    listed = airflow.run("airflow dags list -o plain").splitlines()
    assert {line.split()[3] for line in listed if line.startswith("storage_")} == {"False"}


def test_the_second_time_nothing_changes_and_another_store_is_added(
    airflow: Installation, store_copy
) -> None:
    init = f"storage-engine init --airflow --store {store_copy('clean-stop')} --yes"
    airflow.run(f"{init} --conn-id payments --add-connection --spark-conn-id spark_here")
    assert airflow.run("airflow config get-value storage_engine stores").strip() == "orders,payments"
    assert "payments" in airflow.run("airflow connections list -o plain")
    # One that nobody names is there by now, and taken.
    refunds = airflow.run(f"{init} --conn-id claims --env")
    assert '"spark_conn_id": "storage_engine_spark"' in _printed(refunds, "airflow connections add claims")
    assert "airflow connections add storage_engine_spark" not in refunds
    files = {path: path.read_bytes() for path in airflow.home.rglob("*.py")}
    files[airflow.home / "airflow.cfg"] = (airflow.home / "airflow.cfg").read_bytes()

    again = airflow.run(f"{init} --conn-id payments --add-connection --spark-conn-id spark_here")
    assert "Nothing to change" in again
    assert {path: path.read_bytes() for path in files} == files
    # The field names a Spark connection that nobody has added yet: said by init, and by the test.
    test = _printed(again, "AIRFLOW__CORE__TEST_CONNECTION=Enabled")
    told = " ".join(airflow.run(test, status=1).split())
    assert "field spark_conn_id: expected a connection of this Airflow, found none" in told
    airflow.run(_printed(again, "airflow connections add spark_here"))
    assert "Lake: there is none." in airflow.run(test, status=1)


def test_an_environment_that_sets_the_stores_is_told_what_to_set(airflow: Installation) -> None:
    settings = (airflow.home / "airflow.cfg").read_bytes()
    said = airflow.run(
        "AIRFLOW__STORAGE_ENGINE__STORES=orders storage-engine init --airflow --conn-id refunds --yes"
    )
    assert "export AIRFLOW__STORAGE_ENGINE__STORES=orders,refunds" in said
    assert "with your store's root instead of /path/to/store" in said
    assert (airflow.home / "airflow.cfg").read_bytes() == settings


def test_a_store_of_another_host_goes_to_its_edge_worker_and_nothing_else_does(airflow: Installation) -> None:
    init = "storage-engine init --airflow --conn-id far --store /not/here --yes --spark-conn-id ''"
    for wrong in ("", "--edge ''", "--edge a,b"):
        airflow.run(f"{init} {wrong}", status=2)
    said = airflow.run(f"{init} --edge broker-a --add-connection")
    assert "   airflow edge worker --queues broker-a\n" in said
    assert "connections test far" not in said
    assert '\n   mkdir -p "$AIRFLOW_HOME"/storage_engine\n   storage-engine init-lake --lake "$AI' in said
    listed = airflow.run("airflow config get-value storage_engine stores")
    assert '{"conn_id": "far", "queue": "broker-a", "executor": "EdgeExecutor"}' in listed
    assert airflow.run("airflow config get-value core executor").startswith(
        "LocalExecutor,airflow.providers.edge3"
    )
    assert '"queue": "broker-a"' in airflow.run("airflow connections get far -o json").replace("\\", "")
    airflow.run("airflow dags reserialize")
    assert "No data found" in airflow.run("airflow dags list-import-errors -o plain")
    again = airflow.run(f"{init} --edge broker-a --add-connection")
    assert "Nothing to change" in again
    assert "Set the field queue" not in again
    moved = airflow.run(f"{init} --edge broker-b --lake /lakes/far")
    assert "Set the field queue of the connection far, which already existed, to broker-b" in moved
    assert "init-lake --lake /lakes/far" in moved
