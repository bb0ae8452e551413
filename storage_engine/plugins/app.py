"""Pages of stores as a web application. Users have to be logged in, and see stores whose DAG they may read.

No part of a request becomes a path on the disk. Data comes from the journal that the store's connection
names, or from files that were read before. No library is imported that reads segments or lakes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mimetypes
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from anyio import Semaphore, fail_after
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from sqlalchemy import select
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from storage_engine.console import chart as store_chart
from storage_engine.console.forecast import question_of, store_forecast, what_if, what_if_settings
from storage_engine.console.store import one_store, runs_page
from storage_engine.console.stores import (
    ProblemKind,
    StoreLine,
    validation_calendar,
    without_monitor,
    worst_first,
)
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import (
    BadInputError,
    JournalUnavailableError,
    SimulationTooLongError,
    StorageEngineError,
)
from storage_engine.hooks.configured_stores import ConfiguredStore
from storage_engine.journal.reading.answers import StoredReport
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.links import CONSOLE_PATH, KEEP_PATH, REPORT_PATH
from storage_engine.pages.report import report_html
from storage_engine.pages.story import of_any_release, tell
from storage_engine.pages.summary import LakeForecast, keep_page
from storage_engine.plugins.access import (
    ReadableDags,
    ReadableStore,
    ReadableStores,
    dag_id,
    dags_of,
    is_own_dag,
    not_found,
)
from storage_engine.plugins.journals import REACH, in_own_threads, journal_of, overview
from storage_engine.retention.housekeeping.kept_forecasts import read_forecasts

_log = logging.getLogger(__name__)

_NONE = (
    "This run has no report of its own. Possible reasons: nothing was due; the run's last task has not run "
    "yet; the task isn't part of a cleanup, such as the tasks of storage_monitor and "
    "storage_flush_checkpoint; or the report has expired."
)


class NoSuchStoreError(StorageEngineError):
    """This Airflow has no store with this connection."""


def report_of_run(conn_id: str, run_key: str) -> str:
    """Return the page of a run's report, or a page that says that the run has no report.

    :raises NoSuchStoreError: there is no such store.
    :raises JournalUnavailableError: the journal can't be read.
    :raises BadInputError: a newer release wrote the journal or the report.
    """
    try:
        reader = journal_of(conn_id)
    except BadInputError as error:
        raise NoSuchStoreError(str(error)) from error
    if (stored := _read_report(reader, conn_id, run_key)) is not None:
        return report_html(stored.report, version=stored.version)
    return message_html(run_key, _NONE)


def report_or_none(conn_id: str, run_key: str) -> str:
    """Return the page of a run's report. After any error, the page says that the run has no report.

    :param conn_id: id of a connection, which the user may have no right to know.
    """
    try:
        return report_of_run(conn_id, run_key)
    except StorageEngineError as error:
        _log.warning("report of %s: %s", run_key, error)
        return message_html(run_key, _NONE)


def _read_report(reader: JournalReader, conn_id: str, run_key: str) -> StoredReport | None:
    store_id = reader.store_id(conn_id)
    return None if store_id is None else reader.report(store_id, run_key)


def message_html(title: str, text: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:45rem;"
        "margin:2rem auto;padding:0 1rem;color-scheme:light dark}h1{font-size:1.2rem;overflow-wrap:anywhere}"
        f"</style></head><body><main><h1>{escape(title)}</h1><p>{escape(text)}</p></main></body></html>"
    )


_HEADERS = {
    # Reports contain their style and load no file. The console's page has its own policy.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
"""Headers of each answer, unless the answer sets them itself."""
_LONGEST_ID = 250
"""Longest Airflow id, in characters."""
_WRONG = "Something went wrong. See the API server's log."


Id = Annotated[str, Query(min_length=1, max_length=_LONGEST_ID)]
Price = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]


def make_app(*, has_console: bool) -> FastAPI:
    """Return the application. It serves no OpenAPI pages, because everybody could read them.

    :param has_console: whether this Airflow can show the console.
    """
    app = FastAPI(
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.middleware("http")
    async def add_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.exception_handler(Exception)
    async def say_nothing(request: Request, error: Exception) -> Response:
        # Starlette answers this outside of the middleware, which adds the headers.
        _log.error("%s: %s", request.url.path, error, exc_info=error)
        return _make_response(request, "Error", _WRONG, 500, _HEADERS)

    @app.exception_handler(NoSuchStoreError)
    async def hide(request: Request, error: NoSuchStoreError) -> Response:
        return JSONResponse({"detail": not_found().detail}, 404)

    @app.exception_handler(JournalUnavailableError)
    async def say_what_it_takes(request: Request, error: JournalUnavailableError) -> Response:
        return _make_response(request, "This can't be shown", f"{error} {REACH}", 503)

    @app.exception_handler(StorageEngineError)
    async def say_why(request: Request, error: StorageEngineError) -> Response:
        return _make_response(request, "This can't be shown", str(error), 503)

    @app.get(REPORT_PATH)
    @in_own_threads
    def report(readable: ReadableDags, stores: ReadableStores, store: Id, dag_id: Id, run_id: Id) -> Response:
        if dag_id not in readable:
            # The answer is the same whether the run exists or not.
            raise not_found()
        run_key = f"{dag_id}/{run_id}"
        if is_own_dag(stores, store, dag_id):
            return HTMLResponse(report_of_run(store, run_key))
        # A user's own DAG may have a report in any store. Errors would tell about a store of others.
        return HTMLResponse(report_or_none(store, run_key))

    @app.get(KEEP_PATH)
    @in_own_threads
    def keep(store: ReadableStore, price: Price | None = None) -> Response:
        # The page has a form, in which the user enters the price of 10⁹ bytes for a month.
        policy = _HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
        reader = journal_of(store.conn_id)
        store_id = reader.store_id(store.conn_id)
        forecasts = () if store_id is None else read_forecasts(reader, store_id)
        lakes = tuple(LakeForecast(row.at_ms, row.forecast) for row in forecasts)
        page = keep_page(store.conn_id, lakes, price)
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    if has_console:
        app.include_router(console, prefix=CONSOLE_PATH)
    for route in app.routes:
        # Monitors of web pages send HEAD requests, which FastAPI refuses by default.
        if isinstance(route, APIRoute) and "GET" in route.methods:
            route.methods.add("HEAD")
    return app


def _make_response(
    request: Request, title: str, text: str, status: int, headers: dict[str, str] | None = None
) -> Response:
    """Return a text as JSON to a request of the API, otherwise as HTML."""
    if f"{CONSOLE_PATH}/api/" in request.url.path:
        return JSONResponse({"detail": text}, status, headers)
    return HTMLResponse(message_html(title, text), status, headers)


MOST_BODY_BYTES = 32 * 1024
WAIT_SECONDS = 2.0
"""Longest wait for the previous question. A user who moves a slider asks again before an answer has come."""
_BUSY = "Another what-if is being computed on this API server. Try again in a few seconds."
_LATER = {"Retry-After": "3"}
_MOST_WAITING = 2
_turns = Semaphore(1)
_FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
"""Media types by file ending. A system's own table may have other types."""


@asynccontextmanager
async def one_at_a_time() -> AsyncIterator[None]:
    """Wait until no other question is being computed. The wait takes no thread.

    :raises HTTPException: too many requests are waiting already, or the wait took too long.
    """
    if _turns.statistics().tasks_waiting >= _MOST_WAITING:
        raise HTTPException(429, _BUSY, _LATER)
    try:
        with fail_after(WAIT_SECONDS):
            await _turns.acquire()
    except TimeoutError:
        raise HTTPException(429, _BUSY, _LATER) from None
    try:
        yield
    finally:
        _turns.release()


async def json_object(request: Request) -> dict[str, Any]:
    """Read the JSON object in a request's body.

    :raises HTTPException: the body isn't a JSON object, or it is too large.
    """
    # A page of another site can't send this type without a preflight request, which isn't answered.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Expected a body of the type application/json.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(413, f"Expected at most {MOST_BODY_BYTES} bytes.")
    try:
        content = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise HTTPException(422, "Expected a JSON object.")
    return content


JsonObject = Annotated[dict[str, Any], Depends(json_object)]


def _refuse(word: str) -> None:
    raise ValueError(word)


_VERSION = 1
"""Version of all answers. It is raised when a key is removed or changes its meaning."""
_CACHE_HEADERS = {"Cache-Control": "private, no-cache"}


def answer(request: Request, kind: str, data: Any) -> Response:
    """Return data as JSON, or status 304 if the browser has the same data already.

    :param data: dataclasses and other values that :func:`to_jsonable` takes.
    """
    content = {"kind": kind, "version": _VERSION, **to_jsonable(data)}
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    headers = {**_CACHE_HEADERS, "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def with_monitors(
    lines: Iterable[StoreLine], stores: Iterable[ConfiguredStore], dags: frozenset[str]
) -> tuple[StoreLine, ...]:
    """Return the lines, with a problem for each store whose monitor DAG is paused or gone.

    :param dags: the DAGs that the user may read. Other DAGs are not mentioned.
    """
    monitors = {store.conn_id: dag_id(store, "monitor") for store in stores}
    ids = dags.intersection(monitors.values())
    query = select(DagModel.dag_id, DagModel.is_paused, DagModel.is_stale).where(DagModel.dag_id.in_(ids))
    with create_session() as session:
        rows = session.execute(query).all()
    problems = {
        row.dag_id: ProblemKind.MONITOR_GONE if row.is_stale else ProblemKind.MONITOR_PAUSED
        for row in rows
        if row.is_stale or row.is_paused
    }
    return tuple(
        without_monitor(line, monitor, problems[monitor])
        if (monitor := monitors.get(line.store, "")) in problems
        else line
        for line in lines
    )


PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Security policy of the page. It permits only own scripts and styles, and no address but Airflow's."""
_KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Cache headers of a file, whose address changes with its content."""

console = APIRouter()

LONGEST_CHART_MS = 400 * DAY_MS
"""Longest span of a chart. A browser shows 90 days. Computing each day's hours of deletion takes time."""
Moment = Annotated[int, Query(ge=0, lt=253_370_764_800_000)]
"""A time in milliseconds, up to the year 9998."""
Number = Annotated[int, Query(ge=0, lt=1 << 53)]
"""Number of a row. JavaScript represents numbers in this range exactly."""
Year = Annotated[int, Query(ge=1970, lt=9999)]


@console.get("/")
def page() -> Response:
    """Return the page. It is the same for all users, and requests its data."""
    files = static_files()
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "private, no-cache"}
    return Response(files.page, media_type=files.files[PAGE].media_type, headers=headers)


@console.get("/static/{name:path}")
def static(name: str) -> Response:
    """Return one of the page's files."""
    files = static_files()
    digest, _, inner = name.partition("/")
    is_kept = digest == files.digest
    file = files.files.get(inner if is_kept else name)
    if file is None:
        raise not_found()
    return Response(file.content, media_type=file.media_type, headers=_KEPT if is_kept else None)


@console.get("/api/dag")
def dag(request: Request, stores: ReadableStores, dag: Id) -> Response:
    """Return the store that a DAG manages; null if it manages no store that the user may read."""
    conn_ids = (store.conn_id for store in stores if is_own_dag([store], store.conn_id, dag))
    return answer(request, "dag", {"store": next(conn_ids, None)})


@console.get("/api/stores")
@in_own_threads
def stores(request: Request, stores: ReadableStores, dags: ReadableDags) -> Response:
    """Return all stores that the user may read, the worst first."""
    data = overview([store.conn_id for store in stores], clock_ms())
    lines = worst_first(with_monitors(data.stores, stores, dags))
    return answer(request, "stores", replace(data, stores=lines))


@console.get("/api/stores/{store:path}/run")
@in_own_threads
def run(request: Request, store: ReadableStore, dag: Id, run: Id) -> Response:
    """Return the outcome and story of a run, such as a dry run from the page; null without a report."""
    if not is_own_dag([store], store.conn_id, dag):
        raise not_found()
    run_key = f"{dag}/{run}"
    stored = _read_report(journal_of(store.conn_id), store.conn_id, run_key)
    report = None if stored is None else of_any_release(stored.report)
    outcome, story = (None, None) if report is None else (report["outcome"], tell(report))
    return answer(request, "run", {"run_key": run_key, "outcome": outcome, "story": story})


@console.get("/api/stores/{store:path}/runs")
@in_own_threads
def runs(request: Request, store: ReadableStore, before_id: Number | None = None) -> Response:
    """Return one page of a store's runs, the newest first."""
    return answer(request, "runs", runs_page(journal_of(store.conn_id), store.conn_id, before_id))


@console.get("/api/stores/{store:path}/chart")
@in_own_threads
def chart(request: Request, store: ReadableStore, start_ms: Moment, end_ms: Moment) -> Response:
    """Return a store's retention time and disk levels over a span of time."""
    if not 0 <= end_ms - start_ms <= LONGEST_CHART_MS:
        raise HTTPException(
            422, f"Expected a span of at most {LONGEST_CHART_MS} ms, by its start and its end."
        )
    data = store_chart.chart(journal_of(store.conn_id), store.conn_id, start_ms, end_ms)
    return answer(request, "chart", data)


@console.get("/api/stores/{store:path}/forecast")
@in_own_threads
def forecast(request: Request, store: ReadableStore) -> Response:
    """Return a store's forecast at the rates of the last days."""
    return answer(request, "forecast", store_forecast(journal_of(store.conn_id), store.conn_id, clock_ms()))


@console.get("/api/stores/{store:path}/calendar")
@in_own_threads
def calendar(request: Request, store: ReadableStore, year: Year) -> Response:
    """Return the days of a year with validations, gaps or losses."""
    return answer(request, "calendar", validation_calendar(journal_of(store.conn_id), store.conn_id, year))


@console.get("/api/stores/{store:path}/what-if")
@in_own_threads
def settings(request: Request, store: ReadableStore) -> Response:
    """Return the settings of a store that can be tried, with their current values."""
    data = what_if_settings(journal_of(store.conn_id), store.conn_id, clock_ms())
    return answer(request, "what-if-settings", data)


@console.post("/api/stores/{store:path}/what-if")
async def try_settings(request: Request, store: ReadableStore, body: JsonObject) -> Response:
    """Return a store's courses under today's and under changed settings. Nothing is stored."""
    async with one_at_a_time():
        return await _simulate(request, store.conn_id, body)


@in_own_threads
def _simulate(request: Request, conn_id: str, body: dict[str, Any]) -> Response:
    try:
        data = what_if(journal_of(conn_id), conn_id, question_of(body), clock_ms())
    except SimulationTooLongError as error:
        raise HTTPException(503, str(error)) from error
    except BadInputError as error:
        # The user entered a wrong value, so it is no error of the server.
        raise HTTPException(422, str(error)) from error
    return answer(request, "what-if", data)


# This route comes last: since ids may contain slashes, its path also matches those of the routes above.
@console.get("/api/stores/{store:path}")
@in_own_threads
def one(request: Request, store: ReadableStore, user: GetUserDep, dags: ReadableDags) -> Response:
    """Return the contents of a store's page, and its DAGs that the user may read."""
    data = one_store(journal_of(store.conn_id), store.conn_id, clock_ms())
    (row,) = with_monitors([data.row], [store], dags)
    content = {**to_jsonable(replace(data, row=row)), "dags": dags_of(store, user, dags)}
    return answer(request, "store", content)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page.

    :param media_type: media type, for text with the charset.
    """

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class StaticFiles:
    """All files of the page, by name, such as ``main.js``.

    :param digest: digest of all files. It is part of their addresses, so that browsers can keep copies.
    """

    files: Mapping[str, StaticFile]
    digest: str

    @property
    def page(self) -> bytes:
        """Return the page. The addresses of its files change with their contents."""
        text = self.files[PAGE].content.decode()
        return text.replace('"static/', f'"static/{self.digest}/').encode()


@cache
def static_files() -> StaticFiles:
    """Read the files of the page, once."""
    paths = sorted(path for path in _FOLDER.rglob("*") if path.is_file())
    files = {path.relative_to(_FOLDER).as_posix(): _read(path) for path in paths}
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{len(file.content)}\0".encode())
        digest.update(file.content)
    return StaticFiles(files, digest.hexdigest()[:16])


def _read(path: Path) -> StaticFile:
    media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    text = media_type.startswith("text/") or path.suffix == ".svg"
    return StaticFile(path.read_bytes(), f"{media_type}; charset=utf-8" if text else media_type)
