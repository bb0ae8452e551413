"""The lake that a command works on, and the journal that names the receipts that the lake must have."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from storage_engine.cli.options.options import journal_of, of_lake, store_of_connection
from storage_engine.core.credentials import shown_url
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import JournalUnavailableError
from storage_engine.lake.catalog.config import LakeConfig

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class WitnessedLake:
    """A lake, and the journal that names the receipts that it must have.

    :param journal_url: the journal's URL; None if there is no journal.
    :param words: the options that name lake and journal, for the next command.
    :param directory: the directory after --lake; None if a connection names the lake.
    :param second: the second lake of the store that a connection names; None if the store has one lake.
    """

    config: LakeConfig
    journal_url: str | None
    words: str
    directory: Path | None
    second: LakeConfig | None = None


def witness_options(command: Function) -> Callable[..., Any]:
    """Give a command with --lake the options --journal and --conn-id. It receives all three as ``target``."""

    @of_lake(
        "--journal",
        "journal_url",
        metavar="URL",
        help=(
            "The journal with the receipts that the lake must have, such as sqlite:////var/journal.db; "
            "default: the journal in the lake's directory."
        ),
    )
    @of_lake(
        "--conn-id",
        environment=True,
        metavar="ID",
        help="Airflow connection that names the journal and, without --lake, the lake.",
    )
    @wraps(command)
    def called(
        *arguments: Any, lake_dir: Path | None, journal_url: str | None, conn_id: str | None, **values: Any
    ) -> Any:
        return command(*arguments, target=witnessed_lake(lake_dir, journal_url, conn_id), **values)

    return called


def witnessed_lake(lake_dir: Path | None, journal_url: str | None, conn_id: str | None) -> WitnessedLake:
    """Return the lake and the journal that these options name.

    :raises click.UsageError: options contradict each other, or name no lake.
    :raises click.BadParameter: the named journal doesn't exist.
    :raises JournalUnavailableError: the lake's journal is a broken link or no ordinary file.
    """
    from sqlalchemy import make_url

    if conn_id is not None:
        if journal_url is not None:
            raise click.UsageError("Expected either --journal URL or --conn-id ID.")
        store = store_of_connection(conn_id)
        _check_there(store.journal_url, "--conn-id")
        config = store.lake if lake_dir is None else LakeConfig.local(lake_dir)
        words = _words(lake_dir, "--conn-id", conn_id)
        return WitnessedLake(config, store.journal_url, words, lake_dir, store.second_lake)
    if lake_dir is None:
        raise click.UsageError("Expected --lake DIRECTORY or --conn-id ID.")
    config = LakeConfig.local(lake_dir)
    if journal_url is not None:
        _check_there(journal_url, "--journal")
        words = _words(lake_dir, "--journal", shown_url(journal_url))
        return WitnessedLake(config, journal_url, words, lake_dir)
    beside = journal_of(lake_dir)
    file = Path(make_url(beside).database or "")
    if not file.is_file() and os.path.lexists(file):
        # A broken link means that a disk isn't mounted, not that there is no journal.
        raise JournalUnavailableError(
            f"{file}: expected the lake's journal, found no file that can be read. Nothing was changed. "
            "Mount its disk. If it is a link to a journal that no longer exists, remove the link."
        )
    return WitnessedLake(config, beside if file.is_file() else None, _words(lake_dir, "", ""), lake_dir)


def part_journal(url: str) -> None:
    """Give a journal a file of its own, if a copy of the journal is a hard link to the same file.

    :raises JournalUnavailableError: the journal shares its file and can't get another one.
    """
    from storage_engine.journal.tables.database import without_backup
    from storage_engine.lake.catalog.catalog import break_hard_links
    from storage_engine.lake.catalog.nesting import sqlite_file

    journal = sqlite_file(url)
    if journal is None or not journal.is_file():
        return
    try:
        break_hard_links(journal)
    except (OSError, sqlite3.Error) as error:
        raise JournalUnavailableError(
            f"{journal}: can't give the journal a file of its own, because it has other names (hard "
            f"links): {reason_text(error)}. Nothing was changed. Run the command again when no process uses "
            f"the journal. If the journal is damaged, restore it from a backup. {without_backup(journal)}"
        ) from error


def _check_there(journal_url: str, option: str) -> None:
    """Refuse a journal whose file doesn't exist. To open it would make an empty journal."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(journal_url)
    except (ArgumentError, ValueError):
        # The text isn't shown: one that can't be parsed may contain a password.
        raise click.BadParameter(
            "expected an SQLAlchemy URL such as sqlite:////var/journal.db", param_hint=option
        ) from None
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise click.BadParameter(
            f"expected a journal in {url.database}, found no such file. Nothing was changed. Mount its disk, "
            "or name another.",
            param_hint=option,
        )


def _words(lake_dir: Path | None, option: str, value: str) -> str:
    words = [] if lake_dir is None else ["--lake", str(lake_dir)]
    return shlex.join([*words, option, value] if option else words)
