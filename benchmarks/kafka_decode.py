"""Kafka segments → Arrow with CRC on one thread, against aiokafka's C parser, Java, and decompression alone.

All figures are processor time of the thread that works, each side's best round, in turns, so that what else
the machine does tells less. The results also have the time on the clock.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka.record.memory_records
import cramjam
import numpy as np
import numpy.typing as npt
import zstandard
from isal import isal_zlib

from benchmarks.common import Bench, report
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.record_batch import read_batches
from tests.integration.jars import class_path, java

SEGMENT_BYTES = 64 << 20
"""Of records, uncompressed."""
BATCH_BYTES = 16 << 10
"""Of records in a batch, uncompressed: the default of ``batch.size``."""
TURNS = 3
ROUNDS_A_TURN = 3
WARM_UP_ROUNDS = 6
CODECS = ("gzip", "snappy", "lz4", "zstd")
JAVA_PROJECT = Path(__file__).parent / "java-kafka"
_HEADER_BYTES = 61


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over a segment.

    :param content_bytes: of keys and values; 0: nobody counts them.
    """

    processor_s: float
    clock_s: float
    records: int = 0
    content_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Against:
    """A peer, and what our speed over its has to reach.

    :param must: 0: it is only measured.
    """

    name: str
    rounds: Callable[[], list[Round]]
    must: float


class Java:
    """Kafka's own clients, each time on a virtual machine of its own."""

    def __init__(self) -> None:
        self._command = [java(), "-Xms1g", "-Xmx1g", "-cp", class_path(JAVA_PROJECT)]

    def write(self, path: Path, codec: str, value_bytes: int, batch_bytes: int, content: str) -> None:
        arguments = [path, codec, value_bytes, batch_bytes, SEGMENT_BYTES, content]
        command = [*self._command, "WriteSegment", *map(str, arguments)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    def read(self, path: Path, how: str) -> list[Round]:
        """Read a segment, again and again. :param how: ``views`` or ``keep``."""
        command = [*self._command, "ReadSegment", str(path), str(WARM_UP_ROUNDS + ROUNDS_A_TURN), how]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        found = [[int(figure) for figure in line.split()] for line in lines[WARM_UP_ROUNDS:]]
        return [Round(cpu / 1e9, clock / 1e9, records, size) for cpu, clock, records, size in found]


def measured(work: Callable[[], tuple[int, int]]) -> list[Round]:
    """Do a pass again and again."""
    found = []
    for _ in range(ROUNDS_A_TURN):
        clock, processor = time.perf_counter(), time.process_time()
        records, size = work()
        found.append(Round(time.process_time() - processor, time.perf_counter() - clock, records, size))
    return found


def decode(data: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Decode a segment into Arrow tables with all columns, each dropped before the next one."""
    rows = 0
    for table, damages in CODEC.decode(data, 0):
        if damages:
            raise AssertionError(f"the generated segment is damaged: {damages[0]}")
        rows += table.num_rows
    return rows, 0


def prove(data: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Encode what was decoded, and compare. :return: records, bytes of keys and values.

    :raises AssertionError: other bytes come back.
    """
    out = np.zeros(len(data), np.uint8)
    records = size = 0
    for table, _ in CODEC.decode(data, 0):
        CODEC.encode(table, out.data, 0)
        records += table["kind"].to_pylist().count("message")
        size += sum(len(value) for name in ("key", "value") for value in table[name].to_pylist() if value)
    if not np.array_equal(out, data):
        raise AssertionError("what was decoded doesn't encode to the same bytes")
    return records, size


def aiokafka_pass(data: bytes) -> tuple[int, int]:
    """Read every batch with its CRC, and each key and value."""
    parser: Any = aiokafka.record.memory_records.MemoryRecords
    if "_crecords" not in parser.__module__:
        raise AssertionError(f"expected aiokafka's compiled parser, found {parser.__module__}")
    records = size = 0
    batches = parser(data)
    while batches.has_next():
        batch = batches.next_batch()
        if not batch.validate_crc():
            raise AssertionError("a batch's CRC is wrong")
        for record in batch:
            size += len(record.key) + len(record.value)
            records += 1
    return records, size


def decompression(codec: str, data: npt.NDArray[np.uint8]) -> Callable[[], tuple[int, int]]:
    """Return a pass of nothing but the library's calls, the same ones that we use or dearer ones.

    Snappy and lz4 write one batch behind the other, where records could be read. What gzip and zstd give back
    is dropped before the next. Java's frames of snappy are taken apart before the clock runs.
    """
    batches = read_batches(data)
    payloads = [
        data.data[at + _HEADER_BYTES : at + size]
        for at, size in zip(batches.positions.tolist(), batches.sizes.tolist(), strict=True)
    ]
    if codec == "gzip":
        return lambda: (sum(len(isal_zlib.decompress(one, 31, 1 << 15)) for one in payloads), 0)
    if codec == "zstd":
        one_context = zstandard.ZstdDecompressor()
        return lambda: (sum(len(one_context.decompress(one, 1 << 20)) for one in payloads), 0)
    into: Any = cramjam.lz4.decompress_into
    if codec == "snappy":
        payloads = [block for payload in payloads for block in snappy_blocks(payload)]
        into = cramjam.snappy.decompress_raw_into
    out = memoryview(bytearray(2 * SEGMENT_BYTES))

    def expand() -> tuple[int, int]:
        used = 0
        for one in payloads:
            used += into(one, out[used:])
        return used, 0

    return expand


def snappy_blocks(payload: memoryview) -> Iterator[memoryview]:
    """Yield the blocks in a frame of Java's."""
    at = 16
    while at < len(payload):
        (size,) = struct.unpack_from(">I", payload, at)
        yield payload[at + 4 : at + 4 + size]
        at += 4 + size


def compare(name: str, path: Path, peers: list[Against]) -> Iterator[Bench]:
    """Measure both sides on one segment, and prove that it comes back.

    :raises AssertionError: they didn't read the same records.
    """
    data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    counted = prove(data)
    ours: list[Round] = []
    theirs: dict[str, list[Round]] = {peer.name: [] for peer in peers}
    for _ in range(TURNS):
        for peer in peers:
            theirs[peer.name] += peer.rounds()
            ours += measured(lambda: decode(data))
    for peer in peers:
        rounds = theirs[peer.name]
        if rounds[0].content_bytes and {(r.records, r.content_bytes) for r in rounds} != {counted}:
            raise AssertionError(f"{peer.name} and we did not read the same records of {name}")
        best, peer_best = (min(r.processor_s for r in side) for side in (ours, rounds))
        clock, peer_clock = (min(r.clock_s for r in side) for side in (ours, rounds))
        detail: dict[str, float | int | str] = {
            "records": counted[0],
            "content_bytes": counted[1],
            "segment_bytes": len(data),
            "ours_processor_ms": round(best * 1000, 1),
            "peer_processor_ms": round(peer_best * 1000, 1),
            "ours_clock_ms": round(clock * 1000, 1),
            "peer_clock_ms": round(peer_clock * 1000, 1),
            "ours_million_records_per_second": round(counted[0] / best / 1e6, 2),
        }
        bench = Bench(f"kafka-decode-{name}-{peer.name}", peer_best / best, peer.must, detail)
        print(
            f"{bench.name:40} ours {best * 1e3:7.1f} ms, peer {peer_best * 1e3:7.1f} ms, "
            f"ratio {bench.ratio:5.2f} (on the clock {peer_clock / clock:5.2f}), must {peer.must:.1f}",
            flush=True,
        )
        yield bench


def run() -> list[Bench]:
    """Measure uncompressed batches, batches of one record, and each codec."""
    kafka = Java()
    directory = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
    benches: list[Bench] = []
    try:
        for name, value_bytes, batch_bytes, least in (
            ("1k", 1024, BATCH_BYTES, (2.0, 0.0, 0.9)),
            ("100", 100, BATCH_BYTES, (5.0, 0.8, 0.0)),
            ("1k-one-record", 1024, 0, (0.0, 0.0, 0.0)),
            ("100-one-record", 100, 0, (0.0, 0.0, 0.0)),
        ):
            path = directory / name
            kafka.write(path, "none", value_bytes, batch_bytes, "text")
            content = path.read_bytes()
            peers = [
                Against(
                    "aiokafka", lambda content=content: measured(lambda: aiokafka_pass(content)), least[0]
                ),
                Against("java-views", lambda path=path: kafka.read(path, "views"), least[1]),
                Against("java-keep", lambda path=path: kafka.read(path, "keep"), least[2]),
            ]
            benches += compare(name, path, peers)
            path.unlink()
        for content_name, value_bytes in (("text", 1024), ("text", 100), ("random", 1024)):
            for codec in CODECS:
                size = "1k" if value_bytes == 1024 else str(value_bytes)
                path = directory / codec
                kafka.write(path, codec, value_bytes, BATCH_BYTES, content_name)
                alone = decompression(codec, np.fromfile(path, np.uint8))
                must = 0.7 if content_name == "text" else 0.0
                peer = Against("alone", lambda alone=alone: measured(alone), must)
                benches += compare(f"{size}-{content_name}-{codec}", path, [peer])
                path.unlink()
        return benches
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    report(run())
