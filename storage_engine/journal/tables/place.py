"""Where a journal is: what its URL says, checked, and without what nobody has to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from storage_engine.core.credentials import shown_url, url_secrets
from storage_engine.core.database_url import check_database_url
from storage_engine.core.extras import POSTGRES
from storage_engine.exceptions import BadInputError


@dataclass(frozen=True, slots=True)
class JournalPlace:
    """:param name: the URL without a password.
    :param secrets: what no message may have.
    :param file: SQLite's; None: a server has it.
    """

    name: str
    secrets: tuple[str, ...] = field(repr=False)
    file: Path | None

    @contextmanager
    def driver_errors(self) -> Iterator[None]:
        """
        :raises BadInputError: the driver that the URL names isn't installed.
        :raises MissingExtraError: it is one that an extra brings.
        """
        try:
            yield
        except ModuleNotFoundError as error:
            if error.name == POSTGRES.module:
                raise POSTGRES.missing(f"journal_url {self.name}") from None
            raise self._without_driver(error) from error
        except (ArgumentError, ImportError) as error:
            raise self._without_driver(error) from error

    def _without_driver(self, error: Exception) -> BadInputError:
        return BadInputError(
            f"journal_url: expected a URL whose driver is installed, found {self.name} ({error})"
        )


def place_of(url: str) -> JournalPlace:
    """
    :param url: SQLAlchemy URL.
    :raises BadInputError: not a URL, that of a database in memory, or one with what a driver would load.
    """
    try:
        name = shown_url(url)
        check_database_url(url)
    except ValueError as error:
        # Its text is not shown: what can't be parsed may hold a password anywhere.
        raise BadInputError(
            f"journal_url: expected an SQLAlchemy URL such as sqlite:////path/journal.db, found {error}. "
            "Nothing was changed. Write characters such as @ and / in a password as %40 and %2F."
        ) from None
    parsed = make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database in (None, "", ":memory:"):
        raise BadInputError(f"journal_url: expected a file that outlives this process, found {name}")
    return JournalPlace(name, tuple(url_secrets(url)), Path(str(parsed.database)) if sqlite else None)
