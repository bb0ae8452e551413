"""What is kept of a store must not fill a disk that its running broker writes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url

from storage_engine.exceptions import BadInputError
from storage_engine.lake.config import LakeConfig
from storage_engine.retention.managed_store import ManagedStore


def check_disks(
    store: ManagedStore, data_paths: Sequence[Path], temporary: Mapping[str, Path] | None = None
) -> None:
    """Make sure that lake, journal, reports and temporary files lie on no disk of a running broker.

    What isn't there yet would lie on the disk of the directory above it.

    :param data_paths: where the broker writes.
    :param temporary: directories that receive temporary files, by what they are.
    :raises BadInputError: something does, and the store's settings don't allow it; names all that does.
    """
    if store.live is None or store.live.allow_same_disk:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    shared = [
        f"{what} ({path}) with {disks[_device(path)]}"
        for what, path in {**dict(_kept(store)), **(temporary or {})}.items()
        if _device(path) in disks
    ]
    if shared:
        raise BadInputError(
            f"{store.root}: expected nothing of ours on a disk of its running broker, which stops taking "
            f"messages when that disk is full; found on one disk: {', '.join(shared)}. Nothing was changed. "
            "Put them on another disk, or allow it by name: allow_same_disk in the connection, "
            "--allow-same-disk on the command line."
        )


def _kept(store: ManagedStore) -> Iterator[tuple[str, Path]]:
    """Every local place that is written to for a store."""
    for name, lake in zip(("lake", "second lake"), store.lakes, strict=False):
        yield from _of_lake(name, lake)
    if (journal := _sqlite_file(store.journal_url)) is not None:
        yield "journal", journal
    yield "reports", Path(store.report_dir)


def _of_lake(name: str, lake: LakeConfig) -> Iterator[tuple[str, Path]]:
    warehouse = lake.properties.get("warehouse", "")
    if warehouse.startswith(("/", "file:")):
        yield f"{name} warehouse", Path(unquote(urlsplit(warehouse).path))
    if (catalog := _sqlite_file(lake.properties.get("uri", ""))) is not None:
        yield f"{name} catalog", catalog


def _sqlite_file(url: str) -> Path | None:
    if not url.startswith("sqlite"):
        return None
    database = make_url(url).database
    return Path(database) if database else None


def _device(path: Path) -> int:
    """The file system that ``path`` lies on, or would."""
    for place in (path, *path.absolute().parents):
        try:
            return place.stat().st_dev
        except FileNotFoundError:
            continue
    return Path("/").stat().st_dev
