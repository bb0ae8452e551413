"""However an attempt to set mtimes ends, the first ones are known and come back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError
from storage_engine.rocketmq.hold.hold_state import (
    HoldState,
    SeenFile,
    SegmentGoneError,
    load_state,
    put_back,
    set_mtimes,
)
from tests.services.other_user import as_nobody

SIZE = 1000
ROOT = Path("/nowhere")
"""No record is made of what is done there."""
START_MS = 1_790_000_000_123
MS_NS = 1_000_000


@dataclass
class Memory:
    """A journal's memory. With ``cut_at``, the process ends when it saves for the so-manieth time."""

    state: Mapping[str, Any] | None = None
    saves: int = 0
    cut_at: int | None = None

    def load(self) -> Mapping[str, Any] | None:
        return self.state

    def save(self, state: Mapping[str, Any] | None) -> None:
        if self.saves == self.cut_at:
            raise KeyboardInterrupt
        self.saves += 1
        self.state = state


@pytest.fixture
def files(tmp_path: Path) -> tuple[SeenFile, ...]:
    found = []
    for base in (0, SIZE, 2 * SIZE):
        path = tmp_path / f"{base:020d}"
        path.write_bytes(b"x" * SIZE)
        mtime_ns = (START_MS - 100 * HOUR_MS) * MS_NS + base + 1
        os.utime(path, ns=(mtime_ns, mtime_ns))
        found.append(SeenFile(base, str(path), path.stat().st_ino, SIZE, mtime_ns, 1))
    return tuple(found)


def mtime_of(file: SeenFile) -> int:
    return Path(file.path).stat().st_mtime_ns


@pytest.mark.parametrize("cut_at", [0, 1, 2, 3, None])
def test_first_mtimes_come_back_whenever_it_is_cut_short(
    files: tuple[SeenFile, ...], cut_at: int | None
) -> None:
    """Saved twice a call: before the first file is touched, and after the last."""
    memory = Memory(cut_at=cut_at)
    with suppress(KeyboardInterrupt):
        state = set_mtimes(ROOT, memory, HoldState("me", 1), [(file, 10**18) for file in files])
        again = [replace(file, mtime_ns=10**18) for file in files]
        set_mtimes(ROOT, memory, state, [(file, 0) for file in reversed(again)])
    memory.cut_at = None
    remembered = load_state(memory)
    if remembered is not None:
        put_back(ROOT, memory, remembered, [touched.base_offset for touched in remembered.touched])
    assert [mtime_of(file) for file in files] == [file.mtime_ns for file in files]


def test_what_is_touched_is_remembered_before(files: tuple[SeenFile, ...]) -> None:
    memory = Memory(cut_at=1)
    with pytest.raises(KeyboardInterrupt):
        set_mtimes(ROOT, memory, HoldState("me", 1), [(files[0], 10**18)])
    state = load_state(memory)
    assert state is not None
    (touched,) = state.touched
    assert (touched.original_mtime_ns, touched.mtime_ns, touched.ctime_ns) == (
        files[0].mtime_ns,
        10**18,
        None,
    )
    assert mtime_of(files[0]) in touched.possible_mtimes_ns


def test_a_file_that_somebody_else_touched_keeps_what_it_was_given(files: tuple[SeenFile, ...]) -> None:
    memory = Memory()
    state = set_mtimes(ROOT, memory, HoldState("me", 1), [(file, 10**18) for file in files])
    os.utime(files[1].path, ns=(7 * 10**17, 7 * 10**17))
    Path(files[2].path).unlink()
    assert put_back(ROOT, memory, state, [file.base_offset for file in files]).touched == ()
    assert mtime_of(files[0]) == files[0].mtime_ns
    assert mtime_of(files[1]) == 7 * 10**17


def test_a_segment_that_goes_meanwhile_is_told_apart_from_one_that_can_not_be_touched(
    files: tuple[SeenFile, ...],
) -> None:
    Path(files[0].path).unlink()
    with pytest.raises(SegmentGoneError, match="being deleted"):
        set_mtimes(ROOT, Memory(), HoldState("me", 1), [(files[0], 10**18)])


def test_another_file_under_the_name_is_not_touched(files: tuple[SeenFile, ...]) -> None:
    other = Path(files[0].path).with_name("other")
    other.write_bytes(b"y")
    other.replace(files[0].path)
    before_ns = mtime_of(files[0])
    with pytest.raises(ChangedUnderUsError, match="inode"):
        set_mtimes(ROOT, Memory(), HoldState("me", 1), [(files[0], 10**18)])
    assert mtime_of(files[0]) == before_ns


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_not_set_an_mtime_is_told_whom_to_run_as() -> None:
    with tempfile.NamedTemporaryFile() as opened:
        path = Path(opened.name)
        path.chmod(0o644)
        before = path.stat()
        file = SeenFile(0, str(path), before.st_ino, SIZE, before.st_mtime_ns, before.st_ctime_ns)
        with (
            as_nobody(),
            pytest.raises(GateRefusedError, match=r"uid 0; this process has uid 65534.*CAP_FOWNER"),
        ):
            set_mtimes(ROOT, Memory(), HoldState("me", 1), [(file, 10**18)])
        assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_system_that_does_not_keep_an_mtime_is_refused(files: tuple[SeenFile, ...]) -> None:
    """Each has a last moment that it can keep; what is later is cut to that."""
    too_late_ns = 2**60 * 10**9
    file = files[0]
    try:
        os.utime(file.path, ns=(0, too_late_ns))
        if mtime_of(file) == too_late_ns:
            pytest.skip("this file system keeps any moment")
    finally:
        os.utime(file.path, ns=(file.mtime_ns, file.mtime_ns))
    with pytest.raises(GateRefusedError, match="expected its file system to keep the mtime"):
        set_mtimes(ROOT, Memory(), HoldState("me", 1), [(file, too_late_ns)])
    assert mtime_of(file) == file.mtime_ns
