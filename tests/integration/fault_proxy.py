"""An HTTP proxy on loopback that fails as networks and servers do, at the requests it is told to."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

_SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)
_ACCESS_DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied</Message></Error>"
)
_NO_SUCH_KEY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code>'
    b"<Message>The specified key does not exist.</Message></Error>"
)


class FaultKind(Enum):
    """What happens to a request."""

    SLOW_DOWN = "answered with 503, without being passed on"
    SERVER_ERROR = "answered with 500, without being passed on"
    FORBIDDEN = "answered with 403, without being passed on"
    NOT_FOUND = "answered with 404, without being passed on"
    STALL = "taken, and never answered"
    LATE = "passed on and answered, after a while"
    CUT_REQUEST = "the connection is reset with half of the body passed on"
    CUT_ANSWER = "passed on and done; the connection is reset instead of the answer"
    LOST = "answered well, but what was written isn't kept, and what is asked for isn't found"
    TORN = "answered well, but half of what was written is kept, and half of what is asked for is sent"
    DELAYED = "answered well, but what was written is there only after a while"
    REPEATED = "passed on twice, and once more after a while"


@dataclass
class Fault:
    """A fault at each matching request, ``times`` times.

    :param request: pattern that finds something in "METHOD /path?query".
    :param after: so many matching requests are passed on first.
    """

    kind: FaultKind
    request: str
    times: int = 1_000_000
    hits: int = 0
    after: int = 0


class FaultProxy:
    """Passes everything on to ``upstream_port``, unless a fault says otherwise.

    :param objects: where an object store behind it keeps its buckets.
    :param rewrite: changes the content of an answer, by "METHOD /path?query".
    """

    def __init__(
        self,
        upstream_port: int,
        objects: Path | None = None,
        rewrite: Callable[[str, bytes], bytes] | None = None,
    ) -> None:
        self.upstream_port = upstream_port
        self.objects = objects
        self.rewrite = rewrite
        self._later: list[threading.Timer] = []
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

    def fail(self, kind: FaultKind, request: str, times: int = 1_000_000, after: int = 0) -> Fault:
        """Add a fault; returns it, to ask whether it was hit."""
        fault = Fault(kind, request, times, after=after)
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
                    if fault.after:
                        fault.after -= 1
                        continue
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
        elif kind is FaultKind.FORBIDDEN:
            handler.answer(403, [], _ACCESS_DENIED)
        elif kind is FaultKind.NOT_FOUND:
            handler.answer(404, [], _NO_SUCH_KEY)
        else:
            if kind is FaultKind.LATE:
                time.sleep(1)
            status, headers, content = self._passed_on(handler, body)
            if self.rewrite is not None:
                content = self.rewrite(f"{handler.command} {handler.path}", content)
                headers = [it for it in headers if it[0].lower() != "content-length"]
            if kind is FaultKind.REPEATED:
                self._passed_on(handler, body)
                self._after(lambda: self._passed_on(handler, body))
            elif kind in (FaultKind.LOST, FaultKind.TORN, FaultKind.DELAYED):
                status, headers, content = self._damaged(kind, handler, status, headers, content)
            if kind is FaultKind.CUT_ANSWER:
                _reset(handler)
            else:
                handler.answer(status, headers, content)

    def _damaged(
        self,
        kind: FaultKind,
        handler: _Handler,
        status: int,
        headers: list[tuple[str, str]],
        content: bytes,
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        assert self.objects is not None
        if handler.command in ("GET", "HEAD"):
            if kind is FaultKind.LOST:
                return 404, [], b"" if handler.command == "HEAD" else _NO_SUCH_KEY
            if kind is FaultKind.TORN:
                headers = [it for it in headers if it[0].lower() not in ("content-length", "etag")]
                content = content[: len(content) // 2]
            return status, headers, content
        path = self.objects / unquote(handler.path.partition("?")[0]).lstrip("/")
        if path.is_file():
            if kind is FaultKind.LOST:
                path.unlink()
            elif kind is FaultKind.TORN:
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size // 2)
            else:
                aside = self.objects.parent / f"aside-{time.monotonic_ns()}"
                path.rename(aside)
                self._after(lambda: None if path.exists() else aside.rename(path))
        return status, headers, content

    def _after(self, act: Callable[[], object]) -> None:
        def quietly() -> None:
            with suppress(OSError, http.client.HTTPException):
                act()

        timer = threading.Timer(1.5, quietly)
        self._later.append(timer)
        timer.start()

    def settle(self) -> None:
        """Wait until what was to happen after a while has happened."""
        for timer in self._later:
            timer.join()
        self._later.clear()

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
def fault_proxy(
    upstream_port: int,
    objects: Path | None = None,
    rewrite: Callable[[str, bytes], bytes] | None = None,
) -> Iterator[FaultProxy]:
    """A proxy for the duration of the block."""
    proxy = FaultProxy(upstream_port, objects, rewrite)
    try:
        yield proxy
    finally:
        if not proxy._closing.is_set():
            proxy.close()
