"""A consumer of archived records against the same one at a real broker: ``python -m benchmarks.read_on``.

A real broker takes records of 1 KiB and is stopped; what its log directory has is archived, but for the last
segment. One consumer (librdkafka, CRCs compared) then reads the topic from serve-lake, out of the lake and
once more out of what is decoded by then, and from that broker started again. Said are megabytes of values a
second of wall time and processor seconds of the server. A raw client does the same of each: it counts the
records, compares no CRC and makes nothing of them. So what it gets is what the server can give.

Another server, which has decoded nothing, is then read by 50 consumers at 50 places, and has 200 consumers
that wait at the end. Said are megabytes a second of all 50 together, the server's peak memory, and what it
does for those that wait. 50 raw clients then read so from one more server.

At last a lake of 1,000 small segments of one log is served. Said are the milliseconds from a seek into each
tenth of it to the first record, and how long the server takes to start. The machine's load is told with
each figure: others' work makes all of them worse.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.serial import entity_reader, entity_writer

from benchmarks.common import Bench, report
from benchmarks.kafka_archive import values_of
from demo.brokers.kafka import Kafka, find_jars
from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake_server.protocol import body_class

MUST = 0.5
FIRST_MS = 300
"""The most that a first record over many segments may take."""
SEGMENTS, SMALL_BYTES = 1000, 20_000
TOPIC = "orders"
CODECS = ("none", "zstd")
RECORDS, RECORD_BYTES = 400_000, 1024
SEEKS = 10
_FETCH_VERSION = 11
PLACES, IDLE = 50, 200
_IDLE_SECONDS = 20.0
_WAIT_SECONDS = 60.0
_SETTINGS = {"log.segment.bytes": 64 << 20, "log.initial.task.delay.ms": 3_600_000}


def run(records: int = RECORDS) -> list[Bench]:
    """Measure both ways with and without compression."""
    with tempfile.TemporaryDirectory() as work:
        jars = find_jars(Path(work))
        return [
            *(_compare(codec, Path(work) / codec, records, jars) for codec in CODECS),
            _over_segments(Path(work) / "segments", jars),
        ]


def _compare(codec: str, work: Path, records: int, jars: object) -> Bench:
    kafka = Kafka(work / "kafka", jars, _SETTINGS, {})  # type: ignore[arg-type]
    kafka.start()
    try:
        _produce(kafka.address, codec, records)
        end = _archive(kafka, work / "lake")
        with _serving(work / "lake") as (address, server):
            cold, warm = (_speed(server, end, lambda: _consume(address, 0, end)) for _ in range(2))
            seeks_ms = [_first_ms(address, end * number // SEEKS) for number in range(SEEKS)]
        with _serving(work / "lake") as (address, server):
            raw_cold, raw_warm = (_speed(server, end, lambda: _fetch(address, 0, end)) for _ in range(2))
        with _serving(work / "lake") as (address, server):
            raw_together = _speed(server, end, lambda: _together(address, end, _fetch))
        with _serving(work / "lake") as (address, server):
            before_mib = _memory_mib(server, "VmRSS")
            together = _speed(server, end, lambda: _together(address, end, _consume_part))
            peak_mib = _memory_mib(server, "VmHWM")
            idle_percent = _idle_percent(address, end, server)
        kafka.start()
        (broker,) = (one for one in psutil.Process().children() if one.name() == "java")
        peer = _speed(broker, end, lambda: _consume(kafka.address, 0, end))
        raw_peer = _speed(broker, end, lambda: _fetch(kafka.address, 0, end))
    finally:
        kafka.kill()
    return Bench(
        f"read_on_{codec}",
        cold[0] / peer[0],
        MUST,
        {
            "records": end,
            "lake_mb_per_second": round(cold[0], 1),
            "decoded_mb_per_second": round(warm[0], 1),
            "broker_mb_per_second": round(peer[0], 1),
            "raw_lake_mb_per_second": round(raw_cold[0], 1),
            "raw_decoded_mb_per_second": round(raw_warm[0], 1),
            "raw_broker_mb_per_second": round(raw_peer[0], 1),
            "lake_server_processor_seconds": round(cold[1], 2),
            "decoded_server_processor_seconds": round(warm[1], 2),
            "broker_processor_seconds": round(peer[1], 2),
            "first_record_ms_median": round(sorted(seeks_ms)[SEEKS // 2]),
            "consumers_at_places": PLACES,
            "together_mb_per_second": round(together[0], 1),
            "raw_together_mb_per_second": round(raw_together[0], 1),
            "server_mib_before": before_mib,
            "server_mib_at_its_peak": peak_mib,
            "idle_consumers": IDLE,
            "idle_processor_percent": round(idle_percent, 1),
            "load_of_the_machine": round(os.getloadavg()[0], 1),
        },
    )


def _over_segments(work: Path, jars: object) -> Bench:
    """Measure first records over a log of many segments."""
    kafka = Kafka(work / "kafka", jars, _SETTINGS, {})  # type: ignore[arg-type]
    kafka.start()
    try:
        # More than as many segments can take.
        records = (SEGMENTS + 1) * (SMALL_BYTES // RECORD_BYTES + 1)
        _produce(kafka.address, "none", records, SMALL_BYTES // 2, {"internal.segment.bytes": SMALL_BYTES})
        end = _archive(kafka, work / "lake", SEGMENTS)
    finally:
        kafka.kill()
    began = time.perf_counter()
    with _serving(work / "lake") as (address, server):
        seconds = time.perf_counter() - began
        seeks_ms = sorted(_first_ms(address, end * number // SEEKS) for number in range(SEEKS))
        return Bench(
            "read_on_segments",
            FIRST_MS / seeks_ms[-1],
            1.0,
            {
                "segments": SEGMENTS,
                "first_record_ms_median": round(seeks_ms[SEEKS // 2]),
                "first_record_ms_slowest": round(seeks_ms[-1]),
                "start_seconds": round(seconds, 1),
                "server_mib_at_its_peak": _memory_mib(server, "VmHWM"),
                "load_of_the_machine": round(os.getloadavg()[0], 1),
            },
        )


def _archive(kafka: Kafka, lake_directory: Path, most: int | None = None) -> int:
    """Stop a broker and archive closed segments of its topic; the offset behind them."""
    kafka.stop()
    lake = make_lake(LakeConfig.local(lake_directory), "kafka")
    store = KafkaStore(OpenNode(kafka.server_properties))
    closed = [one for one in store.archivable(store.snapshot(0)).segments if one.log == f"{TOPIC}-0"]
    segments = closed[:most]
    assert most is None or len(segments) == most
    jobs = segment_jobs(
        lake,
        segments,
        store_id="bench",
        lineage=0,
        broker="kafka",
        store_root=str(kafka.server_properties),
        contexts=store.replicas.contexts(segments),
    )
    archive_all(lake, jobs)
    return segments[-1].end_offset


def _produce(
    address: str,
    codec: str,
    records: int,
    batch_bytes: int = 1 << 18,
    settings: Mapping[str, int] = MappingProxyType({}),
) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topic = NewTopic(TOPIC, 1, 1, config={name: str(value) for name, value in settings.items()})
    admin.create_topics([topic])[TOPIC].result(_WAIT_SECONDS)
    producer = Producer(
        {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 20, "batch.size": batch_bytes}
    )
    values = values_of(RECORD_BYTES)
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, values[number % len(values)], b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush(_WAIT_SECONDS)


def _consumer(address: str, first: int, queued: int = 100_000) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "check.crcs": True,
            "enable.auto.commit": False,
            "queued.min.messages": queued,
            # Or whoever has that many waits for a second before it fetches more, whatever it takes meanwhile.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, first)])
    return consumer


def _speed(server: psutil.Process, records: int, read: Callable[[], None]) -> tuple[float, float]:
    """Return megabytes of values a second, and processor seconds of the server."""
    before, began = _processor(server), time.perf_counter()
    read()
    seconds = time.perf_counter() - began
    return records * RECORD_BYTES / seconds / 1e6, _processor(server) - before


def _consume(address: str, first: int, end: int, *, at_once: int = 5000, queued: int = 100_000) -> None:
    """Read records as applications do.

    :param at_once: records that are asked for; never more than there are, or the client waits for them.
    """
    consumer, behind = _consumer(address, first, queued), first
    while behind < end:
        for message in consumer.consume(min(at_once, end - behind), 1.0):
            if message.error() is None:
                assert len(message.value() or b"") == RECORD_BYTES
                behind = (message.offset() or 0) + 1
    consumer.close()


def _fetch(address: str, first: int, end: int) -> None:
    """Read batches, and no more of them than which offsets they have."""
    host, _, port = address.rpartition(":")
    read, behind = entity_reader(body_class("fetch", _FETCH_VERSION, "response", None)), first
    with socket.create_connection((host, int(port))) as connection:
        while behind < end:
            connection.sendall(_request(behind))
            length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            answer, _ = read(connection.recv(length, socket.MSG_WAITALL), 4)
            records = answer.responses[0].partitions[0].records
            behind = int(read_batches(records, check_crc=False).last_offsets[-1]) + 1


def _request(offset: int) -> bytes:
    """Return a request for records, as large as librdkafka asks for."""
    partition = _asked("FetchPartition")(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = _asked("FetchTopic")(topic=TOPIC, partitions=(partition,))
    schema, out = _asked(None), io.BytesIO()
    head = schema.__header_schema__
    entity_writer(head)(
        out,
        head(
            request_api_key=schema.__api_key__,
            request_api_version=schema.__version__,
            correlation_id=1,
            client_id="raw",
        ),
    )
    wait = timedelta(milliseconds=500)
    body = schema(max_wait=wait, min_bytes=1, topics=(topic,), forgotten_topics_data=())
    entity_writer(schema)(out, body)
    data = out.getvalue()
    return len(data).to_bytes(4, "big") + data


def _asked(kind: str | None) -> Any:
    return body_class("fetch", _FETCH_VERSION, "request", kind)


def _first_ms(address: str, offset: int) -> float:
    consumer = _consumer(address, 0)
    while consumer.poll(_WAIT_SECONDS) is None:
        pass
    began = time.perf_counter()
    consumer.seek(TopicPartition(TOPIC, 0, offset))
    while (message := consumer.poll(_WAIT_SECONDS)) is None or message.offset() != offset:
        pass
    ms = (time.perf_counter() - began) * 1000
    consumer.close()
    return ms


def _together(address: str, end: int, read: Callable[[str, int, int], None]) -> None:
    """Have clients read a part each, at the same time."""
    bounds = [end * number // PLACES for number in range(PLACES + 1)]
    with ThreadPoolExecutor(PLACES) as threads:
        list(threads.map(read, [address] * PLACES, bounds[:-1], bounds[1:]))


def _consume_part(address: str, first: int, end: int) -> None:
    # More than a part has: none of them stops fetching because it has enough.
    _consume(address, first, end, at_once=1000, queued=10_000)


def _idle_percent(address: str, end: int, server: psutil.Process) -> float:
    """Return how much of one processor a server takes while consumers wait at the end."""
    consumers = [_consumer(address, end) for _ in range(IDLE)]
    time.sleep(_IDLE_SECONDS)
    before = _processor(server)
    time.sleep(_IDLE_SECONDS)
    percent = 100 * (_processor(server) - before) / _IDLE_SECONDS
    for consumer in consumers:
        consumer.close()
    return percent


def _memory_mib(process: psutil.Process, name: str) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    return kib >> 10


def _processor(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _serving(lake: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = str(Path(sys.executable).with_name("storage-engine"))
    words = [command, "serve-lake", "--lake", str(lake), "--kafka", "127.0.0.1:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        yield said.rpartition(" at ")[2].strip(" .\n"), psutil.Process(process.pid)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    report(run())
