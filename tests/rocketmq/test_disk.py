from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.disk import DiskUsage, percent_rounded_up


def test_level_is_used_over_used_and_usable_rounded_up(tmp_path: Path) -> None:
    usage = DiskUsage.of(tmp_path)
    assert usage.total_bytes is not None
    assert usage.usable_bytes is not None
    assert usage.used_percent == percent_rounded_up(usage.total_bytes - usage.usable_bytes, usage.total_bytes)
    assert usage.used_percent == pytest.approx(psutil.disk_usage(str(tmp_path)).percent, abs=1.1)
    assert usage.total_bytes <= shutil.disk_usage(tmp_path).total
    assert usage.device == tmp_path.stat().st_dev
    assert usage.error == ""


def test_missing_path_is_unknown_and_says_why(tmp_path: Path) -> None:
    usage = DiskUsage.of(tmp_path / "gone")
    assert usage.used_percent is None
    assert str(tmp_path / "gone") in usage.error
    assert "No such file" in usage.error


def test_path_below_a_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert DiskUsage.of(tmp_path / "file" / "commitlog").used_percent is None


def test_path_that_no_file_system_takes_is_unknown() -> None:
    assert DiskUsage.of("a\0b").used_percent is None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system without a size")
def test_file_system_without_a_size_is_unknown() -> None:
    usage = DiskUsage.of("/proc")
    assert usage.used_percent is None
    assert "0 bytes" in usage.error


@pytest.mark.parametrize(
    ("part", "whole", "percent"),
    [(0, 10, 0), (1, 1000, 1), (10, 1000, 1), (11, 1000, 2), (75, 100, 75), (999, 1000, 100), (10, 10, 100)],
)
def test_percent_is_rounded_up(part: int, whole: int, percent: int) -> None:
    assert percent_rounded_up(part, whole) == percent


@given(whole=st.integers(1, 2**63), share=st.fractions(0, 1))
def test_percent_never_says_less_than_is_used(whole: int, share) -> None:
    part = int(whole * share)
    percent = percent_rounded_up(part, whole)
    assert percent * whole >= part * 100
    assert (percent - 1) * whole < part * 100
