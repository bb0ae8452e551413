"""What a shield keeps, as it is found: a file is ours only where the record has its inode."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from storage_engine.exceptions import ShieldError
from storage_engine.model.store.store import FileFacts
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts
from storage_engine.same_bytes.reading import Spend, paced_sha256
from storage_engine.shield.index import INDEX, Link, LinkKind, opened_shield, read_index, shield_path

_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Place(StrEnum):
    """Where the segment of a link is."""

    IN_LOG = "in-log"
    GONE = "gone"
    REPLACED = "replaced"
    """Another file has its name in the log."""
    UNKNOWN = "unknown"
    """Nobody can look there now."""


@dataclass(frozen=True, slots=True)
class SeenLink:
    """A link as it is found.

    :param other_names: that its file has; without one it is the last that keeps the bytes.
    :param is_same: its file is as it was when it was known to have the segment's bytes, but for what we did
        ourselves, and the removal of other names.
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
        """Return whether the segment isn't in the log any more, whatever has its name there."""
        return self.place in (Place.GONE, Place.REPLACED)

    @property
    def is_last(self) -> bool:
        """Return whether the space comes back with it, and the bytes go."""
        return self.has_left_log and self.other_names == 0


@dataclass(frozen=True, slots=True)
class Shield:
    """All that is found of a shield.

    :param links: those that are ours, oldest segment first.
    :param foreign: paths of files that are not: no record has their inode.
    """

    links: tuple[SeenLink, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def gone(self) -> tuple[SeenLink, ...]:
        """Return those whose segment is gone from the log, and no other file has its name there."""
        return tuple(seen for seen in self.links if seen.is_gone)

    @property
    def left_log(self) -> tuple[SeenLink, ...]:
        """Return those whose segment isn't in the log any more: the shield alone may have its bytes."""
        return tuple(seen for seen in self.links if seen.has_left_log)


def look_at_shield(root: str | os.PathLike[str]) -> Shield:
    """Return what a store's shield keeps. Changes nothing.

    :raises ShieldError: it can't be read, so what it keeps is unknown.
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
    """Read a link's bytes and return their SHA-256; None: its file changed meanwhile, or is gone."""
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
    """Compare what is recorded with what is there.

    :param directory: the shield's, by its descriptor.
    :raises OSError: something in it can't be looked at.
    """
    acts, seen, ours = read_own_acts(root), [], {INDEX}
    for link in links:
        try:
            found = os.stat(link.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != (
            link.kept.device,
            link.kept.inode,
        ):
            continue
        ours.add(link.name)
        facts = FileFacts.of_stat(shield_path(root) / link.name, found)
        if link.kind is LinkKind.MEANT:  # and made, before it could be recorded
            link = replace(link, kind=LinkKind.HARD_LINK)
        seen.append(
            SeenLink(link, facts, found.st_nlink - 1, place_of(link), same_bytes(facts, link.kept, acts))
        )
    seen.sort(key=lambda one: (one.link.log, one.link.base_offset, one.link.lineage))
    names = (name for name in _names_in(directory) if name not in ours and not name.startswith("."))
    return Shield(tuple(seen), tuple(str(shield_path(root) / name) for name in names))


def place_of(link: Link) -> Place:
    """Return where the segment of a link is at this moment."""
    try:
        found = Path(link.segment.path).lstat()
    except FileNotFoundError:
        return Place.GONE
    except OSError:
        return Place.UNKNOWN
    same = (found.st_dev, found.st_ino) == (link.segment.device, link.segment.inode)
    return Place.IN_LOG if same else Place.REPLACED


def log_was_written(seen: SeenLink, acts: OwnActs) -> bool:
    """Return whether a clone's segment is in the log, but may not have the bytes any more that the clone has.

    A hard link has what the log has.

    :param acts: what we did ourselves to the store's files.
    """
    if seen.link.kind is not LinkKind.CLONE or seen.place is not Place.IN_LOG:
        return False
    try:
        found = FileFacts.of(seen.link.segment.path)
    except OSError:
        return True
    return found != seen.link.segment and not acts.same_file(found, seen.link.segment)


def same_bytes(found: FileFacts, known: FileFacts, acts: OwnActs) -> bool:
    """Return whether nobody wrote to a settled file: a write moves its mtime.

    Its ctime says nothing: who removes another name of it moves that.
    """
    if (found.device, found.inode, found.size_bytes) != (known.device, known.inode, known.size_bytes):
        return False
    if found.mtime_ns == known.mtime_ns:
        return True
    ours = next((file for file in acts.files if file.is_of(found)), None)
    return ours is not None and {found.mtime_ns, known.mtime_ns} <= {mtime_ns for mtime_ns, _ in ours.times}


def _names_in(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)
