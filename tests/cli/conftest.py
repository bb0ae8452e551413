"""Running the command line as its user does, and looking at what it left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from tests.fixture_stores import file_sha256
from tests.fixture_stores import unpack as unpack_store
from tests.services.command_line import Outcome, run_command

LONG_AGO_NS = time.time_ns() - 30 * 24 * 3600 * 10**9


@dataclass(frozen=True)
class Archived:
    """A store whose sealed segments are in a lake; nobody may change either."""

    store: Path
    lake: Path


Cli = Callable[..., Outcome]
Files = Callable[..., dict[str, tuple[int, int, str]]]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Call the command line with these words; its output and exit code come back."""
    return run_command


@pytest.fixture(scope="session")
def files() -> Files:
    """Files, and every file below directories but our own stamp's: size, mtime and SHA-256 by path."""

    def look(*paths: Path) -> dict[str, tuple[int, int, str]]:
        found = {}
        for path in (below for given in paths for below in (given, *sorted(given.rglob("*")))):
            if path.is_file() and path.parent.name != DIRECTORY:
                stat = path.stat()
                found[str(path)] = (stat.st_size, stat.st_mtime_ns, file_sha256(path))
        return found

    return look


@pytest.fixture(scope="session")
def unpack() -> Callable[[str, Path], Path]:
    """Unpack a fixture store without its timer wheel below a directory; returns its root."""
    return unpack_store


@pytest.fixture(scope="session")
def expire() -> Callable[[Path], None]:
    """Make every segment of a store older than any fileReservedTime in these tests."""

    def make_old(store: Path) -> None:
        for directory in ("commitlog", "cl1", "cl2"):
            for path in (store / directory).glob("*"):
                os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))

    return make_old


@pytest.fixture(scope="session")
def archived(
    tmp_path_factory: pytest.TempPathFactory, unpack: Callable[[str, Path], Path], files: Files
) -> Iterator[Archived]:
    """clean-stop, archived once for all tests that only look."""
    base = tmp_path_factory.mktemp("archived")
    store, lake = unpack("clean-stop", base), base / "lake"
    make_lake(LakeConfig.local(lake))
    outcome = run_command("archive", store, "--lake", lake)
    assert outcome.exit_code == 0, outcome.err
    before = files(store, lake / "warehouse", lake / "catalog.db")
    yield Archived(store, lake)
    assert files(store, lake / "warehouse", lake / "catalog.db") == before


@pytest.fixture
def store(store_copy: Callable[[str], Path], expire: Callable[[Path], None]) -> Path:
    """edge-frames, expired: two segments that may go, one that is active."""
    root = store_copy("edge-frames")
    expire(root)
    return root


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """An empty lake."""
    make_lake(LakeConfig.local(tmp_path / "lake"))
    return tmp_path / "lake"
