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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from storage_engine.exceptions import LakeUnavailableError, StoreNotFoundError
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.gc.garbage_kind import GarbageKind
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.spark.archive_segments import ArchiveRequest, archive_segments
from storage_engine.spark.job_io import write_request
from storage_engine.spark.session import spark_session
from tests.integration.spark_cluster import (
    CLUSTER_SETTINGS,
    PATIENCE_SECONDS,
    processes,
    standalone,
    wait_until,
)
from tests.rounds import rounds
from tests.services.restoring import restore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LOCAL_CLUSTER = "local-cluster[2,1,1024]"
SEGMENT_BYTES = 4 << 20
PYTHON_WORKER = "storage_engine.spark.python_daemon"
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "org.apache.spark.deploy.worker.Worker"


@pytest.fixture(scope="module", autouse=True)
def _this_python_everywhere() -> Iterator[None]:
    """A cluster's workers run the Python that the driver's environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield


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


def _jobs(lake: Lake, paths: list[Path]) -> tuple[SegmentJob, ...]:
    chosen = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    root = str(paths[0].parents[1])
    identity = {"store_id": "store-1", "lineage": 0, "broker": "rocketmq", "store_root": root}
    return segment_jobs(lake, chosen, **identity, accept_damage=True)  # type: ignore[arg-type]


def _proof(receipt: Receipt) -> dict[str, Any]:
    """A receipt without its lake, when it was proven, its random key, and what follows from these."""
    unlike = {"proven_at_ms", "previous_hash", "row_hash", "data_file", "data_file_sha256", "root"}
    fields = {name: value for name, value in asdict(receipt).items() if name not in unlike}
    return {**fields, "data_file": Path(receipt.data_file).name}


@dataclass(frozen=True)
class Made:
    """What does not depend on the Spark that archived: the proofs and the rows."""

    proofs: list[dict[str, Any]]
    rows: pa.Table

    @classmethod
    def of(cls, lake: Lake) -> Made:
        proofs = [_proof(row) for row in receipts(lake, "store-1")]
        rows = lake.messages().scan().to_arrow().sort_by("physical_offset")
        return cls(proofs, rows.drop_columns("leaf_key"))


def _assert_each_is_there_once(lake: Lake, paths: list[Path], target: Path) -> None:
    rows = receipts(lake, "store-1")
    assert [row.base_offset for row in rows] == [int(path.name) for path in paths]
    live = [task.file.file_path for task in lake.messages().scan().plan_files()]
    assert sorted(live) == sorted(data_file_of(lake.messages(), row) for row in rows)
    restored = restore(lake, "store-1", target, files_only=True)
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


def _wait_until_idle(spark: SparkSession) -> None:
    """Wait until no attempt at a task goes on, of those either whose result is not needed any more."""
    tracker = spark.sparkContext._jsc.sc().statusTracker()  # type: ignore[union-attr]
    wait_until(
        lambda: not any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()),
        "every attempt to end",
    )


DRIVER = """
import os, signal, sys
from storage_engine.lake.archive import commit
from storage_engine.spark.archive_segments import ArchiveRequest, archive_segments
from storage_engine.spark.job_io import read_request
from storage_engine.spark.session import spark_session

whole, cut, dies_at = sys.argv[1:]
with spark_session("test killed driver") as spark:
    archive_segments(spark, read_request(whole, ArchiveRequest).jobs)
    setattr(commit, dies_at, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    archive_segments(spark, read_request(cut, ArchiveRequest).jobs)
"""


DEATHS = [
    ("prepare_data", {GarbageKind.STAGED, GarbageKind.DATA_FILE}),
    ("prepare_receipts", {GarbageKind.STAGED}),
    ("publish", {GarbageKind.STAGED}),
    ("sweep", {GarbageKind.STAGED}),
]
"""Where a driver dies, and what garbage that leaves."""


class KilledDriver:
    """A driver of local[2] that archived into one lake, and was killed while it archived into another."""

    def __init__(self, dies_at: str, segments: list[Path], work: Path) -> None:
        self.whole, self.cut = (make_lake(LakeConfig.local(work / name)) for name in ("whole", "cut"))
        self.jobs = _jobs(self.cut, segments[:2])
        requests = [work / "whole.json", work / "cut.json"]
        for request, jobs in zip(requests, (_jobs(self.whole, segments), self.jobs), strict=True):
            write_request(request, ArchiveRequest(jobs))
        command = [sys.executable, "-c", DRIVER, *map(str, requests), dies_at]
        self.status = subprocess.run(command, timeout=300, check=False).returncode


@pytest.fixture(scope="module")
def drivers(segments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, KilledDriver]:
    """By where they died."""
    return {place: KilledDriver(place, segments, tmp_path_factory.mktemp(place)) for place, _ in DEATHS}


@pytest.fixture(scope="module")
def made_locally(segments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What this process makes, and every kind of cluster has to make as well."""
    lake = make_lake(LakeConfig.local(tmp_path_factory.mktemp("local") / "lake"))
    archive_all(lake, _jobs(lake, segments))
    return Made.of(lake)


@pytest.mark.again
@pytest.mark.parametrize(("dies_at", "expected"), DEATHS)
def test_a_driver_killed_before_amid_or_after_the_commit_leaves_what_the_next_run_finishes(
    dies_at: str,
    expected: set[GarbageKind],
    drivers: dict[str, KilledDriver],
    made_locally: Made,
    segments: list[Path],
    tmp_path: Path,
) -> None:
    driver = drivers[dies_at]
    assert driver.status == -signal.SIGKILL
    assert Made.of(driver.whole) == made_locally
    _assert_each_is_there_once(driver.whole, segments, tmp_path / "whole")
    lake = driver.cut
    found = collect(lake, grace_ms=0, delete=False)
    assert {file.kind for file in (*found.garbage, *found.orphans)} == expected
    archive_all(lake, driver.jobs)
    _assert_each_is_there_once(lake, segments[:2], tmp_path / "restored")
    _assert_nothing_is_left_but_garbage(lake)


def _killed_amid_a_task(
    victim: str, spark: SparkSession, made_locally: Made, lake: Lake, segments: list[Path], target: Path
) -> None:
    """Kill a process of the cluster while it writes a data file: the work is done again, and is the same."""
    killed: list[psutil.Process] = []

    def kill() -> None:
        wait_until(lambda: _partials(lake), "a data file that is being written")
        # The last of the family of daemon and workers is at work on a task.
        process = processes(victim)[-1]
        killed.extend((process, *process.children(recursive=True)))
        process.kill()

    with _meanwhile(kill):
        archive_segments(spark, _jobs(lake, segments))
    _assert_each_is_there_once(lake, segments, target)
    assert Made.of(lake) == made_locally
    assert psutil.wait_procs(killed, timeout=PATIENCE_SECONDS)[1] == []
    _wait_until_idle(spark)
    _assert_nothing_is_left_but_garbage(lake)


KILLS = pytest.mark.parametrize("victim", [PYTHON_WORKER, EXECUTOR])


@pytest.mark.again
class TestLocalCluster:
    """Two executors that the driver starts."""

    @pytest.fixture(scope="class")
    @classmethod
    def spark(cls, made_locally: Made) -> Iterator[SparkSession]:
        with spark_session("test kill", LOCAL_CLUSTER, CLUSTER_SETTINGS) as session:
            yield session

    @pytest.mark.parametrize("_round", range(rounds("STORAGE_ENGINE_CLUSTER_ROUNDS", 1, 5)))
    @KILLS
    def test_a_task_whose_process_is_killed_is_done_again_and_the_table_is_the_same(
        self,
        victim: str,
        _round: int,
        spark: SparkSession,
        made_locally: Made,
        lake: Lake,
        segments: list[Path],
        tmp_path: Path,
    ) -> None:
        _killed_amid_a_task(victim, spark, made_locally, lake, segments, tmp_path / "restored")


@pytest.mark.again
class TestStandalone:
    """A master with two workers, one of which doesn't see a certain store and lake."""

    @pytest.fixture(scope="class")
    @classmethod
    def hidden(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Where that store and lake are."""
        directory = tmp_path_factory.mktemp("hidden")
        (directory / "store" / "commitlog").mkdir(parents=True)
        make_lake(LakeConfig.local(directory / "lake"))
        return directory

    @pytest.fixture(scope="class")
    @classmethod
    def spark(
        cls, made_locally: Made, hidden: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[SparkSession]:
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.fail("this test gives a Spark worker mounts of its own: run it as root with CAP_SYS_ADMIN")
        hide = 'mount -t tmpfs none "$0" && mount -t tmpfs none "$1" && shift && exec "$@"'
        places = (str(hidden / "store" / "commitlog"), str(hidden / "lake" / "warehouse"))
        settings = {
            **CLUSTER_SETTINGS,
            # A job begins when both executors are there.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_SECONDS}s",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "100ms",
        }
        workers = [("unshare", "-m", "sh", "-c", hide, *places), ()]
        with (
            standalone(tmp_path_factory.mktemp("cluster"), workers) as url,
            spark_session("test clusters", url, settings) as session,
        ):
            yield session

    def test_an_executor_that_sees_another_file_system_is_named_before_work_starts(
        self, spark: SparkSession, hidden: Path, segments: list[Path], tmp_path: Path
    ) -> None:
        lake = open_lake(LakeConfig.local(hidden / "lake"))
        unseen, seen = (
            directory / "commitlog" / segments[0].name for directory in (hidden / "store", tmp_path / "seen")
        )
        seen.parent.mkdir(parents=True)
        for path in (unseen, seen):
            shutil.copy(segments[0], path)
        host = f"the executor on host {socket.gethostname()}"
        with pytest.raises(StoreNotFoundError, match=f"{unseen.parent}/.*{host} finds no file there"):
            archive_segments(spark, _jobs(lake, [unseen]))
        with pytest.raises(LakeUnavailableError, match=f"{host} doesn't see it"):
            archive_segments(spark, _jobs(lake, [seen]))
        assert receipts(lake, "store-1") == ()
        assert _partials(lake) == []

    def test_a_task_that_hangs_gets_a_twin_and_the_table_is_the_same(
        self, spark: SparkSession, made_locally: Made, lake: Lake, segments: list[Path], tmp_path: Path
    ) -> None:
        stopped: list[psutil.Process] = []

        def stop() -> None:
            wait_until(lambda: _partials(lake), "a data file that is being written")
            executor = processes(EXECUTOR)[0]
            stopped.extend(processes(PYTHON_WORKER, root=executor))
            for process in stopped:
                process.suspend()

        with _meanwhile(stop):
            archive_segments(spark, _jobs(lake, segments))
        assert stopped
        _assert_each_is_there_once(lake, segments, tmp_path / "restored")
        assert Made.of(lake) == made_locally
        for process in stopped:
            process.kill()
        _wait_until_idle(spark)
        _assert_nothing_is_left_but_garbage(lake)

    # Of two workers the last of these leaves one.
    @pytest.mark.parametrize("victim", [PYTHON_WORKER, EXECUTOR, WORKER])
    def test_a_task_whose_process_is_killed_is_done_again_and_the_table_is_the_same(
        self,
        victim: str,
        spark: SparkSession,
        made_locally: Made,
        lake: Lake,
        segments: list[Path],
        tmp_path: Path,
    ) -> None:
        _killed_amid_a_task(victim, spark, made_locally, lake, segments, tmp_path / "restored")


@pytest.mark.again
class TestDynamicAllocation:
    """A master with two workers, whose executors come when there are tasks, and go when there are none."""

    @pytest.fixture(scope="class")
    @classmethod
    def spark(cls, made_locally: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
        settings = {
            **CLUSTER_SETTINGS,
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.dynamicAllocation.initialExecutors": "0",
            "spark.dynamicAllocation.executorIdleTimeout": "1s",
            "spark.executor.cores": "1",
        }
        with (
            standalone(tmp_path_factory.mktemp("cluster")) as url,
            spark_session("test allocation", url, settings) as session,
        ):
            yield session

    def test_executors_that_come_and_go_make_the_same_table(
        self, spark: SparkSession, made_locally: Made, lake: Lake, segments: list[Path], tmp_path: Path
    ) -> None:
        for some in (segments[:2], segments[2:]):
            wait_until(lambda: not processes(EXECUTOR), "all executors to go")
            archive_segments(spark, _jobs(lake, some))
        _assert_each_is_there_once(lake, segments, tmp_path / "restored")
        assert Made.of(lake) == made_locally
        _assert_nothing_is_left_but_garbage(lake)
