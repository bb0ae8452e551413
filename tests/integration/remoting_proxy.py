"""A proxy on loopback that understands remoting's frames, and fails at the requests it is told to."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from storage_engine.rocketmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode, encode

Rewrite = Callable[[RemotingCommand, RemotingCommand], RemotingCommand]
"""From a request and its answer to what is answered instead."""


class Fault(Enum):
    """What happens to a request."""

    CUT_REQUEST = "not passed on; the connection is closed"
    CUT_ANSWER = "passed on and done; the connection is closed instead of the answer"
    SILENCE = "not passed on, never answered, and the connection stays open"
    SLOW = "passed on; the answer comes at a byte a second"
    GARBAGE = "answered with random bytes"
    OVERSIZED = "answered with the beginning of a frame of 2 GiB"
    OTHER_TALK = "answered as a web server does"
    REFUSED = "answered with code 1"


def _no_fault(code: int, number: int) -> Fault | None:
    return None


class RemotingProxy:
    """Passes everything on to ``upstream_port``, a request and its answer at a time.

    :param fault: what happens to a request, by its code and its number, counted from 0; None: nothing.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.codes: list[int] = []
        self.fault: Callable[[int, int], Fault | None] = _no_fault
        self.rewrite: Rewrite = lambda request, answer: answer
        self.faults = 0
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> RemotingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.close()

    def heal(self) -> None:
        """From now on nothing fails, and requests are counted from 0."""
        self.codes.clear()
        self.faults = 0
        self.fault = _no_fault
        self.rewrite = lambda request, answer: answer

    @property
    def is_healthy(self) -> bool:
        return self.fault is _no_fault

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            server: socket.socket | None = None
            try:
                while (request := _receive(client)) is not None:
                    number = len(self.codes)
                    self.codes.append(request.code)
                    fault = self.fault(request.code, number)
                    self.faults += fault is not None
                    if fault in (None, Fault.CUT_ANSWER, Fault.SLOW):
                        if server is None:
                            server = socket.create_connection(("127.0.0.1", self.upstream_port))
                        server.sendall(encode(request))
                        answer = _receive(server)
                        if answer is None or fault is Fault.CUT_ANSWER:
                            return
                        answer = self.rewrite(request, answer)
                    else:
                        answer = RemotingCommand(1, request.opaque, FLAG_RESPONSE, remark="injected")
                    if not self._answer(client, fault, answer):
                        return
            finally:
                if server is not None:
                    server.close()

    def _answer(self, client: socket.socket, fault: Fault | None, answer: RemotingCommand) -> bool:
        """Whether the connection goes on."""
        if fault is Fault.CUT_REQUEST:
            return False
        if fault is Fault.SILENCE:
            self._closed.wait(600)
            return False
        if fault is Fault.SLOW:
            for byte in encode(answer):
                client.sendall(bytes([byte]))
                time.sleep(1)
        elif fault is Fault.GARBAGE:
            client.sendall(os.urandom(4096))
        elif fault is Fault.OVERSIZED:
            client.sendall(b"\x7f\xff\xff\xff" + bytes(4096))
        elif fault is Fault.OTHER_TALK:
            client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        else:
            client.sendall(encode(answer))
        return True


def _receive(peer: socket.socket) -> RemotingCommand | None:
    """The next frame; None where the connection ends."""
    prefix = _exactly(peer, 4)
    frame = prefix and _exactly(peer, int.from_bytes(prefix))
    return decode(frame) if frame else None


def _exactly(peer: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = peer.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data
