"""A segment as one Parquet file: writing it, and turning it back into the segment's bytes.

The codec clusters rows within chunks of the segment, and cuts them into row groups. Row groups are so small
that a reader of one topic skips most of them. A file is read back window by window. A window is some adjacent
row groups whose rows cover one range of bytes. The needed memory depends on the chunk, not on the segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, cycle, pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from storage_engine.arrow.name_columns import one_array
from storage_engine.arrow.row_groups import cut_rows
from storage_engine.exceptions import CorruptFrameError, ProofError, StorageEngineError
from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS, LEAF_KEY, TREE_COLUMNS, messages_arrow_schema
from storage_engine.lake.durable_io import new_data_file, open_data_file
from storage_engine.lake.file.file_options import SAMPLE_ROWS, writer_options
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.file.segment_tree import SegmentTree, new_leaf_keys, tree_columns
from storage_engine.lake.storage.errors import lake_errors, parquet_errors
from storage_engine.lake.storage.small_files import FileMemory
from storage_engine.model.broker.codec import Columns, Damage, LoadBytes, SegmentCodec
from storage_engine.model.keep.keep_rules import ArchiveRule
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity

MIN_CHUNK_BYTES = 32 << 20
CHUNKS_PER_SEGMENT = 4
"""Larger chunks let a reader of one topic skip more row groups. More chunks need less memory."""

_MOST_KEPT_BYTES = 64 << 20
"""Maximum of a window's memory that is kept for the next segment, in bytes. While a larger window is read,
Arrow's unused memory is released."""

_VIEW = np.dtype("V16")
"""Arrow's view of a binary value: its length and its place."""

_per_thread = threading.local()

CompareRows = Callable[[int, memoryview, np.ndarray[Any, Any], np.ndarray[Any, Any]], None]
"""Called with the position of some bytes, with these bytes, and with positions and sizes of their rows."""


@dataclass(frozen=True, slots=True)
class DataFileStats:
    """Facts about a segment from its rows. Timestamps are in milliseconds since the epoch, or None."""

    row_count: int
    message_count: int
    damaged_bytes: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """Row groups [first, end) whose rows cover exactly the bytes [start, end) of the segment."""

    first_row_group: int
    end_row_group: int
    start_position: int
    end_position: int


def all_is_loaded(first: int, end: int) -> None:
    """Do nothing: all bytes of the segment are in memory already."""


def write_data_file(
    job: SegmentJob, codec: SegmentCodec, data: memoryview, sink: Any, load: LoadBytes = all_is_loaded
) -> None:
    """Write a segment's rows as Parquet.

    :param data: the whole segment, or memory for it that ``load`` fills.
    :param sink: open binary file; it is left open.
    :raises CorruptFrameError: some bytes are no frame and may not be as the broker wrote them, and the job
        doesn't accept damage. The error names their first position.
    :raises ProofError: the codec fails, or its rows don't match its schema.
    :raises OSError: the sink can't be written.
    """
    with _row_errors(job.path):
        ranges = decoded_ranges(job, codec, data, load)
        if job.permits is not None:
            left_out = LeftOut(job.permits, job.log, codec.columns)
            ranges = map(cut_rows, left_out.split(ranges, left_out=False))
        write_decoded(job, codec, ranges, sink)


class LeftOut:
    """Separates the rows that archive rules leave out of the lake from a segment's other rows."""

    def __init__(self, permits: ArchivePermits, log: str, columns: Columns) -> None:
        self._permits, self._log = permits, log
        self._topic = columns.streams[0]
        self._rules: dict[str, ArchiveRule | None] = {}

    def rule_of(self, topic: str) -> ArchiveRule | None:
        """Return the rule that leaves out a topic's rows, or None if they are archived."""
        if topic not in self._rules:
            self._rules[topic] = self._permits.rule_of(self._log, topic)
        return self._rules[topic]

    def split(self, ranges: Iterable[Iterator[pa.Table]], *, left_out: bool) -> Iterator[pa.Table]:
        """Yield the left-out rows of each range, or its archived rows. Ranges without such rows are skipped.

        :param ranges: as :func:`decoded_ranges` yields them.
        :param left_out: True for the left-out rows, False for the archived rows.
        """
        for groups in ranges:
            tables = [rows for group in groups for rows in self._choose_rows(group, left_out=left_out)]
            if tables:
                yield pa.concat_tables(tables)
            del tables

    def _choose_rows(self, rows: pa.Table, *, left_out: bool) -> Iterator[pa.Table]:
        names = one_array(rows[self._topic])
        by_rule = [self.rule_of(name or "") is not None for name in names.dictionary.to_pylist()]
        # The last value is for rows without a topic, which are always archived.
        mask = np.array([*by_rule, False]) == left_out
        indices: Any = names.indices
        chosen = mask[pc.fill_null(indices.cast(pa.int64()), len(by_rule)).to_numpy()]
        if chosen.any():
            yield rows if chosen.all() else _filter_rows(rows, chosen)


def _filter_rows(rows: pa.Table, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
    # Arrow can't filter columns of views. For these, only the views are filtered, and no bytes are copied.
    mask = pa.array(chosen)
    columns = [
        _filter_views(column, chosen) if pa.types.is_binary_view(column.type) else column.filter(mask)
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _filter_views(
    column: pa.ChunkedArray[Any], chosen: np.ndarray[Any, np.dtype[np.bool_]]
) -> pa.ChunkedArray[Any]:
    chunks, first = [], 0
    for chunk in column.chunks:
        chosen_here = chosen[first : first + len(chunk)]
        first += len(chunk)
        _, views, *data = chunk.buffers()
        kept = np.frombuffer(cast("Any", views), _VIEW)[chunk.offset : chunk.offset + len(chunk)][chosen_here]
        valid = pa.array(chunk.is_valid().to_numpy(zero_copy_only=False)[chosen_here])
        buffers = [valid.buffers()[1], pa.py_buffer(kept.tobytes()), *data]
        chunks.append(pa.Array.from_buffers(column.type, len(kept), buffers))
    return pa.chunked_array(chunks, column.type)


def decoded_ranges(
    job: SegmentJob, codec: SegmentCodec, data: memoryview, load: LoadBytes = all_is_loaded
) -> Iterator[Iterator[pa.Table]]:
    """Yield a segment's rows in ranges of one chunk's bytes, each cut into row groups.

    A range's bytes are valid until the next range is requested.

    :param data: the whole segment, or memory for it that ``load`` fills.
    :raises CorruptFrameError: as :func:`write_data_file` does.
    :raises ProofError: the codec fails.
    """
    chunk_bytes = max(MIN_CHUNK_BYTES, -(-len(data) // CHUNKS_PER_SEGMENT))
    view = data.toreadonly()
    if len(view):
        # Unlike that of ``toreadonly``, the ``obj`` of this view doesn't lead to writable memory.
        view = memoryview(pa.py_buffer(view)).cast("B")
    with codec_errors(job.path):
        ranges_of = partial(codec.decode_groups, chunk_bytes=chunk_bytes, context=job.context.codec)
        decoded = iter(ranges_of(view, job.base_offset, load=load))
    while True:
        with codec_errors(job.path):
            groups, damage = next(decoded, _END)
            refused = () if job.accept_damage else (item for item in damage if not item.as_written)
            first = next(iter(refused), None)
        if groups is None:
            return
        if first is not None:
            raise CorruptFrameError.at(job.path, first.offset, first.expected, first.found)
        yield _checked_groups(job, codec, groups)


def _checked_groups(job: SegmentJob, codec: SegmentCodec, groups: Iterator[pa.Table]) -> Iterator[pa.Table]:
    while True:
        with codec_errors(job.path):
            rows = next(groups, None)
            if rows is not None and not job.trees:
                rows = codec.older_rows(rows)
        if rows is None:
            return
        yield rows
        # Otherwise the name would keep these rows in memory while the next ones are decoded.
        del rows


_END: tuple[None, tuple[Damage, ...]] = (None, ())
"""The value after a codec's last range."""


@contextmanager
def codec_errors(name: str) -> Iterator[None]:
    """Turn any error of a broker's codec into one error.

    Errors of this package and MemoryError are raised as they are.

    :raises ProofError: the codec raised another error.
    """
    try:
        yield
    except (StorageEngineError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise _codec_error(name, error) from error


@contextmanager
def _row_errors(name: str) -> Iterator[None]:
    """Raise ProofError for errors in the block that come from rows that don't match their schema."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _codec_error(name, error) from error


def _codec_error(name: str, error: BaseException) -> ProofError:
    return ProofError(
        f"{name}: expected its broker's codec to turn the segment into rows of its schema and back, found "
        f"{type(error).__name__}: {error}. Nothing was committed. Mend the package that brings the broker."
    )


def encode_rows(codec: SegmentCodec, rows: pa.Table, out: memoryview, first_position: int, name: str) -> int:
    """Let the codec write the bytes of rows.

    :return: the number of bytes that the codec says it has written.
    :raises ProofError: the codec fails, or returns an impossible number.
    """
    with codec_errors(name):
        written: object = codec.encode(rows, out, first_position)
    if type(written) is not int or not 0 <= written <= len(out):
        raise ProofError(
            f"{name}: expected its broker's codec to return how many bytes it has written, 0 to {len(out)}, "
            f"found {written!r}. Nothing was committed. Mend the package that brings the broker."
        )
    return written


def write_decoded(
    job: SegmentJob, codec: SegmentCodec, ranges: Iterator[Iterator[pa.Table]], sink: Any
) -> None:
    """Write a codec's rows with the lake's columns and encodings.

    :param ranges: as :func:`decoded_ranges` yields them. Each table becomes one row group.
    :param sink: open binary file, which is left open, or a path.
    """
    schema = file_schema(codec.schema, trees=job.trees)
    groups = next(ranges, iter(()))
    sample: list[pa.Table] = []
    for rows in groups:
        sample.append(rows)
        if sum(map(len, sample)) >= SAMPLE_ROWS:
            break
    options = writer_options(schema, codec.columns, pa.concat_tables(sample) if sample else None)
    with pq.ParquetWriter(sink, schema, **options) as writer:
        # No list and no name may keep rows in memory while the next ones are decoded.
        taken = (sample.pop(0) for _ in range(len(sample)))
        for rows in chain(taken, groups, chain.from_iterable(ranges)):
            table = _with_own_columns(job, rows, codec.columns, schema)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            del rows, table


def lake_groups(
    job: SegmentJob, codec: SegmentCodec, data: memoryview, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield a segment's rows with the lake's columns, one table for each row group.

    :param schema: result of :func:`file_schema` for the codec's rows.
    :raises StorageEngineError: as :func:`write_data_file` does.
    """
    with _row_errors(job.path):
        for rows in chain.from_iterable(decoded_ranges(job, codec, data)):
            yield _with_own_columns(job, rows, codec.columns, schema)


def together(groups: Sequence[pa.Table]) -> pa.Table:
    """Return rows of several segments as one row group."""
    return pa.concat_tables(groups).unify_dictionaries() if len(groups) > 1 else groups[0]


class RowCounter:
    """Counts a data file's rows as they are read back."""

    def __init__(self, columns: Columns) -> None:
        self._stored_at = columns.stored_at
        self._rows = self._messages = self._damaged_bytes = 0
        self._first_us: list[int] = []
        self._last_us: list[int] = []

    def add(self, rows: pa.Table) -> None:
        """Count rows. They have at least the columns ``kind`` and ``size``, and the stored time's column."""
        is_message = pc.equal(rows["kind"], pa.scalar("message"))
        messages = is_message.to_numpy().sum().item()
        self._rows += rows.num_rows
        self._messages += messages
        if messages != rows.num_rows:
            is_damage = pc.equal(rows["kind"], pa.scalar("undecodable"))
            self._damaged_bytes += pc.sum(rows["size"].filter(is_damage)).as_py() or 0
        if self._stored_at is None:
            return
        stored = rows[self._stored_at]
        if messages != rows.num_rows:
            stored = stored.filter(is_message)
        extremes = pc.min_max(stored.cast(pa.timestamp("us", tz=stored.type.tz)).cast(pa.int64()))
        if extremes["min"].is_valid:
            self._first_us.append(extremes["min"].as_py())
            self._last_us.append(extremes["max"].as_py())

    def stats(self) -> DataFileStats:
        first, last = min(self._first_us, default=None), max(self._last_us, default=None)
        return DataFileStats(
            row_count=self._rows,
            message_count=self._messages,
            damaged_bytes=self._damaged_bytes,
            first_store_timestamp_ms=None if first is None else first // 1000,
            last_store_timestamp_ms=None if last is None else last // 1000,
        )


class WindowMemory:
    """Memory for the bytes of windows. Only one segment at a time may use it.

    Fresh memory would take longer, because the kernel must clear its pages.

    :param buffers: number of buffers, used in turn. A buffer's bytes are valid until its next turn.
    """

    def __init__(self, buffers: int = 1) -> None:
        self._buffers = [np.empty(0, np.uint8)] * buffers

    def forget(self) -> None:
        """Release the buffers that are larger than most segments need."""
        self._buffers = [it if len(it) <= _MOST_KEPT_BYTES else it[:0].copy() for it in self._buffers]

    def buffers(self, size_bytes: int) -> Iterator[memoryview]:
        """Yield the buffers in turn, without end. Each has at least this size."""
        for number in cycle(range(len(self._buffers))):
            if len(self._buffers[number]) < size_bytes:
                self._buffers[number] = np.empty(size_bytes, np.uint8)
            yield self._buffers[number].data

    def take(self, size_bytes: int) -> memoryview:
        """Return memory of this size, from the first buffer."""
        return next(self.buffers(size_bytes))[:size_bytes]


def window_memory() -> WindowMemory:
    """Return this thread's memory for reading windows back, which all its segments use."""
    if not hasattr(_per_thread, "windows"):
        _per_thread.windows = WindowMemory()
    windows: WindowMemory = _per_thread.windows
    return windows


@contextmanager
def opened_file(
    file_io: FileIO, location: str, stored_at: str = "", footer: pq.FileMetaData | None = None
) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    """Open a data file of the lake, and its rows, for the duration of the block.

    :param stored_at: location of the file until it gets its final name; "" if it has that name.
    :param footer: the footer if it was read before; None to read it.
    :raises ProofError: the file is no Parquet file.
    :raises LakeUnavailableError: the file can't be read.
    """
    with (
        parquet_errors(location),
        open_data_file(file_io, stored_at or location) as stored,
        open_rows(stored) if footer is None else pq.ParquetFile(stored, metadata=footer) as parquet,
    ):
        yield stored, parquet


@contextmanager
def opened_rows(
    file_io: FileIO, location: str, footer: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """Open the rows of a data file of the lake, like :func:`opened_file`."""
    with opened_file(file_io, location, footer=footer) as (_, parquet):
        yield parquet


def open_rows(stored: Any, coded: Iterable[str] = ()) -> pq.ParquetFile:
    """Open the rows of an open data file. The column of leaf keys is read as dictionary codes.

    :param coded: further columns that are read as dictionary codes.
    """
    footer = pq.read_metadata(stored)
    names = set(footer.schema.to_arrow_schema().names)
    codes = [name for name in (*coded, LEAF_KEY) if name in names]
    return pq.ParquetFile(stored, metadata=footer, read_dictionary=codes)


class SegmentPart:
    """A segment's rows in a shared data file, read like a file with these rows alone.

    Number 0 is the segment's first row group. Rows of other segments in its row groups are left out.

    :raises ProofError: the file doesn't have the row groups.
    """

    def __init__(
        self, parquet: pq.ParquetFile | LastGroup, identity: SegmentIdentity, groups: range, name: str
    ) -> None:
        if groups.stop > parquet.num_row_groups:
            raise ProofError(
                f"{name}: expected row groups {groups.start} to {groups.stop - 1} with the rows of "
                f"{identity.log}/{identity.base_offset:020d}, found a file of {parquet.num_row_groups} row "
                "groups. The data file is not the one that was proven."
            )
        self._parquet, self._groups, self._name = parquet, groups, name
        values = (identity.store_id, identity.lineage, identity.log, identity.base_offset)
        self._values: dict[str, Any] = dict(zip(IDENTITY_COLUMNS.names, values, strict=True))

    @property
    def num_row_groups(self) -> int:
        return len(self._groups)

    @property
    def schema_arrow(self) -> pa.Schema:
        return self._parquet.schema_arrow

    def read_row_group(
        self, number: int, columns: Sequence[str] | None = None, *, use_threads: bool = False
    ) -> pa.Table:
        names = None if columns is None else list(dict.fromkeys((*columns, *self._values)))
        rows = self._parquet.read_row_group(self._groups[number], columns=names, use_threads=use_threads)
        are_own: Any = reduce(
            pc.and_, (pc.equal(rows[name], pa.scalar(value)) for name, value in self._values.items())
        )
        if not pc.all(are_own).as_py():
            rows = rows.filter(are_own)
        return rows if columns is None else rows.select([it for it in rows.column_names if it in columns])

    def read_row_groups(
        self, numbers: Sequence[int], columns: Sequence[str], *, use_threads: bool = False
    ) -> pa.Table:
        return pa.concat_tables(self.read_row_group(it, columns, use_threads=use_threads) for it in numbers)

    def statistics(self, column: str) -> list[pq.Statistics | None]:
        """Return a column's statistics in each row group; None for a group that other segments may share."""
        return [
            by_column[column] if _are_constant(by_column[name] for name in self._values) else None
            for by_column in _statistics(
                self._parquet.metadata, self._groups, (column, *self._values), self._name
            )
        ]


class LastGroup:
    """A data file that keeps its last read row group, for the next segment with rows in it."""

    def __init__(self, parquet: pq.ParquetFile) -> None:
        self._parquet = parquet
        self._last: tuple[object, pa.Table] | None = None
        # Each segment needs them, and the footer would make them again each time.
        self.metadata, self.schema_arrow = parquet.metadata, parquet.schema_arrow
        self.num_row_groups = parquet.num_row_groups

    def read_row_group(
        self, number: int, columns: Sequence[str] | None = None, *, use_threads: bool = False
    ) -> pa.Table:
        key = (number, None if columns is None else tuple(columns))
        if self._last is None or self._last[0] != key:
            self._last = None
            names = None if columns is None else list(columns)
            self._last = key, self._parquet.read_row_group(number, columns=names, use_threads=use_threads)
        return self._last[1]


SegmentRows = pq.ParquetFile | SegmentPart
"""A data file with the rows of one segment, or the part of a shared file that has them."""


def rows_of_segment(parquet: pq.ParquetFile, receipt: Receipt, name: str) -> SegmentRows:
    """Return the rows of a receipt's segment in its data file.

    :raises ProofError: the file doesn't have the row groups that the receipt names.
    """
    groups = receipt.groups
    return parquet if groups is None else SegmentPart(parquet, receipt.identity, groups, name)


def copy_rows(
    file_io: FileIO, old: str, new: str, columns: Columns, part_of: Callable[[pq.ParquetFile], SegmentRows]
) -> None:
    """Copy a segment's rows into a data file of its own, row group by row group.

    :param part_of: returns the segment's rows in the old file.
    :raises ProofError: the old file is no Parquet file.
    :raises LakeUnavailableError: the old file can't be read, or the new one can't be written.
    """
    with (
        opened_rows(file_io, old) as parquet,
        lake_errors(new, "write a data file"),
        new_data_file(file_io, new) as sink,
    ):
        part = part_of(parquet)
        write_groups(columns, map(part.read_row_group, range(part.num_row_groups)), sink)


_segments: FileMemory[Mapping[SegmentIdentity, range]] = FileMemory(most=200_000)
"""The segments in each data file, by the file's location. A segment takes some 300 bytes."""


def segments_in(file_io: FileIO, location: str) -> Mapping[SegmentIdentity, range]:
    """Return the row groups of each segment in a data file. The identities lack the SHA-256.

    The last results are kept, because a file never changes.

    :raises ProofError: the file is no Parquet file.
    :raises LakeUnavailableError: the file can't be read.
    """
    return _segments.get(location, lambda: _read_segments(file_io, location), len)


def _read_segments(file_io: FileIO, location: str) -> Mapping[SegmentIdentity, range]:
    segments: dict[SegmentIdentity, range] = {}
    names = IDENTITY_COLUMNS.names
    with lake_errors(location, "read a data file"), opened_rows(file_io, location) as parquet:
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=names, use_threads=False)
            for slot in rows.group_by(names, use_threads=False).aggregate([]).to_pylist():
                store_id, lineage, log, base_offset = (slot[name] for name in names)
                identity = SegmentIdentity(store_id, lineage, log, base_offset, "")
                segments[identity] = range(segments.get(identity, range(number, number)).start, number + 1)
    return segments


def write_groups(columns: Columns, groups: Iterable[pa.Table], sink: Any) -> None:
    """Write rows of data files unchanged, each table as one row group.

    :param groups: at least one table.
    :param sink: open binary file; it is left open.
    """
    following = iter(groups)
    first = next(following)
    with pq.ParquetWriter(sink, first.schema, **writer_options(first.schema, columns, first)) as writer:
        writer.write_table(first, row_group_size=max(1, first.num_rows))
        del first
        for rows in following:
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))


def column_statistics(rows: SegmentRows, column: str, name: str) -> list[pq.Statistics | None]:
    """Return a column's statistics in each row group of a segment, or None where the footer has none for it.

    :raises ProofError: the file's footer lacks the column.
    """
    if isinstance(rows, SegmentPart):
        return rows.statistics(column)
    groups = range(rows.metadata.num_row_groups)
    return [by_column[column] for by_column in _statistics(rows.metadata, groups, (column,), name)]


def _statistics(
    metadata: pq.FileMetaData, groups: range, columns: Sequence[str], name: str
) -> Iterator[dict[str, pq.Statistics | None]]:
    places = {column: place_of(metadata, column, name) for column in columns} if groups else {}
    for number in groups:
        group = metadata.row_group(number)
        yield {column: group.column(at).statistics for column, at in places.items()}


def _are_constant(statistics: Iterable[pq.Statistics | None]) -> bool:
    return all(item is not None and item.has_min_max and item.min == item.max for item in statistics)


def segment_bytes(
    parquet: SegmentRows,
    codec: SegmentCodec,
    origin: int,
    size_bytes: int,
    name: str,
    counter: RowCounter | None = None,
    memory: WindowMemory | None = None,
    tree: SegmentTree | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Yield a segment's bytes from its data file, in order, as (position, bytes).

    The file is read once, from its beginning to its end.

    :param origin: position of the segment's first byte.
    :param counter: counts all rows; None to read only the columns that the bytes are made of.
    :param memory: memory for the bytes. With None, they are valid until the next bytes are requested.
    :param tree: gets all leaves, for a file with leaf keys.
    :raises ProofError: the rows don't cover [origin, origin + size_bytes) exactly once.
    """
    columns = None if counter is None else list(codec.schema.names)
    if tree is not None:
        columns = list(dict.fromkeys((*(columns or codec.encoded_columns), *tree_columns(codec.columns))))
    windows = plan_windows(parquet, origin, size_bytes, name)
    longest = max((w.end_position - w.start_position for w in windows), default=0)
    for window, buffer in zip(windows, (memory or WindowMemory()).buffers(longest), strict=False):
        out = buffer[: window.end_position - window.start_position]
        read_window(parquet, codec, window, out, name, columns, counter, tree)
        yield window.start_position, out


def read_window(
    parquet: SegmentRows,
    codec: SegmentCodec,
    window: Window,
    out: memoryview,
    name: str,
    columns: list[str] | None = None,
    counter: RowCounter | None = None,
    tree: SegmentTree | None = None,
) -> None:
    """Write a window's bytes into memory.

    :param out: memory of the window's length.
    :param columns: columns to read; None for the columns that the bytes are made of.
    :raises ProofError: the rows don't cover the window exactly once.
    """
    # Bytes that the codec doesn't write must not be right by chance, from an equal segment before.
    np.frombuffer(out, np.uint8).fill(0)
    written = 0
    starts: list[np.ndarray[Any, Any]] = []
    ends: list[np.ndarray[Any, Any]] = []
    for group in range(window.first_row_group, window.end_row_group):
        if columns is None:
            rows = _encoded_rows(parquet, codec, group)
        else:
            rows = parquet.read_row_group(group, columns=columns, use_threads=False)
        starts.append(rows["physical_offset"].to_numpy())
        ends.append(starts[-1] + rows["size"].to_numpy())
        written += encode_rows(codec, rows, out, window.start_position, name)
        if counter is not None:
            counter.add(rows)
        if tree is not None:
            tree.add(rows)
        # Otherwise two row groups would be in memory while the next one is read.
        del rows
        if len(out) > _MOST_KEPT_BYTES:
            pa.default_memory_pool().release_unused()
    first, last = np.concatenate(starts), np.concatenate(ends)
    order = check_tiled(first, last, window.start_position, window.end_position, name)
    if written != len(out):
        raise ProofError(
            f"{name}: expected {len(out)} bytes of the segment from position {window.start_position} on, "
            f"found {written} encoded. The file can't be turned back into its segment."
        )
    if tree is not None:
        tree.push(order, first, last - first, out, window.start_position)


def _encoded_rows(parquet: SegmentRows, codec: SegmentCodec, group: int) -> pa.Table:
    """Read the columns that a row group's bytes are made of. Columns that no row needs are null."""
    spared = codec.columns.not_of_raw
    names = [name for name in codec.encoded_columns if name not in spared]
    rows = parquet.read_row_group(group, columns=names, use_threads=False)
    if not spared:
        return rows
    # The stubs don't allow a scalar and an array together.
    compute: Any = pc
    lack = compute.and_(compute.is_null(rows["raw"]), compute.greater(rows["size"], 0))
    if compute.any(lack).as_py():
        spared_rows = parquet.read_row_group(group, columns=list(spared), use_threads=False)
        values = {name: spared_rows[name] for name in spared}
    else:
        values = {name: pa.nulls(rows.num_rows, codec.schema.field(name).type) for name in spared}
    for name, column in values.items():
        rows = rows.append_column(name, column)
    return rows


def plan_windows(parquet: SegmentRows, origin: int, size_bytes: int, name: str) -> tuple[Window, ...]:
    """Divide a segment's row groups into windows, by the footer's statistics of positions.

    When the rows are read, their positions must be checked.

    :param origin: position of the segment's first byte.
    :raises ProofError: a segment that has bytes has no rows, or some rows are outside of it.
    """
    end = origin + size_bytes
    statistics = column_statistics(parquet, "physical_offset", name)
    if not statistics and size_bytes:
        raise ProofError(
            f"{name}: expected rows for the bytes [{origin}, {end}), found none. The data file "
            "is not the segment."
        )
    # A row group without statistics may have rows from anywhere in the segment.
    anywhere = (origin, end - 1)
    bounds = np.array(
        [(s.min, s.max) if s is not None and s.has_min_max else anywhere for s in statistics], np.int64
    ).reshape(-1, 2)
    outside = bounds[(bounds < origin) | (bounds >= end)]
    if len(outside):
        raise ProofError(
            f"{name}: expected rows in the bytes [{origin}, {end}), found one at physical offset "
            f"{outside[0]}. The data file is not the segment."
        )
    lowest_from = np.minimum.accumulate(bounds[::-1, 0])[::-1]
    highest_to = np.maximum.accumulate(bounds[:, 1])
    cuts = (np.flatnonzero(lowest_from[1:] > highest_to[:-1]) + 1).tolist()
    positions = [origin, *lowest_from[cuts].tolist(), end]
    numbers = [0, *cuts, len(statistics)]
    return tuple(
        Window(first, last, *span)
        for (first, last), span in zip(pairwise(numbers), pairwise(positions), strict=True)
        if last > first
    )


def place_of(metadata: pq.FileMetaData, column: str, name: str) -> int:
    """Return the index of a column in a data file.

    :raises ProofError: the footer lacks the column.
    """
    try:
        return metadata.schema.names.index(column)
    except ValueError as error:
        raise ProofError(
            f"{name}: expected a column {column}, found a footer without it. Run verify, and keep or "
            "restore the segment from another place that still has it."
        ) from error


def push_rows(
    parquet: SegmentRows,
    codec: SegmentCodec,
    origin: int,
    size_bytes: int,
    name: str,
    tree: SegmentTree,
    take: Callable[[int, pa.Table], None] | None = None,
    compare: CompareRows | None = None,
) -> None:
    """Add leaves to a tree for rows that are only a part of their segment.

    The file is read once, window by window.

    :param origin: position of the segment's first byte.
    :param take: called with the number and all columns of each row group; None to read only the columns that
        leaves are made of.
    :param compare: called with the bytes of each window's rows.
    :raises ProofError: rows overlap, or are outside of the segment.
    """
    needed = list(dict.fromkeys((*codec.encoded_columns, *tree_columns(codec.columns))))
    columns = needed if take is None else None
    memory = WindowMemory()
    for window in plan_windows(parquet, origin, size_bytes, name):
        groups = list(range(window.first_row_group, window.end_row_group))
        places = parquet.read_row_groups(groups, columns=["physical_offset", "size"], use_threads=False)
        starts, sizes = places["physical_offset"].to_numpy(), places["size"].to_numpy().astype(np.int64)
        if not len(starts):
            continue
        first, end = int(starts.min()), int((starts + sizes).max())
        order = check_disjoint(starts, sizes, origin, origin + size_bytes, name)
        out = memory.take(end - first)
        np.frombuffer(out, np.uint8).fill(0)
        written = 0
        for group in groups:
            rows = parquet.read_row_group(group, columns=columns, use_threads=False)
            if take is not None:
                take(group, rows)
            written += encode_rows(codec, rows, out, first, name)
            tree.add(rows)
            del rows
        if written != int(sizes.sum()):
            raise ProofError(
                f"{name}: expected {int(sizes.sum())} bytes of its rows, found {written} encoded."
            )
        if compare is not None:
            compare(first, out, starts[order], sizes[order])
        tree.push(order, starts, sizes, out, first)


def check_disjoint(
    starts: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], start: int, end: int, name: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Make sure that rows are within [start, end) and don't overlap.

    :return: indexes of the rows that have bytes, sorted by position.
    :raises ProofError: a row is outside, or two overlap.
    """
    order = np.flatnonzero(sizes > 0)
    order = order[np.argsort(starts[order], kind="stable")]
    begins, ends = starts[order], (starts + sizes)[order]
    outside = (begins < np.append(start, ends[:-1])) | (ends > end) if len(order) else np.empty(0, bool)
    if outside.any():
        raise ProofError(
            f"{name}: expected rows within the bytes [{start}, {end}) that don't overlap, found one at "
            f"physical offset {int(begins[np.argmax(outside)])} that overlaps or is outside. The data file "
            "is not of the segment."
        )
    return order


def check_tiled(
    starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], start: int, end: int, name: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Make sure that rows cover [start, end) exactly once. A row without bytes must be where another begins.

    :param starts: position of each row, in any order.
    :param ends: position after each row's last byte.
    :return: indexes of the rows that have bytes, sorted by position.
    :raises ProofError: the rows leave a gap, overlap, or are outside.
    """
    have_bytes = ends != starts
    places: np.ndarray[Any, np.dtype[np.int64]] | None = None
    if not have_bytes.all():
        places = np.flatnonzero(have_bytes)
        lone = starts[~have_bytes]
        # Hundreds of rows without bytes may have one position, mostly one after the other.
        lone = np.setdiff1d(lone[np.append(True, lone[1:] != lone[:-1])], starts[have_bytes])
        starts, ends = starts[have_bytes], ends[have_bytes]
        if len(lone):
            raise ProofError(
                f"{name}: expected each row without bytes where another row begins, found one at physical "
                f"offset {int(lone[0])}. The data file is not the segment."
            )
    # Two rows at one position are a fault in any order, so that the slower stable sort isn't needed.
    order = np.argsort(starts)
    expected = np.concatenate(([start], ends[order]))
    actual = np.concatenate((starts[order], [end]))
    if not np.array_equal(expected, actual):
        at = int(np.flatnonzero(expected != actual)[0])
        raise ProofError(
            f"{name}: expected a row that begins at physical offset {int(expected[at])}, found "
            f"{int(actual[at])}. The data file is not the segment."
        )
    return order if places is None else places[order]


def _with_own_columns(job: SegmentJob, rows: pa.Table, columns: Columns, schema: pa.Schema) -> pa.Table:
    # With dictionaries of one value, the writer needn't hash the rows' values.
    zeros = np.zeros(rows.num_rows, np.int32)
    identity = [
        pa.DictionaryArray.from_arrays(zeros, pa.array([value], field.type))
        for field, value in zip(
            IDENTITY_COLUMNS, (job.store_id, job.lineage, job.log, job.base_offset), strict=True
        )
    ]
    keys = [new_leaf_keys(rows, columns)] if job.trees else []
    return pa.Table.from_arrays([*identity, *rows.columns, *keys], schema=schema)


def file_schema(codec_schema: pa.Schema, *, trees: bool) -> pa.Schema:
    """Return the lake's columns for the Parquet writer, some as dictionaries. Readers get plain values.

    Columns of trees that have no value in a new file are left out. Iceberg reads them as null.
    """
    names = (*IDENTITY_COLUMNS.names, LEAF_KEY)
    left_out = set(TREE_COLUMNS.names) - {LEAF_KEY}
    return pa.schema(
        [
            field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in names else field
            for field in messages_arrow_schema(codec_schema, trees=trees)
            if field.name not in left_out
        ]
    )
