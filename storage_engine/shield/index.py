"""The record of a shield, ``.storage-engine/shield/index.json``: each link, and the file that it belongs to.

A link is recorded before it is made. What a killed process left is told by the inode: a link that was only
meant counts where the segment's own inode has its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.own_directory import DIRECTORY, WAIT_SECONDS, locked, own_directory
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BadInputError, ShieldError
from storage_engine.model.store import FileFacts, in_file_name

NAME: Final = "shield"
INDEX: Final = "index.json"
CLONES: Final = "clone"
"""Name of clones while they are made."""
_LOG_BYTES: Final = 200
"""Of a log's name in a link's, which has at most 50 more; file systems take 255."""
_LOCK: Final = "shield.lock"
_VERSION: Final = 1
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_BYTES: Final = 64 << 20
"""Of the record: a hundred thousand links."""


class LinkKind(StrEnum):
    """The way in which a link shares the segment's bytes."""

    MEANT = "meant"
    """It is about to be made."""
    HARD_LINK = "hard-link"
    """Another name of the same file: what somebody writes to the segment is in it as well."""
    CLONE = "clone"
    """A file of its own, whose blocks are shared until one of the two is written to (FICLONE)."""


@dataclass(frozen=True, slots=True)
class Link:
    """One segment's link.

    :param segment: facts of the segment's file just before it was linked.
    :param kept: facts of the link, as it was last seen with the segment's bytes; its path is the link's name.
        Of one that is only meant the segment's.
    :param original_mtime_ns: the segment's mtime before a hold set another; None: none has.
    :param sha256: of its bytes; "" while nobody has read them.
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
        """Of its file; the inode keeps it from those of a copied store."""
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
    """:param version: of this file; one that is newer is refused."""

    links: tuple[Link, ...] = ()
    version: int = _VERSION


def shield_path(root: str | os.PathLike[str]) -> Path:
    """Return where a store's shield is."""
    return Path(root) / DIRECTORY / NAME


@contextmanager
def opened_shield(root: str | os.PathLike[str], *, makes: bool = False) -> Iterator[int | None]:
    """Open the shield's directory, following no symbolic link; None: there is none.

    :param makes: a missing one is made, durably: its owner alone may look into it.
    :raises ShieldError: it can't be opened or made.
    """
    fd = None
    try:
        with own_directory(root, makes=makes) as own:
            if makes:
                with suppress(FileExistsError):
                    durable.make_dir(NAME, dir_fd=own)
                os.fsync(own)
            fd = os.open(NAME, _DIRECTORY_FLAGS, dir_fd=own)
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
    :raises ShieldError: it can't be opened, made, or locked within ``wait_seconds``.
    """
    try:
        with ExitStack() as held:
            directory = held.enter_context(opened_shield(root, makes=makes))
            if directory is not None:
                held.enter_context(locked(root, _LOCK, wait_seconds=wait_seconds))
            yield directory
    except OSError as error:
        raise _unusable(root, error) from error


def read_index(directory: int, root: str | os.PathLike[str]) -> tuple[Link, ...]:
    """Return the links that are recorded.

    :param directory: the shield's, by its descriptor.
    :raises ShieldError: the record can't be read or understood: what is kept is unknown.
    """
    path = shield_path(root) / INDEX
    try:
        found = json.loads(read_file(path, _MAX_BYTES, follow_links=False, dir_fd=directory))
        if isinstance(found, dict) and found.get("version", 0) > _VERSION:
            raise BadInputError(f"version {found['version']}, known is {_VERSION}")
        return from_jsonable(ShieldIndex, found, str(path)).links
    except FileNotFoundError:
        return ()
    except (OSError, BadInputError, *MALFORMED) as error:
        raise ShieldError(
            f"{path}: expected the record of the shield, found what can't be read ({reason_text(error)}). "
            "Nothing was changed. Run as the store's owner with the newest release that worked on this "
            "store; its files beside the record are whole segments, named by lineage, log and first offset."
        ) from error


def write_index(directory: int, links: Sequence[Link]) -> None:
    """Replace the record, durably.

    :raises OSError: it can't be written; what was there before is there.
    """
    ordered = tuple(sorted(links, key=lambda link: (link.log, link.base_offset, link.lineage)))
    content = json.dumps(to_jsonable(ShieldIndex(ordered))).encode()
    durable.write_file(INDEX, content, dir_fd=directory)


def remove_shield(root: str | os.PathLike[str]) -> bool:
    """Remove an empty shield's record and directory, durably.

    :return: whether there is none any more; False: there are files in it.
    :raises ShieldError: it can't be removed.
    """
    with locked_shield(root) as directory:
        if directory is None:
            return True
        remove_abandoned(directory)
        with os.scandir(directory) as entries:
            left = {entry.name for entry in entries} - {INDEX}
        if left:
            return False
        with own_directory(root) as own:
            durable.unlink(INDEX, dir_fd=directory)
            os.rmdir(NAME, dir_fd=own)
            os.fsync(own)
    return True


def remove_abandoned(directory: int) -> None:
    """Remove what killed processes have left half-made in a shield that this process has locked."""
    for name in (INDEX, CLONES):
        durable.remove_abandoned(name, dir_fd=directory, alone=True)


def replaced(links: Sequence[Link], *new: Link) -> tuple[Link, ...]:
    """Return links with these in the place of those of the same name."""
    by_name = {link.name: link for link in (*links, *new)}
    return tuple(by_name.values())


def _unusable(root: str | os.PathLike[str], error: OSError) -> ShieldError:
    return ShieldError(
        f"{shield_path(root)}: expected a directory that this process may use, found "
        f"{error.strerror or error}. Nothing was changed. Run as the store's owner, with its file system "
        "mounted writable."
    )
