"""Journals of the configured stores, as the API server reaches them: each is opened once, and then kept.

One that doesn't answer holds up few of the server's threads, and not for long: all of Airflow's pages and
the tasks' heartbeats share them.
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
"""Seconds that a server may take for a connection, and then for one question."""
_SLOW_SECONDS = 1.0
"""An error that takes longer may come again: it isn't waited for once more."""
_PAUSE_SECONDS = 30.0
_AT_ONCE = 4
"""Questions to one journal at once: each holds a thread, and other journals are asked, too."""
P = ParamSpec("P")

_MOST_THREADS = 16
_of_routes = CapacityLimiter(_MOST_THREADS)
_of_journals = ThreadPoolExecutor(_MOST_THREADS, "storage-engine-journal")


class WebJournal(JournalReader):
    """A journal of which a server holds up few threads, and none for long.

    :param url: SQLAlchemy URL of a journal.

    :param answer_seconds: how long its server may take.
    :raises BadInputError: not a URL.
    """

    def __init__(self, url: str, answer_seconds: int = ANSWER_SECONDS) -> None:
        super().__init__(url, answer_seconds=answer_seconds)
        self._answer_seconds = answer_seconds
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._why: JournalUnavailableError | None = None
        self._until = 0.0

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work``, which only asks.

        :raises JournalUnavailableError: as for any journal; also where it did not answer a moment ago, or
            others wait for it.
        :raises BadInputError: it is of another version.
        """
        self._refuse_silent()
        if not self._places.acquire(timeout=_SLOW_SECONDS):
            raise JournalUnavailableError(
                f"{self.name}: expected an answer, found that {_AT_ONCE} questions wait for one. Nothing "
                "was changed. Ask again in a moment."
            )
        began = time.monotonic()
        try:
            found = super().read(work)
        except JournalUnavailableError as error:
            took_seconds = time.monotonic() - began
            said = self._silent() if self._file is None and took_seconds >= self._answer_seconds else error
            if took_seconds > _SLOW_SECONDS:
                self._why, self._until = said, time.monotonic() + _PAUSE_SECONDS
            raise said from error
        finally:
            self._places.release()
        self._why = None
        return found

    def _silent(self) -> JournalUnavailableError:
        # The driver says that the server closed the connection, which it did not.
        return JournalUnavailableError(
            f"{self.name}: expected an answer within {self._answer_seconds} seconds, found none. Nothing was "
            f"changed. It is asked again in {_PAUSE_SECONDS:.0f} seconds."
        )

    def _refuse_silent(self) -> None:
        """Raise the error of a journal that did not answer a moment ago; after a pause one request is
        tried.
        """
        with self._lock:
            if self._why is None:
                return
            if time.monotonic() < self._until:
                raise JournalUnavailableError(str(self._why))
            self._until = time.monotonic() + _PAUSE_SECONDS


_REMEMBERED_SECONDS = 60.0
"""Looking connections up takes longer than asking their journal, and one page asks again and again."""
_LONGEST_SECONDS = 900.0
_LOOKED_UP_AT_ONCE = 20
"""Number of due connections that the page of all stores looks up; the others it believes once more. It looks
up as many of those never looked up before: the more Airflow has looked up, the longer it takes for one.
"""
_LOOKING_SECONDS = 0.1
"""Seconds after which no more connections are looked up that never were."""
_NOT_YET = "Its connection was not looked up yet, as many were at once. Ask again in a moment."
_OF_ANOTHER = (ProblemKind.NO_STORE, ProblemKind.JOURNAL)
"""Answer for a store whose connection was not looked up: it may be in another journal."""
_MOST_JOURNALS = 256
_WAIT_SECONDS = 2.0 * ANSWER_SECONDS
"""For all journals together, which are asked at the same time: one to take a connection, one to answer."""

REACH = (
    "The API server has to reach the journal. One in PostgreSQL it reaches from anywhere; a file has to be "
    "on the API server's host, and readable for its user."
)

_addresses: dict[str, tuple[float, str]] = {}
"""URLs by connection id, and until when each is believed."""
_looked_up: set[str] = set()
"""Ids of connections, also of those that were not found."""


def journal_of(conn_id: str) -> JournalReader:
    """Return the journal that a store's connection names.

    :raises BadInputError: there is no such connection, or it names no journal that could be.
    """
    until, url = _addresses.get(conn_id, (0.0, ""))
    _looked_up.add(conn_id)
    now = time.monotonic()
    if not url or now >= until:
        try:
            url = StorageEngineHook(conn_id).journal_url
        except NoSuchConnectionError:
            # At a shell the other stores' connections are named; here somebody may not know of them.
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


def _believed(conn_ids: Iterable[str]) -> Mapping[str, str]:
    """Return the URLs that are due to be looked up, and aren't now: those that came due last."""
    now = time.monotonic()
    due = sorted((_addresses[conn_id][0], conn_id) for conn_id in conn_ids if conn_id in _addresses)
    late = [(until, conn_id) for until, conn_id in due if until <= now]
    return {
        conn_id: _addresses[conn_id][1]
        for until, conn_id in late[_LOOKED_UP_AT_ONCE:]
        if now - until < _LONGEST_SECONDS
    }


def overview(conn_ids: Sequence[str], now_ms: int) -> StoresAnswer:
    """Return one line for each store; each journal is asked once, all at the same time."""
    names: dict[JournalReader, list[str]] = {}
    unknown = []
    older = _believed(conn_ids)
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
        # Mostly all stores have one journal.
        next(iter(names.values())).extend(later)
    else:
        unknown += [_not_yet(conn_id) for conn_id in later]
    answers = all_at_once(
        [partial(all_stores, reader, asked, now_ms) for reader, asked in names.items()],
        _WAIT_SECONDS,
    )
    lines, problems = unknown, []
    for (reader, asked), answer in zip(names.items(), answers, strict=True):
        found = _late(reader, asked, now_ms) if answer is None else answer
        lines += [
            _not_yet(one.store) if one.store in later and one.problem_kind in _OF_ANOTHER else one
            for one in found.stores
        ]
        problems += [found.problem] if found.problem else []
    problem = " ".join([*problems, REACH]) if problems else ""
    return StoresAnswer(now_ms, worst_first(lines), problem)


def _not_yet(conn_id: str) -> StoreLine:
    return StoreLine(conn_id, problem=_NOT_YET, problem_kind=ProblemKind.NOT_YET)


def _late(reader: JournalReader, names: Sequence[str], now_ms: int) -> StoresAnswer:
    problem = (
        f"{reader.name}: expected an answer within {_WAIT_SECONDS:.0f} seconds, found none. Nothing was "
        "changed. Ask again in a moment."
    )
    return unreadable(names, problem, now_ms)


def in_own_threads(work: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Return a route that runs in one of these threads. While all are taken it waits without one."""

    @wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await run_sync(partial(work, *args, **kwargs), limiter=_of_routes)

    return run


def all_at_once(works: list[Callable[[], T]], limit_seconds: float) -> list[T | None]:
    """Return the results of all calls in their order; None for those that are not done in time."""
    if len(works) == 1:
        return [works[0]()]
    futures: list[Future[T]] = [_of_journals.submit(work) for work in works]
    done, late = wait(futures, limit_seconds)
    for future in late:
        future.cancel()
    return [future.result() if future in done else None for future in futures]
