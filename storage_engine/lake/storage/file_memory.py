"""What this process has parsed of the lake's metadata files, which never change under their names.

A local file is known again by its inode, size and time, so that one which was damaged or replaced meanwhile
is read again. On an object store its name alone says so.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from storage_engine.lake.durable_io import local_path

T = TypeVar("T")

_Stamp = tuple[int, int, int, int] | None

_memories: weakref.WeakSet[FileMemory[Any]] = weakref.WeakSet()


class FileMemory(Generic[T]):
    """Values by the location of the file that they were parsed from; the one that was used longest ago goes
    first.

    :param most: greatest sum of the values' weights.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._found: OrderedDict[str, tuple[_Stamp, T, int]] = OrderedDict()
        self._lock = threading.Lock()
        _memories.add(self)

    def get(self, location: str, parse: Callable[[], T], weigh: Callable[[T], int] = lambda _: 1) -> T:
        """Return what a file holds; parse it where this process doesn't know it as it is now.

        :raises Exception: as ``parse`` does.
        """
        stamp = _stamp(location)
        with self._lock:
            known = self._found.get(location)
            if known is not None and known[0] == stamp:
                self._found.move_to_end(location)
                return known[1]
        value = parse()
        weight = weigh(value)
        with self._lock:
            self._drop(location)
            self._found[location] = (stamp, value, weight)
            self._weight += weight
            while self._weight > self._most and len(self._found) > 1:
                self._drop(next(iter(self._found)))
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._found.clear()
            self._weight = 0

    def _drop(self, location: str) -> None:
        if (known := self._found.pop(location, None)) is not None:
            self._weight -= known[2]


def forget_files() -> None:
    """Let this process read every file of a lake again, as who verifies the files themselves has to."""
    for memory in list(_memories):
        memory.clear()


def _stamp(location: str) -> _Stamp:
    """Return what tells a local file from another of its name; None: it isn't local, or isn't there."""
    path = local_path(location)
    try:
        found = None if path is None else path.stat()
    except OSError:
        # Whoever parses it says what is wrong.
        return (0, 0, 0, 0)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
