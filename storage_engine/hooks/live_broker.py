"""From a connection's fields to the broker that runs on its store. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.fields import Fields
from storage_engine.model.broker.live import LiveBroker, live_broker
from storage_engine.model.settings.store_settings import LIVE, MODES, STORE_SETTINGS

BESIDE = "beside"
"""What older connections call the mode live."""


def broker_of_fields(read: Fields, client_connection: str) -> LiveBroker | None:
    """Return what the fields say of a running broker; None where the store's broker is stopped.

    :param client_connection: type of the connections that may have the broker's address; "": there is none.
    :raises BadInputError: a field that is missing, contradicts another one, or can't be read; names it.
    """
    mode = LIVE if read.text("mode") == BESIDE else read.choice("mode", MODES)
    values = {one.name: read.read(one) for one in STORE_SETTINGS if one.live}
    if mode != LIVE:
        for name in ("broker_address", "name_servers"):
            if given := read.text(name):
                raise read.error(name, f"mode {LIVE}, or no {name}: {mode}, no broker runs", given)
        return None
    elsewhere = bool(client_connection and values["conn_id"])
    return live_broker(values, read.error, read.shown, address_elsewhere=elsewhere)


def with_broker_credentials(
    live: LiveBroker, conn_id: str | None, connection: Callable[[str], Any], client_connection: str = ""
) -> LiveBroker:
    """The broker with what a connection has for it, if one is named: keys, or settings of its client.

    They are looked up when a task runs and stand in no DAG, no rendered field and no XCom.

    :param client_connection: type of the connections whose extra is the settings of the broker's client.
    :raises BadInputError: that connection lacks one of them.
    """
    if conn_id is None:
        return live
    found = connection(conn_id)
    if client_connection and found.conn_type == client_connection:
        return replace(live, client={name: _text(value) for name, value in found.extra_dejson.items()})
    if not (found.login and found.password):
        missing = "password" if found.login else "login"
        raise BadInputError(
            f"connection {conn_id}, named by a store's broker_conn_id: expected the broker's access "
            f"key as its login and the secret key as its password, found no {missing}."
        )
    return replace(live, access_key=found.login, secret_key=found.password)


def _text(value: Any) -> str:
    """Return a value of a JSON object as a client library takes it."""
    return value if isinstance(value, str) else json.dumps(value)
