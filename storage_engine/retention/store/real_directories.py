"""Whether files lie below directories, whatever symbolic links lead there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress

from storage_engine.core.own_directory import DIRECTORY

_NO_NAMES = frozenset({"", ".", ".."})
_PATH_MAX = 4096
"""No system takes a longer path."""
_MANY = 100
"""From so many directories on a listing of their parent costs less than a look at each."""


class RealDirectories:
    """Directories by their real paths. Each directory on the way is looked at once, not once a file."""

    def __init__(self, paths: Sequence[os.PathLike[str]]) -> None:
        self._said = ", ".join(map(os.fspath, paths))
        self._roots = tuple(dict.fromkeys(os.path.realpath(path) for path in paths))
        self._real: dict[str, str] = {"": "/"}
        self._has: dict[str, bool] = {}

    def __str__(self) -> str:
        return self._said

    def first_outside(self, paths: Sequence[str]) -> str | None:
        """Return the first of files that :meth:`has` says no of; None: it has all."""
        parts = [path.rpartition("/") for path in paths]
        names = {name for _, _, name in parts}
        is_plain = _NO_NAMES.isdisjoint(names) and "\0" not in "".join(names)
        directories = {directory for directory, _, _ in parts}
        self._list_parents(directories)
        if is_plain and all(map(self._has_in, directories)):
            return None
        return next((path for path in paths if not self.has(path)), None)

    def _list_parents(self, directories: Set[str]) -> None:
        """Look at many directories of one parent by one listing; others are looked at one by one."""
        parents = Counter(directory.rpartition("/")[0] for directory in directories)
        for parent, count in parents.items():
            if count < _MANY or not parent.startswith("/") or "\0" in parent or len(parent) > _PATH_MAX:
                continue
            real = self._directory(parent)
            with suppress(OSError), os.scandir(real) as entries:
                for entry in entries:
                    path = f"{parent}/{entry.name}"
                    if path in directories and entry.is_dir(follow_symlinks=False):
                        self._real[path] = f"{real.rstrip('/')}/{entry.name}"

    def has(self, path: str) -> bool:
        """Return whether a file would lie below one of them, and not among what we keep there ourselves."""
        directory, _, name = path.rpartition("/")
        return name not in _NO_NAMES and "\0" not in name and self._has_in(directory)

    def _has_in(self, directory: str) -> bool:
        # Of a bare name, or one in the file system's root, nothing is said.
        if not directory or "\0" in directory or len(directory) > _PATH_MAX:
            return False
        if (known := self._has.get(directory)) is None:
            real = self._directory(directory) if directory.startswith("/") else os.path.realpath(directory)
            below = any(f"{real}/".startswith(root.rstrip("/") + "/") for root in self._roots)
            known = self._has[directory] = below and f"/{DIRECTORY}/" not in f"{real}/"
        return known

    def real(self, path: str) -> str:
        """Return a file's path by its real directory; of a symbolic link its own."""
        directory, _, name = path.rpartition("/")
        real = self._directory(directory) if path.startswith("/") else os.path.realpath(directory)
        return f"{real.rstrip('/')}/{name}"

    def _directory(self, path: str) -> str:
        if (known := self._real.get(path)) is None:
            parent, _, name = path.rpartition("/")
            real = f"{self._directory(parent).rstrip('/')}/{name}"
            if name in _NO_NAMES or os.path.islink(real):  # noqa: PTH114  takes a third
                real = os.path.realpath(path)
            known = self._real[path] = real
        return known
