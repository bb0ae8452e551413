from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.arrow import row_groups
from storage_engine.exceptions import ProofError
from storage_engine.lake.archive.archive import SegmentJob
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file import data_file
from storage_engine.lake.file.data_file import (
    RowCounter,
    Window,
    WindowMemory,
    check_tiled,
    plan_windows,
    segment_bytes,
    write_data_file,
)
from storage_engine.model.broker.codec import Columns, SegmentCodec
from storage_engine.rocketmq.codec.codec import CODEC, RocketMQCodec

MakeJobs = Callable[..., tuple[SegmentJob, ...]]


def _parquet(row_groups: list[list[tuple[int, int]]]) -> pq.ParquetFile:
    """A file whose rows are these (physical offset, size) pairs."""
    schema = pa.schema([("physical_offset", pa.int64()), ("size", pa.int32())])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for rows in row_groups:
            columns = [[row[0] for row in rows], [row[1] for row in rows]]
            writer.write_table(pa.table(columns, schema=schema))
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


class _Raw:
    """Of a codec, that its rows are made of these columns; whether they are tiled is not its business."""

    columns = Columns()
    encoded_columns = ("physical_offset", "size")

    def encode(self, rows: pa.Table, out: memoryview, base_offset: int) -> int:
        return 0


def test_a_window_ends_where_all_later_rows_lie_behind_it() -> None:
    parquet = _parquet([[(120, 10), (100, 10)], [(110, 10)], [(130, 5)]])
    assert plan_windows(parquet, 100, 35, "x") == (Window(0, 2, 100, 130), Window(2, 3, 130, 135))


def test_row_groups_in_reverse_order_are_one_window() -> None:
    assert plan_windows(_parquet([[(110, 10)], [(100, 10)]]), 100, 20, "x") == (Window(0, 2, 100, 120),)


@pytest.mark.parametrize(
    ("row_groups", "expected"),
    [
        ([[(100, 10), (111, 9)]], "begins at physical offset 110, found 111"),
        ([[(100, 10), (109, 11)]], "begins at physical offset 110, found 109"),
        ([[(100, 10)], [(100, 10)]], "begins at physical offset"),
        ([[(100, 10)], [(109, 11)]], "begins at physical offset 110, found 109"),
        ([[(100, 10)]], "begins at physical offset 110, found 120"),
        ([[(100, 30)]], "begins at physical offset 130, found 120"),
        ([[(90, 30)]], "found one at physical offset 90"),
        ([[(100, 10)], [(115, 5)]], "begins at physical offset 110, found 115"),
        ([], "found none"),
    ],
    ids=[
        "gap",
        "overlap",
        "twice",
        "groups",
        "short",
        "long",
        "before",
        "between groups",
        "empty",
    ],
)
def test_rows_that_do_not_cover_the_segment_exactly_once_are_refused(
    row_groups: list[list[tuple[int, int]]], expected: str
) -> None:
    with pytest.raises(ProofError, match=expected):
        list(segment_bytes(_parquet(row_groups), _Raw(), 100, 20, "x"))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.randoms())
def test_any_order_of_tiles_is_tiled_and_without_one_it_is_not(sizes: list[int], random: Any) -> None:
    ends = np.cumsum(sizes)
    tiles = list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))
    random.shuffle(tiles)
    starts, stops = np.array([t[0] for t in tiles]), np.array([t[1] for t in tiles])
    check_tiled(starts, stops, 0, int(ends[-1]), "x")
    with pytest.raises(ProofError):
        check_tiled(starts[1:], stops[1:], 0, int(ends[-1]), "x")


@pytest.fixture
def written(
    lake: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[bytes, pq.ParquetFile]]:
    """The second sample segment as a data file of several windows with several row groups each."""
    monkeypatch.setattr(data_file, "MIN_CHUNK_BYTES", 256 << 10)
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 64 << 10)
    (job,) = make_jobs(lake, segments[1])
    data = segments[1].read_bytes()
    sink = io.BytesIO()
    write_data_file(job, CODEC, memoryview(data), sink)
    with pq.ParquetFile(io.BytesIO(sink.getvalue())) as parquet:
        yield data, parquet


def test_a_segment_comes_back_window_by_window(written: tuple[bytes, pq.ParquetFile]) -> None:
    data, parquet = written
    base = 1 << 20
    windows = plan_windows(parquet, base, len(data), "x")
    assert len(windows) >= 4
    assert parquet.num_row_groups >= 4 * len(windows) - 4
    chunks = [(offset, bytes(chunk)) for offset, chunk in segment_bytes(parquet, CODEC, base, len(data), "x")]
    assert [offset for offset, _ in chunks] == [window.start_position for window in windows]
    assert b"".join(chunk for _, chunk in chunks) == data


def test_rows_are_clustered_so_that_one_queue_is_in_few_row_groups(
    written: tuple[bytes, pq.ParquetFile],
) -> None:
    _, parquet = written
    queues = []
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns=["topic", "queue_id"]).to_pylist()
        queues.append({(row["topic"], row["queue_id"]) for row in rows if row["topic"] is not None})
    every = set().union(*queues)
    assert len(every) > 5
    mean = sum(sum(queue in group for group in queues) for queue in every) / len(every)
    assert mean < parquet.num_row_groups / 2


def test_row_groups_have_statistics_and_a_page_index_to_skip_by(
    written: tuple[bytes, pq.ParquetFile],
) -> None:
    _, parquet = written
    columns = {
        parquet.metadata.row_group(0).column(i).path_in_schema: parquet.metadata.row_group(0).column(i)
        for i in range(parquet.metadata.num_columns)
    }
    for name in ("topic", "physical_offset", "store_timestamp", "segment_base_offset", "unique_key"):
        assert columns[name].is_stats_set
        assert columns[name].has_column_index
    assert not columns["body"].is_stats_set
    assert columns["body"].compression == "ZSTD"
    assert "RLE_DICTIONARY" in columns["topic"].encodings
    assert "DELTA_BINARY_PACKED" in columns["physical_offset"].encodings
    assert "RLE_DICTIONARY" not in columns["body"].encodings


def test_statistics_are_counted_from_the_file(
    written: tuple[bytes, pq.ParquetFile], ground_truth: Callable[[str, str], Any]
) -> None:
    data, parquet = written
    frames = [f for f in ground_truth("clean-stop", "commitlog") if f["file"].endswith(f"{1 << 20:020d}")]
    messages = [frame["storeTimestamp"] for frame in frames if frame["kind"] == "message"]
    counter = RowCounter(CODEC.columns)
    for _ in segment_bytes(parquet, CODEC, 1 << 20, len(data), "x", counter):
        pass
    stats = counter.stats()
    assert stats.row_count == parquet.metadata.num_rows
    assert (stats.message_count, stats.damaged_bytes) == (len(messages), 0)
    assert (stats.first_store_timestamp_ms, stats.last_store_timestamp_ms) == (min(messages), max(messages))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_stored_time_may_have_any_unit(unit: str) -> None:
    counter = RowCounter(Columns(stored_at="taken_at"))
    taken = pa.array([1_795_038_266_000, 1_795_038_267_000, None], pa.int64())
    factor = {"s": 1 / 1000, "ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    values = [None if value is None else int(value * factor) for value in taken.to_pylist()]
    columns = {
        "kind": ["message"] * 3,
        "size": [1] * 3,
        "taken_at": pa.array(values, pa.int64()).cast(pa.timestamp(unit, "UTC")),
    }
    counter.add(pa.table(columns))
    stats = counter.stats()
    assert (stats.first_store_timestamp_ms, stats.last_store_timestamp_ms) == (
        1_795_038_266_000,
        1_795_038_267_000,
    )


class _OwnCodec(RocketMQCodec):
    """Decodes as it says itself, a range at a time."""

    decode_groups = SegmentCodec.decode_groups


def test_a_codec_that_knows_no_parts_has_the_whole_segment_loaded_first(
    make_jobs: MakeJobs, lake: Lake, segments: list[Path]
) -> None:
    (job,) = make_jobs(lake, segments[0])
    data, loaded = segments[0].read_bytes(), list[tuple[int, int]]()
    room = bytearray(len(data))

    def load(first: int, last: int) -> None:
        loaded.append((first, last))
        room[first:last] = data[first:last]

    sink = io.BytesIO()
    write_data_file(job, _OwnCodec(), memoryview(room), sink, load)
    assert loaded == [(0, len(data))]
    with pq.ParquetFile(sink) as parquet:
        found = segment_bytes(parquet, CODEC, job.base_offset, len(data), "x")
        assert b"".join(bytes(part) for _, part in found) == data


class _BrokenCodec(_OwnCodec):
    def decode(self, data: Any, base_offset: int, **options: Any) -> Iterator[Any]:
        raise KeyError("half")

    def encode(self, rows: pa.Table, out: memoryview, base_offset: int) -> int:
        raise OverflowError("wild")


def test_a_codec_that_fails_is_one_clear_error(
    make_jobs: MakeJobs, lake: Lake, segments: list[Path], written: tuple[bytes, pq.ParquetFile]
) -> None:
    (job,) = make_jobs(lake, segments[0])
    with pytest.raises(ProofError, match=r"its broker's codec .*found KeyError: 'half'. Nothing"):
        write_data_file(job, _BrokenCodec(), memoryview(b"x"), io.BytesIO())
    data, parquet = written
    with pytest.raises(ProofError, match=r"x: expected its broker's codec .*found OverflowError: wild"):
        next(segment_bytes(parquet, _BrokenCodec(), 1 << 20, len(data), "x"))


@dataclass(frozen=True)
class _Failing(_OwnCodec):
    """Fails by whatever it was given, before its first rows or behind them."""

    error: BaseException
    after: int

    def decode(self, data: Any, base_offset: int, **options: Any) -> Iterator[Any]:
        if not self.after:
            raise self.error
        yield next(CODEC.decode(data, base_offset, **options))
        raise self.error

    def encode(self, rows: pa.Table, out: memoryview, base_offset: int) -> int:
        raise self.error


class _OwnError(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("error", [_OwnError("x"), SystemExit(3), OSError("x"), StopIteration()])
def test_whatever_a_codec_raises_is_one_clear_error(
    make_jobs: MakeJobs,
    lake: Lake,
    segments: list[Path],
    written: tuple[bytes, pq.ParquetFile],
    error: BaseException,
    after: int,
) -> None:
    (job,) = make_jobs(lake, segments[0])
    data, parquet = written
    said = r"expected its broker's codec to turn .*\. Nothing was committed\. Mend the package"
    with pytest.raises(ProofError, match=said):
        write_data_file(job, _Failing(error, after), memoryview(segments[0].read_bytes()), io.BytesIO())
    with pytest.raises(ProofError, match=said):
        next(segment_bytes(parquet, _Failing(error, after), 1 << 20, len(data), "x"))


class _Full(io.BytesIO):
    def write(self, data: Any) -> int:
        raise OSError(28, "No space left on device")


def test_a_sink_that_is_full_is_no_fault_of_the_codec(
    make_jobs: MakeJobs, lake: Lake, segments: list[Path]
) -> None:
    (job,) = make_jobs(lake, segments[0])
    with pytest.raises(OSError, match="No space left"):
        write_data_file(job, CODEC, memoryview(segments[0].read_bytes()), _Full())


class _Listed(_OwnCodec):
    def decode(self, data: Any, base_offset: int, **options: Any) -> Iterator[Any]:
        yield [{"physical_offset": 0}], ()


@dataclass(frozen=True)
class _Writing(_OwnCodec):
    """Writes into what it shall read, by one of the ways there might be."""

    way: Callable[[memoryview], memoryview]

    def decode(self, data: Any, base_offset: int, **options: Any) -> Iterator[Any]:
        self.way(data)[0] = 255
        yield from CODEC.decode(data, base_offset, **options)


@pytest.mark.parametrize("way", [lambda data: data, lambda data: memoryview(data.obj)], ids=["view", "owner"])
def test_a_codec_can_t_change_what_it_reads(
    make_jobs: MakeJobs, lake: Lake, segments: list[Path], way: Callable[[memoryview], memoryview]
) -> None:
    (job,) = make_jobs(lake, segments[0])
    before = segments[0].read_bytes()
    # As a segment is read: into memory that serves the next one too.
    memory = np.frombuffer(bytearray(before), np.uint8)
    with pytest.raises(ProofError, match="found TypeError: cannot modify read-only memory"):
        write_data_file(job, _Writing(way), memory.data, io.BytesIO())
    assert memory.tobytes() == before


def test_rows_that_are_no_table_are_refused(make_jobs: MakeJobs, lake: Lake, segments: list[Path]) -> None:
    (job,) = make_jobs(lake, segments[0])
    with pytest.raises(ProofError, match="found TypeError: rows that are list, no Arrow table"):
        write_data_file(job, _Listed(), memoryview(b"x"), io.BytesIO())


class _Idle(_Raw):
    """Encodes nothing, and says that it did or that it didn't."""

    def __init__(self, said: int) -> None:
        self._said = said

    def encode(self, rows: Any, out: memoryview, first_position: int) -> int:
        return self._said


def test_a_codec_that_leaves_bytes_out_is_refused() -> None:
    with pytest.raises(ProofError, match="expected 20 bytes of the segment from position 100 on, found 0"):
        list(segment_bytes(_parquet([[(100, 20)]]), _Idle(0), 100, 20, "x"))


@pytest.mark.parametrize("said", [None, "20", True, 20.0, -1, 21])
def test_a_codec_that_says_no_number_of_bytes_is_refused(said: Any) -> None:
    with pytest.raises(
        ProofError, match=r"x: expected its broker's codec to return how many .*, 0 to 20, found"
    ):
        list(segment_bytes(_parquet([[(100, 20)]]), _Idle(said), 100, 20, "x"))


def test_what_another_segment_left_in_memory_is_never_taken_for_encoded() -> None:
    memory = WindowMemory()
    for buffer, _ in zip(memory.buffers(20), range(1), strict=False):
        buffer[:] = b"of another segment.."
    ((_, found),) = segment_bytes(_parquet([[(100, 20)]]), _Idle(20), 100, 20, "x", memory=memory)
    assert bytes(found) == bytes(20)
