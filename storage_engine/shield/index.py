"""A shield: its record in ``.storage-engine/shield/index.json``, and its files on disk.

A link is recorded before it is made. After a kill the inode decides: a link that was only planned counts if
the file of its name has the segment's inode. A file on disk is ours only if the record has its inode.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Final

from storage_engine.commands import Command, Text
from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, WAIT_SECONDS, locked, own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, ShieldError
from storage_engine.model.hold import ShieldNeed
from storage_engine.model.settings.policy import ShieldMode
from storage_engine.model.store import FileFacts, Lineages, Segment, in_file_name
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts
from storage_engine.same_bytes.trusted_times import Spend, paced_sha256

NAME: Final = "shield"
INDEX: Final = "index.json"
CLONES: Final = "clone"
"""Base of the temporary names of clones while they are made."""
_LOG_BYTES: Final = 200
"""The most bytes of a log's name in a link's name. The rest has at most 50 bytes; file systems permit 255."""
_LOCK: Final = "shield.lock"
_VERSION: Final = 1
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES: Final = 64 << 20
"""The most bytes of the record: enough for a hundred thousand links."""


class LinkKind(StrEnum):
    """The way in which a link shares the segment's bytes."""

    MEANT = "meant"
    """The link is about to be made."""
    HARD_LINK = "hard-link"
    """Another name of the same file. A write to the segment changes the link, too."""
    CLONE = "clone"
    """A separate file that shares the segment's blocks until one of the two is written to (FICLONE)."""


@dataclass(frozen=True, slots=True)
class Link:
    """One segment's link.

    :param segment: facts of the segment's file just before it was linked.
    :param kept: facts of the link when it was last known to have the segment's bytes; the path is the link's
        name. For a planned link these are the segment's facts.
    :param original_mtime_ns: the segment's mtime before a hold changed it; None: no hold changed it.
    :param sha256: SHA-256 of its bytes; "" while they have not been read.
    """

    log: str
    base_offset: int
    lineage: int
    kind: LinkKind
    segment: FileFacts
    kept: FileFacts
    original_mtime_ns: int | None = None
    sha256: str = ""

    @property
    def name(self) -> str:
        """Return the name of the link's file. The inode in the name tells it from links of a copied store."""
        log = in_file_name(self.log, _LOG_BYTES)
        return f"{self.lineage}-{log}-{self.base_offset:020d}-{self.segment.inode:x}"

    @property
    def slot(self) -> tuple[str, int]:
        return self.log, self.base_offset

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.segment.size_bytes

    @property
    def mtime_ns(self) -> int:
        """Return when the segment was last written to."""
        return self.segment.mtime_ns if self.original_mtime_ns is None else self.original_mtime_ns


@dataclass(frozen=True, slots=True)
class ShieldIndex:
    """:param version: version of this file. A newer version is refused."""

    links: tuple[Link, ...] = ()
    version: int = _VERSION


def shield_path(root: str | os.PathLike[str]) -> Path:
    """Return the path of a store's shield."""
    return Path(root) / DIRECTORY / NAME


@contextmanager
def opened_shield(root: str | os.PathLike[str], *, makes: bool = False) -> Iterator[int | None]:
    """Open the shield's directory without following a symbolic link. None if the shield doesn't exist.

    :param makes: whether to make a missing directory, durably. Only its owner may read it.
    :raises ShieldError: the directory can't be opened or made.
    """
    fd = None
    try:
        with own_directory(root, makes=makes) as own_fd:
            if makes:
                with suppress(FileExistsError):
                    durable.make_dir(NAME, dir_fd=own_fd)
                os.fsync(own_fd)
            fd = os.open(NAME, _DIRECTORY_FLAGS, dir_fd=own_fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        if makes:
            raise _unusable(root, error) from error
    except OSError as error:
        raise _unusable(root, error) from error
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


@contextmanager
def locked_shield(
    root: str | os.PathLike[str], *, makes: bool = False, wait_seconds: float = WAIT_SECONDS
) -> Iterator[int | None]:
    """Open the shield to change it; other processes wait until the block ends.

    :param makes: as for :func:`opened_shield`.
    :raises ShieldError: the shield can't be opened, made, or locked within ``wait_seconds``.
    """
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(opened_shield(root, makes=makes))
            if directory is not None:
                stack.enter_context(locked(root, _LOCK, wait_seconds=wait_seconds))
            yield directory
    except OSError as error:
        raise _unusable(root, error) from error


def read_index(directory: int, root: str | os.PathLike[str]) -> tuple[Link, ...]:
    """Return the recorded links.

    :param directory: descriptor of the shield's directory.
    :raises ShieldError: the record can't be read or is invalid, so that the kept segments are unknown.
    """
    path = shield_path(root) / INDEX
    try:
        document = json.loads(read_file(path, _MAX_BYTES, follow_links=False, dir_fd=directory))
        if isinstance(document, dict) and document.get("version", 0) > _VERSION:
            raise BadInputError(f"version {document['version']}, this release knows {_VERSION}")
        return from_jsonable(ShieldIndex, document, str(path)).links
    except FileNotFoundError:
        return ()
    except (OSError, BadInputError, *MALFORMED) as error:
        raise ShieldError(
            f"{path}: expected the record of the shield, found a file that can't be read "
            f"({reason_text(error)}). Nothing was changed. Run as the store's owner with the newest release "
            "that worked on this store. The files beside the record are whole segments, named by lineage, "
            "log and first offset."
        ) from error


def write_index(directory: int, links: Sequence[Link]) -> None:
    """Replace the record, durably.

    :raises OSError: the record can't be written; the old record is unchanged.
    """
    ordered = tuple(sorted(links, key=lambda link: (link.log, link.base_offset, link.lineage)))
    content = json.dumps(to_jsonable(ShieldIndex(ordered))).encode()
    durable.write_file(INDEX, content, dir_fd=directory)


def remove_shield(root: str | os.PathLike[str]) -> bool:
    """Remove an empty shield's record and directory, durably.

    :return: whether the shield is gone; False: it still has files.
    :raises ShieldError: the shield can't be removed.
    """
    with locked_shield(root) as directory:
        if directory is None:
            return True
        remove_abandoned(directory)
        with os.scandir(directory) as entries:
            names = {entry.name for entry in entries} - {INDEX}
        if names:
            return False
        with own_directory(root) as own_fd:
            durable.unlink(INDEX, dir_fd=directory)
            os.rmdir(NAME, dir_fd=own_fd)
            os.fsync(own_fd)
    return True


def remove_abandoned(directory: int) -> None:
    """Remove unfinished files of killed processes from a shield that this process has locked."""
    for name in (INDEX, CLONES):
        durable.remove_abandoned(name, dir_fd=directory, alone=True)


def replace_links(links: Sequence[Link], *new: Link) -> tuple[Link, ...]:
    """Return the links, with the given ones in place of links of the same name."""
    by_name = {link.name: link for link in (*links, *new)}
    return tuple(by_name.values())


def _unusable(root: str | os.PathLike[str], error: OSError) -> ShieldError:
    return ShieldError(
        f"{shield_path(root)}: expected a directory that this process may use, found "
        f"{error.strerror or error}. Nothing was changed. Run as the store's owner, and mount its file "
        "system writable."
    )


_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Place(StrEnum):
    """The place of a link's segment."""

    IN_LOG = "in-log"
    GONE = "gone"
    REPLACED = "replaced"
    """Another file has the segment's name in the log."""
    UNKNOWN = "unknown"
    """The path in the log can't be read now."""


@dataclass(frozen=True, slots=True)
class SeenLink:
    """A link as found on disk.

    :param other_names: number of further names of its file. 0: the link is the last name of the bytes.
    :param is_same: whether its file is unchanged since it was known to have the segment's bytes. Our own
        changes and the removal of other names don't count.
    """

    link: Link
    facts: FileFacts
    other_names: int
    place: Place
    is_same: bool

    @property
    def is_gone(self) -> bool:
        return self.place is Place.GONE

    @property
    def has_left_log(self) -> bool:
        """Return whether the segment has left the log, even if another file has its name there."""
        return self.place in (Place.GONE, Place.REPLACED)

    @property
    def is_last(self) -> bool:
        """Return whether the link is the last name of its bytes. Then its removal frees their space."""
        return self.has_left_log and self.other_names == 0


@dataclass(frozen=True, slots=True)
class Shield:
    """The found state of a shield.

    :param links: our links, oldest segment first.
    :param foreign: paths of files that aren't ours: the record doesn't have their inode.
    """

    links: tuple[SeenLink, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def gone(self) -> tuple[SeenLink, ...]:
        """Return the links whose segment is gone from the log, while no other file has the segment's path."""
        return tuple(entry for entry in self.links if entry.is_gone)

    @property
    def left_log(self) -> tuple[SeenLink, ...]:
        """Return the links whose segment is no longer in the log. Perhaps only the shield has its bytes."""
        return tuple(entry for entry in self.links if entry.has_left_log)


def look_at_shield(root: str | os.PathLike[str]) -> Shield:
    """Return the state of a store's shield. Changes nothing.

    :raises ShieldError: the shield can't be read, so that the kept segments are unknown.
    """
    with opened_shield(root) as directory:
        if directory is None:
            return Shield()
        try:
            return look(directory, root, read_index(directory, root))
        except OSError as error:
            raise ShieldError(
                f"{shield_path(root)}: expected files that this process may look at, found {error.strerror}. "
                "Nothing was changed. Run as the store's owner."
            ) from error


def digest_of(root: str | os.PathLike[str], seen: SeenLink, spend: Spend) -> str | None:
    """Read a link's bytes and return their SHA-256. None: its file changed meanwhile, or is gone."""
    with opened_shield(root) as directory:
        if directory is None:
            return None
        try:
            fd = os.open(seen.link.name, _OPEN, dir_fd=directory)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb", buffering=0) as file:
            if FileFacts.of_stat(seen.facts.path, os.fstat(fd)) != seen.facts:
                return None
            # Every later write has to move its times.
            os.fsync(fd)
            sha256 = paced_sha256(file, spend)
            after = FileFacts.of_stat(seen.facts.path, os.fstat(fd))
    return sha256 if same_bytes(after, seen.facts, read_own_acts(root)) else None


def look(directory: int, root: str | os.PathLike[str], links: Sequence[Link]) -> Shield:
    """Compare the record with the files.

    :param directory: descriptor of the shield's directory.
    :raises OSError: a file in it can't be inspected.
    """
    acts, entries, expected = read_own_acts(root), [], {INDEX}
    for link in links:
        try:
            status = os.stat(link.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (
            link.kept.device,
            link.kept.inode,
        ):
            continue
        expected.add(link.name)
        facts = FileFacts.of_stat(shield_path(root) / link.name, status)
        if link.kind is LinkKind.MEANT:  # and made, before it could be recorded
            link = replace(link, kind=LinkKind.HARD_LINK)
        entries.append(
            SeenLink(link, facts, status.st_nlink - 1, place_of(link), same_bytes(facts, link.kept, acts))
        )
    entries.sort(key=lambda entry: (entry.link.log, entry.link.base_offset, entry.link.lineage))
    names = (name for name in _names_in(directory) if name not in expected and not name.startswith("."))
    return Shield(tuple(entries), tuple(str(shield_path(root) / name) for name in names))


def place_of(link: Link) -> Place:
    """Return the present place of a link's segment."""
    try:
        status = Path(link.segment.path).lstat()
    except FileNotFoundError:
        return Place.GONE
    except OSError:
        return Place.UNKNOWN
    same = (status.st_dev, status.st_ino) == (link.segment.device, link.segment.inode)
    return Place.IN_LOG if same else Place.REPLACED


def log_was_written(seen: SeenLink, acts: OwnActs) -> bool:
    """Return whether a clone's segment is in the log, but may no longer have the clone's bytes.

    A hard link always has the same bytes as the log.

    :param acts: our own changes to the store's files.
    """
    if seen.link.kind is not LinkKind.CLONE or seen.place is not Place.IN_LOG:
        return False
    try:
        facts = FileFacts.of(seen.link.segment.path)
    except OSError:
        return True
    return facts != seen.link.segment and not acts.same_file(facts, seen.link.segment)


def same_bytes(found: FileFacts, known: FileFacts, acts: OwnActs) -> bool:
    """Return whether a settled file was not written to: a write would have changed its mtime.

    Its ctime doesn't show a write, because the removal of another name also changes it.
    """
    if (found.device, found.inode, found.size_bytes) != (known.device, known.inode, known.size_bytes):
        return False
    if found.mtime_ns == known.mtime_ns:
        return True
    entry = next((file for file in acts.files if file.is_of(found)), None)
    return entry is not None and {found.mtime_ns, known.mtime_ns} <= {mtime_ns for mtime_ns, _ in entry.times}


def _names_in(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


REACTION_MS: Final = 10_000
"""The longest time until a watch has restored the broker's setting: it looks twice per second, and the broker
may answer late.
"""
DISK_SHARE_PERCENT: Final = 5
"""The largest share of the broker's disk that a shield may use."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """:param segments: the segments that get a link, oldest first.
    :param why_not: why other segments get none; "" where all that need a link get one.
    """

    segments: tuple[Segment, ...] = ()
    why_not: str = ""


def segments_needed(batch_segments: int, pass_interval_ms: int, reaction_ms: int = REACTION_MS) -> int:
    """Return how many segments a broker can delete before a watch reacts."""
    return batch_segments * (1 + -(-reaction_ms // max(pass_interval_ms, 1)))


def choose_links(
    unproven: Sequence[Segment],
    shield: Shield,
    need: ShieldNeed,
    mode: ShieldMode,
    *,
    tends: bool,
    written: Collection[SeenLink] = (),
) -> Wanted:
    """Choose the segments of the log that get a link.

    :param unproven: sealed segments that no lake proves, oldest first.
    :param tends: whether this process is the watch.
    :param written: clones that are kept because their segments in the log were written to. They take space.
    """
    if mode is ShieldMode.OFF:
        return Wanted(why_not="the store's policy is shield: off")
    if need.refusal:
        return Wanted(why_not=need.refusal)
    segments = tuple(unproven)
    if need.batch_segments is None or need.pass_interval_ms is None:
        if mode is ShieldMode.ON:
            return Wanted(segments)
        return Wanted(
            why_not="no broker runs; with the policy shield: on, all unproven segments would be kept"
        )
    if need.disk_bytes is None:
        return Wanted(why_not="the size of the log's disk can't be measured")
    lone_links = [entry for entry in shield.links if entry.place is not Place.IN_LOG or entry in written]
    room = room_bytes(lone_links, need)
    sizes = accumulate(segment.facts.size_bytes for segment in segments)
    fits = sum(room is None or size <= room for size in sizes)
    if tends:
        most = min(segments_needed(need.batch_segments, need.pass_interval_ms), len(segments))
        if fits >= most:
            return Wanted(segments[:most])
        return Wanted(
            segments[:fits],
            f"{most} segments should have a link, {fits} have one: {DISK_SHARE_PERCENT} % of the disk is "
            "the limit",
        )
    if mode is ShieldMode.ON and fits == len(segments):
        return Wanted(segments)
    return Wanted(
        why_not=Text("no watch is alive that reacts to the broker's deletions: run ", Command("watch"))
    )


def room_bytes(links: Iterable[SeenLink], need: ShieldNeed) -> int | None:
    """Return the bytes that further links may keep. None: no limit, because no broker runs."""
    if need.batch_segments is None or need.disk_bytes is None:
        return None
    kept_bytes = sum(entry.link.segment.size_bytes for entry in links)
    return need.disk_bytes * DISK_SHARE_PERCENT // 100 - kept_bytes


def without_use(shield: Shield, segments: Collection[Segment], lineages: Lineages) -> tuple[SeenLink, ...]:
    """Return the links that may be removed at once: their segments are in the log and need no link.

    :param segments: the segments that need a link.
    """
    slots = {(*segment.id, segment.facts.inode, lineages.of(segment.log)) for segment in segments}
    return tuple(
        entry
        for entry in shield.links
        if entry.place is Place.IN_LOG
        and (*entry.link.slot, entry.link.segment.inode, entry.link.lineage) not in slots
    )


def pick_given_up(shield: Shield, used_percent: int | None, give_up_percent: int) -> SeenLink | None:
    """Return the link to remove for space: the oldest whose removal frees space. None: no removal needed.

    :param used_percent: level of the log's disk; None: unknown, which doesn't count as full.
    """
    if used_percent is None or used_percent <= give_up_percent:
        return None
    return next((entry for entry in shield.links if entry.is_last), None)
