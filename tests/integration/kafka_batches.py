"""Batches read by Kafka's own classes and by the codec, which must not differ."""

from __future__ import annotations

import random
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from storage_engine.kafka.codec.codec import CODEC
from tests.integration.jars import JAVA_PROJECTS, JavaError, class_path, java
from tests.kafka.batch_mutations import mutated_batch

_SIZE = struct.Struct(">i")
_PIECE = 500
"""So many batches are one segment."""


@dataclass(frozen=True, slots=True)
class Compared:
    """:param read: batches that Kafka reads to the end.
    :param different: the bytes of those that the codec doesn't read, or otherwise, with both answers.
    """

    read: int
    refused: int
    different: tuple[tuple[bytes, bytes | str, bytes | str], ...]


class KafkaReader:
    """Kafka's classes in a process of their own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, batches: Sequence[bytes]) -> list[bytes | str]:
        """Return each batch's records, or why Kafka doesn't read it.

        :raises JavaError: the process has ended.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        sent = b"".join(_SIZE.pack(len(batch)) + batch for batch in batches)

        def send() -> None:
            stdin.write(sent)
            stdin.flush()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        answers: list[bytes | str] = []
        for _ in batches:
            head = stdout.read(_SIZE.size)
            if len(head) < _SIZE.size:
                raise JavaError(f"Kafka's classes ended with {self._process.wait()}")
            answer = stdout.read(_SIZE.unpack(head)[0])
            is_refused = answer[:4] == b"\xff" * 4
            answers.append(answer[4:].decode() if is_refused else answer)
        sender.join()
        return answers


@contextmanager
def kafka_reader() -> Iterator[KafkaReader]:
    """Start Kafka's classes.

    :raises JavaError: Java, Maven or a compiler is missing or fails.
    """
    shared = JAVA_PROJECTS / "kafka"
    command = [java(), "-Xmx512m", "-XX:+UseSerialGC", "-cp", class_path(shared / "v4_3_1", shared)]
    with subprocess.Popen(
        [*command, "ReadBatches"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield KafkaReader(process)
        finally:
            process.kill()


def compare(reader: KafkaReader, codec: int, count: int, seed: int) -> Compared:
    """Read so many mutated batches by both.

    :param codec: its number in the batches' attributes.
    """
    read = refused = 0
    different = []
    for first in range(0, count, _PIECE):
        chance = random.Random(f"{seed} {codec} {first}")
        batches = [mutated_batch(codec, chance) for _ in range(min(_PIECE, count - first))]
        pairs = zip(batches, reader.read(batches), read_by_codec(batches), strict=True)
        for batch, theirs, ours in pairs:
            refused += isinstance(theirs, str)
            read += not isinstance(theirs, str)
            if ours != theirs and not (isinstance(ours, str) and isinstance(theirs, str)):
                different.append((batch, theirs, ours))
    return Compared(read, refused, tuple(different))


def read_by_codec(batches: Sequence[bytes]) -> list[bytes | str]:
    """Return each batch's records as Kafka's classes give them, or why it is bytes alone.

    :raises AssertionError: other bytes come back than went in.
    """
    data = b"".join(batches)
    out = bytearray(len(data))
    rows: dict[int, list[dict[str, object]]] = {}
    reasons: dict[int, str] = {}
    for table, damages in CODEC.decode(memoryview(data), 0):
        assert CODEC.encode(table, memoryview(out), 0)
        reasons |= {one.offset: f"expected {one.expected}, found {one.found}" for one in damages}
        at = 0
        for row in table.set_column(
            table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64())
        ).to_pylist():
            if row["kind"] in ("batch", "undecodable"):
                at = row["physical_offset"]
                rows[at] = []
            rows[at].append(row)
    assert out == data
    answers: list[bytes | str] = []
    at = 0
    for batch in batches:
        answers.append(reasons[at] if at in reasons else _answer(rows[at]))
        at += len(batch)
    return answers


def _answer(rows: Sequence[dict[str, object]]) -> bytes:
    head, *records = rows
    return _SIZE.pack(len(records)) + b"".join(_record(head, one) for one in records)


def _record(head: dict[str, object], row: dict[str, object]) -> bytes:
    attributes, base, delta = int(str(row["attributes"])), row["base_timestamp"], row["timestamp_delta"]
    if row["timestamp"] is not None:
        time = int(str(row["timestamp"])) // 1000
    elif attributes & 8:
        time = int(str(head["max_timestamp"]))
    else:
        time = (int(str(base)) + int(str(delta)) + (1 << 63)) % (1 << 64) - (1 << 63)
    headers: Iterable[dict[str, object]] = row["headers"]  # type: ignore[assignment]
    listed = [*headers]
    parts = [struct.pack(">qq", row["offset"], time), _sized(row["key"]), _sized(row["value"])]
    parts.append(_SIZE.pack(len(listed)))
    parts += [_sized(str(one["key"]).encode()) + _sized(one["value"]) for one in listed]
    return b"".join(parts)


def _sized(content: object) -> bytes:
    if content is None:
        return _SIZE.pack(-1)
    assert isinstance(content, bytes)
    return _SIZE.pack(len(content)) + content
