"""How a command is told of the broker that runs on its store: options as the table of settings has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from storage_engine.cli.options.options import argument_of, setting_option
from storage_engine.cli.options.stores_file import SECRET_KEY
from storage_engine.cli.shell.command import GroupedOption
from storage_engine.model.broker import live
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.store_settings import SETTINGS, STORE_SETTINGS, TLS_ON, TLS_UNVERIFIED

Function = TypeVar("Function", bound=Callable[..., Any])

_UNVERIFIED = "tls_unverified"


_NAMES = tuple(one.name for one in STORE_SETTINGS if one.live)
_FLAGGED = ("deletes", "hold")
"""Choices of two, whose option says the second one."""
LIVE_OPTIONS = (
    *map(setting_option, _NAMES),
    GroupedOption(
        ["--tls-unverified", _UNVERIFIED],
        group="Running broker",
        is_flag=True,
        help="With TLS: trust any certificate.",
    ),
)
"""Every command that takes a store has them."""


def with_live_broker(command: Function) -> Function:
    """Give a command these options; it gets what they amount to as ``live``."""

    @wraps(command)
    def called(*arguments: Any, **values: Any) -> Any:
        given = {str(option.name): values.pop(str(option.name)) for option in LIVE_OPTIONS}
        return command(*arguments, live=live_broker(given), **values)

    # As click.option does for a function that is no command yet.
    params = called.__dict__.setdefault("__click_params__", [])
    params.extend(reversed(LIVE_OPTIONS))
    return called  # type: ignore[return-value]


def address_options(broker: str | None) -> str:
    """Return the options that name a running broker, for a message.

    :param broker: the name of its kind; None: it may be any.
    """
    from storage_engine.brokers import broker_names, find_broker

    kinds = broker_names() if broker is None else (broker,)
    return " or ".join(
        dict.fromkeys(name for kind in kinds for name in find_broker(kind).words.address_options)
    )


def live_broker(
    values: Mapping[str, Any], kind: Callable[[], str | None] = lambda: None
) -> LiveBroker | None:
    """Return the broker that runs on the store; None: it is stopped.

    :param values: of the options by their names.
    :param kind: tells the name of the store's kind of broker, for a message; None: it may be any.
    :raises click.UsageError: options that contradict each other or lack one.
    """
    said = {name: values[argument_of(name)] for name in _NAMES}
    if values[_UNVERIFIED] and not said["tls"]:
        raise click.UsageError(f"--tls-unverified: expected {_shown('tls')} with it, found none.")
    if not (said["broker_address"] or said["name_servers"] or said["client_config"]):
        if given := [_shown(name) for name, value in said.items() if value and _is_typed(argument_of(name))]:
            expected = address_options(kind())
            raise click.UsageError(f"{', '.join(given)}: expected {expected} with it, found none.")
        return None
    tls = TLS_UNVERIFIED if values[_UNVERIFIED] else TLS_ON if said["tls"] else None
    said |= {name: SETTINGS[name].choices[1] for name in _FLAGGED if said[name]}
    broker = live.live_broker({**said, "tls": tls}, _refuse, _shown)
    access_key = said["conn_id"] or ""
    secret_key = os.environ.get(SECRET_KEY, "") if access_key else ""
    if access_key and not secret_key:
        raise click.UsageError(f"{_shown('conn_id')}: expected the secret key in {SECRET_KEY}, found none.")
    return replace(broker, access_key=access_key, secret_key=secret_key)


def _is_typed(parameter: str) -> bool:
    """Return whether an option stands in the call: what the environment says waits for a broker."""
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.ENVIRONMENT


def _shown(name: str) -> str:
    return SETTINGS[name].option


def _refuse(name: str, expected: str, found: object) -> click.UsageError:
    return click.UsageError(f"{_shown(name)}: expected {expected}, found {found or 'none'}.")
