"""Where a lake's catalog has to be, told without opening it: cheap enough for every plan."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import make_url

from storage_engine.exceptions import BadInputError, LakeMissingError, LakeUnavailableError
from storage_engine.lake.config import LakeConfig


def sqlite_file_of(config: LakeConfig) -> Path | None:
    """Return the file of a SQLite catalog; None for any other.

    :raises BadInputError: the catalog is a database in memory.
    """
    uri = config.properties.get("uri", "")
    if not uri.startswith("sqlite"):
        return None
    database = make_url(uri).database
    if not database or database == ":memory:":
        raise BadInputError(f"lake catalog {uri}: expected a file, found a database in memory. Name a file.")
    return Path(database.removeprefix("file:"))


def check_catalog_file(config: LakeConfig) -> None:
    """Make sure that a catalog which is a file is there.

    :raises LakeMissingError: it isn't.
    :raises LakeUnavailableError: whether it is can't be told.
    """
    file = sqlite_file_of(config)
    if file is not None and not _exists(file, config):
        raise LakeMissingError(
            f"lake {config.location}: expected the catalog {file}, found no such file. Nothing was created. "
            f"{make_advice(config)}"
        )


def _exists(file: Path, config: LakeConfig) -> bool:
    try:
        return file.exists()
    except OSError as error:
        raise LakeUnavailableError(
            f"lake {config.location}: can't look for the catalog {file}: {error.strerror}. Nothing was "
            "changed. Check that its disk is mounted and can be read."
        ) from error


def check_any_catalog_file(configs: Iterable[LakeConfig]) -> None:
    """The same for a store's lakes, of which one is enough.

    :raises LakeMissingError: none is there; one of which that can't be told is not missing.
    """
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
    """Say what to do where there is no lake."""
    file = sqlite_file_of(config)
    local = file is not None and config == LakeConfig.local(file.parent)
    arguments = (
        f"--lake {file.parent}"
        if local and file
        else "--lake DIRECTORY, of its lake.json, or --conn-id ID, of the store's connection"
    )
    return (
        "Mount its disk, or name the directory of an existing lake; a new one is made by storage-engine "
        f"init-lake {arguments}. Where the warehouse is there and the catalog is lost, run storage-engine "
        "lake rebuild."
    )
