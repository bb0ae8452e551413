"""Where a segment's frames end, what is in them, and what of them waits for dispatch."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_engine.exceptions import CorruptFrameError
from storage_engine.rocketmq.codec.commitlog import (
    FrameKind,
    find_logical_end,
    has_dispatchable_frame,
    read_store_timestamp,
    scan_segment,
)

STORES = ("clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames")
PREPARED, COMMIT, ROLLBACK = 4, 8, 12


def segment_paths(root: Path) -> list[Path]:
    paths = [path for path in root.rglob("0*") if path.parent.name in ("commitlog", "cl1", "cl2")]
    return sorted(paths, key=lambda path: path.name)


@pytest.mark.parametrize("store", STORES)
def test_scanned_columns_equal_what_java_reads(
    store: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], list[dict[str, Any]]]
) -> None:
    truth = [line for line in ground_truth(store, "commitlog") if line["kind"] == "message"]
    found = []
    for path in segment_paths(store_copy(store)):
        frames = scan_segment(path.read_bytes(), int(path.name))
        messages = frames.kind == FrameKind.MESSAGE
        found += zip(
            frames.physical_offset[messages].tolist(),
            frames.size_bytes[messages].tolist(),
            [frames.topics[code] for code in frames.topic[messages].tolist()],
            frames.queue_id[messages].tolist(),
            frames.queue_offset[messages].tolist(),
            frames.sys_flag[messages].tolist(),
            frames.store_timestamp_ms[messages].tolist(),
            strict=True,
        )
    names = ("physicOffset", "size", "topic", "queueId", "queueOffset", "sysFlag", "storeTimestamp")
    assert found == [tuple(line[name] for name in names) for line in truth]


@pytest.mark.parametrize("store", STORES)
def test_the_logical_end_is_where_java_stops(
    store: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], list[dict[str, Any]]]
) -> None:
    ends = {line["file"]: line["pos"] for line in ground_truth(store, "commitlog") if line["kind"] == "end"}
    for path in segment_paths(store_copy(store)):
        data = path.read_bytes()
        expected = ends.get(path.name, int(path.name) + len(data)) - int(path.name)
        for check_crc in (True, False):
            assert find_logical_end(data, int(path.name), check_crc=check_crc) == expected


def test_a_torn_frame_ends_the_log_and_old_frames_behind_it_do_not_count(
    message: Any, build_frame: Any
) -> None:
    first = build_frame(message(), 0)
    second = bytearray(build_frame(message(body=b"x" * 100), len(first)))
    second[120] ^= 1
    third = build_frame(message(), len(first) + len(second))
    data = first + bytes(second) + third
    assert find_logical_end(data, 0) == len(first)
    assert find_logical_end(data, 0, check_crc=False) == len(data)
    assert find_logical_end(data, 0, start=len(first) + len(second)) == len(data)
    assert find_logical_end(data[: len(first) + 7], 0) == len(first)
    assert find_logical_end(b"", 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], False),
        ([PREPARED], False),
        ([ROLLBACK, PREPARED], False),
        ([PREPARED, 0], True),
        ([COMMIT], True),
    ],
)
def test_prepared_and_rolled_back_messages_wait_for_no_dispatch(
    flags: list[int], expected: bool, message: Any, build_frame: Any
) -> None:
    data = b""
    for flag in flags:
        data += build_frame(message(sys_flag=flag), len(data))
    blank = struct.pack(">iI", 20, 0xCBD43194) + bytes(12)
    assert has_dispatchable_frame(data + blank, 0, 0) is expected
    assert has_dispatchable_frame(data + blank, 0, len(data)) is False
    assert has_dispatchable_frame(data + bytes(100), 0, 0) is expected


def test_bad_bytes_do_not_hide_a_message_that_waits_for_dispatch(message: Any, build_frame: Any) -> None:
    data = b"garbage" + build_frame(message(), 7)
    assert has_dispatchable_frame(data, 0, 0) is True


@pytest.mark.parametrize("store", ["clean-stop", "edge-frames"])
def test_a_store_timestamp_is_read_from_the_header_alone(
    store: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], list[dict[str, Any]]]
) -> None:
    paths = {path.name: path for path in segment_paths(store_copy(store))}
    for line in ground_truth(store, "commitlog")[::50]:
        path, base_offset = paths[line["file"]], int(line["file"])
        if line["kind"] == "message":
            assert (
                read_store_timestamp(path, line["pos"] - base_offset, base_offset) == line["storeTimestamp"]
            )


def test_a_store_timestamp_of_no_message_is_an_error_that_names_the_place(
    store_copy: Callable[[str], Path],
) -> None:
    path = segment_paths(store_copy("edge-frames"))[0]
    with pytest.raises(
        CorruptFrameError, match=r"0{20}: bad frame at physical offset 3: expected a message's magic"
    ):
        read_store_timestamp(path, 3, 0)
    with pytest.raises(CorruptFrameError, match="physical offset 4096 in the header, found 0"):
        read_store_timestamp(path, 0, 4096)
    with pytest.raises(CorruptFrameError, match="before the end"):
        read_store_timestamp(path, path.stat().st_size - 5, 0)


def test_rows_that_are_no_message_have_no_topic(message: Any, build_frame: Any) -> None:
    data = b"??" + build_frame(message(queue_id=7, queue_offset=9), 2) + struct.pack(">iI", 8, 0xCBD43194)
    frames = scan_segment(data, 0)
    assert frames.kind.tolist() == [FrameKind.UNDECODABLE, FrameKind.MESSAGE, FrameKind.BLANK]
    assert frames.topic.tolist() == [-1, 0, -1]
    assert frames.queue_id.tolist() == [0, 7, 0]
    assert frames.queue_offset.tolist() == [0, 9, 0]
    assert [(damage.offset, damage.size_bytes) for damage in frames.damages] == [(0, 2)]


def test_an_empty_segment_has_no_frames() -> None:
    frames = scan_segment(b"", 0)
    assert len(frames.physical_offset) == 0
    assert frames.topics == ()


@pytest.mark.parametrize("start", [-1, 11])
def test_a_start_outside_the_segment_is_refused(start: int) -> None:
    for call in (find_logical_end, scan_segment):
        with pytest.raises(ValueError, match="outside"):
            call(bytes(10), 0, start=start)
    with pytest.raises(ValueError, match="outside"):
        has_dispatchable_frame(bytes(10), 0, start)


def test_bytes_of_another_shape_are_refused() -> None:
    for data in (np.zeros(8, np.int16), np.zeros(16, np.uint8)[::2], np.zeros((2, 2), np.uint8)):
        with pytest.raises(ValueError, match="contiguous"):
            scan_segment(data, 0)


EXPLANATIONS = [
    (b"", b"\0" * 4, "at least 8 bytes", "4 bytes before the end"),
    (b"", bytes(40), "magic daa320a7", "nothing was ever written here"),
    (b"", struct.pack(">iI", 10, 0xDAA320A7) + bytes(90), "a frame size from 91 to 98", "10"),
    (b"", struct.pack(">iI", 99, 0xCBD43194), "all 8 remaining bytes", "size 99"),
]


@pytest.mark.parametrize(("before", "bad", "expected", "found"), EXPLANATIONS)
def test_damage_says_what_a_frame_should_have_been(
    before: bytes, bad: bytes, expected: str, found: str
) -> None:
    (damage,) = scan_segment(before + bad, 0).damages
    assert expected in damage.expected
    assert found in damage.found


def test_damage_tells_lengths_from_crcs(message: Any, build_frame: Any) -> None:
    frame = bytearray(build_frame(message(), 0))
    frame[87] += 1
    assert "lengths" in scan_segment(bytes(frame), 0).damages[0].expected
    frame = bytearray(build_frame(message(), 0))
    frame[88] += 1
    assert "body with CRC" in scan_segment(bytes(frame), 0).damages[0].expected
    assert scan_segment(bytes(frame), 0, check_crc=False).damages == ()


def test_knowing_the_format_costs_no_compiler() -> None:
    code = (
        "import sys, storage_engine.rocketmq.codec.frame_layout, storage_engine.rocketmq.codec.commitlog; "
        "sys.exit('numba' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3]).returncode
        == 0
    )
