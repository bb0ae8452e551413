"""A file is the same while only we touched it; whatever else touched it, or isn't known, makes it another."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes import own_acts as module
from storage_engine.same_bytes.own_acts import NAME, own_acts, read_own_acts

HOUR_NS = 3600 * 10**9


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "commitlog" / "00000000000000000000"
    path.parent.mkdir()
    path.write_bytes(b"x" * 8192)
    time.sleep(0.01)  # so that the next act gets another time on kernels that keep them coarsely
    return path


def set_mtime(root: Path, path: Path, mtime_ns: int) -> None:
    with own_acts(root) as acts, acts.on(path, mtime_ns=mtime_ns):
        os.utime(path, ns=(mtime_ns, mtime_ns))
    time.sleep(0.01)


def same(root: Path, path: Path, known: FileFacts) -> bool:
    return read_own_acts(root).same_file(FileFacts.of(path), known)


def test_an_mtime_that_we_set_makes_no_other_file(tmp_path: Path, segment: Path) -> None:
    before = FileFacts.of(segment)
    set_mtime(tmp_path, segment, time.time_ns() + HOUR_NS)
    between = FileFacts.of(segment)
    set_mtime(tmp_path, segment, 0)
    assert len({before, between, FileFacts.of(segment)}) == 3
    assert same(tmp_path, segment, before)
    assert same(tmp_path, segment, between)


def test_another_name_that_we_give_and_take_makes_no_other_file(tmp_path: Path, segment: Path) -> None:
    before, link = FileFacts.of(segment), tmp_path / "link"
    with own_acts(tmp_path) as acts, acts.on(segment, other_name=link):
        os.link(segment, link)
    assert FileFacts.of(segment) != before
    assert same(tmp_path, segment, before)
    assert same(tmp_path, link, before)
    with own_acts(tmp_path) as acts, acts.on(segment):
        segment.unlink()
    assert same(tmp_path, link, before)


def test_a_receipt_that_has_the_mtime_before_a_hold_is_of_the_same_file(
    tmp_path: Path, segment: Path
) -> None:
    original = FileFacts.of(segment)
    set_mtime(tmp_path, segment, time.time_ns() + HOUR_NS)
    held = FileFacts.of(segment)
    set_mtime(tmp_path, segment, 0)
    proven = FileFacts(held.path, held.device, held.inode, held.size_bytes, original.mtime_ns, held.ctime_ns)
    assert same(tmp_path, segment, proven)


@pytest.mark.parametrize("when", ["before our act", "after our act"])
def test_a_touch_by_another_makes_another_file(tmp_path: Path, segment: Path, when: str) -> None:
    before = FileFacts.of(segment)
    if when == "before our act":
        os.utime(segment, ns=(before.mtime_ns, before.mtime_ns))
    set_mtime(tmp_path, segment, 0)
    if when == "after our act":
        os.utime(segment, ns=(0, 0))
    assert not same(tmp_path, segment, before)


def test_a_write_between_two_acts_of_ours_makes_another_file(tmp_path: Path, segment: Path) -> None:
    before = FileFacts.of(segment)
    set_mtime(tmp_path, segment, 0)
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0] = 1
    set_mtime(tmp_path, segment, 0)
    after = FileFacts.of(segment)
    assert not same(tmp_path, segment, before)
    set_mtime(tmp_path, segment, 1)
    assert same(tmp_path, segment, after)


@pytest.mark.parametrize("act", ["link", "utime"])
def test_a_write_in_the_middle_of_an_act_is_not_taken_for_ours(
    tmp_path: Path, segment: Path, act: str
) -> None:
    before = FileFacts.of(segment)
    with own_acts(tmp_path) as acts, acts.on(segment, mtime_ns=0 if act == "utime" else None):
        os.utime(segment, ns=(0, 0)) if act == "utime" else os.link(segment, tmp_path / "link")
        segment.write_bytes(b"y" * 8192)
    assert not same(tmp_path, segment, before)


def test_an_act_that_fails_is_not_recorded(tmp_path: Path, segment: Path) -> None:
    before = FileFacts.of(segment)
    with own_acts(tmp_path) as acts, suppress(FileExistsError), acts.on(segment):
        os.utime(segment, ns=(before.mtime_ns, before.mtime_ns))
        os.link(segment, segment)
    assert not same(tmp_path, segment, before)


def test_an_act_that_was_killed_before_its_record_makes_another_file(tmp_path: Path, segment: Path) -> None:
    before = FileFacts.of(segment)
    script = (
        "import os, signal, sys\n"
        "from storage_engine.same_bytes.own_acts import own_acts\n"
        "with own_acts(sys.argv[1]) as acts:\n"
        "    with acts.on(sys.argv[2], mtime_ns=0):\n"
        "        os.utime(sys.argv[2], ns=(0, 0))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(segment)], check=False)
    assert FileFacts.of(segment).mtime_ns == 0
    assert not same(tmp_path, segment, before)
    set_mtime(tmp_path, segment, 1)
    assert not same(tmp_path, segment, before)


def test_whoever_asks_waits_for_an_act_that_is_on_its_way(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 60)
    before = FileFacts.of(segment)
    script = (
        "import os, sys, time\n"
        "from storage_engine.same_bytes.own_acts import own_acts\n"
        "with own_acts(sys.argv[1]) as acts:\n"
        "    with acts.on(sys.argv[2], mtime_ns=0):\n"
        "        os.utime(sys.argv[2], ns=(0, 0))\n"
        "    print('done', flush=True)\n"
        "    time.sleep(0.3)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(segment)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert same(tmp_path, segment, before)


def test_an_act_does_not_wait_for_one_who_keeps_the_lock(
    tmp_path: Path, segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    set_mtime(tmp_path, segment, 1)
    before = FileFacts.of(segment)
    with (tmp_path / DIRECTORY / "own-acts.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        set_mtime(tmp_path, segment, 0)
    assert FileFacts.of(segment).mtime_ns == 0
    assert not same(tmp_path, segment, before)


@pytest.mark.parametrize("content", [b"", b"{", b'{"files": [{"device": 1}]}', b'{"others": []}'])
def test_a_record_that_cannot_be_understood_explains_nothing(
    tmp_path: Path, segment: Path, content: bytes
) -> None:
    before = FileFacts.of(segment)
    set_mtime(tmp_path, segment, 0)
    (tmp_path / DIRECTORY / NAME).write_bytes(content)
    assert not same(tmp_path, segment, before)
    between = FileFacts.of(segment)
    set_mtime(tmp_path, segment, 1)
    assert same(tmp_path, segment, between)


def test_where_no_record_can_be_made_the_act_is_done(tmp_path: Path, segment: Path) -> None:
    before = FileFacts.of(segment)
    (tmp_path / DIRECTORY).touch()
    set_mtime(tmp_path, segment, 0)
    assert FileFacts.of(segment).mtime_ns == 0
    assert not same(tmp_path, segment, before)


def test_files_that_are_gone_are_forgotten(tmp_path: Path, segment: Path) -> None:
    other = segment.with_name("00000000000000008192")
    other.write_bytes(b"y")
    set_mtime(tmp_path, segment, 0)
    segment.unlink()
    set_mtime(tmp_path, other, 0)
    assert [file.paths for file in read_own_acts(tmp_path).files] == [(str(other),)]


def test_asking_makes_nothing(tmp_path: Path) -> None:
    assert read_own_acts(tmp_path).files == ()
    assert not (tmp_path / DIRECTORY).exists()
