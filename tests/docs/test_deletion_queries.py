"""docs/query.md and docs/deletions.ipynb say where a deleted message is, and why it went."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.retention.store.managed_store import ManagedStore
from tests.docs.code_blocks import blocks_under
from tests.integration.jars import JAVA_PROJECTS, class_path
from tests.integration.stores import FIXTURES, unpack
from tests.kafka.stopped_nodes import make_node
from tests.lakes import make_lakes
from tests.retention.conftest import HOURS_AGO_NS, MANUAL
from tests.services.command_line import run_command

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]

DOCS = Path(__file__).resolve().parents[2] / "docs"
MIB = 1 << 20
KEY = "ORD-1200006"
OPENING = blocks_under(DOCS / "query.md", "Opening it")
BLOCKS = blocks_under(DOCS / "query.md", "Where a deleted message is, and why it went")
VIEW = BLOCKS["sql"]
OF_KAFKA = blocks_under(DOCS / "kafka-read.md", "Where a deleted record is, and why it went")["sql duckdb"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run deleted all that is sealed."""
    base = tmp_path_factory.mktemp("deleted")
    root = unpack("clean-stop", base / "store")
    old_ns = clock_ms() * 10**6 - HOURS_AGO_NS
    for segment in (root / "commitlog").iterdir():
        os.utime(segment, ns=(old_ns, old_ns))
    store = make_lakes(ManagedStore.local("main", str(root), base / "managed", time_zone="UTC"))
    cleanup = cycle.Cleanup(store, "tuesday", replace(MANUAL, max_segments=7))
    for step in (cycle.plan, cycle.archive, cycle.release, cycle.report):
        step(cleanup)
    return store.lakes[0].location.removeprefix("file://").removesuffix("/warehouse")


@pytest.fixture(scope="module")
def opened(lake: str) -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {"LAKE": lake}
    for code in (OPENING["python pyiceberg"], OPENING["python duckdb"], BLOCKS["python duckdb"]):
        exec(code, names)
    duckdb.execute("SET TimeZone = 'UTC'")
    yield names
    duckdb.execute("DROP VIEW deletions_now; DROP VIEW messages")
    duckdb.unregister("segments")
    duckdb.unregister("deletions")


def today(text: str) -> str:
    """A query that asks of the day of the cleanup, which was a moment ago."""
    now = datetime.now(UTC) - timedelta(hours=1)
    days = [(now + timedelta(days=number)).strftime("%Y-%m-%d") for number in (0, 1, 2)]
    return text.replace("2026-11-25", "END").replace("2026-11-24", days[0]).replace("END", days[2])


def expected() -> list[tuple[Any, ...]]:
    """What RocketMQ's own classes read of the key."""
    with gzip.open(FIXTURES / "clean-stop.commitlog.jsonl.gz", "rt", encoding="utf-8") as lines:
        frames = [json.loads(line) for line in lines]
    return sorted(
        (frame["topic"], frame["queueId"], frame["queueOffset"], frame["physicOffset"] // MIB * MIB)
        for frame in frames
        if frame["kind"] == "message"
        and frame["physicOffset"] < 7 * MIB
        and KEY in {*frame["properties"].get("KEYS", "").split(" "), frame["properties"].get("UNIQ_KEY")}
    )


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    assert {(row["what"], row["cause"], row["who"], row["run"]) for row in rows} == {
        ("released", "expired", "storage-engine", "tuesday")
    }
    return sorted(
        (row["topic"], row["queue_id"], row["queue_offset"], row["segment_base_offset"]) for row in rows
    )


def test_duckdb_and_pyiceberg_say_where_the_message_is_and_why_it_went(opened: dict[str, Any]) -> None:
    assert expected()
    found = duckdb.sql(today(BLOCKS["sql duckdb"])).to_arrow_table().to_pylist()
    assert told(found) == expected()
    exec(today(BLOCKS["python pyiceberg"]), opened)
    assert told(opened["answer"]) == expected()
    assert duckdb.sql(BLOCKS["sql duckdb"].replace("2026-", "1999-")).fetchall() == []
    duckdb.execute(VIEW)
    places = duckdb.sql("SELECT start_offset, end_offset, place FROM deletions_now").fetchall()
    assert places == [(0, 7 * MIB, "in this lake")]


@pytest.mark.parametrize(
    ("expired", "place"), [(1, "in this lake in part"), (7, "expired"), (0, "in this lake")]
)
def test_what_expired_is_told_as_that(opened: dict[str, Any], expired: int, place: str) -> None:
    segments = opened["catalog"].load_table("storage_engine.segments").scan().to_arrow()
    rows = segments.sort_by("base_offset").to_pylist()
    rows += [{**row, "sequence": row["sequence"] + 7, "state": "expired"} for row in rows[:expired]]
    if not expired:
        # They were archived again after that.
        again = [{**row, "sequence": row["sequence"] + 14} for row in rows]
        rows += [{**row, "sequence": row["sequence"] + 7, "state": "expired"} for row in rows] + again
    duckdb.register("segments", pa.Table.from_pylist(rows, schema=segments.schema))
    try:
        duckdb.execute(VIEW)
        assert duckdb.sql("SELECT place FROM deletions_now").fetchall() == [(place,)]
    finally:
        duckdb.register("segments", segments)


def test_the_notebook_runs_and_answers(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", lake)
    monkeypatch.setenv("KEY", KEY)
    notebook = json.loads((DOCS / "deletions.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    names["connection"].close()
    assert told(names["message"].to_pylist()) == expected()
    assert [(row["run"], row["end_offset"]) for row in names["lately"].to_pylist()] == [("tuesday", 7 * MIB)]
    assert names["places"]["place"].to_pylist() == ["in this lake"]
    assert all(names["comments"].values())
    assert VIEW.strip() in "".join(notebook["cells"][-1]["source"])


@pytest.mark.again
def test_what_a_replica_archived_is_found_by_the_topics_id(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    for number, name in ((1, "n1"), (2, "n2")):
        node = make_node(tmp_path / name, ("a-0",), ("logs",))
        node.settings["a"]["retention.ms"] = "1000"
        node.replicas["a-0"] = (1, 2)
        properties = node.write()
        for path in (properties, *tmp_path.glob(f"{name}/**/meta.properties")):
            path.write_text(path.read_text().replace("node.id=1", f"node.id={number}"))
        words = ("--lag-policy", "ignore", "--replicas-stopped", "both are down")
        assert run_command("clean", properties, "--lake", lake, "--name", name, *words).exit_code == 0
    catalog = load_catalog("storage_engine", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    with duckdb.connect() as connection:
        for name in ("records", "segments", "deletions"):
            connection.register(name, catalog.load_table(f"storage_engine.{name}").scan().to_arrow())
        connection.execute(VIEW)
        places = connection.sql(
            "SELECT store_id, start_offset, end_offset, place FROM deletions_now"
        ).fetchall()
        assert len({store_id for store_id, *_ in places}) == 2
        assert {tuple(row) for _, *row in places} == {(0, 4, "in this lake")}
        by_offset = OF_KAFKA.replace("AND r.key = 'order-7'::BLOB", "")
        found = connection.sql(by_offset).to_arrow_table().to_pylist()
    assert sorted((row["offset"], row["run"][:5]) for row in found) == [
        (offset, "clean") for offset in range(4) for _ in places
    ]


@pytest.mark.again
@pytest.mark.integration
def test_spark_says_the_same(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from storage_engine.spark.session import spark_session

    jars = class_path(JAVA_PROJECTS / "iceberg")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--driver-class-path {jars} pyspark-shell")
    with spark_session("test deletions") as spark:
        exec(OPENING["python spark"], {"spark": spark, "LAKE": lake})
        assert told(spark.sql(today(BLOCKS["sql spark"])).toArrow().to_pylist()) == expected()
        spark.sql(VIEW)
        assert [row.place for row in spark.sql("SELECT place FROM deletions_now").collect()] == [
            "in this lake"
        ]
        comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE deletions").collect()}
        assert comments["cause"] == "why it went, in one word"
