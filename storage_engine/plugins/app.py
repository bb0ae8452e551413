"""Pages of stores as a web application: closed to who isn't logged in, each run to who can't read its DAG.

Nothing of a request becomes a path of the disk: what is shown comes from the journal. No library is imported
that reads segments or lakes.
"""

from __future__ import annotations

import logging
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import HTMLResponse
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response

from storage_engine.exceptions import StorageEngineError
from storage_engine.links import REPORT_PATH
from storage_engine.plugins.report import NoSuchRunError, message_html, report_of_run

_HEADERS = {
    # Pages bring their style with them, and nothing else.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
_LONGEST_ID = 250
"""Characters of an Airflow id."""

_log = logging.getLogger(__name__)

Id = Annotated[str, Query(min_length=1, max_length=_LONGEST_ID)]


def make_app() -> FastAPI:
    """Return the application, with no page that describes it: that would be open."""
    app = FastAPI(
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.middleware("http")
    async def add_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(Exception)
    def say_nothing(request: Request, error: Exception) -> Response:
        # Starlette answers this outside of the middleware.
        _log.error("%s: %s", request.url.path, error, exc_info=error)
        return HTMLResponse(
            message_html("Error", "Something went wrong; the API server's log says what."), 500, _HEADERS
        )

    @app.get(REPORT_PATH)
    def report(user: GetUserDep, store: Id, dag_id: Id, run_id: Id) -> Response:
        readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
        if dag_id not in readable:
            # As for a run that isn't there: who may not read it isn't told that it is.
            raise HTTPException(404, "Not found")
        try:
            return HTMLResponse(report_of_run(store, f"{dag_id}/{run_id}"))
        except NoSuchRunError as error:
            raise HTTPException(404, "Not found") from error
        except StorageEngineError as error:
            return HTMLResponse(message_html("The report can't be read", str(error)), 503)

    return app
