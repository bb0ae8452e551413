"""Routes of the console: its page, the files that the page is made of, and what it shows of each store.

They read only. Who asks for a store has to be one who may read it (:mod:`storage_engine.plugins.access`).
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from storage_engine.plugins.access import PURPOSES, ReadableStore, ReadableStores, dag_id, not_found
from storage_engine.plugins.answers import answer
from storage_engine.plugins.report import run_in_short
from storage_engine.plugins.static_files import PAGE, static_files

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""Of the page: no script and no style but its own files', and no address but Airflow's."""
_KEPT = {"Cache-Control": "private, max-age=31536000, immutable"}
"""Of a file whose address changes when it does."""
_LONGEST_ID = 250

console = APIRouter()

Id = Annotated[str, Query(min_length=1, max_length=_LONGEST_ID)]


@console.get("/")
def page() -> Response:
    """Return the page, which is the same for everybody: what it shows it asks for."""
    files = static_files()
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "private, no-cache"}
    return Response(files.page, media_type=files.files[PAGE].media_type, headers=headers)


@console.get("/static/{name:path}")
def static(name: str) -> Response:
    """Return one of the files that were read when the server started."""
    files = static_files()
    digest, _, inner = name.partition("/")
    is_kept = digest == files.digest
    file = files.files.get(inner if is_kept else name)
    if file is None:
        raise not_found()
    return Response(file.content, media_type=file.media_type, headers=_KEPT if is_kept else None)


@console.get("/api/dag")
def dag(request: Request, stores: ReadableStores, dag: Id) -> Response:
    """Return the store that a DAG manages; null: none, or none that the user may read."""
    found = (store.conn_id for store in stores if dag in {dag_id(store, purpose) for purpose in PURPOSES})
    return answer(request, {"kind": "dag", "version": 1, "store": next(found, None)})


@console.get("/api/stores/{store:path}/run")
def run(request: Request, store: ReadableStore, dag: Id, run: Id) -> Response:
    """Return what a run came to, such as a dry run that the page has started."""
    if dag not in {dag_id(store, purpose) for purpose in PURPOSES}:
        raise not_found()
    return answer(request, run_in_short(store.conn_id, f"{dag}/{run}"))
