"""A peer on loopback that answers as a test says: the ways in which a broker or the network can fail."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from storage_engine.rocketmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode, encode

Behaviour = Callable[[socket.socket, RemotingCommand], None]
"""What the peer does on a request. It stops listening to the connection when this raises OSError."""


class Peer:
    """Serves connections, each in a thread, until it is closed.

    :param behaviours: one for each request in the order of their arrival; the last one for all that follow.
    """

    def __init__(self, *behaviours: Behaviour) -> None:
        self.requests: list[RemotingCommand] = []
        self.connections = 0
        self._behaviours = behaviours
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def asked(self, count: int) -> list[RemotingCommand]:
        """Return the requests as soon as there are so many, or after 60 s."""
        gives_up = time.monotonic() + 60
        while len(self.requests) < count and time.monotonic() < gives_up:
            time.sleep(0.01)
        return self.requests

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.05)
            while not self._closed.is_set():
                try:
                    prefix = connection.recv(4, socket.MSG_PEEK)
                except TimeoutError:
                    continue
                if not prefix:
                    return
                connection.settimeout(60)
                frame = connection.recv(int.from_bytes(connection.recv(4)), socket.MSG_WAITALL)
                request = decode(frame)
                number = min(len(self.requests), len(self._behaviours) - 1)
                self.requests.append(request)
                self._behaviours[number](connection, request)
                connection.settimeout(0.05)


def answer(code: int = 0, body: bytes = b"", **changes: object) -> Behaviour:
    """Answer as a broker does.

    :param changes: what is different in the answer's header.
    """

    def behave(connection: socket.socket, request: RemotingCommand) -> None:
        response = RemotingCommand(code, request.opaque, FLAG_RESPONSE, body=body)
        connection.sendall(encode(replace(response, **changes)))  # type: ignore[arg-type]

    return behave


def send(data: bytes) -> Behaviour:
    """Send these bytes, and leave the connection open."""
    return lambda connection, _: connection.sendall(data)


def close(connection: socket.socket, _: RemotingCommand) -> None:
    """Close the connection."""
    raise ConnectionAbortedError


def keep_silent(_: socket.socket, __: RemotingCommand) -> None:
    """Say nothing, ever."""
