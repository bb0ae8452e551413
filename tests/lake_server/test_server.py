"""What a server gives of a lake that grows or has holes, and what it makes of strange requests."""

from __future__ import annotations

import asyncio
import socket
import struct
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition
from kio.schema.errors import ErrorCode
from pyiceberg.table import Table

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake_server.archive_reader import _THREADS, LakeReader, Transactions
from storage_engine.lake_server.archived_partitions import ArchivedPartition
from storage_engine.lake_server.group_answers import CommittedPositions
from storage_engine.lake_server.partition_logs import Logs, PartitionRecords
from storage_engine.lake_server.protocol import APIS, FETCH, Request, read_request
from storage_engine.lake_server.segment_batches import KeptBytes, Piece, SegmentInLake
from storage_engine.lake_server.server import Listening, serve
from storage_engine.lake_server.upstream import FetchLimits, PartitionFetch
from storage_engine.model.proof.receipt import Receipt
from tests.kafka.lakes import archive, new_lake, segments_of
from tests.kafka_fixture import unpack
from tests.lake.expiry import ACT, expire

CACHE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("node"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path / "lake")


async def offsets(reader: LakeReader, partition: ArchivedPartition) -> list[int]:
    """The offsets of all batches that a consumer gets from the start on."""
    found: list[int] = []
    offset = partition.start
    while batches := bytes(await reader.batches(partition, offset, partition.end, 1 << 20)):
        read = read_batches(batches)
        found += read.base_offsets.tolist()
        offset = int(read.last_offsets[-1]) + 1
    return found


def test_what_is_archived_later_is_served_after_a_renewal(lake: Lake, node: Path) -> None:
    first, second, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first])

    async def ends() -> tuple[int, int, list[int]]:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)
        before = reader.archive.topics["tinyseg"][0].end
        changed = reader.changed
        archive(lake, node, [second])
        await reader.renew()
        assert changed.is_set()
        partition = reader.archive.topics["tinyseg"][0]
        found = await offsets(reader, partition)
        reader.close()
        return before, partition.end, found

    before, after, found = asyncio.run(ends())
    assert (before, after) == (first.end_offset, second.end_offset)
    assert any(first.end_offset <= one < second.end_offset for one in found)


@pytest.mark.parametrize("skips", [False, True])
def test_a_hole_ends_what_is_served_unless_it_is_skipped(lake: Lake, node: Path, skips: bool) -> None:
    first, second, third, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first, third])

    async def read() -> list[int]:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=skips)
        try:
            return await offsets(reader, reader.archive.topics["tinyseg"][0])
        finally:
            reader.close()

    if not skips:
        with pytest.raises(
            StorageEngineError, match=rf"\[{second.base_offset}, {second.end_offset}\): no receipt"
        ):
            asyncio.run(read())
        return
    found = asyncio.run(read())
    assert found
    assert not [one for one in found if second.base_offset <= one < second.end_offset]
    assert max(found) >= third.base_offset


def test_readers_go_on_behind_what_expired(lake: Lake, node: Path) -> None:
    first, second, third, fourth, *_ = segments_of(node, "tinyseg-0")
    # In files of their own, each of which can leave by itself.
    for segment in (first, second, third, fourth):
        archive(lake, node, [segment])
    (store,) = list_stores(lake)
    rows = receipts(lake, store.store_id)
    expire(lake, [row for row in rows if row.base_offset in (first.base_offset, third.base_offset)])

    async def read() -> tuple[ArchivedPartition, list[int]]:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)
        try:
            partition = reader.archive.topics["tinyseg"][0]
            return partition, await offsets(reader, partition)
        finally:
            reader.close()

    partition, found = asyncio.run(read())
    # An offset below the start is out of range.
    assert (partition.start, partition.holes()) == (second.base_offset, [])
    assert [one[:2] for one in partition.expired] == [
        (first.base_offset, first.end_offset),
        (third.base_offset, third.end_offset),
    ]
    assert min(found) == second.base_offset
    assert not [one for one in found if third.base_offset <= one < third.end_offset]
    assert max(found) >= fourth.base_offset


def test_a_server_names_what_expired_and_what_does_while_it_serves(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first, second, third])
    (store,) = list_stores(lake)
    expire(lake, receipts(lake, store.store_id)[:1])
    monkeypatch.setattr("storage_engine.lake_server.server._RENEWAL_SECONDS", 0.05)

    async def logged() -> list[str]:
        async with served(lake, tmp_path / "positions.json") as (_, lines), asyncio.timeout(60):
            assert len(lines) == 1
            expire(lake, receipts(lake, store.store_id)[:1])
            while len(lines) < 2:
                await asyncio.sleep(0.01)
            # What was said is not said again.
            await asyncio.sleep(0.2)
            return lines

    assert asyncio.run(logged()) == [
        f"tinyseg-0: offsets [{one.base_offset}, {one.end_offset}) EXPIRED: expired by act {ACT[:12]}"
        for one in (first, second)
    ]


def test_a_partition_that_expired_is_empty(lake: Lake, node: Path) -> None:
    first, second, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first, second])
    (store,) = list_stores(lake)
    expire(lake, receipts(lake, store.store_id))

    async def read() -> tuple[int, int, int, bytes]:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)
        try:
            partition = reader.archive.topics["tinyseg"][0]
            stable = (await reader.transactions(partition)).stable_at(partition.end)
            batches = await reader.batches(partition, partition.end, partition.end, 1 << 20)
            assert await reader.offset_at(partition, 0) is None
            return partition.start, partition.end, stable, batches
        finally:
            reader.close()

    end = second.end_offset
    assert asyncio.run(read()) == (end, end, end, b"")


def test_a_transaction_that_is_open_at_a_hole_isnt_committed_there(lake: Lake, node: Path) -> None:
    """Its abort lies in the hole, and what comes behind that says that nothing is open."""
    segments = segments_of(node, "txn-0")
    (missing,) = (one for one in segments if one.base_offset == 768)
    archive(lake, node, [one for one in segments[:-1] if one is not missing])

    async def look() -> tuple[int, int, int]:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=True)
        partition = reader.archive.topics["txn"][0]
        found = await reader.transactions(partition)
        reader.close()
        return found.stable_at(740), found.stable_at(missing.base_offset), partition.end

    before, behind, end = asyncio.run(look())
    assert before == 752
    assert missing.end_offset < behind <= end


def test_what_could_not_be_kept_once_is_read_again(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))

    async def read() -> bool:
        reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)
        partition = reader.archive.topics["hdrs"][0]
        with monkeypatch.context() as without:
            without.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
            with pytest.raises(StorageEngineError, match="expected room for"):
                await reader.batches(partition, 0, partition.end, 1)
        found = await reader.batches(partition, 0, partition.end, 1)
        reader.close()
        return bool(len(found))

    assert asyncio.run(read())


@asynccontextmanager
async def served(lake: Lake, positions: Path) -> AsyncIterator[tuple[int, list[str]]]:
    """A server of a lake in this event loop: its port, and the lines that it logs."""
    reader = LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)
    kept, lines = CommittedPositions(positions), list[str]()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(reader, kept, Listening("127.0.0.1", 0), lines.append, port.set_result))
    try:
        yield await port, lines
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        kept.close()
        reader.close()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "found a length of 1195725856 bytes"),
        (b"\0\0\0\0", "found a length of 0 bytes"),
        (b"\0\0\0\2\0\1", "found 2 bytes"),
        (b"\0\0\0\x08\0\x13\0\0\0\0\0\1", "found key 19 in version 0"),
        (b"\0\0\0\x0b\0\1\0\4\0\0\0\1\0\0\xff", "expected a request of fetch in version 4"),
    ],
)
def test_a_strange_request_ends_its_connection_alone(
    lake: Lake, node: Path, tmp_path: Path, data: bytes, expected: str
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))

    async def ask() -> tuple[bytes, bytes, list[str]]:
        async with served(lake, tmp_path / "positions.json") as (port, lines):
            answers = []
            # The second asks in a version that isn't answered, and is told which are.
            for asked in (data, b"\0\0\0\x0a\0\x12\0\x09\0\0\0\7\xff\xff"):
                incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
                outgoing.write(asked)
                outgoing.write_eof()
                answers.append(await incoming.read())
                outgoing.close()
            return answers[0], answers[1], lines

    nothing, versions, lines = asyncio.run(ask())
    assert nothing == b""
    assert [expected in line for line in lines] == [True]
    assert versions[4:10] == b"\0\0\0\7" + (35).to_bytes(2, "big")


def test_clients_fetch_by_the_highest_version_that_is_named(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))
    versions: set[int] = set()

    def noted(*given: Any) -> Request:
        request = read_request(*given)
        if request.name == "fetch":
            versions.add(request.version)
        return request

    def read_one(port: int) -> int | None:
        consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "fetches"})
        consumer.assign([TopicPartition("hdrs", 0, 0)])
        message = consumer.poll(60)
        consumer.close()
        return None if message is None else message.offset()

    async def read() -> int | None:
        async with served(lake, tmp_path / "positions.json") as (port, _):
            return await asyncio.to_thread(read_one, port)

    monkeypatch.setattr("storage_engine.lake_server.server.read_request", noted)
    assert asyncio.run(read()) == 0
    assert versions == {12}


@pytest.mark.parametrize(("topic", "code"), [("javacodec", 76), ("hdrs", KafkaError._PARTITION_EOF)])
def test_batches_of_zstd_are_sent_to_clients_alone_that_know_it(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, code: int
) -> None:
    archive(lake, node, segments_of(node, f"{topic}-0"))
    apis = {**APIS, FETCH: ("fetch", 4, 9)}
    monkeypatch.setattr("storage_engine.lake_server.protocol.APIS", apis)
    monkeypatch.setattr("storage_engine.lake_server.server.APIS", apis)

    def end_of(port: int) -> int:
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "old", "log_level": 0}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None
            if (error := message.error()) is not None:
                consumer.close()
                return error.code()

    async def ask() -> tuple[int, list[str]]:
        async with served(lake, tmp_path / "positions.json") as (port, lines):
            return await asyncio.to_thread(end_of, port), lines

    ended, lines = asyncio.run(ask())
    assert ended == code
    said = f"{topic}-0: expected Fetch 10 or later for batches of zstd, found 9"
    assert [said in one for one in lines] == [True] * (topic == "javacodec")


def test_a_client_of_the_groups_of_kip_848_is_told_to_use_classic_ones(
    lake: Lake, node: Path, tmp_path: Path
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))

    def polled(port: int) -> KafkaError | None:
        settings = {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "new", "log_level": 0}
        consumer = Consumer({**settings, "group.protocol": "consumer"})
        consumer.subscribe(["hdrs"])
        message = consumer.poll(60)
        consumer.close()
        return None if message is None else message.error()

    async def ask() -> tuple[KafkaError | None, list[str]]:
        async with served(lake, tmp_path / "positions.json") as (port, lines):
            return await asyncio.to_thread(polled, port), lines

    error, (line,) = asyncio.run(ask())
    assert error is not None
    assert error.code() == KafkaError._FATAL
    assert "ConsumerGroupHeartbeat fatal error: Broker: API version not supported" in error.str()
    assert line == (
        "client 127.0.0.1: group new: expected group.protocol=classic, found group.protocol=consumer, which "
        "serve-lake doesn't support"
    )


def test_two_servers_of_a_lake_see_its_commits_and_keep_positions_apart(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first])
    monkeypatch.setattr("storage_engine.lake_server.server._RENEWAL_SECONDS", 0.05)

    def go_on(ports: list[int]) -> list[int]:
        """Commit as a group at one server, read on at each what is archived then; where groups are."""
        place = TopicPartition("tinyseg", 0)
        consumers = [
            Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "enable.auto.commit": False})
            for port in ports
        ]
        consumers[0].commit(offsets=[TopicPartition("tinyseg", 0, 5)], asynchronous=False)
        archive(lake, node, [second])
        for consumer in consumers:
            consumer.assign([TopicPartition("tinyseg", 0, second.base_offset)])
            message = consumer.poll(60)
            assert message is not None
            assert message.offset() == second.base_offset
        found = [consumer.committed([place], timeout=60)[0].offset for consumer in consumers]
        for consumer in consumers:
            consumer.close()
        return found

    async def both() -> list[int]:
        async with (
            served(lake, tmp_path / "a.json") as (one, _),
            served(lake, tmp_path / "b.json") as (other, _),
        ):
            with pytest.raises(BadInputError, match="no other server uses"):
                CommittedPositions(tmp_path / "a.json")
            return await asyncio.to_thread(go_on, [one, other])

    assert asyncio.run(both()) == [5, OFFSET_INVALID]


def test_a_line_is_logged_once_and_few_of_them_are_remembered(
    lake: Lake, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))
    monkeypatch.setattr("storage_engine.lake_server.partition_logs._MOST_LOGGED", 2)
    lines: list[str] = []
    with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
        logs = Logs(reader, None, lines.append)
        for line in ("a", "b", "a", "c", "c", "b", "a"):
            logs.log_once(line)
    assert lines == ["a", "b", "c", "a"]


def test_what_is_decoded_is_served_while_all_threads_decode_something_else(lake: Lake, node: Path) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))

    async def read() -> tuple[bytes, bytes]:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            partition = reader.archive.topics["hdrs"][0]
            found = await reader.batches(partition, 0, partition.end, 1)
            # Whoever is slow to read it holds no memory.
            assert isinstance(found, KeptBytes)
            first = bytes(found)
            are_busy, is_over = threading.Barrier(_THREADS + 1), threading.Event()

            def work() -> None:
                are_busy.wait(60)
                is_over.wait(60)

            waiting = asyncio.gather(*(reader._run_in_thread(work) for _ in range(_THREADS)))
            await asyncio.to_thread(are_busy.wait, 60)
            try:
                async with asyncio.timeout(10):
                    return first, bytes(await reader.batches(partition, 0, partition.end, 1))
            finally:
                is_over.set()
                await waiting

    first, again = asyncio.run(read())
    assert first == again != b""


def test_what_goes_through_segments_for_long_keeps_no_consumer_waiting(
    lake: Lake, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, [*segments_of(node, "hdrs-0"), *segments_of(node, "txn-1")])
    is_over = threading.Event()

    def walk(partition: ArchivedPartition, pieces: Callable[[Receipt], Iterator[Piece]]) -> Transactions:
        # What it needs is decoded while it waits for nothing else.
        assert next(iter(pieces(partition.ranges[0].receipt))).size_bytes
        assert is_over.wait(60)
        return Transactions((), ())

    monkeypatch.setattr("storage_engine.lake_server.archive_reader.read_transactions", walk)

    async def read() -> bytes:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            walked = asyncio.ensure_future(reader.transactions(reader.archive.topics["txn"][1]))
            await asyncio.sleep(0)
            partition = reader.archive.topics["hdrs"][0]
            try:
                async with asyncio.timeout(60):
                    assert await reader.offset_at(partition, 0) is not None
                    assert await reader.last_batch(partition)
                    return bytes(await reader.batches(partition, 0, partition.end, 1))
            finally:
                is_over.set()
                await walked

    assert asyncio.run(read())


def test_segments_that_another_engine_writes_again_are_answered_from_their_rows(
    lake: Lake, node: Path
) -> None:
    segments = segments_of(node, "tinyseg-0")[:3]
    archive(lake, node, segments)
    whole = b"".join(Path(one.facts.path).read_bytes() for one in segments)

    async def read() -> tuple[bytes, bytes]:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            before = await all_bytes(reader)
            lake.messages().overwrite(lake.messages().scan().to_arrow())
            await reader.renew()
            return before, await all_bytes(reader)

    assert asyncio.run(read()) == (whole, whole)


def test_a_segment_that_is_opened_during_a_renewal_is_not_kept_as_it_was(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "tinyseg-0")[:1])
    whole = Path(segments_of(node, "tinyseg-0")[0].facts.path).read_bytes()

    async def read() -> bytes:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            loop, files = asyncio.get_running_loop(), list(tmp_path.rglob("data/store_id=*/*.parquet"))

            def opened(table: Table, receipt: Receipt) -> SegmentInLake:
                made = SegmentInLake(table, receipt)
                if files:
                    lake.messages().overwrite(lake.messages().scan().to_arrow())
                    asyncio.run_coroutine_threadsafe(reader.renew(), loop).result(60)
                    while files:
                        files.pop().unlink()
                return made

            assert files
            monkeypatch.setattr("storage_engine.lake_server.archive_reader.SegmentInLake", opened)
            with suppress(StorageEngineError):
                await all_bytes(reader)
            return await all_bytes(reader)

    assert asyncio.run(read()) == whole


def test_rows_that_another_engine_has_changed_are_not_served(lake: Lake, node: Path) -> None:
    """Neither offsets nor the leader's epoch are in a batch's CRC."""
    archive(lake, node, segments_of(node, "hdrs-0"))
    rows = lake.messages().scan().to_arrow()
    moved = rows
    for name in ("offset", "base_offset"):
        at, field = moved.schema.get_field_index(name), moved.schema.field(name)
        column = pa.array([None if one is None else one + 7 for one in moved[name].to_pylist()], field.type)
        moved = moved.set_column(at, field, column)
    lake.messages().overwrite(moved)
    lines: list[str] = []

    async def fetch() -> PartitionRecords:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            logs = Logs(reader, None, lines.append)
            (found,) = await logs.fetch([PartitionFetch(("hdrs", 0), 0, 1)], FetchLimits(0, 1, 1, 0.0))
            return found

    found = asyncio.run(fetch())
    assert (found.error, found.records) == (ErrorCode.kafka_storage_error, b"")
    (line,) = lines
    assert "Another engine changed them" in line


def test_a_time_is_found_wherever_another_engine_has_put_its_records(lake: Lake, node: Path) -> None:
    archive(lake, node, segments_of(node, "txn-1"))

    async def read() -> tuple[list[tuple[int, int] | None], list[tuple[int, int] | None]]:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            rows = lake.messages().scan().to_arrow()
            times = sorted(at.timestamp() for at in set(rows["timestamp"].to_pylist()) if at is not None)

            async def found() -> list[tuple[int, int] | None]:
                partition = reader.archive.topics["txn"][1]
                return [await reader.offset_at(partition, round(at * 1000)) for at in times[::10]]

            before, part = await found(), rows.num_rows // 4
            rows = rows.sort_by([("physical_offset", "descending")])
            lake.messages().overwrite(rows.slice(0, part))
            for first in range(part, rows.num_rows, part):
                lake.messages().append(rows.slice(first, part))
            await reader.renew()
            return before, await found()

    before, after = asyncio.run(read())
    assert after == before
    assert len(set(before)) > 2


async def all_bytes(reader: LakeReader) -> bytes:
    partition = reader.archive.topics["tinyseg"][0]
    found, offset = b"", partition.start
    while batches := bytes(await reader.batches(partition, offset, partition.end, 1 << 20)):
        found += batches
        offset = int(read_batches(batches).last_offsets[-1]) + 1
    return found


@pytest.mark.parametrize("offset", [-1, 1 << 40])
def test_an_offset_before_the_first_or_behind_the_end_is_out_of_range(
    lake: Lake, node: Path, offset: int
) -> None:
    _, second, third, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [second, third])
    asked = second.base_offset + offset if offset < 0 else offset

    async def fetch() -> PartitionRecords:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            logs = Logs(reader, None, lambda _: None)
            (found,) = await logs.fetch([PartitionFetch(("tinyseg", 0), asked, 1)], FetchLimits(0, 1, 1, 0.0))
            return found

    found = asyncio.run(fetch())
    assert (found.error, found.start, found.end) == (
        ErrorCode.offset_out_of_range,
        second.base_offset,
        third.end_offset,
    )


def test_the_next_segment_is_decoded_before_a_consumer_asks_for_it(lake: Lake, node: Path) -> None:
    first, second, third, *_ = segments_of(node, "tinyseg-0")
    archive(lake, node, [first, second, third])

    async def read() -> list[int]:
        with closing(LakeReader(lake, None, cache_bytes=CACHE_BYTES, skip_holes=False)) as reader:
            partition = reader.archive.topics["tinyseg"][0]
            await reader.batches(partition, first.base_offset, partition.end, 1)
            async with asyncio.timeout(60):
                while sum(len(one.pieces) for one in reader._segments.values()) < 2:
                    await asyncio.sleep(0.01)
            return [one.receipt.base_offset for one in reader._segments.values()]

    # Of the third nothing is.
    assert asyncio.run(read()) == [first.base_offset, second.base_offset]


def test_what_comes_too_late_or_is_too_much_ends_its_connection_alone(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))
    monkeypatch.setattr("storage_engine.lake_server.server._MOST_CONNECTIONS", 2)
    monkeypatch.setattr("storage_engine.lake_server.server._REQUEST_SECONDS", 0.2)
    versions = b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff"

    async def ask() -> tuple[list[bytes], list[str]]:
        async with served(lake, tmp_path / "positions.json") as (port, lines), AsyncExitStack() as closed:

            async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
                closed.push_async_callback(outgoing.wait_closed)
                closed.callback(outgoing.close)
                return incoming, outgoing

            async def answer(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
                connection[1].write(versions)
                length = int.from_bytes(await connection[0].readexactly(4), "big")
                return (await connection[0].readexactly(length))[:4]

            idle, half = await connect(), await connect()
            found = [await answer(idle), await answer(half)]
            found += [await (await connect())[0].read() for _ in range(2)]
            half[1].write(b"\0\0\0\x0a\0\x12")
            await half[0].read()
            return [*found, await answer(idle), await answer(await connect())], lines

    found, lines = asyncio.run(ask())
    said = b"\0\0\0\7"
    assert found == [said, said, b"", b"", said, said]
    assert [line.partition(": ")[2] for line in lines] == [
        "refused, because 2 connections are open. More clients are refused until a connection ends",
        "expected a whole request within 0.2 s, found a part of a request. Its connection was closed.",
    ]


def test_a_client_that_takes_nothing_is_disconnected(
    lake: Lake, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(lake, node, segments_of(node, "hdrs-0"))
    monkeypatch.setattr("storage_engine.lake_server.server._IDLE_SECONDS", 0.5)
    fetch = struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiib", -1, 0, 0, 1 << 20, 0)
    fetch += struct.pack(">ih4siiqi", 1, 4, b"hdrs", 1, 0, 0, 1 << 20)

    async def ask() -> list[str]:
        with socket.socket() as asked:
            asked.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with served(lake, tmp_path / "positions.json") as (port, lines):
                await asyncio.to_thread(asked.connect, ("127.0.0.1", port))
                await asyncio.to_thread(asked.sendall, 300 * (struct.pack(">i", len(fetch)) + fetch))
                async with asyncio.timeout(60):
                    while not lines:
                        await asyncio.sleep(0.05)
                return lines

    (line,) = asyncio.run(ask())
    assert "expected a client that reads its answer within 0.5 s" in line
