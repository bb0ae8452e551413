"""Messages by their keys: what the index lists under a hash, the log's own topic and keys confirm."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.index_file import key_hash
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.inspect import look_up
from tests.rocketmq.conftest import Message, make_frame
from tests.rocketmq.format.test_index_file import STORES, opened
from tests.rounds import later, some


def matched(root: Path, topic: str, key: str, max_count: int | None = None) -> tuple[list[int], list[int]]:
    matches = look_up(*opened(root), topic, key, max_count)
    return list(matches.offsets), list(matches.unread)


@pytest.mark.parametrize("name", ["edge-frames", *later(*(name for name in STORES if name != "edge-frames"))])
def test_each_key_that_a_broker_indexed_is_found_with_its_messages_alone(
    name: str, store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy(name)
    having: dict[str, list[int]] = {}
    for row in ground_truth(name, "commitlog"):
        properties: Mapping[str, str] = row.get("properties") or {}
        for key in {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}:
            having.setdefault(f"{row['topic']}#{key}", []).append(row["physicOffset"])
    truth = ground_truth(name, "indexlookup")
    for line in some(truth[:: max(1, len(truth) // 40)], 40):
        topic, _, key = line["key"].partition("#")
        found, unread = matched(root, topic, key, 1000)
        assert (found, unread) == ([at for at in line["offsets"] if at in having.get(line["key"], [])], [])
        assert bool(found) == bool(line["offsets"])


def test_a_lookup_is_limited_to_the_newest(
    store_copy: Callable[[str], Path], ground_truth: Callable[[str, str], Any]
) -> None:
    root = store_copy("clean-stop")
    longest = max(ground_truth("clean-stop", "indexlookup"), key=lambda line: len(line["offsets"]))
    topic, _, key = longest["key"].partition("#")
    assert matched(root, topic, key) == (longest["offsets"], [])
    assert matched(root, topic, key, 3) == (longest["offsets"][-3:], [])
    assert matched(root, topic, key, 0) == ([], [])
    assert matched(root, topic, "no such key") == ([], [])


def store_of(root: Path, messages: Sequence[Message], keys: Sequence[tuple[str, str]]) -> list[int]:
    """Write a log and one index file. :return: where the messages begin."""
    frames, offsets = b"", []
    for message in messages:
        offsets.append(len(frames))
        frames += make_frame(message, len(frames))
    listed = [(key_hash(*key), at) for key, at in zip(keys, offsets, strict=True)]
    for name, content in (
        (f"commitlog/{0:020d}", frames.ljust(1 << 16, b"\0")),
        ("index/20260101000000000", index_of(listed)),
    ):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    return offsets


def index_of(entries: Sequence[tuple[int, int]], slots: int = 100, capacity: int = 400) -> bytes:
    header = struct.pack(">qqqqii", 1, 2, entries[0][1], entries[-1][1], 1, len(entries) + 1)
    newest, rows = [0] * slots, bytes(20)
    for number, (key, offset) in enumerate(entries, 1):
        rows += struct.pack(">iqii", key, offset, 0, newest[key % slots])
        newest[key % slots] = number
    return header + struct.pack(f">{slots}i", *newest) + rows.ljust(20 * capacity, b"\0")


def message(topic: str, properties: str) -> Message:
    return Message(topic=topic.encode(), properties=properties.encode())


ONE_HASH = [("AaTopic", "Aa"), ("BBTopic", "BB"), ("AaTopic", "BB"), ("BBTopic", "Aa")]


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY"])
def test_topics_and_keys_of_one_hash_are_told_apart(tmp_path: Path, name: str) -> None:
    assert len({key_hash(*one) for one in ONE_HASH}) == 1
    offsets = store_of(
        tmp_path, [message(topic, f"{name}\x01{key}\x02") for topic, key in ONE_HASH[:2]], ONE_HASH[:2]
    )
    for one, expected in zip(ONE_HASH, ([offsets[0]], [offsets[1]], [], []), strict=True):
        assert matched(tmp_path, *one) == (expected, [])
        assert matched(tmp_path, *one, 1) == (expected, [])


@pytest.mark.parametrize(
    ("properties", "has_it"),
    [
        ("KEYS\x01b Aa c\x02", True),
        ("KEYS\x01b Aab\x02", False),
        ("UNIQ_KEY\x01Aa b\x02", False),
        ("KEYS\x01Aa\x02KEYS\x01b\x02", False),
        ("KEYS\x01b\x02KEYS\x01Aa\x02", True),
        ("KEYS\x01Aa\x02KEYS\x01\x02", True),
        ("TAGS\x01Aa\x02", False),
    ],
)
def test_the_keys_are_those_that_the_broker_reads(tmp_path: Path, properties: str, has_it: bool) -> None:
    offsets = store_of(tmp_path, [message("AaTopic", properties)], [("AaTopic", "Aa")])
    assert matched(tmp_path, "AaTopic", "Aa") == (offsets if has_it else [], [])


def test_entries_without_a_readable_message_are_named(tmp_path: Path) -> None:
    offsets = store_of(tmp_path, [message("AaTopic", "KEYS\x01Aa\x02")] * 3, [("AaTopic", "Aa")] * 3)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[offsets[1] + 4] ^= 0xFF
    path.write_bytes(data)
    assert matched(tmp_path, "AaTopic", "Aa") == ([offsets[0], offsets[2]], [offsets[1]])
    path.rename(path.with_name(f"{1 << 16:020d}"))
    config = load_broker_config(None, root=tmp_path)
    assert look_up(resolve_layout(config), config, "AaTopic", "Aa").unread == tuple(offsets)
