"""Courses of stores over days: what the broker's own cleaning classes do, and what the simulation says.

The scenarios in ``tests/fixtures/courses`` were run through the classes of a RocketMQ 5.3.3 broker, pass by
pass, with clock and disk driven (``tests/java/cleaning``). ``courses.jsonl.gz`` keeps what they did.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS
from storage_engine.model.plan import Cause
from storage_engine.model.simulation import Course, CourseRecord, CourseStart, Ingest, SegmentRun
from storage_engine.rocketmq.simulation import config_of, course

FIXTURES = Path(__file__).resolve().parent / "fixtures" / "courses"
KEPT = FIXTURES / "courses.jsonl.gz"
_SECONDS = 60


class Deletion(NamedTuple):
    """What one pass deleted; the moment is counted from the start of the course."""

    after_ms: int
    segments: int
    unexpired_segments: int
    time_up: bool
    space_full: bool
    forced: bool


class Hour(NamedTuple):
    """A store at a full hour since the start of its course."""

    used_bytes: int
    percent: int
    retention_ms: int


class Highest(NamedTuple):
    """The fullest that a disk was, before a pass or at a full hour."""

    after_ms: int
    used_bytes: int
    retention_ms: int


@dataclass(frozen=True)
class PassCourse:
    """A course, pass by pass.

    :param refused: from the pass that refuses writes to the one that accepts them again, which may not come.
    :param hours: of the broker's alone, as ``highest`` is.
    """

    deletions: tuple[Deletion, ...]
    refused: tuple[tuple[int, int | None], ...]
    hours: tuple[Hour, ...] = ()
    highest: Highest | None = None

    @classmethod
    def of(cls, printed: Mapping[str, Any]) -> PassCourse:
        """Return a course as Java prints it."""
        return cls(
            tuple(Deletion(*fields[:3], *map(bool, fields[3:])) for fields in printed["deletions"]),
            tuple((from_ms, until_ms) for from_ms, until_ms in printed["refused"]),
            tuple(Hour(*fields) for fields in printed["hours"]),
            Highest(*printed["highest"]),
        )


@dataclass(frozen=True)
class Scenario:
    """A store, its settings and its ingest, as both sides read them."""

    name: str
    values: Mapping[str, Any]

    @property
    def settings(self) -> Mapping[str, str]:
        settings: Mapping[str, str] = self.values["settings"]
        return settings

    @property
    def horizon_ms(self) -> int:
        return int(self.values["days"]) * DAY_MS

    @property
    def start_ms(self) -> int:
        return int(self.values["start_ms"])

    def start(self) -> CourseStart:
        """
        :raises BadInputError: no simulation can begin so.
        """
        values, segments = self.values, self.values["segments"]
        size_bytes, count = values["segment_bytes"], segments["count"]
        last_ms = self.start_ms + segments["last_after_ms"]
        first_ms = last_ms - (count - 1) * segments["every_ms"]
        return CourseStart(
            now_ms=self.start_ms,
            disk_bytes=values["disk_bytes"],
            other_bytes=values["other_bytes"],
            segment_bytes=size_bytes,
            runs=(SegmentRun(count, size_bytes, first_ms, last_ms),),
            active_bytes=0,
            oldest_message_ms=first_ms - segments["every_ms"],
            time_zone=values["time_zone"],
            ingest=Ingest(
                values["bytes_per_day"],
                tuple(map(float, values["profile"])),
                growth_per_day=values["growth_per_day"],
            ),
        )


def scenarios() -> dict[str, Path]:
    """Return the scenarios' files by their names."""
    return {path.stem: path for path in sorted(FIXTURES.glob("*.json"))}


def scenario(name: str) -> Scenario:
    """Read a scenario."""
    return Scenario(name, json.loads(scenarios()[name].read_text()))


def kept_courses() -> dict[str, PassCourse]:
    """Return what the broker's classes did in all scenarios."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as lines:
        return courses_of(lines.read().splitlines())


def courses_of(lines: Sequence[str]) -> dict[str, PassCourse]:
    """Return courses by the names of their scenarios, as Java prints them."""
    return {printed["name"]: PassCourse.of(printed) for printed in map(json.loads, lines)}


class _EachPass(CourseRecord):
    """Keeps each deletion beside what a course keeps of many."""

    def __init__(self, start: CourseStart, horizon_ms: int) -> None:
        super().__init__(start, horizon_ms)
        self.start_ms = start.now_ms
        self.deletions: list[Deletion] = []
        self.refused: list[tuple[int, int | None]] = []

    def deletion(
        self,
        at_ms: int,
        segments: int,
        size_bytes: int,
        causes: tuple[str, ...],
        *,
        forced: bool,
        unexpired: int,
    ) -> None:
        super().deletion(at_ms, segments, size_bytes, causes, forced=forced, unexpired=unexpired)
        by_time, by_space = Cause.TIME_UP.value in causes, Cause.SPACE_FULL.value in causes
        self.deletions.append(Deletion(at_ms - self.start_ms, segments, unexpired, by_time, by_space, forced))

    def accepts(self, at_ms: int, accepted: bool) -> None:
        super().accepts(at_ms, accepted)
        if accepted:
            self.refused[-1] = self.refused[-1][0], at_ms - self.start_ms
        else:
            self.refused.append((at_ms - self.start_ms, None))


def simulated(given: Scenario) -> tuple[Course, PassCourse]:
    """Simulate a scenario; return its course as a page draws it, and pass by pass."""
    start = given.start()
    record = _EachPass(start, given.horizon_ms)
    zone = ZoneInfo(start.time_zone)
    drawn = course(config_of(given.settings), start, given.horizon_ms, zone, _SECONDS, record)
    return drawn, PassCourse(tuple(record.deletions), tuple(record.refused))
