"""How the fields of a connection become the settings of a store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.get_provider_info import form_fields
from storage_engine.hooks.connection import Defaults, managed_store, moved_fields
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.settings.policy import ArchiveMode, LagPolicy, Policy, ShieldMode

REPOSITORY = Path(__file__).parents[2]
DEFAULTS = Defaults(home="/airflow")


def _store(extra: dict[str, Any], password: str | None = None, defaults: Defaults = DEFAULTS) -> Any:
    return managed_store("c", {"root": "/store", **extra}, password, defaults)


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


def test_the_shield_is_as_the_fields_say() -> None:
    assert _store({}).policy.shield is ShieldMode.AUTO
    assert _store({}).policy.shield_give_up_percent == 95
    policy = _store({"shield": "on", "shield_give_up_percent": "98"}).policy
    assert (policy.shield, policy.shield_give_up_percent) == (ShieldMode.ON, 98)
    with pytest.raises(BadInputError, match="shield_give_up_percent: expected a whole number from 1 to 100"):
        _store({"shield_give_up_percent": 101})


def test_a_policy_is_an_object_or_a_name_of_the_section() -> None:
    section = Defaults(home="/airflow", policies='{"orders": {"lag_policy": "block"}}')
    for policy in ("orders", {"lag_policy": "block"}, '{"lag_policy": "block"}'):
        assert _store({"policy": policy}, defaults=section).policy == Policy(lag_policy=LagPolicy.BLOCK)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"policy": {"lag_polcy": "warn"}},
            r"policy\.lag_polcy: expected a known name, found 'lag_polcy'. Did you mean lag_policy\?",
        ),
        ({"policy": {"lag_policy": "no"}}, r"field policy\.lag_policy: expected one of block, warn, ignore"),
        ({"policy": {"undo_window_hours": 721}}, r"policy\.undo_window_hours: expected a whole number"),
        ({"policy": "payments"}, r"a name in \[storage_engine\] policies \(orders\), found 'payments'"),
        (
            {"policy": {"shield": "on"}, "shield": "off"},
            "field shield: expected no value, because policy has shield = on",
        ),
    ],
)
def test_a_policy_that_cannot_be_read_is_named(extra: dict[str, Any], said: str) -> None:
    section = Defaults(home="/airflow", policies='{"orders": {"lag_policy": "block"}}')
    with pytest.raises(BadInputError, match=said):
        _store(extra, defaults=section)


def test_a_field_that_has_moved_is_read_and_its_new_place_is_named() -> None:
    extra = {"lag_policy": "block", "archive": "required", "minimum_retention_hours": "48"}
    assert _store(extra).policy == Policy(lag_policy=LagPolicy.BLOCK, minimum_retention_hours=48)
    assert _store({**extra, "policy": {"lag_policy": "block"}}).policy == _store(extra).policy
    assert moved_fields(extra) == ""
    assert 'policy = {"undo_window_hours": "48"}' in moved_fields({**extra, "undo_window_hours": "48"})
    assert moved_fields({"policy": {"lag_policy": "block"}, "archive": "required", "mode": "live"}) == ""


OLDER = {
    "mode": "beside",
    "broker_address": "10.0.0.1:10911",
    "overrides": {"fileReservedTime": "48"},
    "time_zone": "Asia/Shanghai",
    "broker_tls": "on",
    "broker_ca_file": "/ca.pem",
    "hold_hours": "3",
    "lake_directory": "/data/lake",
    "archive": "off",
}

TODAY = {
    "mode": "live",
    "broker_address": "10.0.0.1:10911",
    "time_zone": "Asia/Shanghai",
    "broker_tls": "on",
    "broker_settings": {
        "overrides": {"fileReservedTime": "48"},
        "ca_file": "/ca.pem",
        "hold_hours": 3,
    },
    "lake": "/data/lake",
    "policy": {"archive": "off"},
}


def test_an_older_connection_amounts_to_what_one_of_today_does() -> None:
    assert _store(OLDER) == _store(TODAY)
    told = moved_fields(OLDER)
    assert "mode = live" in told
    for part in ("broker_settings", "policy"):
        assert (
            f"{part} = {json.dumps({**TODAY[part], **({'hold_hours': '3'} if part != 'policy' else {})})}"
            in told
        )


WRITTEN_BY_INIT = {
    "mode": "offline",
    "broker_tls": "off",
    "may_change_settings": False,
    "allow_same_disk": False,
    "overrides": {},
    "archive": "required",
    "lag_policy": "warn",
    "shield": " auto ",
}


def test_what_older_connections_have_by_themselves_is_in_nobody_s_way() -> None:
    settings = {"may_change_settings": True, "overrides": {"fileReservedTime": "48"}}
    today = {"mode": "live", "broker_address": "h:1", "policy": {"lag_policy": "block"}}
    store = _store({**WRITTEN_BY_INIT, **today, "broker_settings": settings})
    assert store.policy == Policy(lag_policy=LagPolicy.BLOCK)
    assert store.overrides == {"fileReservedTime": "48"}
    assert store.live is not None
    assert store.live.may_change_settings
    assert moved_fields(WRITTEN_BY_INIT) == ""
    same = {"overrides": '{"deleteWhen": "1"}', "broker_settings": {"overrides": {"deleteWhen": "1"}}}
    assert _store(same).overrides == {"deleteWhen": "1"}
    assert "lake = the value of lake_properties" in moved_fields({"lake_properties": {"token": "hush"}})


def test_a_lake_is_a_directory_or_properties_of_a_catalog() -> None:
    properties = {"name": "prod", "type": "rest", "uri": "http://catalog"}
    for given in (properties, json.dumps(properties)):
        lake = _store({"lake": given}).lake
        assert (lake.name, dict(lake.properties)) == ("prod", {"type": "rest", "uri": "http://catalog"})
    assert _store({"lake": "/data/lake"}).lake == LakeConfig.local("/data/lake")
    with pytest.raises(BadInputError, match="field lake: expected a catalog's properties"):
        _store({"lake": {"name": "prod"}})
    with pytest.raises(BadInputError, match="field lake_directory: expected empty, because lake is given"):
        _store({"lake": "/data/lake", "lake_directory": "/other"})


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"broker_settings": {"time_zon": "UTC"}},
            r"broker_settings\.time_zon: expected a known name, found 'time_zon'. Did you mean time_zone\?",
        ),
        ({"broker_settings": {"hold_hours": 3}, "mode": "live"}, r"field broker_address"),
        (
            {**TODAY, "broker_settings": {"hold_hours": 0}},
            r"broker_settings\.hold_hours: expected a whole number",
        ),
        (
            {**TODAY, "hold_hours": 4},
            r"field hold_hours: expected no value, because broker_settings has hold_hours = 3",
        ),
        ({"broker_settings": "[1]"}, "field broker_settings: expected a JSON object"),
        (
            {"broker_settings": {"time_zone": "Shanghai"}},
            r"settings\.time_zone: expected an IANA",
        ),
        ({"time_zone": "../UTC"}, "field time_zone: expected an IANA time zone such as Asia/Shanghai"),
        ({"mode": "live", "broker_address": "10.0.0.1"}, "field broker_address: expected host:port, as in"),
        ({"mode": "live", "broker_address": "h:0"}, "field broker_address: expected host:port, as in"),
        (
            {"mode": "live", "broker_settings": {"name_servers": "a:9876;b", "broker_name": "n"}},
            r"broker_settings\.name_servers: expected host:port, several separated by ;",
        ),
    ],
)
def test_a_broker_setting_that_cannot_be_read_is_named(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        _store(extra)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"root": "data/store"}, "field root: expected an absolute path, which begins with /, found 'data/"),
        ({"broker_conf": "broker.conf"}, "field broker_conf: expected an absolute path"),
        ({"time_zone": "Shanghai"}, r"field time_zone: .*, found 'Shanghai'. Did you mean Asia/Shanghai\?"),
        ({"time_zone": "UTC+8"}, "field time_zone: expected an IANA time zone such as Asia/Shanghai, found"),
        ({"mode": "lvie"}, "field mode: expected one of offline, live, engine, found 'lvie'"),
        ({"mode": "live", "broker_address": "10.0.0.1"}, "field broker_address: expected host:port, as in"),
        ({"mode": "live", "broker_address": "10.0.0.1:70000"}, "field broker_address: expected host:port"),
        ({"broker_type": "rocketmg"}, r"field broker_type: .*found 'rocketmg'. Did you mean rocketmq\?"),
        ({"lake": "lake"}, "field lake: expected an absolute path, which begins with /, found 'lake'"),
        (
            {"lake": {"uri": "s3://b/x", "warehouse": "w"}},
            "field lake: expected a property with the catalog's type, .*, found 'uri, warehouse'",
        ),
        ({"lag_polcy": "block"}, r"field lag_polcy: expected a known name, .* Did you mean lag_policy\?"),
        ({"minimum_retention_hors": 48}, r"Did you mean minimum_retention_hours\?"),
        ({"policy": {"undo_window": 24}}, r"field policy.undo_window: .* Did you mean undo_window_hours\?"),
        ({"lag_policy": "blok"}, "field lag_policy: expected one of block, warn, ignore, found 'blok'"),
        (
            {"broker_settings": {"overrides": {"fileReservedTimes": "1"}}},
            r"field broker_settings.overrides: .* Did you mean fileReservedTime\?",
        ),
        ({"tls": "on"}, "field tls: expected broker_tls, or tls inside broker_settings, found 'tls'"),
        ({"broker_tls": "yes"}, "field broker_tls: expected one of off, on, unverified, found 'yes'"),
        ({"qqqq": 1}, "field qqqq: expected one of accept_version, agent, allow_same_disk, .*, found 'qqqq'"),
    ],
)
def test_a_newcomers_mistake_is_named_by_its_field_and_a_page(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said) as raised:
        _store(extra)
    assert "Nothing was changed." in str(raised.value)
    page = re.search(r"See: storage-engine docs ([a-z-]+)$", str(raised.value))
    assert page is not None
    assert (REPOSITORY / "docs" / f"{page[1]}.md").is_file()


def test_a_default_lake_that_depends_on_where_a_process_starts_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"\[storage_engine\] lake: expected an absolute path"):
        _store({}, defaults=Defaults(home="/airflow", lake="lake"))


def test_what_the_form_asks_for_may_stand_inside_the_json_fields_as_well() -> None:
    form = {"time_zone": "Asia/Tokyo", "lag_policy": "block", "minimum_retention_hours": 48}
    inside = {
        "broker_settings": {"time_zone": "Asia/Tokyo"},
        "policy": {"lag_policy": "block", "minimum_retention_hours": 48},
    }
    assert _store(form) == _store(inside)
    assert moved_fields(inside) == ""
    with pytest.raises(
        BadInputError, match="field time_zone: expected no value, because broker_settings has"
    ):
        _store({**inside, "time_zone": "UTC"})


def test_what_nobody_chose_in_the_form_does_not_contradict_a_policy_by_name() -> None:
    chosen = {name: field["schema"].get("default") for name, field in form_fields().items()}
    section = Defaults(home="/airflow", policies='{"orders": {"lag_policy": "block"}}')
    store = _store({**chosen, "root": "/store", "policy": "orders"}, defaults=section)
    assert store.policy == Policy(lag_policy=LagPolicy.BLOCK)


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ({"token_file": "/token"}, "field agent: expected address, and no other keys than token_file, "),
        ({"address": "db:7443", "ca": "/ca"}, "field agent: expected address, and no other keys than"),
        ({"address": "db:7443", "ca_file": "ca"}, "field agent.ca_file: expected an absolute path"),
    ],
)
def test_an_agent_is_named_by_an_address_and_files(agent: dict[str, str], expected: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(expected)):
        _store({"agent": agent})
    _store({"agent": {"address": "db:7443", "token_file": "/token", "ca_file": "/ca"}})
