"""Places for a quarantine: on the file system of the files, and not among a broker's own files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import find_broker, store_around
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.wording import bytes_text, reason_text
from storage_engine.exceptions import BadInputError, QuarantineError
from storage_engine.model.broker.broker_words import Aside
from storage_engine.retention.quarantine.tree import MANIFEST, Place, contents, opened
from storage_engine.retention.store.managed_store import ManagedStore, report_name, short_hash

QUARANTINE = "quarantine"
"""Name of a quarantine's directory inside our own.

In a store's root it has one directory for each run, elsewhere one for each store and run.
"""

_LONGEST_NAME = 100


def bases(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories that may have a store's quarantines.

    These are its root, then those above its other directories. If the broker tolerates no foreign files, they
    are the directories that a person named.

    :param data_paths: the directories that its broker writes to.
    """
    if find_broker(store.broker).aside is Aside.OUTSIDE:
        return tuple(dict.fromkeys(_real(Path(path)) for path in store.policy.undo_directories))
    root = Path(store.real_root)
    directories = [path for path in map(_real, data_paths) if path != root]
    above = dict.fromkeys(path.parent for path in directories if not path.is_relative_to(root))
    return (
        root,
        *(
            base
            for base in above
            if not any(base.is_relative_to(path) for path in directories)
            and store_around(base / DIRECTORY) is None
        ),
    )


def choose_places(
    store: ManagedStore,
    data_paths: Sequence[Path],
    store_id: str,
    run_key: str,
    paths: Iterable[Path],
    known: Sequence[Place] = (),
) -> Mapping[Path, Place]:
    """Choose, by a file's directory, the place where files are set aside. Changes nothing.

    :param known: places that the run already has, even if a person names other directories by now.
    :raises BadInputError: a directory's file system has no place, or a named directory can't be one.
    """
    outside = find_broker(store.broker).aside is Aside.OUTSIDE
    if outside:
        check_undo_directories(store, data_paths)
    candidates = dict.fromkeys((*(Path(place.base) for place in known), *bases(store, data_paths)))
    places: dict[Path, Place] = {}
    for directory in dict.fromkeys(path.parent for path in paths):
        real = _real(directory)
        base = next(
            (base for base in candidates if (outside or real.is_relative_to(base)) and renames(real, base)),
            None,
        )
        if base is None:
            remedy = "Mount the directory above it instead"
            if outside:
                remedy = "Name one there, outside every log directory, with --undo-directory"
            raise BadInputError(
                f"{directory}: expected a place for a quarantine on its own file system, "
                f"{'in' if outside else 'below'} {' or '.join(map(str, candidates)) or 'no directory'}, "
                "found none: files can't be moved there without a copy. Nothing was changed. "
                f"{remedy}, or leave undo_window_hours empty."
            )
        parts = parts_of(store, base, store_id, run_key)
        places[directory] = Place(str(base), parts, "/" if outside else "")
    return places


def check_undo_directories(store: ManagedStore, data_paths: Sequence[Path]) -> None:
    """Make sure that files can be set aside in the directories that a person named. Changes nothing.

    :raises BadInputError: a directory is missing, a link, among a broker's files, on another file system, or
        can't be written to.
    """
    own_paths = [path for path in map(_real, data_paths) if path.is_dir()]
    for path in map(Path, store.policy.undo_directories):
        if fault := _undo_directory_fault(path, own_paths):
            raise BadInputError(
                f"{path}: expected a directory for an undo, outside every log directory and on the file "
                f"system of one, found {fault}. Nothing was changed. Name another one: --undo-directory, or "
                "undo_directories in the policy."
            )


def _undo_directory_fault(path: Path, data_paths: Sequence[Path]) -> str:
    """Return why files can't be set aside in a directory, or "" if they can."""
    if path.is_symlink():
        return f"a symbolic link to {path.readlink()}"
    if not path.is_dir():
        return "none; is its disk mounted?"
    real = _real(path)
    inside = next((data_path for data_path in data_paths if real.is_relative_to(data_path)), None)
    if inside := inside or store_around(real / DIRECTORY):
        return f"it inside {inside}, where the broker tolerates no other files"
    if not any(renames(data_path, real) for data_path in data_paths):
        return "it on another file system than all of them"
    # Checked for the effective user, as a rename is.
    may_write = os.access(real, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)
    return "" if may_write else "it not writable"


def parts_of(store: ManagedStore, base: Path, store_id: str, run_key: str) -> tuple[str, ...]:
    """Return the names from a base to a run's directory. Directories of other stores may be beside it."""
    name = report_name(run_key)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{short_hash(run_key)}"
    if str(base) == store.real_root:
        return (DIRECTORY, QUARANTINE, name)
    return (DIRECTORY, QUARANTINE, store_id, name)


def renames(directory: Path, base: Path) -> bool:
    """Return whether a file can be renamed from one directory into another.

    A rename of a missing name is tried. Between two mounts, even of one file system, the kernel refuses it
    before it looks for the name. So no foreign file is ever made among a broker's files.
    """
    above = (base, base / DIRECTORY, base / DIRECTORY / QUARANTINE)
    target = next((path for path in reversed(above) if path.is_dir()), None)
    if target is None or directory.stat().st_dev != target.stat().st_dev:
        return False
    name = durable.temporary_name(QUARANTINE)
    try:
        os.rename(directory / name, target / name)  # noqa: PTH104  # what is tried is the call
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


_LONGEST_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class QuarantineLook:
    """A run's quarantine, as it was found on disk.

    :param run_key: the run's key by the manifest, or "" if the manifest can't be read.
    :param until_ms: end of its window by the manifest, in milliseconds since the epoch, or None if unknown.
    :param error: why it can't be read, or "" if it can.
    """

    directory: str
    run_key: str
    until_ms: int | None
    files: int
    size_bytes: int
    error: str = ""


def look_at_quarantines(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[QuarantineLook, ...]:
    """Look at the quarantines below a store's root and beside its other directories."""
    return tuple(look for base in bases(store, data_paths) for look in _look_below(base, store.real_root))


def unknown_quarantines(found: Sequence[QuarantineLook], known: Iterable[str]) -> tuple[QuarantineLook, ...]:
    """Return the quarantines that no journal knows, so that no run ever empties them. Pure.

    Their journal was lost, or replaced by an older copy.

    :param known: directories of the quarantines that a journal knows.
    """
    known_paths = frozenset(known)
    return tuple(look for look in found if look.directory not in known_paths and (look.files or look.error))


def unknown_text(look: QuarantineLook) -> tuple[str, str]:
    """Return clauses on a quarantine that no journal knows, and on the remedy."""
    content = f"{bytes_text(look.size_bytes)}, set aside by run {look.run_key or 'unknown'}"
    return (
        f"{content}, are in {look.directory}. The journal doesn't know that quarantine, so no run empties it",
        Text(
            "with the journal of that run, ",
            Command("undo"),
            " brings the files back. To remove them, after verify has found them in the lake: rm -r "
            f"{shlex.quote(look.directory)}",
        ),
    )


def unknown_notices(store: ManagedStore, data_paths: Sequence[Path], known: Iterable[str]) -> tuple[str, ...]:
    """Return the quarantines that no journal knows, as sentences for a plan or a list of runs."""
    looks = look_at_quarantines(store, data_paths)
    return tuple(join_texts("; ", unknown_text(look)) for look in unknown_quarantines(looks, known))


def _look_below(base: Path, root: str) -> Iterator[QuarantineLook]:
    """Yield the runs in a base's quarantine, but outside of the store's root only the runs of this store."""
    if base.is_file():  # a store may be named by a file of its broker, below which nothing lies
        return
    quarantine = Place(str(base), (DIRECTORY, QUARANTINE))
    try:
        for name in _names(quarantine):
            run = Place(str(base), (*quarantine.parts, name))
            if str(base) == root:
                yield _look(run)
                continue
            inner = (Place(str(base), (*run.parts, name)) for name in _names(run))
            yield from (_look(place) for place in inner if _manifest(place).get("root") == root)
    except FileNotFoundError:
        return
    except (OSError, QuarantineError) as error:
        yield QuarantineLook(str(quarantine.directory), "", None, 0, 0, reason_text(error))


def _names(place: Place) -> list[str]:
    with opened(place) as directory:
        return sorted(os.listdir(directory))  # noqa: PTH208  # pathlib knows no descriptors


def _look(place: Place) -> QuarantineLook:
    try:
        total, manifest = contents(place), _manifest(place)
    except (OSError, QuarantineError) as error:
        return QuarantineLook(str(place.directory), "", None, 0, 0, reason_text(error))
    until_ms = manifest.get("until_ms")
    return QuarantineLook(
        directory=str(place.directory),
        run_key=str(manifest.get("run_key", "")),
        until_ms=until_ms if isinstance(until_ms, int) else None,
        files=total.files,
        size_bytes=total.size_bytes,
    )


def _manifest(place: Place) -> dict[str, object]:
    """Return the contents of a run's manifest, or nothing if it is torn or missing."""
    with suppress(FileNotFoundError, ValueError), opened(place) as directory:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(MANIFEST, flags, dir_fd=directory), "rb") as file:
            manifest = json.loads(file.read(_LONGEST_MANIFEST_BYTES))
            return manifest if isinstance(manifest, dict) else {}
    return {}
