"""Data that a task read and wrote, in the form of OpenLineage's events.

A task records its lineage while it works, and the facets are made from this record. OpenLineage asks for them
in a forked process, in which neither journal nor lake may be opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import CheckResult, Status, ValidationResult

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from storage_engine.retention.proof.history import SegmentRelease
    from storage_engine.retention.store.managed_store import ManagedStore

OFFSETS = "storageEngine_offsets"
"""Key of our own facet: offset ranges of a log."""
_MOST_RANGES = 100
"""Largest number of a log's ranges in an event. Further ranges are counted, so that events stay small."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The offsets [start, end) of a log. ``where`` is the place of their bytes; "" if not recorded."""

    start: int
    end: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake, in the state in which the task left it.

    :param location: location of the table's files. It is the table's name in OpenLineage.
    :param name: the table's name in its catalog.
    """

    location: str
    name: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Data that one task read and wrote.

    :param logs: the offsets that the task read, by log.
    :param truncated: the offsets that the task deleted, by log.
    :param rows: number of new rows in the first written table, or None if the task doesn't record it.
    """

    root: str
    logs: Mapping[str, Sequence[LogSpan]] = field(default_factory=dict)
    truncated: Mapping[str, Sequence[LogSpan]] = field(default_factory=dict)
    read: tuple[LakeTable, ...] = ()
    written: tuple[LakeTable, ...] = ()
    rows: int | None = None
    size_bytes: int | None = None
    checks: tuple[CheckResult, ...] = ()


@lru_cache
def is_wanted() -> bool:
    """Return whether this Airflow sends OpenLineage events. If not, no lake is read for such events."""
    try:
        from airflow.providers.openlineage.conf import is_disabled
    except ImportError:
        return False
    return not is_disabled()


def archive_lineage(store: ManagedStore, receipts: Sequence[Receipt], *lakes: str) -> Lineage:
    """Return the lineage of archiving.

    :param lakes: locations of the lakes with the archived segments, or "" for none.
    """
    ranges = _group_spans((receipt.log, LogSpan(receipt.base_offset, receipt.end)) for receipt in receipts)
    return Lineage(
        store.real_root,
        ranges,
        written=lake_tables(store, lakes) if receipts else (),
        rows=sum(receipt.row_count for receipt in receipts),
        # Segments may share a data file.
        size_bytes=sum({receipt.data_file: receipt.data_file_bytes for receipt in receipts}.values()),
    )


def release_lineage(store: ManagedStore, deleted: Sequence[SegmentRelease]) -> Lineage:
    """Return the lineage of a release. A release reads proofs in lakes, and deletes logs' oldest segments."""
    ranges = _group_spans((row.log, LogSpan(row.base_offset, row.end_offset)) for row in deleted)
    proving = dict.fromkeys(row.lake for row in deleted if row.lake)
    return Lineage(store.real_root, ranges, ranges, read=lake_tables(store, tuple(proving)))


def validation_lineage(store: ManagedStore, result: ValidationResult) -> Lineage:
    """Return the lineage of a validation: the checked data, with each check's verdict."""
    ranges = _group_spans(
        (row.log, LogSpan(row.start_offset, row.end_offset, row.where.value)) for row in result.ranges
    )
    read = lake_tables(store, [lake.location for lake in store.lakes])
    return Lineage(store.real_root, ranges, read=read, checks=result.checks)


def lake_tables(store: ManagedStore, locations: Sequence[str]) -> tuple[LakeTable, ...]:
    """Return the tables of some of a store's lakes. A lake that can't be read has no tables here."""
    from storage_engine.exceptions import StorageEngineError
    from storage_engine.lake.catalog.catalog import open_lake

    entries: list[LakeTable] = []
    for config in store.lakes:
        if config.location not in locations:
            continue
        try:
            tables = open_lake(config).tables()
        except (StorageEngineError, OSError):
            continue
        for table in tables:
            snapshot = table.current_snapshot()
            snapshot_id = None if snapshot is None else snapshot.snapshot_id
            entries.append(LakeTable(table.location(), ".".join(table.name()), snapshot_id))
    return tuple(entries)


def _group_spans(ranges: Iterable[tuple[str, LogSpan]]) -> Mapping[str, Sequence[LogSpan]]:
    by_log: dict[str, list[LogSpan]] = {}
    for log, span in ranges:
        by_log.setdefault(log, []).append(span)
    return by_log


def operator_lineage(lineage: Lineage | None) -> OperatorLineage[Any, Any]:
    """Return a task's lineage as OpenLineage's classes; empty if the task recorded none."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import lifecycle_state_change_dataset as lifecycle
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    if lineage is None:
        return OperatorLineage()
    inputs, outputs = [], []
    for log, ranges in lineage.logs.items():
        namespace, name = _log_name(lineage.root, log)
        verdicts = _assertions(lineage, ("store", "across"))
        inputs.append(
            InputDataset(
                namespace=namespace, name=name, facets={OFFSETS: _offsets(ranges)}, inputFacets=verdicts
            )
        )
    for table in lineage.read:
        namespace, name = table_name(table)
        verdicts = _assertions(lineage, ("lake", "across", "rows"))
        inputs.append(
            InputDataset(namespace=namespace, name=name, facets=_table_facets(table), inputFacets=verdicts)
        )
    for log, ranges in lineage.truncated.items():
        namespace, name = _log_name(lineage.root, log)
        truncated = lifecycle.LifecycleStateChangeDatasetFacet(lifecycle.LifecycleStateChange.TRUNCATE)
        of_log = {OFFSETS: _offsets(ranges), "lifecycleStateChange": truncated}
        outputs.append(OutputDataset(namespace=namespace, name=name, facets=of_log))
    for number, table in enumerate(lineage.written):
        namespace, name = table_name(table)
        rows = statistics.OutputStatisticsOutputDatasetFacet(lineage.rows, lineage.size_bytes)
        written: dict[str, Any] = {} if number else {"outputStatistics": rows}
        outputs.append(
            OutputDataset(namespace=namespace, name=name, facets=_table_facets(table), outputFacets=written)
        )
    return OperatorLineage(inputs=inputs, outputs=outputs)


def _log_name(root: str, log: str) -> tuple[str, str]:
    """Return a log's name in OpenLineage's form for a remote file: a path is local to its host."""
    return f"file://{gethostname()}", f"{root.rstrip('/')}/{log}"


def table_name(table: LakeTable) -> tuple[str, str]:
    """Return the name of a table in OpenLineage's form for Iceberg: the place of its files."""
    parts = urlsplit(table.location)
    if parts.scheme in ("", "file"):
        return "file", unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")


def _table_facets(table: LakeTable) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset as version
    from openlineage.client.facet_v2 import symlinks_dataset as symlinks

    namespace, _ = table_name(table)
    identifier = symlinks.Identifier(namespace=namespace, name=table.name, type="TABLE")
    has_snapshot = table.snapshot_id is not None
    facet = {"version": version.DatasetVersionDatasetFacet(str(table.snapshot_id))} if has_snapshot else {}
    return {"symlinks": symlinks.SymlinksDatasetFacet([identifier]), **facet}


def _offsets(ranges: Sequence[LogSpan]) -> Any:
    from openlineage.client.facet_v2 import DatasetFacet

    listed = [
        {"start": span.start, "end": span.end, **({"where": span.where} if span.where else {})}
        for span in ranges[:_MOST_RANGES]
    ]
    return DatasetFacet().with_additional_properties(ranges=listed, moreRanges=len(ranges) - len(listed))


def _assertions(lineage: Lineage, suites: Sequence[str]) -> dict[str, Any]:
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality

    checks = [check for check in lineage.checks if check.suite.partition("_")[0] in suites]
    if not checks:
        return {}
    assertions = [
        quality.Assertion(assertion=check.expectation, success=check.status is not Status.FAILURE)
        for check in checks
    ]
    return {"dataQualityAssertions": quality.DataQualityAssertionsDatasetFacet(assertions)}
