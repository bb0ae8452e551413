"""From a connection to a managed store, and the Test button."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.connection import Defaults, managed_store
from storage_engine.hooks.storage_engine import StorageEngineHook, configured_stores
from storage_engine.model.policy import ArchiveMode, LagPolicy, ShieldMode

DEFAULTS = Defaults(home="/airflow")


def _store(extra: dict[str, Any], password: str | None = None, defaults: Defaults = DEFAULTS) -> Any:
    return managed_store("c", {"root": "/store", **extra}, password, defaults)


def _content(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_empty_fields_lie_under_airflow_home() -> None:
    store = _store({})
    assert store.journal_url == "sqlite:////airflow/storage_engine/journal.db"
    assert store.report_dir == "/airflow/storage_engine/reports"
    assert store.lake.location == "file:///airflow/storage_engine/lake/warehouse"
    assert (store.broker_conf, store.time_zone, dict(store.overrides)) == (None, None, {})
    assert (store.policy.archive, store.policy.lag_policy) == (ArchiveMode.REQUIRED, LagPolicy.WARN)


def test_the_provider_section_wins_over_airflow_home_and_the_connection_over_both() -> None:
    section = Defaults(home="/airflow", journal_url="sqlite:////j.db", lake="/lake", report_dir="/reports")
    store = _store({}, defaults=section)
    assert (store.journal_url, store.report_dir) == ("sqlite:////j.db", "/reports")
    assert store.lake.location == "file:///lake/warehouse"
    named = {"journal_url": "sqlite:////own.db", "lake_directory": "/own", "report_dir": "/own/reports"}
    store = _store(named, defaults=section)
    assert (store.journal_url, store.report_dir) == ("sqlite:////own.db", "/own/reports")
    assert store.lake.location == "file:///own/warehouse"


def test_the_journal_password_is_put_into_its_url() -> None:
    store = _store({"journal_url": "postgresql://keeper@db/journal"}, password="p@ss/word")
    assert store.journal_url == "postgresql://keeper:p%40ss%2Fword@db/journal"


def test_how_fast_to_archive_is_a_number_of_bytes() -> None:
    assert _store({}).policy.archive_bytes_per_second is None
    assert _store({"archive_bytes_per_second": 0}).policy.archive_bytes_per_second == 0
    assert _store({"archive_bytes_per_second": "50000000"}).policy.archive_bytes_per_second == 50_000_000
    with pytest.raises(
        BadInputError, match="archive_bytes_per_second: expected a whole number of at least 0"
    ):
        _store({"archive_bytes_per_second": -1})


def test_a_minimum_retention_is_a_number_of_hours() -> None:
    assert _store({}).policy.minimum_retention_hours is None
    assert _store({"minimum_retention_hours": "48"}).policy.minimum_retention_hours == 48
    with pytest.raises(BadInputError, match="minimum_retention_hours: expected a whole number above 0"):
        _store({"minimum_retention_hours": 0})


@pytest.mark.parametrize("form", [lambda value: value, json.dumps], ids=["object", "text"])
def test_objects_may_come_as_json_text(form: Callable[[object], object]) -> None:
    store = _store(
        {
            "lake_catalog": "prod",
            "lake_properties": form({"type": "rest", "uri": "http://catalog", "ssl": True}),
            "overrides": form({"fileReservedTime": 48}),
        }
    )
    assert store.lake.name == "prod"
    assert dict(store.lake.properties) == {"type": "rest", "uri": "http://catalog", "ssl": "true"}
    assert dict(store.overrides) == {"fileReservedTime": "48"}


def test_the_section_may_name_a_catalog() -> None:
    section = Defaults(home="/airflow", lake='{"type": "rest", "uri": "http://catalog"}')
    assert dict(_store({}, defaults=section).lake.properties) == {"type": "rest", "uri": "http://catalog"}


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"root": ""}, "root"),
        ({"root": 5}, "root"),
        ({"archive": "maybe"}, "archive"),
        ({"lag_policy": "shrug"}, "lag_policy"),
        ({"pending_policy": "shrug"}, "pending_policy"),
        ({"overrides": "[1]"}, "overrides"),
        ({"overrides": "{"}, "overrides"),
        ({"lake_directory": "/l", "lake_properties": {"type": "rest"}}, "lake_directory"),
    ],
)
def test_a_bad_field_is_named(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInputError, match=rf"connection c: field {field}: expected "):
        _store(extra)


def test_bad_catalog_settings_are_not_quoted_as_they_may_hold_secrets() -> None:
    with pytest.raises(BadInputError) as raised:
        _store({}, defaults=Defaults(home="/a", lake='{"token": "hush" oops'))
    assert "hush" not in str(raised.value)


def test_stores_are_listed_by_the_provider_section(monkeypatch: pytest.MonkeyPatch) -> None:
    assert configured_stores() == ("storage_engine_default",)
    monkeypatch.setenv("AIRFLOW__STORAGE_ENGINE__STORES", " a, b ,,a")
    assert configured_stores() == ("a", "b")


@pytest.mark.slow
def test_test_button_describes_what_it_found_and_changes_nothing(store_connection: Any) -> None:
    store = store_connection()
    before = _content(store.root)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert works, message
    assert "8 segments, 7 of them sealed" in message
    assert "Journal: none yet" in message
    assert "Lake: reachable" in message
    assert _content(store.root) == before
    assert sorted(path.name for path in store.directory.iterdir()) == ["lake"]


def test_test_button_says_that_a_lake_is_missing_and_what_makes_it(store_connection: Any) -> None:
    store = store_connection(make_lake=False)
    works, message = StorageEngineHook(store.conn_id).test_connection()
    assert not works
    assert (
        f"Lake: there is none. Mount its disk, or make it: storage-engine init-lake --conn-id {store.conn_id}"
        in message
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


def test_the_shield_is_as_the_fields_say() -> None:
    assert _store({}).policy.shield is ShieldMode.AUTO
    assert _store({}).policy.shield_give_up_percent == 95
    policy = _store({"shield": "on", "shield_give_up_percent": "98"}).policy
    assert (policy.shield, policy.shield_give_up_percent) == (ShieldMode.ON, 98)
    with pytest.raises(BadInputError, match="shield_give_up_percent: expected a percentage from 1 to 100"):
        _store({"shield_give_up_percent": 101})
