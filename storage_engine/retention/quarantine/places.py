"""Where a quarantine may lie: on the file system of what it takes, and not among a broker's own files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from storage_engine import durable
from storage_engine.brokers import store_around
from storage_engine.exceptions import BadInputError
from storage_engine.own_directory import DIRECTORY
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.quarantine.tree import Place
from storage_engine.retention.report_files import report_name, short_hash

QUARANTINE = "quarantine"
"""In our directory; in a store's root with one directory a run, elsewhere with one a store and run."""

_LONGEST_NAME = 100


def bases(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories that may hold quarantines of a store: its root, then those above what it keeps
    elsewhere.

    :param data_paths: where its broker writes.
    """
    root = Path(store.real_root)
    own = [path for path in map(_real, data_paths) if path != root]
    above = dict.fromkeys(path.parent for path in own if not path.is_relative_to(root))
    return (
        root,
        *(
            base
            for base in above
            if not any(base.is_relative_to(path) for path in own) and store_around(base / DIRECTORY) is None
        ),
    )


def choose_places(
    store: ManagedStore, data_paths: Sequence[Path], store_id: str, run_key: str, paths: Iterable[Path]
) -> Mapping[Path, Place]:
    """Choose where files are to lie meanwhile, by the directory that each is in. Changes nothing.

    :param data_paths: where the store's broker writes.
    :param paths: the files.
    :raises BadInputError: for some directory there is no place on its file system.
    """
    candidates = bases(store, data_paths)
    found: dict[Path, Place] = {}
    for directory in dict.fromkeys(path.parent for path in paths):
        real = _real(directory)
        base = next((base for base in candidates if real.is_relative_to(base) and _renames(real, base)), None)
        if base is None:
            raise BadInputError(
                f"{directory}: expected a place for a quarantine on its own file system, below "
                f"{' or '.join(map(str, candidates))}, found none: files can't be moved there without a "
                "copy. Nothing was changed. Mount the directory above it instead, or leave "
                "undo_window_hours empty."
            )
        found[directory] = Place(str(base), parts_of(store, base, store_id, run_key))
    return found


def parts_of(store: ManagedStore, base: Path, store_id: str, run_key: str) -> tuple[str, ...]:
    """Return the names from a base to a run's directory: those of other stores may be beside it."""
    name = report_name(run_key)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{short_hash(run_key)}"
    if str(base) == store.real_root:
        return (DIRECTORY, QUARANTINE, name)
    return (DIRECTORY, QUARANTINE, store_id, name)


def _renames(directory: Path, base: Path) -> bool:
    """Tell whether a file can be renamed from one directory into another.

    The rename that is tried is of a name that nothing has: between two mounts, were they of one file system,
    the kernel refuses it before it looks for the name. Nothing strange ever lies among a broker's files.
    """
    above = (base, base / DIRECTORY, base / DIRECTORY / QUARANTINE)
    target = next(path for path in reversed(above) if path.is_dir())
    if directory.stat().st_dev != target.stat().st_dev:
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
