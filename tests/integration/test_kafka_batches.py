"""Mutated batches: the codec reads those that Kafka's own classes read, as they do, and no others."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import product

import pytest

from storage_engine.kafka.codec import compression
from tests.integration.kafka_batches import KafkaReader, compare, kafka_reader, read_by_codec
from tests.kafka import batches
from tests.kafka.batch_mutations import CODECS
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(14_400)]

BATCHES = rounds("STORAGE_ENGINE_KAFKA_BATCHES", 150, 100_000)
"""Of each codec."""
_TRAILER_BYTES = 8
"""Java 17.0.21.1 always looks for another gzip member, and refuses a cut one. Earlier ones pass over 26 bytes
or fewer, so the codec does, and reads what the newer one refuses.
"""


@pytest.fixture(scope="module")
def reader() -> Iterator[KafkaReader]:
    with kafka_reader() as started:
        yield started


def test_mutated_batches_are_read_as_kafka_reads_them(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for codec, name in enumerate(CODECS):
        outcome = compare(reader, codec, BATCHES, seed=20_261_128)
        assert min(outcome.read, outcome.refused) > BATCHES // 10, name
        for batch, theirs, ours in outcome.different:
            if name == "gzip" and isinstance(theirs, str) and isinstance(ours, bytes):
                with monkeypatch.context() as newer_java:
                    newer_java.setattr(compression, "_LEAST_BEHIND", _TRAILER_BYTES)
                    (ours,) = read_by_codec([batch])
                if isinstance(ours, str):
                    continue
            raise AssertionError(f"{name}: {batch.hex()}: Kafka says {theirs!r}, the codec {ours!r}")


def test_names_that_are_no_utf_8_are_read_as_java_reads_them(reader: KafkaReader) -> None:
    bytes_ = b"a\x80\x90\x9f\xa0\xbf\xc0\xc2\xe0\xed\xef\xf0\xf4\xf5\xff"
    names = [bytes(one) for length in (1, 2, 3) for one in product(bytes_, repeat=length)]
    names += [bytes(one) for one in product(b"\xed\xf0\xf4", bytes_, bytes_, bytes_)]
    records = [
        batches.Record(1_795_180_000_000, b"k", b"v", [(name, b"x") for name in names[at : at + 1_000]])
        for at in range(0, len(names), 1_000)
    ]
    mutated = [batches.batch([record]) for record in records]
    for theirs, ours in zip(reader.read(mutated), read_by_codec(mutated), strict=True):
        assert isinstance(ours, bytes)
        assert ours == theirs


def test_gzip_members_that_end_at_a_full_buffer_are_read_as_kafka_reads_them(reader: KafkaReader) -> None:
    one = batches.Record(1_795_180_000_000, None, b"v" * 9_000)
    content = batches.record(one, one.timestamp, 0)
    mutated = [
        batches.batch([one], attributes=1, payload=payload + behind)
        for behind in (b"", b"\x00", bytes(30))
        for payload in _members_around(content, 8 << 10)
    ]
    answers = reader.read(mutated)
    for batch, theirs, ours in zip(mutated, answers, read_by_codec(mutated), strict=True):
        assert ours == theirs or (isinstance(ours, str) and isinstance(theirs, str)), batch.hex()
    assert sum(isinstance(one, bytes) for one in answers) > len(answers) // 2


def _members_around(content: bytes, buffer_bytes: int) -> Iterator[bytes]:
    """Yield two members that aren't compressed, of which the first ends around the end of the buffer."""
    for cut in range(buffer_bytes - 60, buffer_bytes + 20):
        yield b"".join(gzip.compress(part, 0, mtime=0) for part in (content[:cut], content[cut:]))
