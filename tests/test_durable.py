from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_engine import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was fsynced, in order."""
    paths: list[Path] = []
    fsync_path = durable.fsync_path

    def look(path: str | os.PathLike[str]) -> None:
        fsync_path(path)
        paths.append(Path(path))

    monkeypatch.setattr(durable, "fsync_path", look)
    return paths


def test_every_new_directory_is_synced_in_its_parent(tmp_path: Path, synced: list[Path]) -> None:
    durable.make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]


def test_a_directory_that_a_killed_process_made_is_synced_before_it_is_used(
    tmp_path: Path, synced: list[Path]
) -> None:
    (tmp_path / "a").mkdir()
    durable.make_dirs(tmp_path / "a")
    durable.make_dirs(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path, tmp_path / "a"]
