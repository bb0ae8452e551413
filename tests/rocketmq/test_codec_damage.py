"""Damaged and hostile segments: what of them is read, what comes back identical, and in what time."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.rocketmq.codec.codec import CODEC
from tests.rocketmq.codec_calls import RELAXED, assert_reads_as, by_offset, decode, encode, segments
from tests.rounds import later


@RELAXED
@given(data=st.binary(max_size=2000), base_offset=st.integers(0, 1 << 62))
def test_garbage_is_undecodable_and_comes_back_identical(data: bytes, base_offset: int) -> None:
    rows, damages = decode(data, base_offset)
    assert set(rows.column("kind").to_pylist()) <= {"undecodable"}
    assert sum(damage.size_bytes for damage in damages) == len(data)
    assert encode(rows, len(data), base_offset) == data


def mutations(data: bytes) -> Iterator[bytes]:
    """A real segment with bytes flipped, cut, moved and zeroed, the same ones every time."""
    chance = random.Random(20260401)
    for _ in range(12):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 60)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        yield bytes(changed)
    for _ in range(6):
        at, size = chance.randrange(len(data)), chance.randrange(1, 20_000)
        yield data[:at] + data[at + size :]
        yield data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]
        yield data[:at] + chance.randbytes(chance.randrange(1, 200)) + data[at:]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["clean-stop", *later("kill9")])
def test_a_mutated_real_segment_reads_as_the_plain_reading(
    store: str, store_copy: Callable[[str], Path], reference_rows: Any
) -> None:
    name, data = next(iter(segments(store_copy(store)).items()))
    for changed in mutations(data[:120_000]):
        rows, damages = decode(changed, int(name))
        assert encode(rows, len(changed), int(name)) == changed
        expected = reference_rows(changed, int(name))
        assert_reads_as(rows, expected)
        assert bool(damages) == any(row["kind"] == "undecodable" for row in expected)


def test_a_flipped_bit_in_a_body_is_damage_of_that_frame_only(message: Any, build_frame: Any) -> None:
    frames, at = [], 0
    for i in range(3):
        frames.append(build_frame(message(body=b"%d" % i * 50), at))
        at += len(frames[-1])
    data = bytearray(b"".join(frames))
    data[len(frames[0]) + 100] ^= 4
    rows, (damage,) = decode(bytes(data))
    assert [row["kind"] for row in by_offset(rows)] == ["message", "undecodable", "message"]
    assert (damage.offset, damage.size_bytes) == (len(frames[0]), len(frames[1]))
    assert "CRC" in damage.expected


@pytest.mark.parametrize("position", [30, 60, -21, -5, -1])
def test_the_property_crc_guards_what_the_body_crc_does_not(
    position: int, message: Any, build_frame: Any
) -> None:
    frame = build_frame(message(property_crc=True), 0)
    assert decode(frame)[1] == []
    changed = bytearray(frame)
    changed[position] ^= 1
    rows, damages = decode(bytes(changed))
    assert encode(rows, len(changed)) == changed
    if position == -21:
        # What separates the CRC from the pair before it is gone: it is no CRC property any more.
        assert damages == []
    else:
        assert [damage.size_bytes for damage in damages] == [len(frame)]


def test_a_property_block_of_nothing_but_its_crc_is_checked(message: Any, build_frame: Any) -> None:
    frame = build_frame(message(properties=b"", property_crc=True), 0)
    rows, damages = decode(frame)
    assert damages == []
    assert rows.column("properties_text")[0].as_py().startswith("__CRC32#\x01")
    changed = frame.replace(b"__CRC32#\x01", b"__CRC32#\x01x")[: len(frame) - 1] + b"\x02"
    assert decode(changed)[1] != []


def test_a_blank_frame_that_does_not_reach_the_end_hides_nothing(message: Any, build_frame: Any) -> None:
    blank = struct.pack(">iI", 8, 0xCBD43194)
    data = blank + build_frame(message(), len(blank))
    rows, damages = decode(data)
    assert [row["kind"] for row in by_offset(rows)] == ["undecodable", "message"]
    assert [(damage.offset, damage.size_bytes) for damage in damages] == [(0, 8)]


def test_a_frame_of_another_place_is_no_frame(message: Any, build_frame: Any) -> None:
    data = build_frame(message(), 4096)
    rows, (damage,) = decode(data, 0)
    assert set(rows.column("kind").to_pylist()) == {"undecodable"}
    assert "physical offset 0" in damage.expected
    assert "4096" in damage.found


def test_damage_is_summed_up_beyond_a_thousand_runs(message: Any, build_frame: Any) -> None:
    parts, at = [], 0
    for _ in range(1500):
        parts += [b"?", build_frame(message(body=bytes(100)), at + 1)]
        at += 1 + len(parts[-1])
    data = b"".join(parts)
    ((table, damages),) = CODEC.decode(memoryview(data), 0, chunk_bytes=len(data))
    assert len(damages) == 1001
    assert sum(damage.size_bytes for damage in damages) == 1500
    assert "500 more runs" not in damages[0].found
    assert damages[-1].found.startswith("500 more runs")
    assert encode(table, len(data)) == data


def hostile_segments(size: int, message: Any, build_frame: Any) -> dict[str, bytes]:
    """Bytes that a careless reader would go over again and again."""
    frame = bytearray(build_frame(message(body=bytes(1000)), 0))
    nested = bytearray(size)
    for at in range(0, size - 200, 48):
        # Headers that all claim to reach to the same end, where one tail makes all of them well-formed.
        struct.pack_into(">iIiiiqqi", nested, at, size - at, 0xDAA320A7, 1, 0, 0, 0, at, 0)
    headers = struct.pack(">iI", 91, 0xDAA320A7) * (size // 8)
    names = b"".join(b"%05x\x01v\x02" % i for i in range(4095))
    duplicates = build_frame(message(properties=names[:16000] + names[:16000], body=b""), 0)
    repeated, at = bytearray(), 0
    while at < size:
        struct.pack_into(">q", frame_copy := bytearray(duplicates), 28, at)
        repeated += frame_copy
        at += len(frame_copy)
    queues, at = bytearray(), 0
    tiny = build_frame(message(body=b"", properties=b"", topic=b"12345678"), 0)
    while at < size:
        struct.pack_into(">q", copy := bytearray(tiny), 28, at)
        struct.pack_into(">i", copy, 12, at)
        copy[-10:-2] = b"%08x" % (at * 2654435761 % (1 << 32))
        queues += copy
        at += len(copy)
    return {
        "nested": bytes(nested),
        "headers": headers,
        "one magic": bytes(frame[4:8]) * (size // 4),
        "zeros": bytes(size),
        "duplicates": bytes(repeated),
        "a queue a message": bytes(queues),
    }


@pytest.mark.slow
def test_hostile_segments_take_time_in_proportion_to_their_size(message: Any, build_frame: Any) -> None:
    for name, data in hostile_segments(6 << 20, message, build_frame).items():
        began = time.process_time()
        rows, _ = decode(data)
        assert encode(rows, len(data)) == data, name
        assert time.process_time() - began < 20, name


def well_formed_all_the_way(size: int) -> bytes:
    """Frames that begin every 91 bytes, all well-formed, all reaching to one end, all with a wrong CRC."""
    data = bytearray(size)
    for at in range(0, size - 300, 91):
        body = size - at - 91
        struct.pack_into(">iIiiiqqi", data, at, size - at, 0xDAA320A7, 1, 0, 0, 0, at, 0)
        struct.pack_into(">i", data, at + 84, body)
    return bytes(data)


def test_nested_frames_with_bad_crcs_are_passed_over_once() -> None:
    data = well_formed_all_the_way(8 << 20)
    began = time.process_time()
    rows, (damage, *_) = decode(data)
    assert time.process_time() - began < 10
    assert encode(rows, len(data)) == data
    assert damage.offset == 0
