"""A segment's data file: it gives the segment back, is hardly larger, and its row groups are bounded."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import ProofError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.segment_context import SegmentTransactions
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import check_tiled, plan_windows, segment_bytes, write_data_file
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.store import FileFacts, SegmentContext
from tests.kafka import batches
from tests.kafka.lakes import STORE
from tests.kafka_fixture import truth


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("segments")


def job_of(path: Path, tmp_path: Path) -> SegmentJob:
    return SegmentJob(
        store_id=STORE,
        lineage=0,
        broker="kafka",
        store_root=str(tmp_path),
        log="t-0",
        base_offset=0,
        facts=FileFacts.of(path),
        lake=LakeConfig.local(tmp_path / "lake"),
        messages_location="file:///nowhere/records",
    )


def written(data: bytes, directory: Path, *, accept_damage: bool = False) -> pq.ParquetFile:
    path = directory / "0.log"
    path.write_bytes(data)
    job, sink = job_of(path, directory), io.BytesIO()
    write_data_file(replace(job, accept_damage=accept_damage), CODEC, memoryview(data), sink)
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


def read_back(parquet: pq.ParquetFile, size: int) -> bytes:
    return b"".join(bytes(part) for _, part in segment_bytes(parquet, CODEC, 0, size, "file"))


def test_every_segment_comes_back_from_its_data_file(node: Path, tmp_path: Path) -> None:
    for log in truth()["log"]:
        data = (node / log["file"]).read_bytes()
        if not data:
            continue
        parquet = written(data, tmp_path)
        assert read_back(parquet, len(data)) == data
        (expected,) = [pa.concat_tables(rows for rows, _ in CODEC.decode(memoryview(data), 0))]
        assert parquet.read(columns=CODEC.schema.names).cast(CODEC.schema) == expected


PARTS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "zstd", "gzip", "legacy", "garbage"]),
        st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=25,
)
"""What a segment is made of, and the values of each."""


def segment_of(parts: list[tuple[str, list[bytes | None]]]) -> bytes:
    data, offset = b"", 0
    for kind, values in parts:
        if kind == "legacy":
            data += batches.legacy(1, offset, b"key", values[0] or b"")
            offset += 1
        elif kind == "garbage":
            # A length that leads over the end: nothing behind it is found.
            data += b"\xff" * 40
        else:
            records = [batches.Record(1_795_180_000_000, None, value) for value in values]
            content = b"".join(
                batches.record(one, records[0].timestamp, at) for at, one in enumerate(records)
            )
            codec, payload = {
                "plain": (0, None),
                "gzip": (1, gzip.compress(content)),
                "zstd": (4, zstandard.compress(content)),
            }[kind]
            data += batches.batch(records, base_offset=offset, attributes=codec, payload=payload)
            offset += len(records)
    return data


@settings(max_examples=40)
@given(PARTS, st.integers(60, 3000), st.integers(100, 5000))
def test_any_segment_comes_back_however_it_is_cut(
    places: Path, parts: list[tuple[str, list[bytes | None]]], group_bytes: int, chunk_bytes: int
) -> None:
    data = segment_of(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage_engine.arrow.row_groups.ROW_GROUP_BYTES", group_bytes)
        patch.setattr("storage_engine.lake.file.data_file.MIN_CHUNK_BYTES", chunk_bytes)
        patch.setattr("storage_engine.lake.file.data_file.CHUNKS_PER_SEGMENT", 1 << 20)
        parquet = written(data, places, accept_damage=True)
    assert read_back(parquet, len(data)) == data
    for group in range(parquet.num_row_groups):
        sizes = parquet.read_row_group(group, columns=["size"])["size"].to_pylist()
        assert sizes[0] > 0


def big_batch(values: int, each: bytes, base_offset: int) -> bytes:
    """Return a batch that expands a thousandfold, and more."""
    records = [batches.Record(1_795_180_000_000, None, each) for _ in range(values)]
    content = b"".join(batches.record(one, records[0].timestamp, at) for at, one in enumerate(records))
    return batches.batch(records, base_offset=base_offset, attributes=4, payload=zstandard.compress(content))


def test_row_groups_are_bounded_by_what_batches_expand_to(tmp_path: Path) -> None:
    each = bytes(100_000)
    data = b"".join(big_batch(100, each, 100 * number) for number in range(8))
    parquet = written(data, tmp_path)
    assert len(data) < 1 << 20
    assert parquet.num_row_groups > 4
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns=["kind", "value", "physical_offset", "base_offset"])
        assert rows["kind"][0].as_py() == "batch"
        assert sum(map(len, filter(None, rows["value"].to_pylist()))) <= 24 << 20
    assert read_back(parquet, len(data)) == data
    # None of them needs another one to be turned back into bytes.
    windows = plan_windows(parquet, 0, len(data), "file")
    assert [window.end_row_group - window.first_row_group for window in windows] == (
        [1] * parquet.num_row_groups
    )


@pytest.mark.parametrize(
    ("starts", "ends", "expected"),
    [
        ([0, 10, 0, 10], [10, 20, 0, 10], ""),
        ([0, 10, 5], [10, 20, 5], "where another row begins, found one at physical offset 5"),
        ([0, 10, 0], [10, 20, -5], "a row that begins at physical offset"),
        ([0, 0], [10, 10], "a row that begins at physical offset"),
    ],
)
def test_a_row_without_bytes_has_to_lie_where_another_begins(
    starts: list[int], ends: list[int], expected: str
) -> None:
    def check() -> None:
        check_tiled(np.array(starts), np.array(ends), 0, 20, "file")

    if not expected:
        check()
        return
    with pytest.raises(ProofError, match=expected):
        check()


def text(random: Random, size: int) -> bytes:
    return b" ".join(b"word-%d" % random.randint(0, 2000) for _ in range(size // 5 + 1))[:size]


VALUES = {"text": text, "random": Random.randbytes}


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("size", "together"), [(100, 140), (1024, 16)])
def test_a_data_file_is_hardly_larger_than_its_segment(
    tmp_path: Path, codec: str, value: str, size: int, together: int
) -> None:
    random, offset, data = Random(size), 0, b""
    while len(data) < 600_000:
        records = [
            batches.Record(1_795_180_000_000 + at, b"key-%08d" % (offset + at), VALUES[value](random, size))
            for at in range(together)
        ]
        content = b"".join(batches.record(one, records[0].timestamp, at) for at, one in enumerate(records))
        data += batches.batch(
            records,
            base_offset=offset,
            attributes=4 if codec == "zstd" else 0,
            payload=zstandard.compress(content) if codec == "zstd" else None,
        )
        offset += together
    path = tmp_path / "0.log"
    path.write_bytes(data)
    job, sink = job_of(path, tmp_path), io.BytesIO()
    context = SegmentContext(codec=SegmentTransactions("orders", 3, offset, (), ()).as_text())
    write_data_file(replace(job, context=context), CODEC, memoryview(data), sink)
    assert len(sink.getvalue()) / len(data) <= (1.3 if codec == "none" else 2.2)
