"""What disks, growth and a broker's rules come to: what goes when, and what fills when. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, duration_text, time_text
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.store.store import room_of_disks
from storage_engine.retention.doctor.figures import Figures, Growth, GrowthFrom

_FROM = {
    GrowthFrom.SAMPLES: "by the journal's samples",
    GrowthFrom.SEGMENTS: "by the times of its segments",
}


def growth_text(growth: Growth | None) -> str:
    """Say how fast a store grows and what tells it."""
    if growth is None:
        return "its growth isn't known: no samples of an hour, and no segments sealed 6 h apart"
    if growth.bytes_per_day == 0:
        return f"it didn't grow in the last day, {_FROM[growth.source]}"
    return f"it grows {bytes_text(growth.bytes_per_day)} a day, {_FROM[growth.source]}"


def space_findings(found: Figures) -> Iterator[Finding]:
    """Yield what disks that are full, or fill, will make of a store."""
    disks, levels, full = found.snapshot.log_disks, found.levels, found.full_percent
    for disk in found.snapshot.disks:
        if disk.used_percent is None:
            yield Finding.warning(
                "disk-unknown",
                f"the level of a disk isn't known: {disk.error}",
                "check that it is mounted; a broker takes it for empty, and deletes because of that",
            )
    fullest = max(disks, key=lambda disk: disk.used_percent or -1, default=None)
    used = None if fullest is None else fullest.used_percent
    if fullest is None or used is None:
        return
    what = f"{fullest.path} is {used} % used"
    if full is not None and used > full:
        yield _urgent("disk-full", f"{what}: above {full} % the broker refuses messages", _room(found))
    elif levels.forces_percent is not None and used >= levels.forces_percent:
        yield _urgent(
            "disk-forces",
            f"{what}: from {levels.forces_percent} % on the broker deletes its oldest segments, read or not",
            _room(found),
        )
    elif levels.urges_percent is not None and used >= levels.urges_percent and not found.going:
        yield _urgent(
            "disk-forces",
            f"{what}, the broker may not delete what hasn't expired, and nothing has: it fills on",
            "allow it (cleanFileForciblyEnable=true), or add space",
        )
    else:
        yield from _filling(found, what)


def _filling(found: Figures, what: str) -> Iterator[Finding]:
    levels, full = found.levels, found.full_percent
    begins = [
        (in_ms, percent, text)
        for in_ms, percent, text in (
            (
                found.forces_in_ms,
                levels.forces_percent,
                "the broker deletes its oldest segments, read or not",
            ),
            (found.full_in_ms, full, "the broker refuses messages"),
        )
        if in_ms is not None and in_ms < 3 * DAY_MS
    ]
    if begins:
        in_ms, percent, text = min(begins)
        yield Finding(
            Severity.URGENT if in_ms < DAY_MS else Severity.WARNING,
            "disk-fills",
            f"{what} and above {percent} % in {duration_text(in_ms)}, as {growth_text(found.growth)}: "
            f"then {text}",
            _room(found),
        )
    elif levels.cleans_percent is not None and _used(found) >= levels.cleans_percent:
        yield Finding.warning(
            "disk-cleans",
            f"{what}: from {levels.cleans_percent} % on the broker deletes what has expired at any hour",
            "archive ahead, or add space",
        )


def retention_findings(found: Figures, age_setting: str) -> Iterator[Finding]:
    """Yield a time that segments are to stay, and that the disk has no room for at the present growth.

    :param age_setting: the broker's setting that says how long.
    """
    kept_ms = _kept_ms(found)
    level = found.levels.forces_percent or found.full_percent
    if kept_ms is None or level is None or found.growth is None or not age_setting:
        return
    room = room_of_disks(found.snapshot.log_disks, level)
    needed = found.growth.bytes_per_day * kept_ms // DAY_MS
    if room is None or needed <= found.log_bytes + room or found.growth.bytes_per_day <= 0:
        return
    fits_ms = (found.log_bytes + room) * DAY_MS // found.growth.bytes_per_day
    yield Finding.warning(
        "retention-unreachable",
        f"{age_setting} can't be reached: {growth_text(found.growth)}, and up to {level} % there is room for "
        f"{duration_text(fits_ms)}; the broker deletes younger segments then",
        f"lower {age_setting.partition('=')[0]}, or add {bytes_text(needed - found.log_bytes - room)}",
    )


def minimum_findings(found: Figures, minimum_hours: int | None) -> Iterator[Finding]:
    """Yield a minimum retention of the store's policy that the disk has no room for."""
    if minimum_hours is None or found.growth is None or found.growth.bytes_per_day <= 0:
        return
    room = room_of_disks(found.snapshot.log_disks, found.full_percent or 100)
    needed = found.growth.bytes_per_day * minimum_hours // 24
    if room is not None and needed > found.log_bytes + room:
        yield Finding.warning(
            "minimum-retention",
            f"minimum_retention_hours {minimum_hours} needs {bytes_text(needed)}, as "
            f"{growth_text(found.growth)}; the disk has room for {bytes_text(found.log_bytes + room)}, "
            "and fills before anything may go",
            f"lower minimum_retention_hours, or add {bytes_text(needed - found.log_bytes - room)}",
        )


def _kept_ms(found: Figures) -> int | None:
    """Return how long the newest segment whose end is known stays."""
    ages = [
        at_ms - segment.mtime_ns // 1_000_000
        for segment in found.sealed
        if (at_ms := found.deletes_at_ms.get(segment.id)) is not None and at_ms > found.now_ms
    ]
    return min(ages, default=None)


def deletion_text(found: Figures) -> str:
    """Say when the broker's rules delete next."""
    at_ms = found.next_deletion_ms
    if found.going:
        return f"now: {count_text(len(found.going), 'segment')} may go by the broker's rules"
    if at_ms is None:
        return "nothing, as far as is known" if found.sealed else "nothing: no segment is sealed"
    by_space = found.forces_in_ms is not None and at_ms == found.now_ms + found.forces_in_ms
    why = f"about then the disk is above {found.levels.forces_percent} %" if by_space else "by age"
    return f"the next {time_text(at_ms)} (in {duration_text(at_ms - found.now_ms)}), {why}"


def _room(found: Figures) -> str:
    if found.going:
        return "archive and delete with proof: storage-engine clean; or add space"
    return "add space, or delete with proof: storage-engine clean"


def _used(found: Figures) -> int:
    return max((disk.used_percent or 0 for disk in found.snapshot.log_disks), default=0)


def _urgent(kind: str, what: str, advice: str) -> Finding:
    return Finding.urgent(kind, what, advice)
