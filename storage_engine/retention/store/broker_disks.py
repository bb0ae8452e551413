"""Check that journals, reports and exports lie neither on a running broker's disks nor among its files."""

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
    """Return where a store's broker writes, which is nowhere where we do.

    :param any_place: that is left unchecked, for who writes nothing.
    :raises BadInputError: as :func:`check_places` and :func:`check_disks` do.
    :raises BrokerPackageError: its package can't tell.
    """
    data_paths = tuple(broker.data_paths)
    if not any_place:
        check_places(store, data_paths)
        check_disks(store, data_paths)
    return data_paths


def check_disks(
    store: ManagedStore, data_paths: Sequence[Path], temporary: Mapping[str, Path] | None = None
) -> None:
    """Make sure that lake, journal, reports and temporary files lie on no disk of a running broker.

    What isn't there yet would lie on the disk of the directory above it.

    :param data_paths: where the broker writes.
    :param temporary: directories that receive temporary files, by their purpose.
    :raises BadInputError: something does, and the store's settings don't allow it; names all that does.
    """
    if store.may_share_disks:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    shared = [
        f"{what} ({path}) with {disks[_device(path)]}"
        for what, path in {**{what: path for what, path, _ in _kept(store)}, **(temporary or {})}.items()
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
    """Return the lakes, journals and reports on a disk that the broker writes to: what each is, and where.

    :param data_paths: where the broker writes.
    """
    disks = {_device(path) for path in data_paths}
    return tuple((what, path) for what, path, _ in _kept(store) if _device(path) in disks)


def check_new_lake(store: ManagedStore, lake: LakeConfig, data_paths: Sequence[Path]) -> None:
    """Make sure that a lake that is about to be made lies on no disk of its store's broker, stopped or not.

    :param data_paths: where the broker writes.
    :raises BadInputError: it does, and the store's settings don't allow it; nothing was created.
    """
    if store.live is not None and store.live.allow_same_disk:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    for what, path in local_places(lake).items():
        if (other := disks.get(_device(path))) is not None:
            raise BadInputError(
                f"lake {lake.location}: expected a lake on another disk than its store's, found the {what} "
                f"({path}) on that of {other}: it fills the disk that it is to free, and is lost with it. "
                "Nothing was created. Put it on another disk, or allow it by name: --allow-same-disk."
            )


def shared_disk_notice(store: ManagedStore, broker: BrokerStore, data_paths: Sequence[Path]) -> str:
    """Return a notice for a person who manages a store by its files while its broker runs.

    :func:`check_disks` refuses that where the broker was named, which only then can be allowed by name.

    :return: "": nothing; none of our files is on its disks, or no broker is seen to run.
    """
    if store.is_live or not (shared := shared_disks(store, data_paths)):
        return ""
    if not process_of(broker).user():
        return ""
    what = ", ".join(f"{name} ({path})" for name, path in shared)
    return (
        f"on a disk that the running broker writes to: {what}; it stops taking messages when that disk is "
        "full, so put these on another disk"
    )


def check_places(store: ManagedStore, data_paths: Sequence[Path]) -> None:
    """Make sure that lake, journal and reports lie in no store's root, and not among its own files.

    :param data_paths: where the store's broker writes.
    :raises BadInputError: one does; nothing was changed.
    """
    places = {what: directory for what, _, directory in _kept(store)}
    refuse_inside_store(places)
    root = Path(store.real_root)
    own = [path for path in map(_real, data_paths) if path != root]
    for what, place in places.items():
        real = _real(place)
        if real == root or any(real.is_relative_to(path) for path in own):
            raise inside_store(what, place, root)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _kept(store: ManagedStore) -> Iterator[tuple[str, Path, Path]]:
    """Every local place that is written to for a store: what it is, its path, and the directory of it."""
    for name, lake in zip(("lake", "second lake"), store.lakes, strict=False):
        directories = local_directories(lake)
        for what, path in local_places(lake).items():
            yield f"{name} {what}", path, directories[what]
    if (journal := sqlite_file(store.journal_url)) is not None:
        yield "journal", journal, journal.parent
    yield "reports", Path(store.report_dir), Path(store.report_dir)


def _device(path: Path) -> int:
    """The file system that ``path`` lies on, or would."""
    for place in (path, *path.absolute().parents):
        try:
            return place.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
    return Path("/").stat().st_dev
