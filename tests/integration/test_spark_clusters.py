"""Whatever Spark runs on, and whatever dies in it: each segment is in the table once, and nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from storage_engine.exceptions import LakeUnavailableError, StoreNotFoundError
from storage_engine.lake.archive import archive_all, segment_jobs
from storage_engine.lake.catalog import Lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.garbage import collect
from storage_engine.lake.garbage_rule import GarbageKind
from storage_engine.lake.jobs import SegmentJob
from storage_engine.lake.making import make_lake
from storage_engine.lake.names import data_file_of
from storage_engine.lake.receipts import receipts
from storage_engine.lake.restore import restore
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.spark.archive_segments import archive_segments
from storage_engine.spark.session import spark_session
from tests.integration.spark_cluster import CLUSTER_SETTINGS, processes, standalone, wait_until
from tests.rounds import rounds, some

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
SEGMENT_BYTES = 8 << 20
PYTHON_WORKER = "storage_engine.spark.python_daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture(autouse=True)
def _this_python_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's workers run the Python that the driver's environment names."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(LakeConfig.local(tmp_path / "lake"))


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Segments that take a while: no byte of them decodes, and none compresses."""
    directory = tmp_path_factory.mktemp("store") / "commitlog"
    directory.mkdir()
    randomness = random.Random(4)
    paths = [directory / f"{number * SEGMENT_BYTES:020d}" for number in range(6)]
    for path in paths:
        path.write_bytes(randomness.randbytes(SEGMENT_BYTES))
    return paths


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master with two workers."""
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def _jobs(lake: Lake, paths: list[Path]) -> tuple[SegmentJob, ...]:
    chosen = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    root = str(paths[0].parents[1])
    identity = {"store_id": "store-1", "lineage": 0, "broker": "rocketmq", "store_root": root}
    return segment_jobs(lake, chosen, **identity, accept_damage=True)  # type: ignore[arg-type]


def _proof(receipt: Receipt) -> dict[str, Any]:
    """A receipt without where its lake is, when it was proven, and what follows from that."""
    unlike = {"proven_at_ms", "previous_hash", "row_hash", "data_file"}
    fields = {name: value for name, value in asdict(receipt).items() if name not in unlike}
    return {**fields, "data_file": Path(receipt.data_file).name}


def _assert_each_is_there_once(lake: Lake, paths: list[Path], target: Path) -> None:
    rows = receipts(lake, "store-1")
    assert [row.base_offset for row in rows] == [int(path.name) for path in paths]
    live = [task.file.file_path for task in lake.messages().scan().plan_files()]
    assert sorted(live) == sorted(data_file_of(lake.messages(), row) for row in rows)
    restored = restore(lake, "store-1", target)
    assert [Path(r.path).read_bytes() for r in restored] == [path.read_bytes() for path in paths]


def _assert_nothing_is_left_but_garbage(lake: Lake) -> None:
    """Every file below the tables is needed, or found and taken by the collector."""
    found = collect(lake, grace_ms=0, delete=True)
    assert found.taken == found.garbage
    assert (found.orphans, found.unknown) == ((), ())
    assert collect(lake, grace_ms=0, delete=False).garbage == ()


def _partials(lake: Lake) -> list[Path]:
    root = local_path(lake.messages().location())
    assert root is not None
    return [path for path in root.rglob("*.partial") if not path.name.startswith("probe.")]


@contextmanager
def _meanwhile(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Do something in another thread while the block runs; its error is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield errors
    thread.join()
    if errors:
        raise errors[0]


def test_every_kind_of_cluster_makes_the_same_table(
    cluster: str, segments: list[Path], tmp_path: Path
) -> None:
    proofs, tables = [], []
    for number, master in enumerate(("local[2]", LOCAL_CLUSTER, cluster)):
        lake = make_lake(LakeConfig.local(tmp_path / f"lake-{number}"))
        with spark_session("test clusters", master, CLUSTER_SETTINGS) as spark:
            rows = archive_segments(spark, _jobs(lake, segments))
        assert rows == receipts(lake, "store-1")
        proofs.append([_proof(row) for row in rows])
        tables.append(lake.messages().scan().to_arrow().sort_by("physical_offset"))
    assert proofs[0] == proofs[1] == proofs[2]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


@pytest.mark.parametrize("_round", range(rounds("STORAGE_ENGINE_CLUSTER_ROUNDS", 1, 5)))
@pytest.mark.parametrize("victim", [PYTHON_WORKER, EXECUTOR])
def test_a_task_whose_process_is_killed_is_done_again(
    victim: str, _round: int, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    def kill() -> None:
        wait_until(lambda: _partials(lake), "a data file that is being written")
        # The last of the family of daemon and workers is at work on a task.
        processes(victim)[-1].kill()

    with spark_session("test kill", LOCAL_CLUSTER, CLUSTER_SETTINGS) as spark:
        with _meanwhile(kill):
            archive_segments(spark, _jobs(lake, segments))
        _assert_each_is_there_once(lake, segments, tmp_path / "restored")
    _assert_nothing_is_left_but_garbage(lake)


def test_a_task_that_hangs_gets_a_twin_and_its_segment_is_there_once(
    cluster: str, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    stopped: list[psutil.Process] = []

    def stop() -> None:
        wait_until(lambda: _partials(lake), "a data file that is being written")
        executor = processes(EXECUTOR)[0]
        stopped.extend(processes(PYTHON_WORKER, root=executor))
        for process in stopped:
            process.suspend()

    settings = {
        **CLUSTER_SETTINGS,
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    with spark_session("test twin", cluster, settings) as spark:
        with _meanwhile(stop):
            archive_segments(spark, _jobs(lake, segments))
        assert stopped
        _assert_each_is_there_once(lake, segments, tmp_path / "restored")
        for process in stopped:
            process.kill()
    _assert_nothing_is_left_but_garbage(lake)


DRIVER = """
import os, signal, sys
from pathlib import Path
from storage_engine.lake import commit
from storage_engine.spark.archive_segments import ArchiveRequest, archive_segments
from storage_engine.spark.job_io import read_request
from storage_engine.spark.session import spark_session

setattr(commit, sys.argv[2], lambda *_: os.kill(os.getpid(), signal.SIGKILL))
with spark_session("test killed driver") as spark:
    archive_segments(spark, read_request(Path(sys.argv[1]), ArchiveRequest).jobs)
"""


DEATHS = [
    ("prepare_data", {GarbageKind.STAGED, GarbageKind.DATA_FILE}),
    ("prepare_receipts", {GarbageKind.STAGED}),
    ("publish", {GarbageKind.STAGED}),
    ("sweep", {GarbageKind.STAGED}),
]
"""Where a driver dies, and what garbage that leaves."""


@pytest.mark.parametrize(("dies_at", "expected"), some(DEATHS, 2))
def test_a_driver_killed_before_amid_or_after_the_commit_leaves_what_the_next_run_finishes(
    dies_at: str, expected: set[GarbageKind], lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    from storage_engine.spark.archive_segments import ArchiveRequest
    from storage_engine.spark.job_io import write_request

    jobs = _jobs(lake, segments[:2])
    write_request(tmp_path / "request.json", ArchiveRequest(jobs))
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "request.json"), dies_at], timeout=300, check=False
    )
    assert driver.returncode == -signal.SIGKILL
    found = collect(lake, grace_ms=0, delete=False)
    assert {file.kind for file in (*found.garbage, *found.orphans)} == expected
    archive_all(lake, jobs)
    _assert_each_is_there_once(lake, segments[:2], tmp_path / "restored")
    _assert_nothing_is_left_but_garbage(lake)


def test_an_executor_that_sees_another_file_system_is_named_before_work_starts(
    lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.fail("this test gives a Spark worker mounts of its own: run it as root with CAP_SYS_ADMIN")
    hide = 'mount -t tmpfs none "$0" && mount -t tmpfs none "$1" && shift && exec "$@"'
    hidden = (str(segments[0].parent), str(tmp_path / "lake" / "warehouse"))
    seen = tmp_path / "seen" / "commitlog" / segments[0].name
    seen.parent.mkdir(parents=True)
    shutil.copy(segments[0], seen)
    host = f"the executor on host {socket.gethostname()}"
    with (
        standalone(tmp_path, [("unshare", "-m", "sh", "-c", hide, *hidden)]) as url,
        spark_session("test blind", url, CLUSTER_SETTINGS) as spark,
    ):
        with pytest.raises(StoreNotFoundError, match=f"{segments[0].parent}/.*{host} finds none there"):
            archive_segments(spark, _jobs(lake, segments))
        with pytest.raises(LakeUnavailableError, match=f"{host} doesn't see it"):
            archive_segments(spark, _jobs(lake, [seen]))
    assert receipts(lake, "store-1") == ()
    assert _partials(lake) == []
