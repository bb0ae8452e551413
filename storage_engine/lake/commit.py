"""Making proven segments count: data files into ``messages``, in one snapshot, then their receipts.

Whatever is retried, killed or run twice, each segment is in each table once. Before every attempt the
table is loaded anew and asked what it holds already; an attempt is bound to the snapshot it looked at, so
of two at the same time one is refused by the catalog and looks again. An outcome that is not known is
found out by reading the table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeVar

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table

from storage_engine.durable import unlink
from storage_engine.exceptions import (
    CommitStateUnknownError,
    LakeConflictError,
    LakeUnavailableError,
    ProofError,
    StorageEngineError,
)
from storage_engine.lake.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.durable_io import local_path, recorded_outputs
from storage_engine.lake.errors import LAKE_FAILURES, lake_errors, lake_unavailable, parquet_errors
from storage_engine.lake.filters import segment_rows
from storage_engine.lake.jobs import ProvenSegment, file_name, slot_prefix, split_data_file_name
from storage_engine.lake.live_files import live_data_files
from storage_engine.lake.receipts import CHAIN_START, check_chain, receipts_in, row_hash
from storage_engine.lake.staging import publish, sweep
from storage_engine.model.receipt import Receipt

T = TypeVar("T")

_MAX_ATTEMPTS = 30


def commit_segments(lake: Lake, proven: Sequence[ProvenSegment]) -> tuple[Receipt, ...]:
    """Commit proven segments; when this returns, they are in the lake durably.

    :return: one receipt a segment, in the given order, read back from the table. For a segment that was
        committed before it is the older one.
    :raises LakeConflictError: other bytes are archived under the same store, lineage, log and base
        offset; nothing was committed.
    :raises LakeUnavailableError: the lake can't be read or written; run again to go on from there.
    :raises CommitStateUnknownError: the outcome of a commit can't be read.
    :raises ReceiptError: a store's chain of receipts is broken; no receipt was added.
    """
    if not proven:
        return ()
    _check_against_each_other(proven)
    # Ask both tables before any file gets its final name.
    _without_receipt(lake.segments(), proven)
    _without_data(lake.messages(), proven)
    publish(proven)
    with CHANGE_LOCK:
        _commit_until_present(lake, lake.messages, lambda table: _without_data(table, proven), _append_data)
        _commit_until_present(
            lake, lake.segments, lambda table: _without_receipt(table, proven), _append_receipts
        )
    sweep(proven)
    return _receipts_of(lake.segments(), proven)


def _commit_until_present(
    lake: Lake,
    load: Callable[[], Table],
    missing: Callable[[Table], Sequence[ProvenSegment]],
    append: Callable[[Table, Sequence[ProvenSegment]], None],
) -> None:
    """Append what is missing until a freshly loaded table misses nothing."""
    unknown: Exception | None = None
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0, min(0.02 * 2**attempt, 1.0)))
        try:
            table = load()
            todo = missing(table)
        except LakeUnavailableError as error:
            if unknown is None:
                raise
            raise _state_unknown(lake, unknown) from error
        if not todo:
            return
        with recorded_outputs() as created:
            try:
                append(table, todo)
            except StorageEngineError:
                raise
            except CommitFailedException as error:
                # Somebody else committed in between; it may have been an earlier attempt of ours.
                if _is_settled(lake, error):
                    _remove(created, table)
            except Exception as error:
                unknown = error
                if _is_settled(lake, error) and _state_is(load, missing, todo, unknown, lake):
                    _remove(created, table)
                    if isinstance(error, LAKE_FAILURES):
                        raise lake_unavailable(table.location(), "commit", error) from error
                    raise
    if unknown is not None:
        raise _state_unknown(lake, unknown)
    raise LakeUnavailableError(
        f"lake {lake.location}: {_MAX_ATTEMPTS} attempts to commit were overtaken by other writers. "
        "Nothing of this commit is in the table. Run again when fewer write at once."
    )


def _state_is(
    load: Callable[[], Table],
    missing: Callable[[Table], Sequence[ProvenSegment]],
    todo: Sequence[ProvenSegment],
    cause: Exception,
    lake: Lake,
) -> bool:
    """Whether the table, read again, still misses exactly what an attempt wanted to add."""
    try:
        return list(missing(load())) == list(todo)
    except LakeUnavailableError as error:
        if _was_not_sent(cause):
            raise lake_unavailable(lake.location, "commit", cause) from error
        raise _state_unknown(lake, cause) from error


def _is_settled(lake: Lake, error: Exception) -> bool:
    """Whether what the table says now is final, so that a failed attempt can't land later.

    True for SQLite, whose commits end with the call. A server may still be at work on a request that
    timed out.
    """
    catalog = lake.catalog
    if isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "sqlite":
        return True
    return _was_not_sent(error)


def _was_not_sent(error: Exception) -> bool:
    """Whether a commit failed at writing a file, which comes before the catalog is asked."""
    return isinstance(error, OSError) and bool(error.errno) and not isinstance(error, ConnectionError)


def _state_unknown(lake: Lake, cause: Exception) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"lake {lake.location}: a commit ended with {type(cause).__name__}: {cause}, and the table could not "
        "tell whether it went through. Nothing was deleted. Run again when the lake answers: what is "
        "committed is found and not committed twice."
    )


def _remove(created: Sequence[str], table: Table) -> None:
    """Delete local metadata files of an attempt that is known not to have gone through."""
    root = local_path(table.location())
    if root is None:
        return
    for path in created:
        if path.startswith(f"{root}/"):
            unlink(path)


def _check_against_each_other(proven: Sequence[ProvenSegment]) -> None:
    seen: dict[str, ProvenSegment] = {}
    for segment in proven:
        other = seen.setdefault(f"{segment.store_id}/{slot_prefix(segment.identity)}", segment)
        if other.sha256 != segment.sha256:
            raise _conflict(segment, other.sha256)


def _without_receipt(table: Table, proven: Sequence[ProvenSegment]) -> list[ProvenSegment]:
    missing = []
    for store_id, segments in _by_store(proven).items():
        known = {(r.lineage, r.log, r.base_offset): r.sha256 for r in receipts_in(table, store_id)}
        for segment in segments:
            sha256 = known.get((segment.lineage, segment.log, segment.base_offset))
            if sha256 is None:
                missing.append(segment)
            elif sha256 != segment.sha256:
                raise _conflict(segment, sha256)
    return missing


def _without_data(table: Table, proven: Sequence[ProvenSegment]) -> list[ProvenSegment]:
    missing = []
    for store_id, segments in _by_store(proven).items():
        offsets = [segment.base_offset for segment in segments]
        files = live_data_files(table, store_id, (min(offsets), max(offsets)))
        content_by_slot = dict(split_data_file_name(file_name(file.location)) for file in files)
        # Rows that another engine rewrote are in files whose names say nothing of segments.
        rewritten = "" in content_by_slot
        for segment in segments:
            content = content_by_slot.get(slot_prefix(segment.identity))
            if content is None:
                if not (rewritten and _has_rows(table, segment)):
                    missing.append(segment)
            elif content != segment.sha256[: len(content)]:
                raise _conflict(segment, content)
    return missing


def _has_rows(table: Table, segment: ProvenSegment) -> bool:
    where = segment_rows(segment.store_id, segment.lineage, segment.log, segment.base_offset)
    with lake_errors(table.location(), "look for rows of a segment"):
        return (
            table.scan(row_filter=where, limit=1, selected_fields=("physical_offset",)).to_arrow().num_rows
            > 0
        )


def _append_data(table: Table, segments: Sequence[ProvenSegment]) -> None:
    files = []
    for segment in segments:
        with parquet_errors(segment.data_file):
            data_file = parquet_file_to_data_file(table.io, table.metadata, segment.data_file)
        if (data_file.file_size_in_bytes, data_file.record_count) != (
            segment.data_file_bytes,
            segment.row_count,
        ):
            raise ProofError(
                f"{segment.data_file}: expected {segment.data_file_bytes} bytes and {segment.row_count} rows "
                f"as proven, found {data_file.file_size_in_bytes} and {data_file.record_count}. Nothing was "
                "committed. Do all hosts see the same warehouse? Run archive again."
            )
        files.append(data_file)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for data_file in files:
            append.append_data_file(data_file)


def _append_receipts(table: Table, segments: Sequence[ProvenSegment]) -> None:
    rows = []
    for store_id, of_store in _by_store(segments).items():
        previous = check_chain(receipts_in(table, store_id))
        for segment in sorted(of_store, key=lambda s: (s.lineage, s.log, s.base_offset)):
            row = asdict(segment.receipt(previous, CHAIN_START))
            previous = row["row_hash"] = row_hash(row)
            rows.append(row)
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def _receipts_of(table: Table, proven: Sequence[ProvenSegment]) -> tuple[Receipt, ...]:
    by_identity = {
        receipt.identity: receipt
        for store_id in _by_store(proven)
        for receipt in receipts_in(table, store_id)
    }
    return tuple(by_identity[segment.identity] for segment in proven)


def _by_store(proven: Sequence[ProvenSegment]) -> dict[str, list[ProvenSegment]]:
    """Group by store; the same segment given twice counts once."""
    by_store: dict[str, dict[str, ProvenSegment]] = {}
    for segment in proven:
        by_store.setdefault(segment.store_id, {}).setdefault(slot_prefix(segment.identity), segment)
    return {store_id: list(segments.values()) for store_id, segments in by_store.items()}


def _conflict(segment: ProvenSegment, archived_sha256: str) -> LakeConflictError:
    return LakeConflictError(
        f"{segment.source_path}: expected SHA-256 {archived_sha256}, which is archived for store "
        f"{segment.store_id}, lineage {segment.lineage}, {segment.log} at offset {segment.base_offset}; "
        f"found {segment.sha256}. Nothing was committed. If the broker recovered from a crash and wrote "
        "these offsets again, run storage-engine adopt to open a new lineage; otherwise the file was changed."
    )
