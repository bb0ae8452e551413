"""The Test button of a connection, its secrets, and connections that are not there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.file.jobs import AgentAccess

REPOSITORY = Path(__file__).parents[2]


def _content(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
def test_test_button_describes_what_it_found_and_changes_nothing(store_connection: Any) -> None:
    store = store_connection()
    before = _content(store.root)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert works, message
    assert "8 segments, 7 of them sealed" in message
    assert "Journal: it doesn't exist yet" in message
    assert "Lake: reachable" in message
    assert _content(store.root) == before
    assert sorted(path.name for path in store.directory.iterdir()) == ["lake"]


def test_test_button_says_that_a_lake_is_missing_and_what_makes_it(store_connection: Any) -> None:
    store = store_connection(make_lake=False)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert not works
    assert (
        f"Lake: it doesn't exist. Mount its disk, or create the lake: "
        f"storage-engine init-lake --conn-id {store.conn_id}" in message
    )
    assert not store.directory.exists()


def test_test_button_wants_no_lake_where_nothing_is_archived(store_connection: Any) -> None:
    store = store_connection(extra={"archive": "off"}, make_lake=False)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert works, message
    assert "Lake: not needed" in message
    assert not store.directory.exists()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"root": "/no/such/store"}, "/no/such/store"),
        ({"broker_conf": "/no/such/broker.conf"}, "/no/such/broker.conf"),
        ({"time_zone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"lake_properties": {"type": "sql", "uri": "sqlite:///:memory:"}, "lake_directory": ""}, "memory"),
    ],
)
def test_test_button_says_what_is_wrong(store_connection: Any, extra: dict[str, Any], said: str) -> None:
    store = store_connection(extra=extra)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert not works
    assert said in message


def test_secrets_of_a_connection_are_masked(store_connection: Any) -> None:
    from airflow.sdk.log import redact

    store = store_connection(
        extra={
            "journal_url": "postgresql://db/journal?user=keeper&password=journal-pass",
            "lake_directory": "",
            "lake_properties": {
                "type": "rest",
                "credential": "client:rest-secret",
                "s3.secret-access-key": "s3-secret-key",
                "header.X-Api-Key": "header-key",
            },
        }
    )
    assert StorageEngineHook(store.conn_id).managed_store
    shown = redact("journal-pass client:rest-secret s3-secret-key header-key")
    assert shown == "*** *** *** ***"


def test_a_connection_that_is_not_there_is_named_with_the_option_that_lists_it(
    monkeypatch: pytest.MonkeyPatch, airflow_database: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", "orders,payments")
    with pytest.raises(BadInputError) as raised:
        _ = StorageEngineHook("orders").managed_store
    said = str(raised.value)
    assert "connection orders: expected a connection of this Airflow, found none" in said
    assert "The option stores of [storage_engine] lists the stores' connections: orders,payments." in said
    assert "storage-engine init --airflow --conn-id orders" in said


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"spark_conn_id": "sparc"},
            "field spark_conn_id: expected a connection of this Airflow, found none with the id 'sparc'",
        ),
        (
            {"spark_from": "1,000 segments"},
            "field spark_from: expected 0, or one or more parts of 2GiB, 1000 segments, 1000000 positions, "
            "found '1,000 segments'",
        ),
        (
            {"mode": "live", "broker_address": "h:1", "broker_conn_id": "keys"},
            "field broker_conn_id: expected a connection of this Airflow, found none with the id 'keys'",
        ),
        (
            {"lake_directory": "", "lake": {"type": "rest", "uri": "http://c", "airflow.s3-conn-id": "s3"}},
            "field lake: expected a connection of this Airflow, found none with the id 's3'",
        ),
    ],
)
def test_a_connection_that_a_field_names_has_to_be_there(
    store_connection: Any, airflow_database: Path, extra: dict[str, Any], said: str
) -> None:
    store = store_connection(extra=extra)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert not works
    assert said in message


@pytest.mark.parametrize("kind", ["http", "spark_connect"])
def test_a_spark_connection_of_another_type_is_refused_before_any_work(
    kind: str, store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JOBS", json.dumps({"conn_type": kind, "host": "spark"}))
    store = store_connection(extra={"spark_conn_id": "jobs"})
    with pytest.raises(BadInputError) as raised:
        _ = StorageEngineHook(store.conn_id).managed_store
    assert str(raised.value).startswith(
        "connection a_store: field spark_conn_id: expected a connection of the type spark, found 'jobs' of "
        f"the type {kind!r}. Nothing was read or changed."
    )


def test_what_the_provider_calls_a_cluster_of_kubernetes_is_a_spark_connection(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JOBS", "k8s://https%3A%2F%2Fhost:443?deploy-mode=client")
    store = store_connection(extra={"spark_conn_id": "jobs"})
    assert StorageEngineHook(store.conn_id).managed_store.root


@pytest.mark.parametrize(
    ("host", "spark_from", "places"),
    [
        ("local[4]", "0", "in Spark at local[4]."),
        (
            "spark://h:7077",
            "1GiB",
            "in Spark at spark://h:7077 from 1.0 GiB or 1000 segments, or 1000000 posit",
        ),
    ],
)
def test_the_test_button_says_where_archive_and_lag_run(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch, host: str, spark_from: str, places: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_JOBS", json.dumps({"conn_type": "spark", "host": host}))
    store = store_connection(extra={"spark_conn_id": "jobs", "spark_from": spark_from})
    works, said = StorageEngineHook(store.conn_id).test_connection()
    assert (works, f"Archive and consumer lag: {places}" in said) == (True, True), said


def test_the_agent_of_a_connection_is_reached_by_its_files(store_connection: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    agent = {"address": "plain://db:7443", "token_file": str(token)}
    hook = StorageEngineHook(store_connection(extra={"agent": agent}).conn_id)
    assert hook.agent == AgentAccess("plain://db:7443", "0123456789abcdef")
    token.chmod(0o644)
    with pytest.raises(BadInputError, match="this user alone can read, found mode 644"):
        _ = hook.agent


def test_a_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "http", "extra": {"root": "/store"}}))
    with pytest.raises(BadInputError, match="expected the type storage_engine, found 'http'"):
        _ = StorageEngineHook("orders").managed_store


def test_a_test_in_the_form_does_not_name_the_id_that_airflow_makes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for extra, said in (
        ({"root": "store"}, "this connection: field root: expected an absolute path"),
        ({"root": str(REPOSITORY)}, ""),
    ):
        definition = {"conn_type": "storage_engine", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_AB3DEFGH", json.dumps(definition))
        works, message = StorageEngineHook("aB3dEfGh").test_connection()
        assert not works
        assert said in message
        assert "aB3dEfGh" not in message
