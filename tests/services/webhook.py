"""A server on loopback that keeps what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Posted:
    """:param status: that it answers with."""

    url: str
    bodies: list[Any] = field(default_factory=list)
    status: int = 200


@contextmanager
def webhook() -> Iterator[Posted]:
    """Serve until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if posted.status == 200:
                posted.bodies.append(body)
            self.send_response(posted.status)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        posted = Posted(f"http://127.0.0.1:{server.server_address[1]}/services/T0/B0/secret")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield posted
        server.shutdown()
