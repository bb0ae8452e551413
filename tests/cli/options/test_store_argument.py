"""Which broker runs on a store, by the options of any command that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.options.store_argument import SECRET_KEY, live_broker
from storage_engine.model.broker.live import LiveBroker

NOTHING: dict[str, Any] = {
    "broker_address": None,
    "name_servers": None,
    "broker_name": None,
    "broker_conn_id": None,
    "client_config": None,
    "broker_tls": False,
    "broker_ca_file": None,
    "broker_server_name": None,
    "broker_certificate_file": None,
    "tls_unverified": False,
    "may_change_settings": False,
    "hold_hours": None,
    "allow_same_disk": False,
    "deletes": False,
    "hold": False,
    "accept_version": None,
}
DEAD = "127.0.0.1:1"


def test_without_these_options_the_broker_is_stopped() -> None:
    assert live_broker(NOTHING) is None


def test_every_option_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_KEY, "hush")
    given = {
        "broker_address": "a:10911",
        "name_servers": "n:9876",
        "broker_name": "orders-a",
        "broker_conn_id": "archiver",
        "client_config": "/client.conf",
        "broker_tls": True,
        "broker_ca_file": "/ca.pem",
        "broker_server_name": "broker.internal",
        "broker_certificate_file": "/own.pem",
        "tls_unverified": True,
        "may_change_settings": True,
        "hold_hours": 3,
        "allow_same_disk": True,
        "deletes": True,
        "hold": True,
        "accept_version": "5.6.0",
    }
    assert live_broker(given) == LiveBroker(
        address="a:10911",
        name_servers="n:9876",
        broker_name="orders-a",
        access_key="archiver",
        secret_key="hush",
        client_config="/client.conf",
        tls=True,
        tls_ca_file="/ca.pem",
        tls_server_name="broker.internal",
        tls_certificate_file="/own.pem",
        tls_verify=False,
        may_change_settings=True,
        hold_hours=3,
        allow_same_disk=True,
        deletes="us",
        hold="strict",
        accept_version="5.6.0",
    )


def test_a_secret_key_without_an_access_key_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_KEY, "hush")
    assert live_broker({**NOTHING, "broker_address": "a:1"}) == LiveBroker(address="a:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name-servers", "n:9876"], "--broker-name"),
        (["--broker-name", "orders-a"], "--broker or --name-servers"),
        (["--may-change-settings", "--hold-hours", "2"], "--may-change-settings, --hold-hours"),
        (["--allow-same-disk"], "--allow-same-disk"),
        (["--broker", DEAD, "--tls-unverified"], "--tls"),
        (["--broker", DEAD, "--access-key", "archiver"], SECRET_KEY),
        (["--broker", DEAD, "--hold-hours", "0"], "--hold-hours"),
        (["--broker", "no port"], "host:port"),
    ],
)
def test_options_that_lack_or_contradict_another_are_bad_input(
    cli: Any, archived: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.delenv(SECRET_KEY, raising=False)
    outcome = cli("plan", archived.store, *words)
    assert outcome.exit_code == 2
    assert said in outcome.err


@pytest.mark.parametrize("command", ["hold", "unmanage"])
def test_a_hold_is_for_a_broker_that_runs(cli: Any, archived: Any, command: str) -> None:
    outcome = cli(command, archived.store, "--lake", archived.lake)
    assert outcome.exit_code == 2
    assert "--broker" in outcome.err


def test_the_lake_alone_has_no_broker(cli: Any, archived: Any) -> None:
    outcome = cli("verify", "--lake", archived.lake, "--broker", DEAD)
    assert outcome.exit_code == 2
    assert "expected STORE" in outcome.err


@pytest.mark.parametrize(
    "command", ["inspect", "plan", "lag", "index-lookup", "archive", "clean", "validate", "hold", "unmanage"]
)
def test_a_broker_that_does_not_answer_is_named_and_leaves_no_trace(
    cli: Any, archived: Any, files: Any, lake: Path, command: str
) -> None:
    more: dict[str, list[object]] = {
        "index-lookup": ["orders", "key"],
        "unmanage": ["--lake", archived.lake],
        **{name: ["--lake", lake] for name in ("archive", "clean", "hold")},
    }
    before = files(lake)
    outcome = cli(command, archived.store, *more.get(command, []), "--broker", DEAD)
    assert outcome.exit_code == 1
    assert DEAD in outcome.err
    assert files(lake) == before
