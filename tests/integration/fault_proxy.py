"""An HTTP proxy on loopback that fails as networks and servers do, at the requests it is told to."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class FaultKind(Enum):
    """What happens to a request."""

    SLOW_DOWN = "answered with 503, without being passed on"
    SERVER_ERROR = "answered with 500, without being passed on"
    STALL = "taken, and never answered"
    LATE = "passed on and answered, after a while"
    CUT_REQUEST = "the connection is reset with half of the body passed on"
    CUT_ANSWER = "passed on and done; the connection is reset instead of the answer"


@dataclass
class Fault:
    """A fault at each matching request, ``times`` times.

    :param request: pattern that finds something in "METHOD /path?query".
    """

    kind: FaultKind
    request: str
    times: int = 1_000_000
    hits: int = 0


class FaultProxy:
    """Passes everything on to ``upstream_port``, unless a fault says otherwise."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        proxy = self

        class Handler(_Handler):
            def do_any(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any  # noqa: N815

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def fail(self, kind: FaultKind, request: str, times: int = 1_000_000) -> Fault:
        """Add a fault; returns it, to ask whether it was hit."""
        fault = Fault(kind, request, times)
        self.faults.append(fault)
        return fault

    def close(self) -> None:
        """Refuse connections from now on."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _fault(self, line: str) -> FaultKind | None:
        with self._lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.hits < fault.times and re.search(fault.request, line):
                    fault.hits += 1
                    return fault.kind
        return None

    def _handle(self, handler: _Handler) -> None:
        kind = self._fault(f"{handler.command} {handler.path}")
        body = handler.body()
        if kind is FaultKind.CUT_REQUEST:
            with suppress(OSError, http.client.HTTPException):
                connection = self._upstream(handler)
                connection.send(body[: len(body) // 2])
                connection.close()
            _reset(handler)
        elif kind is FaultKind.STALL:
            self._closing.wait(30)
            _reset(handler)
        elif kind is FaultKind.SLOW_DOWN:
            handler.answer(503, [], _SLOW_DOWN)
        elif kind is FaultKind.SERVER_ERROR:
            handler.answer(500, [], b"")
        else:
            if kind is FaultKind.LATE:
                time.sleep(1)
            status, headers, content = self._passed_on(handler, body)
            if kind is FaultKind.CUT_ANSWER:
                _reset(handler)
            else:
                handler.answer(status, headers, content)

    def _upstream(self, handler: _Handler) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream_port, timeout=30)
        # As they came: the signature covers them.
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            if name.lower() not in ("connection", "expect"):
                connection.putheader(name, value)
        connection.endheaders()
        return connection

    def _passed_on(self, handler: _Handler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = self._upstream(handler)
        try:
            if body:
                connection.send(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def body(self) -> bytes:
        """The request's body as it came: chunks stay chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        lines = []
        size = -1
        while size:
            lines.append(self.rfile.readline())
            size = int(lines[-1].split(b";")[0], 16)
            lines.append(self.rfile.read(size))
            lines.append(self.rfile.readline())
        return b"".join(lines)

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if "content-length" not in names and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _reset(handler: _Handler) -> None:
    """Reset the connection, as a host does that vanished and came back."""
    handler.close_connection = True
    with suppress(OSError):
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.shutdown(socket.SHUT_RD)
    handler.connection.close()


@contextmanager
def fault_proxy(upstream_port: int) -> Iterator[FaultProxy]:
    """A proxy for the duration of the block."""
    proxy = FaultProxy(upstream_port)
    try:
        yield proxy
    finally:
        if not proxy._closing.is_set():
            proxy.close()
