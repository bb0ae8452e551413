"""What happens to lakes, for tests of the commands that mend it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog import identity
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.services.restoring import restore

__all__ = ["archive", "at", "check", "copy_tree", "held", "old_release", "tree"]


def at(directory: Path) -> LakeConfig:
    return LakeConfig.local(directory)


def archive(make_jobs, lake: Lake, *segments: Path) -> None:
    archive_all(lake, make_jobs(lake, *segments))


def copy_tree(source: Path, target: Path) -> Path:
    """What ``cp -a`` does."""
    shutil.copytree(source, target, copy_function=shutil.copy2)
    return target


def tree(directory: Path) -> dict[str, str]:
    """Every file below a directory with its SHA-256."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def held(directory: Path) -> list[int]:
    """Base offsets of the segments that a lake has receipts for."""
    return [row.base_offset for row in receipts(open_lake(at(directory)), "store-1")]


def check(directory: Path, segments: list[Path], work: Path) -> None:
    """Each of these segments, and no other, is in a lake by every byte, and comes back."""
    lake = open_lake(at(directory))
    assert held(directory) == [int(path.name) for path in segments]
    (found,) = verify(lake, VerifyLevel.FILES)
    assert (found.overall, found.findings) == (Status.OK, ())
    back = work / f"back-{directory.name}-{len(list(work.iterdir()))}"
    restore(lake, "store-1", back, files_only=True)
    for path in segments:
        assert (back / "commitlog" / path.name).read_bytes() == path.read_bytes()


@contextmanager
def old_release() -> Iterator[None]:
    """A release that knows of no marks: it goes on over an older catalog and writes none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "mark_fault", lambda *_: "")
        patch.setattr("storage_engine.lake.archive.commit_retries.mark_commits", lambda _lake: None)
        patch.setattr("storage_engine.lake.archive.commit_retries._is_up_to_date", lambda _lake, _table: True)
        yield
