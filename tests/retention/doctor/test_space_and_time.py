"""Full and filling disks, and times that can't be kept, are told by what they will do."""

from __future__ import annotations

from typing import Any

import pytest

from storage_engine.core.clock import DAY_MS
from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.space_and_time import (
    Figures,
    Growth,
    GrowthFrom,
    Levels,
    deletion_text,
    growth_text,
    minimum_findings,
    retention_findings,
    space_findings,
)
from tests.retention.doctor.stores import GIB, HOUR_MS, NOW_MS, disk, figures, log_of


def growing(gib_a_day: int) -> Growth:
    return Growth(gib_a_day * GIB, GrowthFrom.SEGMENTS)


def told(found: Figures) -> list[tuple[str, Severity]]:
    return [(one.kind, one.severity) for one in space_findings(found)]


@pytest.mark.parametrize(
    ("used", "levels", "said"),
    [
        (50, Levels(76, 86, 86), []),
        (76, Levels(76, 86, 86), [("disk-cleans", Severity.WARNING)]),
        (86, Levels(76, 86, 86), [("disk-forces", Severity.URGENT)]),
        (90, Levels(76, 86, 86), [("disk-forces", Severity.URGENT)]),
        (91, Levels(76, 86, 86), [("disk-full", Severity.URGENT)]),
        # cleanFileForciblyEnable=false, and nothing has expired
        (87, Levels(76, None, 86), [("disk-forces", Severity.URGENT)]),
        (87, Levels(None, None, None), []),
        (None, Levels(76, 86, 86), [("disk-unknown", Severity.WARNING)]),
    ],
)
def test_a_level_is_told_by_what_the_broker_does_at_it(
    used: int | None, levels: Levels, said: list[tuple[str, Severity]]
) -> None:
    assert told(figures(log_of([5, 1]), disk(used), levels=levels)) == said


@pytest.mark.parametrize(
    ("gib_a_day", "said"),
    [
        (10, []),  # 36 GiB last for more than three days
        (20, [("disk-fills", Severity.WARNING)]),
        (100, [("disk-fills", Severity.URGENT)]),
        (0, []),
    ],
)
def test_a_disk_that_fills_is_told_by_how_soon(gib_a_day: int, said: list[Any]) -> None:
    assert told(figures(log_of([5, 1]), disk(50), growth=growing(gib_a_day))) == said


def test_what_goes_by_age_in_time_makes_room() -> None:
    """A store that has been full for years, and loses each day what comes in, fills no disk."""
    old = log_of([72 - hour for hour in range(72)])
    assert told(figures(old, disk(84), growth=growing(20))) == [("disk-cleans", Severity.WARNING)]
    young = log_of([hour / 10 for hour in range(72, 0, -1)])
    assert told(figures(young, disk(84), growth=growing(20))) == [("disk-fills", Severity.URGENT)]


def test_a_burst_behind_old_segments_fills_the_disk_though_they_all_go_soon() -> None:
    found = figures(log_of([71.5, 71]), disk(50), growth=growing(100))
    assert told(found) == [("disk-fills", Severity.URGENT)]


def test_a_time_that_segments_can_not_stay_is_told_with_how_long_they_do() -> None:
    log = log_of([10, 5, 1])
    (finding,) = retention_findings(figures(log, disk(50), growth=growing(40)), "fileReservedTime=72")
    assert finding.what.startswith("fileReservedTime=72 can't be reached")
    assert "the disk has room for 1 d" in finding.what
    assert "lower fileReservedTime, or add" in finding.advice
    assert not list(retention_findings(figures(log, disk(50), growth=growing(10)), "fileReservedTime=72"))
    assert not list(retention_findings(figures(log, disk(50)), "fileReservedTime=72"))
    assert not list(retention_findings(figures(log, disk(None), growth=growing(40)), "fileReservedTime=72"))


def test_a_minimum_that_the_disk_has_no_room_for_is_told() -> None:
    found = figures(log_of([10, 5, 1]), disk(50), growth=growing(40))
    (finding,) = minimum_findings(found, 48)
    assert "needs 80.0 GiB" in finding.what
    assert not list(minimum_findings(found, 12))
    assert not list(minimum_findings(found, None))


def test_the_next_deletion_is_by_age_or_by_the_disk_whichever_comes_first() -> None:
    by_age = figures(log_of([71, 1]), disk(50))
    assert by_age.next_deletion_ms == NOW_MS + HOUR_MS
    assert "(in 1 h), by age" in deletion_text(by_age)
    by_space = figures(log_of([10, 1]), disk(50), growth=growing(100))
    assert by_space.next_deletion_ms is not None
    assert by_space.next_deletion_ms < NOW_MS + DAY_MS
    assert "about then the disk is above 86 %" in deletion_text(by_space)
    now = figures(log_of([80, 1]), disk(50))
    going = figures(log_of([80, 1]), disk(50), going=now.sealed[:1])
    assert going.next_deletion_ms == NOW_MS
    assert deletion_text(going).startswith("now: 1 segment ")
    assert deletion_text(figures(log_of([]), disk(50))) == "nothing: no segment is sealed"
    assert deletion_text(figures(log_of([1]), disk(50), deletes_at_ms={})) == "nothing, as far as is known"


def test_what_tells_growth_is_said() -> None:
    assert "by the journal's samples" in growth_text(Growth(GIB, GrowthFrom.SAMPLES))
    assert "by the times of its segments" in growth_text(growing(1))
    assert "is unknown" in growth_text(None)
    assert "didn't grow" in growth_text(growing(0))
