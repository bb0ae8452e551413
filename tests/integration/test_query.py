"""Spark, DuckDB and PyIceberg read the same rows, and every query in docs/query.md gives the true answer.

Spark reads the Iceberg tables natively, with jars that Maven brings (tests/java/iceberg). DuckDB's own
Iceberg extension would have to be downloaded: it reads the data files of PyIceberg's plan, as the document
says.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import TREE_COLUMNS
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.spark.session import spark_session
from tests.docs.code_blocks import blocks_under
from tests.integration.jars import JAVA_PROJECTS, class_path
from tests.integration.stores import FIXTURES, open_store, unpack
from tests.rounds import some

pytestmark = [pytest.mark.integration, pytest.mark.again]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "query.md"
STORES = {"clean-stop": "sample", "edge-frames": "edges"}
ADOPTED = "edges"
KEY = "ORD-1200006"
TRANSACTION = "FD0000000000000000000000000000024AD730946E0964B0AE3E1D68"
HALF, GIVEN_UP, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def _blocks(heading: str) -> dict[str, str]:
    return blocks_under(DOCUMENT, heading)


OPENING = _blocks("Opening it")
BODIES = _blocks("Compressed bodies")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    base = tmp_path_factory.mktemp("query")
    lake = make_lake(LakeConfig.local(base / "lake"))
    for name, store_id in STORES.items():
        snapshot = open_store(unpack(name, base / name)).snapshot(0)
        # The second store was adopted; its first segment is there under both lineages.
        lineages = {0: snapshot.logs[0].sealed} | (
            {1: snapshot.logs[0].sealed[:1]} if store_id == ADOPTED else {}
        )
        for lineage, segments in lineages.items():
            jobs = segment_jobs(
                lake,
                segments,
                store_id=store_id,
                lineage=lineage,
                broker=snapshot.broker,
                store_root=snapshot.root,
            )
            archive_all(lake, jobs)
    return lake


@pytest.fixture(scope="module")
def directory(lake: Lake) -> str:
    return lake.config.location.removeprefix("file://").removesuffix("/warehouse")


@pytest.fixture(scope="module")
def spark(directory: str) -> Iterator[Any]:
    jars = class_path(JAVA_PROJECTS / "iceberg")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--driver-class-path {jars} pyspark-shell")
        with spark_session("test query") as session:
            for block in (OPENING["python spark"], BODIES["python spark"]):
                exec(block, {"spark": session, "LAKE": directory})
            yield session


@pytest.fixture(scope="module")
def duck(lake: Lake) -> Iterator[Any]:
    names: dict[str, Any] = {"messages": lake.messages()}
    for block in (OPENING["python duckdb"], BODIES["python duckdb"]):
        exec(block, names)
    duckdb.execute("SET TimeZone = 'UTC'")
    yield duckdb
    duckdb.execute("DROP VIEW messages")
    duckdb.remove_function("decompress_body")


@pytest.fixture(scope="module")
def messages(directory: str) -> Any:
    names: dict[str, Any] = {"LAKE": directory}
    exec(OPENING["python pyiceberg"], names)
    return names["messages"]


@pytest.fixture(scope="module")
def truth(lake: Lake) -> list[dict[str, Any]]:
    """Frames of the first store's archived segments."""
    end = max(
        row["base_offset"]
        for row in lake.segments().scan(row_filter="store_id = 'sample'").to_arrow().to_pylist()
    )
    with gzip.open(FIXTURES / "clean-stop.commitlog.jsonl.gz", "rt", encoding="utf-8") as lines:
        frames = [json.loads(line) for line in lines]
    return [
        frame for frame in frames if frame["kind"] == "message" and frame["physicOffset"] < end + (1 << 20)
    ]


def _in_spark(spark: Any, query: str) -> list[dict[str, Any]]:
    return spark.sql(query).toArrow().to_pylist()


def _in_duckdb(duck: Any, query: str) -> list[dict[str, Any]]:
    return duck.sql(query).to_arrow_table().to_pylist()


def _in_pyiceberg(messages: Any, code: str) -> Any:
    names = {"messages": messages}
    exec(code, names)
    answer = names["answer"]
    return answer.to_pylist() if isinstance(answer, pa.Table) else answer


def _ordered(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Every value of every row, whatever order and offset widths they come in."""
    return (
        rows.select(schema.names)
        .cast(schema)
        .sort_by([(name, "ascending") for name in ("store_id", "lineage", "physical_offset")])
    )


def test_all_engines_read_the_same_rows(spark: Any, duck: Any, messages: Any) -> None:
    tables = {
        "Spark": spark.sql("SELECT * FROM messages").toArrow(),
        "DuckDB": duck.sql("SELECT * FROM messages").to_arrow_table(),
        "PyIceberg": messages.scan().to_arrow(),
    }
    schema = pa.schema([field.remove_metadata() for field in messages.schema().as_arrow()])
    # DuckDB reads the files: a column that none of their rows needs isn't there.
    for field in schema:
        if field.name in TREE_COLUMNS.names and field.name not in tables["DuckDB"].column_names:
            empty = pa.nulls(tables["DuckDB"].num_rows, field.type)
            tables["DuckDB"] = tables["DuckDB"].append_column(field, empty)
    counts = {engine: table.num_rows for engine, table in tables.items()}
    assert set(counts.values()) == {counts["PyIceberg"]}
    assert counts["PyIceberg"] > 8000
    ordered = {engine: _ordered(table, schema) for engine, table in tables.items()}
    assert ordered["Spark"].equals(ordered["PyIceberg"])
    assert ordered["DuckDB"].equals(ordered["PyIceberg"])


def test_all_messages_of_a_topic_between_two_times(
    spark: Any, duck: Any, messages: Any, truth: list[dict[str, Any]]
) -> None:
    blocks = _blocks("All messages of a topic between two times")
    first, end = (
        datetime(2026, 11, 20, 13, 14, second, tzinfo=UTC).timestamp() * 1000 for second in (57, 58)
    )
    expected = sorted(
        (
            frame["queueId"],
            frame["queueOffset"],
            frame["physicOffset"],
            frame["storeTimestamp"],
            frame["bodySha256"],
        )
        for frame in truth
        if frame["topic"] == "orders" and first <= frame["storeTimestamp"] < end
    )
    assert len(expected) > 100
    for found in (
        _in_spark(spark, blocks["sql spark"]),
        _in_duckdb(duck, blocks["sql duckdb"]),
        sorted(
            _in_pyiceberg(messages, blocks["python pyiceberg"]),
            key=lambda row: (row["queue_id"], row["queue_offset"]),
        ),
    ):
        assert [
            (
                row["queue_id"],
                row["queue_offset"],
                row["physical_offset"],
                round(row["store_timestamp"].timestamp() * 1000),
                hashlib.sha256(row["body"]).hexdigest(),
            )
            for row in found
        ] == expected


def test_by_key(spark: Any, duck: Any, messages: Any, truth: list[dict[str, Any]]) -> None:
    blocks = _blocks("By key")
    expected = sorted(
        frame["physicOffset"]
        for frame in truth
        if KEY in {*frame["properties"].get("KEYS", "").split(" "), frame["properties"].get("UNIQ_KEY")}
    )
    assert expected
    for found in (
        _in_spark(spark, blocks["sql"]),
        _in_duckdb(duck, blocks["sql"]),
        _in_pyiceberg(messages, blocks["python pyiceberg"]),
    ):
        assert sorted(row["physical_offset"] for row in found) == expected
    nothing = blocks["sql"].replace(KEY, "")
    assert _in_spark(spark, nothing) == _in_duckdb(duck, nothing) == []


def test_one_lineage(spark: Any, duck: Any, messages: Any) -> None:
    blocks = _blocks("One lineage")
    rows = messages.scan(
        row_filter="kind = 'message'", selected_fields=("store_id", "lineage", "topic")
    ).to_arrow()
    newest = {"sample": 0, ADOPTED: 1}
    counts = Counter(
        (row["store_id"], row["topic"])
        for row in rows.to_pylist()
        if row["lineage"] == newest[row["store_id"]]
    )
    assert len(rows) > sum(counts.values())
    expected = [
        {"store_id": store, "topic": topic, "messages": count}
        for (store, topic), count in sorted(counts.items())
    ]
    assert sum(row["messages"] for row in expected) > 100
    for found in (
        _in_spark(spark, blocks["sql"]),
        _in_duckdb(duck, blocks["sql"]),
        _in_pyiceberg(messages, blocks["python pyiceberg"]),
    ):
        assert found == expected


def _outcome(truth: list[dict[str, Any]], transaction: str, noted: set[int]) -> dict[str, Any]:
    frames = [frame for frame in truth if (frame["properties"] or {}).get("UNIQ_KEY") == transaction]
    half = [frame for frame in frames if frame["topic"] == HALF]
    outcome = "rolled back" if noted & {frame["queueOffset"] for frame in half} else "undecided"
    if any(frame["topic"] == GIVEN_UP for frame in frames):
        outcome = "given up"
    if any(frame["sysFlag"] & 12 == 8 for frame in frames):
        outcome = "committed"
    begun = min(frame["storeTimestamp"] for frame in half)
    return {
        "topic": half[0]["properties"]["REAL_TOPIC"],
        "begun": datetime.fromtimestamp(begun / 1000, UTC),
        "checks": len(half) - 1,
        "outcome": outcome,
    }


def test_what_happened_to_a_transaction(
    spark: Any, duck: Any, messages: Any, truth: list[dict[str, Any]]
) -> None:
    blocks = _blocks("What happened to this transaction")
    ops = (
        messages.scan(row_filter=f"topic = '{OPS}'", selected_fields=("body",)).to_arrow()["body"].to_pylist()
    )
    noted = {int(offset) for body in ops for offset in body.decode().split(",") if offset}
    ids = {frame["properties"]["UNIQ_KEY"] for frame in truth if frame["topic"] == HALF}
    by_outcome = {(answer := _outcome(truth, each, noted))["outcome"]: (each, answer) for each in sorted(ids)}
    assert {"committed", "rolled back", "given up"} <= by_outcome.keys()
    cases = [(TRANSACTION, _outcome(truth, TRANSACTION, noted)), *by_outcome.values()]
    for transaction, expected in some(cases, 1):
        assert _in_spark(spark, blocks["sql"].replace(TRANSACTION, transaction)) == [expected]
    for transaction, expected in cases:
        query = blocks["sql"].replace(TRANSACTION, transaction)
        assert _in_duckdb(duck, query) == [expected]
        code = blocks["python pyiceberg"].replace(TRANSACTION, transaction)
        assert _in_pyiceberg(messages, code) == expected


def test_compressed_bodies(spark: Any, duck: Any, messages: Any, truth: list[dict[str, Any]]) -> None:
    orders = [frame for frame in truth if frame["topic"] == "orders"]
    expected = {
        frame["physicOffset"]: frame["bodyDecompressedSha256"] for frame in orders if frame["sysFlag"] & 1
    }
    assert len(expected) > 50
    for found in (_in_spark(spark, BODIES["sql"]), _in_duckdb(duck, BODIES["sql"])):
        assert {row["physical_offset"]: hashlib.sha256(row["body"]).hexdigest() for row in found} == expected
    bodies = _in_pyiceberg(messages, BODIES["python pyiceberg"])
    assert sorted(hashlib.sha256(body).hexdigest() for body in bodies.to_pylist()) == sorted(
        frame.get("bodyDecompressedSha256", frame["bodySha256"]) for frame in orders
    )


# That Spark reads a lake, and that a relocated one has all of it, is claimed without it.
def test_spark_reads_a_relocated_lake(spark: Any, tmp_path: Path) -> None:
    made = make_lake(LakeConfig.local(tmp_path / "lake"))
    snapshot = open_store(unpack("clean-stop", tmp_path / "store")).snapshot(0)
    first = snapshot.logs[0].sealed[:2]
    jobs = segment_jobs(
        made, first, store_id="s", lineage=0, broker=snapshot.broker, store_root=snapshot.root
    )
    expected = sum(row.row_count for row in archive_all(made, jobs))
    (tmp_path / "lake").rename(tmp_path / "moved")
    relocate(LakeConfig.local(tmp_path / "moved"))
    session = spark.newSession()
    exec(OPENING["python spark"], {"spark": session, "LAKE": str(tmp_path / "moved")})
    rows = session.sql("SELECT physical_offset, size FROM messages").toArrow()
    assert rows.num_rows == expected
