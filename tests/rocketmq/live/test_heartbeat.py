from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.core.wording import reason_text
from storage_engine.model.hold import WatchLook
from storage_engine.rocketmq.hold import heartbeat
from storage_engine.rocketmq.hold.heartbeat import (
    NAME,
    is_shield_tended,
    last_look,
    no_watch,
    silent_watch,
    watching,
)
from tests.full_disks import fill, small_disk


def looked() -> WatchLook:
    """A look at this moment."""
    return WatchLook(time.time_ns() // 10**6, 4, 0)


def test_a_watch_is_known_to_be_alive_as_long_as_it_is(tmp_path: Path) -> None:
    assert no_watch(tmp_path) == "no watch is alive"
    with watching(tmp_path) as own:
        assert own is not None
        assert no_watch(tmp_path) == "no watch is alive"
        own.beat(looked())
        assert no_watch(tmp_path) == ""
        own.beat(looked())
        assert no_watch(tmp_path) == ""
    assert no_watch(tmp_path) == "no watch is alive"


def test_that_its_directory_was_removed_is_said_in_the_same_words_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    with watching(tmp_path) as own:
        assert own is not None
        shutil.rmtree(tmp_path / DIRECTORY)
        told = set()
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as caught:
                own.beat(looked())
            told.add(reason_text(caught.value))
    (text,) = told
    assert "its directory was removed: run storage-engine hold to make it" in text


def test_only_a_watch_that_acts_on_deletions_tends_the_shield(tmp_path: Path) -> None:
    for tends_shield in (False, True):
        with watching(tmp_path) as own:
            assert own is not None
            own.beat(looked(), tends_shield=tends_shield)
            assert no_watch(tmp_path) == ""
            assert is_shield_tended(tmp_path) is tends_shield
        assert not is_shield_tended(tmp_path)


def test_one_that_is_alive_and_has_not_looked_lately_is_not_known_to_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    now_ms = time.time_ns() // 10**6
    with watching(tmp_path) as own:
        assert own is not None
        for look, when in ((WatchLook(), "yet"), (WatchLook(now_ms - 60_000, 11), "since ")):
            own.beat(look, tends_shield=True, tended_at_ms=now_ms)
            assert f"is alive, but hasn't seen the whole fence {when}" in no_watch(tmp_path)
            assert silent_watch(tmp_path) == no_watch(tmp_path)
            assert last_look(tmp_path) is None
        own.beat(WatchLook(now_ms, 11, 3))
        assert (no_watch(tmp_path), silent_watch(tmp_path)) == ("", "")
        assert last_look(tmp_path) == WatchLook(now_ms, 11, 3)


def test_one_of_an_older_release_does_not_say_that_it_looks(tmp_path: Path) -> None:
    now_ms = time.time_ns() // 10**6
    older = {
        "host": "h",
        "process_id": 7,
        "began_at_ms": now_ms - 3_600_000,
        "at_ms": now_ms,
        "has_ended": False,
        "tends_shield": True,
    }
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / NAME).write_text(json.dumps(older))
    assert "the watch (process 7 on h) is alive" in no_watch(tmp_path)
    assert "or is of an older release" in no_watch(tmp_path)
    assert not is_shield_tended(tmp_path)


def test_a_store_has_one_watch_at_a_time(tmp_path: Path) -> None:
    with watching(tmp_path) as own:
        assert own is not None
        with watching(tmp_path) as other:
            assert other is None
        own.beat(looked())
    with watching(tmp_path) as own:
        assert own is not None


def test_one_that_does_not_beat_is_said_to_be_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(tmp_path) as own:
        assert own is not None
        own.beat(looked())
        monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.01)
        time.sleep(0.02)
        assert f"the watch (process {os.getpid()} on " in no_watch(tmp_path)
        assert "was killed or hangs" in no_watch(tmp_path)


def test_on_a_full_disk_a_watch_begins_again_and_is_seen(tmp_path: Path) -> None:
    with small_disk(tmp_path, 1 << 20):
        with watching(tmp_path) as own:
            assert own is not None
            own.beat(looked())
        fill(tmp_path)
        assert no_watch(tmp_path) == "no watch is alive"
        with watching(tmp_path) as own:
            assert own is not None
            own.beat(looked())
            assert no_watch(tmp_path) == ""
        assert no_watch(tmp_path) == "no watch is alive"


def test_a_disk_that_was_full_before_the_first_watch_keeps_none_from_its_work(tmp_path: Path) -> None:
    with small_disk(tmp_path, 1 << 20):
        with watching(tmp_path) as own:  # makes its lock
            assert own is not None
        filler = fill(tmp_path)
        with watching(tmp_path) as own:
            assert own is not None
            own.beat(looked())
            assert no_watch(tmp_path) == "no watch is alive"
            filler.unlink()
            time.sleep(heartbeat.BEAT_SECONDS)
            own.beat(looked())
            assert no_watch(tmp_path) == ""


def _watch(root: Path, began: Event) -> None:
    with watching(root) as own:
        assert own is not None
        own.beat(looked())
        began.set()
        time.sleep(600)


def test_a_watch_that_was_killed_leaves_its_place_to_another(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    process = context.Process(target=_watch, args=(tmp_path, began))
    process.start()
    assert began.wait(120)
    with watching(tmp_path) as own:
        assert own is None
    process.kill()
    process.join()
    with watching(tmp_path) as own:
        assert own is not None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"host": 1}', b"\xff"])
def test_a_sign_of_life_that_can_not_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / NAME).write_bytes(content)
    assert no_watch(tmp_path).startswith("no watch is known to be alive")
