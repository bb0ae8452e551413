"""Every way a peer can fail ends in one clear error, in bounded time, over real sockets."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerUnavailableError,
)
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.command import (
    FLAG_RESPONSE,
    MAX_FRAME_BYTES,
    RemotingCommand,
    encode,
)
from storage_engine.rocketmq.remoting.connection import Access, Connection, Tls, split_address
from tests.rocketmq.remoting.peer import Behaviour, Peer, answer, close, keep_silent, send

TIMEOUT_SECONDS = 1.0
HASTY = Access(connect_timeout_seconds=TIMEOUT_SECONDS, request_timeout_seconds=TIMEOUT_SECONDS)
"""For peers that never answer."""
PATIENT = Access(connect_timeout_seconds=60, request_timeout_seconds=60)
"""For those that do, on a machine that may be busy."""
BOUND_SECONDS = 30
READ = command.GET_BROKER_RUNTIME_INFO
ACT = command.DELETE_EXPIRED_COMMITLOG
WHOLE = encode(RemotingCommand(0, 1, FLAG_RESPONSE, body=b"x" * 100))


def drip(connection: socket.socket, _: RemotingCommand) -> None:
    """Send a byte whenever a timeout for each read would soon be over."""
    for at in range(len(WHOLE)):  # takes longer than is allowed altogether
        connection.sendall(WHOLE[at : at + 1])
        time.sleep(TIMEOUT_SECONDS / 4)


def close_half_way(connection: socket.socket, request: RemotingCommand) -> None:
    connection.sendall(WHOLE[: len(WHOLE) // 2])
    close(connection, request)


def reset(connection: socket.socket, request: RemotingCommand) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    close(connection, request)


UNAVAILABLE: dict[str, tuple[Behaviour, str]] = {
    "silent": (keep_silent, "expected an answer within 1 s"),
    "half-an-answer": (send(WHOLE[:-1]), "expected an answer within 1 s"),
    "half-a-length": (send(WHOLE[:2]), "expected an answer within 1 s"),
    "byte-by-byte": (drip, "expected an answer within 1 s"),
    "closed": (close, "closed by the peer with 4 of 4 bytes missing.*tls.server.mode"),
    "closed-half-way": (close_half_way, "closed by the peer with"),
    "reset": (reset, "connection broken"),
}
NO_PROTOCOL: dict[str, tuple[Behaviour, str]] = {
    "http": (send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "found a length of 1213486160"),
    "tls-alert": (send(bytes.fromhex("15030300020228")), "found a TLS record"),
    "oversized": (send(struct.pack(">i", MAX_FRAME_BYTES + 1)), f"to {MAX_FRAME_BYTES} bytes"),
    "negative-length": (send(struct.pack(">i", -1)), "length of -1"),
    "empty": (send(bytes(4)), "length of 0"),
    "header-longer-than-frame": (
        send(struct.pack(">iI", 8, 0xFFFFFF) + bytes(4)),
        "header of at most 4 bytes",
    ),
    "other-serialisation": (send(struct.pack(">iI", 4, 7 << 24)), "found type 7"),
    "garbage-header": (send(struct.pack(">iI", 8, 4) + b"\xff\xfe{}"), "JSON header"),
    "another-requests-answer": (answer(opaque=77), "number 77"),
    "a-request-of-its-own": (answer(flag=0), "found flag 0"),
}


SILENT = [UNAVAILABLE[name][0] for name in ("silent", "half-an-answer", "half-a-length", "byte-by-byte")]


def access_to(behaviour: Behaviour) -> Access:
    return HASTY if behaviour in SILENT else PATIENT


@contextmanager
def bounded() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < BOUND_SECONDS, "took longer than its timeouts"


def answered(connection: Connection) -> bytes:
    """What the peer says, as soon as it is quick enough for a hasty access."""
    gives_up = time.monotonic() + 60
    while True:
        try:
            return connection.read(READ).body
        except BrokerUnavailableError:
            assert time.monotonic() < gives_up


def check(peer: Peer, error: BrokerError, request: int) -> None:
    """The message names the peer and the request."""
    assert str(error).startswith(f"{peer.address}, request {request} ({command.NAMES[request]}): expected ")


@pytest.mark.parametrize(("behaviour", "found"), UNAVAILABLE.values(), ids=UNAVAILABLE)
def test_no_answer_is_unavailable_in_bounded_time(behaviour: Behaviour, found: str) -> None:
    with Peer(behaviour) as peer, Connection(peer.address, access_to(behaviour)) as connection:
        with bounded(), pytest.raises(BrokerUnavailableError, match=found) as raised:
            connection.read(READ)
        check(peer, raised.value, READ)
        assert not raised.value.may_have_acted
        assert len(peer.asked(1)) == 1


@pytest.mark.parametrize(("behaviour", "found"), NO_PROTOCOL.values(), ids=NO_PROTOCOL)
def test_what_no_broker_says_is_refused_in_bounded_time(behaviour: Behaviour, found: str) -> None:
    with Peer(behaviour) as peer, Connection(peer.address, access_to(behaviour)) as connection:
        with bounded(), pytest.raises(BrokerProtocolError, match=found) as raised:
            connection.read(READ)
        check(peer, raised.value, READ)
        assert len(peer.requests) == 1


@pytest.mark.parametrize(
    "behaviour",
    [it[0] for it in (*UNAVAILABLE.values(), *NO_PROTOCOL.values())],
    ids=[*UNAVAILABLE, *NO_PROTOCOL],
)
def test_change_is_asked_for_once_and_may_have_been_made(behaviour: Behaviour) -> None:
    with Peer(answer(), behaviour) as peer, Connection(peer.address, access_to(behaviour)) as connection:
        connection.read(READ)
        with bounded(), pytest.raises(BrokerError) as raised:
            connection.act(ACT)
        assert raised.value.may_have_acted
        assert [request.code for request in peer.asked(2)] == [READ, ACT]


@pytest.mark.parametrize("behaviour", [close, reset])
def test_read_is_repeated_where_an_open_connection_turns_out_dead(behaviour: Behaviour) -> None:
    with (
        Peer(answer(), behaviour, answer(body=b"x")) as peer,
        Connection(peer.address, PATIENT) as connection,
    ):
        connection.read(READ)
        assert connection.read(READ).body == b"x"
        assert peer.connections == 2


def test_busy_peer_is_asked_once_more() -> None:
    with Peer(answer(command.SYSTEM_BUSY), answer()) as peer, Connection(peer.address, PATIENT) as connection:
        connection.read(READ)
        assert len(peer.requests) == 2
    with Peer(answer(command.SYSTEM_BUSY)) as peer, Connection(peer.address, PATIENT) as connection:
        with pytest.raises(BrokerRefusedError, match="when the broker is less busy"):
            connection.read(READ)
        with pytest.raises(BrokerRefusedError) as raised:
            connection.act(ACT)
        assert not raised.value.may_have_acted
        assert len(peer.requests) == 3


def test_refusal_has_the_peers_code_and_words() -> None:
    refuse = answer(command.NO_PERMISSION, remark="check\nsignature failed.")
    with Peer(refuse) as peer, Connection(peer.address, PATIENT) as connection:
        with pytest.raises(BrokerRefusedError, match=r"found 16 \(check signature failed") as raised:
            connection.read(READ)
        check(peer, raised.value, READ)
        assert (raised.value.code, raised.value.remark) == (command.NO_PERMISSION, "check\nsignature failed.")


def test_connection_is_usable_after_a_failure() -> None:
    with Peer(keep_silent, answer(body=b"x")) as peer, Connection(peer.address, HASTY) as connection:
        with pytest.raises(BrokerUnavailableError):
            connection.read(READ)
        assert answered(connection) == b"x"


def test_longer_answer_is_taken_only_where_it_is_expected() -> None:
    with Peer(answer(body=bytes(2000))) as peer, Connection(peer.address, PATIENT) as connection:
        assert len(connection.read(READ, max_bytes=4000).body) == 2000
        with pytest.raises(BrokerProtocolError, match="4 to 1000 bytes"):
            connection.read(READ, max_bytes=1000)


def test_threads_share_a_connection_and_get_their_own_answers() -> None:
    def echo(connection: socket.socket, request: RemotingCommand) -> None:
        answer(body=request.fields["number"].encode())(connection, request)

    found: dict[int, bytes] = {}
    with Peer(echo) as peer, Connection(peer.address, PATIENT) as connection:

        def ask(number: int) -> None:
            found[number] = connection.read(READ, {"number": number}).body

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert peer.connections == 1
    assert found == {number: b"%d" % number for number in range(20)}


@pytest.mark.parametrize("tls", [None, Tls(verify=False)], ids=["plain", "tls"])
def test_nobody_listening_is_unavailable(tls: Tls | None) -> None:
    with Peer(answer()) as peer:
        pass
    access = replace(PATIENT, tls=tls)
    with Connection(peer.address, access) as connection:
        with bounded(), pytest.raises(BrokerUnavailableError, match="refused") as raised:
            connection.act(ACT)
        check(peer, raised.value, ACT)
        assert not raised.value.may_have_acted


def test_host_that_drops_packets_is_unavailable_in_bounded_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Its queue is full: the kernel drops what comes.
        with (
            socket.create_connection(listener.getsockname()),
            Connection(f"127.0.0.1:{listener.getsockname()[1]}", HASTY) as connection,
            bounded(),
            pytest.raises(BrokerUnavailableError, match="expected a connection within"),
        ):
            connection.read(READ)


@pytest.mark.parametrize(
    ("greeting", "error", "found"),
    [
        (None, BrokerUnavailableError, "TLS handshake within 1 s"),
        (b"", BrokerError, "TLS handshake.*tls.server.mode"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", BrokerProtocolError, "expected a TLS handshake"),
    ],
    ids=["silent", "closed", "garbage"],
)
def test_peer_without_tls_is_named_in_bounded_time(
    greeting: bytes | None, error: type[BrokerError], found: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                if greeting is None:
                    connection.recv(1)
                else:
                    connection.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        access = replace(HASTY if greeting is None else PATIENT, tls=Tls())
        with (
            Connection(f"127.0.0.1:{listener.getsockname()[1]}", access) as connection,
            bounded(),
            pytest.raises(error, match=found),
        ):
            connection.read(READ)
        thread.join()


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "host:²"])
def test_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(BadInputError, match="expected host:port"):
        split_address(address)


def test_ipv6_host_may_stand_in_brackets() -> None:
    assert split_address("[::1]:10911") == split_address("::1:10911") == ("::1", 10911)


def test_tls_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(BadInputError, match=missing):
        Connection("127.0.0.1:1", Access(tls=Tls(ca_file=missing)))


def test_connection_that_nobody_has_any_more_is_closed() -> None:
    closed = threading.Event()

    def tell_when_closed(connection: socket.socket, request: RemotingCommand) -> None:
        answer()(connection, request)
        connection.settimeout(60)
        if not connection.recv(1):
            closed.set()

    with Peer(tell_when_closed) as peer:
        # A socket that is left to the collector would warn, which is an error here.
        Connection(peer.address).read(READ)
        assert closed.wait(60)
