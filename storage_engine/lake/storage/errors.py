"""Turning errors of storage and catalog libraries into one error that names the lake."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from storage_engine.commands import Command, Text
from storage_engine.core.wording import lock_advice, reason_text
from storage_engine.exceptions import LakeUnavailableError, ProofError, StorageEngineError

_DAMAGED_CATALOG = ("file is not a database", "database disk image is malformed")
"""SQLite's error texts for a file that is no database or is incomplete."""

_NOT_WHOLE = (ValidationError, pa.ArrowException)
"""Libraries' exceptions for an incomplete file or answer."""

_REBUILD = Text(
    "run ",
    Command("lake rebuild"),
    ", which brings the catalog to the newest state whose files can be read, and proves again all other "
    "segments in the warehouse.",
)

LAKE_FAILURES = (
    OSError,
    SQLAlchemyError,
    sqlite3.Error,
    RESTError,
    NoSuchTableError,
    NoSuchNamespaceError,
    *_NOT_WHOLE,
)
"""Exceptions of PyArrow, PyIceberg and its catalogs for a lake that can't be reached, read or written."""


@contextmanager
def lake_errors(location: str, doing: str) -> Iterator[None]:
    """Turn a library's failure into :class:`LakeUnavailableError`.

    :param location: the lake, or the file in it, for the message.
    :param doing: the action, as in "can't <doing>".
    """
    try:
        yield
    except LAKE_FAILURES as error:
        raise lake_unavailable(location, doing, error) from error


@contextmanager
def metadata_errors(location: str, doing: str) -> Iterator[None]:
    """Do the same as :func:`lake_errors` while a table's metadata is read.

    For damaged JSON, Avro or Parquet, the libraries' parsers raise many kinds of exceptions. So each
    exception that isn't from this package is turned into :class:`LakeUnavailableError`.
    """
    try:
        yield
    except StorageEngineError:
        raise
    except FileNotFoundError as error:
        raise LakeUnavailableError(
            f"lake {location}: can't {doing}: expected a file that the lake's metadata names, found none "
            f"({reason_of(error)}). Nothing was changed. Mount the lake's disk; if the file is lost, ",
            _REBUILD,
        ) from error
    except Exception as error:
        if isinstance(error, LAKE_FAILURES) and not isinstance(error, _NOT_WHOLE):
            raise lake_unavailable(location, doing, error) from error
        raise LakeUnavailableError(
            f"lake {location}: can't {doing}: expected sound metadata, found some that can't be parsed "
            f"({type(error).__name__}: {error}). Nothing was changed. If the same error comes when you run "
            "it again, ",
            _REBUILD,
        ) from error


@contextmanager
def parquet_errors(location: str) -> Iterator[None]:
    """Do the same as :func:`lake_errors` while a data file is read.

    :param location: the data file.
    :raises ProofError: the file is no whole Parquet file.
    """
    try:
        yield
    except (OSError, pa.ArrowException, KeyError) as error:
        # PyArrow raises a KeyError for a requested column that isn't in the file's footer.
        if is_file_failure(error):
            raise lake_unavailable(location, "read a data file", error) from error
        raise ProofError(
            f"{location}: expected a whole Parquet file, found one that can't be read: {reason_text(error)}. "
            "Nothing was committed or deleted. If no receipt names the file, remove it and archive again; "
            "otherwise run verify, and keep or restore the segment from another place that still has it."
        ) from error


def is_file_failure(error: Exception) -> bool:
    """Return whether the system or an object store failed to read or write a file.

    Otherwise the file's content is damaged. For damaged content, PyArrow raises an OSError without an error
    number and without an object store's answer.
    """
    return isinstance(error, OSError) and (bool(error.errno) or "AWS Error" in str(error))


def is_damage(cause: BaseException | None) -> bool:
    """Return whether a library's error means that a file of the lake is missing or damaged."""
    if isinstance(cause, FileNotFoundError | pa.ArrowException | ValidationError):
        return True
    return cause is not None and not isinstance(cause, LAKE_FAILURES)


def lake_unavailable(location: str, doing: str, error: Exception) -> LakeUnavailableError:
    """Return the error to raise for a library's failure, with its reason."""
    is_of_database = isinstance(error, DBAPIError | sqlite3.Error)
    if is_of_database and any(phrase in str(error) for phrase in _DAMAGED_CATALOG):
        return LakeUnavailableError(
            f"lake {location}: can't {doing}: its catalog is damaged ({reason_of(error)}). The store "
            "was not changed. Put back a copy of the catalog's file; or move it away and run ",
            Command("lake rebuild"),
            ", which makes the catalog again from the warehouse.",
        )
    reason = reason_of(error)
    advice = lock_advice(reason) or (
        "Check that the lake is mounted or reachable, its credentials valid, and that it is writable and has "
        "space, then run again. Segments that are proven already are kept."
    )
    return LakeUnavailableError(
        f"lake {location}: can't {doing}: {reason}. The store was not changed. {advice}"
    )


def reason_of(error: BaseException | None) -> str:
    """Return a library's failure as text, without details that only its developers understand."""
    if isinstance(error, OSError) and error.strerror:
        return reason_text(error)
    if isinstance(error, DBAPIError):
        # Only the first of several lines has the reason.
        return str(error.orig).partition("\n")[0].rstrip()
    return f"{type(error).__name__}: {error}"
