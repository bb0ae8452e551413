from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.consume_queue import FILLER_SIZE, QueueBounds, iter_queues
from storage_engine.rocketmq.format.mapped_files import file_name

STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"]


@pytest.mark.parametrize("name", STORES)
def test_every_entry_equals_what_the_broker_reads(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy(name)
    expected = defaultdict(list)
    for line in ground_truth(name, "consumequeue"):
        expected[line["topic"], line["queue"]].append(line)
    found = {(queue.topic, queue.queue_id): queue for queue in iter_queues(root / "consumequeue")}
    assert expected.keys() <= found.keys()
    for key, queue in found.items():
        files = consume_queue.FORMAT.files(queue.path)
        entries = consume_queue.FORMAT.read_queue(files)
        lines = expected[key]
        assert entries["offset"].tolist() == [line["offset"] for line in lines]
        assert entries["size"].tolist() == [line["size"] for line in lines]
        assert entries["tags_code"].tolist() == [line["tagsCode"] for line in lines]
        first = files[0].base_offset // 20
        for i, line in enumerate(lines):
            assert line["index"] == first + i
            assert line["file"] == file_name((first + i) * 20 // 6000 * 6000)


@pytest.mark.parametrize("name", STORES)
def test_positions_found_by_bisection_agree_with_reading_everything(
    name: str, store_copy: Callable[[str], Path]
) -> None:
    root = store_copy(name)
    for queue in iter_queues(root / "consumequeue"):
        files = consume_queue.FORMAT.files(queue.path)
        entries = consume_queue.FORMAT.read_queue(files)
        first = files[0].base_offset // 20
        last = consume_queue.last_entry(files)
        if not len(entries):
            assert last is None
            assert consume_queue.bounds(files, 0) == QueueBounds(first, first)
            continue
        assert last is not None
        assert (last.queue_offset, last.physical_offset) == (first + len(entries) - 1, entries["offset"][-1])
        for log_min in (0, 1 << 20, 3 << 20, int(entries["offset"][len(entries) // 2]), 1 << 40):
            below = int(np.count_nonzero(entries["offset"] < log_min))
            assert consume_queue.bounds(files, log_min) == QueueBounds(first + below, first + len(entries))
        middle = consume_queue.entry_at(files, first + len(entries) // 2)
        assert middle is not None
        assert middle.physical_offset == entries["offset"][len(entries) // 2]
        assert consume_queue.entry_at(files, first + len(entries)) is None
        assert consume_queue.entry_at(files, first - 1) is None


def write_queue(directory: Path, *files: tuple[int, bytes]) -> Path:
    directory.mkdir(parents=True)
    for base_offset, data in files:
        (directory / file_name(base_offset)).write_bytes(data)
    return directory


def entries(*rows: tuple[int, int, int]) -> bytes:
    return np.array(list(rows), consume_queue.DTYPE).tobytes()


def test_fillers_lie_before_every_message(tmp_path: Path) -> None:
    data = entries((0, FILLER_SIZE, 0), (0, FILLER_SIZE, 0), (0, 100, 7), (100, 50, 0))
    files = consume_queue.FORMAT.files(write_queue(tmp_path / "t/0", (80, data)))
    assert consume_queue.bounds(files, 0) == QueueBounds(4 + 2, 4 + 4)
    assert consume_queue.entry_at(files, 5) is None
    assert consume_queue.entry_at(files, 6) == consume_queue.Entry(6, 0, 100, 7)


def test_a_queue_without_any_message_left_keeps_its_max_offset(tmp_path: Path) -> None:
    full = entries((0, 10, 0), (10, 10, 0))
    files = consume_queue.FORMAT.files(write_queue(tmp_path / "t/0", (0, full), (40, bytes(40))))
    assert consume_queue.bounds(files, 1000) == QueueBounds(2, 2)
    last = consume_queue.last_entry(files)
    assert last is not None
    assert last.queue_offset == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (((0, bytes(40)), (80, bytes(40))), "a hole"),
        (((0, bytes(40)), (40, bytes(41)), (80, bytes(40))), "expected 40 bytes"),
        (((0, bytes(30)),), "found 30"),
        (((20, bytes(40)),), "multiple of the file size"),
    ],
)
def test_files_that_are_no_queue_are_an_error(
    tmp_path: Path, files: tuple[tuple[int, bytes], ...], message: str
) -> None:
    queue = write_queue(tmp_path / "t/0", *files)
    with pytest.raises(CorruptFileError, match=message):
        consume_queue.FORMAT.files(queue)


def test_a_file_that_shrinks_while_being_read_is_an_error(tmp_path: Path) -> None:
    queue = write_queue(tmp_path / "t/0", (0, entries((0, 10, 0), (10, 10, 0))))
    files = consume_queue.FORMAT.files(queue)
    files[0].path.write_bytes(b"")
    with pytest.raises(CorruptFileError, match="the file's end"):
        consume_queue.FORMAT.read_queue(files)
    with pytest.raises(CorruptFileError, match="the file's end"):
        consume_queue.last_entry(files)


def test_directories_that_are_no_queue_are_passed_over(tmp_path: Path) -> None:
    write_queue(tmp_path / "cq/topic/0")
    write_queue(tmp_path / "cq/topic/notes")
    (tmp_path / "cq/file").write_text("")
    assert [(queue.topic, queue.queue_id) for queue in iter_queues(tmp_path / "cq")] == [("topic", 0)]
    assert list(iter_queues(tmp_path / "none")) == []


@pytest.mark.parametrize("name", ["clean-stop", "kill9"])
def test_what_is_left_of_a_queue_is_found_without_its_end(
    store_copy: Callable[[str], Path], name: str
) -> None:
    queues = [queue.path for queue in iter_queues(store_copy(name) / "consumequeue")]
    found = [files for path in queues if (files := consume_queue.FORMAT.files(path))]
    assert found
    for files in found:
        for minimum in (0, 1, 1 << 20, (3 << 20) + 7, 1 << 40):
            slow = consume_queue.FORMAT.first_at_or_above(files, minimum)
            assert consume_queue.FORMAT.first_left(files, minimum) == slow
