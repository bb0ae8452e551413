"""A large file of a quarantine goes in steps where it is nobody else's, and at once where it may be."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.retention.quarantine import tree
from storage_engine.retention.quarantine.tree import Contents, Place, make_place, remove

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux grants leases of files")

NAME = "00000000000000000000"
CONTENT = os.urandom(1000)


@pytest.fixture
def segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tree, "STEP_BYTES", 300)
    monkeypatch.setattr(tree, "_PAUSE_SECONDS", 0)
    make_place(place(tmp_path), b"{}")
    path = place(tmp_path).directory / "commitlog" / NAME
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def place(directory: Path) -> Place:
    return Place(str(directory), (".storage-engine", "quarantine", "run"))


def seen_steps(
    monkeypatch: pytest.MonkeyPatch, segment: Path, at_step: Callable[[], object] = lambda: None
) -> list[tuple[str, int]]:
    """Note the name and size of the only file beside the manifest after each step."""
    steps: list[tuple[str, int]] = []
    cut = os.ftruncate

    def ftruncate(descriptor: int, size_bytes: int) -> None:
        cut(descriptor, size_bytes)
        (path,) = segment.parent.iterdir()
        steps.append((path.name, path.stat().st_size))
        at_step()

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    return steps


def test_a_large_file_shrinks_under_another_name(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment.parent / "small").write_bytes(CONTENT[:300])
    (segment.parent / "small").rename(segment.parent.parent / "small")
    steps, shrunk = seen_steps(monkeypatch, segment), list[str]()
    assert remove(place(tmp_path), lambda: shrunk.append("shrunk")) == Contents(2, 1300)
    assert steps == [(f"{NAME}.shrinking", size_bytes) for size_bytes in (700, 400, 100)]
    assert shrunk == ["shrunk"]
    assert not place(tmp_path).directory.exists()


def test_a_file_whose_bytes_another_name_has_goes_at_once(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shield").hardlink_to(segment)
    steps = seen_steps(monkeypatch, segment)
    assert remove(place(tmp_path), lambda: None) == Contents(1, 1000)
    assert steps == []
    assert (tmp_path / "shield").read_bytes() == CONTENT


@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_WRITE])
def test_a_file_that_somebody_maps_goes_at_once(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: int
) -> None:
    with segment.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=access)
    steps = seen_steps(monkeypatch, segment)
    with mapped:
        remove(place(tmp_path), lambda: None)
        assert mapped[:] == CONTENT
    assert steps == []
    assert not segment.exists()


def test_who_opens_it_meanwhile_ends_the_steps(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_it() -> None:
        with segment.with_name(f"{NAME}.shrinking").open("rb"):
            pass

    def begin() -> None:
        readers[0].start()
        readers[0].join(0.5)
        assert readers[0].is_alive()

    readers = [threading.Thread(target=open_it, daemon=True)]
    steps = seen_steps(monkeypatch, segment, begin)
    remove(place(tmp_path), lambda: None)
    assert [size_bytes for _, size_bytes in steps] == [700]
    readers[0].join(60)
    assert not readers[0].is_alive()


def test_what_is_not_to_go_in_steps_goes_at_once(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = seen_steps(monkeypatch, segment)
    assert remove(place(tmp_path)) == Contents(1, 1000)
    assert steps == []
