"""Failures of disk, object store, catalog or Java that a library raises and no layer has told, as one error.

A layer that knows what was being done tells it better. A mistake in our own code stays a traceback.
"""

from __future__ import annotations

from typing import Final

from storage_engine.commands import Arguments
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StorageUnavailableError

_LIBRARIES: Final = frozenset(
    (
        *("sqlalchemy", "sqlite3", "psycopg", "pyiceberg", "pyarrow", "pydantic", "pydantic_core"),
        *("requests", "urllib3", "botocore", "s3fs", "fsspec", "py4j", "pyspark"),
    )
)
_PLACES: Final = {
    "store": "store",
    "lake_dir": "lake",
    "second_lake_dir": "second lake",
    "conn_id": "connection",
}
"""Parameters that name what a command works on, and what each is."""
_MOST_LINES: Final = 2
"""Lines kept of a Java message: the lines behind them list calls."""
_MOST_CHARACTERS: Final = 500


def storage_failure(error: Exception, said: Arguments) -> StorageUnavailableError | None:
    """Return the error to tell instead of a library's or the system's; None: it is none of these.

    :param said: the call's arguments.
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return StorageUnavailableError(
            f"{error.filename}: {error.strerror}. Check the path, its permissions and its disk."
        )
    if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    named = [f"{word} {getattr(said, name)}" for name, word in _PLACES.items() if getattr(said, name)]
    return StorageUnavailableError(
        f"{', '.join(named) or 'this call'}: expected disk, object store and catalog to do what is asked, "
        f"found {type(error).__name__}: {_reason(error)}. Check that they are reachable and writable and "
        "have space, and that credentials are valid. Then run the same command again: what is recorded and "
        "proven is kept."
    )


def _reason(error: Exception) -> str:
    # SQLAlchemy's own text goes on with the statement.
    lines = reason_text(getattr(error, "orig", None) or error).splitlines()
    return " ".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS].rstrip(".")
