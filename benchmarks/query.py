"""What a lake costs who asks it, against one that the package before version 3 wrote and today's upgraded.

``query-bytes``: what a question about one topic reads, in MiB, of as many messages in 10 and in 200 topics;
1.2 times those of the older lake may be read. The figures also have other questions.
``query-NAME``: processor time of each query that docs/query.md and docs/kafka-read.md document for PyIceberg
and DuckDB, as they stand there, in turns. Both lakes have the tests' stores, many times over.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.catalog import load_catalog

from benchmarks.common import Bench, in_turns, report
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.restore.export import Selection, export_messages
from storage_engine.lake.soundness.receipts import list_stores, receipt_history
from storage_engine.model.broker.kind import SampleRequest
from storage_engine.rocketmq.sample.writing import write_sample
from tests import kafka_fixture
from tests.docs.code_blocks import ROOT, blocks_under
from tests.fixture_stores import unpack
from tests.services.released import Released, released_package

MESSAGES, SEGMENT_BYTES = 240_000, 64 << 20
"""They fill four segments."""
TOPICS = (10, 200)
LARGER = 1.2
COPIES = 8
"""Of the stores that documented queries are asked of."""
ASKS = 5
"""In each turn."""
MUST = 0.9

_OLD_COLUMNS = {"query": "*, NULL::VARCHAR AS properties_text", "query-kafka": "*"}
"""What files of the older lake lack is null."""
_TOPIC, _KEY = "shipments-0006", "ORD-0000012345"
_PAGES = {
    "query": (
        "messages",
        (
            "All messages of a topic between two times",
            "By key",
            "What happened to this transaction",
            "One lineage",
            "Compressed bodies",
        ),
    ),
    "query-kafka": (
        "records",
        (
            "Records between two offsets",
            "Records of a minute",
            "By key",
            "By header",
            "Several nodes in one lake",
        ),
    ),
}
"""By page, the table and the headings."""


def archive(released: Released, store: Path, lakes: Path, kind: str, *options: str) -> None:
    """Archive a store's sealed segments into both lakes, with what either package has for that."""
    for name, command in (("old", released.cli), ("new", storage_engine)):
        if not (lakes / name).exists():
            command("init-lake", "--lake", lakes / name, "--broker-type", kind)
        command("archive", store, "--lake", lakes / name, *options)


def storage_engine(*words: object) -> None:
    """Run a command of today's package in a process of its own."""
    command = [Path(sys.executable).with_name("storage-engine"), *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure_bytes(released: Released, directory: Path, topics: int) -> Bench:
    """Ask both lakes of a sample store, and count what is read."""
    request = SampleRequest(directory / "sample", MESSAGES, topics, 7, 1, 1_795_000_000_000, SEGMENT_BYTES)
    written = write_sample(request)
    archive(released, Path(written.store), directory, "rocketmq", "--broker-conf", written.configuration)
    read: dict[str, dict[str, float]] = {}
    for name in ("old", "new"):
        lake = open_lake(LakeConfig.local(directory / name))
        (store,) = list_stores(lake)
        rows = receipt_history(lake, store.store_id)
        middle = rows[len(rows) // 2]
        first, last = middle.first_store_timestamp_ms or 0, middle.last_store_timestamp_ms or 0
        span = {"from_ms": first, "to_ms": first + (last - first) // 10}
        questions = {
            "everything": Selection(),
            "topic": Selection(topic=_TOPIC),
            "time": Selection(**span),
            "topic_and_time": Selection(topic=_TOPIC, **span),
            "key": Selection(key=_KEY),
            "topic_and_key": Selection(key=_KEY, topic=_TOPIC),
        }
        read[name] = {
            question: export_messages(lake, directory / f"{name}-{question}", selection).bytes_read
            for question, selection in questions.items()
        }
    detail = {
        f"{question}_{name}_mib": round(count / (1 << 20), 3)
        for name, counts in read.items()
        for question, count in counts.items()
    }
    return Bench(
        f"query-bytes-{topics}-topics", LARGER * read["old"]["topic"] / read["new"]["topic"], 1.0, detail
    )


def documented(
    page: str, lake: Path, connection: duckdb.DuckDBPyConnection
) -> Iterator[tuple[str, Callable[[], Sized]]]:
    """Yield the queries of a page by name, each to be asked of a lake.

    :param connection: gets a view of the table's files.
    """
    table_name, headings = _PAGES[page]
    document = ROOT / "docs" / {"query": "query.md", "query-kafka": "kafka-read.md"}[page]
    catalog = load_catalog("storage_engine", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    table = catalog.load_table(f"storage_engine.{table_name}")
    connection.execute("SET TimeZone = 'UTC'")
    names: dict[str, Any] = {"duckdb": connection, table_name: table}
    for heading in ("Opening it", *headings):
        blocks = blocks_under(document, heading)
        if opening := blocks.get("python duckdb", "").replace("import duckdb\n", ""):
            if lake.name == "old":
                opening = opening.replace(".create_view", ".project(OLD_COLUMNS).create_view")
            exec(opening, {**names, "OLD_COLUMNS": _OLD_COLUMNS[page]})
        short = re.sub(r"[^a-z]+", "-", heading.lower())
        if code := blocks.get("python pyiceberg") if heading != "Opening it" else blocks.get("python pandas"):
            if lake.name == "old":
                code = re.sub(
                    "^properties = .*$", 'properties = dict(half[0]["properties"])', code, flags=re.M
                )
            yield f"{page}-{short}-python", partial(_answer, code, {table_name: table})
        if sql := blocks.get("sql duckdb") or blocks.get("sql"):
            yield f"{page}-{short}-duckdb", partial(_rows_of, connection, sql)


def _answer(code: str, names: Mapping[str, object]) -> Any:
    found = dict(names)
    exec(code, found)
    return found["answer"]


def _rows_of(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return connection.sql(sql).to_arrow_table()


def measure_documented(released: Released, directory: Path, page: str) -> list[Bench]:
    """Ask both lakes what a page documents."""
    for number in range(COPIES):
        base = directory / f"store-{number}"
        base.mkdir(parents=True)
        if page == "query":
            store, kind = unpack("clean-stop", base), "rocketmq"
        else:
            store, kind = kafka_fixture.unpack(base) / "server.properties", "kafka"
        archive(released, store, directory, kind, "--name", base.name)
    storage_engine("lake", "upgrade", "--lake", directory / "old")
    with duckdb.connect() as of_old, duckdb.connect() as of_new:
        old = dict(documented(page, directory / "old", of_old))
        new = dict(documented(page, directory / "new", of_new))
        return [_compare(name, old[name], ask) for name, ask in new.items()]


def _compare(name: str, old_query: Callable[[], Sized], new_query: Callable[[], Sized]) -> Bench:
    answers = [len(query()) for query in (old_query, new_query)]
    if answers[0] != answers[1]:
        raise AssertionError(f"{name}: expected the same answers, found {answers[0]} and {answers[1]}")
    queries = {"old": old_query, "new": new_query}
    spent = in_turns({which: partial(_ask_again, query) for which, query in queries.items()})
    old, new = spent["old"], spent["new"]
    detail = {
        "old_processor_ms": round(old.processor * 1000 / ASKS, 1),
        "new_processor_ms": round(new.processor * 1000 / ASKS, 1),
        "ratio_of_wall_time": round(old.wall / new.wall, 2),
    }
    return Bench(name, old.processor / new.processor, MUST, detail)


def _ask_again(query: Callable[[], Sized]) -> None:
    for _ in range(ASKS):
        query()


def run() -> list[Bench]:
    """Measure in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="query-") as work:
        cache = Path(work, "releases")
        cache.mkdir()
        with released_package("before-trees", cache) as released:
            benches = []
            for topics in TOPICS:
                benches.append(measure_bytes(released, Path(work, f"{topics}-topics"), topics))
            for page in _PAGES:
                benches += measure_documented(released, Path(work, page), page)
    return benches


if __name__ == "__main__":
    report(run())
