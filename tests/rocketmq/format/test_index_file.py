from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.format import index_file
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from tests.rounds import later

STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames"]


def opened(root: Path, **overrides: str) -> tuple[StoreLayout, BrokerConfig]:
    if (root / "cl1").is_dir():
        overrides["storePathCommitLog"] = f"{root}/cl1,{root}/cl2"
    config = load_broker_config(None, overrides, root=root)
    return resolve_layout(config), config


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [{}, {"maxHashSlotNum": "100", "maxIndexNum": "400"}], ids=["told", "given"]
)
@pytest.mark.parametrize("name", STORES)
def test_every_field_equals_what_the_broker_reads(
    name: str,
    shape: dict[str, str],
    store_copy: Callable[[str], Path],
    ground_truth: Callable[[str, str], Any],
) -> None:
    files = index_file.read_index_files(*opened(store_copy(name), **shape))
    truth = ground_truth(name, "indexfiles")
    assert [file.path.name for file in files] == [line["file"] for line in truth]
    for file, line in zip(files, truth, strict=True):
        header = file.header
        assert (file.size_bytes, file.hash_slots, file.capacity) == (line["length"], 100, 400)
        assert header.begin_timestamp_ms == line["beginTimestamp"]
        assert header.end_timestamp_ms == line["endTimestamp"]
        assert header.begin_phy_offset == line["beginPhyOffset"]
        assert header.end_phy_offset == line["endPhyOffset"]
        assert header.used_slots == line["hashSlotCount"]
        assert header.next_entry == line["indexCount"]
        assert index_file.read_slots(file).tolist() == line["slots"]
        assert [list(entry) for entry in index_file.read_entries(file).tolist()] == line["entries"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STORES[2:], *later(*STORES[:2])])
def test_every_lookup_answers_as_the_broker_does(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    truth = ground_truth(name, "indexlookup")
    assert truth
    with index_file.open_index(*opened(store_copy(name))) as index:
        for line in truth:
            topic, _, key = line["key"].partition("#")
            assert list(index.lookup(topic, key, 64)) == line["offsets"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("polygenelubricants", -(2**31)), ("\U0001f600", 1772899)],
)
def test_strings_hash_as_in_java(text: str, expected: int) -> None:
    assert index_file.java_hash(text) == expected


def test_a_hash_is_never_negative() -> None:
    assert index_file.abs_or_zero(-(2**31)) == 0
    assert index_file.abs_or_zero(-5) == 5


def test_a_store_without_index_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    layout, config = opened(tmp_path)
    assert index_file.read_index_files(layout, config) == ()
    with index_file.open_index(layout, config) as index:
        assert index.lookup("topic", "key", 64) == ()


def test_a_single_file_tells_its_shape_by_its_entries(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("edge-frames")
    layout, config = opened(root)
    *others, last = index_file.list_index_paths(layout)
    for path in others:
        path.unlink()
    (file,) = index_file.read_index_files(layout, config)
    assert (file.path, file.hash_slots, file.capacity) == (last, 100, 400)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:39], "header of 40 bytes, found 39"),
        (lambda data: data[:-1], "expected 8440 bytes, found 8439"),
        (
            lambda data: data[:36] + b"\0\0\1\x91" + data[40:],
            "offset 36: expected at most 400 entries, found 401",
        ),
    ],
)
def test_a_file_that_is_no_index_is_an_error_with_its_name(
    store_copy: Callable[[str], Path], change: Callable[[bytes], bytes], message: str
) -> None:
    layout, config = opened(store_copy("clean-stop"))
    path = index_file.list_index_paths(layout)[5]
    damage(path, change)
    with pytest.raises(CorruptFileError, match=f"{path.name}: .*{message}"):
        index_file.read_index_files(layout, config)


def test_a_shape_that_does_not_fit_is_an_error(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    for shape in ({"maxHashSlotNum": "99"}, {"maxHashSlotNum": "95", "maxIndexNum": "400"}):
        with pytest.raises(CorruptFileError, match="maxHashSlotNum"):
            index_file.read_index_files(*opened(root, **shape))
    layout, config = opened(root)
    for path in index_file.list_index_paths(layout)[1:]:
        path.unlink()
    damage(index_file.list_index_paths(layout)[0], lambda data: data[:24] + bytes(8) + data[32:])
    with pytest.raises(CorruptFileError, match="maxHashSlotNum"):
        index_file.read_index_files(layout, config)


def test_a_stray_file_is_an_error(store_copy: Callable[[str], Path]) -> None:
    layout, _ = opened(store_copy("edge-frames"))
    (layout.index / "notes").write_text("")
    with pytest.raises(CorruptFileError, match="index/notes: expected a name of 17 digits"):
        index_file.list_index_paths(layout)


def test_a_loop_in_a_chain_ends(store_copy: Callable[[str], Path]) -> None:
    layout, config = opened(store_copy("edge-frames"))
    file = index_file.read_index_files(layout, config)[0]
    entries = index_file.read_entries(file)
    data = bytearray(file.path.read_bytes())
    for number in range(1, len(entries) + 1):  # every entry names itself as the one before
        position = 40 + 4 * file.hash_slots + 20 * number + 16
        data[position : position + 4] = number.to_bytes(4, "big")
    file.path.write_bytes(data)
    with index_file.open_index(layout, config) as index:
        assert len(index.lookup("topic", "key", 1 << 20)) <= len(entries)
