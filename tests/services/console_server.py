"""The console's page without an Airflow: its files with their policy, and its answers over a journal.

``python -m tests.services.console_server sqlite:////tmp/journal.db STORE…`` serves them to look at. What
Airflow answers to an act, the server plays: the page's own answers are the real ones.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from storage_engine.console.chart import chart
from storage_engine.console.forecast import question_of, store_forecast, what_if, what_if_settings
from storage_engine.console.store import one_store, runs_page
from storage_engine.console.stores import all_stores, validation_calendar
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.plugins.app import PAGE, static_files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
BASE = "/base/storage-engine/console/"
"""As of an Airflow that is served below a path."""
AIRFLOW_PAGE = "/base/plugin/retention"
_FRAME = (
    f'<!doctype html><title>Airflow</title><iframe src="{BASE}" width="1200" height="800" '
    'sandbox="allow-scripts allow-same-origin allow-forms allow-downloads"></iframe>'
)
"""As Airflow shows a plugin's page."""

Answer = Callable[[str, Mapping[str, str], Any], Any]


class RefusedError(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass
class Console:
    """What the page is answered; a test may change each of it while the page is open.

    :param extra: answers instead of the real ones, by the path behind ``api/``.
    :param run_state: of a run that was posted, when it is asked for.
    :param posted: what the page sent to Airflow.
    """

    reader: JournalReader
    names: Sequence[str]
    now_ms: int | None = None
    may_run: bool = True
    is_paused: bool = False
    run_state: str = "success"
    extra: dict[str, Answer] = field(default_factory=dict)
    posted: list[tuple[str, Any]] = field(default_factory=list)

    def answer(self, path: str, query: Mapping[str, str], body: Any) -> Any:
        """
        :raises RefusedError: there is no such thing.
        """
        for pattern, made in self.extra.items():
            if re.fullmatch(pattern, path):
                return made(path, query, body)
        now_ms = clock_ms() if self.now_ms is None else self.now_ms
        if path == "stores":
            return all_stores(self.reader, self.names, now_ms)
        if path == "dag":
            name = query["dag"].partition("__")[2]
            return {"store": name if name in self.names else None}
        _, name, *what = path.split("/")
        if unquote(name) not in self.names:
            raise RefusedError(404, "Not found")
        return self._of_store(unquote(name), "/".join(what), query, body, now_ms)

    def _of_store(self, name: str, what: str, query: Mapping[str, str], body: Any, now_ms: int) -> Any:
        match what:
            case "":
                return {**to_jsonable(one_store(self.reader, name, now_ms)), "dags": self.dags(name)}
            case "runs":
                before = query.get("before_id")
                return runs_page(self.reader, name, None if before is None else int(before))
            case "chart":
                return chart(self.reader, name, int(query["start_ms"]), int(query["end_ms"]))
            case "forecast":
                return store_forecast(self.reader, name, now_ms)
            case "calendar":
                return validation_calendar(self.reader, name, int(query["year"]))
            case "what-if" if body is None:
                return what_if_settings(self.reader, name, now_ms)
            case "what-if":
                try:
                    return what_if(self.reader, name, question_of(body), now_ms)
                except BadInputError as error:
                    raise RefusedError(422, str(error)) from error
            case "run":
                headline = "This was a dry run: nothing was changed, and 2 segments would be deleted."
                return {"outcome": "dry-run", "story": {"headline": headline, "answers": []}}
        raise RefusedError(404, "Not found")

    def dags(self, name: str) -> list[dict[str, Any]]:
        purposes = ("retention", "forced_cleanup", "archive", "monitor")
        return [
            {
                "purpose": purpose,
                "dag_id": f"storage_{purpose}__{name}",
                "is_paused": self.is_paused,
                "may_run": self.may_run,
            }
            for purpose in purposes
        ]

    def airflow(self, path: str, body: Any) -> Any:
        """Play Airflow's REST API: a run that is posted has ended when it is asked for."""
        if body is not None:
            self.posted.append((path, body))
            return {"dag_run_id": "manual__1", "state": "queued"}
        return {"dag_run_id": "manual__1", "state": self.run_state}


@contextmanager
def serve(console: Console, port: int = 0) -> Iterator[str]:
    """Serve a console on loopback and yield the page's address."""

    class Handler(_Handler):
        answers = console

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{BASE}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    answers: Console
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond(None)

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: Any) -> None:
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        files = static_files()
        if address.path == BASE:
            self._send(200, files.page, files.files[PAGE].media_type)
        elif address.path.startswith(f"{BASE}static/{files.digest}/"):
            file = files.files.get(address.path.removeprefix(f"{BASE}static/{files.digest}/"))
            if file is None:
                self._send(404, b"Not found", "text/plain")
            else:
                self._send(200, file.content, file.media_type)
        elif address.path.startswith(f"{BASE}api/"):
            path = address.path.removeprefix(f"{BASE}api/")
            self._json(lambda: self.answers.answer(path, query, body))
        elif address.path.startswith("/base/api/v2/"):
            path = address.path.removeprefix("/base/api/v2/")
            self._json(lambda: self.answers.airflow(path, body))
        elif address.path.startswith(AIRFLOW_PAGE):
            self._send(200, _FRAME.encode(), "text/html", policy="")
        elif address.path == "/base/storage-engine/report":
            self._send(200, f"<title>report</title>{query['run_id']}".encode(), "text/html")
        else:
            self._send(404, b"Not found", "text/plain")

    def _json(self, made: Callable[[], Any]) -> None:
        status = 200
        try:
            found = to_jsonable(made())
        except RefusedError as error:
            status, found = error.status, {"detail": error.detail}
        content = json.dumps(found).encode()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if status == 200 and self.headers.get("If-None-Match") == etag:
            self._send(304, b"", "application/json", etag)
        else:
            self._send(status, content, "application/json", etag)

    def _send(
        self, status: int, content: bytes, media_type: str, etag: str = "", policy: str = POLICY
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.send_header("Cache-Control", "private, no-cache")
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: tests look at what the page asks for."""


if __name__ == "__main__":
    url, *names = sys.argv[1:]
    with serve(Console(JournalReader(url), names), 8765) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        threading.Event().wait()
