"""What may be sent to the one route that computes: little, in JSON, and one question at a time.

Its process also takes the heartbeats of all tasks, so that it has no time for a second one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

MOST_BODY_BYTES = 32 * 1024
WAIT_SECONDS = 2.0
"""A person who moves a slider asks again before the last answer is there."""
_BUSY = "Another what-if is being computed on this API server. Try again in a few seconds."
_one = threading.Lock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """
    :raises HTTPException: somebody else's question is still being computed.
    """
    if not _one.acquire(timeout=WAIT_SECONDS):
        raise HTTPException(429, _BUSY, {"Retry-After": "3"})
    try:
        yield
    finally:
        _one.release()


async def json_object(request: Request) -> dict[str, Any]:
    """
    :raises HTTPException: it isn't a JSON object, or it is larger than any question is.
    """
    # A page of another site can't send this type without asking first.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Expected a body of the type application/json.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(413, f"Expected at most {MOST_BODY_BYTES} bytes.")
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HTTPException(422, "Expected a JSON object.")
    return found


JsonObject = Annotated[dict[str, Any], Depends(json_object)]


def _refuse(word: str) -> None:
    raise ValueError(word)
