"""Access to a store's master: its address, its role, and its settings with this host's paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import psutil

from storage_engine.exceptions import BadInputError, NotOnBrokerError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker, RunningBroker
from storage_engine.rocketmq.format.broker_config import LEVEL_PROPERTIES
from storage_engine.rocketmq.hold.hold_state import NAME, RESERVED, ROLE, SLAVE
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.connection import Access, Credentials, Tls
from storage_engine.rocketmq.remoting.masters import NAME_SERVERS, NameServers
from storage_engine.rocketmq.store.store_lock import locking_pid

ROOT = "storePathRootDir"
COMMIT_LOG = "storePathCommitLog"
READ_ONLY_COMMIT_LOG = "readOnlyCommitLogStorePaths"


def access_of(live: LiveBroker) -> Access:
    """Return credentials and TLS from a store's settings."""
    tls = Tls(
        ca_file=live.tls_ca_file or None,
        server_name=live.tls_server_name or None,
        certificate_file=live.tls_certificate_file or None,
        verify=live.tls_verify,
    )
    return Access(
        credentials=Credentials(live.access_key, live.secret_key) if live.access_key else None,
        tls=tls if live.tls else None,
    )


def reach(live: LiveBroker) -> BrokerAdmin:
    """Return the broker's admin interface. Without an address, name servers give the present master.

    :raises BadInputError: there is neither an address, nor name servers with a broker's name; or there are
        settings for a client library, which isn't used.
    :raises NotOnBrokerError: name servers don't know the broker, or know no master of it.
    :raises BrokerUnavailableError: no name server answers.
    """
    if live.client or live.client_config:
        source = live.client_config or "The connection of the broker"
        raise BadInputError(
            f"{source}: expected no settings of a client library, as RocketMQ's broker is asked without one. "
            "Nothing was changed. Give host:port of its listen port."
        )
    access = access_of(live)
    if live.address:
        return BrokerAdmin(live.address, access)
    if not (live.name_servers and live.broker_name):
        raise BadInputError(
            "A store beside its broker: expected the broker's address, or name servers and the broker's "
            "name, found neither. Give host:port of the broker's listen port."
        )
    master = NameServers(live.name_servers, access).broker(live.broker_name).master
    if master is None:
        raise NotOnBrokerError(
            f"Name servers {live.name_servers}: expected a master of broker {live.broker_name!r}, found none "
            "registered. Nothing can be held or released without one; start it, or wait for an election."
        )
    return BrokerAdmin(master, access)


def reach_master(slave: Mapping[str, str], live: LiveBroker) -> BrokerAdmin:
    """Return the admin interface of a slave's master, from our name servers, or else from the slave's.

    :param live: credentials and TLS, and perhaps name servers.
    :raises NotOnBrokerError: no master of the name is registered.
    :raises BadInputError: the settings name no master, or the registered broker isn't one.
    :raises BrokerError: name servers or master don't answer.
    """
    name_servers, name = live.name_servers or slave.get(NAME_SERVERS, ""), slave.get(NAME, "").strip()
    master = reach(replace(live, address="", name_servers=name_servers.strip(), broker_name=name))
    settings = master.config()
    refuse_slave(settings, master.address)
    refuse_other_broker(settings, name, master.address)
    return master


def local_settings(config: Mapping[str, str], root: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the broker's settings, with its paths replaced by those on this host.

    Paths of the log below the broker's root become paths below our root. A negative fileReservedTime becomes
    0, since no broker.conf may have one.

    :param root: path at which storePathRootDir is mounted here.
    :param overrides: values that replace the broker's: all other paths that differ here, and the disk levels
        on the command line of a broker's process that isn't visible here.
    :raises BadInputError: the broker's settings have no root.
    """
    broker_root = config.get(ROOT, "").strip()
    if not broker_root:
        raise BadInputError(f"The broker's config: expected {ROOT}, found none. Check what listens there.")
    settings = dict(config)
    for key in (COMMIT_LOG, READ_ONLY_COMMIT_LOG):
        if value := config.get(key, "").strip():
            settings[key] = ",".join(_local(path, broker_root, root) for path in value.rstrip(",").split(","))
        else:
            settings.pop(key, None)
    settings[ROOT] = root
    if config.get(RESERVED, "").startswith("-"):
        # A running broker accepts a negative value; a broker.conf with one is refused.
        settings[RESERVED] = "0"
    return settings | _read_start_levels(Path(root)) | dict(overrides)


def _read_start_levels(root: Path) -> dict[str, str]:
    """Return the disk levels on the command line of the broker's process. They override its config.

    A process in another container or on another host isn't visible. Then the store's settings have to give
    these levels.
    """
    pid = locking_pid(root / "lock")
    if pid is None:
        return {}
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return {}
    properties = (word[2:].partition("=") for word in words if word.startswith("-D"))
    return {name: value for name, _, value in properties if name in LEVEL_PROPERTIES and value}


def refuse_slave(config: Mapping[str, str], address: str) -> None:
    """:raises BadInputError: the broker is a slave, which follows its master and deletes by its own clock."""
    if config.get(ROLE) == SLAVE:
        raise BadInputError(
            f"{address}: expected a master, found a slave (brokerRole=SLAVE). Nothing was changed. Give the "
            "master's address, or name servers and the broker's name."
        )


def refuse_other_broker(config: Mapping[str, str], name: str, address: str) -> None:
    """:raises BadInputError: the broker has another name than the expected one, if one is given."""
    if name and (actual := config.get(NAME, "")) != name:
        raise BadInputError(
            f"{address}: expected broker {name!r}, found {actual!r}. Nothing was changed. Check the address "
            "and the broker's name."
        )


def _local(path: str, broker_root: str, root: str) -> str:
    try:
        below = PurePosixPath(path).relative_to(PurePosixPath(broker_root))
    except ValueError:
        return path
    return str(PurePosixPath(root) / below)


def settings_in_effect(settings: StoreSettings, live: LiveBroker) -> StoreSettings:
    """Return settings for a reader of the store's files. The running broker's values replace broker.conf.

    :raises BrokerError: the broker doesn't answer.
    """
    with reach(live) as admin:
        overrides = local_settings(admin.config(), settings.root, settings.overrides)
    return replace(settings, broker_conf=None, overrides=overrides)


def running_broker(live: LiveBroker) -> RunningBroker:
    """Return the state of a broker, as the broker itself reports it.

    :raises BrokerError: the broker doesn't answer.
    """
    with reach(live) as admin:
        settings, info = admin.config(), admin.runtime_info()
    return RunningBroker(
        address=admin.address,
        name=settings.get("brokerName", ""),
        role=settings.get("brokerRole", ""),
        version=info.version,
        boot_timestamp_ms=info.boot_timestamp_ms,
        min_offset=info.commitlog_min_offset,
        max_offset=info.commitlog_max_offset,
        dispatch_behind_bytes=info.dispatch_behind_bytes,
    )


@contextmanager
def as_who_may_read(root: Path | str) -> Iterator[None]:
    """Replace a PermissionError by a BadInputError that says as which user to run."""
    try:
        yield
    except PermissionError as error:
        raise BadInputError(
            f"{error.filename or root}: expected a store that this process may read, found "
            f"{error.strerror}; it runs as uid {os.geteuid()}. Nothing was changed. Let the connection's "
            "queue lead to a worker that runs as the broker's user, or run this command as that user."
        ) from error
