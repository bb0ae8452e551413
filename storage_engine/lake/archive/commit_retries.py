"""Commits to a lake's tables, one step after the other, despite retries, kills and late answers.

Before every attempt the tables are loaded again to see what is missing. An attempt is bound to the snapshot
that it read. So the catalog refuses one of two simultaneous attempts, and the refused attempt reads the
tables again. The catalog also refuses a request that timed out and arrives after another commit. Until a
timed-out request arrives, the table lacks its rows. If an outcome is unknown, the tables are loaded again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    UnauthorizedError,
    ValidationException,
)
from pyiceberg.table import Table, Transaction
from sqlalchemy.exc import DBAPIError

from storage_engine.core.durable import unlink
from storage_engine.exceptions import CommitStateUnknownError, LakeUnavailableError, StorageEngineError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import check_mark, knows, read_mark
from storage_engine.lake.catalog.writing import committing, mark_commits
from storage_engine.lake.durable_io import local_path, recorded_outputs
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_unavailable

MAX_ATTEMPTS = 30

_PATIENCE_SECONDS = 300
"""How long to wait for a catalog that can be read but doesn't tell a commit's outcome."""

_MAX_REPEATS = 6
"""Maximum number of commits of one step. If two processes archive one segment, the later process may replace
the other's file before the file's receipt is committed."""

_REFUSED = (UnauthorizedError, ForbiddenError, BadRequestError, AuthorizationExpiredError)
"""Answers by which a catalog server says that it changed nothing."""

_REFUSED_STATES = ("25006", "42501", "53100", "55P03")
"""PostgreSQL's codes for errors after which nothing is changed: read-only, not permitted, disk full, another
session has the lock."""


@dataclass(frozen=True, slots=True)
class CommitStep:
    """The next change to commit.

    :param what: texts that are equal for equal changes, so that two readings of the tables can be compared.
    """

    table: Table
    what: tuple[str, ...]
    prepare: Callable[[], Transaction]


def commit_steps(
    lake: Lake, next_step: Callable[[], CommitStep | None], mark: Callable[[Lake], None] | None = None
) -> None:
    """Commit one step after the other until freshly loaded tables lack nothing.

    :param next_step: loads the tables and returns what they lack, or None if they lack nothing.
    :param mark: writes the table's mark after the commits. The default writes the marks of both tables.
    :raises LakeUnavailableError: a table can't be read or written, or other writers overtook every attempt.
    :raises CommitStateUnknownError: the outcome of a commit can't be read.
    """
    with committing(lake):
        _commit_steps(lake, next_step)
        (mark or mark_commits)(lake)


def _commit_steps(lake: Lake, next_step: Callable[[], CommitStep | None]) -> None:
    unknown: Exception | None = None
    committed: Counter[tuple[str, ...]] = Counter()
    took_seconds = 0.0
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for attempt in range(MAX_ATTEMPTS):
        if unknown and time.monotonic() > deadline:
            break
        if attempt:
            time.sleep(pause_seconds(attempt) if unknown or attempt > 2 else 0)
        with _unknown_if_unreadable(lake, unknown):
            step = next_step()
            if step and committed[step.what]:
                # Two processes that undo each other's commits at the same pace would never stop.
                time.sleep(random.uniform(0, took_seconds * 2 ** committed[step.what]))
                step = next_step()
        if step is None:
            return
        if not _is_up_to_date(lake, step.table):
            continue
        if committed[step.what] == _MAX_REPEATS:
            raise LakeUnavailableError(
                f"lake table {step.table.location()}: a commit went through {_MAX_REPEATS} times, and its "
                "rows were missing each time: another program removes them. The store was not "
                "changed. Find out who writes to the table."
            )
        began = time.monotonic()
        with recorded_outputs() as created:
            try:
                change = step.prepare()
            except BaseException as error:
                _remove(created, step.table)
                if isinstance(error, LAKE_FAILURES):
                    raise lake_unavailable(step.table.location(), "commit", error) from error
                raise
            try:
                change.commit_transaction()
                committed[step.what] += 1
                took_seconds = time.monotonic() - began
            except StorageEngineError as error:
                if unknown is not None:
                    raise _state_unknown(lake, unknown) from error
                raise
            except (CommitFailedException, ValidationException) as error:
                # Another commit came in between; it may be of our own earlier attempt.
                if _is_settled(lake, error):
                    _remove(created, step.table)
            except Exception as error:
                unknown = error
                if _is_settled(lake, error) and _is_still(step, next_step, lake, error):
                    _remove(created, step.table)
                    if isinstance(error, LAKE_FAILURES):
                        raise lake_unavailable(step.table.location(), "commit", error) from error
                    raise
    if unknown is not None:
        raise _state_unknown(lake, unknown)
    raise overtaken(lake)


def _is_up_to_date(lake: Lake, table: Table) -> bool:
    """Return whether a loaded table has every commit ever made. The mark below its location shows that.

    :raises LakeIdentityError: the table lacks a commit even after it was loaded again: its catalog went back
        to an older state.
    """
    mark = read_mark(table)
    if mark is None or knows(table.metadata, table.metadata_location, mark.metadata):
        return True
    check_mark(lake.catalog.load_table(table.name()), mark.lake_id, lake.catalog_id)
    return False


def pause_seconds(attempt: int) -> float:
    return random.uniform(0, min(0.02 * 2**attempt, 1.0))


def overtaken(lake: Lake) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"lake {lake.location}: {MAX_ATTEMPTS} attempts to commit were overtaken by other writers. Run "
        "again when fewer processes write at once: it finds what is committed already."
    )


@contextmanager
def _unknown_if_unreadable(lake: Lake, unknown: Exception | None) -> Iterator[None]:
    try:
        yield
    except LakeUnavailableError as error:
        if unknown is None:
            raise
        raise _state_unknown(lake, unknown) from error


def _is_still(
    step: CommitStep, next_step: Callable[[], CommitStep | None], lake: Lake, cause: Exception
) -> bool:
    """Return whether the tables, read again, still lack exactly the rows that an attempt wanted to add."""
    try:
        again = next_step()
    except LakeUnavailableError as error:
        if _was_not_sent(cause):
            raise lake_unavailable(lake.location, "commit", cause) from error
        raise _state_unknown(lake, cause) from error
    return again is not None and again.what == step.what


def _is_settled(lake: Lake, error: Exception) -> bool:
    """Return whether the table's present state is final, so that a failed attempt can't be committed later.

    True for SQLite, whose commits end with the call. A server may still work on a timed-out request.
    """
    catalog = lake.catalog
    if isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "sqlite":
        return True
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return _was_not_sent(error) or isinstance(error, _REFUSED) or state in _REFUSED_STATES


def _was_not_sent(error: Exception) -> bool:
    """Return whether a commit failed while it wrote a file, before the request to the catalog.

    The error then has the name of the file. The error of a broken connection has none.
    """
    return isinstance(error, OSError) and bool(error.errno) and error.filename is not None


def _state_unknown(lake: Lake, cause: Exception) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"lake {lake.location}: a commit ended with {type(cause).__name__}: {cause}, and the table could not "
        "tell whether it went through. Nothing was deleted. Run again when the lake answers: nothing "
        "is committed twice."
    )


def _remove(created: Sequence[str], table: Table) -> None:
    """Delete local metadata files of an attempt that certainly wasn't committed."""
    root = local_path(table.location())
    if root is None:
        return
    for path in created:
        if path.startswith(f"{root}/"):
            unlink(path)
