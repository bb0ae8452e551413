"""Segments with bytes changed at random: they come back, and what is wrong with them is said."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.record_batch import read_batches
from storage_engine.kafka.format.offset_index import parse_offset_index
from storage_engine.kafka.format.producer_snapshot import parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import parse_transaction_index
from tests.kafka import batches
from tests.rounds import later

MUTATIONS = 400


def checked(data: bytes) -> None:
    """Decode and encode bytes, whatever they are."""
    out = bytearray(len(data))
    written = covered = 0
    for rows, damages in CODEC.decode(memoryview(data), 0, chunk_bytes=2000):
        rows.validate(full=True)
        written += CODEC.encode(rows, memoryview(out), 0)
        covered += sum(damage.size_bytes for damage in damages)
        undecodable = pa.compute.equal(rows["kind"], "undecodable")
        sizes = zip(undecodable.to_pylist(), rows["size"].to_pylist(), strict=True)
        assert sum(size for bad, size in sizes if bad) == sum(damage.size_bytes for damage in damages)
        assert all(damage.expected and damage.found for damage in damages)
    assert written == len(data)
    assert bytes(out) == data
    assert sum(damage.size_bytes for damage in read_batches(data).damages) <= covered


@cache
def segments(node: Path) -> tuple[bytes, ...]:
    names = ("txn-0/00000000000000000000", "hdrs-0/00000000000000000000", "lat-0/00000000000000000000")
    codecs = sorted((node / "logs/javacodec-0").glob("*.log"))[:3]
    files = [*(node / "logs" / f"{name}.log" for name in names), *codecs]
    return tuple(path.read_bytes()[:6000] for path in files)


def with_right_crcs(data: bytes) -> bytes:
    """Return bytes whose batches have the CRC that they should have, so that records are looked into."""
    out, at = b"", 0
    while at + 61 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        if size < 61 or at + size > len(data):
            break
        out += batches.with_crc(data[at : at + size])
        at += size
    return out + data[at:]


@pytest.mark.parametrize("right_crcs", [True, *later(False)])
def test_changed_segments_come_back(node: Path, right_crcs: bool) -> None:
    chance = random.Random(7)
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(segments(node)))
        for _ in range(chance.choice((1, 1, 2, 9))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        cut = chance.randrange(len(data)) if chance.random() < 0.2 else len(data)
        checked(with_right_crcs(bytes(data[:cut])) if right_crcs else bytes(data[:cut]))


@given(data=st.binary(max_size=300))
def test_any_bytes_come_back(data: bytes) -> None:
    checked(data)


_HEADERS = st.tuples(st.text(max_size=5) | st.binary(max_size=5), st.none() | st.binary(max_size=20))
_RECORDS = st.builds(
    batches.Record,
    st.integers(-(1 << 62), 1 << 62) | st.integers(0, 10**13),
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=40),
    st.lists(
        st.tuples(st.text(max_size=5) | st.binary(max_size=5), st.none() | st.binary(max_size=20)), max_size=3
    ),
    st.integers(-128, 127),
    st.booleans(),
)


@given(
    records=st.lists(_RECORDS, max_size=5),
    attributes=st.sampled_from([0, 8, 16, 32, 48, 64, 0x7FF8, -8]),
    base_offset=st.integers(0, 1 << 62),
)
def test_any_batch_comes_back_without_damage(
    records: list[batches.Record], attributes: int, base_offset: int
) -> None:
    data = batches.batch(records, attributes=attributes, base_offset=base_offset, max_timestamp=5)
    assert not read_batches(data).damages
    checked(data)
    ((rows, damages),) = CODEC.decode(memoryview(data), 0)
    assert not damages
    assert rows["key"].to_pylist()[1:] == [record.key for record in records]
    assert rows["value"].to_pylist()[1:] == [record.value for record in records]


@given(data=st.binary(max_size=60))
def test_any_index_is_read_or_one_error(data: bytes) -> None:
    said = ""
    try:
        parse_offset_index(data, 0, "the/file")
    except CorruptFileError as error:
        said = str(error)
    assert not said or said.startswith("the/file: at byte ")


@pytest.mark.parametrize("parse", [parse_transaction_index, parse_producer_snapshot])
@given(data=st.binary(max_size=120))
def test_any_companion_is_read_or_one_error(parse: object, data: bytes) -> None:
    said = ""
    try:
        parse(data, "the/file")  # type: ignore[operator]
    except CorruptFileError as error:
        said = str(error)
    assert not said or said.startswith("the/file: at byte ")
