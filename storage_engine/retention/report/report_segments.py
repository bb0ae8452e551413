"""What became of each segment of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.model.plan.plan import Decision, Plan, Reason
from storage_engine.retention.proof.history import SegmentRelease, segment_subject
from storage_engine.retention.release.release_result import Kept, ReleaseResult


class Fate(StrEnum):
    DELETED = "deleted"
    KEPT = "kept"
    PENDING = "pending"
    """To be deleted by the plan, and still there."""
    MISSING = "missing"
    """To be deleted by the plan, and gone though no run deleted it."""
    GONE_PROVEN = "gone-proven"
    """The same, and a lake proves it."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment of the plan: what became of it, why, and on what ground.

    :param proof: on what ground it was deleted; "" when it was not.
    """

    log: str
    base_offset: int
    path: str
    size_bytes: int
    planned: bool
    fate: Fate
    reason: Reason
    detail: str
    proof: str
    proof_detail: str
    sha256: str | None
    data_file: str | None


def segment_reports(
    plan: Plan | None, gone: Mapping[str, SegmentRelease], released: ReleaseResult | None
) -> tuple[SegmentReport, ...]:
    """:param gone: by subject, what this run deleted, or another one."""
    stayed = {segment_subject(k.log, k.base_offset): k for k in (released.kept if released else ())}
    missing = {
        (one.log, offset): Fate.MISSING
        for one in (released.refused if released else ())
        for offset in one.missing
    }
    for one in released.gone if released else ():
        missing[one.log, one.base_offset] = Fate.GONE_PROVEN if one.is_proven else Fate.MISSING
    rows = []
    for decision in plan.decisions if plan else ():
        segment = decision.segment
        subject = segment_subject(segment.log, segment.base_offset)
        release, stay = gone.get(subject), stayed.get(subject)
        rows.append(
            SegmentReport(
                log=segment.log,
                base_offset=segment.base_offset,
                path=segment.facts.path,
                size_bytes=segment.disk_bytes,
                planned=decision.deletes,
                fate=_fate(decision, release, stay, missing.get(segment.id)),
                reason=stay.reason if stay else decision.reason,
                detail=stay.detail if stay else decision.detail,
                proof=release.passage.value if release else "",
                proof_detail=release.passage_detail if release else "",
                sha256=release.sha256 if release else None,
                data_file=release.data_file if release else None,
            )
        )
    return tuple(rows)


def _fate(
    decision: Decision, release: SegmentRelease | None, stay: Kept | None, missing: Fate | None
) -> Fate:
    if release is not None:
        return Fate.DELETED
    if missing is not None:
        return missing
    return Fate.KEPT if stay or not decision.deletes else Fate.PENDING
