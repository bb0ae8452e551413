"""Answers as JSON that a browser may ask for again: where nothing is new, it is told so and no more."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from storage_engine.core.jsonable import to_jsonable

_HEADERS = {"Cache-Control": "private, no-cache"}


def answer(request: Request, data: Any) -> Response:
    """Return data as JSON, or that it is what the browser has already.

    :param data: dataclasses and what :func:`to_jsonable` takes.
    """
    body = json.dumps(to_jsonable(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    headers = {**_HEADERS, "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"'}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
