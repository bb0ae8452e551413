"""Search for brokers through name servers, and for a second master of a broker's name.

A name server knows only one master of a name, the one that registered last. If there are two masters, each
look shows only one master. Name servers don't exchange what they know. So replicas from earlier looks are
asked directly. While there may be two masters, no segment is deleted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerUnavailableError,
    GateRefusedError,
    NotOnBrokerError,
)
from storage_engine.rocketmq.format.broker_config import CONTROLLER_MODE
from storage_engine.rocketmq.hold.hold_state import CLUSTER, NAME, ROLE, SLAVE
from storage_engine.rocketmq.remoting import answers, command
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.remoting.answers import MASTER_ID, AnswerError, BrokerMembers, ClusterInfo
from storage_engine.rocketmq.remoting.command import RemotingCommand
from storage_engine.rocketmq.remoting.connection import Access, Connection, split_address

SEPARATOR = ";"

_Answer = TypeVar("_Answer")


class NameServers:
    """Access to name servers. They are asked in the order of ``addresses``, and the first answer counts.

    :param addresses: ``host:port`` of each, separated by ``;`` as in a broker's ``namesrvAddr``.
    :raises BadInputError: no address is given, or one is malformed.
    """

    def __init__(self, addresses: str, access: Access | None = None) -> None:
        self.addresses = tuple(_split_addresses(addresses))
        if not self.addresses:
            raise BadInputError(
                "Name servers: expected host:port, several separated by ';', found none. Nothing was "
                "asked or changed."
            )
        for address in self.addresses:
            split_address(address)
        self._access = access

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and their brokers (GET_BROKER_CLUSTER_INFO).

        :raises BrokerUnavailableError: none of several name servers answers. The message has the reasons.
        :raises BrokerError: the only name server doesn't answer, or answers with an error.
        """

        def ask(connection: Connection) -> ClusterInfo:
            answer = connection.read(command.GET_BROKER_CLUSTER_INFO)
            return answers.check_answer(lambda: answers.cluster_info(answer.body))

        return self._first(ask)

    def broker(self, name: str) -> BrokerMembers:
        """Return the master and the slaves that are registered under a broker name.

        :raises NotOnBrokerError: no broker of this name is registered.
        :raises BrokerError: see :meth:`cluster_info`.
        """
        brokers = self.cluster_info().brokers
        if name not in brokers:
            raise NotOnBrokerError(
                f"Name servers {SEPARATOR.join(self.addresses)}: expected broker {name!r}, found "
                f"{', '.join(sorted(brokers)) or 'none'}. Check the name, that it runs, and its namesrvAddr."
            )
        return brokers[name]

    def _first(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        errors: list[BrokerError] = []
        for address in self.addresses:
            with Connection(address, self._access) as connection:
                try:
                    return ask(connection)
                except AnswerError as error:
                    errors.append(BrokerProtocolError(f"{address}: {error}."))
                except BrokerError as error:
                    errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise BrokerUnavailableError(
            f"None of {len(errors)} name servers can be asked. " + " ".join(map(str, errors))
        )


NAME_SERVERS: Final = "namesrvAddr"
CONTROLLERS: Final = "controllerAddr"
_CONNECT_SECONDS, _ANSWER_SECONDS = 3.0, 5.0
_MASTER, _ITSELF, _SILENT = "master", "itself", "silent"


@dataclass(frozen=True, slots=True)
class Replicas:
    """The other brokers with a broker's name.

    :param masters: clauses about other brokers that are, or are registered as, the master of the name.
    :param unknown: clauses about brokers and servers that don't answer.
    :param addresses: addresses of all masters and slaves that have the name or are registered under it.
    :param in_group: whether the broker has replicas, or a controller that may add replicas.
    """

    masters: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    in_group: bool = False

    @property
    def why_kept(self) -> str:
        """Return why no segment may be deleted; "" if the broker is the only master or has no replicas."""
        if self.masters:
            return (
                f"expected one master of this broker's name, found that {'; '.join(self.masters)}. While two "
                "claim to be the master, it is unknown whose log goes on. Stop one of them, or make it a "
                "slave (brokerRole=SLAVE with a brokerId above 0), and run the same again"
            )
        if self.unknown and self.in_group:
            return (
                "expected to know that this broker is the only master of its name, found brokers or servers "
                f"that don't answer: {'; '.join(self.unknown)}. Make sure that this host can reach them, or "
                f"set others ({NAME_SERVERS} and {CONTROLLERS} in broker.conf; for a running broker the "
                "connection's name servers), and run the same again"
            )
        return ""

    def check_only_master(self, root: Path) -> None:
        """Check that the broker of a store is the only master of its name.

        :raises GateRefusedError: another master may exist.
        """
        if self.why_kept:
            raise GateRefusedError(
                f"{root}: {self.why_kept}. Nothing was deleted. What was archived stays archived."
            )


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A broker and the other brokers with its name, and the way to ask them.

    :param settings: the broker's settings. Those of a stopped broker are from its broker.conf.
    :param address: the broker's address; "" if the broker is stopped.
    :param boot_timestamp_ms: returns the start time of the broker's process, which tells it from other
        brokers; None if the broker is stopped.
    :param name_servers: addresses at which this host reaches name servers; "" for those in the settings.
    """

    settings: Mapping[str, str]
    access: Access = field(default_factory=Access)
    address: str = ""
    boot_timestamp_ms: Callable[[], int] | None = None
    name_servers: str = ""

    def find_replicas(
        self, known: Collection[str] = (), has_slaves: Callable[[], bool] = lambda: False
    ) -> Replicas:
        """Ask which other brokers of this name are, or may be, the master.

        :param known: addresses of replicas from earlier looks.
        :param has_slaves: returns whether the broker has slaves. Called if no other answer shows replicas.
        :raises BrokerError: the broker itself can't be asked.
        """
        if not self.settings.get(NAME, "").strip():
            return Replicas()
        has_controller = self.settings.get(CONTROLLER_MODE, "").strip().lower() == "true"
        claims, slaves, unknown = self._ask_registered()
        if has_controller:
            try:
                chosen = self._ask_controller().fields.get("masterAddress", "")
                if chosen or self.address:
                    claims[chosen] = f"the controller has {chosen or 'none'} as the master"
            except (BrokerError, BadInputError) as error:
                unknown.append(str(error))
        own_addresses = {self.address, _broker_address(self.settings)} - {""}
        others = sorted({*claims, *slaves, *known} - (own_addresses if self.address else set()))
        roles = dict(zip(others, _ask_each(self._role, others), strict=True))
        masters, addresses = [], []
        for address, role in roles.items():
            if role == _ITSELF or (address in own_addresses and role != _MASTER):
                continue
            if role == _MASTER:
                masters.append(f"{address} says that it is the master")
            elif address in claims:
                masters.append(claims[address])
            elif role == _SILENT and address not in slaves:
                unknown.append(f"{address} takes connections, but doesn't tell its role")
            # If a server doesn't answer, replicas of earlier looks still count.
            if address and (role or address in claims or address in slaves or unknown):
                addresses.append(address)
        in_group = has_controller or bool(addresses) or (bool(unknown) and has_slaves())
        return Replicas(tuple(masters), tuple(unknown), tuple(addresses), in_group)

    @property
    def _access(self) -> Access:
        return replace(
            self.access, connect_timeout_seconds=_CONNECT_SECONDS, request_timeout_seconds=_ANSWER_SECONDS
        )

    def _ask_registered(self) -> tuple[dict[str, str], set[str], list[str]]:
        """Return clauses on registered masters by address, the slaves, and clauses on silent name servers."""
        servers = _split_addresses(self.name_servers or self.settings.get(NAME_SERVERS, ""))
        claims, slaves, unknown = dict[str, str](), set[str](), list[str]()
        if not servers:
            unknown.append(f"a name server, since no address is set ({NAME_SERVERS})")
        for server, members in zip(servers, _ask_each(self._members, servers), strict=True):
            if isinstance(members, str):
                unknown.append(members)
                continue
            for number, address in members.items():
                if number == MASTER_ID:
                    claims[address] = f"name server {server} has {address} as the master"
                else:
                    slaves.add(address)
        return claims, slaves, unknown

    def _members(self, server: str) -> Mapping[int, str] | str:
        """Return the addresses registered under the broker's name by broker id, or the server's error."""
        try:
            brokers = NameServers(server, self._access).cluster_info().brokers
        except (BrokerError, BadInputError) as error:
            return str(error)
        members = brokers.get(self.settings[NAME].strip())
        return {} if members is None or self._is_elsewhere(members.cluster) else members.addresses

    def _is_elsewhere(self, cluster: str) -> bool:
        """Return whether a cluster is surely not the broker's. An unknown cluster may be the same."""
        own_cluster = self.settings.get(CLUSTER, "").strip()
        return bool(own_cluster and cluster) and own_cluster != cluster

    def is_alone_in_sync(self, identity: str) -> bool:
        """Return whether the controller lists only this broker as in sync, so that it elects no other.

        A broker that joins must first have the whole log (AutoSwitchHAService#maybeExpandInSyncStateSet).

        :param identity: content of the broker's file ``brokerIdentity``: cluster, name and id.
        """
        *names, number = identity.strip().rsplit("#", 2)
        if names != [self.settings.get(key, "").strip() for key in (CLUSTER, NAME)]:
            return False
        try:
            body = self._ask_controller().body
            return answers.check_answer(lambda: answers.parse_in_sync(body)) == {number}
        except (BrokerError, BadInputError, AnswerError):
            return False

    def _ask_controller(self) -> RemotingCommand:
        """Ask a controller for the master and the brokers in sync with it.

        :raises BrokerError: no controller answers.
        :raises BadInputError: the settings name no controller.
        """
        for address in (controllers := _split_addresses(self.settings.get(CONTROLLERS, ""))):
            try:
                with Connection(address, self._access) as connection:
                    name = self.settings[NAME].strip()
                    return connection.read(command.CONTROLLER_GET_REPLICA_INFO, {"brokerName": name})
            except BrokerError:
                if address == controllers[-1]:
                    raise
        raise BadInputError(f"a controller, since no address is set ({CONTROLLERS})")

    def _role(self, address: str) -> str:
        """Return the role of the broker at an address; "" without a broker, or if it has another name."""
        if not address:
            return ""
        try:
            with BrokerAdmin(address, self._access) as admin:
                settings = admin.config()
                other_name = settings.get(NAME) != self.settings[NAME].strip()
                if other_name or self._is_elsewhere(settings.get(CLUSTER, "")):
                    return ""
                if settings.get(ROLE) == SLAVE:
                    return SLAVE
                started_ms = admin.runtime_info().boot_timestamp_ms
        except (BrokerError, BadInputError):
            return _SILENT if _takes_connections(address) else ""
        if self.boot_timestamp_ms is None or _broker_address(settings) != _broker_address(self.settings):
            return _MASTER
        return _ITSELF if started_ms == self.boot_timestamp_ms() else _MASTER


def _takes_connections(address: str) -> bool:
    try:
        with socket.create_connection(split_address(address), _CONNECT_SECONDS):
            return True
    except (OSError, BadInputError):
        return False


def _broker_address(settings: Mapping[str, str]) -> str:
    """Return the address under which a broker registers; "" if its settings don't have it."""
    host, port = (settings.get(key, "").strip() for key in ("brokerIP1", "listenPort"))
    return f"{host}:{port}" if host and port else ""


def _split_addresses(addresses: str) -> list[str]:
    return list(filter(None, map(str.strip, addresses.split(SEPARATOR))))


def _ask_each(ask: Callable[[str], _Answer], addresses: Sequence[str]) -> list[_Answer]:
    """Ask all addresses at the same time, so that several silent brokers cost only one timeout."""
    with ThreadPoolExecutor(max(1, len(addresses))) as threads:
        return list(threads.map(ask, addresses))
