"""Where a store's stamp lies: in our directory in the store's root, or as a plain hidden file in each of the
directories that its broker names.

The second kind is for brokers that take every directory among their own for one of theirs. There a stamp of
one directory is a witness for all: one that is missing tells of a disk that was replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import broker_of, find_broker
from storage_engine.core.own_directory import (
    DIRECTORY,
    PLAIN_STAMP,
    WAIT_SECONDS,
    lock,
    locked,
    own_directory,
)
from storage_engine.exceptions import BadInputError

NAME = "stamp.json"
_LOCK = "stamp.lock"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StampPlace:
    """
    :param path: of the stamp, whether it is there or not.
    :param directory: descriptor of the directory that it is in.
    """

    path: Path
    directory: int


def stamp_paths(root: str) -> tuple[Path, ...]:
    """Return where a store's stamp is: one file, or the same one in each of several directories.

    :raises BadInputError: the store's own file can't be read.
    """
    directories = _plain_directories(root)
    return tuple(path / PLAIN_STAMP for path in directories) or (Path(root) / DIRECTORY / NAME,)


@contextmanager
def opened_places(root: str) -> Iterator[tuple[StampPlace, ...]]:
    """Open the directories that have a store's stamp; of several, those that are there.

    :raises OSError: our directory is missing, can't be opened, or is a symbolic link.
    """
    with ExitStack() as opening:
        paths = stamp_paths(root)
        if not _plain_directories(root):
            yield (StampPlace(paths[0], opening.enter_context(own_directory(root))),)
            return
        places = []
        for path in paths:
            with suppress(FileNotFoundError):
                places.append(StampPlace(path, opening.enter_context(_open(path.parent))))
        yield tuple(places)


@contextmanager
def locked_places(root: str) -> Iterator[tuple[StampPlace, ...]]:
    """Keep other processes from a store's stamp until the block ends.

    :raises TimeoutError: another process has the lock for longer than it should.
    :raises OSError: a directory can't be opened or written.
    """
    with ExitStack() as opening:
        paths = stamp_paths(root)
        if not _plain_directories(root):
            yield (StampPlace(paths[0], opening.enter_context(locked(root, _LOCK))),)
            return
        places = [StampPlace(path, opening.enter_context(_open(path.parent))) for path in paths]
        # All processes lock them in one order. A lock file would be one more file among the broker's.
        for place in sorted(places, key=lambda one: os.path.realpath(one.path)):
            lock(place.directory, place.path.parent, WAIT_SECONDS)
        yield tuple(places)


def real_directories(root: str) -> tuple[str, ...]:
    """Return the real paths of the directories that each have a store's stamp; (): it has one for all.

    :raises BadInputError: the store's own file can't be read.
    """
    return tuple(sorted({os.path.realpath(path) for path in _plain_directories(root)}))


def share_directories(root: str, place: str) -> bool:
    """Return whether stores at two places have a stamp in one and the same directory, such as a node that is
    named by two files; what can't be read is no.
    """
    with suppress(OSError, BadInputError):
        if Path(root).samefile(place):
            return True
        here, there = (_identities(_plain_directories(path)) for path in (root, place))
        return not here.isdisjoint(there)
    return False


def _identities(directories: Iterable[Path]) -> set[tuple[int, int]]:
    found = set()
    for path in directories:
        with suppress(FileNotFoundError):
            seen = path.stat()
            found.add((seen.st_dev, seen.st_ino))
    return found


def _plain_directories(root: str) -> tuple[Path, ...]:
    path = Path(root)
    return find_broker(broker_of(path)).stamped_directories(path) if path.is_file() else ()


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
