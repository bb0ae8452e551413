"""What a server makes of lakes, files and addresses that it can't serve."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from kio.schema.errors import ErrorCode

from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.data_file import Window, read_window
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake_server.archive_reader import LakeReader
from storage_engine.lake_server.partition_logs import Logs, PartitionRecords
from storage_engine.lake_server.upstream import FetchLimits, PartitionFetch
from tests.kafka.lakes import archive, new_lake, segments_of
from tests.kafka_fixture import unpack
from tests.services.command_line import run_command

TOPIC = "hdrs"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("node"))


@pytest.fixture
def lake(tmp_path: Path, node: Path) -> Lake:
    lake = new_lake(tmp_path / "lake")
    archive(lake, node, segments_of(node, f"{TOPIC}-0"))
    return lake


async def fetched(logs: Logs, offset: int = 0) -> PartitionRecords:
    limits = FetchLimits(0, 1 << 20, 1, 0.0)
    (found,) = await logs.fetch([PartitionFetch((TOPIC, 0), offset, 1 << 20)], limits)
    return found


def data_file(lake: Lake) -> Path:
    (store,) = list_stores(lake)
    receipt = min(receipts(lake, store.store_id), key=lambda row: row.base_offset)
    path = local_path(data_file_of(lake.messages(), receipt))
    assert path is not None
    return path


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.999])
def test_of_a_damaged_data_file_no_byte_is_served_that_was_not_written(
    lake: Lake, node: Path, part: float
) -> None:
    path = data_file(lake)
    data = bytearray(path.read_bytes())
    data[int(len(data) * part)] ^= 0xFF
    path.write_bytes(data)
    lines: list[str] = []

    async def read() -> PartitionRecords:
        with closing(LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)) as reader:
            return await fetched(Logs(reader, None, lines.append))

    found = asyncio.run(read())
    whole = next(node.glob(f"logs/{TOPIC}-0/*.log")).read_bytes()
    if found.error is ErrorCode.none:
        assert bytes(found.records) in whole
    else:
        assert (found.error, bytes(found.records)) == (ErrorCode.kafka_storage_error, b"")
        (line,) = lines
        assert line.startswith(f"{TOPIC}-0 is not served: ")
        assert path.name in line
        assert re.search(r"[Rr]un verify", line)


def test_rows_whose_kinds_are_damaged_are_not_passed_over(lake: Lake) -> None:
    """One letter of a dictionary says of every batch of the row group what it is."""
    path = data_file(lake)
    data = path.read_bytes()
    group = pq.read_metadata(path).row_group(0)
    chunks = {one.path_in_schema: one for one in map(group.column, range(group.num_columns))}
    at = data.index(b"batch", chunks["kind"].dictionary_page_offset)
    path.write_bytes(data[:at] + b"catch" + data[at + 5 :])
    lines: list[str] = []

    async def read() -> PartitionRecords:
        with closing(LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)) as reader:
            return await fetched(Logs(reader, None, lines.append))

    found = asyncio.run(read())
    assert (found.error, bytes(found.records)) == (ErrorCode.kafka_storage_error, b"")
    (line,) = lines
    assert line.startswith(f"{TOPIC}-0 is not served: row at physical offset 0 ")


@pytest.mark.parametrize("column", [b"physical_offset", b"offset"])
def test_a_footer_that_lacks_a_column_is_named(lake: Lake, column: bytes) -> None:
    """And no other partition of the same request goes unanswered."""
    path = data_file(lake)
    data = path.read_bytes()
    named = len(column).to_bytes() + column
    assert data.count(b"\x18" + named)
    path.write_bytes(data.replace(b"\x18" + named, b"\x18" + named[:-1] + b"X"))
    lines: list[str] = []

    async def read() -> PartitionRecords:
        with closing(LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)) as reader:
            return await fetched(Logs(reader, None, lines.append))

    assert asyncio.run(read()).error is ErrorCode.kafka_storage_error
    (line,) = lines
    assert f"{path.name}: expected a column {column.decode()}" in line


def test_batches_with_another_crc_are_refused_by_file_and_row_group(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another engine wrote a value anew, and its file is whole."""
    lines: list[str] = []

    def changed(parquet: Any, codec: Any, window: Window, out: memoryview, name: str) -> None:
        read_window(parquet, codec, window, out, name)
        out[len(out) // 2] ^= 1

    monkeypatch.setattr("storage_engine.lake_server.segment_batches.read_window", changed)

    async def read() -> list[PartitionRecords]:
        with closing(LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)) as reader:
            logs = Logs(reader, None, lines.append)
            first = await fetched(logs)
            behind = int(read_batches(bytes(first.records)).last_offsets[-1]) + 1
            return [first, await fetched(logs, behind)]

    first, second = asyncio.run(read())
    assert first.error is ErrorCode.none
    assert (second.error, second.records) == (ErrorCode.kafka_storage_error, b"")
    (line,) = lines
    assert f"{data_file(lake)}, row group 0: expected batches with the right CRC" in line
    assert "Run verify" in line


def test_while_a_lake_is_away_clients_are_told_to_ask_again(lake: Lake) -> None:
    path = data_file(lake)
    away = path.with_name("away")

    async def read() -> list[PartitionRecords]:
        with closing(LakeReader(lake, None, cache_bytes=1 << 20, skip_holes=False)) as reader:
            logs = Logs(reader, None, lambda _: None)
            path.rename(away)
            first = await fetched(logs)
            away.rename(path)
            return [first, await fetched(logs)]

    first, second = asyncio.run(read())
    # Clients take it for one that passes.
    assert first.error is ErrorCode.kafka_storage_error
    assert (second.error, bool(second.records)) == (ErrorCode.none, True)


def test_another_brokers_lake_is_refused(tmp_path: Path) -> None:
    make_lake(LakeConfig.local(tmp_path / "lake"), "rocketmq")
    done = run_command("serve-lake", "--lake", tmp_path / "lake", "--kafka", "127.0.0.1:0")
    assert done.exit_code == 2
    assert "expected a lake of Kafka, found a lake of rocketmq" in done.err


def test_an_empty_lake_is_nobodys_and_has_nothing_to_serve(tmp_path: Path) -> None:
    make_lake(LakeConfig.local(tmp_path / "lake"), "")
    done = run_command("serve-lake", "--lake", tmp_path / "lake", "--kafka", "127.0.0.1:0")
    assert done.exit_code == 2
    assert "expected archived segments of Kafka whose topic has an id, found none" in done.err
    assert "Archive a node" in done.err


def test_a_port_in_use_is_named(lake: Lake, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_command("serve-lake", "--lake", tmp_path / "lake", "--kafka", address)
    assert done.exit_code == 2
    assert f"expected to listen at {address}" in done.err
    assert "Name another address by --kafka" in done.err
