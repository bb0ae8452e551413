"""Checks that a lake, or output of a lake, isn't inside a broker's store or another lake.

Otherwise the loss of the store or the other lake would destroy both. And a broker doesn't start if unknown
files lie among its own. Links and bind mounts are followed. Nothing is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import make_url

from storage_engine.brokers import store_around
from storage_engine.commands import Command
from storage_engine.exceptions import BadInputError, LakeIdentityError, StorageEngineError
from storage_engine.lake.catalog.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME


def refuse_inside_store(places: Mapping[str, Path]) -> None:
    """Raise BadInputError if a path to write to is a broker's store, or is among a store's files.

    :param places: paths by their purpose; they need not exist.
    """
    for part, place in places.items():
        if (root := store_around(place)) is not None:
            raise inside_store(part, place, root)


def refuse_target_inside_store(target: Path) -> None:
    """Do the same as :func:`refuse_inside_store` for a target, which may be a store that a restore made.

    The target may not be inside a lake's table: garbage collection would take its files for the table's.
    """
    real = Path(os.path.realpath(target))
    for around in real.parents:
        if (around / MARK_NAME).exists():
            raise BadInputError(
                f"{target}: expected a place outside of a lake's tables, found one inside {around}. Nothing "
                "was changed. Name another directory."
            )
    if (root := store_around(target)) is not None and root != real:
        raise inside_store("the target", target, root)


def local_places(lake: LakeConfig) -> dict[str, Path]:
    """Return the parts of a lake on this machine: its warehouse's directory and its catalog's file."""
    places = {}
    warehouse = lake.properties.get("warehouse", "")
    if warehouse.startswith(("/", "file:")):
        places["warehouse"] = Path(unquote(urlsplit(warehouse).path))
    if (catalog := sqlite_file(lake.properties.get("uri", ""))) is not None:
        places["catalog"] = catalog
    return places


def local_directories(lake: LakeConfig) -> dict[str, Path]:
    """Return the directories on this machine that have a lake's warehouse and its catalog's file."""
    return {part: path.parent if part == "catalog" else path for part, path in local_places(lake).items()}


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None if the URL names no such file."""
    database = make_url(url).database if url.startswith("sqlite") else None
    return Path(database.removeprefix("file:")) if database else None


def inside_store(what: str, place: Path, root: Path) -> BadInputError:
    """Return the error for a path among the files of the store ``root``."""
    return BadInputError(
        f"{place}: expected a place outside a broker's store for {what}, found one among the files of the "
        f"store {root}, whose broker doesn't start if other files are there. Nothing was changed. Name "
        "another directory."
    )


_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_WAREHOUSE = "warehouse"


def refuse_nested(config: LakeConfig) -> None:
    """Raise BadInputError if a new lake would lie inside a store or another lake."""
    refuse_inside_store(local_directories(config))
    if around := place_around(config):
        raise BadInputError(
            f"lake {config.location}: expected a place outside of stores and other lakes, found one inside "
            f"{around}: whatever destroys that store or lake destroys both. Nothing was changed. Name "
            "another directory, on another disk."
        )


def refuse_nested_proof(config: LakeConfig, root: Path | None = None) -> None:
    """Raise LakeIdentityError if a lake is inside a store or another lake: it proves nothing for a release.

    :param root: as in :func:`place_around`.
    """
    if around := place_around(config, root):
        raise proves_nothing(config, around)


def proves_nothing(config: LakeConfig, around: str) -> LakeIdentityError:
    """Return the error for a lake that lies inside a store or another lake. Alarms have its text."""
    return LakeIdentityError(
        f"lake {config.location}: expected a lake outside of stores and other lakes, found one inside "
        f"{around}, which proves nothing for a release and takes nothing: whatever destroys that store or "
        "lake destroys both. Nothing was changed. Move its directory to another disk and run ",
        Command("lake relocate"),
        "; ",
        Command("lake copy"),
        " makes a copy elsewhere.",
    )


def place_around(config: LakeConfig, root: Path | None = None) -> str:
    """Return the store or lake that contains a lake, as words for a message; "" if none does.

    :param root: a directory that counts as a store even if none is recognized there.
    :raises BadInputError: a broker's package can't say whether a directory is a store.
    """
    directories = local_directories(config)
    paths = [Path(os.path.realpath(path)) for path in directories.values()]
    for place in directories.values():
        for around in places_around(place):
            if store_around(around) == around or (root is not None and _is_same(around, root)):
                return f"the store {around}"
            # The directory may be this lake under another name. A shared warehouse is noticed by the tables.
            is_own = any(_is_same(name, path) for name in (around, around / _WAREHOUSE) for path in paths)
            if not is_own and _is_lake(around, config):
                return f"the lake {around}"
    return ""


def places_around(place: Path) -> Iterator[Path]:
    """Yield the directories around a path: by its real path, and by its names through other mounts."""
    real = Path(os.path.realpath(place))
    yield from real.parents
    existing = next(path for path in (real, *real.parents) if path.exists())
    for other in _other_names(existing):
        if _is_same(other, existing):
            yield other
            yield from other.parents


def _other_names(path: Path) -> Iterator[Path]:
    """Yield an existing path's names through other mounts of its file system (proc_pid_mountinfo(5))."""
    lines: list[str] = []
    with suppress(OSError):
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    mounts = [
        (device, Path(_unescaped(inside)), Path(_unescaped(point)))
        for _, _, device, inside, point, *_ in (line.split(" ") for line in lines)
    ]
    around = [mount for mount in mounts if path.is_relative_to(mount[2])]
    if not around:
        return
    device, inside, point = max(around, key=lambda mount: len(mount[2].parts))
    within = inside / path.relative_to(point)
    for other_device, other_inside, other_point in mounts:
        if other_device == device and within.is_relative_to(other_inside):
            other = other_point / within.relative_to(other_inside)
            if other != path:
                yield other


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _is_same(left: Path, right: Path) -> bool:
    try:
        return left == right or left.samefile(right)
    except OSError:
        return False


def _is_lake(directory: Path, config: LakeConfig) -> bool:
    """Return whether a directory is another lake, the warehouse of one, or one of its tables."""
    if (directory / MARK_NAME).exists():
        return True
    with suppress(OSError):
        if any((table / MARK_NAME).exists() for table in (directory / config.namespace).iterdir()):
            return True
    if (directory / CATALOG_FILE).is_file() and (directory / _WAREHOUSE).is_dir():
        return True
    if not os.path.lexists(directory / DESCRIPTION):
        return False
    try:
        return LakeConfig.local(directory).properties != config.properties
    except StorageEngineError:
        return True
