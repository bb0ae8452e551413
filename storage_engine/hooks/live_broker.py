"""From a connection's fields to the broker that runs on its store. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.fields import Fields
from storage_engine.model.live import LiveBroker

OFFLINE = "offline"
LIVE = "live"
BESIDE = "beside"
"""What older connections call it."""
TLS_OFF = "off"
TLS_ON = "on"
TLS_UNVERIFIED = "unverified"


def live_broker(read: Fields) -> LiveBroker | None:
    """Return what the fields say of a running broker; None where the store's broker is stopped.

    :raises BadInputError: a field that is missing, contradicts another one, or can't be read; names it.
    """
    mode = read.choice("mode", [OFFLINE, LIVE, BESIDE])
    address, name_servers = read.text("broker_address"), read.text("name_servers")
    if mode == OFFLINE:
        for name, given in (("broker_address", address), ("name_servers", name_servers)):
            if given:
                raise read.error(name, f"mode {LIVE}, or no {name}: offline, no broker runs", given)
        return None
    name = read.text("broker_name")
    if not address and not name_servers:
        raise read.error("broker_address", "host:port of the broker's listen port, or name_servers", "")
    if not address and not name:
        raise read.error("broker_name", "the name by which name servers know the broker", "")
    tls = read.choice("broker_tls", [TLS_OFF, TLS_ON, TLS_UNVERIFIED])
    files = {key: read.text(key) for key in ("broker_ca_file", "broker_certificate_file")}
    server_name = read.text("broker_server_name")
    for key, given in {**files, "broker_server_name": server_name}.items():
        if given and tls == TLS_OFF:
            raise read.error(key, f"broker_tls {TLS_ON}, or no {key}", given)
    return LiveBroker(
        address=address,
        name_servers=name_servers,
        broker_name=name,
        tls=tls != TLS_OFF,
        tls_ca_file=files["broker_ca_file"],
        tls_server_name=server_name,
        tls_certificate_file=files["broker_certificate_file"],
        tls_verify=tls != TLS_UNVERIFIED,
        may_change_settings=read.flag("may_change_settings"),
        hold_hours=read.number("hold_hours") or LiveBroker().hold_hours,
        allow_same_disk=read.flag("allow_same_disk"),
    )


def with_broker_credentials(
    live: LiveBroker, conn_id: str | None, connection: Callable[[str], Any]
) -> LiveBroker:
    """The broker with access key and secret key of a connection, if one is named.

    They are looked up when a task runs and stand in no DAG, no rendered field and no XCom.

    :raises BadInputError: that connection lacks one of them.
    """
    if conn_id is None:
        return live
    found = connection(conn_id)
    if not (found.login and found.password):
        missing = "password" if found.login else "login"
        raise BadInputError(
            f"connection {conn_id}, named by a store's broker_settings.conn_id: expected the broker's access "
            f"key as its login and the secret key as its password, found no {missing}."
        )
    return replace(live, access_key=found.login, secret_key=found.password)
