"""Facts of stores that a real broker wrote, against what its own classes read from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.facts import FactsScope, StoreFacts
from storage_engine.rocketmq.file_facts import collect

StoreCopy = Callable[[str], Path]
GroundTruth = Callable[[str, str], Any]

STORES = ("clean-stop", "kill9", "cqext-batchcq", "multipath", "edge-frames")
EVERYTHING = FactsScope(full=True, queues=None, files=(), accepted_damage={})
BOUNDARIES = FactsScope(full=False, queues=None, files=(), accepted_damage={})


def facts_of(root: Path, scope: FactsScope = EVERYTHING) -> StoreFacts:
    paths = sorted(str(path) for path in root.glob("cl*"))
    settings = {"storePathCommitLog": ",".join(paths)} if paths else {}
    return collect(StoreSettings(str(root), overrides=settings), scope)


@pytest.mark.parametrize("name", STORES)
def test_a_real_store_holds_every_rule(name: str, store_copy: StoreCopy) -> None:
    for scope in (BOUNDARIES, EVERYTHING):
        facts = facts_of(store_copy(name), scope)
        assert all(s.first_frame_offset in (-1, s.base_offset) for s in facts.segments)
        assert all(row.damaged_bytes == 0 for row in facts.frames)
        assert all(row.missing == 0 for row in facts.dispatch)
        assert all(row.found_message in ("", row.expected_message) for row in facts.queues)
        assert all(row.lowest_live_offset == row.first_live_offset for row in facts.queues)
        assert all(row.last_offset <= row.log_max_offset for row in facts.queues)
        assert all(row.left_over_files == 0 for row in (*facts.queues, *facts.index_files))
        assert all(row.low <= row.value <= row.high for row in facts.checkpoint)


@pytest.mark.parametrize("name", STORES)
def test_a_full_walk_meets_every_message_and_its_entry(
    name: str, store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    facts = facts_of(store_copy(name))
    messages = [f for f in ground_truth(name, "commitlog") if f["kind"] == "message"]
    transaction, prepared, rollback = 0xC, 0x4, 0xC
    with_entry = [f for f in messages if f["sysFlag"] & transaction not in (prepared, rollback)]
    assert sum(row.messages for row in facts.dispatch) == len(with_entry)
    bounds = {row.subject: row.high for row in facts.checkpoint}
    assert bounds["checkpoint physic_msg_timestamp_ms"] == max(f["storeTimestamp"] for f in messages)


def test_only_touched_queues_are_read(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    deleted = str(root / "consumequeue" / "tx_topic" / "0" / ("0" * 20))
    scope = FactsScope(full=False, queues={("orders", 3)}, files=(deleted,), accepted_damage={})
    assert [row.subject for row in facts_of(root, scope).queues] == [
        "consumequeue/orders/3",
        "consumequeue/tx_topic/0",
    ]


def test_a_hole_and_a_wrong_name_are_facts_not_errors(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    (root / "commitlog" / f"{1 << 20:020d}").unlink()
    (root / "commitlog" / f"{2 << 20:020d}").rename(root / "commitlog" / "1.bak")
    facts = facts_of(root, BOUNDARIES)
    assert [s.base_offset for s in facts.segments if s.base_offset >> 20 < 4] == [0, 3 << 20, -1]
    assert next(s for s in facts.segments if s.name == "1.bak").first_frame_offset == 2 << 20


def test_a_link_in_the_place_of_a_queue_file_is_a_fact_no_error(
    store_copy: StoreCopy, tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    path = root / "consumequeue" / "tx_topic" / "0" / ("0" * 20)
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    for scope in (BOUNDARIES, EVERYTHING):
        (row,) = (row for row in facts_of(root, scope).queue_files if row.queue.endswith("tx_topic/0"))
        assert (row.start_offset, row.end_offset) == (-1, -1)


def test_damaged_bytes_are_counted(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    segment = root / "commitlog" / ("0" * 20)
    data = bytearray(segment.read_bytes())
    first_body = 88
    data[first_body] ^= 0xFF
    segment.write_bytes(data)
    (damaged,) = [row for row in facts_of(root).frames if row.damaged_bytes]
    assert damaged.subject == f"commitlog/{0:020d}"


def test_empty_and_cut_files_are_facts_not_errors(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    (root / "commitlog" / f"{2 << 20:020d}").write_bytes(b"")
    queue = root / "consumequeue" / "orders" / "3"
    (queue / ("0" * 20)).write_bytes(b"1234567")
    facts = facts_of(root)
    assert [s.size_bytes for s in facts.segments if s.base_offset == 2 << 20] == [0]
    assert [f.start_offset for f in facts.queue_files if f.queue == "consumequeue/orders/3"] == [-1, 300]


def test_a_crashed_store_says_so_and_names_its_torn_frame(store_copy: StoreCopy) -> None:
    root = store_copy("kill9")
    whole = facts_of(root, BOUNDARIES)
    assert any("the store crashed" in note for note in whole.notes)
    assert not any("torn frame" in note for note in whole.notes)
    last = root / "commitlog" / f"{3 << 20:020d}"
    end = 3_607_383 - (3 << 20)
    with last.open("r+b") as file:
        file.seek(end - 200)
        file.write(bytes(200))
    torn = [note for note in facts_of(root, BOUNDARIES).notes if "torn frame" in note]
    assert len(torn) == 1
    assert f"{last}: a torn frame at physical offset {3_607_383 - 296}" in torn[0]
