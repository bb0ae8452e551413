"""Bringing segments back from the lake: identical files, in a directory that a broker opens.

A file gets its name only after its SHA-256 was found to be the receipt's. Nothing is overwritten; files
that are there already with the right bytes are kept, so that a restore which was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from itertools import groupby, pairwise
from pathlib import Path

import pyarrow as pa

from storage_engine.durable import fsync_path, make_dirs
from storage_engine.exceptions import RestoreError
from storage_engine.lake.catalog import Lake
from storage_engine.lake.chain import receipt_name, row_fault
from storage_engine.lake.data_file import WindowMemory
from storage_engine.lake.elsewhere import in_either
from storage_engine.lake.receipts import broken_receipts, receipts
from storage_engine.lake.restored_config import config_files, config_names, queues_of_segment
from storage_engine.lake.segment_reader import read_segment, untouched_files
from storage_engine.lake.staging import sha256_of
from storage_engine.model.receipt import Receipt

_PARTIAL_SUFFIX = ".restoring"
_THREADS = 2

_BUFFERS = 2
"""Of a segment: one is filled from the lake while the other is hashed and written."""

_BLOCK_BYTES = 1 << 20
"""Written and hashed at a time, so that the second of them finds it in the processor's caches."""

Chunks = Iterator[tuple[int, memoryview]]
"""A segment's bytes in order, as (physical offset, bytes valid until two more have been asked for)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of a log to restore; every limit that is None is open. Whole segments are restored.

    :param from_offset: first physical offset.
    :param to_offset: physical offset behind the last.
    :param from_ms: store timestamp of the first message, ms since the epoch.
    :param to_ms: store timestamp that all messages of later segments have reached.
    :param segments: base offsets; these and no others, each of which must be there.
    """

    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    segments: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """A file that is there now. ``existed``: it was there before with the right bytes."""

    path: str
    log: str
    base_offset: int
    size_bytes: int
    sha256: str
    existed: bool


def restore(
    lake: Lake,
    store_id: str,
    to_dir: str | os.PathLike[str],
    *,
    second: Lake | None = None,
    span: Span | None = None,
    lineage: int | None = None,
    log: str | None = None,
    keep_mtime: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[RestoredSegment, ...]:
    """Write archived segments into a new store directory, as ``<log>/<base offset, 20 digits>``.

    Beside them goes the configuration that their broker needs to serve them and to leave alone what it
    did long ago; it comes last, so where it is whole, the restore is.

    :param second: where segments are taken from that the lake lacks, or whose receipts don't hold there.
    :param span: None: everything the lake has.
    :param lineage: None: the newest.
    :param log: None: all logs.
    :param keep_mtime: give files their old mtime; a broker then deletes them at its next window.
    :param progress: called after each segment with its size in bytes, from any thread.
    :raises RestoreError: nothing there, a hole in the span, a receipt that was changed, the target holds
        something else, it can't be written, or the lake's bytes are not those of the receipt.
    :raises LakeUnavailableError: the lake can't be read.
    """
    target = Path(to_dir)
    found = archived_in(lake, second, store_id, lineage=lineage, log=log)
    chosen = choose(found, span or Span(), store_id, lake.location)
    _check_receipts(chosen)
    config = {target / name for name in config_names(chosen[0].broker)}
    _check_target(target, config | {_path(target, receipt) for receipt in chosen})
    tables = [each.messages() for each in (lake, second) if each is not None]
    in_first = {row.row_hash for row in receipts(lake, store_id)}
    # Asked once: each time costs a look at every file that the table has.
    untouched = [untouched_files(table, chosen) for table in tables]
    with _target_errors(target):
        for directory in {_path(target, receipt).parent for receipt in chosen}:
            make_dirs(directory)

    per_thread = threading.local()

    def restore_one(receipt: Receipt) -> tuple[RestoredSegment, pa.Table]:
        place = 0 if receipt.row_hash in in_first else -1
        if not hasattr(per_thread, "memory"):
            per_thread.memory = WindowMemory(_BUFFERS)
        chunks = read_segment(tables[place], receipt, untouched=untouched[place], memory=per_thread.memory)
        restored = _restore_segment(chunks, receipt, _path(target, receipt), keep_mtime)
        if progress is not None:
            progress(receipt.size_bytes)
        return restored, queues_of_segment(tables[place], receipt, untouched[place])

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="restore") as pool:
        futures = [pool.submit(restore_one, receipt) for receipt in chosen]
        try:
            restored, queues = zip(*(future.result() for future in futures), strict=True)
        finally:
            pool.shutdown(cancel_futures=True)
    for name, content in config_files(chosen[0].broker, queues).items():
        _write_config(target / name, content)
    return restored


def archived_in(
    lake: Lake, second: Lake | None, store_id: str, *, lineage: int | None = None, log: str | None = None
) -> tuple[Receipt, ...]:
    """A store's receipts in a lake, or in two: each segment once, by a receipt that holds where there is one.

    :raises LakeUnavailableError: one can't be read.
    """
    rows = receipts(lake, store_id, lineage=lineage, log=log)
    if second is None:
        return rows
    others = receipts(second, store_id, lineage=lineage, log=log)
    broken = broken_receipts(second, others)
    holding = [row for row in others if row.identity not in broken]
    merged, _ = in_either(rows, broken_receipts(lake, rows), holding)
    return merged


def choose(found: Sequence[Receipt], span: Span, store_id: str, location: str) -> tuple[Receipt, ...]:
    """The segments that a span touches, of the newest lineage in ``found``, without a hole in any log.

    :raises RestoreError: when there are none, or a segment in between is missing.
    """
    newest = max((receipt.lineage for receipt in found), default=0)
    chosen: list[Receipt] = []
    for log, rows in groupby((r for r in found if r.lineage == newest), key=lambda r: r.log):
        of_log = list(rows)
        if span.segments is not None:
            of_log = [receipt for receipt in of_log if receipt.base_offset in span.segments]
        hits = [number for number, receipt in enumerate(of_log) if _touches(receipt, span)]
        if not hits:
            continue
        # A segment without messages has no time, but lies between two that were asked for.
        of_span = of_log[hits[0] : hits[-1] + 1]
        for left, right in pairwise(of_span):
            if left.end != right.base_offset:
                raise RestoreError(
                    f"lake {location}, store {store_id}, {log}: expected a segment at offset "
                    f"{left.end}, the next one is at {right.base_offset}. Nothing was written. A "
                    "broker takes no hole: restore the two sides of it into two directories."
                )
        chosen += of_span
    missing = sorted(set(span.segments or ()) - {receipt.base_offset for receipt in chosen})
    if chosen and missing:
        raise RestoreError(
            f"lake {location}: expected segments of store {store_id} at the offsets {missing}, found none "
            "there in the span asked for. Nothing was written."
        )
    if not chosen:
        spans = "; ".join(
            f"lineage {r.lineage} {r.log} [{r.base_offset}, {r.end})" for r in (*found[:1], *found[-1:])
        )
        raise RestoreError(
            f"lake {location}: expected archived segments of store {store_id} in {span}, found none"
            + (f"; first and last it has: {spans}." if spans else " of this store at all.")
            + " Nothing was written."
        )
    return tuple(chosen)


def _touches(receipt: Receipt, span: Span) -> bool:
    if span.from_offset is not None and receipt.end <= span.from_offset:
        return False
    if span.to_offset is not None and receipt.base_offset >= span.to_offset:
        return False
    if span.from_ms is None and span.to_ms is None:
        return True
    first, last = receipt.first_store_timestamp_ms, receipt.last_store_timestamp_ms
    if first is None or last is None:
        return False
    return (span.from_ms is None or last >= span.from_ms) and (span.to_ms is None or first < span.to_ms)


def _check_receipts(chosen: Sequence[Receipt]) -> None:
    """Make sure that each says what it said when it was written."""
    for receipt in chosen:
        if fault := row_fault(receipt):
            raise RestoreError(
                f"receipt of {receipt_name(receipt)}: expected one that says what its bytes were, found that "
                f"it can't be trusted: {fault}. Nothing was written. Run verify, and restore from a second "
                "lake if there is one."
            )


def _check_target(target: Path, expected: Set[Path]) -> None:
    """Make sure that the directory holds nothing but what this restore writes."""
    if not target.exists():
        return
    if not target.is_dir():
        raise RestoreError(f"{target}: expected a directory to restore into, found a file. Name another.")
    expected = expected | {_partial(path) for path in expected}
    with _target_errors(target):
        strange = sorted(path for path in target.rglob("*") if not path.is_dir() and path not in expected)
    if strange:
        raise RestoreError(
            f"{target}: expected an empty directory, or one that this restore was interrupted in; found "
            f"{strange[0]} and {len(strange) - 1} more. Nothing was written. Restore into a new directory."
        )


def _restore_segment(chunks: Chunks, receipt: Receipt, path: Path, keep_mtime: bool) -> RestoredSegment:
    existed = path.exists()
    if existed:
        with _target_errors(path):
            found = sha256_of(path)
        if found != receipt.sha256:
            raise RestoreError(
                f"{path}: expected SHA-256 {receipt.sha256} as archived, found a file with {found}. It was "
                "left alone. Restore into a new directory."
            )
    else:
        partial = _partial(path)
        try:
            with _target_errors(path):
                _write_segment(chunks, receipt, partial, keep_mtime)
                partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    with _target_errors(path):
        fsync_path(path.parent)
    return RestoredSegment(
        str(path), receipt.log, receipt.base_offset, receipt.size_bytes, receipt.sha256, existed
    )


def _write_segment(chunks: Chunks, receipt: Receipt, path: Path, keep_mtime: bool) -> None:
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:
        with ThreadPoolExecutor(1, thread_name_prefix="restore-write") as writer:
            written: Future[None] | None = None
            for offset, chunk in chunks:
                if written is not None:
                    written.result()
                # While this is written, the next is read into the other buffer.
                written = writer.submit(_write_chunk, file, digest, offset - receipt.base_offset, chunk)
        if written is not None:
            written.result()
        if digest.hexdigest() != receipt.sha256:
            raise RestoreError(
                f"{receipt.data_file}: expected the bytes of {receipt.log}/{receipt.base_offset:020d} with "
                f"SHA-256 {receipt.sha256}, found {digest.hexdigest()}. The file was not restored. The lake "
                "is damaged: run verify, and restore from a second lake if there is one."
            )
        if keep_mtime:
            os.utime(file.fileno(), ns=(receipt.source_mtime_ns, receipt.source_mtime_ns))
        os.fsync(file.fileno())


def _write_chunk(file: FileIO, digest: hashlib._Hash, position: int, chunk: memoryview) -> None:
    done = 0
    while done < len(chunk):
        block = chunk[done : done + _BLOCK_BYTES]
        count = file.write(block)
        digest.update(block[:count])
        done += count
    _start_writeback(file.fileno(), position, len(chunk))


def _write_config(path: Path, content: bytes) -> None:
    with _target_errors(path):
        make_dirs(path.parent)
        if path.exists():
            if path.read_bytes() != content:
                raise RestoreError(
                    f"{path}: expected what this restore would write, found something else. It was left "
                    "alone; the segments are restored. Restore into a new directory."
                )
        else:
            partial = _partial(path)
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        fsync_path(path.parent)


def _start_writeback(fd: int, position: int, size_bytes: int) -> None:
    """Let the disk begin on these bytes while the next are decoded; fsync then waits for the rest only."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size_bytes, os.POSIX_FADV_DONTNEED)


def _path(target: Path, receipt: Receipt) -> Path:
    """Where a segment goes.

    :raises RestoreError: the receipt's log would lead out of the target; who wrote it is no archiver of ours.
    """
    path = target / receipt.log / f"{receipt.base_offset:020d}"
    if not path.is_relative_to(target) or ".." in path.relative_to(target).parts:
        raise RestoreError(
            f"receipt of offset {receipt.base_offset}: expected the name of a log, found {receipt.log!r}. "
            "Nothing was written. Run verify: the receipts were tampered with."
        )
    return path


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL_SUFFIX}")


@contextmanager
def _target_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RestoreError(
            f"{path}: can't restore there: {error.strerror or error}. Files that were restored before it are "
            "whole; free space or fix permissions, and run the same restore again to go on."
        ) from error
