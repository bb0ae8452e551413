"""The index after a crash: a message has its entry, or who asks is told between which offsets it may not."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from storage_engine.rocketmq.engine.append.append import NewMessage
from storage_engine.rocketmq.engine.dispatch.index_writer import UnsureIndex, find_unsure
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.recover_on_demand import rebuild_queues, recover_store
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from storage_engine.rocketmq.format.index_file import IndexHeader, open_index
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.inspect import unindexed_ranges
from tests.rocketmq.engine.scenarios import write_conf

A_FILE = 1 << 16
PERIOD_MS = 1000


def crashed(tmp_path: Path, files: int, entries_a_file: int = 1 << 16) -> tuple[BrokerConfig, dict[str, int]]:
    """Make a store whose process was killed while its last index file was open; return offsets by key, too.

    Store times are seconds apart, so that a recovery begins in one of the newest files of the log.
    """
    now_ms = 1_790_000_000_000

    def clock() -> int:
        nonlocal now_ms
        now_ms += PERIOD_MS
        return now_ms

    config = write_conf(tmp_path / "conf", tmp_path / "written", maxIndexNum=entries_a_file)
    offsets = {}
    with open_store(config, clock=clock) as store:
        number = 0
        while len(store.files.files) <= files:
            result = store.put(NewMessage("orders", bytes(1500), b"KEYS\x01k%d\x02" % number))
            offsets[f"k{number}"] = result.physical_offset
            number += 1
        store.flush()
        shutil.copytree(tmp_path / "written", tmp_path / "store")
    return write_conf(tmp_path / "conf", tmp_path / "store", maxIndexNum=entries_a_file), offsets


def not_found(config: BrokerConfig, offsets: dict[str, int]) -> set[int]:
    """Return the offsets of messages that the index doesn't find."""
    with open_index(resolve_layout(config), config) as index:
        return {offset for key, offset in offsets.items() if offset not in index.lookup("orders", key, 64)}


@pytest.mark.parametrize("entries_a_file", [1 << 16, 100])
def test_a_recovery_begins_at_the_first_message_of_the_dropped_file(
    tmp_path: Path, entries_a_file: int
) -> None:
    config, offsets = crashed(tmp_path, 8, entries_a_file)
    foreseen = recover_store(config, dry_run=True, cut_messages=False)
    done = recover_store(config, dry_run=False, cut_messages=False)
    assert len(foreseen.dropped_index_files) == 1
    assert (foreseen.unindexed, done.unindexed) == (None, None)
    assert not_found(config, offsets) == set()
    assert unindexed_ranges(resolve_layout(config), config) == ()


def test_what_more_than_ten_segments_back_is_not_indexed_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, offsets = crashed(tmp_path, 25)
    foreseen = recover_store(config, dry_run=True, cut_messages=False)
    done = recover_store(config, dry_run=False, cut_messages=False)
    assert done.unindexed == foreseen.unindexed == (0, 16 * A_FILE)
    said = f"Messages at offsets [0, {16 * A_FILE}) aren't found by key"
    assert said in " ".join(done.lines)
    assert said in caplog.text
    assert not_found(config, offsets) == {offset for offset in offsets.values() if offset < 16 * A_FILE}
    (told,) = unindexed_ranges(resolve_layout(config), config)
    assert told == (0, 16 * A_FILE)


def test_an_engine_that_starts_says_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, offsets = crashed(tmp_path, 25)
    with caplog.at_level(logging.WARNING), open_store(config) as store:
        assert store.unindexed == (0, 16 * A_FILE)
    assert "storage-engine rebuild-queues" in caplog.text
    assert not_found(config, offsets) == {offset for offset in offsets.values() if offset < 16 * A_FILE}


@pytest.mark.parametrize("rebuilt", [False, True])
def test_the_whole_index_is_made_again_where_that_is_asked_for(tmp_path: Path, rebuilt: bool) -> None:
    config, offsets = crashed(tmp_path, 25)
    if rebuilt:
        rebuild_queues(config)
    else:
        assert recover_store(config, dry_run=False, cut_messages=False, whole_index=True).unindexed is None
    assert not_found(config, offsets) == set()
    assert unindexed_ranges(resolve_layout(config), config) == ()


def header(begin: int, end: int) -> IndexHeader:
    return IndexHeader(0, 0, begin, end, 1, 2)


@pytest.mark.parametrize(
    ("sound", "loaded", "began_at", "unsure"),
    [
        ([], 0, 100, None),
        ([], 0, 101, UnsureIndex(0, 100)),
        ([], 1, 100, UnsureIndex(0, 100)),
        ([header(0, 500)], 1, 500, None),
        ([header(0, 500)], 1, 501, UnsureIndex(1, 500)),
        ([header(0, 500)], 2, 100, UnsureIndex(1, 500)),
        ([header(0, 500), header(500, 900)], 2, 100, UnsureIndex(1, 500)),
    ],
)
def test_what_is_made_again_begins_behind_the_files_that_are_sound(
    sound: list[IndexHeader], loaded: int, began_at: int, unsure: UnsureIndex | None
) -> None:
    assert find_unsure(sound, loaded, log_begin=100, log_end=900, began_at=began_at) == unsure
