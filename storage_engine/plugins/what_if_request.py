"""What may be sent to the one route that computes: little, in JSON, and one question at a time.

Its process also takes the heartbeats of all tasks, so that it has no time for a second one.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import Semaphore, fail_after
from fastapi import Depends, HTTPException, Request

MOST_BODY_BYTES = 32 * 1024
WAIT_SECONDS = 2.0
"""A person who moves a slider asks again before the last answer is there."""
_BUSY = "Another what-if is being computed on this API server. Try again in a few seconds."
_LATER = {"Retry-After": "3"}
_MOST_WAITING = 2
_turns = Semaphore(1)


@asynccontextmanager
async def one_at_a_time() -> AsyncIterator[None]:
    """Wait for one's turn, which takes no thread: a few do, and all others are sent away at once.

    :raises HTTPException: others' questions are still being computed.
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
