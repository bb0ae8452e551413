"""Checks that journals, reports and exports are neither on a running broker's disks nor among its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.nesting import (
    inside_store,
    local_directories,
    local_places,
    refuse_inside_store,
    sqlite_file,
)
from storage_engine.model.broker.broker_store import BrokerStore, process_of
from storage_engine.retention.store.managed_store import ManagedStore


def checked_data_paths(
    store: ManagedStore, broker: BrokerStore, *, any_place: bool = False
) -> tuple[Path, ...]:
    """Return the directories that a store's broker writes to, after a check of where our own files are.

    :param any_place: skip the check, for a caller that writes nothing.
    :raises BadInputError: our files are in a wrong place, as in :func:`check_places` and :func:`check_disks`.
    :raises BrokerPackageError: the broker's package doesn't name its directories.
    """
    data_paths = tuple(broker.data_paths)
    if not any_place:
        check_places(store, data_paths)
        check_disks(store, data_paths)
    return data_paths


def check_disks(
    store: ManagedStore, data_paths: Sequence[Path], temporary: Mapping[str, Path] | None = None
) -> None:
    """Make sure that lake, journal, reports and temporary files are not on a disk of a running broker.

    A missing directory counts as on the disk of the directory above it.

    :param temporary: directories for temporary files, by their purpose.
    :raises BadInputError: a place is on such a disk, and the settings don't allow it. The error names all.
    """
    if store.may_share_disks:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    shared = [
        f"{kind} ({path}) with {disks[_device(path)]}"
        for kind, path in {**{kind: path for kind, path, _ in _places(store)}, **(temporary or {})}.items()
        if _device(path) in disks
    ]
    if shared:
        raise BadInputError(
            f"{store.root}: expected none of our files on a disk of its running broker, which stops taking "
            f"messages when that disk is full; found on one disk: {', '.join(shared)}. Nothing was changed. "
            "Put them on another disk, or allow it by name: allow_same_disk in the connection, "
            "--allow-same-disk on the command line."
        )


def shared_disks(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[tuple[str, Path], ...]:
    """Return lakes, journals and reports on a disk that the broker writes to, each with its kind and path."""
    disks = {_device(path) for path in data_paths}
    return tuple((kind, path) for kind, path, _ in _places(store) if _device(path) in disks)


def check_new_lake(store: ManagedStore, lake: LakeConfig, data_paths: Sequence[Path]) -> None:
    """Make sure that a new lake won't be on a disk of its store's broker, running or stopped.

    :raises BadInputError: it would be, and the store's settings don't allow it; nothing was created.
    """
    if store.live is not None and store.live.allow_same_disk:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    for kind, path in local_places(lake).items():
        if (owner := disks.get(_device(path))) is not None:
            raise BadInputError(
                f"lake {lake.location}: expected a lake on another disk than its store's, found the {kind} "
                f"({path}) on the same disk as {owner}. The lake would fill the disk that needs space, and "
                "be lost with that disk. Nothing was created. Put it on another disk, or allow it by name: "
                "--allow-same-disk."
            )


def shared_disk_notice(store: ManagedStore, broker: BrokerStore, data_paths: Sequence[Path]) -> str:
    """Return a notice for a person who manages a store by its files while its broker runs.

    If the running broker was named, :func:`check_disks` refuses such a place instead.

    :return: the notice, or "" if none of our files is on its disks or no running broker was found.
    """
    shared = () if store.is_live else shared_disks(store, data_paths)
    if not shared or not process_of(broker).user():
        return ""
    places = ", ".join(f"{name} ({path})" for name, path in shared)
    return (
        f"on a disk that the running broker writes to: {places}; it stops taking messages when that disk is "
        "full, so put these on another disk"
    )


def check_places(store: ManagedStore, data_paths: Sequence[Path]) -> None:
    """Make sure that lake, journal and reports are in no store's root, and not among the broker's files.

    :raises BadInputError: one of them is; nothing was changed.
    """
    places = {kind: directory for kind, _, directory in _places(store)}
    refuse_inside_store(places)
    root = Path(store.real_root)
    own_paths = [path for path in map(_real, data_paths) if path != root]
    for kind, place in places.items():
        real = _real(place)
        if real == root or any(real.is_relative_to(path) for path in own_paths):
            raise inside_store(kind, place, root)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _places(store: ManagedStore) -> Iterator[tuple[str, Path, Path]]:
    """Yield each local place that we write to for a store: its kind, its path, and its directory."""
    for name, lake in zip(("lake", "second lake"), store.lakes, strict=False):
        directories = local_directories(lake)
        for kind, path in local_places(lake).items():
            yield f"{name} {kind}", path, directories[kind]
    if (journal := sqlite_file(store.journal_url)) is not None:
        yield "journal", journal, journal.parent
    yield "reports", Path(store.report_dir), Path(store.report_dir)


def _device(path: Path) -> int:
    """Return the device of ``path``, or of the nearest directory above it if it is missing."""
    for place in (path, *path.absolute().parents):
        try:
            return place.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
    return Path("/").stat().st_dev
