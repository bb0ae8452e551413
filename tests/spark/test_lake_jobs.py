"""Jobs over a lake: rows that are missing, there twice or in the wrong place are named; usage is counted."""

from __future__ import annotations

import html
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage_engine.console.stores import validation_calendar
from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.report.usage import DeletionHours, HourAdvice, QuietHour, RetentionReport
from storage_engine.model.report.validation import CheckResult, Status
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import OffsetSpan, Outcome
from storage_engine.retention.store.managed_store import DATA_DOCS, PAGE, USAGE_PAGE, ManagedStore
from storage_engine.spark.retention_report import (
    RetentionReportRequest,
    retention_report,
    retention_report_of,
)
from storage_engine.spark.row_sums import hash_numbers
from storage_engine.spark.session import spark_session
from storage_engine.spark.validate_rows import (
    ValidateRowsRequest,
    chosen_receipts,
    validate_rows,
    validate_rows_of,
)
from tests.fixture_stores import unpack as unpack_store
from tests.kafka import lakes as kafka_lakes
from tests.kafka_fixture import unpack
from tests.lakes import make_lakes
from tests.other_engine import delete_position
from tests.rounds import rounds
from tests.spark.row_lakes import STORE, MadeSegment, made_segments, write_lake

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FAULTS: dict[str, tuple[str, ...]] = {
    "sound": (),
    "removed": ("ExpectRowsToCoverSegments", "ExpectRowsToBeUnique", "ExpectCountsToMatchReceipts"),
    "doubled": ("ExpectRowsToBeUnique", "ExpectCountsToMatchReceipts", "ExpectOffsetsToFollowOn"),
    "queue-offset": ("ExpectOffsetsToFollowOn",),
    "place": ("ExpectRowsToCoverSegments", "ExpectRowsToBeUnique"),
    "opposite-places": ("ExpectRowsToCoverSegments", "ExpectRowsToBeUnique"),
    "equal-offset-sums": ("ExpectOffsetsToFollowOn",),
    "row-count": ("ExpectRowsToBeUnique",),
    "message-count": ("ExpectCountsToMatchReceipts",),
    "segment": ("ExpectArchivedSegmentsToFollowOn",),
    "made-again": ("ExpectOffsetsNotToBeginAgain",),
    "expired": (),
}
"""By what is wrong with a log: which expectations it breaks, and no others."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with spark_session("test rows") as session:
        yield session


def made_log(name: str, chance: random.Random) -> list[MadeSegment]:
    """Return three segments with messages of each of four queues at least twice in each."""
    queues = [(topic, queue) for topic in ("orders", "refunds") for queue in (0, 1)]
    sizes = []
    for _ in range(3):
        messages = [*queues, *queues, *(chance.choice(queues) for _ in range(chance.randrange(20)))]
        chance.shuffle(messages)
        sizes.append([(topic, queue, chance.randrange(91, 1 << 16)) for topic, queue in messages])
    return made_segments(name, sizes)


def break_log(
    log: list[MadeSegment], fault: str, chance: random.Random
) -> tuple[list[MadeSegment], str, int]:
    """Put one thing wrong.

    :return: also what names its segment, and the position of the first byte that is wrong; -1: none is.
    """
    number = chance.randrange(3)
    segment = log[number]
    at = chance.randrange(len(segment.rows) - 1)
    row = segment.rows[at]
    name, place = f"{segment.receipt.log}/{segment.receipt.base_offset:020d} ", row["physical_offset"]
    if fault == "removed":
        del segment.rows[at]
        place += row["size"]
    elif fault == "doubled":
        segment.rows.insert(chance.randrange(len(segment.rows)), row)
    elif fault == "queue-offset":
        moved = chance.choice([-1000, -2, -1, 1, 2, 1000])
        segment.rows[at] = {**row, "queue_offset": row["queue_offset"] + moved}
        place = -1
    elif fault == "place":
        moved = chance.choice([-1, 1, 5]) if at else 1
        segment.rows[at] = {**row, "physical_offset": place + moved}
        place += moved
    elif fault == "opposite-places":
        # Neither the sum of positions times lengths nor that of lengths changes.
        up, between, down = segment.rows[1:4]
        segment.rows[1] = {**up, "physical_offset": up["physical_offset"] + down["size"]}
        segment.rows[3] = {**down, "physical_offset": down["physical_offset"] - up["size"]}
        place = min(row["physical_offset"] for row in (segment.rows[1], between, segment.rows[3]))
    elif fault == "equal-offset-sums":
        # One offset three times in as many row groups, and those beside it gone: count and sum are the same.
        log = made_segments(log[0].receipt.log, [[("orders", 0, 100)] * 30] * 3)
        segment, middle = log[number], log[number].rows[12]
        for one in (7, 17):
            segment.rows[one] = {**segment.rows[one], "queue_offset": middle["queue_offset"]}
        name, place = f"{segment.receipt.log}/{segment.receipt.base_offset:020d} ", -1
    elif fault in ("row-count", "message-count"):
        field = fault.replace("-", "_")
        count = getattr(segment.receipt, field) + chance.choice([-1, 1])
        segment.receipt = replace(segment.receipt, **{field: count})
        place = -1
    elif fault == "segment":
        name, place = f"{log[2].receipt.log}/{log[2].receipt.base_offset:020d} ", -1
        del log[1]
    elif fault == "made-again":
        begun: dict[tuple[str, int], int] = {}
        for later in log[1:]:
            for one in (one for one in later.rows if one["kind"] == "message"):
                key = one["topic"], one["queue_id"]
                one["queue_offset"] -= begun.setdefault(key, one["queue_offset"])
        name, place = f"{log[1].receipt.log}/{log[1].receipt.base_offset:020d} ", -1
    elif fault == "expired":
        log[1].receipt, place = replace(log[1].receipt, state="expired"), -1
    elif fault == "sound":
        place = -1
    return log, name, place


def of_log(checks: tuple[CheckResult, ...], log: str) -> dict[str, list[str]]:
    """Return what checks say of a log, by expectation."""
    found = {check.expectation: [e for e in check.examples if f"{log}/" in e] for check in checks}
    return {expectation: examples for expectation, examples in found.items() if examples}


@pytest.mark.again
@pytest.mark.parametrize("seed", range(rounds("STORAGE_ENGINE_ROW_ROUNDS", 1, 6)))
def test_each_row_that_is_wrong_is_named_with_its_segment_and_place(
    seed: int, spark: Any, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    broken = {fault: break_log(made_log(fault, chance), fault, chance) for fault in FAULTS}
    lake = write_lake(tmp_path / "lake", [segment for log, _, _ in broken.values() for segment in log])
    request = ValidateRowsRequest((lake.config,), STORE, "rocketmq", str(tmp_path / "docs"), "run")
    checks = validate_rows(spark, request).checks
    assert {check.checked_count for check in checks[:4]} == {34}
    for fault, (_, name, place) in broken.items():
        found = of_log(checks, fault)
        assert set(FAULTS[fault]) <= found.keys(), fault
        # A row that isn't there, or is there twice, is missing in its queue, or there twice, as well.
        assert found.keys() - {*FAULTS[fault], "ExpectOffsetsToFollowOn"} == set(), fault
        assert fault not in ("sound", "place", "segment", "expired") or "ExpectOffsetsToFollowOn" not in found
        texts = [text for texts in found.values() for text in texts]
        assert fault == "queue-offset" or fault == "removed" or all(name in text for text in texts), fault
        assert not FAULTS[fault] or any(name in text for text in texts), fault
        assert place < 0 or any(f"first wrong at {place}" in text for text in texts), (fault, texts)
    statuses = {check.expectation: check.status for check in checks}
    assert statuses["ExpectArchivedSegmentsToFollowOn"] is Status.WARNING
    assert statuses["ExpectOffsetsNotToBeginAgain"] is Status.WARNING
    assert statuses["ExpectRowsToCoverSegments"] is Status.FAILURE
    assert (tmp_path / "docs/gx/uncommitted/data_docs/storage_engine/index.html").is_file()


def test_spans_choose_the_segments_that_they_overlap_and_those_beside_them() -> None:
    log = [segment.receipt for segment in made_segments("a", [[("t", 0, 100)]] * 6)]
    other = [segment.receipt for segment in made_segments("b", [[("t", 0, 100)]])]
    ends = [receipt.end for receipt in log]
    assert chosen_receipts([*log, *other], ()) == [*log, *other]
    assert chosen_receipts([*log, *other], [OffsetSpan("a", ends[1], ends[2])]) == log[1:4]
    assert chosen_receipts(log, [OffsetSpan("a", ends[1] + 1, ends[1] + 2)]) == log[2:3]
    assert chosen_receipts(log, [OffsetSpan("c", 0, 1 << 40)]) == []


def checked(spark: Any, lake: Lake, store_id: str, broker: str, directory: Path) -> dict[str, CheckResult]:
    request = ValidateRowsRequest((lake.config,), store_id, broker, str(directory), "run")
    return {check.expectation: check for check in validate_rows(spark, request).checks}


@pytest.mark.again
def test_numbers_are_hashed_as_spark_hashes_them(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    numbers = [0, 1, -1, 42, 1 << 40, -(1 << 63), (1 << 63) - 1]
    rows = spark.createDataFrame([(number,) for number in numbers], "number long")
    expected = [row.hash % (1 << 64) for row in rows.select(F.xxhash64("number").alias("hash")).collect()]
    assert hash_numbers(pa.array([*numbers, None])).to_pylist() == [*expected, None]


@pytest.mark.again
def test_rows_of_kafka_may_skip_offsets_and_one_that_another_engine_deleted_is_missed(
    spark: Any, tmp_path: Path
) -> None:
    node, lake = unpack(tmp_path / "kafka"), kafka_lakes.new_lake(tmp_path / "lake")
    rows = kafka_lakes.archive(lake, node, kafka_lakes.archivable_segments(node))
    sound = checked(spark, lake, kafka_lakes.STORE, "kafka", tmp_path / "docs")
    assert {(check.status, bool(check.checked_count)) for check in sound.values()} == {(Status.OK, True)}
    receipt = next(row for row in rows if row.message_count)
    delete_position(lake, receipt, receipt.row_count - 1)
    found = checked(spark, lake, kafka_lakes.STORE, "kafka", tmp_path / "docs")
    (text,) = found["ExpectRowsToBeUnique"].examples
    assert text.startswith(f"rows of {receipt.log}/{receipt.base_offset:020d} (lineage 0)")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ManagedStore:
    """A store of RocketMQ of which all that is sealed is archived."""
    base = tmp_path_factory.mktemp("store")
    unpack_store("clean-stop", base / "broker")
    (root,) = (base / "broker").iterdir()
    managed = make_lakes(ManagedStore.local("orders", str(root), base / "data", time_zone="UTC", named=True))
    archive_sealed(managed, "ahead", archive_here)
    return managed


def test_rows_of_a_real_store_are_sound_and_its_run_says_so(spark: Any, store: ManagedStore) -> None:
    result = validate_rows_of(store, "rows/1", lambda request: validate_rows(spark, request))
    assert (result.overall, result.scope) == (Status.OK, "rows")
    assert {bool(check.checked_count) for check in result.checks} == {True}
    done = finish(store, "rows/1")
    assert (done.ok, done.outcome) == (True, Outcome.DONE)
    page = Path(done.report_json).with_name(PAGE).read_text()
    assert "the rows of archived segments" in page
    assert DATA_DOCS in page
    year = datetime.now(UTC).year
    (day,) = validation_calendar(JournalReader(store.journal_url), "orders", year).days
    assert day.passed == 1


@pytest.mark.again
def test_a_retention_report_counts_what_the_lake_has(spark: Any, store: ManagedStore) -> None:
    asked: list[RetentionReportRequest] = []

    def run_job(request: RetentionReportRequest) -> RetentionReport:
        asked.append(request)
        return retention_report(spark, request)

    report = retention_report_of(store, "usage/1", run_job)
    assert (asked[0].deletion, asked[0].time_zone) == (DeletionHours("deleteWhen", (4,)), "UTC")
    lake = open_lake(store.lake)
    rows = lake.messages().scan(selected_fields=("topic", "born_host", "size", "kind", "store_timestamp"))
    messages = rows.to_arrow().filter(pc.field("kind") == "message")
    assert report.messages == messages.num_rows
    assert report.size_bytes == pc.sum(messages["size"]).as_py()
    by_topic = messages.group_by("topic").aggregate([("size", "sum"), ([], "count_all")]).to_pylist()
    expected = {row["topic"]: (row["count_all"], row["size_sum"]) for row in by_topic}
    assert {row.name: (row.messages, row.size_bytes) for row in report.topics} == expected
    assert {row.name for row in report.hosts} == set(messages["born_host"].unique().to_pylist())
    cells = pq.read_table(report.usage_path)
    assert pc.sum(cells["size_bytes"]).as_py() == report.size_bytes
    hours = pc.divide(messages["store_timestamp"].cast(pa.int64()), 3_600_000_000)
    assert set(cells["hour"].to_pylist()) == set(hours.to_pylist())
    page = Path(report.usage_path).with_name(USAGE_PAGE).read_text()
    assert all(html.escape(topic.name) in page for topic in report.topics)
    assert report.quiet is None
    last_ms = 1 + max(hours.to_pylist()) * 3_600_000
    none = retention_report_of(store, "usage/2", run_job, first_ms=last_ms + 3_600_000)
    assert (none.messages, none.topics, none.first_hour) == (0, (), None)
    # A segment that either lake has counts once.
    both = replace(asked[0], lakes=(*asked[0].lakes, *asked[0].lakes))
    assert retention_report(spark, both).messages == report.messages


def test_the_last_reports_advice_is_a_note_of_doctor_until_it_is_followed(store: ManagedStore) -> None:
    nothing = RetentionReport(None, None, (), (), (), None, None, "usage.parquet")
    advised = replace(nothing, quiet=QuietHour(3, 0.01, 2, "UTC"), advice=HourAdvice("what", "of then"))
    for number, report in enumerate((nothing, advised)):
        retention_report_of(store, f"advice/{number}", lambda _, told=report: told)

    def quiet_notes(delete_when: str) -> list[Finding]:
        now = replace(store, overrides={**store.overrides, "deleteWhen": delete_when})
        found = diagnose(now, clock_ms(), has_lake=True).findings
        return [finding for finding in found if finding.kind == "quiet-hour"]

    (note,) = quiet_notes("04;16")
    assert (note.severity, note.advice) == (Severity.NOTE, "set deleteWhen to 03")
    assert note.what.startswith("the quiet hour of the day is 03 (UTC): 1.0 % of")
    assert note.what.endswith("deleteWhen is 04;16")
    (followed,) = quiet_notes("03")
    assert (followed.advice, "deleteWhen" in followed.what) == ("", False)
    retention_report_of(store, "advice/2", lambda _: nothing)
    assert quiet_notes("04") == []
