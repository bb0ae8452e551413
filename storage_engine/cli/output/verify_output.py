"""What ``verify`` shows a person: where every byte is, what is wrong, and how much was looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from storage_engine.cli.output.next_cleanup import say_cleanup
from storage_engine.cli.output.next_line import archive_command, say_next
from storage_engine.cli.output.output import print_table, say
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.report.validation import Status
from storage_engine.model.report.verification import Coverage, StoreVerification, VerifyLevel

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


def print_verification(result: StoreVerification) -> None:
    """Print one store's result: ranges, findings, and how much of the lake is verified since when."""
    print_table(
        f"Store {result.name or result.store_id}: {result.overall.value}, "
        f"{count_text(result.receipt_count, 'receipt')}, {_credited(result)}{_checked(result)}",
        ("log~", "from#", "to#", "where", "status", "why"),
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


def say_next_step(
    found: Sequence[StoreVerification], managed: ManagedStore | None, lake_dir: Path, level: VerifyLevel
) -> None:
    """Say what to type after a verification, by what it found.

    :param managed: the store that the lake was compared with; None: there was none.
    """
    from storage_engine.lake.catalog.catalog import open_lake

    lake = f"--lake {quote(str(lake_dir))}"
    known = any(result.receipt_count or result.credited_count for result in found)
    if not known and not any(result.overall is Status.FAILURE for result in found):
        what = "archive"
        if managed is None:
            what = archive_command(open_lake(LakeConfig.local(lake_dir)).broker, lake_dir)
        say_next(what, "It takes the sealed segments of a store, with proof")
    elif any(result.overall is Status.FAILURE for result in found):
        again = "verify" if managed is not None else f"verify {lake}"
        say_next(again, "Do first what is said at each finding, then look again", f"--level {level.value}")
    elif any(result.coverage.never_count for result in found) or not level.includes(VerifyLevel.BYTES):
        deeper = level if level.includes(VerifyLevel.BYTES) else VerifyLevel.BYTES
        again = "verify" if managed is not None else f"verify {lake}"
        say_next(again, "It reads what was not looked at yet, every row", f"--level {deeper.value}")
    elif managed is not None:
        say_cleanup(managed)
    else:
        say_next(f"restore {lake} --to DIRECTORY", "It brings back what the lake holds, byte for byte")


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


def _credited(result: StoreVerification) -> str:
    count = result.credited_count
    return f"{count_text(count, 'segment')} proven by receipts of replicas, " if count else ""


def _checked(result: StoreVerification) -> str:
    if result.level is VerifyLevel.RECEIPTS:
        return "metadata checked"
    renewed = f", {count_text(result.renewed_count, 'receipt')} renewed" if result.renewed_count else ""
    return f"{bytes_text(result.checked_bytes)} checked{renewed}"
