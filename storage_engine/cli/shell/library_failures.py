"""A library's error about disk, object store, catalog or Java, as one of our errors.

Used if no layer below has raised one of our errors. An error in our own code stays a traceback.
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
"""Parameters that name the places on which a command works, with a word for each."""
_MOST_LINES: Final = 2
"""Number of lines that are kept of an error's text. Java's further lines only list calls."""
_MOST_CHARACTERS: Final = 500


def storage_failure(error: Exception, arguments: Arguments) -> StorageUnavailableError | None:
    """Return our error in place of an error of a library or the system; None for any other error."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return StorageUnavailableError(
            f"{error.filename}: {error.strerror}. Check the path, its permissions and its disk."
        )
    if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    named = [
        f"{word} {getattr(arguments, name)}" for name, word in _PLACES.items() if getattr(arguments, name)
    ]
    return StorageUnavailableError(
        f"{', '.join(named) or 'this call'}: expected disk, object store and catalog to work, found "
        f"{type(error).__name__}: {_reason(error)}. Check that they are reachable and writable and have "
        "space, and that credentials are valid. Then run the same command again: recorded and proven work "
        "is kept."
    )


def _reason(error: Exception) -> str:
    # SQLAlchemy's own text also has the statement.
    lines = reason_text(getattr(error, "orig", None) or error).splitlines()
    return " ".join(lines[:_MOST_LINES])[:_MOST_CHARACTERS].rstrip(".")
