"""Every query in docs/kafka-read.md gives the true answer, in Spark, DuckDB and PyIceberg."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage_engine.kafka.codec.codec import CODEC
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.spark.session import spark_session
from tests.docs.code_blocks import blocks_under
from tests.integration.jars import JAVA_PROJECTS, class_path
from tests.kafka.lakes import archivable_segments, archive, new_lake
from tests.kafka_fixture import unpack

pytestmark = pytest.mark.integration

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "kafka-read.md"
OPENING = blocks_under(DOCUMENT, "Opening it")

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("query")


@pytest.fixture(scope="module")
def node(base: Path) -> Path:
    return unpack(base / "node")


@pytest.fixture(scope="module")
def lake(base: Path, node: Path) -> Lake:
    lake = new_lake(base / "lake")
    archive(lake, node, archivable_segments(node))
    return lake


@pytest.fixture(scope="module")
def records(lake: Lake, base: Path) -> Any:
    names: dict[str, Any] = {"LAKE": str(base / "lake")}
    exec(OPENING["python pyiceberg"], names)
    return names["records"]


@pytest.fixture(scope="module")
def duck(records: Any) -> Iterator[Any]:
    exec(OPENING["python duckdb"], {"records": records})
    duckdb.execute("SET TimeZone = 'UTC'")
    yield duckdb
    duckdb.execute("DROP VIEW records")


@pytest.fixture(scope="module")
def truth(lake: Lake, node: Path) -> Rows:
    """The archived records by their segments' bytes, with the topic and partition of their directory."""
    found: Rows = []
    for segment in archivable_segments(node):
        data = memoryview(Path(segment.facts.path).read_bytes())
        topic, _, partition = segment.log.rpartition("-")
        for rows, _ in CODEC.decode(data, segment.base_offset):
            of_messages = (row for row in rows.to_pylist() if row["kind"] == "message")
            found += ({**row, "topic": topic, "partition": int(partition)} for row in of_messages)
    return found


def _between_offsets(truth: Rows) -> Rows:
    chosen = [row for row in truth if (row["topic"], row["partition"]) == ("txn", 1)]
    return [_of(row, "offset", "timestamp", "key", "value") for row in chosen if 300 <= row["offset"] < 500]


def _of_a_minute(truth: Rows) -> Rows:
    first, end = (datetime(2026, 11, 20, 13, minute, tzinfo=UTC) for minute in (11, 12))
    inside = Counter(
        (row["topic"], row["partition"])
        for row in truth
        if row["timestamp"] is not None and first <= row["timestamp"] < end
    )
    return [{"topic": t, "partition": p, "records": count} for (t, p), count in sorted(inside.items())]


def _by_key(truth: Rows) -> Rows:
    found = [row for row in truth if row["topic"] == "txn" and row["key"] == b"r0-1-1"]
    return [{**_of(row, "partition", "offset"), "value": row["value"].decode()} for row in found]


def _by_header(truth: Rows) -> Rows:
    named = [(row, [header["key"] for header in row["headers"]]) for row in truth if row["topic"] == "hdrs"]
    return [{"offset": row["offset"], "times": keys.count("h2")} for row, keys in named if "h2" in keys]


def _by_topic(truth: Rows) -> Rows:
    counted = Counter(row["topic"] for row in truth)
    return [{"topic": topic, "records": count} for topic, count in sorted(counted.items())]


def _of(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


QUERIES: dict[str, Callable[[Rows], Rows]] = {
    "Records between two offsets": _between_offsets,
    "Records of a minute": _of_a_minute,
    "By key": _by_key,
    "By header": _by_header,
    "Several nodes in one lake": _by_topic,
}


def _expected(heading: str, truth: Rows, records: Any) -> Rows:
    expected = QUERIES[heading](truth)
    assert expected
    if heading != "Records between two offsets":
        return expected
    # Which transactions were aborted says another test; here all that isn't is there.
    rows = records.scan(row_filter="topic = 'txn' AND partition = 1 AND kind = 'message'").to_arrow()
    aborted = {row["offset"] for row in rows.to_pylist() if row["state"] == "aborted"}
    left = [row for row in expected if row["offset"] not in aborted]
    assert 0 < len(left) < len(expected)
    return left


@pytest.mark.parametrize("heading", QUERIES)
def test_duckdb_and_pyiceberg_give_the_true_answer(
    duck: Any, records: Any, truth: Rows, heading: str
) -> None:
    blocks, expected = blocks_under(DOCUMENT, heading), _expected(heading, truth, records)
    assert duck.sql(blocks["sql duckdb"]).to_arrow_table().to_pylist() == expected
    names = {"records": records}
    exec(blocks["python pyiceberg"], names)
    answer = names["answer"]
    assert (answer.to_pylist() if isinstance(answer, pa.Table) else answer) == expected


@pytest.mark.again
def test_spark_gives_the_true_answer(base: Path, records: Any, truth: Rows) -> None:
    jars = class_path(JAVA_PROJECTS / "iceberg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--driver-class-path {jars} pyspark-shell")
        with spark_session("test query of Kafka") as session:
            exec(OPENING["python spark"], {"spark": session, "LAKE": str(base / "lake")})
            for heading in QUERIES:
                query = blocks_under(DOCUMENT, heading)["sql spark"]
                found = session.sql(query).toArrow().to_pylist()
                assert found == _expected(heading, truth, records), heading
            # Ids of what is nested: Spark finds columns by them alone.
            assert session.sql("SELECT headers.value[0] FROM records WHERE size(headers) > 0").count() > 100
