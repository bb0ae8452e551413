"""From a connection's fields to the broker that runs on its store. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from storage_engine.exceptions import BadInputError
from storage_engine.hooks.fields import Fields
from storage_engine.model.live import LiveBroker, live_broker
from storage_engine.model.store_settings import LIVE, MODES, OFFLINE, STORE_SETTINGS

BESIDE = "beside"
"""What older connections call the mode live."""


def broker_of_fields(read: Fields) -> LiveBroker | None:
    """Return what the fields say of a running broker; None where the store's broker is stopped.

    :raises BadInputError: a field that is missing, contradicts another one, or can't be read; names it.
    """
    mode = LIVE if read.text("mode") == BESIDE else read.choice("mode", MODES)
    values = {one.name: read.read(one) for one in STORE_SETTINGS if one.live}
    if mode == OFFLINE:
        for name in ("broker_address", "name_servers"):
            if given := read.text(name):
                raise read.error(name, f"mode {LIVE}, or no {name}: offline, no broker runs", given)
        return None
    return live_broker(values, read.error, read.shown)


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
            f"connection {conn_id}, named by a store's broker_conn_id: expected the broker's access "
            f"key as its login and the secret key as its password, found no {missing}."
        )
    return replace(live, access_key=found.login, secret_key=found.password)
