"""Which broker runs on a store, by the fields of its connection."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import Connection

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.connection import Defaults, managed_store, with_broker_credentials
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.model.broker.live import LiveBroker

BESIDE = {"mode": "beside", "broker_address": "10.0.0.1:10911"}


def _live(extra: dict[str, Any]) -> LiveBroker | None:
    return managed_store("c", {"root": "/store", **extra}, None, Defaults(home="/airflow")).live


def _lookup(*connections: Connection) -> Callable[[str], Connection]:
    return {connection.conn_id: connection for connection in connections}.__getitem__


@pytest.mark.parametrize(
    "extra", [{}, {"mode": "offline"}, {"mode": "", "may_change_settings": True, "hold_hours": 2}]
)
def test_a_store_is_offline_unless_its_connection_says_otherwise(extra: dict[str, Any]) -> None:
    assert _live(extra) is None


def test_a_broker_beside_is_reached_by_its_address_and_changed_by_nobody() -> None:
    assert _live(BESIDE) == LiveBroker(address="10.0.0.1:10911")


def test_a_broker_is_found_by_name_servers_and_its_name() -> None:
    extra = {"mode": "beside", "name_servers": "a:9876;b:9876", "broker_name": "orders-a"}
    assert _live(extra) == LiveBroker(name_servers="a:9876;b:9876", broker_name="orders-a")


@pytest.mark.parametrize("as_given", [lambda value: value, str], ids=["typed", "text"])
def test_every_field_of_a_broker_counts(as_given: Callable[[object], object]) -> None:
    extra = {
        "broker_tls": "unverified",
        "broker_ca_file": "/ca.pem",
        "broker_server_name": "broker.internal",
        "broker_certificate_file": "/own.pem",
        "may_change_settings": as_given(True),
        "hold_hours": as_given(3),
        "allow_same_disk": as_given(True),
    }
    assert _live({**BESIDE, **extra}) == LiveBroker(
        address="10.0.0.1:10911",
        tls=True,
        tls_verify=False,
        tls_ca_file="/ca.pem",
        tls_server_name="broker.internal",
        tls_certificate_file="/own.pem",
        may_change_settings=True,
        hold_hours=3,
        allow_same_disk=True,
    )


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"mode": "remote"}, "mode"),
        ({"mode": "beside"}, "broker_address"),
        ({"mode": "beside", "broker_name": "orders-a"}, "broker_address"),
        ({"mode": "beside", "name_servers": "a:9876"}, "broker_name"),
        ({"broker_address": "10.0.0.1:10911"}, "broker_address"),
        ({"mode": "offline", "name_servers": "a:9876"}, "name_servers"),
        ({**BESIDE, "broker_tls": "maybe"}, "broker_tls"),
        ({**BESIDE, "broker_ca_file": "/ca.pem"}, "broker_ca_file"),
        ({**BESIDE, "broker_server_name": "b"}, "broker_server_name"),
        ({**BESIDE, "hold_hours": 0}, "hold_hours"),
        ({**BESIDE, "may_change_settings": "perhaps"}, "may_change_settings"),
    ],
)
def test_a_bad_or_contradicting_field_is_named(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInputError, match=rf"connection c: field (broker_settings\.)?{field}: expected "):
        _live(extra)


def test_keys_come_from_the_connection_that_is_named() -> None:
    named = Connection(conn_id="keys", conn_type="generic", login="archiver", password="hush")
    live = with_broker_credentials(LiveBroker(), "keys", _lookup(named))
    assert (live.access_key, live.secret_key) == ("archiver", "hush")
    assert "hush" not in repr(live)


def test_without_such_a_connection_nothing_is_signed() -> None:
    assert with_broker_credentials(LiveBroker(), None, _lookup()) == LiveBroker()


@pytest.mark.parametrize(("login", "password", "missing"), [("a", "", "password"), ("", "b", "login")])
def test_a_connection_without_both_keys_is_refused(login: str, password: str, missing: str) -> None:
    named = Connection(conn_id="keys", conn_type="generic", login=login, password=password)
    with pytest.raises(BadInputError, match=f"connection keys, .* found no {missing}"):
        with_broker_credentials(LiveBroker(), "keys", _lookup(named))


def test_a_connection_of_the_brokers_client_gives_its_settings() -> None:
    named = Connection(
        conn_id="cluster",
        conn_type="kafka",
        extra=json.dumps({"bootstrap.servers": "a:1", "sasl.password": "hush", "retries": 3}),
    )
    live = with_broker_credentials(LiveBroker(), "cluster", _lookup(named), "kafka")
    assert live.client == {"bootstrap.servers": "a:1", "sasl.password": "hush", "retries": "3"}
    assert "hush" not in repr(live)


def test_a_store_whose_client_has_a_connection_needs_no_address_beside_it() -> None:
    extra = {"broker_type": "kafka", "mode": "live", "broker_conn_id": "cluster"}
    assert _live(extra) == LiveBroker()
    with pytest.raises(BadInputError, match="field broker_address: expected a value"):
        _live({**extra, "broker_type": "rocketmq"})


@pytest.mark.slow
def test_the_settings_of_a_client_are_looked_up_and_their_secrets_masked(
    store_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.log import redact

    extra = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "cluster-secret"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "kafka", "extra": extra}))
    store = store_connection(extra={"broker_type": "kafka", "mode": "live", "broker_conn_id": "cluster"})
    live = StorageEngineHook(store.conn_id).managed_store.live
    assert live is not None
    assert live.client == extra
    assert redact("cluster-secret") == "***"


@pytest.mark.slow
def test_the_secret_key_is_masked(store_connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.log import redact

    keys = {"conn_type": "generic", "login": "archiver", "password": "broker-secret-key"}
    monkeypatch.setenv("AIRFLOW_CONN_KEYS", json.dumps(keys))
    store = store_connection(extra={**BESIDE, "broker_conn_id": "keys"})
    live = StorageEngineHook(store.conn_id).managed_store.live
    assert live is not None
    assert live.secret_key == "broker-secret-key"
    assert redact("broker-secret-key") == "***"


def test_test_button_says_that_a_broker_does_not_answer(store_connection: Any) -> None:
    store = store_connection(extra={"mode": "beside", "broker_address": "127.0.0.1:1"})
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert not works
    assert "127.0.0.1:1" in message
