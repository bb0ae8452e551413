from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes.trusted_times import settle, times_are_trusted, until_distinct_seconds
from tests.rounds import ALL
from tests.services.file_systems import KINDS, mounted

SECOND_NS = 10**9


def test_each_write_to_a_settled_file_shows(tmp_path: Path) -> None:
    if not times_are_trusted(tmp_path, tmp_path):
        pytest.skip("no write through a mapping shows on the file system of the temporary directory")
    check_each_write_shows(tmp_path / "segment")


@pytest.mark.skipif(not ALL, reason="make test-all mounts file systems")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "overlay-volatile"])
def test_each_write_shows_on_each_file_system(kind: str, tmp_path: Path) -> None:
    with mounted(kind, tmp_path) as mount:
        check_each_write_shows(mount / "segment")


def check_each_write_shows(path: Path) -> None:
    path.write_bytes(b"x" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0] = 1
        for value in range(2, 5):
            before = settle(path)
            mapping[0] = value
            assert FileFacts.of(path) != before


def test_a_file_that_is_written_to_again_and_again_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 8192)
    fsync, looks = os.fsync, 0

    def fsync_of_what_is_written_to(fd: int) -> None:
        nonlocal looks
        looks += 1
        with path.open("r+b") as writer:
            writer.write(b"y")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync_of_what_is_written_to)
    with pytest.raises(ChangedUnderUsError, match="no process writes to any more, found that it was"):
        settle(path)
    assert looks == 10


def test_a_file_that_was_written_long_ago_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    now_ns = time.time_ns()
    facts = FileFacts.of(path)
    assert until_distinct_seconds(facts, now_ns) > 0
    assert until_distinct_seconds(facts, now_ns + SECOND_NS) <= 0
    assert until_distinct_seconds(facts, now_ns - SECOND_NS) <= 0


def test_times_without_a_fraction_are_waited_for_longer() -> None:
    coarse = FileFacts("p", 1, 2, 3, 7 * SECOND_NS, 7 * SECOND_NS)
    assert until_distinct_seconds(coarse, 8 * SECOND_NS) == 1
    assert until_distinct_seconds(coarse, 9 * SECOND_NS) == 0
    held = FileFacts("p", 1, 2, 3, 7 * SECOND_NS, 7 * SECOND_NS + 5)
    assert until_distinct_seconds(held, 8 * SECOND_NS) < 0


def test_a_settled_file_keeps_its_times(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"x")
    os.utime(path, ns=(0, 0))
    assert settle(path) == FileFacts.of(path)
    assert path.stat().st_mtime_ns == 0
