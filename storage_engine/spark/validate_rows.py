"""Row-level validation of a lake as a Spark job. Sums decide. Single rows are checked only if sums disagree.

The job checks which rows exist, not their content: receipts and their hashes prove each byte.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms
from storage_engine.core.extras import QUALITY
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.scan import live_files_of
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import origin_of
from storage_engine.model.broker.codec import SegmentCodec, offsets_count_bytes
from storage_engine.model.proof.receipt import Receipt, end_word, ended, select_whole
from storage_engine.model.report.validation import CheckResult, ValidationResult
from storage_engine.quality.facts import archived_lakes
from storage_engine.quality.validate import output_directory, save_validation
from storage_engine.resources import project_path
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.report.report import OffsetSpan
from storage_engine.retention.store.context import AnyStore, managed_of, open_context
from storage_engine.retention.store.managed_store import DATA_DOCS_DIRECTORY, claim, store_name
from storage_engine.spark.row_sums import (
    ROWS,
    SEGMENT,
    SUMS,
    RowGroup,
    StoreFiles,
    columns_read,
    keep_frame,
    map_row_groups,
    place_rows,
    sum_rows,
    unite_frames,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SCOPE = "rows"

_RECEIPTS = (
    "lineage int, log string, segment_base_offset long, name string, origin long, size_bytes long, "
    "expected_rows long, expected_messages long, end_offset long, previous_end long, run int, "
    "is_damaged boolean"
)


@dataclass(frozen=True, slots=True)
class ValidateRowsRequest:
    """The ranges to check. They are passed to the job as JSON.

    :param lakes: lakes of the store. Each lake is checked by itself.
    :param spans: offsets to check, with the neighbouring segments; empty for all segments in the lakes.
    :param directory: directory for the Great Expectations project. Its former contents are removed.
    """

    lakes: tuple[LakeConfig, ...]
    store_id: str
    broker: str
    directory: str
    run_name: str
    spans: tuple[OffsetSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidateRowsResult:
    checks: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()


def validate_rows_of(
    store: AnyStore,
    run_key: str | None,
    run_job: Callable[[ValidateRowsRequest], ValidateRowsResult],
    spans: Sequence[OffsetSpan] = (),
    output_dir: Path | None = None,
) -> ValidationResult:
    """Check the rows of a store's lakes, and write page, JSON and Data Docs like any validation.

    :param run_key: key of the run that records the result. This call begins it. None records nothing.
    :param run_job: function that runs :func:`validate_rows`, in this process or on a cluster.
    :param spans: offsets to check; empty for all.
    :param output_dir: directory for the results; None for the run's directory.
    :raises BadInputError: no part of the store is archived, or ``output_dir`` has files of another user.
    :raises LakeUnavailableError: no lake can be read.
    """
    started_ns, checked_at_ms = time.monotonic_ns(), clock_ms()
    managed = managed_of(store)
    store_id, request_lakes, notes = archived_lakes(store)
    directory = output_directory(store, run_key, output_dir)
    claim(directory)
    if run_key is not None:
        begin_background_run(open_context(store), run_key)
    request = ValidateRowsRequest(
        lakes=request_lakes,
        store_id=store_id,
        broker=managed.broker,
        directory=str(directory / DATA_DOCS_DIRECTORY),
        run_name=directory.name,
        spans=tuple(spans),
    )
    answer = run_job(request)
    result = ValidationResult(
        store_root=managed.real_root,
        store_id=store_id,
        run_key=run_key,
        scope=_SCOPE,
        checked_at_ms=checked_at_ms,
        duration_ms=(time.monotonic_ns() - started_ns) // 1_000_000,
        ranges=(),
        checks=answer.checks,
        notes=(*notes, *answer.notes),
        name=store_name(managed),
    )
    save_validation(store, run_key, result, directory)
    return result


def validate_rows(spark: SparkSession, request: ValidateRowsRequest) -> ValidateRowsResult:
    """Check the rows of a store's archived segments, and write Data Docs.

    :raises LakeUnavailableError: a lake, or a file of its table, can't be read, so its state is unknown.
    :raises ProofError: a data file isn't a Parquet file.
    """
    spark.sparkContext.setJobGroup("validate rows", f"validate rows of store {request.store_id}")
    facts = [_look_at(spark, config, request) for config in request.lakes]
    tables = {
        "rows_segments": keep_frame(unite_frames(of_lake.segments for of_lake in facts), 1),
        "rows_queues": keep_frame(unite_frames(of_lake.queues for of_lake in facts), 1),
    }
    directory, suites = Path(request.directory), project_path("expectations")
    notes = tuple(of_lake.note for of_lake in facts)
    if QUALITY.is_installed:
        # Imported here, because Great Expectations takes seconds to import, which no task should wait for.
        from storage_engine.quality.engine import run_suites

        return ValidateRowsResult(run_suites(tables, suites, directory, run_name=request.run_name), notes)
    from storage_engine.quality import expectation_rules

    frames = {name: table.toPandas() for name, table in tables.items()}
    return ValidateRowsResult(expectation_rules.run_suites(frames, suites), (*notes, expectation_rules.NOTE))


@dataclass(frozen=True, slots=True)
class _LakeFacts:
    segments: DataFrame
    queues: DataFrame
    note: str


def _look_at(spark: SparkSession, config: LakeConfig, request: ValidateRowsRequest) -> _LakeFacts:
    lake = open_lake(config)
    table, codec = lake.messages(), find_broker(request.broker).codec
    every_row = chosen_receipts(receipts(lake, request.store_id, with_ended=True), request.spans)
    rows, expired = select_whole(every_row), ended(every_row)
    files = tuple(live_files_of(table, rows))
    source = StoreFiles(config, table, request.store_id, files)
    where = f" in {config.location}" if len(request.lakes) > 1 else ""
    expected = spark.createDataFrame(list(_expect_rows(every_row, where)), _RECEIPTS)
    cores = spark.sparkContext.defaultParallelism
    sums = keep_frame(_sums(spark, source, codec), cores)
    segments, queues = _segment_sums(expected, sums), _stream_sums(expected, sums, codec)
    odd = segments.filter("is_odd").select(*SEGMENT).union(queues.filter("is_odd").select(*SEGMENT))
    odd = keep_frame(odd.distinct(), 1)
    located = sums.join(odd, [*SEGMENT], "left_semi").select("location").distinct()
    locations = {row.location for row in located.collect()}
    again = replace(source, files=tuple(file for file in files if file.location in locations))
    single = keep_frame(_single_rows(spark, again, codec).join(odd, [*SEGMENT], "left_semi"), cores)
    size_bytes, odd_count = sum(row.size_bytes for row in rows), odd.count()
    note = (
        f"rows of {count_text(len(rows), 'segment')} ({bytes_text(size_bytes)}) in "
        f"{count_text(len(files), 'data file')}{where}; single rows were checked in "
        f"{count_text(odd_count, 'segment')}"
    )
    for word, count in Counter(end_word(row.end_text) for row in expired).items():
        note += f"; {count_text(count, 'segment')} {word}"
    return _LakeFacts(_segment_facts(segments, single), _queue_facts(queues, single, codec), note)


def chosen_receipts(rows: Sequence[Receipt], spans: Sequence[OffsetSpan]) -> list[Receipt]:
    """Return the receipts that overlap a span or adjoin it, or all receipts if there is no span."""

    def is_chosen(row: Receipt) -> bool:
        return any(
            row.log == span.log and row.base_offset <= span.end_offset and row.end >= span.first_offset
            for span in spans
        )

    return [row for row in rows if not spans or is_chosen(row)]


def _expect_rows(rows: Sequence[Receipt], where: str) -> Iterator[tuple[Any, ...]]:
    """Yield one row with the values of each receipt. ``run`` numbers the unbroken runs of a log's segments.

    An expired segment has no row, and the segment after it begins a new run.
    """
    run, before = 0, None
    for row in sorted(rows, key=lambda row: (row.log, row.lineage, row.base_offset)):
        follows = before is not None and (before.log, before.lineage) == (row.log, row.lineage)
        previous_end = before.end if before is not None and follows else -1
        is_behind_expired = before is not None and not before.is_whole
        run += is_behind_expired or previous_end != row.base_offset
        if is_behind_expired and previous_end == row.base_offset:
            previous_end = -1
        name = f"{row.log}/{row.base_offset:020d} (lineage {row.lineage}){where}"
        counts = (row.size_bytes, row.row_count, row.message_count, row.end, previous_end, run)
        place = (row.lineage, row.log, row.base_offset, name, origin_of(row))
        if row.is_whole:
            yield (*place, *counts, row.damaged_bytes > 0)
        before = row


def _sums(spark: SparkSession, source: StoreFiles, codec: SegmentCodec) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    def add_up(rows: Any, place: RowGroup) -> Any:
        return sum_rows(rows, place.location, codec)

    parts = map_row_groups(spark, source, columns_read(codec.columns), add_up, SUMS)
    return _added_up(parts.groupBy(*SEGMENT, "stream", "location"), F)


def _added_up(groups: Any, F: Any) -> DataFrame:  # noqa: N803
    """Return one row of sums for each group, added up from the group's rows of partial sums."""
    sums: DataFrame = groups.agg(
        *(F.sum(name).alias(name) for name in ("row_count", "messages", "row_bytes", "offsets")),
        *(F.sum(name).alias(name) for name in ("distinct_offsets", "unknown_steps")),
        # Sums of hashes may be wider than a long.
        *(F.sum(F.col(name).cast("decimal(38,0)")).alias(name) for name in ("byte_chain", "offset_chain")),
        *(F.min(name).alias(name) for name in ("first", "first_offset")),
        *(F.max(name).alias(name) for name in ("last", "last_offset")),
    )
    return sums


def _segment_sums(expected: DataFrame, sums: DataFrame) -> DataFrame:
    """Return each segment's sums with its receipt, and whether they show a gap or an overlap."""
    from pyspark.sql import functions as F  # noqa: N812

    joined = expected.join(_added_up(sums.groupBy(*SEGMENT), F), [*SEGMENT], "left")
    covers = (
        (F.col("first") == 0)
        & (F.col("last") == F.col("size_bytes"))
        & (F.col("row_bytes") == F.col("size_bytes"))
        & _is_joined("byte_chain", F.col("first"), F.col("last"))
    )
    # An empty segment has no row with bytes.
    empty = (F.col("size_bytes") == 0) & (F.coalesce("row_bytes", F.lit(0)) == 0)
    return joined.withColumn("is_odd", ~F.coalesce(covers | empty, F.lit(False)))


def _stream_sums(expected: DataFrame, sums: DataFrame, codec: SegmentCodec) -> DataFrame:
    """Return each stream's sums in each segment, and whether its offsets are out of sequence.

    If the columns don't show the next offset after a message, offsets may have gaps.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    joined = _added_up(sums.filter("offsets > 0").groupBy(*SEGMENT, "stream"), F).join(expected, [*SEGMENT])
    # Bytes that don't decode may have been messages of any stream.
    joined = joined.withColumn("unknown_steps", F.col("unknown_steps") + F.col("is_damaged").cast("long"))
    in_turn = Window.partitionBy("lineage", "log", "run", "stream").orderBy("segment_base_offset")
    for name, source in (("previous_last", "last_offset"), ("previous_unknown", "unknown_steps")):
        joined = joined.withColumn(name, F.lag(source).over(in_turn))
    span = F.col("last_offset") - F.col("first_offset") + 1
    is_whole = _is_joined("offset_chain", F.col("first_offset"), F.col("last_offset") + 1)
    may_skip = (F.col("unknown_steps") > 0) & (F.col("offsets") < span)
    once = F.col("distinct_offsets") == F.col("offsets")
    skipped = F.col("first_offset") - F.col("previous_last") - 1
    follows = F.col("previous_last").isNull() | (skipped == 0)
    follows |= (F.col("previous_unknown") > 0) & (skipped > 0)
    return joined.withColumn(
        "is_odd", ~(once & (is_whole | may_skip) & follows & _within(codec, "first_offset", "last_offset"))
    )


def _is_joined(chain: str, start: Column, end: Column) -> Column:
    """Return whether a chain of ``row_sums.sum_rows`` leads from ``start`` to ``end``."""
    from pyspark.sql import functions as F  # noqa: N812

    first, last = (F.xxhash64(number).cast("decimal(38,0)") for number in (start, end))
    return (F.col(chain) - (last - first)) % F.lit(Decimal(1 << 64)) == 0


def _within(codec: SegmentCodec, first: str, last: str) -> Column:
    """Return whether offsets are within their segment, or true if the segment's offsets count bytes."""
    from pyspark.sql import functions as F  # noqa: N812

    if offsets_count_bytes(codec):
        return F.lit(True)
    return (F.col(first) >= F.col("segment_base_offset")) & (F.col(last) < F.col("end_offset"))


def _single_rows(spark: SparkSession, source: StoreFiles, codec: SegmentCodec) -> DataFrame:
    def place(rows: Any, at: RowGroup) -> Any:
        return place_rows(rows, at.first_row, codec)

    return map_row_groups(spark, source, columns_read(codec.columns), place, ROWS)


def _segment_facts(segments: DataFrame, single: DataFrame) -> DataFrame:
    """Return the facts of ``rows_segments``. Gaps and overlaps are counted only if sums disagree."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    by_start = Window.partitionBy(*SEGMENT).orderBy("start", "row")
    reached = F.max(F.col("start") + F.col("size")).over(by_start.rowsBetween(Window.unboundedPreceding, -1))
    placed = single.filter("size > 0").withColumn("reached", F.coalesce(reached, F.lit(0)))
    broken = (
        placed.filter("start <> reached")
        .groupBy(*SEGMENT)
        .agg(
            F.count_if(F.col("start") > F.col("reached")).alias("gaps"),
            F.count_if(F.col("start") < F.col("reached")).alias("duplicates"),
            F.min("start").alias("broken_at"),
        )
    )
    overlap = (F.col("previous_end") > F.col("segment_base_offset")).cast("long")
    return segments.join(broken, [*SEGMENT], "left").select(
        F.concat(
            F.lit("rows of "),
            "name",
            F.coalesce(F.concat(F.lit(", first wrong at "), F.col("broken_at") + F.col("origin")), F.lit("")),
        ).alias("subject"),
        F.col("segment_base_offset").alias("segment_offset"),
        "previous_end",
        F.col("origin").alias("base_offset"),
        (F.col("origin") + F.col("size_bytes")).alias("end_offset"),
        F.coalesce(F.col("origin") + F.col("first"), F.lit(-1)).alias("first_row_offset"),
        F.coalesce(F.col("origin") + F.col("last"), F.lit(-1)).alias("last_row_end"),
        F.coalesce("row_bytes", F.lit(0)).alias("row_bytes"),
        F.coalesce("gaps", F.lit(0)).alias("gaps"),
        (F.coalesce("duplicates", F.lit(0)) + overlap).alias("duplicates"),
        "expected_rows",
        F.coalesce("row_count", F.lit(0)).alias("found_rows"),
        "expected_messages",
        F.coalesce("messages", F.lit(0)).alias("found_messages"),
    )


def _queue_facts(queues: DataFrame, single: DataFrame, codec: SegmentCodec) -> DataFrame:
    """Return the facts of ``rows_queues``. Offsets are checked row by row only if sums disagree."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    odd = queues.filter("is_odd").select(
        *SEGMENT, "stream", "end_offset", "origin", "previous_last", "previous_unknown", "is_damaged"
    )
    in_turn = Window.partitionBy(*SEGMENT, "stream").orderBy("start", "row")
    before = F.coalesce(F.lag("offset").over(in_turn), F.col("previous_last"))
    step = F.coalesce(
        F.lag(F.coalesce("step", F.lit(-1))).over(in_turn),
        F.when(F.col("previous_unknown") == 0, F.lit(1)).otherwise(F.lit(-1)),
    )
    followed = (
        single.filter("offset is not null")
        .join(odd, [*SEGMENT, "stream"])
        .withColumn("before", before)
        .withColumn("place_before", F.lag("start").over(in_turn))
        .withColumn("step", step)
    )
    # Two copies of a row have the same place.
    is_later = F.col("start") > F.coalesce("place_before", F.lit(-1))
    begins_again = (F.col("offset") == 0) & (F.col("before") >= 0) & is_later
    if not offsets_count_bytes(codec):
        begins_again = F.lit(False)
    is_back = (F.col("offset") <= F.col("before")) & ~begins_again
    is_skipped = (F.col("step") > 0) & (F.col("offset") > F.col("before") + F.col("step"))
    is_skipped &= ~F.col("is_damaged")
    is_wrong = F.coalesce(is_back | is_skipped, F.lit(False)) | ~_within(codec, "offset", "offset")
    place = F.struct("start", F.col("offset").alias("found"), F.col("before").alias("behind"))
    broken = followed.groupBy(*SEGMENT, "stream").agg(
        F.count_if(is_wrong).alias("wrong_offsets"),
        F.count_if(begins_again).alias("begins_again"),
        F.min(F.when(is_wrong | F.coalesce(begins_again, F.lit(False)), place)).alias("broken"),
        F.first("origin").alias("broken_origin"),
    )
    at = F.concat(
        F.lit(", first wrong at "),
        F.col("broken.start") + F.col("broken_origin"),
        F.lit(": offset "),
        "broken.found",
        F.coalesce(F.concat(F.lit(" behind "), "broken.behind"), F.lit("")),
    )
    return queues.join(broken, [*SEGMENT, "stream"], "left").select(
        F.concat("stream", F.lit(" in "), "name", F.coalesce(at, F.lit(""))).alias("subject"),
        "first_offset",
        "last_offset",
        F.col("offsets").alias("messages"),
        F.coalesce("wrong_offsets", F.lit(0)).alias("wrong_offsets"),
        F.coalesce("begins_again", F.lit(0)).alias("begins_again"),
    )
