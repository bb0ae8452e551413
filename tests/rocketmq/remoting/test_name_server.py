"""Name servers are asked in their order; the first that answers counts."""

from __future__ import annotations

import pytest

from demo.brokers import reading
from demo.brokers.reading import route
from storage_engine.exceptions import (
    BadInputError,
    BrokerProtocolError,
    BrokerUnavailableError,
    NotOnBrokerError,
)
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.connection import Access
from storage_engine.rocketmq.remoting.masters import NameServers
from tests.rocketmq.remoting.peer import Behaviour, Peer, answer, close, keep_silent, send

HASTY, PATIENT = Access(60, 1), Access(60, 60)
CLUSTER = (
    b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"c"}},'
    b'"clusterAddrTable":{"c":["b"]}}'
)
FAULTS: dict[str, Behaviour] = {
    "silent": keep_silent,
    "closed": close,
    "no-protocol": send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "no-cluster": answer(body=b"[]"),
    "refuses": answer(command.SYSTEM_ERROR, remark="name server not ready"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_next_name_server_is_asked_when_one_fails(fault: Behaviour) -> None:
    with Peer(fault) as broken, Peer(answer(body=CLUSTER)) as working:
        access = HASTY if fault is keep_silent else PATIENT
        found = NameServers(f"{broken.address}; {working.address}", access).cluster_info()
        assert found.clusters == {"c": ("b",)}
        assert (len(broken.requests), len(working.requests)) == (1, 1)


def test_unreachable_name_servers_are_all_named() -> None:
    with Peer(close) as first, Peer(keep_silent) as second:
        pass
    with pytest.raises(BrokerUnavailableError, match=f"{first.address}.*{second.address}"):
        NameServers(f"{first.address};{second.address}", PATIENT).cluster_info()


def test_answer_that_is_none_is_named() -> None:
    with Peer(answer(body=b"[]")) as peer, pytest.raises(BrokerProtocolError, match=peer.address):
        NameServers(peer.address, PATIENT).cluster_info()


def test_unknown_broker_and_topic_are_told_from_a_failure() -> None:
    with Peer(answer(body=CLUSTER), answer(reading.TOPIC_NOT_EXIST)) as peer:
        servers = NameServers(peer.address)
        with pytest.raises(NotOnBrokerError, match="expected broker 'a', found b"):
            servers.broker("a")
        with pytest.raises(NotOnBrokerError, match="expected topic 't'"):
            route(servers, "t")


def test_name_server_that_knows_nobody_says_so() -> None:
    with Peer(answer(body=b"{}")) as peer:
        assert NameServers(peer.address).cluster_info().brokers == {}


@pytest.mark.parametrize("addresses", ["", " ; ", "host", "host:9876;host"])
def test_addresses_that_cannot_be_are_refused(addresses: str) -> None:
    with pytest.raises(BadInputError, match="expected host:port"):
        NameServers(addresses)
