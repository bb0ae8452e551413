"""Pages of stores as a web application: closed to who isn't logged in, each store to who can't read its DAG.

Nothing of a request becomes a path of the disk: what is shown comes from the journal, or from files that were
read before. No library is imported that reads segments or lakes.
"""

from __future__ import annotations

import logging
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from storage_engine.exceptions import JournalUnavailableError, StorageEngineError
from storage_engine.links import CONSOLE_PATH, KEEP_PATH, REPORT_PATH
from storage_engine.plugins.access import ReadableDags, ReadableStore, ReadableStores, is_own_dag, not_found
from storage_engine.plugins.journals import REACH, in_own_threads
from storage_engine.plugins.report import (
    NoSuchStoreError,
    keep_of_store,
    message_html,
    report_of_run,
    report_or_none,
)

_HEADERS = {
    # Reports bring their style with them, and nothing else; the console's page has a policy of its own.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
"""Of each answer that has none of its own."""
_LONGEST_ID = 250
"""Characters of an Airflow id."""
_WRONG = "Something went wrong; the API server's log says what."

_log = logging.getLogger(__name__)

Id = Annotated[str, Query(min_length=1, max_length=_LONGEST_ID)]
Price = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]


def make_app(*, has_console: bool) -> FastAPI:
    """Return the application, with no page that describes it: that would be open.

    :param has_console: this Airflow can show it.
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
        # Starlette answers this outside of the middleware.
        _log.error("%s: %s", request.url.path, error, exc_info=error)
        return _said(request, "Error", _WRONG, 500, _HEADERS)

    @app.exception_handler(NoSuchStoreError)
    async def hide(request: Request, error: NoSuchStoreError) -> Response:
        return JSONResponse({"detail": not_found().detail}, 404)

    @app.exception_handler(JournalUnavailableError)
    async def say_what_it_takes(request: Request, error: JournalUnavailableError) -> Response:
        return _said(request, "This can't be shown", f"{error} {REACH}", 503)

    @app.exception_handler(StorageEngineError)
    async def say_why(request: Request, error: StorageEngineError) -> Response:
        return _said(request, "This can't be shown", str(error), 503)

    @app.get(REPORT_PATH)
    @in_own_threads
    def report(readable: ReadableDags, stores: ReadableStores, store: Id, dag_id: Id, run_id: Id) -> Response:
        if dag_id not in readable:
            # As for a run that isn't there: who may not read it isn't told that it is.
            raise not_found()
        run_key = f"{dag_id}/{run_id}"
        if is_own_dag(stores, store, dag_id):
            return HTMLResponse(report_of_run(store, run_key))
        # A DAG that somebody made may have a report in any store; what else there is of the store is not its.
        return HTMLResponse(report_or_none(store, run_key))

    @app.get(KEEP_PATH)
    @in_own_threads
    def keep(store: ReadableStore, price: Price | None = None) -> Response:
        # The form asks for a price, and for nothing else.
        policy = _HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
        return HTMLResponse(keep_of_store(store.conn_id, price), headers={"Content-Security-Policy": policy})

    if has_console:
        from storage_engine.plugins.console_routes import console

        app.include_router(console, prefix=CONSOLE_PATH)
    for route in app.routes:
        # What watches a page asks for its head alone; FastAPI by itself refuses that.
        if isinstance(route, APIRoute) and "GET" in route.methods:
            route.methods.add("HEAD")
    return app


def _said(
    request: Request, title: str, text: str, status: int, headers: dict[str, str] | None = None
) -> Response:
    """Return a sentence in the form that who asked for it can read."""
    if f"{CONSOLE_PATH}/api/" in request.url.path:
        return JSONResponse({"detail": text}, status, headers)
    return HTMLResponse(message_html(title, text), status, headers)
