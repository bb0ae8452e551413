"""How a running broker is reached, and what may be done to it."""

from __future__ import annotations

from dataclasses import dataclass, field

HOLD_HOURS = 24


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """What a running broker says of itself.

    :param role: by the broker's own word, such as ASYNC_MASTER.
    :param version: its release, by its own word.
    :param dispatch_behind_bytes: in the log and not in consume queues and index yet.
    """

    address: str
    name: str
    role: str
    version: str
    boot_timestamp_ms: int
    min_offset: int
    max_offset: int
    dispatch_behind_bytes: int


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A store whose broker runs: its settings, its state and its deletions go through that broker.

    :param address: ``host:port`` of the broker's listen port; empty: name servers know it.
    :param name_servers: ``host:port``, several separated by ``;``; asked for the master of ``broker_name``.
    :param broker_name: the broker's name; with an address it has to be the name of the broker there.
    :param access_key: user of a broker with authentication; empty: requests are not signed.
    :param tls: speak TLS.
    :param tls_ca_file: PEM file of who signed the broker's certificate; empty: the system's authorities.
    :param tls_server_name: name that the certificate must bear; empty: the host of the address.
    :param tls_certificate_file: PEM file of our own certificate and key, for a broker that wants one.
    :param tls_verify: False trusts any certificate.
    :param may_change_settings: set cleanFileForciblyEnable=false while the store is held.
    :param hold_hours: a hold that isn't renewed for so long ends by itself.
    :param allow_same_disk: lake and journal may lie on a disk of the broker.
    """

    address: str = ""
    name_servers: str = ""
    broker_name: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    tls: bool = False
    tls_ca_file: str = ""
    tls_server_name: str = ""
    tls_certificate_file: str = ""
    tls_verify: bool = True
    may_change_settings: bool = False
    hold_hours: int = HOLD_HOURS
    allow_same_disk: bool = False
