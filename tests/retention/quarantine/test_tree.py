"""A large file of a quarantine goes in steps where it is nobody else's, and at once where it may be."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage_engine.retention.quarantine import places
from storage_engine.retention.quarantine.places import LEASED_KINDS, Contents, Place, make_place, remove
from storage_engine.same_bytes.trusted_times import mount_of
from tests.services.file_systems import mounted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux grants leases of files")

NAME = "00000000000000000000"
CONTENT = os.urandom(1000)


@pytest.fixture
def segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mount = mount_of(tmp_path)
    if mount is None or mount.kind not in LEASED_KINDS:
        pytest.skip(f"expected one of {sorted(LEASED_KINDS)}, found {mount}")
    return set_aside(tmp_path, monkeypatch)


def set_aside(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "STEP_BYTES", 300)
    monkeypatch.setattr(places, "_PAUSE_SECONDS", 0)
    make_place(place(directory), b"{}")
    path = place(directory).directory / "commitlog" / NAME
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
    steps, sizes = seen_steps(monkeypatch, segment), list[int]()
    assert remove(place(tmp_path), lambda: sizes.append(segment.stat().st_size)) == Contents(2, 1300)
    assert steps == [(f"{NAME}.shrinking", size_bytes) for size_bytes in (700, 400, 100)]
    assert sizes == [1000]
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


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay"])
def test_a_mapping_without_a_descriptor_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with mounted(kind, tmp_path) as directory:
        segment = set_aside(directory, monkeypatch)
        steps = seen_steps(monkeypatch, segment)
        # Python's own mapping keeps a descriptor open.
        script = (
            "import ctypes, os, sys\n"
            "file = os.open(sys.argv[1], os.O_RDONLY)\n"
            "libc = ctypes.CDLL(None)\n"
            "libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, "
            "ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]\n"
            "found = libc.mmap(None, 1000, 1, 1, file, 0)\n"
            "os.close(file)\n"
            "print(flush=True)\n"
            "sys.stdin.read()\n"
            "sys.stdout.write(ctypes.string_at(found, 1000).hex())\n"
        )
        command = [sys.executable, "-c", script, str(segment)]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as mapping:
            assert mapping.stdout is not None
            mapping.stdout.readline()
            remove(place(directory), lambda: None)
            assert mapping.communicate()[0] == CONTENT.hex()
        assert steps == []


@pytest.mark.parametrize("cuts_before", [0, 1])
def test_who_links_it_meanwhile_ends_the_steps(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuts_before: int
) -> None:
    backup = tmp_path / "backup"
    rename = os.rename

    def link_and_rename(name: str, *others: object, **at: object) -> None:
        if name == NAME and cuts_before == 0:
            backup.hardlink_to(segment)
        rename(name, *others, **at)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", link_and_rename)
    link = partial(backup.hardlink_to, segment.with_name(f"{NAME}.shrinking"))
    steps = seen_steps(monkeypatch, segment, link if cuts_before else lambda: None)
    remove(place(tmp_path), lambda: None)
    assert len(steps) == cuts_before
    assert backup.read_bytes() == CONTENT[: 1000 - 300 * cuts_before]


def test_what_was_moved_away_meanwhile_is_cut_no_further(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, rescued = os.rename, tmp_path / "rescued"

    def move_and_rename(name: str, *others: object, **at: object) -> None:
        if name == NAME:
            rename(segment, rescued)
            segment.write_bytes(b"another")
        rename(name, *others, **at)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", move_and_rename)
    remove(place(tmp_path), lambda: None)
    assert rescued.read_bytes() == CONTENT


def test_what_was_moved_away_between_steps_keeps_no_other_from_going(
    segment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, rescued = segment.parent.parent / "small", tmp_path / "rescued"
    other.write_bytes(CONTENT[:300])
    steps = seen_steps(monkeypatch, segment, lambda: segment.with_name(f"{NAME}.shrinking").rename(rescued))
    remove(place(tmp_path), lambda: None)
    assert steps == [(f"{NAME}.shrinking", 700)]
    assert rescued.read_bytes() == CONTENT[:700]
    assert not place(tmp_path).directory.exists()


def test_what_is_missing_elsewhere_is_not_taken_for_an_empty_place(segment: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="lake"):
        remove(place(tmp_path), (tmp_path / "lake").read_bytes)
    assert segment.exists()
    segment.unlink()
    assert remove(place(tmp_path)) == remove(place(tmp_path)) == Contents()


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
