"""Findings of the host, for which nothing is written: access rights, file systems, a clock that is off."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.host import user_name
from storage_engine.core.own_directory import writable_by_all
from storage_engine.core.wording import count_text, duration_text, time_text
from storage_engine.model.report.diagnosis import Finding, named_in_short
from storage_engine.model.store.store import Segment
from storage_engine.same_bytes.mounts import Mount, mount_of
from storage_engine.same_bytes.trusted_times import known_trust

SLACK_MS = 60_000
"""Between the clocks of two machines that are well."""


def clock_findings(
    segments: Sequence[Segment],
    newest_message_ms: int | None,
    last_sample_ms: int | None,
    now_ms: int,
    jumped_ms: int = 0,
) -> Iterator[Finding]:
    """Yield times that are later than now, and a jump of the clock: reasons not to believe in ages.

    :param segments: with the times that they had before a hold.
    :param newest_message_ms: when the newest message was stored.
    :param last_sample_ms: when the journal's last sample was taken.
    :param jumped_ms: by how much this machine's clock was set forward within a day.
    """
    latest = now_ms + SLACK_MS
    future = [one for one in segments if one.mtime_ns // 1_000_000 > latest]
    advice = "put this machine's clock right (chronyc tracking), or find out who set the time"
    if jumped_ms:
        yield Finding.warning(
            "clock",
            f"this machine's clock was set forward by {duration_text(jumped_ms)} in the last day: segments "
            "look older than they are, and no run deletes by age before a day is over",
            advice,
        )
    if future:
        last_ms = max(one.mtime_ns for one in future) // 1_000_000
        yield Finding.warning(
            "clock",
            f"{count_text(len(future), 'segment')} written in the future, the latest {future[-1].name} at "
            f"{time_text(last_ms)}: nothing of them or behind them expires before",
            advice,
        )
    for at_ms, what in (
        (newest_message_ms, "newest message was stored"),
        (last_sample_ms, "last sample is of"),
    ):
        if at_ms is not None and at_ms > latest:
            yield Finding.warning(
                "clock",
                f"the {what} {time_text(at_ms)}, which is {duration_text(at_ms - now_ms)} after now: this "
                "clock or that one is off, and ages can't be believed",
                advice,
            )


@dataclass(frozen=True, slots=True)
class AccessRights:
    """What the account of this process may do with a store's directories.

    :param user: who runs this process.
    :param owner: of the store's root.
    :param unwritable: directories in which it may delete no file.
    :param unreadable: directories that it may not list.
    :param open_to_all: our directories and files that everybody may write.
    """

    user: str
    owner: str
    unwritable: tuple[str, ...]
    unreadable: tuple[str, ...]
    open_to_all: tuple[str, ...] = ()


def look_at_access(root: str, directories: Sequence[Path]) -> AccessRights:
    """Look at the directories that segments and what points to them lie in, as far as they are there."""
    there = [path for path in dict.fromkeys((Path(root), *directories)) if path.is_dir()]
    return AccessRights(
        user=user_name(os.geteuid()),
        owner=user_name(Path(root).stat().st_uid),
        unwritable=tuple(str(path) for path in there if not _may_delete(path)),
        unreadable=tuple(str(path) for path in there if not _may(path, os.R_OK | os.X_OK)),
        open_to_all=tuple(map(str, writable_by_all(there))),
    )


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _may_delete(path: Path) -> bool:
    found = path.stat()
    if found.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid):
        return False
    # On a file system that is mounted read-only nobody may: that is told of the mount.
    return _may(path, os.W_OK | os.X_OK) or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def access_findings(found: AccessRights) -> Iterator[Finding]:
    """Judge it. Pure."""
    advice = f"run as {found.owner}: sudo -u {found.owner} storage-engine …"
    if found.unreadable:
        yield Finding.warning(
            "access",
            f"{found.user} may not look into {named_in_short(found.unreadable)}, which {found.owner} owns",
            advice,
        )
    elif found.unwritable:
        yield Finding.warning(
            "access",
            f"{found.user} may read this store, and neither lock it nor delete in "
            f"{named_in_short(found.unwritable)}",
            advice,
        )
    if found.open_to_all:
        yield Finding.warning(
            "open-to-all",
            f"everybody may write {named_in_short(found.open_to_all)}, and so hinder a run or end a hold",
            f"run a command that records something as {found.owner}, such as archive, which takes that away",
        )


_LEAST_FILES = 2
"""Of which a time without a fraction of a second is no chance any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of a store, and its mount.

    :param trusted: whether times there tell of each write, as was tried before; None: it wasn't.
    """

    path: Path
    mount: Mount
    trusted: bool | None


def look_at_mounts(data_paths: Sequence[Path], root: str) -> tuple[Place, ...]:
    """Return one directory for each mount that a store lies on, its root's first."""
    found: dict[str, Place] = {}
    for path in (Path(root), *data_paths):
        mount = mount_of(path)
        if mount is not None and mount.mount_id not in found:
            found[mount.mount_id] = Place(path, mount, known_trust(path, root))
    return tuple(found.values())


def mount_findings(
    places: Sequence[Place], segments: Sequence[Segment], *, needs_shield: bool
) -> Iterator[Finding]:
    """Judge the mounts of a store's directories. Pure.

    :param places: the first one has the store's root.
    :param needs_shield: a broker runs beside which a shield keeps what is unproven.
    """
    for place in places:
        yield from _of_mount(place)
    coarse = [one for one in segments if one.facts.ctime_ns % 1_000_000_000 == 0]
    if len(segments) >= _LEAST_FILES and len(coarse) == len(segments):
        yield Finding.note(
            "coarse-times",
            f"{Path(segments[0].facts.path).parent}: file times have no fraction of a second, as with inodes "
            "of 128 bytes: a write in the same second isn't seen, and looking takes 2 s a segment",
            "make the file system again with larger inodes: mkfs.ext4 -I 256",
        )
    apart = [str(place.path) for place in places[1:] if needs_shield and not place.mount.is_memory]
    if apart:
        yield Finding.note(
            "no-shield",
            f"no second name can be given to segments on another mount than the store's root: "
            f"{named_in_short(apart)}",
            "archive ahead of deletion (archive_when: seal), so that none is needed",
        )


def _of_mount(place: Place) -> Iterator[Finding]:
    mount, where = place.mount, f"{place.path} lies on {place.mount.kind}"
    if mount.is_read_only:
        yield Finding.warning(
            "read-only",
            f"{where}, mounted read-only: nothing there can be deleted or held",
            f"mount it writable: mount -o remount,rw {mount.point}",
        )
    if mount.is_memory:
        yield Finding.warning(
            "file-system",
            f"{where}, in memory: a restart of the machine takes it",
            "keep the store on a disk",
        )
    elif mount.is_volatile:
        yield Finding.warning(
            "file-system",
            f"{where} with the option volatile: nothing is durable, and times don't tell of writes",
            "mount it without volatile, or keep the store in a volume",
        )
    elif mount.is_network:
        yield Finding.warning(
            "file-system",
            f"{where}: writers on other machines aren't seen, and its locks may not reach them",
            "manage the store on the host that its broker runs on",
        )
    elif place.trusted is False or (place.trusted is None and mount.is_fuse):
        known = "don't" if place.trusted is False else "may not"
        yield Finding.note(
            "file-system",
            f"{where}: its times {known} tell of writes, so each segment is read once more before it goes",
        )
