"""What is said where a store is not at the place, or under the name, by which it is known."""

from __future__ import annotations

import shlex

from storage_engine.exceptions import StoreIdentityError
from storage_engine.journal.records import StoreRecord

_OF_AIRFLOW = "A store of Airflow is named by --conn-id."


def moved(place: str, store_id: str, known_at: str, name: str) -> StoreIdentityError:
    """Return the error for a stamped store at another place than it is known at.

    :param known_at: who knows it where, as the end of "expected the store where".
    :param name: by which it is to be known here.
    """
    return StoreIdentityError(
        f"{place}: expected the store where {known_at}, found store {store_id} here: it was moved, or is a "
        f"copy. Nothing was changed. If it was moved, run {move_command(name)} on it; if it is a copy, "
        f"storage-engine stamp --new. {_OF_AIRFLOW}"
    )


def named_anew(place: str, store_id: str, known_at: str, name: str) -> StoreIdentityError:
    """Return the error for a store whose very directories another file names.

    The parameters are as of :func:`moved`.
    """
    return StoreIdentityError(
        f"{place}: expected the store where {known_at}, found that this file names the very directories of "
        f"store {store_id}. Nothing was changed. If the file takes the other one's place, run "
        f"{move_command(name)} on it; otherwise name the store by the other file. {_OF_AIRFLOW}"
    )


def no_copy(place: str, store_id: str, stamped_at: str, name: str) -> StoreIdentityError:
    """Return the error for a store's very directories that were to become another store.

    :param name: by which it is to be known here.
    """
    return StoreIdentityError(
        f"{place}: expected a copy of a store, found the very directories of store {store_id}, which was "
        f"stamped at {stamped_at}: they would be two stores. Nothing was changed. Run {move_command(name)} "
        f"on it. {_OF_AIRFLOW}"
    )


def renamed(place: str, known: str | None, name: str) -> StoreIdentityError:
    """Return the error for a known store under another name than it is known by."""
    return StoreIdentityError(
        f"{place}: expected store {known!r}, as the journal calls the store at this place, found it under "
        f"the name {name!r}. Nothing was changed. If it was renamed, run {move_command(name)} on it, with "
        "--conn-id if it is a store of Airflow; otherwise use the name that it has."
    )


def name_taken(place: str, name: str, other: StoreRecord) -> StoreIdentityError:
    """Return the error for a name that another store has in the journal."""
    return _taken(place, name, other.store_id, f"at {other.real_path}")


def name_taken_in_lake(place: str, name: str, store_id: str, root: str) -> StoreIdentityError:
    """Return the error for a name that a lake knows for another store."""
    return _taken(place, name, store_id, f"of which the lake has segments from {root}")


def _taken(place: str, name: str, store_id: str, where: str) -> StoreIdentityError:
    return StoreIdentityError(
        f"{place}: expected a name that no other store has, found {name!r}, which is store {store_id}, "
        f"{where}. Nothing was changed. If this is another store, give it a name of its own: by --name at a "
        "shell, in Airflow as the id of its connection. If it is that store, and its stamp was lost, run "
        f"storage-engine stamp --store-id {store_id} on it."
    )


def move_command(name: str) -> str:
    """Return the command by which a store is known under a name, without the place."""
    return f"storage-engine move {shlex.quote(name)}"
