"""An Airflow that is there gets DAG files and one option, and loses nothing that a person wrote."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.project.into_airflow import (
    EDGE_EXECUTOR,
    Option,
    OwnAirflow,
    add_words,
    dag_changes,
    edge_options,
    make,
    parsed,
    settings_change,
    stores_with,
    with_option,
    with_store,
)

DAGS = sorted(path.name for path in (Path(__file__).parents[2] / "dags").glob("*.py"))
SETTINGS = "[core]\nfernet_key = hush\n\n[storage_engine]\nstores = storage_engine_default\nlake =\n"


@pytest.fixture
def airflow(tmp_path: Path) -> OwnAirflow:
    (tmp_path / "airflow.cfg").write_text(SETTINGS)
    return OwnAirflow(
        home=tmp_path,
        settings_file=tmp_path / "airflow.cfg",
        dags_folder=tmp_path / "dags",
        stores="storage_engine_default",
        by_environment=frozenset(),
        may_test=False,
        connections=frozenset(),
    )


def test_dag_files_are_new_once_and_then_as_they_should_be(airflow: OwnAirflow) -> None:
    changes = dag_changes(airflow.dags_folder, older_dag_ids=False)
    assert [change.path.name for change in changes] == DAGS
    assert all(change.text.startswith("new ") for change in changes)
    assert make(changes) == ()
    assert dag_changes(airflow.dags_folder, older_dag_ids=False) == ()
    assert sorted(path.name for path in airflow.dags_folder.iterdir()) == DAGS
    for path in airflow.dags_folder.iterdir():
        compile(path.read_bytes(), path, "exec")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_files_of_an_earlier_release_are_renewed_and_those_of_a_person_refused(airflow: OwnAirflow) -> None:
    from storage_engine.project.into_airflow import _marked

    airflow.dags_folder.mkdir()
    earlier, changed, other = (airflow.dags_folder / name for name in DAGS[:3])
    earlier.write_bytes(_marked(b"x = 1\n"))
    (renewed, *_) = dag_changes(airflow.dags_folder, older_dag_ids=False)
    assert (renewed.path, renewed.text) == (earlier, f"renewed  {earlier}")
    changed.write_bytes(_marked(b"x = 1\n") + b"y = 2\n")
    other.write_text("mine")
    with pytest.raises(
        BadInputError, match=rf"found other files: {changed.name}, {other.name}\. Nothing was changed"
    ):
        dag_changes(airflow.dags_folder, older_dag_ids=False)
    assert other.read_text() == "mine"


def test_files_that_were_copied_by_hand_are_ours(airflow: OwnAirflow) -> None:
    airflow.dags_folder.mkdir()
    for name in DAGS:
        (airflow.dags_folder / name).write_bytes((Path(__file__).parents[2] / "dags" / name).read_bytes())
    assert len(dag_changes(airflow.dags_folder, older_dag_ids=False)) == len(DAGS)


def test_older_dag_ids_come_where_they_are_asked_for(airflow: OwnAirflow) -> None:
    names = [change.path.name for change in dag_changes(airflow.dags_folder, older_dag_ids=True)]
    assert names == [*DAGS, "older_dag_ids.py"]


def test_the_settings_are_changed_in_one_line_and_kept_as_they_were(airflow: OwnAirflow) -> None:
    airflow.settings_file.chmod(0o640)
    stores = stores_with(airflow, "orders", "storage_engine_default")
    (change,) = settings_change(airflow, Option("storage_engine", "stores", stores))
    assert change.text.splitlines()[1:] == ["  -stores = storage_engine_default", "  +stores = orders"]
    assert "hush" not in change.text
    (copy,) = make((change,))
    assert copy.read_text() == SETTINGS
    assert airflow.settings_file.read_text() == SETTINGS.replace("storage_engine_default", "orders")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (copy, airflow.settings_file)} == {0o640}
    assert settings_change(airflow, Option("storage_engine", "stores", stores)) == ()


def test_a_link_to_the_settings_stays_one(airflow: OwnAirflow, tmp_path: Path) -> None:
    real = tmp_path / "etc.cfg"
    airflow.settings_file.rename(real)
    airflow.settings_file.symlink_to(real)
    make(settings_change(airflow, Option("storage_engine", "stores", "orders")))
    assert airflow.settings_file.is_symlink()
    assert "stores = orders" in real.read_text()


def test_nothing_is_written_where_a_file_has_changed_since_it_was_shown(airflow: OwnAirflow) -> None:
    changes = (
        *dag_changes(airflow.dags_folder, older_dag_ids=False),
        *settings_change(airflow, Option("storage_engine", "stores", "orders")),
    )
    airflow.settings_file.write_text(SETTINGS + "mine = 1\n")
    with pytest.raises(BadInputError, match="found other content"):
        make(changes)
    assert not airflow.dags_folder.exists()


def test_a_connection_is_added_by_airflows_own_command() -> None:
    assert add_words("orders", {"conn_type": "storage_engine", "port": 0, "extra": "{}"}) == [
        *("airflow", "connections", "add", "orders", "--conn-type", "storage_engine"),
        *("--conn-port", "0", "--conn-extra", "{}"),
    ]


def test_the_tasks_of_one_store_alone_go_to_an_edge_worker(airflow: OwnAirflow) -> None:
    others = replace(airflow, stores="orders,payments", executor="LocalExecutor")
    stores = stores_with(others, "orders", "storage_engine_default", "broker-a")
    entry = {"conn_id": "orders", "queue": "broker-a", "executor": "EdgeExecutor"}
    assert json.loads(stores) == [entry, {"conn_id": "payments"}]
    assert stores_with(replace(others, stores=stores), "orders", "", "broker-a") == stores
    assert edge_options(others) == (
        Option("core", "executor", f"LocalExecutor,{EDGE_EXECUTOR}"),
        Option("edge", "api_enabled", "True"),
    )
    (change,) = settings_change(others, *edge_options(others))
    assert change.after.decode().startswith(f"[core]\nexecutor = LocalExecutor,{EDGE_EXECUTOR}\nfernet_key")
    with_team = edge_options(replace(others, executor="LocalExecutor;team=CeleryExecutor"))
    assert with_team[0].value == f"LocalExecutor,{EDGE_EXECUTOR};team=CeleryExecutor"
    for executor in ("EdgeExecutor", f"LocalExecutor,edge:{EDGE_EXECUTOR}"):
        assert edge_options(replace(others, executor=executor, serves_edge=True)) == ()


FILE = Path("/airflow/airflow.cfg")
WRITTEN_BY_AIRFLOW = """\
[core]
# Where DAG files are.
dags_folder = /airflow/dags

[storage_engine]
# The stores that are managed.
#
# Example: stores = [{"conn_id": "orders_a"}]
stores = storage_engine_default

journal_url =

[triggerer]
stores = mine
"""


def _stores(text: str) -> str:
    return parsed(text, FILE).get("storage_engine", "stores")


def test_a_section_that_airflow_wrote_keeps_its_lines_but_one() -> None:
    after = with_option(WRITTEN_BY_AIRFLOW, "storage_engine", "stores", "orders")
    assert _stores(after) == "orders"
    changed = [
        pair
        for pair in zip(WRITTEN_BY_AIRFLOW.split("\n"), after.split("\n"), strict=True)
        if pair[0] != pair[1]
    ]
    assert changed == [("stores = storage_engine_default", "stores = orders")]
    assert with_option(after, "storage_engine", "stores", "orders") == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[core]\nx = 1",
        "[core]\nx = 1\n",
        "[storage_engine]\n",
        "[storage_engine]\nlake = /l\n[core]\nstores = no\n",
    ],
)
def test_a_section_or_option_that_is_not_there_is_made(text: str) -> None:
    after = with_option(text, "storage_engine", "stores", "a,b")
    assert _stores(after) == "a,b"
    assert set(text.splitlines()) <= set(after.splitlines())


def test_a_value_of_several_lines_is_replaced_whole() -> None:
    text = '[storage_engine]\nSTORES: [\n    {"conn_id": "a"},\n  {"conn_id": "b"}\n  ]\n\nlake = /l\n'
    after = with_option(text, "storage_engine", "stores", "c")
    assert after == "[storage_engine]\nstores = c\n\nlake = /l\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[storage_engine]\nlake=/l\n[storage_engine]\n",
            r"line 3: expected the section \[storage_engine\] once",
        ),
        ("[core]\na=1\na=2\n", r"line 3: expected the option a of \[core\] once"),
        ("stores = a\n", "expected settings of an Airflow"),
    ],
)
def test_what_airflow_would_not_start_with_is_named_by_its_line(text: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said) as raised:
        parsed(text, FILE)
    assert "/airflow/airflow.cfg" in str(raised.value)


@pytest.mark.parametrize(
    ("listed", "after"),
    [
        ("storage_engine_default", "orders"),
        ("", "orders"),
        ("a, b", "a,b,orders"),
        ("a, orders", "a, orders"),
        ('[{"conn_id": "a", "queue": "q"}]', '[{"conn_id": "a", "queue": "q"}, {"conn_id": "orders"}]'),
        ('[{"conn_id": "orders", "queue": "q"}]', '[{"conn_id": "orders", "queue": "q"}]'),
    ],
)
def test_a_store_is_listed_once_and_the_others_stay(listed: str, after: str) -> None:
    assert with_store(listed, "orders", without="storage_engine_default") == after


def test_a_default_that_has_a_connection_stays_in_the_list() -> None:
    assert with_store("storage_engine_default", "orders") == "storage_engine_default,orders"


@pytest.mark.parametrize("listed", ["[", json.dumps(["orders"]), json.dumps([{"id": "a"}])])
def test_a_list_that_cannot_be_read_is_left_alone(listed: str) -> None:
    with pytest.raises(BadInputError, match="stores: expected a JSON list of objects with conn_id"):
        with_store(listed, "orders")
