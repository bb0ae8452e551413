"""The custom expectations: each binds one rule to the columns of a fact table that it reads.

Importing this module imports Great Expectations, which takes seconds: only :mod:`.engine` and
:mod:`.suite` do, when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import pandas as pd

from storage_engine.quality import rules
from storage_engine.quality.gx import (
    MulticolumnMapExpectation,
    MulticolumnMapMetricProvider,
    PandasExecutionEngine,
    multicolumn_condition_partial,
)


@cache
def _metric(rule: Callable[[pd.DataFrame], pd.Series[bool]]) -> str:
    """Register ``rule`` as a row-wise metric on pandas.

    :return: the metric's name.
    """

    class Rule(MulticolumnMapMetricProvider):  # type: ignore[misc]
        condition_metric_name = f"storage_engine.{rule.__name__}"
        condition_value_keys: ClassVar[tuple[str, ...]] = ()

        @multicolumn_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
        def _pandas(cls, column_list: pd.DataFrame, **_: Any) -> pd.Series[bool]:  # noqa: N805
            return rule(column_list)

    return str(Rule.condition_metric_name)


class RowExpectation(MulticolumnMapExpectation):  # type: ignore[misc]
    """Base of the expectations: every row counts, also one without a single value."""

    columns: ClassVar[tuple[str, ...]]
    ignore_row_if: str = "never"


class ExpectSegmentNamesToBeOffsets(RowExpectation):
    """A segment's name is the physical offset that its first frame carries."""

    map_metric = _metric(rules.named_by_offset)
    columns: ClassVar[tuple[str, ...]] = ("name", "first_frame_offset")


class ExpectSegmentsToBeBackToBack(RowExpectation):
    """Each segment begins where the one before it ends."""

    map_metric = _metric(rules.back_to_back)
    columns: ClassVar[tuple[str, ...]] = ("log", "base_offset", "end_offset")


class ExpectSegmentsToHaveTheConfiguredSize(RowExpectation):
    """Each segment is as long as the broker's mappedFileSizeCommitLog says."""

    map_metric = _metric(rules.equal)
    columns: ClassVar[tuple[str, ...]] = ("expected_size_bytes", "size_bytes")


class ExpectFramesToBeWhole(RowExpectation):
    """Every byte below the logical end belongs to a valid frame, or to damage the receipt accepted."""

    map_metric = _metric(rules.equal)
    columns: ClassVar[tuple[str, ...]] = ("accepted_damaged_bytes", "damaged_bytes")


class ExpectOffsetsToBeContiguous(RowExpectation):
    """Each consume queue file begins at the queue offset where the one before it ends."""

    map_metric = _metric(rules.back_to_back)
    columns: ClassVar[tuple[str, ...]] = ("queue", "start_offset", "end_offset")


class ExpectFirstLiveEntryAtOrAboveMinOffset(RowExpectation):
    """A queue's first live entry, and every one behind it, points at or above the log's min offset."""

    map_metric = _metric(rules.live_entries_at_or_above)
    columns: ClassVar[tuple[str, ...]] = ("log_min_offset", "first_live_offset", "lowest_live_offset")


class ExpectEntriesToPointIntoTheLog(RowExpectation):
    """No entry points behind the logical end of the log."""

    map_metric = _metric(rules.within)
    columns: ClassVar[tuple[str, ...]] = ("floor", "first_offset", "last_offset", "log_max_offset")


class ExpectFirstLiveEntryToNameItsMessage(RowExpectation):
    """The frame that a queue's first live entry points at carries that topic, queue and queue offset."""

    map_metric = _metric(rules.equal)
    columns: ClassVar[tuple[str, ...]] = ("expected_message", "found_message")


class ExpectDependentsToFollowTheLog(RowExpectation):
    """No queue or index file is left that points only below the log's min offset."""

    map_metric = _metric(rules.none)
    columns: ClassVar[tuple[str, ...]] = ("left_over_files", "log_min_offset")


class ExpectMessagesToBeInTheirQueues(RowExpectation):
    """Every message of a walked segment has an entry at its queue offset that points at it."""

    map_metric = _metric(rules.none)
    columns: ClassVar[tuple[str, ...]] = ("missing", "messages")


class ExpectCheckpointInRange(RowExpectation):
    """No checkpoint value lies before the epoch or behind what the log holds."""

    map_metric = _metric(rules.in_range)
    columns: ClassVar[tuple[str, ...]] = ("low", "value", "high")


class ExpectReceiptsToFormAChain(RowExpectation):
    """Every receipt hashes to what it says and names the one before it."""

    map_metric = _metric(rules.chained)
    columns: ClassVar[tuple[str, ...]] = (
        "row_hash",
        "computed_row_hash",
        "previous_hash",
        "computed_previous_hash",
    )


class ExpectReceiptsToBeSound(RowExpectation):
    """A deletion may rest on every receipt that was looked at."""

    map_metric = _metric(rules.blank)
    columns: ClassVar[tuple[str, ...]] = ("fault", "row_hash")


class ExpectRowsToBeWhereTheyWereProven(RowExpectation):
    """No other engine has put a receipt's rows into other files since they were proven."""

    map_metric = _metric(rules.blank)
    columns: ClassVar[tuple[str, ...]] = ("moved", "row_hash")


class ExpectDataFilesToMatchReceipts(RowExpectation):
    """Every data file is there with the length and hash of its receipt."""

    map_metric = _metric(rules.as_receipted)
    columns: ClassVar[tuple[str, ...]] = ("expected_bytes", "found_bytes", "expected_sha256", "found_sha256")


class ExpectDataFilesToBeInTheTableOnce(RowExpectation):
    """The messages table has every receipted data file exactly once."""

    map_metric = _metric(rules.in_table_once)
    columns: ClassVar[tuple[str, ...]] = ("times_in_table", "delete_files")


class ExpectRowsToCoverSegments(RowExpectation):
    """The rows of an archived segment cover every byte of it."""

    map_metric = _metric(rules.covered)
    columns: ClassVar[tuple[str, ...]] = (
        "base_offset",
        "end_offset",
        "first_row_offset",
        "last_row_end",
        "row_bytes",
        "gaps",
    )


class ExpectRowsToBeUnique(RowExpectation):
    """No byte of a segment is archived twice."""

    map_metric = _metric(rules.unique)
    columns: ClassVar[tuple[str, ...]] = ("duplicates", "expected_rows", "found_rows")


class ExpectStoreAndLakeToFormOneInterval(RowExpectation):
    """What store and lake hold of a log is one interval."""

    map_metric = _metric(rules.one_interval)
    columns: ClassVar[tuple[str, ...]] = ("log", "start_offset", "end_offset", "where", "status")


class ExpectNoLostRanges(RowExpectation):
    """No range of a log is neither on disk nor provably in the lake."""

    map_metric = _metric(rules.not_lost)
    columns: ClassVar[tuple[str, ...]] = ("where", "status")


class ExpectNoRangesLetGoWithoutArchive(RowExpectation):
    """No range was deleted without an archive, not even by a person's decision."""

    map_metric = _metric(rules.not_let_go)
    columns: ClassVar[tuple[str, ...]] = ("where", "status")


class ExpectOverlapsToHoldTheSameBytes(RowExpectation):
    """A segment that is on disk and in the lake is the same in both."""

    map_metric = _metric(rules.same_bytes)
    columns: ClassVar[tuple[str, ...]] = ("archived_sha256", "local_sha256", "unchanged")
