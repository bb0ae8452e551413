"""Names, help texts and values of the metrics, from a journal's records. Only the journal is read.

``cli/metrics.py`` serves them to Prometheus.

An unknown value has no sample, and is never shown as 0. An alert finds a missing metric by ``absent``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from storage_engine.console.stores import STALE_MS, Filling, ProblemKind, StoreLine, store_line
from storage_engine.core.wording import unexpected_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.reading.answers import HoldRow, VerifiedRow
from storage_engine.journal.reading.queries import JournalReader, read_holds, read_verified
from storage_engine.journal.reading.store_summaries import StoreSummary, read_summaries

PREFIX = "storage_engine_"
METRICS = {
    "disk_used_ratio": "How full the disk of a store's path is, from 0 to 1.",
    "disk_usable_bytes": "Free bytes on the disk of a store's path, for the broker's user.",
    "retention_seconds": "Age of the store's oldest message at the last look.",
    "archive_lag_bytes": "Bytes of sealed segments that are not proven in a lake.",
    "archive_lag_seconds": "Age of the last write to the oldest unproven sealed segment; 0 if there is none.",
    "due_bytes": "Bytes that a cleanup started by a person would have deleted at the last look.",
    "due_unproven_bytes": "Bytes of storage_engine_due_bytes that are not proven in a lake.",
    "time_to_full_seconds": "Time until a disk is full, at the last day's pace; no value if no disk fills.",
    "time_to_loss_seconds": "Time until age may delete unread messages of a group with a known position.",
    "lagging_groups": "Number of consumer groups whose first unread message may be deleted within a day.",
    "urgent_findings": "Number of doctor's findings that a person has to act on within a day.",
    "alarms": "Number of alarms of the last look.",
    "lost_ranges": "Number of offset ranges that are lost without a person's acceptance.",
    "look_timestamp_seconds": "Time of the last look at the store.",
    "run_timestamp_seconds": "Time at which the last run that planned a deletion ended.",
    "run_failed": "1 if the last run that planned a deletion failed, or some logs were refused; else 0.",
    "validation_timestamp_seconds": "Time of the last report of a run that validated store and lake.",
    "validation_failed": "1 if the last validation of store and lake failed; else 0.",
    "proof_timestamp_seconds": "Time of the oldest of the archived segments' last verifications.",
    "last_proof_timestamp_seconds": "Time at which any archived segment was verified last.",
    "proofs_faulty": "Number of archived segments whose last verification found a fault.",
    "hold_end_timestamp_seconds": "Time at which the hold of a running broker ends if it isn't renewed.",
}
"""Help texts, by name without the prefix. Each metric is a gauge by store, of a disk also by path."""
_NOT_NOW = (ProblemKind.NEVER_LOOKED, ProblemKind.STALE, ProblemKind.FUTURE)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A value of a store, or of one of its disks, as metrics show it.

    :param metric: one of :data:`METRICS`.
    :param path: path of the disk; "" if the value is about the store.
    """

    metric: str
    store: str
    value: float
    path: str = ""


def read_samples(reader: JournalReader, names: Iterable[str] | None, now_ms: int) -> Iterator[MetricSample]:
    """Yield the metrics of a journal's stores, by a fixed number of queries.

    :param names: the stores to read, by :func:`name_of`; None for all stores.
    """
    chosen_names = None if names is None else tuple(names)

    def read(connection: Connection) -> list[tuple[StoreSummary, HoldRow | None, VerifiedRow | None]]:
        summaries = read_summaries(connection, None, now_ms)
        chosen = [row for row in summaries if chosen_names is None or name_of(row) in chosen_names]
        ids = [row.store_id for row in chosen]
        holds, verified = read_holds(connection, ids), read_verified(connection, ids, counted=False)
        return [(row, holds.get(row.store_id), verified.get(row.store_id)) for row in chosen]

    for summary, hold, verified in reader.read(read):
        yield from samples_of(summary, hold, verified, now_ms)


def samples_of(
    summary: StoreSummary, hold: HoldRow | None, verified: VerifiedRow | None, now_ms: int
) -> Iterator[MetricSample]:
    """Yield the metrics of a store. Findings of its last look count for an hour."""
    name = name_of(summary)
    try:
        line = store_line(name, summary, now_ms)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageEngineError(
            f"store {name}: expected a journal that this release wrote, found {unexpected_text(error)}."
        ) from error
    last_run = line.last_run
    figures: dict[str, float | None] = {
        "look_timestamp_seconds": _seconds(summary.sampled_at_ms),
        "run_timestamp_seconds": _seconds(None if last_run is None else last_run.finished_at_ms),
        "run_failed": None
        if last_run is None or last_run.outcome is None
        else float(last_run.outcome in ("failed", "released-in-part")),
        "validation_timestamp_seconds": _seconds(summary.validated_at_ms),
        "validation_failed": None if not summary.validation else float(summary.validation == "FAILURE"),
        "proof_timestamp_seconds": _seconds(None if verified is None else verified.oldest_ms),
        "last_proof_timestamp_seconds": _seconds(None if verified is None else verified.newest_ms),
        "proofs_faulty": None if verified is None else verified.faulty,
        "hold_end_timestamp_seconds": _seconds(None if hold is None else hold.ends_at_ms),
    }
    if line.problem_kind not in _NOT_NOW:
        yield from _sample_disks(line)
        figures |= {
            "retention_seconds": _seconds(line.retention_ms),
            "time_to_full_seconds": _seconds(line.time_to_full_ms) if line.filling is Filling.YES else None,
        }
    # Not each look measures the archive lag, or has a monitor's findings.
    if _is_recent(summary.archive_lag_at_ms, now_ms):
        figures |= {
            "archive_lag_bytes": line.archive_lag_bytes,
            "archive_lag_seconds": summary.archive_lag_seconds,
        }
    if _is_recent(summary.found_at_ms, now_ms):
        figures |= _collect_figures(line, summary)
    for metric, value in figures.items():
        if value is not None:
            yield MetricSample(metric, name, value)


def name_of(summary: StoreSummary) -> str:
    """Return a store's name in metrics. For a store without a name, return its path."""
    return summary.name or summary.real_path


def _sample_disks(line: StoreLine) -> Iterator[MetricSample]:
    for level in line.levels:
        if level.used_percent is not None:
            yield MetricSample("disk_used_ratio", line.store, level.used_percent / 100, level.path)
        if level.usable_bytes is not None:
            yield MetricSample("disk_usable_bytes", line.store, level.usable_bytes, level.path)


def _is_recent(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and abs(now_ms - at_ms) <= STALE_MS


def _collect_figures(line: StoreLine, summary: StoreSummary) -> dict[str, float | None]:
    return {
        "due_bytes": summary.due_bytes,
        "due_unproven_bytes": summary.due_unproven_bytes,
        "time_to_loss_seconds": _seconds(summary.time_to_loss_ms),
        "lagging_groups": line.lagging_groups,
        "urgent_findings": sum(finding["severity"] == "urgent" for finding in summary.doctor or ()),
        "alarms": len(summary.alarms),
        "lost_ranges": summary.lost_ranges,
    }


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1000
