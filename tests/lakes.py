"""Lakes of tests: made where a store has none yet, and where on disk the files of receipts are."""

from __future__ import annotations

from pathlib import Path

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import proven_files
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move.making import make_lake
from storage_engine.model.proof.receipt import Receipt
from storage_engine.retention.store.managed_store import ManagedStore


def make_lakes(store: ManagedStore) -> ManagedStore:
    """Make a store's lakes, as ``storage-engine init-lake --conn-id`` does: no step makes one."""
    for config in store.lakes:
        make_lake(config, store.broker)
    return store


def damage(path: Path) -> None:
    """Change one bit of a file, so that its length says nothing."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def path_of(lake: Lake, receipt: Receipt, number: int = 0) -> Path:
    """Return where one of the files that a receipt rests on lies."""
    path = local_path(proven_files(lake.messages(), receipt)[number].location)
    assert path is not None
    return path
