"""What is lost of logs that should be here, by what the journal remembers of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_engine.core.wording import count_text
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.coverage.coverage import ReleasedSpan, lost_ranges
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short
from storage_engine.model.report.validation import RangeStatus
from storage_engine.retention.ranges.drift import gone_ranges
from storage_engine.retention.ranges.losses import accepted_losses, excused_parts
from storage_engine.retention.ranges.seen_logs import Missing
from storage_engine.retention.store.managed_store import ManagedStore

_ADVICE = "see why: storage-engine verify; then bring it back, or accept the loss: storage-engine accept-loss"


def missing_findings(
    store: ManagedStore, journal: Journal, record: StoreRecord, missing: Sequence[Missing]
) -> Iterator[Finding]:
    """Yield what no lake has of logs that are missing, and what nobody can tell, but for what was accepted.

    :param store: whose lakes all answer.
    :raises StorageEngineError: lake or journal can't be read.
    """
    accepted = accepted_losses(journal, record)
    for is_unknown, severity, what in (
        (False, Severity.URGENT, "of missing logs lost, as no lake has it"),
        (True, Severity.WARNING, "of missing logs in no lake, and whether it should be on disk isn't known"),
    ):
        named = [
            f"{row.log} [{part.start_offset}, {part.end_offset})"
            for one in missing
            if one.is_unknown is is_unknown
            for row in lost_ranges(gone_ranges(journal, record, store, (), missing=[one]))
            for part in excused_parts(_span(one, row), accepted)
            if not part.excused
        ]
        if named:
            said = f"{count_text(len(named), 'range')} {what}: {named_in_short(named)}"
            yield Finding(severity, "logs-unknown" if is_unknown else "logs-lost", said, _ADVICE)


def _span(one: Missing, row: RangeStatus) -> ReleasedSpan:
    start, end = max(one.start_offset, row.start_offset), min(one.end_offset, row.end_offset)
    return ReleasedSpan(one.log, start, end, log_id=one.log_id)
