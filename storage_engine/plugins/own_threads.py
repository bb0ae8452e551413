"""Threads of the pages alone: who waits for a journal takes none that Airflow and its heartbeats share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

P = ParamSpec("P")
T = TypeVar("T")

_MOST_THREADS = 16
_of_routes = CapacityLimiter(_MOST_THREADS)
_of_journals = ThreadPoolExecutor(_MOST_THREADS, "storage-engine-journal")


def in_own_threads(work: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a route that runs in one of these threads. While all are taken it waits without one."""

    @wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await run_sync(partial(work, *args, **kwargs), limiter=_of_routes)

    return run


def all_at_once(works: list[Callable[[], T]], limit_seconds: float) -> list[T | None]:
    """Return what each of them returns, in their order; None of those that are not done in time."""
    if len(works) == 1:
        return [works[0]()]
    futures: list[Future[T]] = [_of_journals.submit(work) for work in works]
    done, late = wait(futures, limit_seconds)
    for future in late:
        future.cancel()
    return [future.result() if future in done else None for future in futures]
