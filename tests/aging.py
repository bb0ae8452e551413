"""Files of a store that change while they are read: a broker's acts at the very calls that read them.

Each call by which a file of the store is listed, looked at, opened or mapped is counted, and an act of its
broker may come right before it. So nothing depends on time.
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.model.store import SegmentId
from storage_engine.retention.ranges.drift import recorded_gone

Act = Callable[[], None]
Schedule = Sequence[tuple[int, Act]]
"""Acts, each with the number of calls since the one before."""


class _Entry:
    """An entry of a listing that is looked at later than it was listed."""

    def __init__(self, entry: os.DirEntry[str], count: Callable[[], None]) -> None:
        self._entry, self._count = entry, count
        self.name, self.path = entry.name, entry.path

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._count()
        # What a listing keeps isn't what the file is by now.
        return Path(self.path).stat(follow_symlinks=follow_symlinks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class _Listing:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        pass


@contextmanager
def aging(root: Path, schedule: Schedule) -> Iterator[list[str]]:
    """Do acts at calls that read files below a directory, until the block ends.

    :return: the calls so far, by name and path.
    """
    left, calls, lock = list(schedule), [], threading.RLock()
    state = {"until": left[0][0] if left else 0, "acts": False}
    begin = f"{root}{os.sep}"

    def count(name: str, path: object) -> None:
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if not isinstance(text, str) or not f"{text}{os.sep}".startswith(begin):
            return
        with lock:
            if state["acts"]:
                return
            calls.append(f"{name} {text}")
            state["acts"] = True
            try:
                while left and state["until"] <= 0:
                    left.pop(0)[1]()
                    state["until"] = left[0][0] if left else 0
                state["until"] -= 1
            finally:
                state["acts"] = False

    def counted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            count(name, path)
            return real(path, *args, **kwargs)

        return call

    def scandir(path: Any = ".") -> Any:
        count("scandir", path)
        with real_scandir(path) as entries:
            return _Listing([_Entry(one, lambda path=one.path: count("entry", path)) for one in entries])

    def mapped(descriptor: int, *args: Any, **kwargs: Any) -> Any:
        if descriptor >= 0:
            count("mmap", Path(f"/proc/self/fd/{descriptor}").readlink())
        return real_mmap(descriptor, *args, **kwargs)

    real_scandir, real_mmap = os.scandir, mmap.mmap
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (os, "open"),
            (os, "stat"),
            (os, "lstat"),
            (os, "listdir"),
            (io, "open"),
            (builtins, "open"),
        ):
            patch.setattr(module, name, counted(getattr(module, name), name))
        patch.setattr(os, "scandir", scandir)
        patch.setattr(mmap, "mmap", mapped)
        yield calls


def unrecorded(journal: Journal, record: StoreRecord, gone: Iterable[SegmentId]) -> set[SegmentId]:
    """Return which segments no run has recorded as gone."""
    drifts = [drift for drift, _ in recorded_gone(journal, record)]
    return {
        key
        for key in gone
        if not any(
            drift.log == key.log and drift.start_offset <= key.base_offset < drift.end_offset
            for drift in drifts
        )
    }
