"""Both jobs, and what every session promises, in one Spark; tests/integration has Sparks of other kinds.

The first test looks at how it starts, the last but one ends it.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from socket import gethostname
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from demo.spark import count_stages, event_log_conf
from storage_engine.arrow.name_columns import ANYWHERE, PLACES_SCHEMA, SEGMENTS_SCHEMA, add_risk
from storage_engine.brokers import find_broker
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.turns import has_shared_lock
from storage_engine.exceptions import (
    AgentError,
    BadInputError,
    CorruptFrameError,
    LakeUnavailableError,
    SparkJobError,
    StoreLayoutError,
    StoreNotFoundError,
)
from storage_engine.lake.archive.archive import segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.agent_files import PLAIN, run_of
from storage_engine.lake.file.jobs import AgentAccess, AgentRun, SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.kind import LagRequest
from storage_engine.model.keep.keep_rules import ArchiveRule, Scope
from storage_engine.model.lag import QueueLag
from storage_engine.model.proof.receipt import PARTIAL
from storage_engine.model.store import FileFacts, Segment, SegmentId, SegmentState
from storage_engine.retention.lag.lag_table import lag_part, merge, read_lag_table
from storage_engine.rocketmq import BROKER
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.spark.archive_segments import ArchiveRequest, archive_segments
from storage_engine.spark.consumer_lag import (
    ConsumerLagRequest,
    ConsumerLagResult,
    consumer_lag,
    join_segments,
    prepare,
)
from storage_engine.spark.job_io import read_result, run_job, write_request
from storage_engine.spark.python_daemon import DRIVER_VERSIONS, TASK_MODULE, versions
from storage_engine.spark.session import spark_session
from tests.archive_rules import permits_of
from tests.kafka_fixture import unpack as unpack_node
from tests.lake.agents import TOKEN, command, serving
from tests.lakes import path_of
from tests.services.command_line import run_command
from tests.services.lag import measured
from tests.services.restoring import restore
from tests.spark.leases import nobody_else_opens
from tests.spark.shared_spark import Around, SharedSpark, printing_to

ROOT = Path(__file__).parents[2]
LAG_JOB = ROOT / "spark_jobs" / "consumer_lag.py"
NOW_MS = 1_900_000_000_000
GOING = tuple(SegmentId(LOG, number << 20) for number in range(5))


SECRET = "object-secret-0001"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSpark]:
    work = tmp_path_factory.mktemp("spark")
    directory, events, printed = work / "directory", work / "events", work / "printed"
    for each in (directory, events):
        each.mkdir()
    settings = event_log_conf(events)
    around = Around.now()
    before = Path.cwd()
    with ExitStack() as stack:
        os.chdir(directory)
        try:
            with printing_to(printed):
                session = stack.enter_context(spark_session("test jobs", settings=settings))
        finally:
            os.chdir(before)
        yield SharedSpark(session, stack.close, around, directory, printed, events)


@pytest.fixture
def spark(shared: SharedSpark) -> Any:
    return shared.session


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(LakeConfig.local(tmp_path / "lake"))


@pytest.fixture
def segments(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    names = [f"{number << 20:020d}" for number in range(3)]
    with tarfile.open(ROOT / "tests" / "fixtures" / "rocketmq" / "clean-stop.tar.xz") as archive:
        for name in names:
            (directory / name).write_bytes(archive.extractfile(f"A/commitlog/{name}").read())
    return [directory / name for name in names]


def _jobs(lake: Lake, paths: list[Path]) -> tuple[SegmentJob, ...]:
    chosen = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    return segment_jobs(
        lake, chosen, store_id="store-1", lineage=0, broker="rocketmq", store_root=str(paths[0].parents[1])
    )


def _staged(lake: Lake) -> list[str]:
    root = local_path(lake.messages().location())
    assert root is not None
    return [path.name for path in root.rglob("*.partial")]


def _silent(printed: bytes) -> bool:
    return not printed.replace(b"WARNING: Using incubator modules: jdk.incubator.vector\n", b"")


@pytest.mark.integration
def test_session_works_quietly_on_loopback(shared: SharedSpark) -> None:
    spark = shared.session
    squares = spark.sparkContext.parallelize(range(10), 2).map(lambda number: (number**2, sys.executable))
    assert squares.collect() == [(number**2, sys.executable) for number in range(10)]
    assert spark.range(3).toArrow().column("id").to_pylist() == [0, 1, 2]
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None
    process = psutil.Process()
    listening = {
        connection.laddr.ip
        for each in {process, *process.children(recursive=True)} - shared.around.children
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    with pytest.raises(SparkJobError, match="no running Spark session"), spark_session("second"):
        pass
    assert spark.range(1).count() == 1
    assert _silent(shared.printed.read_bytes())


@pytest.mark.integration
def test_workers_start_with_what_tasks_import_and_read_no_archives(spark: Any) -> None:
    expected = {TASK_MODULE, *BROKER.rows.task_modules}

    def look(_: int) -> tuple[set[str], list[str]]:
        # What a path's archives are read with; each is read again before every task.
        archives = [key for key, found in sys.path_importer_cache.items() if "zip" in type(found).__name__]
        return expected & set(sys.modules), archives

    for loaded, archives in spark.sparkContext.parallelize(range(2), 2).map(look).collect():
        assert loaded == expected
        assert archives == []


@pytest.mark.integration
def test_tasks_of_rdds_and_of_dataframes_have_one_daemon(spark: Any) -> None:
    def daemon(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [os.getppid()]})

    (of_frames,) = spark.range(1).coalesce(1).mapInArrow(daemon, "daemon long").collect()
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect() == [of_frames.daemon]


@pytest.mark.integration
def test_segments_are_archived_by_tasks_and_committed_together(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    jobs = _jobs(lake, segments)
    rows = archive_segments(spark, jobs)
    assert [row.base_offset for row in rows] == [job.base_offset for job in jobs]
    assert rows == receipts(lake, "store-1")
    assert len(lake.messages().metadata.snapshots) == 1
    assert _staged(lake) == []
    restored = restore(lake, "store-1", tmp_path / "restored", files_only=True)
    assert [Path(s.path).read_bytes() for s in restored] == [path.read_bytes() for path in segments]
    assert archive_segments(spark, jobs) == rows
    assert archive_segments(spark, []) == ()


def executors_with_lock(directory: Path) -> set[int]:
    """Return the processes below this one, without it, that have our shared lock on a directory."""
    pids = (process.pid for process in psutil.Process().children(recursive=True))
    return {pid for pid in pids if has_shared_lock(pid, {str(directory)})}


def wait_for_executor(directory: Path, running: Future[Any]) -> None:
    deadline = time.monotonic() + 120
    while not executors_with_lock(directory):
        assert not running.done()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.integration
def test_tasks_leave_out_the_topics_that_rules_leave_out(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    permits = permits_of([ArchiveRule("a" * 64, Scope(topic="o*"), False, "anna", 0)])
    jobs = tuple(replace(job, permits=permits) for job in _jobs(lake, segments))
    crossed = from_jsonable(ArchiveRequest, json.loads(json.dumps(to_jsonable(ArchiveRequest(jobs)))))
    rows = archive_segments(spark, crossed.jobs)
    assert [set(row.gone_streams) for row in rows] == [{"orders"}] * 3
    assert {row.state for row in rows} == {PARTIAL}
    assert broken_receipts(lake, rows, Depth.ROWS) == {}
    topics = lake.messages().scan(selected_fields=("topic",)).to_arrow()["topic"].unique().to_pylist()
    assert len(topics) > 1
    assert "orders" not in topics


@pytest.mark.integration
def test_an_executor_that_archives_is_known_for_one_of_ours(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    (job,) = _jobs(lake, segments[:1])
    with ThreadPoolExecutor(1) as pool:
        # It reads for seconds.
        archiving = pool.submit(archive_segments, spark, [replace(job, bytes_per_second=2 << 20)])
        wait_for_executor(segments[0].parent, archiving)
        assert len(archiving.result()) == 1
    assert executors_with_lock(segments[0].parent) == set()


@pytest.mark.integration
def test_a_job_tells_how_far_it_is(
    spark: Any, lake: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    jobs = [replace(job, bytes_per_second=8 << 20) for job in _jobs(lake, segments)]
    monkeypatch.setattr("storage_engine.spark.job_io.PROGRESS_SECONDS", 3600.0)
    archive_segments(spark, jobs[:1])
    assert "Archived" not in capfd.readouterr().err
    monkeypatch.setattr("storage_engine.spark.job_io.PROGRESS_SECONDS", 0.02)
    archive_segments(spark, jobs)
    lines = capfd.readouterr().err.splitlines()
    # Two tasks at a time: the third begins when one has ended.
    assert lines[0] == "Archived with proof: 0 of 3 segments, 0 bytes of 3.0 MiB"
    middle = [f"Archived with proof: {done} of 3 segments, {done}.0 MiB of 3.0 MiB" for done in (1, 2)]
    assert set(middle) & set(lines)


@pytest.mark.again
@pytest.mark.integration
def test_tasks_keep_to_one_limit_together(spark: Any, lake: Lake, segments: list[Path]) -> None:
    jobs = [replace(job, bytes_per_second=4 << 20) for job in _jobs(lake, segments)]
    began = time.monotonic()
    rows = archive_segments(spark, jobs)
    seconds = time.monotonic() - began
    # Each process may catch up on a tenth of a second.
    assert seconds > sum(row.size_bytes + 3 * row.data_file_bytes for row in rows) / (4 << 20) - 0.4


@pytest.mark.again
@pytest.mark.integration
def test_lost_and_damaged_data_files_are_replaced_by_archiving_again(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    first, second, _ = archive_segments(spark, _jobs(lake, segments))
    lost, damaged = path_of(lake, first), path_of(lake, second)
    lost.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again = archive_segments(spark, _jobs(lake, segments))
    assert again == receipts(lake, "store-1")
    assert broken_receipts(lake, again, Depth.FILES) == {}
    assert len(list(lake.messages().scan().plan_files())) == 3


@pytest.mark.integration
def test_a_tasks_error_is_raised_as_it_was_and_nothing_is_committed(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    data = bytearray(segments[1].read_bytes())
    data[88] ^= 1
    segments[1].write_bytes(data)
    with pytest.raises(CorruptFrameError) as raised:
        archive_segments(spark, _jobs(lake, segments))
    assert str(raised.value).startswith(f"{segments[1]}: bad frame at physical offset {1 << 20}")
    assert receipts(lake, "store-1") == ()
    assert _staged(lake) == []


@pytest.mark.integration
def test_an_executor_that_cannot_see_the_store_is_one_clear_error(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    jobs = _jobs(lake, segments)
    segments[0].parent.rename(segments[0].parent.with_name("elsewhere"))
    with pytest.raises(StoreNotFoundError, match="Mount the store at the same path on every executor"):
        archive_segments(spark, jobs)


@pytest.mark.integration
def test_a_missing_lake_is_told_before_any_task_runs(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    jobs = _jobs(lake, segments)
    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(LakeUnavailableError, match="found no such file"):
        archive_segments(spark, jobs)


@pytest.mark.integration
def test_a_spark_that_fails_is_not_mistaken_for_a_refusal(
    spark: Any, lake: Lake, segments: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.archive_segments._attempt", _die)
    with pytest.raises(SparkJobError, match="Spark could not archive 3 segments"):
        archive_segments(spark, _jobs(lake, segments))
    assert receipts(lake, "store-1") == ()


@pytest.fixture
def executors(spark: Any) -> Iterator[Any]:
    """The Spark, whose executors' Python a test may change."""
    context = spark.sparkContext
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "pythonExec", context.pythonExec)
        patch.setattr(context, "environment", dict(context.environment))
        yield context


@pytest.mark.integration
def test_an_executor_without_this_package_is_named_and_nothing_is_committed(
    executors: Any, spark: Any, lake: Lake, segments: list[Path], tmp_path: Path
) -> None:
    bare = tmp_path / "bare" / "bin" / "python"
    for found in ("no such program", "no module storage_engine"):
        executors.pythonExec = str(bare)
        named = rf"{bare} on host \S+: expected an executor's Python with storage-engine .*, found {found}"
        with pytest.raises(SparkJobError, match=named):
            archive_segments(spark, _jobs(lake, segments))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare.parents[1]], check=True)
    assert receipts(lake, "store-1") == ()


@pytest.fixture
def elsewhere(executors: Any, segments: list[Path], tmp_path: Path) -> None:
    """Executors for whom another disk, an empty one, is where the store is."""
    if os.geteuid():
        pytest.skip("needs root, to mount a disk for executors alone")
    python = tmp_path / "python"
    mount = f'mount -t tmpfs none {segments[0].parents[1]} && exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{mount}' python \"$@\"\n")
    python.chmod(0o755)
    executors.pythonExec = str(python)


@pytest.mark.integration
@pytest.mark.usefixtures("elsewhere")
def test_executors_that_do_not_see_the_store_archive_through_an_agent(
    spark: Any, lake: Lake, segments: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, jobs = segments[0].parents[1], _jobs(lake, segments)
    store.chmod(0o700)
    with pytest.raises(StoreNotFoundError, match="let executors read it from an agent"):
        archive_segments(spark, jobs)
    with serving(store, "tls", files=[job.facts for job in jobs]) as (agent, access):
        rows = archive_segments(spark, jobs, access)
        assert rows == receipts(lake, "store-1")
        assert [row.source_ctime_ns for row in rows] == [job.facts.ctime_ns for job in jobs]
        with pytest.raises(BadInputError, match="expected a store that it serves"):
            archive_segments(spark, [replace(job, store_root="/elsewhere") for job in jobs], access)
        # What a driver reaches an executor needn't.
        wrong = access.address.replace(str(agent.port), "1")

        @contextmanager
        def run_at_another_port(access: AgentAccess, jobs: Sequence[SegmentJob]) -> Iterator[AgentRun]:
            with run_of(access, jobs) as run:
                yield replace(run, address=wrong)

        monkeypatch.setattr("storage_engine.spark.archive_segments.run_of", run_at_another_port)
        with pytest.raises(AgentError, match=f"agent {wrong}, from host .* Connection refused"):
            archive_segments(spark, jobs, access)
    restored = restore(lake, "store-1", tmp_path / "restored", files_only=True)
    assert [Path(s.path).read_bytes() for s in restored] == [path.read_bytes() for path in segments]
    assert _staged(lake) == []


@pytest.mark.integration
def test_an_agent_that_goes_away_in_a_job_leaves_nothing_committed(
    spark: Any, lake: Lake, segments: list[Path]
) -> None:
    jobs = [replace(job, bytes_per_second=1 << 20) for job in _jobs(lake, segments)]
    with command(segments[0].parents[1]) as (process, port), ThreadPoolExecutor(1) as pool:
        access = AgentAccess(f"{PLAIN}127.0.0.1:{port}", TOKEN)
        archiving = pool.submit(archive_segments, spark, jobs, access)
        assert process.stderr is not None
        assert "run" in process.stderr.readline()
        while not has_shared_lock(process.pid, {str(segments[0].parent)}):
            assert not archiving.done()
        process.kill()
        with pytest.raises(AgentError, match=r"Nothing was committed or deleted"):
            archiving.result()
    assert receipts(lake, "store-1") == ()
    assert _staged(lake) == []


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """A Python of another minor version that has this package; what of it is compiled can't be imported."""
    siblings = Path(sys.base_prefix).parent.glob(f"{sys.version_info.major}.*/bin/python3")
    on_path = (shutil.which(f"python3.{minor}") for minor in range(10, 20) if minor != sys.version_info.minor)
    candidates = [*(str(path) for path in siblings), *filter(None, on_path)]
    question = "import sys; print(sys.version_info >= (3, 10), sys.version_info.minor)"
    for candidate in candidates:
        answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True, check=False)
        if answer.stdout.startswith("True") and answer.stdout.split()[1] != str(sys.version_info.minor):
            break
    else:
        pytest.skip("needs a Python of another minor version")
    subprocess.run([candidate, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    (packages,) = (tmp_path / "other").glob("lib/python*/site-packages")
    (packages / "other.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path(__file__).parents[2]}\n")
    return tmp_path / "other" / "bin" / "python"


@pytest.mark.again
@pytest.mark.integration
def test_an_executor_of_another_python_is_named_before_any_task(
    executors: Any, spark: Any, lake: Lake, segments: list[Path], other_python: Path
) -> None:
    executors.pythonExec = str(other_python)
    executors.environment[DRIVER_VERSIONS] = versions()
    differs = rf"{other_python} on host \S+: expected {versions()}, as the driver has, found Python 3\.\d+, "
    with pytest.raises(SparkJobError, match=differs):
        archive_segments(spark, _jobs(lake, segments))
    assert receipts(lake, "store-1") == ()
    assert _staged(lake) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    "driver",
    ["Python 3.99, PySpark {spark}, {package}", "Python {python}, PySpark {spark}, storage-engine 0.0"],
)
def test_an_executor_of_other_versions_than_the_driver_is_named_before_any_task(
    executors: Any, spark: Any, lake: Lake, segments: list[Path], tmp_path: Path, driver: str
) -> None:
    python, spark_line, package = (part.rpartition(" ")[2] for part in versions().split(", "))
    expected = driver.format(python=python, spark=spark_line, package=f"storage-engine {package}")
    executors.environment[DRIVER_VERSIONS] = expected
    differs = rf"on host {gethostname()}: expected {expected}, as the driver has, found {versions()}"
    with pytest.raises(SparkJobError, match=differs):
        archive_segments(spark, _jobs(lake, segments))
    assert receipts(lake, "store-1") == ()


def _die(*_: object) -> None:
    os._exit(7)


@pytest.mark.integration
def test_the_command_archives_with_spark_and_its_stdout_is_json_alone(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters: list[str] = []

    def session(name: str, master: str) -> Any:
        masters.append(master)
        return nullcontext(spark)

    monkeypatch.setattr("storage_engine.spark.session.spark_session", session)
    make_lake(LakeConfig.local(tmp_path / "lake"))
    words = ("archive", store_copy("edge-frames"), "--lake", tmp_path / "lake")
    done = run_command(*words, "--spark", "local[1]", "--json")
    assert done.exit_code == 0, done.err
    assert masters == ["local[1]"]
    assert [row["base_offset"] for row in done.json["archived"]] == [0, 1 << 20]
    assert run_command(*words).out.startswith("Nothing to archive")


def make_request(root: Path, tmp_path: Path, **settings: object) -> ConsumerLagRequest:
    return ConsumerLagRequest(
        StoreSettings(str(root), time_zone="UTC", **settings),  # type: ignore[arg-type]
        str(tmp_path / "lag"),
        plan_segments=GOING,
        now_ms=NOW_MS,
    )


def rows_by_queue(request: ConsumerLagRequest) -> dict[tuple[str, int], dict[str, Any]]:
    rows = read_lag_table(request.table_path).to_pylist()
    return {(row["topic"], row["queue_id"]): row for row in rows}


def test_request_crosses_as_json(tmp_path: Path) -> None:
    request = make_request(tmp_path, tmp_path, overrides={"deleteWhen": "05"})
    assert from_jsonable(ConsumerLagRequest, to_jsonable(request)) == request


@pytest.mark.integration
def test_lag_is_what_the_files_say(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.session.spark_session", lambda name: nullcontext(spark))
    monkeypatch.setattr("storage_engine.spark.consumer_lag.SHARE_ROWS", 7)
    request = make_request(store_copy("clean-stop"), tmp_path)
    paths = [str(tmp_path / "request.json"), str(tmp_path / "result.json")]
    write_request(paths[0], request)
    monkeypatch.setattr(sys, "argv", [str(LAG_JOB), *paths])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(LAG_JOB), run_name="__main__")
    assert ended.value.code == 0
    result = read_result(paths[1], paths[0], ConsumerLagResult)

    table = measured(request)
    written = read_lag_table(request.table_path)
    assert written.to_pylist() == table.to_pylist()
    assert len(list(Path(request.table_path).iterdir())) > 1
    assert result == ConsumerLagResult(*merge([lag_part(table)]), request.table_path)
    assert "cg_orders" in result.summary.at_risk_groups
    assert result.summary.unknown == 1
    assert result.summary.groups == 5


@pytest.mark.integration
def test_dataframes_join_what_goes_as_it_is_joined_in_process(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    random = Random(1)
    places: list[Any] = []
    going: list[Any] = []
    expected: list[Any] = []
    roots = [store_copy(name) for name in ("clean-stop", "cqext-batchcq")]
    damaged = roots[0] / "consumequeue" / "orders" / "0" / f"{0:020d}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    node = unpack_node(tmp_path / "node") / "server.properties"
    stores = [("rocketmq", StoreSettings(str(root), time_zone="UTC")) for root in roots]
    for case, (broker, settings) in enumerate([*stores, ("kafka", StoreSettings(str(node)))] * 5):
        whole = find_broker(broker).lag(LagRequest(settings, (), NOW_MS))
        known = [segment.id for log in whole.snapshot.logs for segment in log.segments]
        planned = tuple(random.sample(known, random.randrange(len(known))))
        job = find_broker(broker).lag(LagRequest(settings, planned, NOW_MS))
        offsets = [random.choice([None, 0, random.randrange(3000)]) for _ in range(job.positions.num_rows)]
        moved = job.positions.set_column(3, "committed_offset", pa.array(offsets, pa.int64()))
        placed = job.place(moved)
        for rows, table in (
            (places, placed),
            (going, job.segments),
            (expected, add_risk(placed, job.segments)),
        ):
            rows += [{**row, "log": f"{case} {row['log']}"} for row in table.to_pylist()]
    frames = [
        spark.createDataFrame([tuple(row.values()) for row in rows], from_arrow_schema(schema))
        for rows, schema in ((places, PLACES_SCHEMA), (going, SEGMENTS_SCHEMA))
    ]
    found = [row.asDict() for row in join_segments(*frames).collect()]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert {row["next_segment_base_offset"] == ANYWHERE for row in places} == {True, False}
    assert {(row["at_risk"], row["committed_offset"] is None) for row in expected} == {
        (at_risk, unknown) for at_risk in (True, False) for unknown in (True, False)
    }


@pytest.mark.integration
def test_an_executor_that_measures_lag_is_known_for_one_of_ours(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    root, kept = store_copy("clean-stop"), ExitStack()
    log = root / "commitlog"

    def make_range(*of_job: Any) -> Any:
        # Where tasks find their share of the positions, which the driver has written by then.
        kept.enter_context(nobody_else_opens(tmp_path.rglob(".positions.arrow")))
        return spark.range(*of_job)

    session: Any = SimpleNamespace(
        sparkContext=spark.sparkContext, createDataFrame=spark.createDataFrame, range=make_range
    )
    with ThreadPoolExecutor(1) as pool, kept:
        measuring = pool.submit(consumer_lag, session, make_request(root, tmp_path))
        wait_for_executor(log, measuring)
        kept.close()
        assert measuring.result().summary.groups == 5
    assert executors_with_lock(log) == set()


@pytest.mark.again
@pytest.mark.integration
def test_job_can_be_run_again_and_tells_what_it_cannot_read(
    spark: Any, store_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.spark.session.spark_session", lambda name: nullcontext(spark))
    root = store_copy("clean-stop")
    queue = ("orders", 0)
    damaged = root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    segment = root / "commitlog" / f"{0:020d}"

    def job(spark: SparkSession, request: ConsumerLagRequest) -> ConsumerLagResult:
        first = consumer_lag(spark, request)
        assert consumer_lag(spark, request) == first
        frame = spark.read.parquet(request.table_path)
        assert frame.columns == list(QueueLag.__dataclass_fields__)
        assert frame.filter("at_risk").count() == len(first.at_risk)
        no_plan = ConsumerLagRequest(StoreSettings(str(root)), str(tmp_path / "other"))
        assert consumer_lag(spark, no_plan).summary.at_risk_groups == ()
        before = rows_by_queue(request)
        damaged.write_bytes(damaged.read_bytes()[:-1])
        unknown = consumer_lag(spark, request)
        assert unknown.summary.unknown == first.summary.unknown + 1
        after = rows_by_queue(request)
        of_damaged = after.pop(queue)
        assert (of_damaged["lag_messages"], of_damaged["lag_ms"], of_damaged["at_risk"]) == (None, None, True)
        assert before.pop(queue)["lag_messages"] is not None
        assert after == before
        segment.write_bytes(segment.read_bytes()[:-1])
        return consumer_lag(spark, request)

    write_request(tmp_path / "request.json", make_request(root, tmp_path))
    paths = [str(tmp_path / "request.json"), str(tmp_path / "result.json")]
    assert run_job(paths, "test", ConsumerLagRequest, job) == 1
    with pytest.raises(StoreLayoutError, match=str(segment)):
        read_result(paths[1], paths[0], ConsumerLagResult)


def test_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nothing"):
        prepare(make_request(tmp_path / "nowhere", tmp_path))


def test_job_that_never_ran_left_no_result(tmp_path: Path) -> None:
    write_request(tmp_path / "request.json", make_request(tmp_path, tmp_path))
    with pytest.raises(SparkJobError, match="left no result"):
        read_result(tmp_path / "result.json", tmp_path / "request.json", ConsumerLagResult)


@pytest.mark.integration
def test_a_session_that_has_ended_left_nothing(
    shared: SharedSpark,
    segments: list[Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage_engine.spark.job_io.PROGRESS_SECONDS", 3600.0)
    config = LakeConfig.local(tmp_path / "lake").with_properties({"s3.secret-access-key": SECRET})
    archive_segments(shared.session, _jobs(make_lake(config), segments[:1]))
    printed = shared.printed.read_bytes()
    shared.end()
    shared.around.assert_nothing_is_left()
    assert list(shared.directory.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert _silent(shared.printed.read_bytes().removeprefix(printed))
    logged = [path for path in shared.events.rglob("*") if path.is_file()]
    assert any(b"SparkListenerTaskEnd" in path.read_bytes() for path in logged)
    description = b'"spark.job.description":"archive 1 segment, 1.0 MiB, with proof"'
    assert any(description in path.read_bytes() for path in logged)
    ((name, stages),) = count_stages(shared.events).items()
    assert (name, stages >= 2) == ("test jobs", True)
    assert not [path for path in logged if SECRET.encode() in path.read_bytes()]


@pytest.mark.again
@pytest.mark.integration
def test_session_that_does_not_start_says_so_and_leaves_nothing(
    shared: SharedSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    shared.end()
    around = Around.now()
    refused = pytest.raises(SparkJobError, match=r"Spark with master local\[none\].*did not start")
    with refused, spark_session("test", master="local[none]"):
        pass
    around.assert_nothing_is_left()
    capfd.readouterr()
