"""A lake in a real S3 server: the whole job, attempts side by side, secrets, and a network that fails.

Each fault ends in success, or in one clear error in time. Nothing is deleted by a run that fails, and the
next run has each segment in the lake exactly once.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, CommitStateUnknownError, LakeUnavailableError
from storage_engine.lake.archive.archive import archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.writing import UNLOCKED_GRACE_MS
from storage_engine.lake.file.jobs import SegmentJob, new_attempt
from storage_engine.lake.gc.garbage import Collection, collect, undo
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.report import finishing
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_settings
from tests.integration.fault_proxy import FaultKind, FaultProxy, fault_proxy
from tests.integration.lake_cycle import (
    RUN,
    archive,
    check_exactly_once,
    contents,
    expired_store,
    finish,
    lake_on,
    plan,
)
from tests.integration.object_store import BUCKET, SECRET_KEY, ObjectStore
from tests.services.restoring import restore

pytestmark = pytest.mark.integration

StoreCopy = Callable[[str], Path]
ENTRY_POINT = Path(__file__).resolve().parents[2] / "spark_jobs" / "archive_segments.py"

DATA = r"/data/store_id"
METADATA = r"/messages/metadata"
LIMIT_SECONDS = 120
"""Far more than any of these takes; without our limits a stalled request alone takes longer."""


@pytest.fixture
def lake(object_store: ObjectStore, tmp_path: Path) -> Lake:
    return make_lake(lake_on(object_store.properties(), tmp_path))


@pytest.fixture
def jobs(lake: Lake, store_copy: StoreCopy) -> tuple[SegmentJob, ...]:
    """Two segments to archive."""
    root = store_copy("clean-stop")
    segments = [
        Segment("commitlog", int(path.name), FileFacts.of(path), SegmentState.SEALED)
        for path in sorted((root / "commitlog").iterdir())[:2]
    ]
    return segment_jobs(
        lake, segments, store_id="store-1", lineage=0, broker="rocketmq", store_root=str(root)
    )


@pytest.mark.again
def test_a_store_is_archived_released_verified_and_restored(
    object_store: ObjectStore, store_copy: StoreCopy, tmp_path: Path
) -> None:
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake_on(object_store.properties(), tmp_path))
    plan(store)
    archive(store)
    proven = finish(store, before, tmp_path / "restored")
    messages = open_lake(store.lake).messages()
    assert all(data_file_of(messages, row).startswith(f"s3://{BUCKET}/warehouse/") for row in proven)


@pytest.mark.again
def test_two_attempts_at_a_segment_never_write_to_one_name(lake: Lake, jobs: tuple[SegmentJob, ...]) -> None:
    """A twin that is late may not replace the bytes that were proven and committed."""
    first, second = archive_segment(jobs[0]), archive_segment(jobs[0])
    assert first.data_file != second.data_file
    (receipt,) = commit_segments(lake, [first])
    assert commit_segments(lake, [second]) == (receipt,)
    assert data_file_of(lake.messages(), receipt) == first.data_file
    check_exactly_once(lake)


def _make_old(object_store: ObjectStore, path: str, days: int) -> None:
    """The server tells the time of the file that an object is."""
    file = object_store.objects / path
    found = file.stat()
    os.utime(file, ns=(0, found.st_mtime_ns - days * 86_400 * 10**9))


@pytest.mark.again
def test_the_collector_lists_what_may_go_and_removes_it_a_grace_later_unless_it_is_taken_off_the_list(
    lake: Lake, jobs: tuple[SegmentJob, ...], object_store: ObjectStore
) -> None:
    """A second copy of a segment, and one that was cut off in the middle; what nobody has stays."""
    (receipt,) = commit_segments(lake, [archive_segment(jobs[0])])
    twin = archive_segment(jobs[0]).data_file.removeprefix("s3://")
    cut = f"{twin.rpartition('-')[0]}-{new_attempt()}.parquet"
    orphan = archive_segment(jobs[1]).data_file.removeprefix("s3://")
    client = object_store.client()
    with client.open_input_stream(twin) as source, client.open_output_stream(cut) as sink:
        sink.write(source.read(1000))

    def pass_over(**more: int) -> Collection:
        return collect(lake, grace_ms=UNLOCKED_GRACE_MS, delete=True, **more)

    def names() -> set[str]:
        return {f"{BUCKET}/{name}" for name in object_store.names()}

    with pytest.raises(BadInputError, match="no lock"):
        collect(lake, grace_ms=UNLOCKED_GRACE_MS - 1, delete=True)
    assert (pass_over().garbage, pass_over().young_count) == ((), 3)
    for path in (twin, cut, orphan):
        _make_old(object_store, path, days=2)
    first = pass_over()
    assert {file.path for file in first.taken} == {twin, cut}
    assert {file.path for file in first.orphans} == {orphan}
    assert {twin, cut, orphan} <= names()

    assert (pass_over(trash_ms=0).deleted, pass_over().waiting_count) == ((), 2)
    assert set(undo(lake.config).paths) == {twin, cut}
    second = pass_over()
    assert {file.path for file in second.taken} == {twin, cut}
    (listed,) = (name for name in names() if second.moment in name)
    _make_old(object_store, listed, days=2)
    changed = client.open_output_stream(cut)
    changed.write(b"another attempt's")
    changed.close()
    assert {file.path for file in pass_over(trash_ms=0).deleted} == {twin}
    assert twin not in names()
    assert {cut, orphan} <= names()
    assert not [name for name in names() if second.moment in name]

    assert broken_receipts(lake, [receipt], Depth.FILES) == {}
    commit_segments(lake, [archive_segment(job) for job in jobs])
    check_exactly_once(lake)


@pytest.mark.again
def test_a_segment_whose_receipt_was_not_reached_is_taken_up_by_another_attempt(
    lake: Lake, jobs: tuple[SegmentJob, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("storage_engine.lake.archive.commit.prepare_receipts", die)
        with pytest.raises(Killed):
            commit_segments(lake, [archive_segment(job) for job in jobs])
    assert receipts(lake, "store-1") == ()
    assert len(commit_segments(lake, [archive_segment(job) for job in jobs])) == len(jobs)
    check_exactly_once(lake)


@pytest.mark.again
def test_no_secret_is_in_logs_reports_journal_or_lake(
    object_store: ObjectStore, store_copy: StoreCopy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's event log is looked at in tests/spark, too."""
    caplog.set_level(logging.DEBUG)
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake_on(object_store.properties(), tmp_path))
    plan(store, max_segments=2)
    archive(store)
    assert len(finish(store, before, tmp_path / "restored")) == 2
    finishing.finish(store, RUN)
    assert list((tmp_path / "managed" / "reports").rglob("*.json"))
    assert _files_with_the_secret(tmp_path, object_store) == []
    assert SECRET_KEY not in caplog.text
    assert SECRET_KEY not in repr(store)


def _files_with_the_secret(directory: Path, object_store: ObjectStore) -> list[Path]:
    files = [path for root in (directory, object_store.objects) for path in root.rglob("*") if path.is_file()]
    return [path for path in files if SECRET_KEY.encode() in path.read_bytes()]


@pytest.mark.again
def test_no_secret_is_in_the_files_of_a_submitted_job_or_spark_s_event_log(
    object_store: ObjectStore, store_copy: StoreCopy, tmp_path: Path
) -> None:
    events, conf, private = (tmp_path / name for name in ("events", "conf", "private"))
    for directory in (events, conf, private):
        directory.mkdir(mode=0o700)
    (conf / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir {events.as_uri()}\n"
    )
    root = store_copy("clean-stop")
    before = contents(root)
    store = expired_store(root, tmp_path, lake_on(object_store.properties(), tmp_path))
    plan(store, max_segments=2)

    environment = spark_environment("local[2]")
    submit = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", "local[2]"]
    for setting in spark_settings("local[2]").items():
        submit += ["--conf", "=".join(setting)]

    def on_spark(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        request, result = private / "request.json", tmp_path / "result.json"
        credentials = write_request(request, ArchiveRequest(tuple(jobs)))
        with (tmp_path / "spark.log").open("wb") as log:
            subprocess.run(
                [*submit, str(ENTRY_POINT), str(request), str(result)],
                env={**os.environ, **environment, "SPARK_CONF_DIR": str(conf), **credentials},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=300,
            )
        answer = read_result(result, request, ArchiveResult).receipts
        assert answer == receipts(open_lake(store.lake), answer[0].store_id)
        told = json.loads(result.read_text())["result"]["receipts"]
        assert [row["store_id"] for row in told] == [row.store_id for row in answer]
        return answer

    steps.archive_planned(store, RUN, on_spark)
    assert len(finish(store, before, tmp_path / "restored")) == 2
    assert list(private.iterdir())
    assert list(events.iterdir())
    assert _files_with_the_secret(tmp_path, object_store) == []


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def planned(
    object_store: ObjectStore, proxy: FaultProxy, store_copy: StoreCopy, tmp_path: Path
) -> ManagedStore:
    """A store with a plan to delete two segments, and its lake behind the proxy."""
    properties = object_store.properties(port=proxy.port)
    store = expired_store(store_copy("clean-stop"), tmp_path, lake_on(properties, tmp_path))
    plan(store, max_segments=2)
    return store


def hasty(store: ManagedStore) -> ManagedStore:
    """The same, with less patience for a store that doesn't come back: three attempts."""
    few = {"s3.retry-strategy-impl": "pyarrow.fs.AwsStandardS3RetryStrategy"}
    return replace(store, lake=store.lake.with_properties(few))


@pytest.mark.again
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(
            [
                (FaultKind.SLOW_DOWN, r"^POST", 2),
                (FaultKind.CUT_REQUEST, rf"^PUT .*{DATA}", 1),
                (FaultKind.CUT_ANSWER, rf"^PUT .*{DATA}", 1),
                (FaultKind.STALL, rf"^PUT .*{DATA}", 1),
                (FaultKind.SLOW_DOWN, rf"^GET .*{DATA}", 1),
                (FaultKind.CUT_ANSWER, rf"^GET .*{DATA}", 1),
                (FaultKind.SERVER_ERROR, rf"^PUT .*{METADATA}", 2),
                (FaultKind.LATE, rf"^PUT .*{METADATA}", 1),
            ],
            marks=pytest.mark.again,
        ),
        [(FaultKind.SLOW_DOWN, r"^(PUT|POST)", 2)],
        pytest.param([(FaultKind.SLOW_DOWN, rf"^GET .*{DATA}", 2)], marks=pytest.mark.again),
    ],
    ids=["all", "overload", "overload of readers"],
)
def test_what_passes_is_survived_by_asking_again(
    planned: ManagedStore,
    proxy: FaultProxy,
    tmp_path: Path,
    faults: list[tuple[FaultKind, str, int]],
) -> None:
    before = contents(Path(planned.root))
    injected = [proxy.fail(*fault) for fault in faults]
    archive(planned)
    assert len(finish(planned, before, tmp_path / "restored")) == 2
    assert [fault.hits for fault in injected] == [fault.times for fault in injected]


@pytest.mark.parametrize(
    ("kind", "request_pattern"),
    [
        pytest.param(FaultKind.SLOW_DOWN, rf"^(PUT|POST) .*{DATA}", marks=pytest.mark.again),
        pytest.param(FaultKind.CUT_REQUEST, rf"^PUT .*{METADATA}", marks=pytest.mark.again),
        pytest.param(FaultKind.CUT_ANSWER, r"^POST .*/segments/metadata.*uploadId=", marks=pytest.mark.again),
        pytest.param(FaultKind.STALL, r".", marks=pytest.mark.again),
    ],
    ids=lambda value: value.name if isinstance(value, FaultKind) else None,
)
def test_what_lasts_ends_in_one_clear_error_and_the_next_run_completes(
    planned: ManagedStore, proxy: FaultProxy, tmp_path: Path, kind: FaultKind, request_pattern: str
) -> None:
    before = contents(Path(planned.root))
    fault = proxy.fail(kind, request_pattern)
    _fails_in_time(lambda: archive(hasty(planned)))
    assert fault.hits
    assert contents(Path(planned.root)) == before
    proxy.faults.clear()
    archive(planned)
    assert len(finish(planned, before, tmp_path / "restored")) == 2


@pytest.mark.again
def test_a_store_that_refuses_connections_is_one_clear_error_at_every_step(
    planned: ManagedStore, proxy: FaultProxy, object_store: ObjectStore, tmp_path: Path
) -> None:
    before = contents(Path(planned.root))
    archive(planned)
    lake = open_lake(hasty(planned).lake)
    (summary,) = list_stores(lake)
    proxy.close()
    _fails_in_time(lambda: archive(hasty(planned)))
    _fails_in_time(lambda: steps.release(hasty(planned), RUN))
    _fails_in_time(lambda: verify(lake, VerifyLevel.BYTES))
    _fails_in_time(lambda: restore(lake, summary.store_id, tmp_path / "nothing"))
    assert not list((tmp_path / "nothing").rglob("*.[0-9]*"))
    assert contents(Path(planned.root)) == before


@pytest.mark.again
def test_reading_back_fails_clearly_while_data_files_are_out_of_reach(
    planned: ManagedStore, proxy: FaultProxy, tmp_path: Path
) -> None:
    before = contents(Path(planned.root))
    archive(planned)
    lake = open_lake(hasty(planned).lake)
    (summary,) = list_stores(lake)
    proxy.fail(FaultKind.CUT_ANSWER, rf"^(GET|HEAD) .*{DATA}")
    _fails_in_time(lambda: steps.release(hasty(planned), RUN))
    _fails_in_time(lambda: restore(lake, summary.store_id, tmp_path / "restored"))
    assert contents(Path(planned.root)) == before
    proxy.faults.clear()
    finish(planned, before, tmp_path / "restored-later")


def _fails_in_time(attempt: Callable[[], object]) -> None:
    started = time.monotonic()
    with pytest.raises((LakeUnavailableError, CommitStateUnknownError)):
        attempt()
    assert time.monotonic() - started < LIMIT_SECONDS


@pytest.mark.again
def test_credentials_that_expire_midway_end_in_an_error_that_names_the_lake_and_no_secret(
    lake: Lake, jobs: tuple[SegmentJob, ...], object_store: ObjectStore
) -> None:
    """The last of this file, as the server keeps to its other keys."""
    proven = archive_segment(jobs[0])
    object_store.stop()
    object_store.secret_key = "another-secret-0002"
    object_store.start()
    for attempt in (lambda: archive_segment(jobs[1]), lambda: commit_segments(lake, [proven])):
        with pytest.raises(LakeUnavailableError) as caught:
            attempt()
        assert f"s3://{BUCKET}/" in str(caught.value)
        assert "credentials" in str(caught.value)
        assert SECRET_KEY not in str(caught.value)

    keys = {key: value for key, value in object_store.properties().items() if key != "warehouse"}
    config = lake.config.with_properties(keys)
    again = open_lake(config)
    commit_segments(again, [proven, archive_segment(replace(jobs[1], lake=config))])
    check_exactly_once(again)
