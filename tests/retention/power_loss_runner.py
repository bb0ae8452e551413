"""Cuts the power of a run after deletions, and of a restore at its end; a script of test_power_loss.

The run is a fork of this process, into which power_loss.c is preloaded: that keeps what the run makes
durable, and kills it right after a chosen fsync or unlink. Then everything is dropped that a disk need not
have kept, as POSIX has it: bytes are on disk as of a file's last fsync, names as of their directory's. What
was not synced may have reached the disk all the same, so three losses are tried. Segments that are gone are
restored from what is left, and the same run is done again. Prints one JSON object.

Usage: power_loss_runner.py PRISTINE_STORE WORK_DIRECTORY MOST_OTHER_EVENTS
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import sys
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import kill_runner as killing

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import list_stores
from storage_engine.lake.restore import restore
from storage_engine.lake.restore_span import Span

Entries = dict[Path, dict[str, int]]
"""Of each directory, what inode has which name."""


class Loss(StrEnum):
    EVERYTHING = "nothing is left that was not synced"
    BUT_REMOVALS = "of what was not synced, removals are left"
    BUT_NAMES = "of what was not synced, names are left, and no bytes"


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


def names_in(directory: Path) -> Entries:
    found: Entries = {directory: {}}
    for path in directory.rglob("*"):
        found.setdefault(path.parent, {})[path.name] = path.lstat().st_ino
        if path.is_dir():
            found.setdefault(path, {})
    return found


def disk_at_first(directory: Path, pristine: Path) -> Disk:
    copies = {
        path: pristine / path.relative_to(directory / "store") for path in directory.rglob("store/**/*")
    }
    return Disk(
        names_in(directory), {path.stat().st_ino: copy for path, copy in copies.items() if copy.is_file()}
    )


def events_of(log: Path) -> list[Event]:
    lines = (line.split(" ", 2) for line in (log / "events").read_text().splitlines())
    return [Event(kind, int(inode), Path(path)) for kind, inode, path in lines]


def disk_after(first: Disk, log: Path, loss: Loss, directory: Path) -> Disk:
    """What the worst disk has after the events in ``log``."""
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
    return Disk(names_in(directory) if loss is Loss.BUT_NAMES else names, bytes_of)


def lose(directory: Path, disk: Disk) -> None:
    """Bring a directory to what is on disk; a file that is as it is there is not touched."""
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
            lose(path, disk)
            continue
        copy = disk.bytes_of.get(inode)
        content = b"" if copy is None else copy.read_bytes()
        if path.exists() and path.read_bytes() == content:
            continue
        path.write_bytes(content)
        if copy is not None:
            shutil.copystat(copy, path)


def unrestorable(directory: Path, pristine: dict[str, str], to_dir: Path) -> list[str]:
    """Segments that are gone and don't come back from the lake, or whose deletion no intent explains."""
    here = killing.fingerprint(directory / "store")
    gone = {name for name, sha256 in pristine.items() if "commitlog/" in name and here.get(name) != sha256}
    if not gone:
        return []
    store = killing.managed(directory)
    journal = Journal(store.journal_url)
    known = journal.find_store(store.real_root)
    assert known is not None
    run = journal.run(known.store_id, killing.RUN)
    meant = {event.subject for event in journal.events(run, Step.RELEASE, Phase.INTENT)}
    wanted = tuple(sorted(int(Path(name).name) for name in gone))
    restore(open_lake(store.lake), known.store_id, to_dir, span=Span(segments=wanted))
    back = killing.fingerprint(to_dir)
    return sorted(name for name in gone if back.get(name) != pristine[name] or name not in meant)


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


def run_recorded(directory: Path, log: Path, unlinked: str = "", number: int = -1) -> list[str]:
    record(directory, log, unlinked, number)
    killing.run_cycle(directory, None)
    return [f"{event.kind} {event.path.relative_to(directory)}" for event in events_of(log)]


def cut(
    work: Path, pristine: Path, before: dict[str, str], expected: Any, unlinked: str, number: int, loss: Loss
) -> tuple[str, list[str]]:
    """Cut the power of a run, look at what is left, and run it again.

    :return: the last event, and what is not as it has to be.
    """
    directory, log, restored = work / "cut", work / "cut-log", work / "restored"
    killing.prepare(pristine, directory)
    first = disk_at_first(directory, pristine)
    status, _ = killing.in_child(lambda: run_recorded(directory, log, unlinked, number))
    problems = killing.not_killed(status)
    lose(directory, disk_after(first, log, loss, directory))
    status, lost = killing.in_child(lambda: unrestorable(directory, before, restored))
    if status or lost:
        problems.append(f"gone, and not back from the lake or not meant to go: {lost}")
    problems += killing.aftermath(directory, before, expected)
    last = events_of(log)[-1]
    for path in (directory, log, restored):
        shutil.rmtree(path, ignore_errors=True)
    return f"{last.kind} {last.path.relative_to(directory)}", problems


def restore_and_cut(archived: Path, work: Path) -> list[str]:
    """Restore into a new directory, and cut the power when that has ended; returns what was lost."""
    directory, log = work / "restores", work / "restore-log"
    directory.mkdir()
    first = Disk(names_in(directory), {})

    def work_in_child() -> dict[str, str]:
        record(directory, log)
        lake = open_lake(killing.managed(archived).lake)
        (store,) = list_stores(lake)
        restore(lake, store.store_id, directory / "some" / "store")
        return killing.fingerprint(directory)

    _, restored = killing.in_child(work_in_child)
    lose(directory, disk_after(first, log, Loss.EVERYTHING, directory))
    left = killing.fingerprint(directory)
    if not restored or sum("commitlog/" in name for name in restored) != killing.SEGMENTS:
        return [f"expected {killing.SEGMENTS} restored segments, found {restored}"]
    return [f"{name} was restored, and then lost" for name in restored if left.get(name) != restored[name]]


def main(pristine: Path, work: Path, most_others: int) -> None:
    before = killing.fingerprint(pristine)
    events, expected = killing.rehearse(
        pristine, work / "undisturbed", lambda: run_recorded(work / "undisturbed", work / "log")
    )
    stride = max(len(events) / max(most_others, 1), 1)
    numbers = [int(i * stride) for i in range(min(most_others, len(events)))]
    # Small runs try the losses by turns where nothing was deleted.
    every = len(numbers) == len(events)
    deleted = [event[2:] for event in events if event.startswith("U store/commitlog/")]
    # Without other cuts only after the last: what was lost then had not been flushed before.
    wanted = [(path, -1, loss) for path in (deleted if most_others else deleted[-1:]) for loss in Loss]
    wanted += [
        ("", number, loss) for number in numbers for i, loss in enumerate(Loss) if every or number % 3 == i
    ]
    cuts: list[list[str]] = []
    problems = restore_and_cut(work / "undisturbed", work)
    for unlinked, number, loss in wanted:
        event, found = cut(work, pristine, before, expected, unlinked, number, loss)
        cuts.append([event, loss.value])
        problems += [f"after {event} ({number}), {loss.value}: {what}" for what in found]
    sys.stdout.write(json.dumps({"events": events, "cuts": cuts, "end": expected, "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
