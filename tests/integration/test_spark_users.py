"""A cluster whose executors run as another user than the driver, by a Python at another path."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import LakeUnavailableError, StorageEngineError, StoreNotFoundError
from storage_engine.lake.archive.archive import segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.project.up import unpack_sample_store
from storage_engine.retention.lag.lag_table import read_lag_table
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult
from storage_engine.spark.consumer_lag import ConsumerLagRequest, ConsumerLagResult, lag_without_spark
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_settings
from tests.integration.spark_cluster import CLUSTER_SETTINGS, standalone
from tests.services.restoring import restore

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
DRIVER, EXECUTORS, GROUP = "daemon", "nobody", "users"
"""Users and a group that every Linux has: Java runs as nobody whose name it can't look up."""

SEGMENT_BYTES = 1 << 20
NOW_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Place:
    """A directory in which everybody may look about, with an interpreter for everybody."""

    directory: Path

    @classmethod
    def make(cls, directory: Path) -> Place:
        directory.chmod(0o755)
        for name in ("home", "python", "cluster"):
            (directory / name).mkdir()
            (directory / name).chmod(0o777)
        place, home = cls(directory), directory / "jobs"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        base = directory / "python" / "bin" / f"python3.{sys.version_info.minor}"
        place.python.unlink()
        place.python.symlink_to(base)
        (home / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
        (packages,) = home.glob("lib/python*/site-packages")
        (packages / "jobs.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
        return place

    @property
    def python(self) -> Path:
        return self.directory / "jobs" / "bin" / "python"

    def as_user(self, user: str) -> tuple[str, ...]:
        """Return words that run a command as a user: this interpreter may lie where root alone looks."""
        script = (
            'mount --bind "$0" "$1" && export HOME="$2" LD_LIBRARY_PATH="$1/lib" '
            '&& shift 2 && exec setpriv "$@"'
        )
        places = (sys.base_prefix, str(self.directory / "python"), str(self.directory / "home"))
        identity = (f"--reuid={user}", f"--regid={GROUP}", "--clear-groups")
        return ("unshare", "-m", "sh", "-c", script, *places, *identity)


@dataclass(frozen=True)
class Cluster:
    """Two workers of one user."""

    url: str
    place: Place

    def archive(self, directory: Path, request: ArchiveRequest) -> ArchiveResult:
        result: ArchiveResult = self.submit(directory, "archive_segments.py", request, ArchiveResult)
        return result

    def submit(self, directory: Path, job: str, request: Any, kind: type[Any]) -> Any:
        """Submit a job as the driver's user."""
        asked, answered = directory / "request.json", directory / "result.json"
        write_request(asked, request)
        python = str(self.place.python)
        settings = {**spark_settings(self.url), **CLUSTER_SETTINGS, "spark.pyspark.python": python}
        environment = {**os.environ, **spark_environment(self.url, python=python)}
        command = [
            *self.place.as_user(DRIVER),
            str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"),
            *("--master", self.url),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *map(str, (ROOT / "spark_jobs" / job, asked, answered)),
        ]
        subprocess.run(command, env=environment, cwd=directory, check=False)
        return read_result(answered, asked, kind)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.fail("this test runs processes as other users: run it as root with CAP_SYS_ADMIN")
    with tempfile.TemporaryDirectory(prefix="spark-users-") as name, pytest.MonkeyPatch.context() as patch:
        place = Place.make(Path(name))
        # The script that starts the bundled Java has to be for everybody.
        patch.setenv("XDG_CACHE_HOME", str(place.directory / "cache"))
        # What keeps tests from waiting for the disk may lie where root alone looks.
        patch.delenv("LD_PRELOAD", raising=False)
        with standalone(place.directory / "cluster", [place.as_user(EXECUTORS)] * 2) as url:
            yield Cluster(url, place)


@dataclass(frozen=True)
class Work:
    """A store of two segments and a lake, both the driver's."""

    directory: Path
    lake: Lake
    segments: tuple[Path, ...]

    @classmethod
    def make(cls, directory: Path, lake_mode: int) -> Work:
        commitlog, lake_directory = directory / "store" / "commitlog", directory / "lake"
        commitlog.mkdir(parents=True)
        lake_directory.mkdir()
        segments = tuple(commitlog / f"{number * SEGMENT_BYTES:020d}" for number in range(2))
        for path in segments:
            path.write_bytes(random.Random(path.name).randbytes(SEGMENT_BYTES))
            path.chmod(0o644)
        for path in (directory, lake_directory, *segments):
            shutil.chown(path, DRIVER, GROUP)
        lake_directory.chmod(lake_mode)
        return cls(directory, make_lake(LakeConfig.local(lake_directory)), segments)

    @property
    def data_directory(self) -> Path:
        location = local_path(self.lake.messages().location())
        assert location is not None
        return location / "data" / "store_id=s"

    @property
    def request(self) -> ArchiveRequest:
        chosen = [
            Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in self.segments
        ]
        root = str(self.directory / "store")
        identity = {"store_id": "s", "lineage": 0, "broker": "rocketmq", "store_root": root}
        return ArchiveRequest(
            segment_jobs(self.lake, chosen, **identity, accept_damage=True)  # type: ignore[arg-type]
        )


def test_executors_of_another_user_archive_into_a_lake_of_a_group_of_both(cluster: Cluster) -> None:
    work = Work.make(cluster.place.directory / "group", 0o2770)
    done = cluster.archive(work.directory, work.request)
    assert done.receipts == receipts(work.lake, "s")
    assert {path.owner() for path in work.data_directory.iterdir()} == {EXECUTORS}
    restored = restore(work.lake, "s", work.directory / "restored", files_only=True)
    assert [Path(r.path).read_bytes() for r in restored] == [path.read_bytes() for path in work.segments]
    assert collect(work.lake, grace_ms=0, delete=False).garbage == ()


def test_executors_of_another_user_measure_lag_beside_reports_of_a_group_of_both(cluster: Cluster) -> None:
    directory = cluster.place.directory / "lag"
    reports = directory / "reports"
    reports.mkdir(parents=True)
    sample = unpack_sample_store(directory)
    subprocess.run(["chmod", "--recursive", "a+rX", directory], check=True)
    for path in (directory, reports):
        shutil.chown(path, DRIVER, GROUP)
    reports.chmod(0o2770)
    settings = StoreSettings(str(sample.root), str(sample.broker_conf))
    request = ConsumerLagRequest(settings, str(reports / "table"), now_ms=NOW_MS)
    done = cluster.submit(directory, "consumer_lag.py", request, ConsumerLagResult)
    here = lag_without_spark(replace(request, table_path=str(directory / "here")), None)
    assert here is not None
    assert done.summary == here.summary
    assert read_lag_table(reports / "table").num_rows == done.summary.queues


@pytest.mark.parametrize(
    ("name", "error", "named"),
    [
        ("read-only", LakeUnavailableError, rf"can't write a file on host \S+ as user {EXECUTORS}: "),
        ("sticky", LakeUnavailableError, f"user {DRIVER} can't publish a file of user {EXECUTORS}: "),
        ("store", StoreNotFoundError, f"may not read it as user {EXECUTORS}"),
    ],
)
def test_what_executors_of_another_user_may_not_do_is_named_and_nothing_is_committed(
    cluster: Cluster, name: str, error: type[StorageEngineError], named: str
) -> None:
    work = Work.make(cluster.place.directory / name, 0o2750 if name == "read-only" else 0o2770)
    if name == "sticky":
        work.data_directory.mkdir(parents=True)
        for path in (work.data_directory.parent, work.data_directory):
            shutil.chown(path, DRIVER, GROUP)
            path.chmod(0o3770)
    if name == "store":
        for path in work.segments:
            path.chmod(0o600)
    with pytest.raises(error, match=named):
        cluster.archive(work.directory, work.request)
    assert receipts(work.lake, "s") == ()
    assert [path for path in work.data_directory.iterdir() if path.is_file()] == []
