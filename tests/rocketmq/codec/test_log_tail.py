"""A log's end by its tail is its end by every frame, wherever the file's messages end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.rocketmq.codec.commitlog import find_logical_end, near_logical_end
from storage_engine.rocketmq.store.broker import open_files
from tests.rocketmq.conftest import Message, make_frame

BASE = 1 << 20
FILE_BYTES = 64 << 10


def file_of(bodies: list[bytes], *, torn: int = 0) -> bytes:
    """A segment with a message for each body; the last one has lost so many bytes."""
    data = b""
    for body in bodies:
        data += make_frame(Message(body=body), BASE + len(data))
    data = data[: len(data) - torn] if torn else data
    return data.ljust(FILE_BYTES, b"\0")


@given(
    bodies=st.lists(st.one_of(st.binary(max_size=60), st.integers(0, 9000).map(bytes)), max_size=6),
    torn=st.integers(0, 40),
)
def test_the_end_is_that_of_a_walk_over_every_frame(bodies: list[bytes], torn: int) -> None:
    """Bodies of zeros look like what was never written."""
    data = memoryview(file_of(bodies, torn=torn if bodies else 0))
    found, walked = near_logical_end(data, BASE), find_logical_end(data, BASE, check_crc=False)
    if torn and bodies:
        # The last one, of which the header is there, may count as whole.
        whole = find_logical_end(memoryview(file_of(bodies)), BASE)
        assert found in (walked, whole)
    else:
        assert found == walked


def test_a_file_that_is_full_ends_at_its_end() -> None:
    frame = make_frame(Message(body=b"x" * 1000), BASE)
    blank = (FILE_BYTES - len(frame)).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    data = memoryview((frame + blank).ljust(FILE_BYTES, b"\0"))
    assert near_logical_end(data, BASE) == find_logical_end(data, BASE) == FILE_BYTES


def test_a_body_that_looks_like_a_message_misleads_nobody() -> None:
    inner = make_frame(Message(body=b"inner"), 77)
    data = memoryview(file_of([b"a", inner, b"b" + inner]))
    assert near_logical_end(data, BASE) == find_logical_end(data, BASE)


def test_a_file_of_another_place_has_no_message() -> None:
    data = memoryview(file_of([b"a"]))
    assert near_logical_end(data, BASE + 4096) == 0
    assert near_logical_end(memoryview(bytes(FILE_BYTES)), BASE) == 0


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq", "edge-frames", "kill9", "rocksdb-pending"])
def test_a_glance_shows_what_a_snapshot_does(store_copy: Callable[[str], Path], name: str) -> None:
    store = open_files(StoreSettings(str(store_copy(name)), time_zone="UTC"))
    assert store.glance(1).logs == store.snapshot(1).logs
