"""What OpenLineage hears of a run: events of real tasks by Airflow's own listener, as its specification has
them."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from storage_engine.hooks.storage_engine import StorageEngineHook
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.operators import lineage
from storage_engine.operators.lineage import LakeTable, Lineage, LogSpan, operator_lineage, table_name
from storage_engine.retention.steps import sense
from tests.docs.code_blocks import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

STORE = "storage_engine_default"
SPECIFICATION = "https://openlineage.io/spec/2-0-2/OpenLineage.json"
SCHEMAS = ROOT / "tests" / "fixtures" / "openlineage-2-0-2.tar.xz"
RUN = """
import sys
from airflow.dag_processing.dagbag import DagBag
from storage_engine.core.extras import QUALITY, Extra
# The rules alone judge, in a tenth of the time that Great Expectations takes.
Extra.is_installed = property(lambda extra: extra != QUALITY)
(dag,) = DagBag(sys.argv[1], load_op_links=False).dags.values()
for task in dag.tasks:
    task.retries = 0
dag.test()
"""


@pytest.fixture(scope="module")
def registry() -> Registry[Any]:
    found = []
    with tarfile.open(SCHEMAS) as archive:
        for member in archive.getmembers():
            if member.name.endswith(".json"):
                file = archive.extractfile(member)
                assert file is not None
                found.append(Resource.from_contents(json.load(file)))
    return Registry().with_resources((str(one.id()), one) for one in found)


def facets_of(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for part in ("facets", "inputFacets", "outputFacets"):
        yield from dataset.get(part, {}).items()


def check(event: Mapping[str, Any], registry: Registry[Any]) -> None:
    """Check an event, and each facet of a dataset by the schema that it names itself."""
    Draft202012Validator({"$ref": f"{SPECIFICATION}#/$defs/RunEvent"}, registry=registry).validate(event)
    for dataset in (*event["inputs"], *event["outputs"]):
        for name, facet in facets_of(dataset):
            schema, _, _ = facet["_schemaURL"].partition("#")
            reference = facet["_schemaURL"] if schema == SPECIFICATION else schema
            content = facet if schema == SPECIFICATION else {name: facet}
            Draft202012Validator({"$ref": reference}, registry=registry).validate(content)


def events_of(file: Path, dag_file: str) -> dict[str, dict[str, Any]]:
    """Run a DAG as Airflow does, with OpenLineage on, and return the last event of each task."""
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    environment = {**os.environ, "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}
    environment.pop("PYTEST_VERSION", None)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(ROOT / "dags" / dag_file)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert file.is_file(), done.stderr[-4000:]
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return {event["job"]["name"].rpartition(".")[2]: event for event in events}


@pytest.fixture
def expired(airflow_database: Path, store_connection: Any) -> Any:
    store = store_connection(STORE, deleteWhen=";".join(map(str, range(24))))
    for path in (store.root / "commitlog").iterdir():
        os.utime(path, (10**9, 10**9))
    sense(StorageEngineHook(STORE).managed_store)
    return store


def test_a_run_tells_what_it_read_and_wrote(expired: Any, registry: Registry[Any], tmp_path: Path) -> None:
    events = events_of(tmp_path / "events", "storage_retention.py")
    for task in ("plan", "archive", "release", "validate", "report"):
        assert events[task]["eventType"] == "COMPLETE", task
        check(events[task], registry)
    log = {"namespace": f"file://{socket.gethostname()}", "name": f"{expired.root}/commitlog"}
    archived, released, validated = (events[one] for one in ("archive", "release", "validate"))
    (read,) = archived["inputs"]
    assert {key: read[key] for key in log} == log
    spans = [(one["start"], one["end"]) for one in read["facets"]["storageEngine_offsets"]["ranges"]]
    assert spans
    assert all(end - start == 1 << 20 for start, end in spans)

    rows, segments = open_lake(StorageEngineHook(STORE).managed_store.lake).tables()
    for table, written in zip((rows, segments), archived["outputs"], strict=True):
        assert (written["namespace"], written["name"]) == ("file", table.location().removeprefix("file://"))
        snapshots = {str(one.snapshot_id) for one in table.metadata.snapshots}
        assert written["facets"]["version"]["datasetVersion"] in snapshots
        (same,) = written["facets"]["symlinks"]["identifiers"]
        assert (same["name"], same["type"]) == (".".join(table.name()), "TABLE")
    new = archived["outputs"][0]["outputFacets"]["outputStatistics"]
    assert new["rowCount"] == rows.scan().to_arrow().num_rows
    assert new["size"] > 0

    (truncated,) = released["outputs"]
    assert {key: truncated[key] for key in log} == log
    assert truncated["facets"]["lifecycleStateChange"]["lifecycleStateChange"] == "TRUNCATE"
    gone = [(one["start"], one["end"]) for one in truncated["facets"]["storageEngine_offsets"]["ranges"]]
    assert gone == spans
    assert [one["name"] for one in released["inputs"][1:]] == [one["name"] for one in archived["outputs"]]

    of_log, of_rows = validated["inputs"][0], validated["inputs"][1]
    assert {one["where"] for one in of_log["facets"]["storageEngine_offsets"]["ranges"]} >= {"ARCHIVED"}
    for dataset in (of_log, of_rows):
        assertions = dataset["inputFacets"]["dataQualityAssertions"]["assertions"]
        assert len(assertions) > 3
        assert {one["success"] for one in assertions} == {True}


@pytest.mark.again
def test_a_validation_that_fails_tells_what_is_broken(
    expired: Any, registry: Registry[Any], tmp_path: Path
) -> None:
    checkpoint = expired.root / "checkpoint"
    data = bytearray(checkpoint.read_bytes())
    struct.pack_into(">q", data, 0, 2**61)
    checkpoint.write_bytes(data)
    event = events_of(tmp_path / "events", "storage_retention.py")["validate"]
    assert event["eventType"] == "FAIL"
    check(event, registry)
    verdicts = [
        one["success"]
        for dataset in event["inputs"]
        for one in dataset["inputFacets"]["dataQualityAssertions"]["assertions"]
    ]
    assert False in verdicts


@pytest.mark.again
def test_a_release_that_fails_tells_what_had_gone(
    expired: Any, registry: Registry[Any], tmp_path: Path
) -> None:
    """The second segment can't be removed: the first one is gone, and no other."""
    log = sorted((expired.root / "commitlog").iterdir())
    subprocess.run(["chattr", "+i", log[1]], check=True)
    try:
        event = events_of(tmp_path / "events", "storage_retention.py")["release"]
    finally:
        subprocess.run(["chattr", "-i", log[1]], check=True)
    assert sorted((expired.root / "commitlog").iterdir()) == log[1:]
    assert event["eventType"] == "FAIL"
    check(event, registry)
    (truncated,) = event["outputs"]
    assert [(one["start"], one["end"]) for one in truncated["facets"]["storageEngine_offsets"]["ranges"]] == [
        (0, 1 << 20)
    ]


def test_a_task_without_anything_to_tell_and_an_airflow_without_openlineage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert operator_lineage(None).inputs == []
    lineage.is_wanted.cache_clear()
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.conf", None)
    assert lineage.is_wanted() is False
    lineage.is_wanted.cache_clear()


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("file:///lake/a%20b/messages", ("file", "/lake/a b/messages")),
        ("/lake/messages", ("file", "/lake/messages")),
        ("s3://bucket/lake/messages", ("s3://bucket", "lake/messages")),
    ],
)
def test_tables_have_openlineages_names(location: str, named: tuple[str, str]) -> None:
    assert table_name(LakeTable(location, "storage_engine.messages", 1)) == named


def test_of_many_ranges_the_rest_is_counted() -> None:
    spans = [LogSpan(number, number + 1) for number in range(250)]
    (found,) = operator_lineage(Lineage("/data", {"log": spans})).inputs
    facet = found.facets["storageEngine_offsets"]
    assert (len(facet.ranges), facet.moreRanges) == (100, 150)
