"""The contract of a simulation: the course of a store's disk and of its broker's deletions by other settings.

All is data and pure functions, and imports only the standard library, because web servers compute courses.
A broker's :class:`BrokerRules` are those of its real cleanup. Hours of the day are those of a time zone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from zoneinfo import ZoneInfo

from storage_engine.core.clock import DAY_MS, HOUR_MS, QUARTER_MS, local_hour
from storage_engine.exceptions import BadInputError
from storage_engine.model.disk import percent_rounded_up

HOURS_A_DAY = 24
LONGEST_HORIZON_MS = 366 * DAY_MS
FLAT_PROFILE = (1.0,) * HOURS_A_DAY
MOST_SECONDS = 5.0
"""The most processor time for one course: a web server that computes it also has to serve other requests."""
_MOST_BYTES = 1 << 60


class SettingType(StrEnum):
    INT = "int"
    PERCENT = "percent"
    BOOL = "bool"
    HOURS = "hours"
    """Hours of the day in the broker's own notation, such as 04 or 02;14."""


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """A setting of the broker that a simulation can change.

    :param name: the broker's own name of the setting.
    :param minimum: least value that a person may type; None means no limit. The broker may clamp the value.
    :param unit: the value's unit, such as h, %, ms; "" if there is none.
    """

    name: str
    type: SettingType
    help: str
    minimum: int | None = None
    maximum: int | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RuleLevels:
    """The effective levels above which a broker acts.

    :param cleans_percent: above it the broker deletes expired segments at any hour.
    :param forces_percent: above it the broker deletes segments of any age; None if it never does.
    :param accepts_percent: at this level or below, the broker accepts writes again.
    """

    notice_percent: int
    cleans_percent: int
    forces_percent: int | None
    refuses_percent: int
    accepts_percent: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """Bytes that producers write to the logs while the broker accepts writes.

    :param bytes_per_day: bytes of the logs alone.
    :param profile: the weight of each hour of the day, in the store's time zone; only their ratios count.
    :param growth_per_day: growth of each day over the day before, such as 0.05 for 5 %.
    """

    bytes_per_day: int
    profile: tuple[float, ...] = FLAT_PROFILE
    factor: float = 1.0
    growth_per_day: float = 0.0

    def __post_init__(self) -> None:
        """:raises BadInputError: a value is out of its range."""
        _require_bytes("bytes_per_day", self.bytes_per_day, least=0)
        _require(len(self.profile) == HOURS_A_DAY, "profile", "24 weights, one an hour", len(self.profile))
        weights = all(0 <= weight <= _MOST_BYTES for weight in self.profile)
        _require(
            weights and sum(self.profile) > 0, "profile", "weights of 0 or more, not all 0", self.profile
        )
        _require(0 <= self.factor <= 1_000_000, "factor", "0 to 1,000,000", self.factor)
        _require(-1 <= self.growth_per_day <= 10, "growth_per_day", "-1 to 10", self.growth_per_day)

    @property
    def day_bytes(self) -> int:
        """Return the bytes of the first day."""
        return int(self.bytes_per_day * self.factor)

    def hour_bytes(self, day: int) -> tuple[int, ...]:
        """Return the ingest of each hour of a day. The course starts at day 0."""
        whole, weights = self.day_bytes * (1 + self.growth_per_day) ** day, sum(self.profile)
        return tuple(int(min(whole, _MOST_BYTES) * weight / weights) for weight in self.profile)


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Consecutive sealed segments of the same size, with equal times between their last writes.

    :param first_written_ms: time of the last write to the first segment.
    :param last_written_ms: time of the last write to the last segment.
    """

    segments: int
    size_bytes: int
    first_written_ms: int
    last_written_ms: int

    def written_ms(self, index: int) -> int:
        """Return the time of the last write to one of the segments. Index 0 is the oldest."""
        if self.segments == 1:
            return self.first_written_ms
        spread_ms = self.last_written_ms - self.first_written_ms
        return self.first_written_ms + spread_ms * index // (self.segments - 1)


@dataclass(frozen=True, slots=True)
class CourseStart:
    """The start of a simulated course: one disk, and the log on it.

    :param disk_bytes: used and usable bytes, without the file system's reserve for root.
    :param other_bytes: bytes on the disk that belong to neither the log nor its dependents.
    :param segment_bytes: size of a new segment, once it is full.
    :param runs: the sealed segments, oldest first.
    :param active_bytes: bytes written to the active segment, which isn't full.
    :param oldest_message_ms: store time of the oldest message in the log.
    :param dependents_share: bytes of queues and indexes per byte of log; 0.0 if unknown or on another disk.
    :param time_zone: IANA name of the time zone for the hours of settings and of the ingest.
    :param topic_bytes: bytes of the log by topic, where known.
    """

    now_ms: int
    disk_bytes: int
    other_bytes: int
    segment_bytes: int
    runs: tuple[SegmentRun, ...]
    active_bytes: int
    oldest_message_ms: int
    time_zone: str
    ingest: Ingest
    dependents_share: float = 0.0
    topic_bytes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """:raises BadInputError: no store can be in this state."""
        _require_bytes("disk_bytes", self.disk_bytes)
        _require_bytes("other_bytes", self.other_bytes, least=0)
        _require_bytes("segment_bytes", self.segment_bytes)
        is_part = 0 <= self.active_bytes < self.segment_bytes
        _require(is_part, "active_bytes", "less than a segment", self.active_bytes)
        _require(0 <= self.dependents_share <= 100, "dependents_share", "0 to 100", self.dependents_share)
        runs = all(run.segments > 0 and run.size_bytes > 0 for run in self.runs)
        _require(runs, "runs", "segments that have bytes", self.runs)
        _require(
            sum(run.segments for run in self.runs) <= 1_000_000, "runs", "at most 1,000,000 segments", "more"
        )

    @property
    def log_bytes(self) -> int:
        return sum(run.segments * run.size_bytes for run in self.runs) + self.active_bytes

    @property
    def used_bytes(self) -> int:
        return self.other_bytes + self.log_bytes + int(self.log_bytes * self.dependents_share)

    def changed(self, *, disk_bytes: int | None = None, ingest: Ingest | None = None) -> CourseStart:
        """Return this start on a disk of another size, or with another ingest.

        :raises BadInputError: an impossible size or ingest, such as a disk too small for its content.
        """
        if disk_bytes is not None:
            # The estimated bytes may exceed the real disk by a little.
            _require_bytes("disk_bytes", disk_bytes, least=min(self.used_bytes, self.disk_bytes))
        return replace(
            self,
            disk_bytes=self.disk_bytes if disk_bytes is None else disk_bytes,
            ingest=self.ingest if ingest is None else ingest,
        )


@dataclass(frozen=True, slots=True)
class CourseDeletion:
    """The deletions of consecutive passes that had the same causes and followed each other closely.

    :param at_ms: time of the first pass.
    :param until_ms: time of the last pass.
    :param size_bytes: bytes of the segments alone.
    :param causes: causes as in plans, such as time-up.
    :param forced: whether age was ignored.
    :param unexpired_segments: how many of ``segments`` had not expired by age.
    """

    at_ms: int
    until_ms: int
    passes: int
    segments: int
    size_bytes: int
    causes: tuple[str, ...]
    forced: bool
    unexpired_segments: int


@dataclass(frozen=True, slots=True)
class CourseSummary:
    """:param highest_percent: highest level as a whole percentage, rounded up, as brokers compare levels.
    :param refused_bytes: bytes that would have been written while writes were refused.
    :param unexpired_segments: segments that were deleted before they expired.
    """

    highest_percent: int
    end_percent: int
    shortest_retention_ms: int
    end_retention_ms: int
    refused_ms: int
    refused_bytes: int
    deleted_bytes: int
    deleted_segments: int
    unexpired_segments: int


@dataclass(frozen=True, slots=True)
class Course:
    """The course from its start, reduced to at most 2,000 points that keep each peak and each drop.

    Of two points at the same time, the first is before a deletion and the second is after it.

    :param used_percent: level of the disk, rounded up to two decimals: a value above a limit stays above it.
    :param retention_ms: age of the oldest message.
    :param refused: start and length of each time in which writes are refused.
    """

    times_ms: tuple[int, ...]
    used_percent: tuple[float, ...]
    retention_ms: tuple[int, ...]
    deletions: tuple[CourseDeletion, ...]
    refused: tuple[tuple[int, int], ...]
    summary: CourseSummary


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice that follows from the figures. A page makes a sentence of ``kind`` and ``numbers``.

    :param kind: a stable word; see the broker's rules.
    """

    kind: str
    numbers: Mapping[str, float | int | str]


class BrokerRules(ABC):
    """A broker's deletion rules, without a store. Pure. The code and imports use the standard library only.

    Settings are texts under the broker's names, as in its configuration. The broker's defaults apply to
    missing settings.
    Each method but :meth:`unsupported` raises BadInputError if the broker would not work with a value.
    """

    @property
    @abstractmethod
    def settings(self) -> tuple[RuleSetting, ...]:
        """The settings that can be changed, in the order for display."""

    @abstractmethod
    def values(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the values in effect of all ``settings``, with the broker's defaults and clamps.

        :param config: any settings of the broker. Only those in ``settings`` are returned.
        """

    def unsupported(self, config: Mapping[str, str]) -> str:
        """Return why a store with this configuration can't be simulated. "" if it can."""
        return ""

    @abstractmethod
    def levels(self, values: Mapping[str, str]) -> RuleLevels:
        """Return the levels in effect."""

    @abstractmethod
    def hours(self, values: Mapping[str, str]) -> tuple[int, ...]:
        """Return the hours of the day at which the broker deletes because of age alone."""

    @abstractmethod
    def windows(
        self, values: Mapping[str, str], time_zone: str, start_ms: int, end_ms: int
    ) -> tuple[tuple[int, int], ...]:
        """Return when the :meth:`hours` between two moments begin and end, in milliseconds.

        :param time_zone: IANA name.
        :raises BadInputError: there is no such time zone.
        """

    @abstractmethod
    def course(
        self,
        values: Mapping[str, str],
        start: CourseStart,
        horizon_ms: int,
        *,
        limit_seconds: float = MOST_SECONDS,
    ) -> Course:
        """Compute the course from its start.

        :param limit_seconds: the most processor time.
        :raises BadInputError: the horizon is too long.
        :raises SimulationTooLongError: the computation takes longer than the limit.
        """

    @abstractmethod
    def advice(
        self, values: Mapping[str, str], start: CourseStart, *, wished_hours: int | None = None
    ) -> tuple[Advice, ...]:
        """Return advice to a person on these settings, at the ingest of ``start``.

        :param wished_hours: how long messages should be kept; None means as long as the settings say.
        """


def condensed(segments: Sequence[tuple[int, int]], most_runs: int = 200) -> tuple[SegmentRun, ...]:
    """Merge sealed segments into a few runs, for a record that has to be small.

    :param segments: size and time of the last write of each segment, oldest first.
    :param most_runs: the approximate number of runs. Segments of different sizes are never in one run.
    """
    longest = max(1, -(-len(segments) // most_runs))
    runs: list[list[tuple[int, int]]] = []
    for segment in segments:
        if runs and runs[-1][0][0] == segment[0] and len(runs[-1]) < longest:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return tuple(SegmentRun(len(run), run[0][0], run[0][1], run[-1][1]) for run in runs)


def _require(holds: bool, subject: str, expected: str, value: object) -> None:
    if not holds:
        raise BadInputError(f"{subject}: expected {expected}, found {value!r}.")


def _require_bytes(subject: str, value: int, *, least: int = 1) -> None:
    _require(least <= value <= _MOST_BYTES, subject, f"{least} to {_MOST_BYTES}", value)


_BUCKETS = 330
"""Number of groups of points. A group keeps its first and last point, and the extremes of level and age."""
_SPANS = 1_000
_UNSET = -1


class CourseRecord:
    """Records the events of a simulation in their order, and makes a course from them."""

    def __init__(self, start: CourseStart, horizon_ms: int) -> None:
        self._disk_bytes = start.disk_bytes
        self._start_ms, self._end_ms = start.now_ms, start.now_ms + horizon_ms
        self._bucket_ms = max(1, -(-horizon_ms // _BUCKETS))
        self._bucket_end_ms = start.now_ms
        self._bucket: list[tuple[int, int, int]] = []
        self._points: list[tuple[int, int, int]] = []
        self._highest_bytes = 0
        self._shortest_ms: int | None = None
        self._runs: list[CourseDeletion] = []
        self._open: dict[tuple[tuple[str, ...], bool], int] = {}
        self._refused: list[tuple[int, int]] = []
        self._refused_since_ms = _UNSET
        self._refused_ms = 0

    def point(self, at_ms: int, used_bytes: int, retention_ms: int) -> None:
        """Record the level of the disk and the age of the oldest message."""
        if used_bytes > self._highest_bytes:
            self._highest_bytes = used_bytes
        if self._shortest_ms is None or retention_ms < self._shortest_ms:
            self._shortest_ms = retention_ms
        if at_ms >= self._bucket_end_ms:
            self._close_bucket()
            passed = (at_ms - self._start_ms) // self._bucket_ms
            self._bucket_end_ms = self._start_ms + (passed + 1) * self._bucket_ms
        self._bucket.append((at_ms, used_bytes, retention_ms))

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
        """Record a pass's deletions, in one entry with recent deletions that had the same causes."""
        index = self._open.get((causes, forced))
        if index is not None:
            run = self._runs[index]
            if at_ms - run.until_ms <= self._bucket_ms and at_ms - run.at_ms < DAY_MS:
                self._runs[index] = replace(
                    run,
                    until_ms=at_ms,
                    passes=run.passes + 1,
                    segments=run.segments + segments,
                    size_bytes=run.size_bytes + size_bytes,
                    unexpired_segments=run.unexpired_segments + unexpired,
                )
                return
        self._open[causes, forced] = len(self._runs)
        self._runs.append(CourseDeletion(at_ms, at_ms, 1, segments, size_bytes, causes, forced, unexpired))

    def accepts(self, at_ms: int, accepted: bool) -> None:
        """Record whether writes are accepted or refused from this time on."""
        if not accepted:
            self._refused_since_ms = at_ms
        elif self._refused_since_ms != _UNSET:
            self._end_refusal(at_ms)

    def _end_refusal(self, at_ms: int) -> None:
        since_ms = self._refused_since_ms
        self._refused_ms += at_ms - since_ms
        gap_ms = (self._end_ms - self._start_ms) // _SPANS
        if self._refused and since_ms - self._refused[-1][1] <= gap_ms:
            since_ms = self._refused.pop()[0]
        self._refused.append((since_ms, at_ms))
        self._refused_since_ms = _UNSET

    def result(self, *, refused_bytes: int) -> Course:
        """Return the course. Called after the last point was recorded."""
        if self._refused_since_ms != _UNSET:
            self._end_refusal(self._end_ms)
        end = self._bucket[-1]
        self._close_bucket()
        return Course(
            times_ms=tuple(at_ms for at_ms, _, _ in self._points),
            used_percent=tuple(-(-used * 10_000 // self._disk_bytes) / 100 for _, used, _ in self._points),
            retention_ms=tuple(retention for _, _, retention in self._points),
            deletions=tuple(self._runs),
            refused=tuple(self._refused),
            summary=CourseSummary(
                highest_percent=percent_rounded_up(self._highest_bytes, self._disk_bytes),
                end_percent=percent_rounded_up(end[1], self._disk_bytes),
                shortest_retention_ms=self._shortest_ms or 0,
                end_retention_ms=end[2],
                refused_ms=self._refused_ms,
                refused_bytes=refused_bytes,
                deleted_bytes=sum(run.size_bytes for run in self._runs),
                deleted_segments=sum(run.segments for run in self._runs),
                unexpired_segments=sum(run.unexpired_segments for run in self._runs),
            ),
        )

    def _close_bucket(self) -> None:
        points, self._bucket = self._bucket, []
        if len(points) > 6:
            _, by_used, by_age = zip(*points, strict=True)
            extremes = {values.index(limit(values)) for values in (by_used, by_age) for limit in (min, max)}
            points = [points[index] for index in sorted({0, *extremes, len(points) - 1})]
        self._points += points


class Inflow:
    """The bytes that arrive from a moment on, if the broker accepts all of them.

    :param zone: time zone of the hours in the ingest's profile.
    """

    def __init__(self, ingest: Ingest, start_ms: int, end_ms: int, zone: ZoneInfo) -> None:
        first_ms = start_ms - start_ms % QUARTER_MS
        self._times: list[int] = []
        self._sums: list[int] = []
        self._rates: list[int] = []
        """Bytes per hour, between the time at the same index and the next time."""
        sum_bytes, by_day = 0, dict[int, tuple[int, ...]]()
        for time_ms in range(first_ms, end_ms + QUARTER_MS, QUARTER_MS):
            day = max(time_ms - start_ms, 0) // DAY_MS
            if day not in by_day:
                by_day[day] = ingest.hour_bytes(day)
            rate = by_day[day][local_hour(time_ms, zone)]
            self._times.append(time_ms)
            self._sums.append(sum_bytes)
            self._rates.append(rate)
            sum_bytes += rate * QUARTER_MS // HOUR_MS
        self._end_bytes = sum_bytes

    def until(self, time_ms: int) -> int:
        """Return how many bytes have arrived by a moment, which must be between start and end."""
        index = bisect_right(self._times, time_ms) - 1
        return self._sums[index] + self._rates[index] * (time_ms - self._times[index]) // HOUR_MS

    def when(self, sum_bytes: int) -> int | None:
        """Return the first moment by which this many bytes have arrived. None if fewer arrive by the end.

        :param sum_bytes: > 0, counted as by :meth:`until`.
        """
        if sum_bytes > self._end_bytes:
            return None
        index = bisect_right(self._sums, sum_bytes - 1) - 1
        return self._times[index] - (self._sums[index] - sum_bytes) * HOUR_MS // self._rates[index]


def ingest_from(points: Sequence[tuple[int, int]], zone: ZoneInfo) -> Ingest | None:
    """Return the ingest computed from a log's growth, with its profile over the hours of the day.

    :param points: moments and the log's max offset at each, oldest first.
    :param zone: time zone of the profile's hours.
    :return: None if fewer than two moments are known, or no bytes arrived between them.
    """
    arrived, covered_ms = [0.0] * HOURS_A_DAY, [0.0] * HOURS_A_DAY
    for (start_ms, start), (end_ms, end) in pairwise(points):
        if end_ms <= start_ms or end < start:
            continue
        rate = (end - start) / (end_ms - start_ms)
        time_ms = start_ms
        while time_ms < end_ms:
            until_ms = min(end_ms, time_ms - time_ms % QUARTER_MS + QUARTER_MS)
            hour = local_hour(time_ms, zone)
            arrived[hour] += rate * (until_ms - time_ms)
            covered_ms[hour] += until_ms - time_ms
            time_ms = until_ms
    if sum(covered_ms) == 0 or sum(arrived) <= 0:
        return None
    mean = sum(arrived) / sum(covered_ms)
    rates = [bytes_ / ms if ms else mean for bytes_, ms in zip(arrived, covered_ms, strict=True)]
    bytes_per_day = int(sum(rates) / HOURS_A_DAY * DAY_MS)
    if bytes_per_day == 0:
        return None
    return Ingest(bytes_per_day, tuple(round(rate / max(rates), 4) for rate in rates))


def most_bytes_within(ingest: Ingest, hours: int) -> int:
    """Return the most bytes that arrive within this many hours, whichever hour of the day is the first."""
    whole_days, rest = divmod(hours, HOURS_A_DAY)
    by_hour = ingest.hour_bytes(0)
    two_days = (*by_hour, *by_hour)
    most = max(sum(two_days[first : first + rest]) for first in range(HOURS_A_DAY))
    return whole_days * sum(by_hour) + most
