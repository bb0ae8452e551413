"""Nothing is written among a broker's own files: it would not start with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import make_url

from storage_engine.brokers import store_around
from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME


def refuse_inside_store(places: Mapping[str, Path]) -> None:
    """Make sure that no place to write to is a broker's store, or lies among its own files.

    :param places: by what they are; they need not exist.
    :raises BadInputError: one does; nothing was changed.
    """
    for what, place in places.items():
        if (root := store_around(place)) is not None:
            raise inside_store(what, place, root)


def refuse_target_inside_store(target: Path) -> None:
    """:func:`refuse_inside_store` for a target, which may be a store that an earlier restore made.

    Nor may it lie inside a lake's table, whose garbage collection takes what lies there for its own.
    """
    real = Path(os.path.realpath(target))
    for around in real.parents:
        if (around / MARK_NAME).exists():
            raise BadInputError(
                f"{target}: expected a place outside of a lake's tables, found one inside {around}. Nothing "
                "was changed. Name another."
            )
    if (root := store_around(target)) is not None and root != real:
        raise inside_store("the target", target, root)


def local_places(lake: LakeConfig) -> dict[str, Path]:
    """The parts of a lake that lie on this machine: its warehouse's directory, its catalog's file."""
    found = {}
    warehouse = lake.properties.get("warehouse", "")
    if warehouse.startswith(("/", "file:")):
        found["warehouse"] = Path(unquote(urlsplit(warehouse).path))
    if (catalog := sqlite_file(lake.properties.get("uri", ""))) is not None:
        found["catalog"] = catalog
    return found


def local_directories(lake: LakeConfig) -> dict[str, Path]:
    """The directories of :func:`local_places`."""
    return {what: path.parent if what == "catalog" else path for what, path in local_places(lake).items()}


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite database; None: the URL names no such."""
    database = make_url(url).database if url.startswith("sqlite") else None
    return Path(database.removeprefix("file:")) if database else None


def inside_store(what: str, place: Path, root: Path) -> BadInputError:
    """The error for a place among the files of the store ``root``."""
    return BadInputError(
        f"{place}: expected a place outside a broker's store for {what}, found one among the files of "
        f"the store {root}, whose broker doesn't start with others there. Nothing was changed. Name another."
    )
