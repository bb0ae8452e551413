"""A lake's credentials come from the connections that its properties name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from airflow.providers.common.compat.sdk import Connection

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.connection import with_credentials
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.catalog.config import LakeConfig

AWS = Connection(
    conn_id="store",
    conn_type="aws",
    login="key-id",
    password="object-secret",
    extra='{"region_name": "eu-west-1", "endpoint_url": "https://objects", "aws_session_token": "session"}',
)
POSTGRES = Connection(
    conn_id="catalog",
    conn_type="postgres",
    host="db",
    port=5432,
    schema="lake",
    login="keeper",
    password="p@ss/word",
)
REST = Connection(
    conn_id="catalog",
    conn_type="http",
    host="catalog",
    port=8181,
    schema="https",
    login="client",
    password="rest-secret",
)


def _lookup(*connections: Connection) -> Callable[[str], Connection]:
    return {connection.conn_id: connection for connection in connections}.__getitem__


def test_an_aws_connection_opens_the_object_store() -> None:
    lake = LakeConfig("l", {"warehouse": "s3://lake", "airflow.s3-conn-id": "store"})
    assert dict(with_credentials(lake, _lookup(AWS)).properties) == {
        "warehouse": "s3://lake",
        "s3.access-key-id": "key-id",
        "s3.secret-access-key": "object-secret",
        "s3.session-token": "session",
        "s3.endpoint": "https://objects",
        "s3.region": "eu-west-1",
    }


def test_a_property_of_the_lake_wins_over_the_connection() -> None:
    lake = LakeConfig("l", {"s3.region": "us-east-1", "airflow.s3-conn-id": "store"})
    assert with_credentials(lake, _lookup(AWS)).properties["s3.region"] == "us-east-1"


def test_a_postgres_connection_is_the_catalog() -> None:
    lake = with_credentials(LakeConfig("l", {"airflow.catalog-conn-id": "catalog"}), _lookup(POSTGRES))
    assert dict(lake.properties) == {
        "type": "sql",
        "uri": "postgresql+psycopg://keeper:p%40ss%2Fword@db:5432/lake",
    }
    assert "p@ss/word" in lake.secrets


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        (REST, {"uri": "https://catalog:8181", "credential": "client:rest-secret"}),
        (
            Connection(conn_id="catalog", conn_type="iceberg", host="https://c/api", password="bearer"),
            {"uri": "https://c/api", "token": "bearer"},
        ),
        (Connection(conn_id="catalog", conn_type="http", host="catalog"), {"uri": "http://catalog"}),
    ],
    ids=["client credentials", "token", "open"],
)
def test_an_http_or_iceberg_connection_is_a_rest_catalog(
    connection: Connection, expected: dict[str, str]
) -> None:
    lake = with_credentials(LakeConfig("l", {"airflow.catalog-conn-id": "catalog"}), _lookup(connection))
    assert dict(lake.properties) == {"type": "rest", **expected}


def test_a_connection_of_another_type_is_refused_by_name() -> None:
    lake = LakeConfig("l", {"airflow.s3-conn-id": "catalog"})
    with pytest.raises(BadInputError, match=r"connection catalog.*expected type aws, found 'postgres'"):
        with_credentials(lake, _lookup(POSTGRES))


def test_the_hook_looks_them_up_and_masks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {
        "conn_type": "storage_engine",
        "extra": {
            "root": "/store",
            "lake_properties": {"warehouse": "s3://a", "airflow.s3-conn-id": "store"},
            "second_lake": {"warehouse": "s3://b", "airflow.catalog-conn-id": "catalog"},
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_STORE", AWS.as_json())
    monkeypatch.setenv("AIRFLOW_CONN_CATALOG", POSTGRES.as_json())
    masked: list[str] = []
    monkeypatch.setattr("storage_engine.hooks.storage_engine.mask_secret", masked.append)

    managed = StorageEngineHook("broker").managed_store

    assert managed.lake.properties["s3.secret-access-key"] == "object-secret"
    assert managed.second_lake is not None
    assert managed.second_lake.properties["uri"].startswith("postgresql+psycopg://keeper:")
    assert {"object-secret", "session", "p@ss/word"} <= set(masked)
    assert not [secret for secret in masked if secret in repr(managed)]
