"""The address of a running broker, and the changes to it that are permitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_engine.model.settings.store_settings import BOUNDED, BROKER_DELETES, TLS_OFF, TLS_UNVERIFIED

HOLD_HOURS = 24

Refuse = Callable[[str, str, object], Exception]
"""Makes an error of a setting's name, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A running broker's description of itself.

    :param role: by the broker's own word, such as ASYNC_MASTER.
    :param version: its release, by its own word.
    :param dispatch_behind_bytes: in the log and not in consume queues and index yet.
    :param described: its description in one line, of a kind whose brokers give no other fields; "": the other
        fields make one.
    """

    address: str
    name: str
    role: str = ""
    version: str = ""
    boot_timestamp_ms: int = 0
    min_offset: int = 0
    max_offset: int = 0
    dispatch_behind_bytes: int = 0
    described: str = ""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A store whose broker runs: its settings, its state and its deletions go through that broker.

    :param address: ``host:port`` of the broker's listen port; empty: name servers know it.
    :param name_servers: ``host:port``, several separated by ``;``; asked for the master of ``broker_name``.
    :param broker_name: the broker's name; with an address it has to be the name of the broker there.
    :param access_key: user of a broker with authentication; empty: requests are not signed.
    :param client_config: file with settings of the broker's own client library; empty: there is none.
    :param client: such settings, secrets among them; they win over those of the file.
    :param tls: speak TLS.
    :param tls_ca_file: PEM file of who signed the broker's certificate; empty: the system's authorities.
    :param tls_server_name: name that the certificate must bear; empty: the host of the address.
    :param tls_certificate_file: PEM file of our own certificate and key, for a broker that wants one.
    :param tls_verify: False trusts any certificate.
    :param may_change_settings: set cleanFileForciblyEnable=false while the store is held.
    :param hold_hours: a hold that isn't renewed for so long ends by itself.
    :param allow_same_disk: lake and journal may lie on a disk of the broker.
    :param deletes: who deletes, of a kind whose broker can be left to it: the broker, or we what is proven.
    :param hold: how such a broker is kept from deleting: bounded ends by itself, strict doesn't.
    :param accept_version: release of the broker that was not tested, and that may delete nevertheless.
    """

    address: str = ""
    name_servers: str = ""
    broker_name: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    client_config: str = ""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    tls_ca_file: str = ""
    tls_server_name: str = ""
    tls_certificate_file: str = ""
    tls_verify: bool = True
    may_change_settings: bool = False
    hold_hours: int = HOLD_HOURS
    allow_same_disk: bool = False
    deletes: str = BROKER_DELETES
    hold: str = BOUNDED
    accept_version: str = ""


def live_broker(
    values: Mapping[str, Any], refuse: Refuse, shown: Callable[[str], str], *, address_elsewhere: bool = False
) -> LiveBroker:
    """Return the address and the settings with which a running broker is asked.

    :param values: of each live setting by its name, access keys apart; what nobody said is None or empty.
    :param shown: how a person calls a setting.
    :param address_elsewhere: settings of the broker's client, which are not read here, have its address.
    :raises Exception: settings that contradict each other or lack one, as ``refuse`` makes it.
    """
    address, name_servers = values["broker_address"], values["name_servers"]
    if not (address or name_servers or values["client_config"] or address_elsewhere):
        raise refuse("broker_address", f"a value, or one for {shown('name_servers')}", "")
    if name_servers and not address and not values["broker_name"]:
        raise refuse("broker_name", f"the name by which {shown('name_servers')} know the broker", "")
    tls = values["tls"] or TLS_OFF
    for name in ("ca_file", "server_name", "certificate_file"):
        if values[name] and tls == TLS_OFF:
            raise refuse(name, f"{shown('tls')} with it", values[name])
    return LiveBroker(
        address=address or "",
        name_servers=name_servers or "",
        broker_name=values["broker_name"] or "",
        client_config=values["client_config"] or "",
        tls=tls != TLS_OFF,
        tls_ca_file=values["ca_file"] or "",
        tls_server_name=values["server_name"] or "",
        tls_certificate_file=values["certificate_file"] or "",
        tls_verify=tls != TLS_UNVERIFIED,
        may_change_settings=bool(values["may_change_settings"]),
        hold_hours=values["hold_hours"] or HOLD_HOURS,
        allow_same_disk=bool(values["allow_same_disk"]),
        deletes=values["deletes"] or BROKER_DELETES,
        hold=values["hold"] or BOUNDED,
        accept_version=values["accept_version"] or "",
    )
