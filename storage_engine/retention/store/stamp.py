"""A store's stamp: a file among its own that says which store it is, and what its lakes held.

Journal and lake may be lost, or put back from a backup, together; the stamp lies with the segments. It
is written when something was archived, and again before segments are deleted: whatever was deleted on
the proof of a lake, that lake has to have still. Nothing in it is secret.

It lies in our directory in the store's root, or as a plain hidden file in each of the directories that
a broker names, where that takes every directory among its own for one of its own. There a stamp of one
directory is a witness for all: one that is missing tells of a disk that was replaced.
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
    """
    :param path: of the stamp, whether it is there or not.
    :param directory: descriptor of the directory that it is in.
    """

    path: Path
    directory: int


def stamp_paths(root: str) -> tuple[Path, ...]:
    """Return where a store's stamp is: one file, or the same one in each of several directories.

    :raises BadInputError: the store's own file can't be read.
    """
    directories = _plain_directories(root)
    return tuple(path / PLAIN_STAMP for path in directories) or (Path(root) / DIRECTORY / NAME,)


@contextmanager
def opened_places(root: str) -> Iterator[tuple[StampPlace, ...]]:
    """Open the directories that have a store's stamp; of several, those that are there.

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
    """Keep other processes from a store's stamp until the block ends.

    :raises TimeoutError: another process has the lock for longer than it should.
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
        for place in sorted(places, key=lambda one: os.path.realpath(one.path)):
            lock(place.directory, place.path.parent, WAIT_SECONDS)
        yield tuple(places)


def real_directories(root: str) -> tuple[str, ...]:
    """Return the real paths of the directories that each have a store's stamp; (): it has one for all.

    :raises BadInputError: the store's own file can't be read.
    """
    return tuple(sorted({os.path.realpath(path) for path in _plain_directories(root)}))


def share_directories(root: str, place: str) -> bool:
    """Return whether stores at two places have a stamp in one and the same directory, such as a node that two
    files name; unreadable counts as no.
    """
    with suppress(OSError, BadInputError):
        if Path(root).samefile(place):
            return True
        here, there = (_identities(_plain_directories(path)) for path in (root, place))
        return not here.isdisjoint(there)
    return False


def _identities(directories: Iterable[Path]) -> set[tuple[int, int]]:
    found = set()
    for path in directories:
        with suppress(FileNotFoundError):
            seen = path.stat()
            found.add((seen.st_dev, seen.st_ino))
    return found


def _plain_directories(root: str) -> tuple[Path, ...]:
    path = Path(root)
    return find_broker(broker_of(path)).places.stamped_directories(path) if path.is_file() else ()


_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """
    :param machine: on which it was written.
    :param root: real path of the store's root on that machine.
    :param shield: the store may have a shield; releases that know none refuse the store then.
    :param log_lineages: by name, of logs that have a lineage of their own; likewise.
    :param directories: real paths of those that each have a stamp; (): the root has one for all.
    :param deletion: the digest of the last run's events that deleted something; None: there is none.
    :param policy: the approval that the store asks for, if it does: another journal, and an older state of
        one, don't know it, and a release that knows no approvals refuses the store.
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
        """The lineage of each log."""
        return Lineages(self.lineage, self.log_lineages)


def read_stamp(root: str) -> Stamp | None:
    """Return a store's stamp; None: it was never stamped. Of several files that say the same store, what each
    says of lakes and lineages counts.

    :raises StoreIdentityError: there is one that can't be read or understood, its directory is a symbolic
        link, or stamps of two stores lie in one.
    :raises BadInputError: the store's own file can't be read.
    """
    return _merged(_read_all(root), root)


def stamped_ids(root: str) -> frozenset[str]:
    """Return the ids of stores in stamps; several if a new stamp is only in some directories.

    :raises StoreIdentityError: one can't be read.
    """
    return frozenset(stamp.store_id for stamp in _read_all(root).values())


def is_original(stamp: Stamp, root: str) -> bool:
    """Return whether a store's directories are the original ones in which a stamp was written, and no copy.

    Of what was written on another machine nobody here can tell.
    """
    if not is_this_host(stamp.machine):
        return False
    named = not set(stamp.directories).isdisjoint(real_directories(root))
    return named or share_directories(root, stamp.root)


def stamp_of_original(root: str) -> Stamp | None:
    """Return a stamp of which these are the very directories; None: of none, or that is unknown."""
    with suppress(StoreIdentityError):
        return next((one for one in _read_all(root).values() if is_original(one, root)), None)
    return None


def missing_stamps(root: str) -> tuple[Path, ...]:
    """Return the directories of a store that lack its stamp, while others have it.

    :raises StoreIdentityError: as of :func:`read_stamp`.
    """
    found = _read_all(root)
    missing = tuple(path.parent for path in stamp_paths(root) if path not in found)
    return missing if found else ()


def _read_all(root: str) -> Mapping[Path, Stamp]:
    """Read each file that is there, by its path."""
    found: dict[Path, Stamp] = {}
    path = stamp_path(root)
    try:
        with opened_places(root) as places:
            for place in places:
                path = place.path
                try:
                    data = read_file(path, _MAX_BYTES, follow_links=False, dir_fd=place.directory)
                except FileNotFoundError:
                    continue
                found[path] = from_jsonable(Stamp, json.loads(data), str(path))
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
    return found


def _merged(found: Mapping[Path, Stamp], root: str) -> Stamp | None:
    """Make one of a store's stamps: a kill between two files leaves one that is older."""
    if not found:
        return None
    (path, first), *others = found.items()
    whole = first
    for other, stamp in others:
        if stamp.store_id != first.store_id:
            raise StoreIdentityError(
                f"{other}: expected the stamp of store {first.store_id}, as in {path.parent}, found "
                f"that of {stamp.store_id}: this directory is of another store. Nothing was changed. "
                "Put each directory back where it belongs; where ",
                Command("stamp"),
                " was killed, run it again.",
            )
        lineages = whole.lineages.merged(stamp.lineages)
        whole = replace(
            # Where a move was cut short, one says this place already.
            stamp if stamp.root == root else whole,
            lineage=lineages.whole,
            log_lineages=lineages.of_logs,
            lakes=_heads(whole.lakes, stamp.lakes, other),
            shield=whole.shield or stamp.shield,
            deletion=_later(whole.deletion, stamp.deletion),
            policy=max((whole.policy, stamp.policy), key=lambda one: 0 if one is None else one.at_ms),
        )
    return whole


def _heads(known: Iterable[LakeHead], heads: Iterable[LakeHead], path: Path) -> tuple[LakeHead, ...]:
    """Return the last receipts of lakes; of one lake the longer chain counts.

    :param path: of the stamp, for the error.
    :raises StoreIdentityError: two heads of one lake can't both be true.
    """
    lakes = {head.lake_id: head for head in known}
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
                f"{path}: expected receipt number {before.sequence} of lake {before.lake_id} with the "
                f"hash {before.row_hash}, found {head.row_hash}: the lake has gone on from an older "
                "copy. Nothing was changed. Run ",
                Command("lake rebuild"),
                ".",
            )
    return tuple(lakes.values())


def _later(one: RunDigest | None, other: RunDigest | None) -> RunDigest | None:
    """Return the digest of the later run; of one run, the digest of more events."""
    return max((one, other), key=lambda it: (-1, -1) if it is None else (it.begun_at_ms, it.event_id))


def says_otherwise(known: RunDigest | None, deletion: RunDigest) -> bool:
    """Return whether two digests of the same events of a run differ."""
    return known is not None and known != deletion == replace(known, sha256=deletion.sha256)


def update_stamp(
    root: str,
    store_id: str,
    lineages: Lineages,
    heads: Iterable[LakeHead],
    deletion: RunDigest | None = None,
    *,
    policy: RecordedPolicy | None = None,
) -> Stamp:
    """Write down what lakes hold of a store, durably. What the stamp says of other lakes stays.

    Of one lake the longer chain counts: two processes may archive at once.

    :param deletion: the digest of the last one; None: the stamp's record of it stays, and so it does where it
        differs for the same events.
    :param policy: the approval that the store asks for from now on; None: the stamp's record of it stays.
    :param root: real path of the store's root.
    :raises OSError: the directory can't be written; the stamp before is as it was.
    :raises StoreIdentityError: there is a stamp of another store, or one that can't be read.
    """
    with locked_places(root) as places:
        found = read_stamp(root)
        if found is not None and found.store_id != store_id:
            raise StoreIdentityError(
                f"{stamp_path(root)}: expected the stamp of store {store_id}, found that of "
                f"{found.store_id}. Nothing was changed. Find out what was put into this directory."
            )
        lakes = _heads(found.lakes if found else (), heads, stamp_path(root))
        newest = lineages.merged(found.lineages) if found else lineages
        shield = found is not None and found.shield
        known = found.deletion if found else None
        last = known if deletion is None or says_otherwise(known, deletion) else deletion
        asks = (found.policy if found else None) if policy is None else policy
        if asks is not None and asks.approval is ApprovalPolicy.NONE:
            asks = None
        written = Stamp(store_id, newest.whole, "", "", lakes, shield, newest.of_logs, deletion=last)
        stamp = _here(replace(written, policy=asks), root)
        if any(one != stamp for one in _in(places, root)):
            _write(places, stamp)
        return stamp


def _in(places: Iterable[StampPlace], root: str) -> Iterator[Stamp | None]:
    """Yield the stamp that each place has now; None: it has none."""
    found = _read_all(root)
    yield from (found.get(place.path) for place in places)


def replace_stamp(root: str, stamp: Stamp) -> None:
    """Write a stamp durably, whatever was there before: a person has decided.

    :raises OSError: the directory can't be written; the stamp before is as it was.
    """
    with locked_places(root) as places:
        _write(places, _here(stamp, root))


def rewrite_place(root: str) -> None:
    """Write durably into a store's stamp that it lies here, on this machine; a store without one has none.

    :raises OSError: the directory can't be written; the stamp before is as it was.
    """
    with locked_places(root) as places:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(places, _here(stamp, root))


def _here(stamp: Stamp, root: str) -> Stamp:
    return replace(stamp, machine=this_host(), root=root, directories=real_directories(root))


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
    with locked_places(root) as places:
        stamp = read_stamp(root)
        if stamp is not None:
            _write(places, replace(stamp, shield=shield))


def stamp_path(root: str) -> Path:
    """Return where a store's stamp is; of several files the first."""
    return stamp_paths(root)[0]


def _write(places: Iterable[StampPlace], stamp: Stamp) -> None:
    said = to_jsonable(stamp)
    # What an older release doesn't know it refuses, so it is there only where it counts.
    for name in ("shield", "log_lineages", "directories", "deletion", "policy"):
        if not said[name]:
            del said[name]
    content = json.dumps(said, indent=1).encode()
    for place in places:
        # Who writes here has its lock, so what lies here is of a writer that was killed.
        durable.remove_abandoned(place.path.name, dir_fd=place.directory, alone=True)
        durable.write_file(place.path.name, content, dir_fd=place.directory, shared=True)
