"""Which stores of a lake a hold covers. Until it is lifted nothing of them is removed for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_engine.brokers import store_called
from storage_engine.lake.acts.act_files import Acts, read_acts
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.storage.errors import metadata_errors
from storage_engine.model.keep.acts import policy_of
from storage_engine.model.keep.rules import Hold

_STORE_FOLDER = "store_id="


@dataclass(frozen=True, slots=True)
class HeldStores:
    """
    :param holds: that are in force.
    :param names: by store, each name that it had, by its receipts; the newest last.
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
    return held_stores(lake, read_acts(lake))


def held_stores(lake: Lake, acts: Acts) -> HeldStores:
    """The same by acts that were read.

    :raises LakeUnavailableError: the receipts can't be read.
    """
    holds = policy_of(acts).holds
    return HeldStores(holds, read_store_names(lake) if holds else {})


def read_store_names(lake: Lake) -> dict[str, tuple[str, ...]]:
    """Return by store each name that it had, the newest last.

    The names that its places give it come before those that people gave it.

    :raises LakeUnavailableError: the receipts can't be read.
    """
    table = lake.segments()
    slot = ("store_id", "lineage", "log", "base_offset", "store_name")
    with metadata_errors(table.location(), "read receipts"):
        columns = (*slot, "broker", "store_root", "sequence")
        receipts = table.scan(selected_fields=columns).to_arrow()
    places = receipts.group_by(["store_id", "broker", "store_root"], use_threads=False).aggregate([])
    by_place = (
        (row["store_id"], store_called(None, row["broker"], row["store_root"])) for row in places.to_pylist()
    )
    # Who proves a segment again, moves it or lets it go repeats the name that its store had before.
    first = receipts.group_by(list(slot), use_threads=False).aggregate([("sequence", "min")])
    names = first.group_by(["store_id", "store_name"], use_threads=False).aggregate([("sequence_min", "max")])
    ordered = names.sort_by("sequence_min_max").to_pylist()
    given = ((row["store_id"], row["store_name"]) for row in ordered)
    return newest_last((*by_place, *given))


def newest_last(rows: Iterable[tuple[str, str | None]]) -> dict[str, tuple[str, ...]]:
    """Return names by store. Pure.

    :param rows: store and name, the oldest first; None: nobody has named it.
    """
    names: dict[str, dict[str, None]] = {}
    for store_id, name in rows:
        of_store = names.setdefault(store_id, {})
        if name:
            of_store.pop(name, None)
            of_store[name] = None
    return {store_id: tuple(of_store) for store_id, of_store in names.items()}
