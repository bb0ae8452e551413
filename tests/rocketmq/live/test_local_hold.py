from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import GateRefusedError
from storage_engine.rocketmq.hold.hold_state import (
    RECORD,
    HoldMemories,
    HoldState,
    Touched,
    left_behind,
    load_state,
    read_local,
    save_state,
    write_local,
)
from storage_engine.rocketmq.live.fence_mending import FenceKeeper
from tests.rocketmq.live.held_files import SIZE, held_store, path_of

STATE = HoldState("me", 1, ends_at_ms=5, touched=(Touched(0, "/x", 7, 1, 2),), fence=(0,))


class Journal:
    def __init__(self) -> None:
        self.saved: Mapping[str, Any] | None = None

    def load(self) -> Mapping[str, Any] | None:
        return self.saved

    def save(self, state: Mapping[str, Any] | None) -> None:
        self.saved = state


def file_of(root: Path) -> Path:
    return root / DIRECTORY / RECORD


def test_a_hold_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_local(tmp_path) is None
    for moment in range(5):
        write_local(tmp_path, replace(STATE, ends_at_ms=moment))
        assert read_local(tmp_path) == replace(STATE, ends_at_ms=moment)
    write_local(tmp_path, None)
    assert read_local(tmp_path) is None


def test_nothing_is_made_where_there_is_no_hold(tmp_path: Path) -> None:
    write_local(tmp_path, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.02, 0.5, 1.0])
def test_a_write_that_is_cut_short_leaves_the_hold_before_it(tmp_path: Path, fraction: float) -> None:
    for moment in (1, 2, 3):
        before = file_of(tmp_path).read_bytes() if moment == 3 else b""
        write_local(tmp_path, replace(STATE, ends_at_ms=moment))
    after = file_of(tmp_path).read_bytes()
    changed = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    cut = changed[0] + round((changed[-1] + 1 - changed[0]) * fraction)
    file_of(tmp_path).write_bytes(after[:cut] + before[cut:])
    found = read_local(tmp_path)
    assert found == replace(STATE, ends_at_ms=3 if fraction == 1.0 else 2)
    write_local(tmp_path, STATE)
    assert read_local(tmp_path) == STATE


def test_a_hold_is_renewed_in_place_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_local(tmp_path, STATE)
    inode = file_of(tmp_path).stat().st_ino
    no_space(monkeypatch)
    write_local(tmp_path, replace(STATE, ends_at_ms=6))
    assert read_local(tmp_path) == replace(STATE, ends_at_ms=6)
    assert file_of(tmp_path).stat().st_ino == inode
    # One that needs more room is in the journal only; an old one would be watched for it.
    write_local(tmp_path, replace(STATE, touched=STATE.touched * 1000))
    assert read_local(tmp_path) is None


def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "write_file", full)


def test_a_large_fence_has_room(tmp_path: Path) -> None:
    write_local(tmp_path, STATE)
    large = replace(STATE, touched=tuple(replace(STATE.touched[0], base_offset=n) for n in range(1000)))
    for moment in (1, 2, 3):
        write_local(tmp_path, replace(large, ends_at_ms=moment))
        assert read_local(tmp_path) == replace(large, ends_at_ms=moment)


def test_a_damaged_one_counts_for_nothing_and_is_written_again(tmp_path: Path) -> None:
    write_local(tmp_path, STATE)
    file_of(tmp_path).write_bytes(b"\0" * 4096)
    assert read_local(tmp_path) is None
    write_local(tmp_path, STATE)
    assert read_local(tmp_path) == STATE


def test_one_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    write_local(tmp_path, STATE)
    text = file_of(tmp_path).read_bytes()
    content = text.rstrip()[9:].replace(b'"manager"', b'"walls": 4, "manager"')
    import zlib

    file_of(tmp_path).write_bytes(
        (f"{zlib.crc32(content):08x} ".encode() + content).ljust(16384) + b" " * 16384
    )
    with pytest.raises(GateRefusedError, match="walls"):
        read_local(tmp_path)


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / DIRECTORY).symlink_to("theirs")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        write_local(tmp_path, STATE)
    assert list((tmp_path / "theirs").iterdir()) == []


def test_the_journal_counts_and_the_store_has_a_copy(tmp_path: Path) -> None:
    journal = Journal()
    memories = HoldMemories(journal, tmp_path)
    assert load_state(memories) is None
    save_state(memories, replace(STATE, segments=((0, 7),)))
    assert read_local(tmp_path) == STATE
    journal.saved = to_jsonable(replace(STATE, ends_at_ms=9))
    assert load_state(memories) == replace(STATE, ends_at_ms=9)
    save_state(memories, None)
    assert (journal.saved, read_local(tmp_path)) == (None, None)


def test_what_a_watch_has_fenced_is_known_to_who_has_the_journal(tmp_path: Path) -> None:
    journal = Journal()
    memories = HoldMemories(journal, tmp_path)
    state = held_store(tmp_path)
    save_state(memories, state)
    path_of(tmp_path, 0).unlink()
    FenceKeeper(tmp_path).look(0)
    found = load_state(memories)
    assert found is not None
    assert [one.base_offset for one in found.touched] == [n * SIZE for n in (0, 1, 2, 3, 4)]
    watched = read_local(tmp_path)
    assert watched is not None
    assert found.touched_at(4 * SIZE) == watched.touched_at(4 * SIZE)


def test_without_the_journal_the_first_times_of_what_is_still_held_are_known(tmp_path: Path) -> None:
    state = held_store(tmp_path)
    os.utime(path_of(tmp_path, 1))
    path_of(tmp_path, 2).unlink()
    left = left_behind(tmp_path)
    assert left is not None
    assert [one.original_mtime_ns for one in left.touched] == [
        state.touched[n].original_mtime_ns for n in (0, 3)
    ]
    # It isn't held by who has another journal: the marker says for how long.
    assert load_state(HoldMemories(Journal(), tmp_path)) is None
