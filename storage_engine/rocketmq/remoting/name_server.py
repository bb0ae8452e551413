"""Finds brokers through name servers. These know nothing of each other: each is told by the brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerUnavailableError,
    NotOnBrokerError,
)
from storage_engine.rocketmq.remoting import answers, command
from storage_engine.rocketmq.remoting.access import Access, split_address
from storage_engine.rocketmq.remoting.answers import AnswerError, BrokerMembers, ClusterInfo
from storage_engine.rocketmq.remoting.connection import Connection

SEPARATOR = ";"

_T = TypeVar("_T")


class NameServers:
    """Asks name servers in their order; the first that answers counts.

    :param addresses: ``host:port``, several separated by ``;``, as in a broker's ``namesrvAddr``.
    :raises BadInputError: there is no address, or it can't be one.
    """

    def __init__(self, addresses: str, access: Access | None = None) -> None:
        self.addresses = tuple(filter(None, map(str.strip, addresses.split(SEPARATOR))))
        if not self.addresses:
            raise BadInputError("Name servers: expected host:port, several separated by ';', found none.")
        for address in self.addresses:
            split_address(address)
        self._access = access

    def cluster_info(self) -> ClusterInfo:
        """All clusters and their brokers (GET_BROKER_CLUSTER_INFO).

        :raises BrokerUnavailableError: no name server can be asked; the message has each one's reason.
        """

        def ask(connection: Connection) -> ClusterInfo:
            answer = connection.read(command.GET_BROKER_CLUSTER_INFO)
            return answers.checked(lambda: answers.cluster_info(answer.body))

        return self._first(ask)

    def broker(self, name: str) -> BrokerMembers:
        """Master and slaves of a broker name, as registered now.

        :raises NotOnBrokerError: no broker of this name is registered.
        :raises BrokerUnavailableError: no name server can be asked.
        """
        known = self.cluster_info().brokers
        if name not in known:
            raise NotOnBrokerError(
                f"Name servers {SEPARATOR.join(self.addresses)}: expected broker {name!r}, found "
                f"{', '.join(sorted(known)) or 'none'}. Check the name, that it runs, and its namesrvAddr."
            )
        return known[name]

    def _first(self, ask: Callable[[Connection], _T]) -> _T:
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
