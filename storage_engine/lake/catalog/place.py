"""Checks that a lake's catalog file exists, without opening it. They are cheap enough for every plan."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import make_url

from storage_engine.commands import Command, Text
from storage_engine.exceptions import BadInputError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.catalog.config import LakeConfig


def sqlite_file_of(config: LakeConfig) -> Path | None:
    """Return a SQLite catalog's file; None for other catalogs. Raise BadInputError for SQLite in memory."""
    uri = config.properties.get("uri", "")
    if not uri.startswith("sqlite"):
        return None
    database = make_url(uri).database
    if not database or database == ":memory:":
        raise BadInputError(f"lake catalog {uri}: expected a file, found a database in memory. Name a file.")
    return Path(database.removeprefix("file:"))


def own_directory(config: LakeConfig) -> Path | None:
    """Return the directory that ``--lake`` names for a lake; None if its parts aren't in one directory."""
    file = sqlite_file_of(config)
    return None if file is None or config != LakeConfig.local(file.parent) else file.parent


def check_catalog_file(config: LakeConfig) -> None:
    """Make sure that a catalog in a file exists.

    :raises LakeMissingError: there is no such file.
    :raises LakeUnavailableError: it isn't known whether the file exists, or something else has its name.
    """
    if not is_catalog_there(config):
        raise LakeMissingError(
            f"lake {config.location}: expected the catalog {sqlite_file_of(config)}, found no such "
            "file. Nothing was created. ",
            make_advice(config),
        )


def is_catalog_there(config: LakeConfig) -> bool:
    """Return whether a catalog's file exists; True if the catalog isn't a file.

    :raises LakeUnavailableError: it isn't known whether the file exists, or something else has its name.
    """
    file = sqlite_file_of(config)
    if file is None:
        return True
    try:
        if stat.S_ISREG(file.stat().st_mode):
            return True
        actual, advice = "something that is no file", "Move it away"
    except (FileNotFoundError, NotADirectoryError):
        if not file.is_symlink():
            return False
        actual = f"a symbolic link to {file.readlink()}, which isn't there"
        advice = "Mount the disk that it leads to; if that catalog is lost, remove the link"
    except OSError as error:
        raise LakeUnavailableError(
            f"lake {config.location}: can't look for the catalog {file}: {error.strerror}. Nothing was "
            "changed. Check that its disk is mounted and can be read."
        ) from error
    raise LakeUnavailableError(
        f"lake {config.location}: expected the catalog {file}, found {actual}. Nothing was changed. "
        f"{advice} and run ",
        Command("lake rebuild"),
        ", which makes the catalog again from the warehouse.",
    )


def check_any_catalog_file(configs: Iterable[LakeConfig]) -> None:
    """Raise LakeMissingError if every catalog file is missing. A file that can't be checked isn't missing."""
    missing = None
    for config in configs:
        try:
            return check_catalog_file(config)
        except LakeMissingError as error:
            missing = missing or error
        except LakeUnavailableError:
            return None
    if missing is not None:
        raise missing
    return None


def make_advice(config: LakeConfig) -> str:
    """Return the advice for a command that found no lake."""
    # Imported here because it is needed only where no lake was found.
    from storage_engine.lake.catalog.nesting import place_around

    directory = own_directory(config)
    if directory is not None and (around := place_around(config)):
        return Text(
            "Mount its disk, or name the directory of an existing lake. A lake can't be made here, inside "
            f"{around}. To make a new one elsewhere, run ",
            Command("init-lake", "--lake DIRECTORY"),
            ".",
        )
    by: str = Text(Command("init-lake", f"--lake {shlex.quote(str(directory or 'DIRECTORY'))}"))
    if directory is None:
        by += ", with its lake.json, or " + Text(Command("init-lake", "--conn-id ID"))
        by += ", with the store's connection"
    return Text(
        "Mount its disk, or name the directory of an existing lake. To make a new one, run ",
        by,
        ". If the warehouse exists and only the catalog is lost, run ",
        Command("lake rebuild"),
        ".",
    )
