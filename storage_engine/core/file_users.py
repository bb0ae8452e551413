"""Processes that have files of a store open or mapped, as far as this process can see them.

Only names of another process's files are read, since reading a file on a dead network may never end.

Paths are compared, so a process in a container that mounts the store under another path isn't seen.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from storage_engine.core.turns import command_text, has_shared_lock
from storage_engine.core.wording import time_text

_LOOKS = 3
"""Number of looks at a process: one of our processes may release its lock just before it closes its file."""
_PAUSE_SECONDS = 0.02

DELETED = " (deleted)"
"""Suffix that the kernel adds to the name of a deleted file that a process still has open."""


@dataclass(frozen=True, slots=True)
class FileUser:
    """Another process that uses files, or may use them.

    :param path: a file that it has open, mapped or locked; None if this user may not inspect the process.
    :param command: its command line; empty if this user may not see it.
    """

    pid: int
    name: str
    path: str | None
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}) has {self.path}"


def file_users(directories: Iterable[Path], own: Collection[Path] = ()) -> Iterator[FileUser]:
    """Yield other processes that have files below directories open, and processes that can't be inspected.

    Our own readers are left out. They have a shared lock on a directory (:mod:`storage_engine.core.turns`),
    and have no file in it open for writing except ``own``.

    :param own: files that our readers may have open for writing, such as locks and marks. A directory stands
        for the files directly in it.
    """
    prefixes = tuple(sorted({f"{os.path.realpath(path)}{os.sep}" for path in directories}))
    own_paths = frozenset(map(os.path.realpath, own))
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        pid, name, command = process.pid, process.info["name"] or "", process.info["cmdline"]
        if pid == os.getpid() or command == []:  # [] for a kernel thread; None if we may not see it
            continue
        file = _strange_file(prefixes, pid, own_paths)
        if file is not False:
            yield FileUser(pid, name, file, tuple(command or ()))


def process_name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "unknown"


def process_text(pid: int | None) -> str:
    """Return a process's description for messages.

    :param pid: None, 0 or less if the process can't be seen from here.
    """
    return "another process" if pid is None or pid <= 0 else f"process {pid} ({process_name(pid)})"


def run_text(pid: int) -> str:
    """Return the description of one of our processes for messages: its command and its start."""
    try:
        process = psutil.Process(pid)
        command, started_ms = command_text(process.cmdline()), int(process.create_time() * 1000)
    except psutil.Error:
        return process_text(pid)
    return f"{command or 'a run'} (process {pid}, since {time_text(started_ms)})"


def _strange_file(directories: tuple[str, ...], pid: int, own: frozenset[str]) -> str | Literal[False] | None:
    """Return a file below the directories that a process has open or mapped.

    :return: False if the process has no such file, or is one of our own readers; None if unknown.
    """
    try:
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE_SECONDS)
            paths = (*_mapped_paths(pid, directories), *_open_paths(pid))
            files = [path for path in paths if path.startswith(directories)]
            if not files:
                return False
            places = {os.path.dirname(path) for path in files}  # noqa: PTH120
            if has_shared_lock(pid, {*(path.removesuffix(os.sep) for path in directories), *places}):
                return next(iter(_list_writable(pid, directories, own)), False)
        return files[0]
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False
    except (psutil.AccessDenied, PermissionError):
        return None
    return False


def _list_writable(pid: int, directories: tuple[str, ...], own: frozenset[str]) -> list[str]:
    """Return the files below the directories that a process may write, except ``own``."""
    paths = []
    for line in _maps(pid).decode(errors="surrogateescape").splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and "w" in fields[1] and "s" in fields[1]:
            paths.append(fields[5])
    for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):
            path = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
            if path.startswith(directories) and _is_writable(Path(f"/proc/{pid}/fdinfo/{fd}").read_text()):
                paths.append(path)
    return [
        path
        for path in paths
        if path.startswith(directories) and not own & {path, os.path.dirname(path)}  # noqa: PTH120
    ]


def _is_writable(info: str) -> bool:
    """Return whether a descriptor was opened for writing, as its entry in ``/proc`` shows."""
    flags = next((line.split()[1] for line in info.splitlines() if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY


def _mapped_paths(pid: int, directories: tuple[str, ...]) -> Iterable[str]:
    """Return the files that a process maps, without removed ones; empty if none is below the directories.

    This works on Linux alone. Elsewhere only open files are known.
    """
    if not sys.platform.startswith("linux"):
        return ()
    maps = _maps(pid)
    if not any(directory.encode(errors="surrogateescape") in maps for directory in directories):
        return ()
    return sorted(path for path in _mappings(maps) if not path.endswith(DELETED))


def mapped_paths(pid: int) -> set[str]:
    """Return the files that a process maps, including removed ones. Linux only.

    :raises OSError: the mappings can't be read.
    """
    return _mappings(_maps(pid))


def _maps(pid: int) -> bytes:
    return Path(f"/proc/{pid}/maps").read_bytes()


def _mappings(maps: bytes) -> set[str]:
    lines = maps.decode(errors="surrogateescape").splitlines()
    fields = (line.split(None, 5) for line in lines)
    return {line[5] for line in fields if len(line) == 6 and line[5].startswith("/")}


def _open_paths(pid: int) -> Iterator[str]:
    """Yield the names of a process's open files. Reading the files themselves may block for ever."""
    if not sys.platform.startswith("linux"):
        yield from (str(opened.path) for opened in psutil.Process(pid).open_files())
        return
    directory = f"/proc/{pid}/fd"
    for fd in os.listdir(directory):  # noqa: PTH208 - of every process, and strings are several times quicker
        with suppress(FileNotFoundError):
            path = os.readlink(f"{directory}/{fd}")  # noqa: PTH115
            if path.startswith("/") and not path.endswith(DELETED):
                yield path
