"""A store's stamp: a file in its own directory that says which store it is, and what its lakes held.

Journal and lake may be lost, or put back from a backup, together; the stamp lies with the segments. It is
written when something was archived, and again before segments are deleted: whatever was deleted on the proof
of a lake, that lake has to have still. Nothing in it is secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine import durable
from storage_engine.exceptions import BadInputError, StoreIdentityError
from storage_engine.host import this_host
from storage_engine.model.heads import LakeHead
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.lineages import Lineages
from storage_engine.own_directory import DIRECTORY, locked, own_directory
from storage_engine.untrusted import MALFORMED, read_file

NAME = "stamp.json"

_MAX_BYTES = 1 << 20

_LOCK = "stamp.lock"


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    :param machine: on which it was written.
    :param root: real path of the store's root on that machine.
    :param shield: the store may have a shield; releases that know none refuse the store then.
    :param log_lineages: by name, of logs that have a lineage of their own; likewise.
    """

    store_id: str
    lineage: int
    machine: str
    root: str
    lakes: tuple[LakeHead, ...] = ()
    shield: bool = False
    log_lineages: Mapping[str, int] = field(default_factory=dict)

    @property
    def lineages(self) -> Lineages:
        """The lineage of each log."""
        return Lineages(self.lineage, self.log_lineages)


def read_stamp(root: str) -> Stamp | None:
    """Return the stamp in a store's root; None: it was never stamped.

    :raises StoreIdentityError: there is one that can't be read or understood, or its directory is a symbolic
        link.
    """
    path = stamp_path(root)
    try:
        with own_directory(root) as directory:
            data = read_file(path, _MAX_BYTES, follow_links=False, dir_fd=directory)
        return from_jsonable(Stamp, json.loads(data), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.parent.is_symlink():
            raise StoreIdentityError(
                f"{path.parent}: expected a directory of the store itself, found a symbolic link, which is "
                "never followed. Nothing was changed. Put the directory that it points to in its place, or "
                "remove the link and run storage-engine stamp, which writes the stamp again."
            ) from error
        return None
    except (OSError, BadInputError, *MALFORMED) as error:
        raise StoreIdentityError(
            f"{path}: expected the stamp of storage-engine, found something that can't be read ({error}). "
            "Nothing was changed. Bring the file back from a backup; if there is none, remove it and run "
            "storage-engine stamp, which writes it again from what journal and lakes know; --conn-id names a "
            "store of Airflow."
        ) from error


def update_stamp(root: str, store_id: str, lineages: Lineages, heads: Iterable[LakeHead]) -> Stamp:
    """Write down what lakes hold of a store, durably. What the stamp says of other lakes stays.

    Of one lake the longer chain counts: two processes may archive at once.

    :param root: real path of the store's root.
    :raises OSError: the directory can't be written; the stamp before is as it was.
    :raises StoreIdentityError: there is a stamp of another store, or one that can't be read.
    """
    with locked(root, _LOCK) as directory:
        found = read_stamp(root)
        if found is not None and found.store_id != store_id:
            raise StoreIdentityError(
                f"{stamp_path(root)}: expected the stamp of store {store_id}, found that of "
                f"{found.store_id}. Nothing was changed. Find out what was put into this directory."
            )
        lakes = {head.lake_id: head for head in (found.lakes if found else ())}
        for head in heads:
            known = lakes.get(head.lake_id)
            if (
                known is None
                or known.sequence < head.sequence
                or (known.sequence, known.row_hash) == (head.sequence, head.row_hash)
            ):
                lakes[head.lake_id] = head
            elif known.sequence == head.sequence:
                raise StoreIdentityError(
                    f"{stamp_path(root)}: expected receipt number {known.sequence} of lake {known.lake_id} "
                    f"with the hash {known.row_hash}, found {head.row_hash}: the lake has gone on from an "
                    "older copy. Nothing was changed. Run storage-engine lake rebuild."
                )
        newest = lineages.merged(found.lineages) if found else lineages
        shield = found is not None and found.shield
        all_heads = tuple(lakes.values())
        stamp = Stamp(store_id, newest.whole, this_host(), root, all_heads, shield, newest.of_logs)
        if stamp != found:
            _write(directory, stamp)
        return stamp


def replace_stamp(root: str, stamp: Stamp) -> None:
    """Write a stamp durably, whatever was there before: a person has decided.

    :raises OSError: the directory can't be written; the stamp before is as it was.
    """
    with locked(root, _LOCK) as directory:
        _write(directory, replace(stamp, machine=this_host(), root=root))


def rewrite_place(root: str) -> None:
    """Write durably into a store's stamp that it lies here, on this machine; a store without one has none.

    :raises OSError: the directory can't be written; the stamp before is as it was.
    """
    with locked(root, _LOCK) as directory:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(directory, replace(stamp, machine=this_host(), root=root))


def mark_shield(root: str, store_id: str, lineages: Lineages, shield: bool) -> None:
    """Write down durably whether a store may have a shield, before one is made and after one was removed.

    :param root: real path of the store's root.
    :raises OSError: the directory can't be written; the stamp before is as it was.
    :raises StoreIdentityError: there is a stamp of another store, or one that can't be read.
    """
    stamp = read_stamp(root)
    if stamp is None and shield:
        stamp = update_stamp(root, store_id, lineages, ())
    if stamp is None or stamp.shield == shield:
        return
    with locked(root, _LOCK) as directory:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(directory, replace(stamp, shield=shield))


def stamp_path(root: str) -> Path:
    """Return where a store's stamp is."""
    return Path(root) / DIRECTORY / NAME


def _write(directory: int, stamp: Stamp) -> None:
    said = to_jsonable(stamp)
    # What an older release doesn't know it refuses, so it is there only where it counts.
    for name in ("shield", "log_lineages"):
        if not said[name]:
            del said[name]
    content = json.dumps(said, indent=1).encode()
    durable.write_file(NAME, content, dir_fd=directory, shared=True)
