"""Byte-for-byte proof of a data file: its rows, encoded again, are exactly the bytes of the segment's files.

Nothing here writes, commits or deletes. If a segment's bytes differ, an error names the first physical offset
at which they differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from storage_engine.exceptions import ProofError
from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.catalog.tables import LEAF_KEY
from storage_engine.lake.durable_io import open_data_file, sha256_of_file
from storage_engine.lake.file.data_file import (
    DataFileStats,
    LastGroup,
    LeftOut,
    RowCounter,
    SegmentPart,
    SegmentRows,
    check_disjoint,
    check_tiled,
    decoded_ranges,
    encode_rows,
    open_rows,
    push_rows,
    segment_bytes,
    window_memory,
)
from storage_engine.lake.file.jobs import ProvenSegment, SegmentJob
from storage_engine.lake.file.segment_tree import NOTHING_GONE, SegmentTree, new_leaf_keys, tree_of_file
from storage_engine.lake.file.source_file import Source
from storage_engine.lake.file.table_entries import packed_facts
from storage_engine.lake.storage.errors import parquet_errors
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.codec import SegmentCodec
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.proof.receipt import (
    PARTIAL,
    proof_version_of,
    row_groups_text,
    rules_text,
    settled_with,
)


@dataclass(frozen=True, slots=True)
class ReadSegment:
    """A segment as it was read.

    :param groups: row groups that have the segment's rows in a shared data file; None if it shares no file.
    """

    job: SegmentJob
    source: Source
    companions: tuple[Source, ...]
    groups: range | None = None


@dataclass(frozen=True, slots=True)
class DataFileReadBack:
    """A data file as it is read back.

    :param staged: location of the file until it gets its final name.
    :param groups: reads row groups of a file that several segments share.
    """

    codec: SegmentCodec
    data_file: str
    staged: str
    parquet: pq.ParquetFile
    groups: LastGroup
    size_bytes: int
    sha256: str
    manifest: bytes

    def rows_of(self, read: ReadSegment) -> SegmentRows:
        """Return the rows of a segment. Raise ProofError if the file lacks the segment's row groups."""
        if read.groups is None:
            return self.parquet
        return SegmentPart(self.groups, read.job.slot, read.groups, self.data_file)


@contextmanager
def reading_back(
    codec: SegmentCodec, data_file: str, staged: str, file_io: FileIO, bytes_per_second: int | None
) -> Iterator[DataFileReadBack]:
    with (
        parquet_errors(data_file),
        open_data_file(file_io, staged) as file,
        pace_at(bytes_per_second).reading(file) as stored,
        open_rows(stored, _kept_as_codes(codec)) as parquet,
    ):
        sha256, manifest = sha256_of_file(stored), packed_facts(parquet.metadata, codec)
        yield DataFileReadBack(
            codec, data_file, staged, parquet, LastGroup(parquet), stored.size(), sha256, manifest
        )


def prove_rows(read: ReadSegment, stored: DataFileReadBack) -> ProvenSegment:
    job, source, codec, data_file = read.job, read.source, stored.codec, stored.data_file
    parquet = stored.rows_of(read)
    counter, memory, origin = RowCounter(codec.columns), window_memory(), codec.origin(job.base_offset)
    leaves = tree_of_file(parquet, codec.columns, data_file, trees=job.trees)
    left_out, size_bytes = _LeftOutStreams(), len(source.data)
    if job.permits is not None and leaves is not None and _row_bytes(parquet) < size_bytes:
        left_out = _prove_left_out(read, job.permits, codec, data_file, parquet, counter, leaves)
    else:
        chunks = segment_bytes(parquet, codec, origin, size_bytes, data_file, counter, memory, leaves)
        for position, chunk in chunks:
            for part in source.parts(position - origin, len(chunk)):
                _compare(job, data_file, position, part, chunk[: len(part)])
                position, chunk = position + len(part), chunk[len(part) :]
    memory.forget()
    tree = (
        None if leaves is None else leaves.tree(job.base_offset, size_bytes, source.sha256, left_out.streams)
    )
    stats = left_out.widened(counter.stats())
    return ProvenSegment(
        store_id=job.store_id,
        lineage=job.lineage,
        log=job.log,
        base_offset=job.base_offset,
        size_bytes=size_bytes,
        sha256=source.sha256,
        broker=job.broker,
        store_root=job.store_root,
        **asdict(stats),
        source_path=job.path,
        source_device=job.facts.device,
        source_inode=job.facts.inode,
        source_mtime_ns=job.facts.mtime_ns,
        source_ctime_ns=job.facts.ctime_ns,
        data_file=data_file,
        data_file_bytes=stored.size_bytes,
        data_file_sha256=stored.sha256,
        proof_version=proof_version_of(None if tree is None else tree.root),
        proven_at_ms=time.time_ns() // 1_000_000,
        staged_file=stored.staged,
        manifest_facts=stored.manifest,
        row_groups=None if read.groups is None else row_groups_text(read.groups),
        store_name=job.store_name,
        store_host=job.store_host,
        log_id=job.context.log_id,
        evidence=settled_with(job.context.evidence),
        end_offset=job.end_offset,
        root=None if tree is None else tree.root,
        streams=None if tree is None else tree.streams,
        state=PARTIAL if left_out.streams else None,
        act=rules_text(left_out.rules) if left_out.streams else None,
    )


@dataclass(frozen=True, slots=True)
class _LeftOutStreams:
    """Streams of a segment that stay out of the lake.

    :param streams: facts of each stream by name, in the form that receipts have for removed streams.
    :param rules: the SHA-256 of the acts whose rules leave them out.
    """

    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING_GONE)
    rules: tuple[str, ...] = ()

    def widened(self, stats: DataFileStats) -> DataFileStats:
        """Return the facts of a data file's rows, with first and last times that include left-out records."""
        firsts = [stats.first_store_timestamp_ms, *(stream["first_ms"] for stream in self.streams.values())]
        lasts = [stats.last_store_timestamp_ms, *(stream["last_ms"] for stream in self.streams.values())]
        return replace(
            stats,
            first_store_timestamp_ms=min((it for it in firsts if it is not None), default=None),
            last_store_timestamp_ms=max((it for it in lasts if it is not None), default=None),
        )


def _row_bytes(parquet: SegmentRows) -> int:
    sizes = parquet.read_row_groups(list(range(parquet.num_row_groups)), columns=["size"])["size"]
    return pc.sum(sizes).as_py() or 0


def _prove_left_out(
    read: ReadSegment,
    permits: ArchivePermits,
    codec: SegmentCodec,
    data_file: str,
    parquet: SegmentRows,
    counter: RowCounter,
    leaves: SegmentTree,
) -> _LeftOutStreams:
    """Prove a data file that lacks the rows which archive rules leave out.

    Each row in the file must have the segment's bytes. Each row that is left out is encoded again and must
    have the segment's bytes, too. Together the rows must cover the whole segment.

    :param leaves: gets all leaves of the file.
    :raises ProofError: rows differ from the segment, or don't cover it exactly once.
    """
    job, source, origin = read.job, read.source, codec.origin(read.job.base_offset)
    end = origin + len(source.data)
    starts, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def compare(
        first: int, decoded: memoryview, of_rows: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]
    ) -> None:
        # 1 for each byte of a row, 0 for bytes that nobody wrote; then multiplied by the source's bytes.
        marks = np.zeros(len(decoded) + 1, np.uint8)
        marks[of_rows - first] += 1
        marks[of_rows - first + lengths] -= 1
        expected = np.add.accumulate(marks, out=marks)[:-1]
        done = 0
        for part in source.parts(first - origin, len(decoded)):
            expected[done : done + len(part)] *= np.frombuffer(part, np.uint8)
            done += len(part)
        _compare(job, data_file, first, expected.data, decoded)
        starts.append(of_rows)
        sizes.append(lengths)

    push_rows(
        parquet, codec, origin, end - origin, data_file, leaves, lambda _, rows: counter.add(rows), compare
    )
    left_out, tree = LeftOut(permits, job.log, codec.columns), SegmentTree(codec.columns, data_file)
    ranges = decoded_ranges(job, codec, source.data, source.loader())
    for rows in left_out.split(ranges, left_out=True):
        at, lengths = rows["physical_offset"].to_numpy(), rows["size"].to_numpy().astype(np.int64)
        order = check_disjoint(at, lengths, origin, end, job.path)
        first = int(at.min())
        size_bytes = int((at + lengths).max()) - first
        out = window_memory().take(size_bytes)
        np.frombuffer(out, np.uint8).fill(0)
        encode_rows(codec, rows, out, first, job.path)
        compare(first, out, at[order], lengths[order])
        tree.add(rows.append_column(LEAF_KEY, new_leaf_keys(rows, codec.columns)))
        tree.push(order, at, lengths, out, first)
        del rows
    every_start = np.concatenate(starts)
    check_tiled(every_start, every_start + np.concatenate(sizes), origin, end, data_file)
    rules = {name: left_out.rule_of(name) for name in tree.streams()}
    rule_ids = {name: rule.rule_id for name, rule in rules.items() if rule is not None}
    streams = {
        name: {**stream, "gone": rule_ids[name][:SHOWN_CHARACTERS]} for name, stream in tree.streams().items()
    }
    return _LeftOutStreams(streams, tuple(rule_ids.values()))


def _kept_as_codes(codec: SegmentCodec) -> list[str]:
    """Return the text columns that the proof reads as dictionary codes, because it doesn't encode them."""
    texts = {field.name for field in codec.schema if pa.types.is_string(field.type)}
    return [name for name in codec.columns.dictionary if name in texts and name not in codec.encoded_columns]


def _compare(job: SegmentJob, data_file: str, position: int, source: memoryview, stored: memoryview) -> None:
    if pa.py_buffer(source).equals(pa.py_buffer(stored)):
        return
    expected, actual = np.frombuffer(source, dtype=np.uint8), np.frombuffer(stored, dtype=np.uint8)
    at = int(np.flatnonzero(expected != actual)[0])
    raise ProofError(
        f"{data_file}: expected the bytes of {job.path}, found 0x{actual[at]:02x} at physical offset "
        f"{position + at}, where the segment has 0x{expected[at]:02x}. Nothing was committed or deleted. A "
        "disk is damaged, or the codec has a fault: keep the segment and report this."
    )
