"""Record of our own changes to a segment's file: setting its mtime, making or removing another name of it.

Each of these acts changes the file's ctime, as a write does. A file counts as unchanged only if the record
knows its earlier times and its present times. Code that does such an act notes it like this::

    with own_acts(store_root) as acts:
        with acts.on(path, mtime_ns=wanted):
            os.utime(path, ns=(atime_ns, wanted))
        with acts.on(path, other_name=link):
            os.link(path, link)

The record is in our directory in the store's root. It has its own lock, which is held for the block. A
missing record is harmless: a file with unexplained times counts as touched, and is hashed again before it is
deleted. So no act has to fail or wait for its record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, lock, locked, own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.exceptions import BadInputError
from storage_engine.model.store import FileFacts

NAME: Final = "own-acts.json"
_LOCK: Final = "own-acts.lock"
_WAIT_SECONDS: Final = 1.0
"""Longest wait for the lock. A suspended process with the lock must not prevent the repair of a fence."""
_MOST_TIMES: Final = 200
"""How many of a file's last times are kept. The record must not grow if a hold is renewed each minute."""
_MAX_BYTES: Final = 16 << 20
"""A longer record is ignored. It would have thousands of files, each with :data:`_MOST_TIMES` times."""
_LOOK: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC
_GRANULES_NS: Final = (1, 100, 1_000, 1_000_000, 1_000_000_000)
"""Precision of file systems' times."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file that only we have touched since the first time in ``times``.

    :param paths: the file's names. Once no name is left, the file is removed from the record.
    :param times: its (mtime, ctime) in nanoseconds before and after each act, oldest first.
    """

    device: int
    inode: int
    size_bytes: int
    paths: tuple[str, ...]
    times: tuple[tuple[int, int], ...]

    def is_of(self, facts: FileFacts) -> bool:
        """Return whether these facts belong to this file. Its times don't matter."""
        return _key(facts) == (self.device, self.inode, self.size_bytes)


@dataclass(frozen=True, slots=True)
class OwnActs:
    """The whole record of a store."""

    files: tuple[KnownFile, ...] = ()

    def same_file(self, found: FileFacts, known: FileFacts) -> bool:
        """Return whether only we have touched the file between these two looks at it. Then its device, inode
        and size are equal, and its times at both looks are known.

        :param found: the file's present facts.
        :param known: the file's earlier facts. Of its times only the ctime has to be known, since every write
            changes it: a receipt has the mtime from before a hold changed it.
        """
        if replace(found, path=known.path) == known:
            return True
        file = next((file for file in self.files if file.is_of(found)), None)
        return (
            file is not None
            and file.is_of(known)
            and (found.mtime_ns, found.ctime_ns) in file.times
            and known.ctime_ns in {ctime_ns for _, ctime_ns in file.times}
        )


class Acting:
    """Notes acts while the store's record is locked."""

    def __init__(self, files: tuple[KnownFile, ...]) -> None:
        self._files = list(files)
        self.has_noted = False

    @contextmanager
    def on(
        self,
        path: str | os.PathLike[str],
        *,
        mtime_ns: int | None = None,
        other_name: str | os.PathLike[str] | None = None,
    ) -> Iterator[None]:
        """Note one act on one file. The block does this act and nothing else: changes by other programs
        during the block would count as ours.

        The act isn't noted if the block raises an error, or if the file then isn't in the state that the act
        alone would leave.

        :param path: a present name of the file.
        :param mtime_ns: the mtime that the act sets; None: it doesn't set the mtime.
        :param other_name: a new name that the act gives the file.
        :raises FileNotFoundError: there is no such file.
        """
        with durable.opened(path, _LOOK) as fd:
            before = os.fstat(fd)
            yield
            after = os.fstat(fd)
        if after.st_nlink and _is_ours(before, after, mtime_ns):
            names = (path,) if other_name is None else (path, other_name)
            self._note(before, after, tuple(os.fspath(name) for name in names))

    @property
    def known(self) -> OwnActs:
        """Return all facts known up to now, including those of deleted files."""
        return OwnActs(tuple(self._files))

    @property
    def record(self) -> OwnActs:
        """Return the acts to record, without those on deleted files."""
        files = (replace(file, paths=tuple(_names_left(file))) for file in self._files)
        return OwnActs(tuple(file for file in files if file.paths))

    def _note(self, before: os.stat_result, after: os.stat_result, names: tuple[str, ...]) -> None:
        then, now = (before.st_mtime_ns, before.st_ctime_ns), (after.st_mtime_ns, after.st_ctime_ns)
        if then == now:
            return
        key = (after.st_dev, after.st_ino, after.st_size)
        earlier = next((file for file in self._files if (file.device, file.inode) == key[:2]), None)
        if earlier is not None:
            self._files.remove(earlier)
            names = tuple(dict.fromkeys((*earlier.paths, *names)))
        times = earlier.times if earlier is not None and earlier.times[-1:] == (then,) else (then,)
        self._files.append(KnownFile(*key, names, (*times, now)[-_MOST_TIMES:]))
        self.has_noted = True


@contextmanager
def own_acts(root: str | os.PathLike[str]) -> Iterator[Acting]:
    """Yield an object that notes our acts on a store's files, durably when the block ends. Never nest it."""
    with ExitStack() as stack:
        directory = None
        with suppress(OSError):
            directory = stack.enter_context(locked(root, _LOCK, wait_seconds=_WAIT_SECONDS))
        acting = Acting(() if directory is None else _read(directory).files)
        try:
            yield acting
        finally:
            if directory is not None and acting.has_noted:
                content = json.dumps(to_jsonable(acting.record)).encode()
                with suppress(OSError):
                    durable.write_file(NAME, content, dir_fd=directory, shared=True)


def read_own_acts(root: str | os.PathLike[str], *, waits: bool = True) -> OwnActs:
    """Return the recorded acts. The result is empty if they can't be read.

    :param waits: whether to wait until no act is in progress, at most :data:`_WAIT_SECONDS`. Without a wait,
        an act in progress may be missing, and no act is delayed by this reader.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(own_directory(root))
            if not waits:
                return _read(directory)
            with suppress(FileNotFoundError, PermissionError, TimeoutError):
                fd = os.open(
                    _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
                )
                stack.callback(os.close, fd)
                lock(fd, Path(root) / DIRECTORY / _LOCK, _WAIT_SECONDS)
            return _read(directory)
        except OSError:
            return OwnActs()


def _is_ours(before: os.stat_result, after: os.stat_result, mtime_ns: int | None) -> bool:
    """Return whether a file's change is only ours: a write would have set the mtime to the present time."""
    if (before.st_dev, before.st_ino, before.st_size) != (after.st_dev, after.st_ino, after.st_size):
        return False
    if mtime_ns is None:
        return before.st_mtime_ns == after.st_mtime_ns
    return any(mtime_ns // granule * granule == after.st_mtime_ns for granule in _GRANULES_NS)


def _key(facts: FileFacts) -> tuple[int, int, int]:
    return facts.device, facts.inode, facts.size_bytes


def _names_left(file: KnownFile) -> Iterator[str]:
    for path in file.paths:
        with suppress(OSError):
            status = Path(path).stat()
            if (status.st_dev, status.st_ino) == (file.device, file.inode):
                yield path


def _read(directory: int) -> OwnActs:
    """Return the record. It is empty if there is no valid record."""
    try:
        content = read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=directory)
        return from_jsonable(OwnActs, json.loads(content), NAME)
    except (OSError, BadInputError, *MALFORMED):
        return OwnActs()
