"""A simulated store that the real plan cleans pass by pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from storage_engine.model.disk import DiskUsage, percent_rounded_up
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.simulation import CourseRecord, CourseStart, Inflow
from storage_engine.model.store import FileFacts, LogSnapshot, Segment, SegmentState, StoreSnapshot
from storage_engine.rocketmq.cleanup_rules import age_reason, plan
from storage_engine.rocketmq.format.broker_config import BrokerConfig


class Kept(CourseRecord):
    """Everything that happens, one by one."""

    def __init__(self, start: CourseStart, horizon_ms: int) -> None:
        super().__init__(start, horizon_ms)
        self.deletions: list[tuple[object, ...]] = []
        self.writes: list[tuple[int, bool]] = []
        self.levels: list[tuple[int, int, int]] = []

    def point(self, at_ms: int, used_bytes: int, retention_ms: int) -> None:
        self.levels.append((at_ms, used_bytes, retention_ms))

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
        self.deletions.append((at_ms, segments, size_bytes, causes, forced, unexpired))

    def accepts(self, at_ms: int, accepted: bool) -> None:
        self.writes.append((at_ms, accepted))

    def result(self, *, refused_bytes: int) -> int:  # type: ignore[override]
        return refused_bytes


class Store:
    """A log as its broker fills it, looked at in each pass as the real cleanup looks."""

    def __init__(self, config: BrokerConfig, start: CourseStart, horizon_ms: int) -> None:
        self.config, self.start, self.zone = config, start, ZoneInfo(start.time_zone)
        self.end_ms = start.now_ms + horizon_ms
        self.inflow = Inflow(start.ingest, start.now_ms, self.end_ms, self.zone)
        self.files: list[tuple[int, int, int]] = []
        base = 0
        for run in start.runs:
            for index in range(run.segments):
                self.files.append((base, run.size_bytes, run.written_ms(index)))
                base += run.size_bytes
        self.active_base, self.active_bytes = base, start.active_bytes
        self.oldest_ms = start.oldest_message_ms
        self.accepted = True

    def write(self, from_ms: int, until_ms: int) -> int:
        """Write what comes, and return what was refused."""
        before = self.inflow.until(from_ms)
        more = self.inflow.until(until_ms) - before
        if not self.accepted:
            return more
        while more:
            part = min(more, self.start.segment_bytes - self.active_bytes)
            more, before, self.active_bytes = more - part, before + part, self.active_bytes + part
            if self.active_bytes == self.start.segment_bytes:
                moments = range(from_ms, until_ms + 1)
                written_ms = moments[bisect_left(moments, before, key=self.inflow.until)]
                self.files.append((self.active_base, self.start.segment_bytes, written_ms))
                self.active_base, self.active_bytes = self.active_base + self.start.segment_bytes, 0
        return 0

    @property
    def used_bytes(self) -> int:
        log_bytes = sum(size for _, size, _ in self.files) + self.active_bytes
        return self.start.other_bytes + log_bytes + int(log_bytes * self.start.dependents_share)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        percent = percent_rounded_up(self.used_bytes, self.start.disk_bytes)
        disk = DiskUsage("/d", percent, self.start.disk_bytes, device=1)
        listed = [(*file, SegmentState.SEALED) for file in self.files]
        listed.append((self.active_base, self.start.segment_bytes, now_ms, SegmentState.ACTIVE))
        segments = tuple(
            Segment("commitlog", base, FileFacts(f"/d/{base:020d}", 1, base, size, ms * 10**6, 0), state)
            for base, size, ms, state in listed
        )
        end = self.active_base + self.active_bytes
        log = LogSnapshot("commitlog", segments, end, end)
        return StoreSnapshot("rocketmq", "/d", now_ms, (log,), (disk,), disk, crashed=False)


def pass_by_pass(config: BrokerConfig, start: CourseStart, horizon_ms: int, kept: Kept, every_ms: int) -> int:
    """Run each pass with the plan of the real cleanup; return the bytes that were refused."""
    store = Store(config, start, horizon_ms)
    due_ms = free_ms = now_ms = start.now_ms
    refused = 0
    while True:
        snapshot = store.snapshot(now_ms)
        kept.point(now_ms, store.used_bytes, now_ms - store.oldest_ms)
        percent = snapshot.log_disks[0].used_percent or 0
        accepted = store.accepted
        if percent > config.disk_space_warning_level_percent:
            accepted = False
        elif percent <= config.disk_space_clean_forcibly_percent:
            accepted = True
        if accepted != store.accepted:
            store.accepted = accepted
            kept.accepts(now_ms, accepted)
        decided = plan(snapshot, config, now_ms, store.zone, PlanRequest())
        free_ms = now_ms
        if gone := decided.to_delete:
            causes = tuple(dict.fromkeys(trigger.cause.value for trigger in decided.triggers))
            forced = any(trigger.urgency.value == "forced" for trigger in decided.triggers)
            gone, unexpired, free_ms = _by_and_by(gone, snapshot, config, now_ms, forced=forced)
            sizes = sum(segment.facts.size_bytes for segment in gone)
            kept.deletion(now_ms, len(gone), sizes, causes, forced=forced, unexpired=unexpired)
            store.oldest_ms = gone[-1].mtime_ns // 10**6
            del store.files[: len(gone)]
            kept.point(now_ms, store.used_bytes, now_ms - store.oldest_ms)
        due_ms += every_ms
        next_ms = max(due_ms, free_ms)
        if next_ms > store.end_ms:
            break
        refused += store.write(now_ms, next_ms)
        now_ms = next_ms
    refused += store.write(now_ms, store.end_ms)
    kept.point(store.end_ms, store.used_bytes, store.end_ms - store.oldest_ms)
    return refused


def _by_and_by(
    planned: Sequence[Segment], snapshot: StoreSnapshot, config: BrokerConfig, now_ms: int, *, forced: bool
) -> tuple[list[Segment], int, int]:
    """What a pass deletes that pauses after each file: the plan's, and what expires meanwhile.

    :return: also how many had not expired, and when it ends.
    """
    (log,) = snapshot.logs
    may_go = [segment for segment in log.segments if segment.base_offset < log.max_offset][:-1]
    gone, unexpired = list[Segment](), 0
    for segment in may_go[: config.delete_file_batch_max]:
        if gone:
            now_ms += config.delete_commit_log_files_interval_ms
        reason = age_reason(segment.mtime_ns // 10**6, now_ms, config, forced=forced)
        if reason is Reason.NOT_EXPIRED:
            break
        unexpired += reason is Reason.FORCED
        gone.append(segment)
    assert gone[: len(planned)] == list(planned)
    return gone, unexpired, now_ms
