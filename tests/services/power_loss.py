"""What a disk has when the power goes: kept by power_loss.c of a process, and brought about after it.

As POSIX has it, bytes are on disk as of a file's last fsync, and names as of their directory's. What was not
synced may have reached the disk all the same, so several losses are told apart.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

Entries = dict[Path, dict[str, int]]
"""Of each directory, what inode has which name."""
PAGE_BYTES = 4096
_SOURCE = Path(__file__).with_suffix(".c")


class Loss(StrEnum):
    EVERYTHING = "nothing is left that was not synced"
    BUT_REMOVALS = "of what was not synced, removals are left"
    BUT_NAMES = "of what was not synced, names are left, and no bytes"
    BUT_PAGES = "of what was not synced, names are left, and some pages"


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    inode: int
    path: Path


@dataclass(frozen=True, slots=True)
class Disk:
    """What is on disk for sure: names, and where a copy of each inode's bytes is."""

    names: Entries
    bytes_of: dict[int, Path]


def compiled_recorder(directory: Path) -> Path:
    """Compile what keeps the bytes and names that a process makes durable, to be preloaded into it."""
    library = directory / "power_loss.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def record(directory: Path, log: Path, unlinked: str = "", number: int = -1) -> None:
    """Keep what this process makes durable, and die when a file is unlinked or after an event."""
    log.mkdir(parents=True)
    # Every file that was copied stays open.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begin = ctypes.CDLL(None).power_loss_record
    begin.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long)
    begin.restype = None
    begin(os.fsencode(directory), os.fsencode(log), os.fsencode(directory / unlinked), number)


def names_in(directory: Path) -> Entries:
    found: Entries = {directory: {}}
    for path in directory.rglob("*"):
        found.setdefault(path.parent, {})[path.name] = path.lstat().st_ino
        if path.is_dir():
            found.setdefault(path, {})
    return found


def disk_at_first(directory: Path, pristine: Path) -> Disk:
    """Return what is on disk of a directory whose files are copied below another one."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    copies = {path.stat().st_ino: pristine / path.relative_to(directory) for path in files}
    return Disk(names_in(directory), copies)


def events_of(log: Path) -> list[Event]:
    """Return what has happened in their order; nothing of a process that died before it began."""
    events = log / "events"
    lines = (line.split(" ", 2) for line in (events.read_text() if events.exists() else "").splitlines())
    return [Event(kind, int(inode), Path(path)) for kind, inode, path in lines]


def disk_after(first: Disk, log: Path, loss: Loss, directory: Path) -> Disk:
    """Return what the worst disk has after the events in ``log``."""
    names: Entries = defaultdict(dict, {path: dict(entries) for path, entries in first.names.items()})
    bytes_of = dict(first.bytes_of)
    for number, event in enumerate(events_of(log)):
        copy = log / str(number)
        if event.kind == "F":
            bytes_of[event.inode] = copy
        elif event.kind == "D":
            lines = (line.split(" ", 1) for line in copy.read_text().splitlines())
            names[event.path] = {name: int(inode) for inode, name in lines}
        elif loss is Loss.BUT_REMOVALS:
            names[event.path.parent].pop(event.path.name, None)
    keeps_names = loss in (Loss.BUT_NAMES, Loss.BUT_PAGES)
    return Disk(names_in(directory) if keeps_names else names, bytes_of)


def lose(directory: Path, disk: Disk, chance: random.Random | None = None) -> None:
    """Bring a directory to what is on disk; a file that is as it is there is not touched.

    :param chance: of the pages that were not synced, it chooses which are on disk; None: none is.
    """
    entries = disk.names.get(directory, {})
    for path in directory.iterdir():
        is_dir = path.is_dir()
        if path.name in entries and (is_dir or path.stat().st_ino == entries[path.name]):
            continue
        shutil.rmtree(path) if is_dir else path.unlink()
    for name, inode in entries.items():
        path = directory / name
        if path.is_dir() or path in disk.names:
            path.mkdir(exist_ok=True)
            lose(path, disk, chance)
            continue
        copy = disk.bytes_of.get(inode)
        content = b"" if copy is None else copy.read_bytes()
        if path.exists():
            newest = path.read_bytes()
            if newest == content:
                continue
            if chance is not None:
                content = _mixed(content, newest, chance)
        path.write_bytes(content)
        if copy is not None:
            shutil.copystat(copy, path)


def _mixed(synced: bytes, newest: bytes, chance: random.Random) -> bytes:
    """Return a file of which some pages were written back and some were not."""
    rate = chance.random()
    old, new = synced.ljust(len(newest), b"\0"), newest.ljust(len(synced), b"\0")
    return b"".join(
        (new if chance.random() < rate else old)[at : at + PAGE_BYTES]
        for at in range(0, len(new), PAGE_BYTES)
    )
