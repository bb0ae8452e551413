"""Which stores of a lake a hold covers. Until it is lifted nothing of them is removed for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.keep.acts import policy_of
from storage_engine.model.keep.rules import Hold

_STORE_FOLDER = "store_id="


@dataclass(frozen=True, slots=True)
class HeldStores:
    """
    :param holds: that are in force.
    :param names: by store, each name that receipts say of it, the newest last.
    """

    holds: tuple[Hold, ...]
    names: Mapping[str, tuple[str, ...]]

    def holds_of(self, store_id: str, *more_names: str) -> tuple[Hold, ...]:
        """Return the holds that cover something of a store.

        :param more_names: that somebody else knows of it.
        """
        names = (*self.names.get(store_id, ()), *more_names)
        return tuple(hold for hold in self.holds if hold.covers_store(store_id, names))

    def holds_file(self, inside: str) -> bool:
        """Return whether a data file, or one of receipts, is held; by its store, for it may have every topic.

        :param inside: its path, relative to its table's location.
        """
        folder, *below = inside.split("/")
        if folder != "data":
            return False
        stores = [part.removeprefix(_STORE_FOLDER) for part in below if part.startswith(_STORE_FOLDER)]
        return bool(self.holds_of(stores[0]) if stores else self.holds)


def read_held_stores(lake: Lake) -> HeldStores:
    """Return which stores of a lake are held now.

    :raises LakeUnavailableError: the lake or its acts can't be read: then nothing may be removed.
    """
    holds = policy_of(read_acts(lake)).holds
    return HeldStores(holds, read_store_names(lake) if holds else {})


def read_store_names(lake: Lake) -> dict[str, tuple[str, ...]]:
    """Return by store each name that receipts say of it, the newest last.

    :raises LakeUnavailableError: the receipts can't be read.
    """
    table = lake.segments()
    with metadata_errors(table.location(), "read receipts"):
        rows = table.scan(selected_fields=("store_id", "store_name", "sequence")).to_arrow()
    return newest_last(rows.sort_by("sequence").select(["store_id", "store_name"]).to_pylist())


def newest_last(rows: Iterable[Mapping[str, str | None]]) -> dict[str, tuple[str, ...]]:
    """Return names by store. Pure.

    :param rows: ``store_id`` and ``store_name``, the oldest first.
    """
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        of_store = names.setdefault(str(row["store_id"]), {})
        if name := row["store_name"]:
            of_store.pop(name, None)
            of_store[name] = None
    return {store_id: tuple(of_store) for store_id, of_store in names.items()}
