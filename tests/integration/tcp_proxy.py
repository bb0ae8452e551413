"""A TCP proxy on loopback that cuts a connection, or falls silent, once it has seen a certain request."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class TcpProxy:
    """Passes everything on to ``upstream_port``.

    :param cut_after: when a client sends these bytes, they are passed on, and both sides are closed at once:
        the server does what it was asked, and nobody hears of it.
    :param silent_from: when a client sends these bytes, nothing is passed on any more, whatever connection
        it is, and none is closed.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.cut_after: bytes | None = None
        self.pattern_before: bytes = b""
        self.silent_from: bytes | None = None
        self.is_silent = False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.upstream_port))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        seen = False
        with client, server, suppress(OSError):
            while data := client.recv(1 << 16):
                self.is_silent = self.is_silent or (self.silent_from is not None and self.silent_from in data)
                if self.is_silent:
                    continue
                seen = seen or self.pattern_before in data
                cut = seen and self.cut_after is not None and self.cut_after in data
                if cut:
                    self.cut_after = None
                    self.cuts += 1
                    # No answer comes back from here on.
                    client.shutdown(socket.SHUT_RDWR)
                server.sendall(data)
                if cut:
                    return
            server.shutdown(socket.SHUT_WR)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if not self.is_silent:
                    client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
