"""Fixture stores that a real broker wrote, with what the broker's own classes read from them."""

from __future__ import annotations

import atexit
import gc
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from storage_engine.core.extras import QUALITY
from storage_engine.core.turns import waiting_at_most
from tests.extras import take_away
from tests.fixture_stores import FIXTURES, unpack
from tests.rounds import ALL
from tests.services.released import Released, released_package
from tests.spread import spread

LONGEST_FIRST = (
    "keeping/test_histories_of_rules",
    "keeping/test_year",
    "airflow/test_dag_runs",
    "retention/test_kill",
    "lake/archive/test_sharing",
    "spark/test_jobs",
    "spark/test_table",
    "integration/test_serve_lake",
    "cli/test_decisions",
    "lake/gc/test_segment_expiry",
    "spark/test_lake_jobs",
    "airflow/test_lineage",
    "cli/lake/test_expire",
    "retention/store/test_stamp",
    "retention/release/test_releasing",
    "integration/test_hold_live",
    "compatibility/test_released",
    "retention/ranges/test_recording_deletions",
    "integration/test_release_live",
    "integration/test_object_store",
    "kafka/stopped/test_left_overs",
    "airflow/test_console_routes",
    "retention/quarantine/test_emptying",
    "integration/test_live_faults",
    "integration/test_command_line_live",
    "cli/test_side_by_side",
    "kafka/test_stopped_kill",
    "quality/test_validate",
    "integration/test_secured",
    "integration/test_remoting",
    "integration/test_fence_live",
    "integration/test_shield_live",
)
"""Files that take most of make test's time, begun first: what is begun last is what everybody waits for."""

# How long an example takes is the machine's load, not the code's fault.
settings.register_profile("all", deadline=None)
settings.register_profile("few", max_examples=20, deadline=None)
settings.load_profile("all" if ALL else "few")

SHARED_MEMORY = Path("/dev/shm")

# Whose machine it is may have stores by name.
os.environ["STORAGE_ENGINE_STORES"] = ""

StoreCopy = Callable[[str], Path]
GroundTruth = Callable[[str, str], Any]


def pytest_report_header() -> str:
    return "rounds: all" if ALL else "rounds: a few; make test-all does all"


def ended(process: subprocess.Popen[bytes]) -> None:
    """Let a run that was interrupted leave nothing behind."""
    process.kill()
    process.wait()


# What is imported and collected stays to the end: to look for garbage in it takes a sixth of the processor.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Compile the kernels while the workers collect: each of them would need 20 seconds for it."""
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        compiling = subprocess.Popen([sys.executable, "-m", "tests.compile_kernels"], cwd=config.rootpath)
        config.add_cleanup(lambda: ended(compiling))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files; the order within a file stays. What is marked again is for all rounds."""
    left_out = [item for item in items if not ALL and item.get_closest_marker("again")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("again")]
    ranks = {f"tests/{name}.py": rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_collection_finish() -> None:
    """Leave everything collected out of garbage collections, which begin here."""
    gc.freeze()
    # A test makes much and ends soon: garbage is looked for a tenth as often.
    gc.set_threshold(7_000, 10, 10)
    gc.enable()
    # To look through all of it for what pytest warns of takes seconds; the interpreter's own end needs it.
    atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True)
def no_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test waits for no other run, unless it says so: it ends that run itself."""
    monkeypatch.setenv("STORAGE_ENGINE_WAIT", "0")
    with waiting_at_most(0):
        yield


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let validations judge by the rules alone, in a tenth of the time that Great Expectations takes."""
    take_away(monkeypatch, QUALITY)


@pytest.fixture(scope="session", autouse=True)
def spread_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the directories of tests apart on the disk."""
    spread(tmp_path_factory.getbasetemp())


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Keep what one test makes and removes in many rounds apart on the disk."""
    spread(tmp_path)
    return tmp_path


@pytest.fixture
def store_copy(tmp_path: Path) -> StoreCopy:
    """Copy a fixture store without its timer wheel; returns its root. Each copy is fresh and writable."""

    def copy(name: str) -> Path:
        return unpack(name, tmp_path / "stores" / f"{name}-{len(list(tmp_path.glob('stores/*')))}")

    return copy


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory of another file system than that of temporary files."""
    if not SHARED_MEMORY.is_dir() or SHARED_MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system: /dev/shm isn't there, or temporary files lie on it")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def ground_truth() -> GroundTruth:
    """Read what the broker's own classes say of a fixture store."""

    def read(name: str, kind: str) -> Any:
        if kind == "checkpoint":
            return json.loads((FIXTURES / f"{name}.checkpoint.json").read_text())
        with gzip.open(FIXTURES / f"{name}.{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read


@pytest.fixture(scope="session")
def released(pytestconfig: pytest.Config) -> Iterator[Released]:
    """The package whose lakes have no UUID and whose receipts have absolute names."""
    assert pytestconfig.cache is not None
    with released_package("before-lake-uuid", pytestconfig.cache.mkdir("releases")) as package:
        yield package


@pytest.fixture(scope="session")
def before_the_seam(pytestconfig: pytest.Config) -> Iterator[Released]:
    """The package whose plans had one log."""
    assert pytestconfig.cache is not None
    with released_package("before-the-seam", pytestconfig.cache.mkdir("releases")) as package:
        yield package


@pytest.fixture(scope="session")
def before_trees(pytestconfig: pytest.Config) -> Iterator[Released]:
    """The package whose receipts had no root; it is asked for its commands alone."""
    assert pytestconfig.cache is not None
    with released_package("before-trees", pytestconfig.cache.mkdir("releases")) as package:
        yield package
