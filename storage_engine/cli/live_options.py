"""How a command is told of the broker that runs on its store."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from storage_engine.model.live import HOLD_HOURS, LiveBroker

Command = TypeVar("Command", bound=Callable[..., Any])

SECRET_KEY = "STORAGE_ENGINE_SECRET_KEY"
"""Environment variable with the secret key: an argument could be read by every user of the machine."""

LIVE_OPTIONS = (
    click.Option(
        ["--broker", "broker_address"],
        metavar="HOST:PORT",
        help="The broker runs on: its listen port. Without this and --name-servers it is stopped.",
    ),
    click.Option(
        ["--name-servers"],
        metavar="HOST:PORT;…",
        help="The broker runs on: ask these where the master of --broker-name is.",
    ),
    click.Option(["--broker-name"], metavar="NAME", help="The broker's brokerName."),
    click.Option(
        ["--access-key"],
        metavar="NAME",
        help=f"Sign requests as this user; the secret key is taken from {SECRET_KEY}.",
    ),
    click.Option(["--tls"], is_flag=True, help="Speak TLS to broker and name servers."),
    click.Option(
        ["--tls-ca-file"],
        metavar="FILE",
        help="Who signed the broker's certificate; default: the system's authorities.",
    ),
    click.Option(
        ["--tls-server-name"], metavar="NAME", help="Name that the certificate must bear; default: the host."
    ),
    click.Option(
        ["--tls-certificate-file"],
        metavar="FILE",
        help="Our own certificate and key, for a broker that wants one.",
    ),
    click.Option(["--tls-unverified"], is_flag=True, help="Trust any certificate."),
    click.Option(
        ["--may-change-settings"],
        is_flag=True,
        help="cleanFileForciblyEnable may be set to false on the broker while the store is held.",
    ),
    click.Option(
        ["--hold-hours"],
        type=click.IntRange(min=1),
        metavar="HOURS",
        help=f"A hold that isn't renewed for so long ends by itself; default: {HOLD_HOURS}.",
    ),
    click.Option(
        ["--allow-same-disk"],
        is_flag=True,
        help="Lake, journal and reports may lie on a disk of the broker, which they can fill.",
    ),
)
"""Every command that takes a store has them."""


def with_live_broker(command: Command) -> Command:
    """Give a command these options; it gets what they amount to as ``live``."""

    @wraps(command)
    def called(*arguments: Any, **values: Any) -> Any:
        given = {str(option.name): values.pop(str(option.name)) for option in LIVE_OPTIONS}
        return command(*arguments, live=live_broker(**given), **values)

    # As click.option does for a function that is no command yet.
    params = called.__dict__.setdefault("__click_params__", [])
    params.extend(reversed(LIVE_OPTIONS))
    return called  # type: ignore[return-value]


def live_broker(
    *,
    broker_address: str | None,
    name_servers: str | None,
    broker_name: str | None,
    access_key: str | None,
    tls: bool,
    tls_ca_file: str | None,
    tls_server_name: str | None,
    tls_certificate_file: str | None,
    tls_unverified: bool,
    may_change_settings: bool,
    hold_hours: int | None,
    allow_same_disk: bool,
) -> LiveBroker | None:
    """The broker that runs on the store; None: it is stopped.

    :raises click.UsageError: options that contradict each other or lack one.
    """
    beside = {
        "--broker-name": broker_name,
        "--access-key": access_key,
        "--tls": tls,
        "--may-change-settings": may_change_settings,
        "--hold-hours": hold_hours,
        "--allow-same-disk": allow_same_disk,
    }
    of_tls = {
        "--tls-ca-file": tls_ca_file,
        "--tls-server-name": tls_server_name,
        "--tls-certificate-file": tls_certificate_file,
        "--tls-unverified": tls_unverified,
    }
    if not tls:
        _refuse(of_tls, "--tls with it")
    if not (broker_address or name_servers):
        _refuse(beside, "--broker or --name-servers with it")
        return None
    if not (broker_address or broker_name):
        raise click.UsageError("--name-servers: expected --broker-name with it, found none.")
    secret_key = os.environ.get(SECRET_KEY, "") if access_key else ""
    if access_key and not secret_key:
        raise click.UsageError(f"--access-key: expected the secret key in {SECRET_KEY}, found none.")
    return LiveBroker(
        address=broker_address or "",
        name_servers=name_servers or "",
        broker_name=broker_name or "",
        access_key=access_key or "",
        secret_key=secret_key,
        tls=tls,
        tls_ca_file=tls_ca_file or "",
        tls_server_name=tls_server_name or "",
        tls_certificate_file=tls_certificate_file or "",
        tls_verify=not tls_unverified,
        may_change_settings=may_change_settings,
        hold_hours=hold_hours or HOLD_HOURS,
        allow_same_disk=allow_same_disk,
    )


def _refuse(options: dict[str, Any], expected: str) -> None:
    if given := [name for name, value in options.items() if value]:
        raise click.UsageError(f"{', '.join(given)}: expected {expected}, found none.")
