"""Begin and end of a store's logs at the last look, and ranges that should be on disk and are missing. Pure.

Deleted files leave no trace, and no lake has a segment that was never archived. Each look that may write
therefore remembers where logs begin and end. Only logs with an identity of their own are remembered, because
others may be made again under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_engine.core.wording import time_text
from storage_engine.model.plan import Plan
from storage_engine.model.store import Absence, Lineages, LogIdentity, LogSnapshot, StoreSnapshot, may_be_one


@dataclass(frozen=True, slots=True)
class SeenLog:
    """A log at the last look.

    :param start_offset: base offset of its first segment.
    :param safe_end: offset that its in-sync replicas had reached. No broker cuts the log below it.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    safe_end: int
    at_ms: int
    identity: LogIdentity = field(default_factory=LogIdentity)

    def is_same_log(self, other: SeenLog) -> bool:
        """Return whether two logs are the same log. If one of the two logs has no identity, the name alone
        decides.
        """
        return self.log == other.log and may_be_one(self.identity.log_id, other.identity.log_id)


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets [start_offset, end_offset) of a log that were on disk, should still be there, and are missing.

    :param why: the known facts about it, as a sentence without a full stop.
    :param is_unknown: it is unknown whether the log should be on disk.
    :param log_id: identity of the log, as receipts have it, or "" if it is unknown.
    :param is_other: another log has its name by now, so facts about that name don't apply to it.
    """

    log: str
    lineage: int
    start_offset: int
    end_offset: int
    why: str
    is_unknown: bool = False
    log_id: str = ""
    is_other: bool = False


def logs_of_snapshot(
    snapshot: StoreSnapshot,
    identities: Mapping[str, LogIdentity],
    lineages: Lineages,
    remembered: Iterable[SeenLog] = (),
) -> tuple[SeenLog, ...]:
    """Return a snapshot's logs in the form in which they are remembered.

    :param remembered: the logs of the last look. If a log's end can't be read, its remembered end is used.
    """
    before = {(entry.log, entry.lineage): entry for entry in remembered}

    def entry_of(log: LogSnapshot) -> SeenLog:
        entry = SeenLog(
            log.name,
            lineages.of(log.name),
            log.min_offset,
            log.max_offset,
            max(log.min_offset, min(log.max_offset, log.dispatched_offset)),
            snapshot.taken_at_ms,
            identities.get(log.name, LogIdentity()),
        )
        old = before.get((entry.log, entry.lineage)) if log.unread else None
        if old is None or not entry.is_same_log(old):
            return entry
        return replace(entry, end_offset=max(entry.end_offset, old.end_offset))

    return tuple(map(entry_of, snapshot.logs))


def logs_of_plan(plan: Plan) -> tuple[SeenLog, ...]:
    """Return the logs of a plan, without identities, for use while the journal remembers none."""
    lineages = Lineages(plan.lineage or 1, plan.log_lineages)
    return tuple(
        SeenLog(
            log.log,
            lineages.of(log.log),
            log.decisions[0].segment.base_offset,
            log.decisions[-1].segment.end_offset,
            log.decisions[0].segment.base_offset,
            plan.decided_at_ms,
        )
        for log in plan.logs
        if log.decisions
    )


def absent_logs(remembered: Iterable[SeenLog], present_logs: Iterable[SeenLog]) -> tuple[SeenLog, ...]:
    """Return the known logs that are missing: their name is gone, or another log has it."""
    present = {entry.log: entry for entry in present_logs}
    return tuple(log for log in remembered if log.log not in present or not log.is_same_log(present[log.log]))


def merge_logs(
    remembered: Sequence[SeenLog], present_logs: Sequence[SeenLog], absences: Mapping[SeenLog, Absence]
) -> tuple[SeenLog, ...]:
    """Return the logs to remember after this look. Rightly deleted logs are forgotten.

    An unchanged log keeps its earlier entry, so that nothing is written without a change.

    :param absences: why the logs of :func:`absent_logs` are missing.
    """
    before = {entry.log: entry for entry in remembered if entry not in absences}

    def merge(entry: SeenLog) -> SeenLog:
        old = before.get(entry.log)
        if old is None or old.lineage != entry.lineage:
            return entry
        entry = replace(entry, safe_end=max(entry.safe_end, old.safe_end))
        same = replace(entry, at_ms=old.at_ms, identity=old.identity) == old
        return old if same and entry.identity.log_id == old.identity.log_id else entry

    missing = (entry for entry in remembered if entry in absences and not absences[entry].is_right)
    return tuple(sorted((*map(merge, present_logs), *missing), key=lambda entry: (entry.log, entry.at_ms)))


def missing_ranges(
    remembered: Sequence[SeenLog], present_logs: Iterable[SeenLog], absences: Mapping[SeenLog, Absence]
) -> Iterator[Missing]:
    """Yield the ranges of known logs that should be on disk and are missing.

    Another log with the same name doesn't hide them. Of a log that still exists, only the end can be missing.
    Offsets above those that in-sync replicas had don't count: brokers may cut them. A later start is expiry.

    :param absences: why the logs of :func:`absent_logs` are missing.
    """
    present = {entry.log: entry for entry in present_logs}
    newest = {log.log: log for log in sorted(remembered, key=lambda log: log.at_ms)} | present
    for entry in remembered:
        when = f"[{entry.start_offset}, {entry.end_offset}) on {time_text(entry.at_ms)}"
        if entry in absences:
            absence = absences[entry]
            if not absence.is_right and entry.start_offset < entry.end_offset:
                is_other = not entry.is_same_log(newest[entry.log])
                again = ", and another one has its name by now" if is_other else ""
                why = f"the log isn't on disk, and had offsets {when}{again}; {absence.why}"
                yield Missing(
                    entry.log,
                    entry.lineage,
                    entry.start_offset,
                    entry.end_offset,
                    why,
                    absence.is_unknown,
                    entry.identity.log_id,
                    is_other,
                )
            continue
        now = present[entry.log]
        start = max(now.end_offset, entry.start_offset)
        if start < entry.safe_end and now.lineage == entry.lineage:
            why = f"the log ends at {now.end_offset}, and had offsets {when}: it was cut, or made again empty"
            yield Missing(entry.log, entry.lineage, start, entry.safe_end, why, log_id=entry.identity.log_id)
