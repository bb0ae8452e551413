"""Who else is the master of a broker's name: what permits a deletion, and what can't be asked doesn't."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from storage_engine.core.jsonable import to_jsonable
from storage_engine.rocketmq.hold.hold_state import HoldState, known_replicas
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.answers import runtime_info
from storage_engine.rocketmq.remoting.command import RemotingCommand
from storage_engine.rocketmq.remoting.masters import BrokerGroup, Replicas
from tests.rocketmq.remoting.peer import Peer, answer
from tests.rocketmq.remoting.test_answers import READERS

OWN = "10.0.0.1:10911"
BOOT_MS = 1795233765982
"""That of the runtime info of the tests' answers."""
NAMES = {"brokerName": "b", "brokerClusterName": "c"}
SELF = {**NAMES, "brokerIP1": "10.0.0.1", "listenPort": "10911", "brokerRole": "ASYNC_MASTER"}


class Machines:
    """Brokers, name servers and controllers that answer."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def broker(self, role: str, more: Mapping[int, bytes] | None = None, **settings: str) -> str:
        """:param more: bodies of further answers."""
        lines = {**NAMES, "brokerRole": role, **settings}
        config = "".join(f"{key}={value}\n" for key, value in lines.items()).encode()
        info = READERS[runtime_info]
        answers = {command.GET_BROKER_CONFIG: config, command.GET_BROKER_RUNTIME_INFO: info, **(more or {})}
        return self._peer({code: (body, {}) for code, body in answers.items()})

    def name_server(self, members: Mapping[int, str], cluster: str = "c") -> str:
        addresses = {str(number): one for number, one in members.items()}
        data = {"brokerAddrs": addresses, "brokerName": "b", "cluster": cluster}
        body = json.dumps({"brokerAddrTable": {"b": data}, "clusterAddrTable": {cluster: ["b"]}}).encode()
        return self._peer({command.GET_BROKER_CLUSTER_INFO: (body, {})})

    def controller(self, master: str, in_sync: str = "[1,2]") -> str:
        fields = {"masterAddress": master} if master else {}
        body = f'{{"syncStateSet":{in_sync},"syncStateSetEpoch":2}}'.encode()
        return self._peer({command.CONTROLLER_GET_REPLICA_INFO: (body, fields)})

    def _peer(self, answers: Mapping[int, tuple[bytes, Mapping[str, str]]]) -> str:
        def behave(connection: socket.socket, request: RemotingCommand) -> None:
            body, fields = answers[request.code]
            answer(body=body, fields=fields)(connection, request)

        return self._stack.enter_context(Peer(behave)).address

    def closing(self) -> str:
        def behave(connection: socket.socket, request: RemotingCommand) -> None:
            connection.close()

        return self._stack.enter_context(Peer(behave)).address

    def nobody(self) -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(stack)


def look(servers: str, known: tuple[str, ...] = (), *, has_slaves: bool = False, **settings: str) -> Replicas:
    """As a broker that runs."""
    group = BrokerGroup(
        {**SELF, "namesrvAddr": servers, **settings}, address=OWN, boot_timestamp_ms=lambda: BOOT_MS + 1
    )
    return group.find_replicas(known, lambda: has_slaves)


def test_a_broker_without_replicas_needs_nobody_to_answer(machines: Machines) -> None:
    assert look(machines.nobody()).why_kept == ""
    assert look("").why_kept == ""
    assert look(machines.name_server({0: OWN})) == Replicas()
    assert BrokerGroup({"namesrvAddr": machines.nobody()}).find_replicas().why_kept == ""


def test_what_can_t_be_asked_permits_nothing_where_there_are_replicas(machines: Machines) -> None:
    nobody = machines.nobody()
    for found in (look(nobody, has_slaves=True), look("", (machines.nobody(),)), look(nobody, (nobody,))):
        assert "expected to know that this broker is the only master of its name" in found.why_kept
    assert nobody in look(nobody, has_slaves=True).why_kept
    # One of two name servers is not all of them.
    half = look(f"{machines.name_server({0: OWN, 1: '10.0.0.2:1'})};{nobody}")
    assert nobody in half.why_kept
    # What an earlier look has seen isn't forgotten meanwhile.
    assert look(nobody, (nobody,)).addresses == (nobody,)


def test_a_slave_is_known_and_no_second_master(machines: Machines) -> None:
    slave, gone = machines.broker("SLAVE"), machines.nobody()
    server = machines.name_server({0: OWN, 1: slave, 2: gone})
    found = look(server, (slave, machines.nobody()))
    assert (found.why_kept, found.in_group) == ("", True)
    # Who is registered nowhere and doesn't answer, claims nothing.
    assert found.addresses == tuple(sorted([slave, gone]))


def test_a_second_master_is_seen_though_the_name_server_has_us(machines: Machines) -> None:
    server, second = machines.name_server({0: OWN}), machines.broker("SYNC_MASTER")
    found = look(server, (second,))
    assert found.masters == (f"{second} says that it is the master",)
    assert "Stop one of them, or make it a slave" in found.why_kept
    # A broker of another name, or of another cluster, is none.
    other, elsewhere = (
        machines.broker("SYNC_MASTER", brokerName="x"),
        machines.broker("SYNC_MASTER", brokerClusterName="x"),
    )
    assert look(server, (other, elsewhere)) == Replicas()


def test_a_replica_that_takes_connections_and_says_nothing_is_unknown(machines: Machines) -> None:
    servers, silent = machines.name_server({0: OWN}), machines.closing()
    assert f"{silent} takes connections, but doesn't tell its role" in look(servers, (silent,)).why_kept
    # One that is registered as a slave is no master, and one that ended is gone.
    assert look(machines.name_server({0: OWN, 1: silent})).why_kept == ""
    assert look(servers, (machines.nobody(),)).why_kept == ""


def test_who_has_the_name_counts_where_the_own_cluster_is_not_known(machines: Machines) -> None:
    second = machines.broker("ASYNC_MASTER", brokerClusterName="DefaultCluster")
    server = machines.name_server({0: second}, cluster="DefaultCluster")
    stopped = {"brokerName": "b", "namesrvAddr": server}
    assert BrokerGroup(stopped).find_replicas().masters == (f"{second} says that it is the master",)
    assert BrokerGroup({**stopped, "brokerClusterName": "c"}).find_replicas().masters == ()


def test_who_is_registered_as_the_master_counts_whether_it_answers_or_not(machines: Machines) -> None:
    nobody = machines.nobody()
    server = machines.name_server({0: nobody})
    assert look(server).masters == (f"name server {server} has {nobody} as the master",)
    assert look(machines.name_server({0: nobody}, cluster="x")) == Replicas()
    # The same process at another of its addresses is no other.
    itself = machines.broker("ASYNC_MASTER", brokerIP1="10.0.0.1", listenPort="10911")
    settings = {**SELF, "namesrvAddr": machines.name_server({0: itself})}
    group = BrokerGroup(settings, address=OWN, boot_timestamp_ms=lambda: BOOT_MS)
    assert group.find_replicas() == Replicas()
    # Another one, started in the same millisecond, is.
    other = machines.broker("ASYNC_MASTER", brokerIP1="10.0.0.2", listenPort="10911")
    assert group.find_replicas((other,)).masters == (f"{other} says that it is the master",)


@pytest.mark.parametrize(
    ("chosen", "expected"), [(OWN, ""), ("10.0.0.9:1", "the controller has 10.0.0.9:1"), ("", "has none")]
)
def test_a_controller_says_who_is_the_master(machines: Machines, chosen: str, expected: str) -> None:
    server = machines.name_server({0: OWN})
    controllers = f"{machines.nobody()};{machines.controller(chosen)}"
    found = look(server, enableControllerMode="true", controllerAddr=controllers)
    assert expected in found.why_kept
    assert bool(found.why_kept) == bool(expected)


@pytest.mark.parametrize("controllers", ["", "127.0.0.1:1"])
def test_a_controller_that_can_t_be_asked_permits_nothing(machines: Machines, controllers: str) -> None:
    found = look(machines.name_server({0: OWN}), enableControllerMode="true", controllerAddr=controllers)
    assert "that don't answer" in found.why_kept


@pytest.mark.parametrize(
    ("identity", "in_sync", "expected"),
    [
        ("c#b#1\n", "[1]", True),
        ("c#b#1", "[1,2]", False),
        ("c#b#1", "[2]", False),
        ("c#b#1", "[]", False),
        ("c#x#1", "[1]", False),
        ("x#b#1", "[1]", False),
        ("1", "[1]", False),
        ("c#b#1", "null", False),
        ("c#b#1", "[1", False),
    ],
)
def test_who_is_alone_in_sync_says_its_controller(
    machines: Machines, identity: str, in_sync: str, expected: bool
) -> None:
    group = BrokerGroup({**SELF, "controllerAddr": machines.controller("", in_sync)})
    assert group.is_alone_in_sync(identity) is expected
    for controllers in ("", machines.nobody()):
        assert not BrokerGroup({**SELF, "controllerAddr": controllers}).is_alone_in_sync(identity)


def test_a_stopped_broker_s_own_registration_is_left_over_and_a_broker_there_is_not(
    machines: Machines,
) -> None:
    left_over = machines.nobody()

    def stopped(master: str, own: str) -> Replicas:
        host, _, port = own.partition(":")
        settings = {**SELF, "brokerIP1": host, "listenPort": port}
        return BrokerGroup({**settings, "namesrvAddr": machines.name_server({0: master})}).find_replicas()

    assert stopped(left_over, left_over) == Replicas()
    # Of a broker that has stopped a controller says soon that nobody is the master.
    controlled = {"enableControllerMode": "true", "namesrvAddr": machines.name_server({})}
    for chosen, is_kept in (("", False), ("10.0.0.9:1", True)):
        settings = {**SELF, **controlled, "controllerAddr": machines.controller(chosen)}
        assert bool(BrokerGroup(settings).find_replicas().why_kept) is is_kept
    assert stopped(left_over, OWN).masters
    running = machines.broker("ASYNC_MASTER")
    for own in (running, OWN):
        assert stopped(running, own).masters == (f"{running} says that it is the master",)


def test_replicas_are_known_from_the_own_hold_and_from_others_of_the_journal() -> None:
    class Memory:
        def load(self) -> Any:
            return to_jsonable(HoldState("m", 1, replicas=("10.0.0.3:1",)))

        def of_others(self) -> Any:
            pair = HoldState("n", 1, address="10.0.0.2:1", broker_name="b", cluster_name="c")
            other = HoldState("o", 1, address="10.0.0.9:1", broker_name="b", cluster_name="x")
            return [to_jsonable(pair), to_jsonable(other)]

    memory: Any = Memory()
    assert known_replicas(memory, NAMES) == ("10.0.0.2:1", "10.0.0.3:1")
    assert known_replicas(None, NAMES) == ()
