"""A store's stamp: a file in the store, with the store's identity and the last receipts of its lakes.

Journal and lake may be lost, or put back from a backup, together. The stamp stays with the segments. It is
written after archiving, and again before segments are deleted. So a lake that has lost receipts of deleted
segments is recognised. Nothing in the stamp is secret.

The stamp is in our directory in the store's root. Some brokers would take our directory for a log. In their
stores the stamp is a plain hidden file in each directory that the broker names. If only some of these
directories have a stamp, a disk was replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from storage_engine.brokers import broker_of, find_broker
from storage_engine.commands import Command
from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, PLAIN_STAMP, WAIT_SECONDS, lock, locked, own_directory
from storage_engine.core.host import is_this_host, this_host
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, StoreIdentityError
from storage_engine.model.plan import RecordedPolicy
from storage_engine.model.proof.deleted_range import RunDigest
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.settings.policy import ApprovalPolicy
from storage_engine.model.store import Lineages

NAME = "stamp.json"
_LOCK = "stamp.lock"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StampPlace:
    """:param path: path of the stamp, which may be missing.
    :param directory: descriptor of the stamp's directory.
    """

    path: Path
    directory: int


def stamp_paths(root: str) -> tuple[Path, ...]:
    """Return the paths of a store's stamp: one file, or the same file in each of several directories.

    :raises BadInputError: the root is a configuration file that can't be read.
    """
    directories = _plain_directories(root)
    return tuple(path / PLAIN_STAMP for path in directories) or (Path(root) / DIRECTORY / NAME,)


@contextmanager
def opened_places(root: str) -> Iterator[tuple[StampPlace, ...]]:
    """Open the directories of a store's stamp. If the stamp has several, a missing directory is left out.

    :raises OSError: our directory is missing, can't be opened, or is a symbolic link.
    """
    with ExitStack() as opening:
        paths = stamp_paths(root)
        if not _plain_directories(root):
            yield (StampPlace(paths[0], opening.enter_context(own_directory(root))),)
            return
        places = []
        for path in paths:
            with suppress(FileNotFoundError):
                places.append(StampPlace(path, opening.enter_context(durable.opened(path.parent, _FLAGS))))
        yield tuple(places)


@contextmanager
def locked_places(root: str) -> Iterator[tuple[StampPlace, ...]]:
    """Lock a store's stamp against other processes until the block ends.

    :raises TimeoutError: another process holds the lock for too long.
    :raises OSError: a directory can't be opened or written.
    """
    with ExitStack() as opening:
        paths = stamp_paths(root)
        if not _plain_directories(root):
            yield (StampPlace(paths[0], opening.enter_context(locked(root, _LOCK))),)
            return
        places = [
            StampPlace(path, opening.enter_context(durable.opened(path.parent, _FLAGS))) for path in paths
        ]
        # All processes lock them in one order. A lock file would be one more file among the broker's.
        for place in sorted(places, key=lambda place: os.path.realpath(place.path)):
            lock(place.directory, place.path.parent, WAIT_SECONDS)
        yield tuple(places)


def real_directories(root: str) -> tuple[str, ...]:
    """Return the real paths of the directories that each have a store's stamp; empty if the root has it.

    :raises BadInputError: the root is a configuration file that can't be read.
    """
    return tuple(sorted({os.path.realpath(path) for path in _plain_directories(root)}))


def share_directories(root: str, place: str) -> bool:
    """Return whether two stores share a directory, such as when two configuration files name one node.

    If a directory can't be read, the answer is no.
    """
    with suppress(OSError, BadInputError):
        if Path(root).samefile(place):
            return True
        here, there = (_read_identities(_plain_directories(path)) for path in (root, place))
        return not here.isdisjoint(there)
    return False


def _read_identities(directories: Iterable[Path]) -> set[tuple[int, int]]:
    identities = set()
    for path in directories:
        with suppress(FileNotFoundError):
            status = path.stat()
            identities.add((status.st_dev, status.st_ino))
    return identities


def _plain_directories(root: str) -> tuple[Path, ...]:
    path = Path(root)
    return find_broker(broker_of(path)).places.stamped_directories(path) if path.is_file() else ()


_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """:param machine: machine on which it was written.
    :param root: real path of the store's root on that machine.
    :param shield: the store may have a shield. Then a release that knows no shields refuses the store.
    :param log_lineages: name of a log → its own lineage, if it differs from the store's. A release that knows
        no such lineages refuses the store.
    :param directories: real paths of the directories that each have a stamp; empty if the root has it.
    :param deletion: digest of the last run that deleted something, or None if no run did.
    :param policy: the approval that the store requires, or None. It is also here, because another journal, or
        an older copy of the journal, lacks it. A release that knows no approvals refuses the store.
    """

    store_id: str
    lineage: int
    machine: str
    root: str
    lakes: tuple[LakeHead, ...] = ()
    shield: bool = False
    log_lineages: Mapping[str, int] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    deletion: RunDigest | None = None
    policy: RecordedPolicy | None = None

    @property
    def lineages(self) -> Lineages:
        return Lineages(self.lineage, self.log_lineages)


def read_stamp(root: str) -> Stamp | None:
    """Return a store's stamp, or None if it was never stamped.

    If several files name the same store, their lakes and lineages are merged.

    :raises StoreIdentityError: a stamp can't be read or understood, its directory is a symbolic link, or the
        directories have stamps of two stores.
    :raises BadInputError: the root is a configuration file that can't be read.
    """
    return _merge_stamps(_read_all(root), root)


def stamped_ids(root: str) -> frozenset[str]:
    """Return the store ids in stamps. There are several if a new stamp is only in some directories.

    :raises StoreIdentityError: a stamp can't be read.
    """
    return frozenset(stamp.store_id for stamp in _read_all(root).values())


def is_original(stamp: Stamp, root: str) -> bool:
    """Return whether the stamp was written in one of a store's directories, and not copied there.

    A stamp from another machine counts as copied, because that can't be checked here.
    """
    if not is_this_host(stamp.machine):
        return False
    named = not set(stamp.directories).isdisjoint(real_directories(root))
    return named or share_directories(root, stamp.root)


def stamp_of_original(root: str) -> Stamp | None:
    """Return a stamp that was written in one of a store's directories, and not copied (:func:`is_original`).

    :return: None if there is no such stamp, or a stamp can't be read.
    """
    with suppress(StoreIdentityError):
        return next((stamp for stamp in _read_all(root).values() if is_original(stamp, root)), None)
    return None


def missing_stamps(root: str) -> tuple[Path, ...]:
    """Return the directories of a store that lack its stamp; empty if all of them lack it.

    :raises StoreIdentityError: a stamp can't be read, as in :func:`read_stamp`.
    """
    stamps = _read_all(root)
    missing = tuple(path.parent for path in stamp_paths(root) if path not in stamps)
    return missing if stamps else ()


def _read_all(root: str) -> Mapping[Path, Stamp]:
    """Read each existing stamp file, and return the stamps by path."""
    stamps: dict[Path, Stamp] = {}
    path = stamp_path(root)
    try:
        with opened_places(root) as places:
            for place in places:
                path = place.path
                try:
                    data = read_file(path, _MAX_BYTES, follow_links=False, dir_fd=place.directory)
                except FileNotFoundError:
                    continue
                stamps[path] = from_jsonable(Stamp, json.loads(data), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.parent.is_symlink():
            raise StoreIdentityError(
                f"{path.parent}: expected a directory of the store itself, found a symbolic link, which "
                "is never followed. Nothing was changed. Put the directory that it points to in its "
                "place, or remove the link and run ",
                Command("stamp"),
                ", which writes the stamp again.",
            ) from error
    except (OSError, BadInputError, *MALFORMED) as error:
        raise StoreIdentityError(
            f"{path}: expected the stamp of storage-engine, found something that can't be read "
            f"({reason_text(error)}). Nothing was changed. Bring the file back from a backup; if there "
            "is none, remove it and run ",
            Command("stamp"),
            ", which writes it again from what journal and lakes know; --conn-id names a store of Airflow.",
        ) from error
    return stamps


def _merge_stamps(stamps: Mapping[Path, Stamp], root: str) -> Stamp | None:
    """Merge a store's stamps. They differ if a process was killed before it had written all of them."""
    if not stamps:
        return None
    (path, first), *others = stamps.items()
    merged = first
    for other, stamp in others:
        if stamp.store_id != first.store_id:
            raise StoreIdentityError(
                f"{other}: expected the stamp of store {first.store_id}, as in {path.parent}, found "
                f"that of {stamp.store_id}: this directory is of another store. Nothing was changed. "
                "Put each directory back where it belongs; where ",
                Command("stamp"),
                " was killed, run it again.",
            )
        lineages = merged.lineages.merged(stamp.lineages)
        merged = replace(
            # After an interrupted move some stamps already have the new place.
            stamp if stamp.root == root else merged,
            lineage=lineages.whole,
            log_lineages=lineages.of_logs,
            lakes=_merge_heads(merged.lakes, stamp.lakes, other),
            shield=merged.shield or stamp.shield,
            deletion=_later(merged.deletion, stamp.deletion),
            policy=max((merged.policy, stamp.policy), key=lambda p: 0 if p is None else p.at_ms),
        )
    return merged


def _merge_heads(recorded: Iterable[LakeHead], heads: Iterable[LakeHead], path: Path) -> tuple[LakeHead, ...]:
    """Merge last receipts of lakes. For one lake the longer chain counts.

    :raises StoreIdentityError: two last receipts of one lake contradict each other.
    """
    lakes = {head.lake_id: head for head in recorded}
    for head in heads:
        before = lakes.get(head.lake_id)
        if (
            before is None
            or before.sequence < head.sequence
            or (before.sequence, before.row_hash) == (head.sequence, head.row_hash)
        ):
            lakes[head.lake_id] = head
        elif before.sequence == head.sequence:
            raise StoreIdentityError(
                f"{path}: expected receipt number {before.sequence} of lake {before.lake_id} with the hash "
                f"{before.row_hash}, found {head.row_hash}: receipts were added to an older copy of the "
                "lake. Nothing was changed. Run ",
                Command("lake rebuild"),
                ".",
            )
    return tuple(lakes.values())


def _later(left: RunDigest | None, right: RunDigest | None) -> RunDigest | None:
    """Return the digest of the later run. If both are of one run, return the digest of more events."""
    return max((left, right), key=lambda run: (-1, -1) if run is None else (run.begun_at_ms, run.event_id))


def says_otherwise(recorded: RunDigest | None, deletion: RunDigest) -> bool:
    """Return whether two digests of the same events of a run differ."""
    return recorded is not None and recorded != deletion == replace(recorded, sha256=deletion.sha256)


def update_stamp(
    root: str,
    store_id: str,
    lineages: Lineages,
    heads: Iterable[LakeHead],
    deletion: RunDigest | None = None,
    *,
    policy: RecordedPolicy | None = None,
) -> Stamp:
    """Write the lakes' last receipts of a store to its stamp, durably.

    Receipts of other lakes stay. For one lake the longer chain counts: two processes may archive at once.

    :param root: real path of the store's root.
    :param deletion: digest of the last deletion. The stamp's own digest stays if this one is None, or
        contradicts it.
    :param policy: the approval that the store requires from now on. None keeps the stamp's.
    :raises OSError: the directory can't be written; the earlier stamp is unchanged.
    :raises StoreIdentityError: there is a stamp of another store, or an unreadable one.
    """
    with locked_places(root) as places:
        current = read_stamp(root)
        if current is not None and current.store_id != store_id:
            raise StoreIdentityError(
                f"{stamp_path(root)}: expected the stamp of store {store_id}, found that of "
                f"{current.store_id}. Nothing was changed. Find out who put the other stamp here."
            )
        base = current or Stamp(store_id, lineages.whole, "", "")
        lakes = _merge_heads(base.lakes, heads, stamp_path(root))
        newest = lineages.merged(current.lineages) if current else lineages
        last = base.deletion if deletion is None or says_otherwise(base.deletion, deletion) else deletion
        asks = base.policy if policy is None else policy
        if asks is not None and asks.approval is ApprovalPolicy.NONE:
            asks = None
        written = Stamp(store_id, newest.whole, "", "", lakes, base.shield, newest.of_logs, (), last, asks)
        stamp = _place_here(written, root)
        stamps = _read_all(root)
        if any(stamps.get(place.path) != stamp for place in places):
            _write(places, stamp)
        return stamp


def replace_stamp(root: str, stamp: Stamp) -> None:
    """Write a stamp durably over any earlier one, as a person has decided.

    :raises OSError: the directory can't be written; the earlier stamp is unchanged.
    """
    with locked_places(root) as places:
        _write(places, _place_here(stamp, root))


def rewrite_place(root: str) -> None:
    """Record durably in a store's stamp that the store is here, on this machine.

    Without a stamp nothing is written.

    :raises OSError: the directory can't be written; the earlier stamp is unchanged.
    """
    with locked_places(root) as places:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(places, _place_here(stamp, root))


def _place_here(stamp: Stamp, root: str) -> Stamp:
    return replace(stamp, machine=this_host(), root=root, directories=real_directories(root))


def mark_shield(root: str, store_id: str, lineages: Lineages, shield: bool) -> None:
    """Record durably in the stamp whether a store may have a shield.

    Call this before a shield is made, and after a shield was removed.

    :param root: real path of the store's root.
    :raises OSError: the directory can't be written; the earlier stamp is unchanged.
    :raises StoreIdentityError: there is a stamp of another store, or an unreadable one.
    """
    stamp = read_stamp(root)
    if stamp is None and shield:
        stamp = update_stamp(root, store_id, lineages, ())
    if stamp is None or stamp.shield == shield:
        return
    with locked_places(root) as places:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(places, replace(stamp, shield=shield))


def stamp_path(root: str) -> Path:
    """Return the path of a store's stamp, or of the first if it has several."""
    return stamp_paths(root)[0]


def _write(places: Iterable[StampPlace], stamp: Stamp) -> None:
    fields = to_jsonable(stamp)
    # An older release refuses a stamp with a field that it doesn't know, so empty fields are left out.
    for name in ("shield", "log_lineages", "directories", "deletion", "policy"):
        if not fields[name]:
            del fields[name]
    content = json.dumps(fields, indent=1).encode()
    for place in places:
        # This process has the stamp's lock, so a temporary file here is from a killed process.
        durable.remove_abandoned(place.path.name, dir_fd=place.directory, alone=True)
        durable.write_file(place.path.name, content, dir_fd=place.directory, shared=True)
