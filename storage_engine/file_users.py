"""Which processes have files of a store open or mapped, as far as that can be seen from here.

No file of another process is touched, only its name is read: one on a dead network file system would keep
who looks there for ever. Paths are compared, so a process in a container that mounts the store elsewhere
isn't seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

DELETED = " (deleted)"
"""How the kernel ends the name of a file that is gone, and that a process still has."""


@dataclass(frozen=True, slots=True)
class FileUser:
    """Another process that uses files, or may.

    :param path: of a file that it has open, mapped or locked; None: it may not be looked into.
    :param command: its command line, as far as that can be seen.
    """

    pid: int
    name: str
    path: str | None
    command: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}) has {self.path}"


def file_users(directories: Iterable[Path]) -> Iterator[FileUser]:
    """Yield other processes that have files below directories open, and those that can't be looked into."""
    prefixes = tuple(sorted({f"{path}{os.sep}" for path in directories}))
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        pid, name, command = process.pid, process.info["name"] or "", process.info["cmdline"]
        if pid == os.getpid() or command == []:  # a kernel thread; None means that we may not even see it
            continue
        found = _first_file_below(prefixes, pid)
        if found is not False:
            yield FileUser(pid, name, found, tuple(command or ()))


def process_name(pid: int) -> str:
    """Return what a process is called."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "unknown"


def process_text(pid: int | None) -> str:
    """Return how a process is told of; None, 0 or less: one that can't be seen from here."""
    return "another process" if pid is None or pid <= 0 else f"process {pid} ({process_name(pid)})"


def _first_file_below(directories: tuple[str, ...], pid: int) -> str | Literal[False] | None:
    """A file below the directories that the process has open or mapped; False: none; None: unknown."""
    try:
        for path in (*_mapped_paths(pid, directories), *_open_paths(pid)):
            if path.startswith(directories):
                return path
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return False
    except (psutil.AccessDenied, PermissionError):
        return None
    return False


def _mapped_paths(pid: int, directories: tuple[str, ...]) -> Iterable[str]:
    """Files that a process maps, removed ones left out; none where it maps nothing below the directories.

    Linux only; elsewhere open files must do.
    """
    if not sys.platform.startswith("linux"):
        return ()
    maps = _maps(pid)
    if not any(directory.encode(errors="surrogateescape") in maps for directory in directories):
        return ()
    return sorted(path for path in _mappings(maps) if not path.endswith(DELETED))


def mapped_paths(pid: int) -> set[str]:
    """Return the files that a process maps, removed ones among them; Linux only.

    :raises OSError: they can't be seen.
    """
    return _mappings(_maps(pid))


def _maps(pid: int) -> bytes:
    return Path(f"/proc/{pid}/maps").read_bytes()


def _mappings(maps: bytes) -> set[str]:
    lines = maps.decode(errors="surrogateescape").splitlines()
    fields = (line.split(None, 5) for line in lines)
    return {line[5] for line in fields if len(line) == 6 and line[5].startswith("/")}


def _open_paths(pid: int) -> Iterator[str]:
    """Return what a process has open, by name. Asking for more than the name may wait for a file system for
    ever.
    """
    if not sys.platform.startswith("linux"):
        yield from (str(opened.path) for opened in psutil.Process(pid).open_files())
        return
    directory = f"/proc/{pid}/fd"
    for fd in os.listdir(directory):  # noqa: PTH208 - of every process, and strings are several times quicker
        with suppress(FileNotFoundError):
            path = os.readlink(f"{directory}/{fd}")  # noqa: PTH115
            if path.startswith("/") and not path.endswith(DELETED):
                yield path
