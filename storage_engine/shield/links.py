"""Functions that make, check and remove the links of a shield. Changes are on disk when a call returns."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage_engine.core import durable
from storage_engine.core.durable import WAIT_SECONDS
from storage_engine.exceptions import ChangedUnderUsError, ShieldError
from storage_engine.model.store import FileFacts, Segment
from storage_engine.same_bytes.own_acts import Acting, OwnActs, own_acts, read_own_acts
from storage_engine.same_bytes.trusted_times import Spend, paced_sha256, settle
from storage_engine.shield.index import (
    CLONES,
    Link,
    LinkKind,
    Place,
    SeenLink,
    digest_of,
    locked_shield,
    log_was_written,
    look,
    place_of,
    read_index,
    remove_abandoned,
    replace_links,
    shield_path,
    write_index,
)

_FICLONE: Final = 0x40049409
_NO_CLONE: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EBADF, errno.EPERM}
)
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NoLinkError(ShieldError):
    """A segment can't be linked, so that no shield is possible here."""


def make_links(
    root: str | os.PathLike[str],
    segments: Sequence[Segment],
    lineage: int,
    *,
    wait_seconds: float = WAIT_SECONDS,
) -> tuple[Link, ...]:
    """Link segments that have no link yet, in this order. Segments that are gone by now are left out.

    :return: the links that were made.
    :raises NoLinkError: a link can't be made; the links before it were made.
    :raises ShieldError: the shield can't be written.
    """
    if not segments:
        return ()
    made: list[Link] = []
    with locked_shield(root, makes=True, wait_seconds=wait_seconds) as directory:
        assert directory is not None
        remove_abandoned(directory)
        links = read_index(directory, root)
        linked = {entry.link.name for entry in look(directory, root, links).links}
        new_links = [
            link for link in (_new_link(segment, lineage) for segment in segments) if link.name not in linked
        ]
        if not new_links:
            # A full disk must not keep anybody from what needs no further link.
            return ()
        links = replace_links(links, *new_links)
        write_index(directory, links)
        try:
            with own_acts(root) as acts:
                for link in new_links:
                    with suppress(FileNotFoundError):
                        made.append(_clone(directory, link, links) or _hard_link(directory, root, link, acts))
                        links = replace_links(links, made[-1])
        finally:
            os.fsync(directory)
            unmade = {link.name for link in new_links} - {link.name for link in made}
            write_index(directory, [link for link in links if link.name not in unmade])
    return tuple(made)


def drop_links(
    root: str | os.PathLike[str], names: Sequence[str], *, in_log: bool = False
) -> tuple[str, ...]:
    """Remove links by their names, durably. The record of a link that is gone already is removed as well.

    :param in_log: remove only links whose segments are now in the log with the same bytes. A clone is kept if
        its segment was written to.
    :return: names of the links that existed and were removed.
    :raises ShieldError: the shield can't be written.
    """
    return _drop(root, names, _is_in_log if in_log else _may_always)


def drop_unchanged(root: str | os.PathLike[str], judged: Sequence[SeenLink]) -> tuple[str, ...]:
    """Remove links durably, if they are unchanged since they were examined.

    :return: names of the removed links.
    :raises ShieldError: the shield can't be written.
    """
    by_name = {entry.link.name: entry for entry in judged}

    def is_as_judged(entry: SeenLink, acts: OwnActs) -> bool:
        before = by_name[entry.link.name]
        same_place = place_of(entry.link) is before.place
        return same_place and acts.same_file(entry.facts, before.facts)

    return _drop(root, tuple(by_name), is_as_judged)


def _drop(
    root: str | os.PathLike[str], names: Collection[str], may_go: Callable[[SeenLink, OwnActs], bool]
) -> tuple[str, ...]:
    """Lock the shield, and remove the named links for which ``may_go`` returns True.

    The record of a link whose file no longer exists is removed.
    """
    dropped: list[str] = []
    kept_names: set[str] = set()
    with locked_shield(root) as directory:
        if directory is None:
            return ()
        links = read_index(directory, root)
        by_name = {entry.link.name: entry for entry in look(directory, root, links).links}
        with own_acts(root) as acts:
            for entry in (by_name[name] for name in names if name in by_name):
                name = entry.link.name
                with suppress(FileNotFoundError):
                    # Once more: what was dropped before may have been another name of the same file.
                    facts = FileFacts.of_stat(
                        entry.facts.path, os.stat(name, dir_fd=directory, follow_symlinks=False)
                    )
                    if not may_go(replace(entry, facts=facts), acts.known):
                        kept_names.add(name)
                        continue
                    with acts.on(shield_path(root) / name):
                        os.unlink(name, dir_fd=directory)
                dropped.append(name)
        os.fsync(directory)
        _record(directory, [link for link in links if link.name not in names or link.name in kept_names])
    return tuple(dropped)


def _may_always(_seen: SeenLink, _acts: OwnActs) -> bool:
    return True


def _is_in_log(entry: SeenLink, acts: OwnActs) -> bool:
    now = replace(entry, place=place_of(entry.link))
    return now.place is Place.IN_LOG and not log_was_written(now, acts)


def note_digest(root: str | os.PathLike[str], seen: SeenLink, sha256: str) -> None:
    """Record the digest of a link's bytes, and the link's facts at that reading.

    On a full disk nothing is recorded. The bytes are then read again when the digest is needed.

    :raises ShieldError: the shield can't be written.
    """
    with locked_shield(root) as directory:
        if directory is not None:
            links = read_index(directory, root)
            if any(link.name == seen.link.name for link in links):
                facts = replace(seen.facts, path=seen.link.name)
                _record(directory, replace_links(links, replace(seen.link, sha256=sha256, kept=facts)))


def note_segment(root: str | os.PathLike[str], seen: SeenLink, facts: FileFacts) -> None:
    """Record the present facts of a segment in the log that has the same bytes as its link.

    :raises ShieldError: the shield can't be written.
    """
    with locked_shield(root) as directory:
        if directory is not None:
            links = read_index(directory, root)
            # When it was last written to is as it was: it was only touched.
            new = [
                replace(link, segment=facts, original_mtime_ns=link.mtime_ns)
                for link in links
                if link.name == seen.link.name
            ]
            write_index(directory, replace_links(links, *new))


def _new_link(segment: Segment, lineage: int) -> Link:
    facts = segment.facts
    return Link(
        segment.log,
        segment.base_offset,
        lineage,
        LinkKind.MEANT,
        facts,
        facts,
        segment.original_mtime_ns,
    )


def _clone(directory: int, link: Link, links: Sequence[Link]) -> Link | None:
    """Make a file that shares the segment's blocks. None: its file system doesn't support that.

    The file gets its name once it is recorded.

    :raises FileNotFoundError: the segment is gone.
    """
    source = _open_segment(link)
    try:
        before = FileFacts.of_stat(link.segment.path, os.fstat(source))
        temporary = durable.temporary_name(CLONES)
        try:
            with durable.create(temporary, dir_fd=directory) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    fcntl.ioctl(file, _FICLONE, source)
                except OSError as error:
                    if error.errno in _NO_CLONE:
                        return None
                    raise _no_link(link, error) from error
                os.fsync(file.fileno())
                os.fsync(source)
                after = FileFacts.of_stat(link.segment.path, os.fstat(source))
                if replace(after, ctime_ns=before.ctime_ns) != before:
                    raise FileNotFoundError(errno.ENOENT, "is being written to", link.segment.path)
                facts = FileFacts.of_stat(link.name, os.fstat(file.fileno()))
                clone = replace(link, kind=LinkKind.CLONE, kept=facts)
                write_index(directory, replace_links(links, clone))
                os.link(
                    temporary,
                    link.name,
                    src_dir_fd=directory,
                    dst_dir_fd=directory,
                    follow_symlinks=False,
                )
                return clone
        finally:
            durable.unlink(temporary, dir_fd=directory)
    except FileExistsError as error:
        raise _no_link(link, error) from error
    finally:
        os.close(source)


def _hard_link(directory: int, root: str | os.PathLike[str], link: Link, acts: Acting) -> Link:
    """Make a hard link to the segment's file.

    :raises FileNotFoundError: the segment is gone, or another file has its name.
    :raises NoLinkError: the file can't be linked.
    """
    path = Path(link.segment.path)
    with (
        durable.opened(path.parent, _DIRECTORY) as parent,
        acts.on(path, other_name=shield_path(root) / link.name),
    ):
        try:
            os.link(path.name, link.name, src_dir_fd=parent, dst_dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _no_link(link, error) from error
    status = os.stat(link.name, dir_fd=directory, follow_symlinks=False)
    if (status.st_dev, status.st_ino) != (link.segment.device, link.segment.inode):
        os.unlink(link.name, dir_fd=directory)
        raise FileNotFoundError(errno.ENOENT, "another file has its name", link.segment.path)
    with durable.opened(link.name, _OPEN, dir_fd=directory) as fd:
        # Every later write has to move its times.
        os.fsync(fd)
        facts = FileFacts.of_stat(link.name, os.fstat(fd))
    return replace(link, kind=LinkKind.HARD_LINK, kept=facts)


def _open_segment(link: Link) -> int:
    """
    :raises FileNotFoundError: the segment is gone, or another file has its name.
    """
    try:
        fd = os.open(link.segment.path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _no_link(link, error) from error
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != (link.segment.device, link.segment.inode):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "another file has its name", link.segment.path)
    return fd


def _no_link(link: Link, error: OSError) -> NoLinkError:
    why = {
        errno.EXDEV: "the log and the store's root are on different mounts. Mount both as one",
        errno.EPERM: "only a file's owner may make a hard link here. Run as the broker's user",
        errno.EACCES: "this process has no permission. Run as the broker's user",
        errno.EEXIST: "a file that is not ours has the name of its link. Move that file away",
        errno.ELOOP: "it is a symbolic link, which is never followed. Put the file itself there",
        errno.ENOSPC: "the disk is full. Free some space",
        errno.EMLINK: "it already has the most names that its file system permits. Remove some",
    }.get(
        error.errno or 0,
        "its file system doesn't support hard links. Use a local file system such as ext4 or XFS",
    )
    return NoLinkError(
        f"{link.segment.path}: expected to link it into the shield, found {error.strerror or error}: {why}. "
        "A segment without a link has no shield."
    )


def _record(directory: int, links: Sequence[Link]) -> None:
    """Write the record. On a full disk the old record stays.

    So use it only for changes that may be lost: removed links, and digests.
    """
    try:
        write_index(directory, links)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def log_has_bytes(root: str | os.PathLike[str], seen: SeenLink, spend: Spend) -> bool:
    """Compare the bytes of a clone and of its segment in the log.

    If they are equal, the segment's facts are recorded: from then on the segment counts as not written to.

    :return: whether they are provably equal.
    :raises ShieldError: the shield can't be read or written.
    """
    path = seen.link.segment.path
    try:
        facts = settle(path)
        with Path(path).open("rb", buffering=0) as file:
            sha256 = paced_sha256(file, spend)
        after = facts.of(path)
    except (ChangedUnderUsError, OSError):
        return False
    if after != facts and not read_own_acts(root).same_file(after, facts):
        return False
    if (after.device, after.inode) != (seen.link.segment.device, seen.link.segment.inode):
        return False
    if digest_of(root, seen, spend) != sha256:
        return False
    note_segment(root, seen, facts)
    return True
