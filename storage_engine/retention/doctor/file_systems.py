"""File systems that break a promise, by what the kernel says of them: nothing is written to try it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short
from storage_engine.model.store.store import Segment
from storage_engine.same_bytes.mounts import Mount, mount_of
from storage_engine.same_bytes.trusted_times import known_trust

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
    """Judge them. Pure.

    :param places: the first one has the store's root.
    :param needs_shield: a broker runs beside which a shield keeps what is unproven.
    """
    for place in places:
        yield from _of_mount(place)
    coarse = [one for one in segments if one.facts.ctime_ns % 1_000_000_000 == 0]
    if len(segments) >= _LEAST_FILES and len(coarse) == len(segments):
        yield Finding(
            Severity.NOTE,
            "coarse-times",
            f"{Path(segments[0].facts.path).parent}: file times have no fraction of a second, as with inodes "
            "of 128 bytes: a write in the same second isn't seen, and looking takes 2 s a segment",
            "make the file system again with larger inodes: mkfs.ext4 -I 256",
        )
    apart = [str(place.path) for place in places[1:] if needs_shield and not place.mount.is_memory]
    if apart:
        yield Finding(
            Severity.NOTE,
            "no-shield",
            f"no second name can be given to segments on another mount than the store's root: "
            f"{named_in_short(apart)}",
            "archive ahead of deletion (archive_when: seal), so that none is needed",
        )


def _of_mount(place: Place) -> Iterator[Finding]:
    mount, where = place.mount, f"{place.path} lies on {place.mount.kind}"
    if mount.is_read_only:
        yield Finding(
            Severity.WARNING,
            "read-only",
            f"{where}, mounted read-only: nothing there can be deleted or held",
            f"mount it writable: mount -o remount,rw {mount.point}",
        )
    if mount.is_memory:
        yield Finding(
            Severity.WARNING,
            "file-system",
            f"{where}, in memory: a restart of the machine takes it",
            "keep the store on a disk",
        )
    elif mount.is_volatile:
        yield Finding(
            Severity.WARNING,
            "file-system",
            f"{where} with the option volatile: nothing is durable, and times don't tell of writes",
            "mount it without volatile, or keep the store in a volume",
        )
    elif mount.is_network:
        yield Finding(
            Severity.WARNING,
            "file-system",
            f"{where}: writers on other machines aren't seen, and its locks may not reach them",
            "manage the store on the host that its broker runs on",
        )
    elif place.trusted is False or (place.trusted is None and mount.is_fuse):
        known = "don't" if place.trusted is False else "may not"
        yield Finding(
            Severity.NOTE,
            "file-system",
            f"{where}: its times {known} tell of writes, so each segment is read once more before it goes",
        )
