"""Plans: segments to delete and to keep with reasons, a person's request, and a second person's approval.
Nothing here permits a deletion: :mod:`storage_engine.retention.proof.gate` does.

Also a plan's decisions in short: neighbouring segments with the same decision are shown as one entry. Pure.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from operator import lt
from typing import Protocol, TypeVar

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.model.disk import DiskUsage, percent_rounded_up
from storage_engine.model.settings.policy import ApprovalPolicy
from storage_engine.model.store import FileFacts, Segment

T = TypeVar("T")


class Cause(StrEnum):
    """Cause of a cleanup pass."""

    TIME_UP = "time-up"
    SPACE_FULL = "space-full"
    MANUAL = "manual"


class Urgency(StrEnum):
    ORDINARY = "ordinary"
    """Only expired segments are deleted."""
    FORCED = "forced"
    """Age is ignored."""


class Reason(StrEnum):
    """The reason why a segment is deleted or kept."""

    EXPIRED = "expired"
    FORCED = "forced"
    NO_CAUSE = "no-cause"
    ACTIVE = "active"
    NOT_EXPIRED = "not-expired"
    BEHIND_KEPT = "behind-kept"
    BATCH_FULL = "batch-full"
    TARGET_REACHED = "target-reached"
    NOT_DISPATCHED = "not-dispatched"
    STORE_CRASHED = "store-crashed"
    LAG_BLOCKED = "lag-blocked"
    PENDING_BLOCKED = "pending-blocked"
    MINIMUM_RETENTION = "minimum-retention"
    REFUSED = "refused"
    """A segment of its log is not in the state that the plan needs, so no segment of that log is deleted."""
    UNKNOWN = "unknown"
    """A fact that the decision needs is unknown. An unknown fact never permits a deletion."""
    UNLIMITED = "unlimited"
    """No limit of age or size applies to its log."""
    SIZE_NOT_REACHED = "size-not-reached"
    """Only a size limit applies to its log, and without this segment the log would be below the limit."""
    FUTURE_TIMESTAMP = "future-timestamp"
    """Its newest record has a future time, and the segment's age counts from that time."""
    NOT_REPLICATED = "not-replicated"
    """Some required replicas don't have the segment yet."""
    COMPACTED = "compacted"
    """Only the broker's cleaner removes records from its log."""
    NOT_ARCHIVABLE = "not-archivable"
    """The segment has expired, but may not be archived yet: for example, it has an open transaction."""
    REPLICAS_ELSEWHERE = "replicas-elsewhere"
    """Other nodes have or may have replicas of its log, and it is unknown whether these nodes are stopped."""
    NOT_HELD = "not-held"
    """Its log isn't held now, or has no leader. Used where we delete beside a running broker."""
    REMOTE_STORAGE = "remote-storage"
    """Its log is copied to remote storage, and only the broker knows the content there."""


DELETING = frozenset({Reason.EXPIRED, Reason.FORCED})


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A caller's request for one plan, in addition to the store's settings.

    :param manual: a person (or ``clean --manual``) asks for the pass. That is a cause at any hour.
    :param forced: a person asks to ignore age; only honoured where cleanFileForciblyEnable is true.
    :param max_segments: the most segments to delete in this pass; None means the broker's batch size.
    :param target_used_percent: stop once the fullest known disk would be at or below this level.
    :param dry_run: only plan, measure consumer lag and report: nothing is archived or deleted.
    :param replicas_stopped: a person's statement that every other node with a replica is stopped, and how the
        person knows; "" if there is no such statement.
    :param free_bytes: stop once each disk with deleted segments has this many bytes free; None if there is no
        such limit. Some brokers' plans ignore it.
    """

    manual: bool = False
    forced: bool = False
    max_segments: int | None = None
    target_used_percent: int | None = None
    reason: str = ""
    dry_run: bool = False
    replicas_stopped: str = ""
    free_bytes: int | None = None


def wanted_bytes(disk: DiskUsage, request: PlanRequest) -> int | None:
    """Return how many bytes of a disk a request wants to be free. None if the disk's size isn't known."""
    if disk.total_bytes is None:
        return None
    free_bytes = request.free_bytes or 0
    if request.target_used_percent is None:
        return free_bytes
    return max(free_bytes, -(-disk.total_bytes * (100 - request.target_used_percent) // 100))


class Release(Protocol):
    """Deletes proven segments in the broker's place. It is called for each pass that may delete segments."""

    def __call__(self, request: PlanRequest) -> object: ...

    def stop(self) -> None:
        """Stop the running call at its next step, and start no new call. Called by another thread."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A cause that holds now for every log of the store, with the sentence that explains it.

    :param at_once: the disk is so full that the broker deletes segments of any age, or refuses writes.
    """

    cause: Cause
    urgency: Urgency
    detail: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one segment. ``detail`` is a sentence with the figures that decided."""

    segment: Segment
    reason: Reason
    detail: str

    @property
    def deletes(self) -> bool:
        return self.reason in DELETING


@dataclass(frozen=True, slots=True)
class DependentFile:
    """A file that points only below the log's new min offset. Such files are deleted after the segments.

    :param kind: the broker's word for such files.
    """

    kind: str
    facts: FileFacts
    detail: str


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The decisions on one log's segments, oldest first. The deleted segments are a contiguous prefix."""

    log: str
    decisions: tuple[Decision, ...]

    def __post_init__(self) -> None:
        """:raises ValueError: a decision is on another log's segment, or two are on one segment."""
        segments = [decision.segment for decision in self.decisions]
        if not {segment.log for segment in segments} <= {self.log}:
            raise ValueError(f"log {self.log}: expected decisions on its own segments, found another log's")
        offsets = [segment.base_offset for segment in segments]
        if not all(map(lt, offsets, offsets[1:])):
            raise ValueError(f"log {self.log}: expected decisions by growing base offset, found {offsets}")

    @property
    def to_delete(self) -> tuple[Segment, ...]:
        return tuple([decision.segment for decision in self.decisions if decision.reason in DELETING])

    def kept(self, reason: Reason, why: str, *, from_offset: int = 0) -> list[Decision]:
        """Return the decisions. From an offset on, segments to delete are kept instead, for this reason."""
        return [
            Decision(decision.segment, reason, why)
            if decision.deletes and decision.segment.base_offset >= from_offset
            else decision
            for decision in self.decisions
        ]

    @property
    def new_min_offset(self) -> int:
        """The log's min offset after the plan's deletions."""
        offsets = [decision.segment.base_offset for decision in self.decisions if not decision.deletes]
        if offsets:
            return min(offsets)
        return max((decision.segment.end_offset for decision in self.decisions), default=0)

    def with_going(self, change: Callable[[Decision], Decision]) -> LogPlan:
        """Return the plan, with each decision to delete replaced by ``change``."""
        return LogPlan(self.log, tuple(change(old) if old.deletes else old for old in self.decisions))


@dataclass(frozen=True, slots=True)
class Plan:
    """For each log of a store: a prefix to delete, and a reason for every segment.

    :param logs: in the order of their names, each once. A decision on one log never depends on another log.
    :param notices: sentences that a person should read and that change nothing (notice level reached, an
        unknown disk level, a mtime in the future).
    :param store_id: the store's id; None if it has no identity yet, or the plan is older than this field.
    :param lineage: the store's lineage; None in the same cases as ``store_id``.
    :param log_lineages: lineages of the logs that have a lineage of their own, by the log's name.
    """

    store_root: str
    decided_at_ms: int
    triggers: tuple[Trigger, ...]
    logs: tuple[LogPlan, ...]
    notices: tuple[str, ...] = ()
    store_id: str | None = None
    lineage: int | None = None
    log_lineages: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """:raises ValueError: the plan has two entries for one log."""
        if len({log.log for log in self.logs}) < len(self.logs):
            raise ValueError(f"{self.store_root}: expected each log once, found a log twice")

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(decision for log in self.logs for decision in log.decisions)

    @property
    def to_delete(self) -> tuple[Segment, ...]:
        """Return the segments to delete: log by log, each log's oldest segment first."""
        return tuple(decision.segment for decision in self.decisions if decision.deletes)

    @property
    def log_names(self) -> frozenset[str]:
        return frozenset(log.log for log in self.logs)

    @property
    def new_min_offsets(self) -> dict[str, int]:
        """Return, by name, the new min offset of each log from which the plan deletes a segment."""
        return {log.log: log.new_min_offset for log in self.logs if log.to_delete}

    @property
    def digest(self) -> str:
        """SHA-256 over the planned deletion: store, logs, and every segment's facts.

        Older approvals and waivers name a plan's digest, so the digest of a simple plan is computed as in
        earlier releases. A simple plan has one log, at the store's lineage. Its segments are single files
        whose offsets count bytes.
        """
        content: dict[str, object] = {"store_root": self.store_root}
        plain = not any(segment.companions or segment.end is not None for segment in self.to_delete)
        if len(self.logs) == 1 and plain and not self.log_lineages:
            (log,) = self.logs
            # Not asdict, which copies each value.
            deleted = [[segment.base_offset, to_jsonable(segment.facts)] for segment in log.to_delete]
            content |= {"log": log.log, "delete": deleted}
        else:
            content |= {
                "version": 2,
                "store_id": self.store_id,
                "lineage": self.lineage,
                "logs": {log.log: [_list_fields(segment) for segment in log.to_delete] for log in self.logs},
            }
            if self.log_lineages:
                content["log_lineages"] = dict(self.log_lineages)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def each_log(self, decide: Callable[[LogPlan], Sequence[Decision]]) -> Plan:
        """Return the plan with each log's decisions replaced.

        :param decide: returns a log's decisions from that log's plan alone.
        """
        return replace(self, logs=tuple(LogPlan(log.log, tuple(decide(log))) for log in self.logs))


def of_only_log(by_log: Mapping[str, T]) -> T | None:
    """Return the value of the only log; None if there are several logs, or none."""
    return next(iter(by_log.values())) if len(by_log) == 1 else None


def _list_fields(segment: Segment) -> tuple[object, ...]:
    fields = (segment.base_offset, *_list_facts(segment.facts))
    if segment.end is None and not segment.companions:
        return fields
    return (*fields, segment.end, [_list_facts(companion) for companion in segment.companions])


def _list_facts(facts: FileFacts) -> tuple[int | str, ...]:
    times = (facts.mtime_ns, facts.ctime_ns)
    return (facts.path, facts.device, facts.inode, facts.size_bytes, *times)


def check_limits(request: PlanRequest) -> None:
    """:raises BadInputError: the request's number of segments or its level in percent is impossible."""
    if request.max_segments is not None and request.max_segments < 0:
        raise BadInputError(
            f"max_segments: expected 0 or more, found {request.max_segments}. Nothing was "
            "changed. Correct it."
        )
    target = request.target_used_percent
    if target is not None and not 0 <= target <= 100:
        raise BadInputError(
            f"target_used_percent: expected 0 to 100, found {target}. Nothing was changed. Correct it."
        )


def limit_plans(
    logs: Sequence[LogPlan], request: PlanRequest, disks: Sequence[DiskUsage], disk_name: str
) -> tuple[LogPlan, ...]:
    """Limit the plans of a store's logs to a person's request. The oldest segments of all logs go first.

    :param disk_name: word for one of these disks in messages.
    :raises BadInputError: as :func:`check_limits`.
    """
    check_limits(request)
    if request.max_segments is None and request.target_used_percent is None:
        return tuple(logs)
    # Of each log, the first segment that isn't chosen yet: a plan deletes a prefix of a log.
    heap = [(log.to_delete[0].mtime_ns, number, 0) for number, log in enumerate(logs) if log.to_delete]
    heapq.heapify(heap)
    going: list[Segment] = []
    why = Reason.BATCH_FULL, f"by request, at most {request.max_segments} segments are deleted in one pass"
    while heap and len(going) != request.max_segments:
        reached = target_reached(disks, going, request.target_used_percent, disk_name)
        if reached:
            why = Reason.TARGET_REACHED, reached
            break
        _, number, place = heapq.heappop(heap)
        segments = logs[number].to_delete
        going.append(segments[place])
        if place + 1 < len(segments):
            heapq.heappush(heap, (segments[place + 1].mtime_ns, number, place + 1))
    chosen = {segment.id for segment in going}
    return tuple(
        log.with_going(lambda old: old if old.segment.id in chosen else Decision(old.segment, *why))
        for log in logs
    )


def target_reached(
    disks: Sequence[DiskUsage], going: Sequence[Segment], target: int | None, disk_name: str
) -> str:
    """Return why the target is reached after the deletion of ``going``.

    Return "" if the target isn't reached, or there is no target. The fullest disk with known figures decides.
    If no disk has known figures, the target counts as reached, so that nothing more is deleted.

    :param disk_name: word for one of the log's disks in messages.
    """
    if target is None:
        return ""
    levels = []
    for disk in disks:
        if (
            disk.used_percent is None
            or not disk.total_bytes
            or disk.usable_bytes is None
            or disk.device is None
        ):
            continue
        freed = sum(segment.facts.size_bytes for segment in going if segment.facts.device == disk.device)
        used = max(disk.total_bytes - disk.usable_bytes - freed, 0)
        levels.append((percent_rounded_up(used, disk.total_bytes), disk.path))
    if not levels:
        return f"no {disk_name}'s level is known, so nothing says that the target {target} % is not reached"
    percent, path = max(levels)
    if percent > target:
        return ""
    return (
        f"{path}, the fullest {disk_name}, is at about {percent} % with {len(going)} segments gone: the "
        f"target {target} % is reached"
    )


class Realm(StrEnum):
    """The authority for a person's name. Names from two authorities can't be compared."""

    SHELL = "shell"
    """The operating system: the real user id of a process."""
    AIRFLOW = "airflow"
    """Airflow's auth manager."""


@dataclass(frozen=True, slots=True)
class Person:
    """:param uid: real user id of an account at a shell.
    :param behind: the user who took the account by sudo, as the environment says; "" if there is no such
        user, or if unknown.
    """

    realm: Realm
    name: str
    uid: int | None = None
    behind: str = ""
    host: str = ""
    user_id: str = ""

    @property
    def text(self) -> str:
        """Return the person's name, for messages."""
        if self.realm is Realm.AIRFLOW:
            return f"{self.name} (Airflow)"
        return f"{self.name} (uid {self.uid}{f', for {self.behind}' if self.behind else ''})"

    def is_another(self, other: Person) -> bool:
        """Return whether ``other`` is certainly a different person. False if the two can't be compared."""
        if self.realm is not other.realm:
            return False
        names = [{name.casefold() for name in (side.name, side.behind) if name} for side in (self, other)]
        return all(names) and not names[0] & names[1] and (self.uid is None or self.uid != other.uid)


@dataclass(frozen=True, slots=True)
class Starter:
    """The starter of a run; ``person`` is None for a schedule or an asset of Airflow."""

    realm: Realm
    person: Person | None


class Said(StrEnum):
    APPROVED = "approved"
    REJECTED = "rejected"
    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    """Approved by a person who may not approve: the starter, or a user who isn't on the list."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer about a plan.

    :param person: the person who answered; None if nobody did.
    :param at_ms: time of the answer, on the clock of the machine that received it.
    :param detail: why an answer doesn't count.
    """

    digest: str
    said: Said
    person: Person | None
    at_ms: int
    detail: str = ""

    @property
    def approver(self) -> Person | None:
        """Return the person who approved the plan; None if the reply is no approval."""
        return self.person if self.said is Said.APPROVED else None


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """An open question to a second person about a plan.

    :param why: why a second person has to approve the plan, as a clause.
    :param until_ms: an answer from this time on doesn't count; None if there is no time limit, as at a shell.
    :param link: address of the page for the answer.
    """

    digest: str
    why: str
    asked_at_ms: int
    until_ms: int | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """The strictest policy that a store has had since two persons last lowered it.

    :param minimum_retention_hours: the longest minimum retention since that time. A run with less counts as
        forced.
    :param persons: the two persons who lowered it: the one who asked and the one who approved.
    :param at_ms: when the policy was last lowered: the later of the times in the journal and in the stamp.
    :param kept_ms: the longest retention in the settings since that time, if known. A run with less counts as
        forced.
    :param archived: whether proof has been required since that time. Then a run with ``archive: off`` counts
        as forced.
    """

    approval: ApprovalPolicy
    minimum_retention_hours: int | None = None
    persons: tuple[Person, ...] = ()
    at_ms: int = 0
    kept_ms: int | None = None
    archived: bool = False

    def raised_by(
        self,
        approval: ApprovalPolicy,
        minimum_hours: int | None,
        kept_ms: int | None = None,
        *,
        archived: bool = False,
    ) -> RecordedPolicy:
        """Return the policy after a run with these settings, which can only make the policy stricter."""
        hours = [value for value in (self.minimum_retention_hours, minimum_hours) if value is not None]
        periods = [value for value in (self.kept_ms, kept_ms) if value is not None]
        strictest = max(self.approval, approval, key=lambda policy: policy.rank)
        if strictest is ApprovalPolicy.NONE:
            return self
        most = max(hours, default=None), self.persons, self.at_ms, max(periods, default=None)
        return RecordedPolicy(strictest, *most, archived=self.archived or archived)


NOTHING_RECORDED = RecordedPolicy(ApprovalPolicy.NONE)


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)")
_PLACE = "\N{NULL}"


@dataclass(frozen=True, slots=True)
class DecisionRun:
    """Decisions on neighbouring segments of a log whose texts are equal except for times.

    :param decisions: the decisions, oldest segment first.
    :param detail: one text for all decisions. Where their times differ, it has the first and the last time.
    """

    decisions: tuple[Decision, ...]
    detail: str

    @property
    def deletes(self) -> bool:
        return self.decisions[0].deletes

    @property
    def reason(self) -> Reason:
        return self.decisions[0].reason

    @property
    def disk_bytes(self) -> int:
        return sum(decision.segment.disk_bytes for decision in self.decisions)

    @property
    def names(self) -> str:
        """Return the segment's name, or the names of the first and the last of several."""
        first, last = self.decisions[0].segment.name, self.decisions[-1].segment.name
        count = len(self.decisions)
        return first if count == 1 else f"{first} … {last} ({count} segments)"


def runs_of(
    decisions: Sequence[Decision], detail: Callable[[Decision], str] = lambda decision: decision.detail
) -> Iterator[DecisionRun]:
    """Yield runs of neighbouring decisions whose texts differ only in times.

    :param detail: returns the part of a decision's text to show.
    """
    for _, group in groupby(decisions, lambda decision: (decision.reason, without_moments(detail(decision)))):
        run = tuple(group)
        yield DecisionRun(run, with_spans([detail(decision) for decision in run]))


def without_moments(detail: str) -> str:
    """Return a decision's text without its times. Neighbours whose texts are then equal are shown once."""
    return _MOMENT.sub(_PLACE, detail)


def with_spans(details: Sequence[str]) -> str:
    """Return one text for texts that differ only in times. Different times become "FIRST to LAST"."""
    spans = [
        moments[0] if len(set(moments)) == 1 else f"{min(moments)} to {max(moments)}"
        for moments in zip(*(_MOMENT.findall(text) for text in details), strict=True)
    ]
    texts = iter(spans)
    return _MOMENT.sub(lambda _: next(texts), details[0])
