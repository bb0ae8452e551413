"""The address of a running broker, and the changes to it that are permitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_engine.model.settings.store_settings import BOUNDED, BROKER_DELETES, TLS_OFF, TLS_UNVERIFIED

HOLD_HOURS = 24

Refuse = Callable[[str, str, object], Exception]
"""Makes an error from a setting's name, the expected value and the found value."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A running broker's description of itself.

    :param role: the broker's own word for its role, such as ASYNC_MASTER.
    :param version: the broker's own word for its release.
    :param dispatch_behind_bytes: bytes that are in the log and not in consume queues and index yet.
    :param described: a description in one line, for a kind whose brokers give no other fields; "" if the
        other fields describe it.
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
    """The address and settings of a store's running broker. The store's settings, state and deletions are
    requested from that broker.

    :param address: ``host:port`` of the broker's listen port; empty if name servers know it.
    :param name_servers: ``host:port``, separated by ``;``. They are asked for the master of ``broker_name``.
    :param broker_name: the broker's name; with an address it has to be the name of the broker there.
    :param access_key: user name at a broker with authentication; empty if requests are not signed.
    :param client_config: file with settings of the broker's own client library; empty if there is none.
    :param client: settings of the client library, secrets among them. They take precedence over the file.
    :param tls_ca_file: PEM file of the authority of the broker's certificate; empty for the system's.
    :param tls_server_name: name that the certificate must have; empty means the host of the address.
    :param tls_certificate_file: PEM file of our own certificate and key, for a broker that requires one.
    :param tls_verify: False trusts any certificate.
    :param may_change_settings: whether we may set cleanFileForciblyEnable=false while the store is held.
    :param hold_hours: a hold ends by itself if it isn't renewed for this many hours.
    :param allow_same_disk: whether lake and journal may be on a disk of the broker.
    :param deletes: ``broker``: the broker deletes by its own rules. ``us``: we delete, only proven segments.
        Only for kinds of brokers that allow both.
    :param hold: how that broker is kept from deleting: a bounded hold ends by itself, a strict one doesn't.
    :param accept_version: an untested release of the broker, beside which we may delete nevertheless.
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
    """Return the address of a running broker and the settings for requests to it.

    :param values: the live settings by name, without access keys. A missing setting is None or empty.
    :param shown: returns a person's name for a setting.
    :param address_elsewhere: the address is in settings of the broker's client, which are not read here.
    :raises Exception: settings contradict each other, or one is missing; ``refuse`` makes the error.
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
