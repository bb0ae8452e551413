"""Logs that a release refuses as a whole, while it releases the others. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_engine.commands import Text, join_texts
from storage_engine.core.wording import count_text, shorten
from storage_engine.exceptions import LakeIdentityError, LogsRefusedError, StorageEngineError
from storage_engine.model.plan import Decision, LogPlan, Plan, Reason
from storage_engine.model.store import Segment, SegmentId

LOGS_SHOWN = 10
MEND = "Mend what it names."
REFUSED = "refused"
"""Field of an event: the reason why a log was not archived."""
_TEXT_WIDTH = 900
_OF_OLDER_PLANS = re.compile(r"(?:([A-Z]\w*Error): )?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RefusedLog:
    """A log of which a release deleted no segment, or no further segment.

    :param error: kind of the error that a release of this log alone would raise.
    :param why: the expected and the found state.
    :param missing: base offsets of planned segments that are gone though no run deleted them.
    """

    log: str
    error: str
    why: str
    remedy: str
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a release leaves out a log.

    :param error: the error that the release raises if it has no other log.
    :param details: by base offset, the faults of the segments that caused it.
    """

    said: RefusedLog
    error: Exception
    details: Mapping[int, str] = field(default_factory=dict)

    @property
    def log(self) -> str:
        return self.said.log


def refusal(log: str, error: Exception, nothing: str = "", remedy: str = "") -> Refusal:
    """Return the refusal of a log because of an error, with the error's message divided into why and remedy.

    :param nothing: the sentence of the error's message that says what was deleted. The remedy comes after it.
    :param remedy: a remedy for a run that has ended, in place of the error's own remedy.
    """
    why, _, own_remedy = Text(error).partition(f" {nothing} " if nothing else "\0")
    return Refusal(RefusedLog(log, type(error).__name__, why, remedy or own_remedy or MEND), error)


def refused_logs(refusals: Iterable[Refusal]) -> frozenset[str]:
    return frozenset(refusal.log for refusal in refusals)


def require_one(refusals: Sequence[Refusal], logs: Collection[str]) -> None:
    """Make sure that a release has at least one log left.

    :param logs: the logs with segments to delete, including refused logs.
    :raises StorageEngineError: all logs are refused. It is the error of the first refusal.
    """
    if refusals and not set(logs) - refused_logs(refusals):
        raise refusals[0].error


@dataclass(frozen=True, slots=True)
class Accounted:
    """Refused logs of a release, and decisions on planned segments that stay, with the reason."""

    refused: tuple[RefusedLog, ...]
    stay: tuple[Decision, ...]


def account_for(
    refusals: Sequence[Refusal],
    planned: Sequence[Segment],
    stay: Sequence[Decision],
    *,
    there: Collection[SegmentId],
    gone: Collection[SegmentId],
) -> Accounted:
    """Return the refused logs with their missing segments, and decisions on planned segments that stay.

    :param stay: decisions on segments that stay whether their log is refused or not.
    :param there: segments that the store has after the release.
    :param gone: segments that runs deleted, and segments whose loss didn't cause the refusal of their log.
    """
    by_log = {refusal.log: refusal for refusal in refusals}
    missing: dict[str, list[int]] = {log: [] for log in by_log}
    stay_ids = {decision.segment.id for decision in stay}
    kept = [
        decision
        for decision in stay
        if decision.segment.id not in gone
        and (decision.segment.log not in by_log or decision.segment.id in there)
    ]
    for segment in planned:
        if (refusal := by_log.get(segment.log)) is None or segment.id in gone:
            continue
        if segment.id not in there:
            missing[segment.log].append(segment.base_offset)
        elif segment.id not in stay_ids:
            general = f"log {segment.log} is refused as a whole: the report says why"
            detail = refusal.details.get(segment.base_offset, general)
            kept.append(Decision(segment, Reason.REFUSED, detail))
    logs = [replace(refusal.said, missing=tuple(missing[refusal.log])) for refusal in refusals]
    return Accounted(tuple(logs), tuple(kept))


def refuse_in_plan(plan: Plan, errors: Mapping[str, Exception]) -> Plan:
    """Keep all segments of the logs that ``errors`` names."""

    def decide(log: LogPlan) -> Sequence[Decision]:
        error = errors.get(log.log)
        return log.decisions if error is None else log.kept(Reason.REFUSED, Text(error))

    return plan.each_log(decide) if errors else plan


def refused_by_plan(plan: Plan) -> tuple[RefusedLog, ...]:
    first = {d.segment.log: d.detail for d in reversed(plan.decisions) if d.reason is Reason.REFUSED}
    # In older plans the name of the error's class comes before the reason.
    parts = ((log, *_OF_OLDER_PLANS.findall(detail)[0]) for log, detail in sorted(first.items()))
    return tuple(RefusedLog(log, error, why, MEND) for log, error, why in parts)


def log_text(refused: RefusedLog) -> str:
    """Return the text on why a log was refused, and what to do."""
    return Text(f"log {refused.log} was refused: ", refused.why, " ", refused.remedy)


_AFTER_RELEASE = (
    "Deletions from the other logs are done and recorded. The next run plans the refused logs again."
)
_AFTER_ARCHIVING = (
    "Archived segments of the other logs are proven and recorded. The next run tries the refused logs again."
)


def ending_error(refused: str, wrong_lakes: Sequence[str]) -> StorageEngineError | None:
    """Return the error to raise after a run has done what it could, or None if there is none.

    :param refused: the result of :func:`refused_text`, or "" if no log was refused.
    :param wrong_lakes: why lakes of the store can't be used as they are, each with the remedy.
    """
    if refused:
        return LogsRefusedError(join_texts(" ", (refused, *wrong_lakes)))
    return LakeIdentityError(join_texts(" ", wrong_lakes)) if wrong_lakes else None


def archive_error(
    run_key: str, root: str, refused: Sequence[RefusedLog], wrong_lakes: Sequence[str]
) -> StorageEngineError | None:
    """Return the error to raise after all other logs were archived, or None if there is none."""
    text = refused_text(run_key, root, refused, _AFTER_ARCHIVING) if refused else ""
    return ending_error(text, wrong_lakes)


def refused_text(run_key: str, root: str, refused: Sequence[RefusedLog], after: str = _AFTER_RELEASE) -> str:
    """Return the text of the error for a run that left out refused logs.

    :param after: sentences on the state of the other logs, and on the next step.
    """
    sentences = [
        f"run {run_key!r} of {root}: expected every log to pass, found "
        f"{count_text(len(refused), 'log')} refused.",
        *(shorten(log_text(log), _TEXT_WIDTH) for log in refused[:LOGS_SHOWN]),
    ]
    if (more := len(refused) - LOGS_SHOWN) > 0:
        sentences.append(f"report.json names {count_text(more, 'more log')}.")
    sentences.append(after)
    return join_texts(" ", sentences)
