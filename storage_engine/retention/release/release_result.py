"""What a release did: what went, and what stayed of what was approved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_engine.core.wording import count_text
from storage_engine.model.lag.lag import Unread
from storage_engine.model.plan.plan import Reason
from storage_engine.retention.archive.gone import Gone
from storage_engine.retention.proof.history import SegmentRelease
from storage_engine.retention.proof.refusing import RefusedLog


@dataclass(frozen=True, slots=True)
class Kept:
    """An approved segment that stays after all."""

    log: str
    base_offset: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """What a release did.

    :param deleted: by this run, or set aside in its quarantine.
    :param deleted_by_others: approved segments that another of our runs deleted meanwhile.
    :param freed_bytes: 0 while what went lies in the run's quarantine; without what the broker removes later.
    :param new_min_offset: where the log begins now; None: the plan has several logs.
    :param notices: what could not be checked while the store was taken.
    :param unread: what consumers lose by it, as it was right before.
    :param new_min_offsets: by name, where each log of the plan begins now.
    :param refused: logs that were refused, while others went: the run ends with an error that names them.
    :param gone: approved segments of the other logs that went by none of our runs.
    """

    run_key: str
    digest: str
    deleted: tuple[SegmentRelease, ...]
    deleted_by_others: tuple[SegmentRelease, ...]
    kept: tuple[Kept, ...]
    freed_bytes: int
    new_min_offset: int | None
    notices: tuple[str, ...]
    unread: Unread = field(default_factory=Unread)
    new_min_offsets: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[RefusedLog, ...] = ()
    gone: tuple[Gone, ...] = ()

    @property
    def kept_text(self) -> str:
        """Return how many approved segments stay after all, and why; "" where none does."""
        if not self.kept:
            return ""
        reasons = Counter(kept.reason.value for kept in self.kept)
        counted = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f"{count_text(len(self.kept), 'planned segment')} stay: {counted}; {self.kept[0].detail}"
