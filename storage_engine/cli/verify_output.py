"""What ``verify`` shows a person: where every byte is, what is wrong, and how much was looked at."""

from __future__ import annotations

from storage_engine.cli.output import print_table, say
from storage_engine.model.verification import Coverage, StoreVerification, VerifyLevel
from storage_engine.wording import bytes_text, count_text, time_text


def print_verification(result: StoreVerification) -> None:
    """Print one store's result: ranges, findings, and how much of the lake is verified since when."""
    print_table(
        f"Store {result.store_id}: {result.overall.value}, {count_text(result.receipt_count, 'receipt')}, "
        f"{_checked(result)}",
        ("log", "from#", "to#", "where", "status", "why"),
        (
            (row.log, row.start_offset, row.end_offset, row.where.value, row.status.value, row.detail)
            for row in result.ranges
        ),
    )
    for finding in result.findings:
        say(f"\n{finding.status.value} {finding.subject}: {finding.detail}.")
        say(f"  {finding.advice}")
    for log, offset in sorted(result.begins.items()):
        if offset > 0:
            say(f"\n{log}: nothing here tells what was before offset {offset}.")
    if result.level is not VerifyLevel.RECEIPTS:
        say(f"\n{coverage_text(result.coverage)}")


def coverage_text(coverage: Coverage) -> str:
    """Return how much is verified since when, as a sentence."""
    percent = 100 * coverage.verified_bytes // coverage.total_bytes if coverage.total_bytes else 100
    since = f" since {time_text(coverage.since_ms)}" if coverage.since_ms is not None else ""
    never = (
        f"; {coverage.never_count} of {count_text(coverage.segment_count, 'segment')} never yet"
        if coverage.never_count
        else ""
    )
    return (
        f"Verified at level {coverage.level.value}{since}: {bytes_text(coverage.verified_bytes)} of "
        f"{bytes_text(coverage.total_bytes)}, {percent} %{never}."
    )


def _checked(result: StoreVerification) -> str:
    if result.level is VerifyLevel.RECEIPTS:
        return "metadata checked"
    renewed = f", {count_text(result.renewed_count, 'receipt')} renewed" if result.renewed_count else ""
    return f"{bytes_text(result.checked_bytes)} checked{renewed}"
