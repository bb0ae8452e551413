"""What is kept of a course while it is computed: few points, with each peak and each drop."""

from __future__ import annotations

from storage_engine.core.clock import DAY_MS
from storage_engine.model.course.course import Course, CourseDeletion, CourseStart, CourseSummary
from storage_engine.model.store.store import percent_rounded_up

_BUCKETS = 330
"""Each keeps six points: the first, the last, and the extremes of level and retention time."""
_SPANS = 1_000
_UNSET = -1


class CourseRecord:
    """Takes what happens in the order in which it does."""

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
        """Keep how full the disk is, and how old the oldest message."""
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
        """Keep what a pass deleted, together with those shortly before it for the same causes."""
        index = self._open.get((causes, forced))
        if index is not None:
            run = self._runs[index]
            if at_ms - run.until_ms <= self._bucket_ms and at_ms - run.at_ms < DAY_MS:
                self._runs[index] = CourseDeletion(
                    run.at_ms,
                    at_ms,
                    run.passes + 1,
                    run.segments + segments,
                    run.size_bytes + size_bytes,
                    causes,
                    forced,
                    run.unexpired_segments + unexpired,
                )
                return
        self._open[causes, forced] = len(self._runs)
        self._runs.append(CourseDeletion(at_ms, at_ms, 1, segments, size_bytes, causes, forced, unexpired))

    def accepts(self, at_ms: int, accepted: bool) -> None:
        """Keep that writes are accepted or refused from this moment on."""
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
        """Return the course, after the point of its end."""
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
            by_used = [used for _, used, _ in points]
            by_age = [retention for _, _, retention in points]
            extremes = (min(by_used), max(by_used), min(by_age), max(by_age))
            found = (
                by_used.index(extremes[0]),
                by_used.index(extremes[1]),
                by_age.index(extremes[2]),
                by_age.index(extremes[3]),
            )
            points = [points[index] for index in sorted({0, *found, len(points) - 1})]
        self._points += points
