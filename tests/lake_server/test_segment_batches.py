"""Batches out of data files: all that a broker wrote, wherever a window ends, and nothing that is damaged."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.arrow import row_groups
from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.data_file import Window, read_window
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake_server.archive_reader import LakeReader
from storage_engine.lake_server.archived_partitions import ArchivedPartition, read_archive
from storage_engine.lake_server.segment_batches import DamagedRangeError, Piece, ScratchFile, SegmentInLake
from tests.kafka.lakes import archivable_segments, archive, new_lake
from tests.kafka_fixture import unpack


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("row_group_bytes", [300, 20_000, row_groups.ROW_GROUP_BYTES])
@pytest.mark.parametrize("max_bytes", [1, 5_000])
def test_a_log_comes_back_batch_by_batch_wherever_windows_end(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_bytes: int, max_bytes: int
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", row_group_bytes)
    logs = ("txn-1", "hdrs-0") if row_group_bytes > 300 else ("hdrs-0",)
    segments = [one for one in archivable_segments(node) if one.log in logs]
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments)
    topics = read_archive(lake, None).topics
    for log in logs:
        topic, _, number = log.rpartition("-")
        written = b"".join(Path(one.facts.path).read_bytes() for one in segments if one.log == log)
        assert b"".join(served(lake, topics[topic][int(number)], max_bytes)) == written


def served(lake: Lake, partition: ArchivedPartition, max_bytes: int) -> Iterator[bytes]:
    """What a consumer gets that asks for the offset behind what it got."""
    table, offset = lake.messages(), partition.ranges[0].first
    known: dict[str, SegmentInLake] = {}
    pieces: dict[tuple[str, int], Piece] = {}
    while offset < partition.end:
        found = partition.range_at(offset)
        hash_ = found.receipt.row_hash
        segment = known.get(hash_) or known.setdefault(hash_, SegmentInLake(table, found.receipt))
        for number in range(segment.number_of(offset), segment.count):
            piece = pieces.get((hash_, number)) or pieces.setdefault((hash_, number), segment.piece(number))
            if (found_batches := piece.batches(offset, partition.end, max_bytes)) is not None:
                yield (batches := bytes(found_batches))
                offset = int(read_batches(batches).last_offsets[-1]) + 1
                break
        else:
            offset = found.end


@given(st.data())
def test_no_batch_is_served_that_is_damaged(node: Path, data: st.DataObject) -> None:
    path = next(node.glob("logs/hdrs-0/*.log"))
    whole = path.read_bytes()
    batches = read_batches(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    piece = piece_of(bytes(changed))
    offset, got = int(batches.base_offsets[0]), []
    end = int(batches.last_offsets[-1]) + 1
    try:
        while offset < end and (found := piece.batches(offset, end, 1)):
            got.append(bytes(found))
            offset = int(read_batches(got[-1]).last_offsets[-1]) + 1
    except DamagedRangeError:
        pass
    # Neither the offset nor the leader's epoch is in a batch's CRC, as the broker itself sets them.
    for batch in got:
        assert batch[12 + 9 :] in whole
    damaged = int((batches.positions <= at).sum()) - 1
    place = at - int(batches.positions[damaged])
    if place > 16:
        assert len(got) == damaged


@given(st.data())
def test_no_batch_is_served_at_another_offset_than_it_was_written_at(node: Path, data: st.DataObject) -> None:
    """A batch's first offset isn't in its CRC."""
    whole = next(node.glob("logs/hdrs-0/*.log")).read_bytes()
    batches = read_batches(whole)
    number = data.draw(st.integers(0, len(batches.positions) - 1))
    changed = bytearray(whole)
    changed[int(batches.positions[number]) + data.draw(st.integers(0, 7))] ^= data.draw(st.integers(1, 255))
    offset, end = int(batches.base_offsets[0]), int(batches.last_offsets[-1]) + 1
    piece = piece_of(bytes(changed), (offset, int(batches.base_offsets[-1])))
    got = b""
    with suppress(DamagedRangeError):
        while found := piece.batches(offset, end, 1):
            got += bytes(found)
            assert whole.startswith(got)
            offset = int(read_batches(got).last_offsets[-1]) + 1
        raise AssertionError("a batch was passed over, or served as it wasn't written")


def test_more_than_is_asked_for_is_served_where_one_batch_has_it(node: Path) -> None:
    whole = next(node.glob("logs/hdrs-0/*.log")).read_bytes()
    batches = read_batches(whole)
    piece = piece_of(whole)
    first = piece.batches(int(batches.base_offsets[0]), 1 << 40, 0)
    assert first is not None
    assert len(first) == batches.sizes[0]
    inside = int(batches.last_offsets[-1])
    last = piece.batches(inside, 1 << 40, 1 << 30)
    assert last is not None
    assert bytes(last) == whole[int(batches.positions[-1]) :]
    assert piece.batches(inside + 1, 1 << 40, 1 << 30) is None


def test_no_batch_is_served_that_begins_at_the_end_or_behind_it(node: Path) -> None:
    """A cleaner took what lay between the asked offset and a transaction that is still open."""
    whole = next(node.glob("logs/hdrs-0/*.log")).read_bytes()
    batches = read_batches(whole)
    cleaned = whole[: int(batches.positions[1])] + whole[int(batches.positions[2]) :]
    piece, taken, following = piece_of(cleaned), *map(int, batches.base_offsets[1:3])
    for offset in range(taken, following):
        assert piece.batches(offset, following, 1 << 30) == b""
        assert piece.batches(offset, following + 1, 1)


def test_each_window_is_decoded_once_whoever_reads_where(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers at different places take turns, and batches go on in the next window."""
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 3_000)
    segments = [one for one in archivable_segments(node) if one.log == "txn-1"]
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments)
    decoded: list[Window] = []

    def counted(parquet: object, codec: object, window: Window, *more: object) -> None:
        decoded.append(window)
        read_window(parquet, codec, window, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("storage_engine.lake_server.segment_batches.read_window", counted)
    (store,) = list_stores(lake)
    largest = max(receipts(lake, store.store_id), key=lambda row: row.size_bytes)
    segment = SegmentInLake(lake.messages(), largest)
    assert segment.count > 3
    with ThreadPoolExecutor(4) as threads:
        places = [*range(0, segment.count, 2), *range(1, segment.count, 2)]
        sizes = list(threads.map(lambda number: segment.piece(number).size_bytes, places))
    assert sum(sizes) == largest.size_bytes == segment.decoded_bytes
    assert len(decoded) == len(set(decoded)) == segment.count


def test_values_are_read_where_bytes_are_made_of_them_alone(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed batches are archived as they were, beside what is in them."""
    segments = [one for one in archivable_segments(node) if one.log == "flushy-0"]
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments)
    with_values: list[bool] = []
    read = pq.ParquetFile.read_row_group

    def noted(parquet: pq.ParquetFile, group: int, columns: list[str], **how: Any) -> Any:
        with_values.append("value" in columns)
        return read(parquet, group, columns=columns, **how)

    (store,) = list_stores(lake)
    rows = {row.base_offset: row for row in receipts(lake, store.store_id)}
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    of_all = set()
    for segment in segments:
        whole, in_lake = (
            Path(segment.facts.path).read_bytes(),
            SegmentInLake(lake.messages(), rows[segment.base_offset]),
        )
        with_values.clear()
        piece = in_lake.piece(0)
        assert bytes(piece.read(0, piece.size_bytes)) == whole
        codecs = {whole[at + 22] & 7 for at in read_batches(whole).positions.tolist()}
        assert any(with_values) == (0 in codecs)
        of_all.add(0 in codecs)
    assert of_all == {True, False}


def test_threads_that_begin_at_once_keep_what_they_decode_in_one_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = tempfile.TemporaryFile

    def slowly(*given: Any, **named: Any) -> Any:
        time.sleep(0.2)
        return opened(*given, **named)

    monkeypatch.setattr(tempfile, "TemporaryFile", slowly)
    scratch = ScratchFile()
    with ThreadPoolExecutor(4) as threads:
        parts = [bytes([number]) * 1000 for number in range(4)]
        list(threads.map(lambda one: scratch.write(one[0] * 1000, memoryview(one)), parts))
    assert bytes(scratch.kept(0, 4000)) == b"".join(parts)
    assert scratch.size_bytes == 4000


def test_what_was_not_kept_is_never_taken_from_memory() -> None:
    scratch = ScratchFile()
    with pytest.raises(DamagedRangeError):
        scratch.read_into(memoryview(bytearray(3)), 0)
    scratch.write(0, memoryview(b"abc"))
    with pytest.raises(DamagedRangeError, match="at 3 of their file"):
        scratch.read_into(memoryview(bytearray(4)), 0)
    assert list(scratch.kept(0, 3).parts(2)) == [b"ab", b"c"]
    with pytest.raises(DamagedRangeError, match="at 3 of their file"):
        bytes(scratch.kept(0, 4))


def test_what_was_decoded_outlives_a_commit_to_the_lake(node: Path, tmp_path: Path) -> None:
    first, second, *_ = (one for one in archivable_segments(node) if one.log == "tinyseg-0")
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, [first])

    async def kept() -> tuple[list[Piece], list[Piece]]:
        reader = LakeReader(lake, None, cache_bytes=1 << 30, skip_holes=False)
        try:
            pieces = []
            for _ in range(2):
                partition = reader.archive.topics["tinyseg"][0]
                segment = reader._segment(partition.ranges[0].receipt)
                pieces.append([await reader._piece(segment, number) for number in range(segment.count)])
                archive(lake, node, [second])
                await reader.renew()
            return pieces[0], pieces[1]
        finally:
            reader.close()

    before, after = asyncio.run(kept())
    assert before
    assert all(one is other for one, other in zip(before, after, strict=True))


def piece_of(data: bytes, offsets: tuple[int, int] = (0, 1 << 62)) -> Piece:
    return Piece.of(lambda first, end: data[first:end], data, "x", offsets)
