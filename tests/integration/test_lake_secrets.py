"""What opens a lake stands in nothing that a run leaves behind."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from storage_engine.lake.catalog import open_lake
from storage_engine.lake.jobs import SegmentJob
from storage_engine.lake.receipts import receipts
from storage_engine.model.receipt import Receipt
from storage_engine.retention import finishing, steps
from storage_engine.spark.archive_segments import ArchiveRequest, ArchiveResult
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_settings
from tests.integration.lake_cycle import RUN, contents, expired_store, finish, lake_on, plan
from tests.integration.object_store import SECRET_KEY, ObjectStore

pytestmark = pytest.mark.integration

ENTRY_POINT = Path(__file__).resolve().parents[2] / "spark_jobs" / "archive_segments.py"


def test_no_secret_is_in_logs_reports_journal_lake_or_spark_s_event_log(
    object_store: ObjectStore,
    store_copy: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    events, conf, private = (tmp_path / name for name in ("events", "conf", "private"))
    for directory in (events, conf, private):
        directory.mkdir(mode=0o700)
    (conf / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {events.as_uri()}\n"
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
    finishing.finish(store, RUN)
    assert list((tmp_path / "managed" / "reports").rglob("*.json"))

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(private in path.parents for path in files)
    assert any(events in path.parents for path in files)
    files += [path for path in object_store.objects.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET_KEY.encode() in path.read_bytes()] == []
    assert SECRET_KEY not in caplog.text
    assert SECRET_KEY not in repr(store)
