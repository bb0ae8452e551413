"""Airflow's settings file: one option is set, all else stays, and Airflow starts with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.project.settings_text import parsed, with_option, with_store

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
