"""What would be deleted and why, and what stays and why."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from storage_engine.model.store import FileFacts, Segment


class Cause(StrEnum):
    """Why a cleanup pass runs at all."""

    TIME_UP = "time-up"
    SPACE_FULL = "space-full"
    MANUAL = "manual"


class Urgency(StrEnum):
    ORDINARY = "ordinary"
    """Only what has expired goes."""
    FORCED = "forced"
    """Age is ignored."""


class Reason(StrEnum):
    """Why a segment goes, or why it stays."""

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


DELETING = frozenset({Reason.EXPIRED, Reason.FORCED})


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a caller asks beyond what the store's own settings say.

    :param manual: a person (or ``clean --manual``) triggers the pass: the cause holds at any hour.
    :param forced: a person asks to ignore age; only honoured where cleanFileForciblyEnable is true.
    :param max_segments: at most so many segments in this pass; None: the broker's batch size.
    :param target_used_percent: stop once the fullest known disk would be at or below this level.
    """

    manual: bool = False
    forced: bool = False
    max_segments: int | None = None
    target_used_percent: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A cause that holds now, with the sentence that explains it.

    :param at_once: of space: the level at which a broker deletes whatever its age, or refuses writes.
    """

    cause: Cause
    urgency: Urgency
    detail: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one segment; ``detail`` is a sentence with the figures behind it."""

    segment: Segment
    reason: Reason
    detail: str

    @property
    def deletes(self) -> bool:
        return self.reason in DELETING


class DependentKind(StrEnum):
    CONSUME_QUEUE = "consume-queue"
    CONSUME_QUEUE_EXT = "consume-queue-ext"
    BATCH_CONSUME_QUEUE = "batch-consume-queue"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class DependentFile:
    """A file that points into the log only below the new min offset, so it goes after its segments."""

    kind: DependentKind
    facts: FileFacts
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """For one log: a contiguous prefix to delete, and a reason for every segment.

    ``notices`` are things a person should read that change nothing (notice level reached, an
    unknown disk level, a mtime in the future).
    """

    store_root: str
    log: str
    decided_at_ms: int
    triggers: tuple[Trigger, ...]
    decisions: tuple[Decision, ...]
    notices: tuple[str, ...] = ()

    @property
    def to_delete(self) -> tuple[Segment, ...]:
        return tuple(d.segment for d in self.decisions if d.deletes)

    @property
    def new_min_offset(self) -> int:
        """The log's min offset once the plan is done."""
        kept = [d.segment.base_offset for d in self.decisions if not d.deletes]
        if kept:
            return min(kept)
        return max((d.segment.end_offset for d in self.decisions), default=0)

    @property
    def digest(self) -> str:
        """SHA-256 over what would be deleted: store, log, and every segment's facts."""
        content = {
            "store_root": self.store_root,
            "log": self.log,
            "delete": [[s.base_offset, asdict(s.facts)] for s in self.to_delete],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
