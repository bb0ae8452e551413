"""Journals of the configured stores in the API server. Each is opened once, and stays open.

The server's threads also serve all of Airflow's pages and the tasks' heartbeats. So a journal that doesn't
answer may block only few of them, and only for a short time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial, wraps
from shlex import quote
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from sqlalchemy import Connection

from storage_engine.commands import Command
from storage_engine.console.stores import (
    ProblemKind,
    StoreLine,
    StoresAnswer,
    all_stores,
    unreadable,
    worst_first,
)
from storage_engine.exceptions import BadInputError, JournalUnavailableError, NoSuchConnectionError
from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.journal.reading.queries import JournalReader

T = TypeVar("T")

ANSWER_SECONDS = 5
"""Longest time to connect to a database server, and also the longest time of one query."""
_SLOW_SECONDS = 1.0
"""An error after more than this time is likely to recur. Until a pause is over, requests get it at once."""
_PAUSE_SECONDS = 30.0
_AT_ONCE = 4
"""Largest number of queries to one journal at the same time. Each takes a thread that all journals share."""
P = ParamSpec("P")

_MOST_THREADS = 16
_of_routes = CapacityLimiter(_MOST_THREADS)
_of_journals = ThreadPoolExecutor(_MOST_THREADS, "storage-engine-journal")


class WebJournal(JournalReader):
    """A journal that blocks few threads of a server for a short time.

    :param url: SQLAlchemy URL of a journal.
    :param answer_seconds: see :data:`ANSWER_SECONDS`.
    :raises BadInputError: the text isn't a URL.
    """

    def __init__(self, url: str, answer_seconds: int = ANSWER_SECONDS) -> None:
        super().__init__(url, answer_seconds=answer_seconds)
        self._answer_seconds = answer_seconds
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._why: JournalUnavailableError | None = None
        self._until = 0.0

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only reads.

        :raises JournalUnavailableError: the journal can't be read, lately didn't answer, or is too busy.
        :raises BadInputError: the journal is of another version.
        """
        with self._lock:
            if self._why is not None:
                if time.monotonic() < self._until:
                    raise JournalUnavailableError(str(self._why))
                # After the pause, one request tries again.
                self._until = time.monotonic() + _PAUSE_SECONDS
        if not self._places.acquire(timeout=_SLOW_SECONDS):
            raise JournalUnavailableError(
                f"{self.name}: expected an answer, found that {_AT_ONCE} other queries are waiting. Nothing "
                "was changed. Ask again in a moment."
            )
        began = time.monotonic()
        try:
            result = super().read(work)
        except JournalUnavailableError as error:
            took_seconds, failure = time.monotonic() - began, error
            if self._file is None and took_seconds >= self._answer_seconds:
                # The driver's error would be that the server closed the connection, which it did not.
                failure = JournalUnavailableError(
                    f"{self.name}: expected an answer within {self._answer_seconds} seconds, found none. "
                    f"Nothing was changed. The next attempt is in {_PAUSE_SECONDS:.0f} seconds."
                )
            if took_seconds > _SLOW_SECONDS:
                self._why, self._until = failure, time.monotonic() + _PAUSE_SECONDS
            raise failure from error
        finally:
            self._places.release()
        self._why = None
        return result


_REMEMBERED_SECONDS = 60.0
"""Time for which a journal's URL is reused, since a look-up takes longer than a query."""
_LONGEST_SECONDS = 900.0
_LOOKED_UP_AT_ONCE = 20
"""How many known connections, and how many new ones, one load of the page of all stores looks up at most.

For other known connections, the load reuses the URLs. Each look-up takes longer than the one before it.
"""
_LOOKING_SECONDS = 0.1
"""Time after which one load of the page looks up no further new connections."""
_NOT_YET = "Its connection was not looked up yet, because there are many connections. Ask again in a moment."
_OF_ANOTHER = (ProblemKind.NO_STORE, ProblemKind.JOURNAL)
"""Problems that may be false for a store whose connection wasn't looked up, since its journal is unknown."""
_MOST_JOURNALS = 256
_WAIT_SECONDS = 2.0 * ANSWER_SECONDS
"""Longest wait for all journals, which are queried at the same time. It covers connections and queries."""

REACH = (
    "The API server must reach the journal. It reaches a journal in PostgreSQL from anywhere. A journal file "
    "must be on the API server's host, and the server's user must be able to read the file."
)

_addresses: dict[str, tuple[float, str]] = {}
"""By connection id, the URL and the time until which it is reused."""
_looked_up: set[str] = set()
"""Ids of connections that were looked up, with or without success."""


def journal_of(conn_id: str) -> JournalReader:
    """Return the journal that a store's connection names.

    :raises BadInputError: there is no such connection, or its journal's URL is not valid.
    """
    until, url = _addresses.get(conn_id, (0.0, ""))
    _looked_up.add(conn_id)
    now = time.monotonic()
    if not url or now >= until:
        try:
            url = StorageEngineHook(conn_id).journal_url
        except NoSuchConnectionError:
            # The hook's error lists the other stores' connections, which this user may not know.
            raise BadInputError(
                f"connection {conn_id}: expected a connection of this Airflow, found none. Nothing was "
                "read or changed. Add it: ",
                Command("init", f"--airflow --conn-id {quote(conn_id)}"),
                ".",
            ) from None
        _addresses[conn_id] = (now + _REMEMBERED_SECONDS, url)
    return _reader(url)


@lru_cache(maxsize=_MOST_JOURNALS)
def _reader(url: str) -> JournalReader:
    return WebJournal(url)


def _reuse_addresses(conn_ids: Iterable[str]) -> Mapping[str, str]:
    """Return, by connection id, URLs that are due for a look-up, but wait for URLs that were due earlier."""
    now = time.monotonic()
    due = sorted((_addresses[conn_id][0], conn_id) for conn_id in conn_ids if conn_id in _addresses)
    late = [(until, conn_id) for until, conn_id in due if until <= now]
    return {
        conn_id: _addresses[conn_id][1]
        for until, conn_id in late[_LOOKED_UP_AT_ONCE:]
        if now - until < _LONGEST_SECONDS
    }


def overview(conn_ids: Sequence[str], now_ms: int) -> StoresAnswer:
    """Return one line for each store. All journals are queried once, at the same time."""
    names: dict[JournalReader, list[str]] = {}
    unknown = []
    older = _reuse_addresses(conn_ids)
    later = [conn_id for conn_id in conn_ids if conn_id not in _looked_up][_LOOKED_UP_AT_ONCE:]
    began = time.monotonic()
    for conn_id in conn_ids:
        if conn_id in later:
            continue
        if conn_id not in _looked_up and time.monotonic() - began > _LOOKING_SECONDS:
            later.append(conn_id)
            continue
        try:
            reader = _reader(older[conn_id]) if conn_id in older else journal_of(conn_id)
            names.setdefault(reader, []).append(conn_id)
        except BadInputError as error:
            unknown.append(StoreLine(conn_id, problem=str(error), problem_kind=ProblemKind.CONNECTION))
    if len(names) == 1:
        # Usually all stores have the same journal.
        next(iter(names.values())).extend(later)
    else:
        unknown += [_not_yet(conn_id) for conn_id in later]
    works = [partial(all_stores, reader, ids, now_ms) for reader, ids in names.items()]
    answers = all_at_once(works, _WAIT_SECONDS)
    lines, problems = unknown, []
    for (reader, ids), answer in zip(names.items(), answers, strict=True):
        late = (
            f"{reader.name}: expected an answer within {_WAIT_SECONDS:.0f} seconds, found none. Nothing was "
            "changed. Ask again in a moment."
        )
        content = unreadable(ids, late, now_ms) if answer is None else answer
        lines += [
            _not_yet(line.store) if line.store in later and line.problem_kind in _OF_ANOTHER else line
            for line in content.stores
        ]
        problems += [content.problem] if content.problem else []
    problem = " ".join([*problems, REACH]) if problems else ""
    return StoresAnswer(now_ms, worst_first(lines), problem)


def _not_yet(conn_id: str) -> StoreLine:
    return StoreLine(conn_id, problem=_NOT_YET, problem_kind=ProblemKind.NOT_YET)


def in_own_threads(work: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Make a route run in a thread of this module. A request that waits for a thread occupies none."""

    @wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await run_sync(partial(work, *args, **kwargs), limiter=_of_routes)

    return run


def all_at_once(works: Sequence[Callable[[], T]], limit_seconds: float) -> list[T | None]:
    """Return the results of all calls in their order; None for a late call. A single call has no limit."""
    if len(works) == 1:
        return [works[0]()]
    futures: list[Future[T]] = [_of_journals.submit(work) for work in works]
    finished, late = wait(futures, limit_seconds)
    for future in late:
        future.cancel()
    return [future.result() if future in finished else None for future in futures]
