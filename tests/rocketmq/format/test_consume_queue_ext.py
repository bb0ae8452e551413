from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.mapped_files import MappedFile, file_name


def test_every_unit_equals_what_the_broker_reads(
    store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy("cqext-batchcq")
    expected = defaultdict(list)
    for line in ground_truth("cqext-batchcq", "consumequeue_ext"):
        expected[line["topic"], int(line["queue"])].append(line)
    queues = {(queue.topic, queue.queue_id): queue for queue in iter_queues(root / "consumequeue_ext")}
    assert expected.keys() == queues.keys()
    for key, queue in queues.items():
        (file,) = consume_queue.list_files(queue.path)
        units = consume_queue.read_units(file)
        *lines, end = expected[key]
        assert end["endMarker"] < 1
        assert units.offset[-1] + units.size[-1] == end["extOffset"]
        assert units.offset.tolist() == [line["extOffset"] for line in lines]
        assert units.size.tolist() == [line["size"] for line in lines]
        assert units.tags_code.tolist() == [line["tagsCode"] for line in lines]
        assert units.store_time_ms.tolist() == [line["msgStoreTime"] for line in lines]
        assert [len(bitmap) for bitmap in units.bitmap] == [line["bitMapSize"] for line in lines]
        assert [bitmap.hex() for bitmap in units.bitmap] == [line["bitMap"] for line in lines]


def test_every_entry_points_to_a_unit(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("cqext-batchcq")
    for queue in iter_queues(root / "consumequeue_ext"):
        (file,) = consume_queue.list_files(queue.path)
        units = set(consume_queue.read_units(file).offset.tolist())
        path = root / "consumequeue" / queue.topic / str(queue.queue_id)
        entries = consume_queue.FORMAT.read_queue(consume_queue.FORMAT.files(path))
        addresses = [consume_queue.unit_offset(code) for code in entries["tags_code"].tolist()]
        assert {address for address in addresses if address is not None} <= units


def test_a_tags_code_is_no_address() -> None:
    assert consume_queue.unit_offset(-(2**63) + 20) == 20
    assert consume_queue.unit_offset(-(2**31)) is None  # the lowest hash of a tag, sign-extended
    assert consume_queue.unit_offset(0) is None


def unit(tags_code: int, store_time: int, bitmap: bytes) -> bytes:
    return struct.pack(">hqqh", 20 + len(bitmap), tags_code, store_time, len(bitmap)) + bitmap


UNITS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63 - 1), st.sampled_from([0, 1, 8, 40]).map(bytes)
    )
)


@given(units=UNITS, base_offset=st.sampled_from([0, 4096 * 3]))
def test_units_of_any_size_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, units: list[tuple[int, int, bytes]], base_offset: int
) -> None:
    data = b"".join(unit(*fields) for fields in units)
    path = tmp_path_factory.mktemp("ext") / file_name(base_offset)
    path.write_bytes(data + b"\xff\xff" + bytes(30))
    read = consume_queue.read_units(MappedFile(path, base_offset, len(data) + 32))
    found = list(zip(read.tags_code.tolist(), read.store_time_ms.tolist(), read.bitmap, strict=True))
    assert found == units
    assert read.size.tolist() == [20 + len(bitmap) for _, _, bitmap in units]
    assert read.offset.tolist() == [
        base_offset + sum(20 + len(b) for _, _, b in units[:i]) for i in range(len(units))
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (unit(1, 1, b"") + struct.pack(">h", 19) + bytes(30), "offset 20: expected a unit .* found size 19"),
        (unit(1, 1, b"") + struct.pack(">h", 99) + bytes(30), "offset 20: expected a unit .* found size 99"),
        (
            unit(1, 1, b"") + struct.pack(">hqqh", 20, 1, 1, 5),
            "offset 20: expected a bitmap of 0 bytes, found 5",
        ),
    ],
)
def test_a_unit_that_can_not_be_is_an_error_with_its_offset(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / file_name(0)
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=message):
        consume_queue.read_units(MappedFile(path, 0, len(data)))
    with pytest.raises(CorruptFileError, match="expected 7 bytes"):
        consume_queue.read_units(MappedFile(path, 0, 7))
