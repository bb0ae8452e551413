"""What compressed batches expand to, and the bound on it."""

from __future__ import annotations

import gzip
import struct

import cramjam
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from storage_engine.kafka.codec import compression, decode
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.compression import Decompressor, ExpansionError, Payloads
from tests.kafka import batches

TEXT = b"what was written, and written again, " * 3000


def snappy(data: bytes) -> bytes:
    return pa.Codec("snappy").compress(data, asbytes=True)


def xerial(*blocks: bytes) -> bytes:
    framed = b"".join(struct.pack(">I", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


def java_lz4(data: bytes) -> bytes:
    """Return a frame as Java's clients make it; its last block is stored as it is."""
    first, last = data[: 64 << 10], data[64 << 10 :]
    block = cramjam.lz4.compress_block(first, store_size=False)
    sizes = struct.pack("<I", len(block)), struct.pack("<I", len(last) | 1 << 31)
    return b"\x04\x22\x4d\x18\x60\x40\x82" + sizes[0] + bytes(block) + sizes[1] + last + bytes(4)


COMPRESSED = {
    "gzip": (1, gzip.compress(TEXT)),
    "snappy": (2, snappy(TEXT)),
    "snappy in frames": (2, xerial(snappy(TEXT[:5000]), snappy(TEXT[5000:]))),
    "lz4 by Java": (3, java_lz4(TEXT)),
    "zstd": (4, zstandard.compress(TEXT)),
    "zstd without its size": (4, zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
    "two zstd frames": (4, zstandard.compress(TEXT[:7000]) + zstandard.compress(TEXT[7000:])),
}
CASES = pytest.mark.parametrize(("codec", "data"), COMPRESSED.values(), ids=COMPRESSED)


def expanded(codec: int, *payloads: bytes, room: bytearray, most_bytes: int) -> list[int]:
    """Expand payloads one behind the other into ``room``; return how long each is, or raise what is wrong."""
    ends = np.cumsum([len(payload) for payload in payloads])
    begins = ends - [len(payload) for payload in payloads]
    content = np.frombuffer(b"".join(payloads) or b" ", np.uint8)
    given = Payloads(content, begins, ends, np.frombuffer(room, np.uint8), most_bytes)
    sizes, error = Decompressor().expand(codec, given, 0, len(payloads), 0, len(room))
    if error is not None:
        raise error
    return sizes


@CASES
def test_it_expands_to_what_was_compressed(codec: int, data: bytes) -> None:
    out = bytearray(2 * len(TEXT) + 10)
    assert expanded(codec, data, data, room=out, most_bytes=len(TEXT) + 5) == [len(TEXT)] * 2
    assert out[: 2 * len(TEXT)] == TEXT * 2


def test_gzip_members_and_what_lies_behind_them_are_read_as_java_does() -> None:
    out = bytearray(2 * len(TEXT))
    members = gzip.compress(TEXT[:30]) + gzip.compress(TEXT[30:])
    for payload in (members, members + bytes(8), members + b"any other bytes, of which there are many"):
        assert expanded(1, payload, room=out, most_bytes=len(out)) == [len(TEXT)]
        assert out[: len(TEXT)] == TEXT


def test_snappy_that_gives_nothing_before_another_magic_is_refused_as_kafka_does() -> None:
    header = b"\x82SNAPPY\x00" + bytes.fromhex("0000000100000001")
    block = pa.Codec("snappy").compress(TEXT, asbytes=True)
    records = len(block).to_bytes(4, "big") + block
    other = header.replace(b"PPY", b"PPX")
    out = bytearray(2 * len(TEXT))
    assert expanded(2, header + records + other + records, room=out, most_bytes=len(out)) == [2 * len(TEXT)]
    with pytest.raises(ExpansionError) as error:
        expanded(2, header + bytes.fromhex("0000000100") + other + records, room=out, most_bytes=len(out))
    assert error.value.found == "empty ones before another magic"


def test_a_length_of_a_record_before_an_empty_lz4_block_is_one_of_32_bits() -> None:
    record = bytes.fromhex("f0808080700d") + bytes(55)  # 56, and bits above an int's
    blocks = (record, b"")
    payload = bytes.fromhex("04224d18604082") + b"".join(_stored(one) for one in blocks) + b"\x00\x00"
    out = bytearray(len(record))
    assert expanded(3, payload, room=out, most_bytes=len(out)) == [len(record)]


def _stored(block: bytes) -> bytes:
    content = block or b"\x00"
    return (len(content) | bool(block) << 31).to_bytes(4, "little") + content


def test_lz4_of_blocks_that_need_others_is_refused_as_kafka_does() -> None:
    dependent = pa.Codec("lz4").compress(TEXT, asbytes=True)
    with pytest.raises(ExpansionError) as error:
        expanded(3, dependent, room=bytearray(len(TEXT)), most_bytes=len(TEXT))
    assert error.value.expected == "independent lz4 blocks of 64 KiB to 4 MiB"


@CASES
def test_it_may_fill_its_room_and_no_more(codec: int, data: bytes) -> None:
    exact = bytearray(len(TEXT))
    assert expanded(codec, data, room=exact, most_bytes=len(TEXT)) == [len(TEXT)]
    with pytest.raises(ExpansionError) as error:
        expanded(codec, data, room=exact, most_bytes=len(TEXT) - 1)
    assert (error.value.expected, error.value.found) == (
        f"records that expand to at most {len(TEXT) - 1} bytes",
        "more",
    )


@CASES
def test_a_part_of_it_or_other_bytes_are_one_error(codec: int, data: bytes) -> None:
    for wrong in (data[: len(data) // 2], data[:3], b"", b"\xff" * 40):
        try:
            (size,) = expanded(codec, wrong, room=bytearray(len(TEXT)), most_bytes=len(TEXT))
            said = size < len(TEXT)
        except ExpansionError as error:
            said = bool(error.expected and error.found)
        assert said


def test_a_batch_that_expands_beyond_the_bound_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_EXPANDED_BYTES", 10_000)
    records = [batches.Record(1, None, b"x" * 5000) for _ in range(4)]
    plain = batches.batch(records)
    data = batches.batch(records, attributes=4, payload=zstandard.compress(plain[61:])) + plain
    ((rows, (damage,)),) = CODEC.decode(memoryview(data), 0)
    assert (damage.offset, damage.size_bytes) == (0, len(data) - len(plain))
    assert damage.expected == "records that expand to at most 10000 bytes"
    out = bytearray(len(data))
    assert CODEC.encode(rows, memoryview(out), 0) == len(data)
    assert bytes(out) == data


def test_a_chunk_ends_once_much_has_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_EXPANDED_CHUNK_BYTES", 10_000)
    records = [batches.Record(i, None, bytes([i]) * 3000) for i in range(3)]
    payload = zstandard.compress(batches.batch(records)[61:])
    parts = [batches.batch(records, base_offset=3 * i, attributes=4, payload=payload) for i in range(9)]
    data = b"".join(parts)
    tables = [rows for rows, _ in CODEC.decode(memoryview(data), 0)]
    assert len(tables) == 5
    rows = pa.concat_tables(tables)
    offsets = zip(rows["kind"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    assert [offset for kind, offset in offsets if kind == "message"] == list(range(27))
    out = bytearray(len(data))
    assert CODEC.encode(rows, memoryview(out), 0) == len(data)
    assert bytes(out) == data


def test_codecs_take_turns_and_one_damage_is_no_other_batch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a codec and damage inside them, on both sides of where a group and a table end."""
    monkeypatch.setattr(decode, "_GROUP_BYTES", 4_000)
    monkeypatch.setattr(decode, "_EXPANDED_CHUNK_BYTES", 20_000)
    pack = {
        0: bytes,
        1: gzip.compress,
        2: lambda records: xerial(snappy(records)),
        3: lambda records: pa.Codec("lz4").compress(records, asbytes=True),
        4: zstandard.compress,
    }
    damaged = {3, 17, 18, 39}
    parts = []
    for i in range(40):
        codec = (i // 3) % 5
        records = [batches.Record(k, None, bytes([i]) * 700) for k in range(2)]
        payload = pack[codec](batches.batch(records)[61:])
        if i in damaged:
            payload = b"\xff" * len(payload)
        parts.append(batches.batch(records, base_offset=2 * i, attributes=codec, payload=payload))
    data = b"".join(parts)
    found = list(CODEC.decode(memoryview(data), 0))
    rows = pa.concat_tables(table for table, _ in found)
    messages = [
        row for row in rows.select(["kind", "offset", "value"]).to_pylist() if row["kind"] == "message"
    ]
    left = [i for i in range(40) if i not in damaged]
    assert [row["offset"] for row in messages] == [offset for i in left for offset in (2 * i, 2 * i + 1)]
    assert [row["value"][0] for row in messages] == [i for i in left for _ in range(2)]
    at = np.cumsum([0, *map(len, parts)]).tolist()
    assert [damage.offset for _, damages in found for damage in damages] == [at[i] for i in sorted(damaged)]
    out = bytearray(len(data))
    assert CODEC.encode(rows, memoryview(out), 0) == len(data)
    assert bytes(out) == data


def test_the_bound_leaves_room_for_what_clients_send() -> None:
    assert compression.MAX_EXPANDED_BYTES >= 100 << 20


def test_the_library_for_zstd_is_loaded_for_zstd_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(compression, "_zstd_library", load)
    out = bytearray(len(TEXT))
    assert expanded(1, gzip.compress(TEXT), room=out, most_bytes=len(out)) == [len(TEXT)]
    with pytest.raises(AssertionError, match="loaded"):
        expanded(4, zstandard.compress(TEXT), room=out, most_bytes=len(out))
