"""What lies in a store's quarantines, by the files alone, for a person to look at. Reads only."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.own_directory import DIRECTORY
from storage_engine.core.wording import bytes_text, reason_text
from storage_engine.exceptions import QuarantineError
from storage_engine.retention.quarantine.places import QUARANTINE, bases
from storage_engine.retention.quarantine.tree import MANIFEST, Place, contents, opened
from storage_engine.retention.store.managed_store import ManagedStore

_LONGEST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class QuarantineLook:
    """
    :param run_key: as its manifest says; "" where that can't be read.
    :param until_ms: when its window is over, likewise None.
    :param error: why it can't be looked at; "" where it can.
    """

    directory: str
    run_key: str
    until_ms: int | None
    files: int
    size_bytes: int
    error: str = ""


def look_at_quarantines(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[QuarantineLook, ...]:
    """Look at the quarantines below a store's root and beside what it keeps elsewhere.

    :param data_paths: where its broker writes.
    """
    return tuple(look for base in bases(store, data_paths) for look in _below(base, store.real_root))


def unknown_quarantines(found: Sequence[QuarantineLook], known: Iterable[str]) -> tuple[QuarantineLook, ...]:
    """Return what lies aside without a journal's knowing, so that nothing ever empties it. Pure.

    As after a journal was lost, or brought back as it was before the run.

    :param known: directories of the quarantines that a journal knows to be there.
    """
    there = frozenset(known)
    return tuple(one for one in found if one.directory not in there and (one.files or one.error))


def unknown_text(one: QuarantineLook) -> tuple[str, str]:
    """Return what is to be said of a quarantine that no journal knows, and what to do, as clauses."""
    what = f"{bytes_text(one.size_bytes)} that run {one.run_key or 'unknown'} set aside"
    return (
        f"{what} lie in {one.directory}, and the journal doesn't know it: nothing empties it",
        Text(
            "with the journal of that run, ",
            Command("undo"),
            " brings it back; to take it away, once verify says that the lake has it: rm -r "
            f"{shlex.quote(one.directory)}",
        ),
    )


def unknown_notices(store: ManagedStore, data_paths: Sequence[Path], known: Iterable[str]) -> tuple[str, ...]:
    """Return what lies aside without the journal's knowing, as sentences for a plan or a list of runs."""
    found = look_at_quarantines(store, data_paths)
    return tuple("; ".join(unknown_text(one)) for one in unknown_quarantines(found, known))


def _below(base: Path, root: str) -> Iterator[QuarantineLook]:
    """Yield the runs in a base's quarantine; in one that isn't the store's root, those of this store."""
    if base.is_file():  # a store may be named by a file of its broker, below which nothing lies
        return
    quarantine = Place(str(base), (DIRECTORY, QUARANTINE))
    try:
        for name in _names(quarantine):
            run = Place(str(base), (*quarantine.parts, name))
            if str(base) == root:
                yield _look(run)
                continue
            inner = (Place(str(base), (*run.parts, one)) for one in _names(run))
            yield from (_look(one) for one in inner if _manifest(one).get("root") == root)
    except FileNotFoundError:
        return
    except (OSError, QuarantineError) as error:
        yield QuarantineLook(str(quarantine.directory), "", None, 0, 0, reason_text(error))


def _names(place: Place) -> list[str]:
    with opened(place) as directory:
        return sorted(os.listdir(directory))  # noqa: PTH208  # pathlib knows no descriptors


def _look(place: Place) -> QuarantineLook:
    try:
        found, said = contents(place), _manifest(place)
    except (OSError, QuarantineError) as error:
        return QuarantineLook(str(place.directory), "", None, 0, 0, reason_text(error))
    until_ms = said.get("until_ms")
    return QuarantineLook(
        directory=str(place.directory),
        run_key=str(said.get("run_key", "")),
        until_ms=until_ms if isinstance(until_ms, int) else None,
        files=found.files,
        size_bytes=found.size_bytes,
    )


def _manifest(place: Place) -> dict[str, object]:
    """Return what a run's manifest says; nothing where it is torn or missing."""
    with suppress(FileNotFoundError, ValueError), opened(place) as directory:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(MANIFEST, flags, dir_fd=directory), "rb") as file:
            said = json.loads(file.read(_LONGEST_MANIFEST_BYTES))
            return said if isinstance(said, dict) else {}
    return {}
