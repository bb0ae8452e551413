"""The expectations' rules, the suites that name them, and runs of suites without Great Expectations.

A rule is pure. It takes the columns that its expectation names, and returns one boolean for each row. A
column is a NumPy array or a pandas Series. In the suites of rows, it may also be a Spark column. A fact table
has "" for a missing text, and -1 for a missing offset.

The JSON of the suites in ``expectations/`` alone decides what is expected of a fact table. Users may make it
stricter. This module doesn't import Great Expectations. ``engine`` makes its classes from these rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from storage_engine.core.extras import QUALITY
from storage_engine.exceptions import BadInputError
from storage_engine.model.report.validation import CheckResult, Status

Rows = Any
"""A table of facts: a :class:`FactTable`, or a DataFrame of pandas or Spark that has rows."""
Verdicts = Any
"""One boolean for each row, in the type of the columns."""
_NUMBERS = (int, float, np.number, np.bool_)


@dataclass(frozen=True, slots=True)
class FactTable:
    """Facts as rows, and as NumPy columns that rules read without pandas.

    :param rows: the rows, each with the same columns.
    :param columns: the columns that a rule reads, in the rule's order. The same column may occur twice.
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """Return a column as an array. An unknown number is NaN, as in pandas."""
        values = [row[name] for row in self.rows]
        present = [value for value in values if value is not None]
        if not all(isinstance(value, _NUMBERS) for value in present) or not present:
            return np.array(values, object)
        if len(present) < len(values):
            return np.array([np.nan if value is None else value for value in values], float)
        return np.array(values)


def named_by_offset(rows: Rows) -> Verdicts:
    """Check that a segment's name is 20 digits, and that its first frame has this physical offset.

    ``MappedFileQueue#load`` takes the offset from the name. ``CommitLog#checkMessageAndReturnSize`` doesn't
    compare this offset with the frame.

    :param rows: name, first_frame_offset (-1 if no message begins the file).
    """
    well_named = np.array([re.fullmatch(r"\d{20}", str(name)) is not None for name in rows["name"]], bool)
    offset = np.array(
        [int(name) if fits else -1 for name, fits in zip(rows["name"], well_named, strict=True)]
    )
    first = rows["first_frame_offset"]
    return well_named & ((first == -1) | (first == offset))


def back_to_back(rows: Rows) -> Verdicts:
    """Check that each row begins at the end of the previous row in its group, and that no start is negative.

    :param rows: group, start, end, in this order, whatever their names. Rows are ascending.
    """
    group, start, end = (rows[name] for name in rows.columns[:3])
    return _follow(group, start, end, np.ones(len(start), bool))


def _follow(group: Iterable[object], start: Any, end: Any, counts: Iterable[bool]) -> Verdicts:
    """Judge whether each row begins at the end of the previous counted row of its group."""
    ends: dict[object, int] = {}
    previous_end = []
    for name, row_end, is_counted in zip(group, end, counts, strict=True):
        previous_end.append(ends.get(name, -1))
        if is_counted:
            ends[name] = row_end
    previous = np.array(previous_end)
    return (start >= 0) & (end >= start) & ((previous == -1) | (previous == start))


def equal(rows: Rows) -> Verdicts:
    """Check that both columns have the same value. A row passes if its second value is unknown ("" or -1).

    :param rows: expected, found, in this order, whatever their names.
    """
    expected, actual = (rows[name] for name in rows.columns[:2])
    return (actual == expected) | (actual == ("" if actual.dtype.kind not in "iu" else -1))


def live_entries_at_or_above(rows: Rows) -> Verdicts:
    """Check that the first live entry and all later entries point to the log's min offset or above.

    :param rows: log_min_offset, first_live_offset (-1 if all entries are dead), lowest_live_offset.
    """
    dead = rows["first_live_offset"] == -1
    return dead | (
        (rows["first_live_offset"] >= rows["log_min_offset"])
        & (rows["lowest_live_offset"] >= rows["log_min_offset"])
    )


def within(rows: Rows) -> Verdicts:
    """Check that low ≤ first ≤ last ≤ high. A row passes if first or last is unknown (-1).

    :param rows: low, first, last, high, in this order, whatever their names.
    """
    low, first, last, high = (rows[name] for name in rows.columns[:4])
    return (first == -1) | (last == -1) | ((low <= first) & (first <= last) & (last <= high))


def covered(rows: Rows) -> Verdicts:
    """Check that archived rows cover [base_offset, end_offset) without a gap.

    :param rows: base_offset, end_offset, first_row_offset, last_row_end, row_bytes, gaps.
    """
    return (
        (rows["first_row_offset"] == rows["base_offset"])
        & (rows["last_row_end"] == rows["end_offset"])
        & (rows["row_bytes"] >= rows["end_offset"] - rows["base_offset"])
        & (rows["gaps"] == 0)
    )


def one_interval(rows: Rows) -> Verdicts:
    """Check that each range of store and lake begins at the end of the previous range.

    A lost or unknown range isn't counted, so the range after the gap breaks the rule. A range with
    only a WARNING is counted, such as an accepted loss.

    :param rows: log, start_offset, end_offset, where, status.
    """
    counted = not_lost(rows)
    return ~counted | _follow(rows["log"], rows["start_offset"], rows["end_offset"], counted)


def not_lost(rows: Rows) -> Verdicts:
    """Check that no range is lost or unknown, except ranges with only a WARNING, such as accepted losses.

    :param rows: where, status.
    """
    return ((rows["where"] != "LOST") & (rows["where"] != "UNKNOWN")) | (rows["status"] != "FAILURE")


def not_let_go(rows: Rows) -> Verdicts:
    """Check that there is no lost range with only a WARNING, such as an accepted loss.

    :param rows: where, status.
    """
    return (rows["where"] != "LOST") | (rows["status"] != "WARNING")


def same_bytes(rows: Rows) -> Verdicts:
    """Check that the hashes of a segment in store and lake agree. An unchanged file isn't hashed again.

    :param rows: archived_sha256, local_sha256 ("" if not read), unchanged.
    """
    read = rows["local_sha256"] != ""
    return (read & (rows["local_sha256"] == rows["archived_sha256"])) | (~read & rows["unchanged"])


def chained(rows: Rows) -> Verdicts:
    """Check that each receipt has the right hash of its contents, and names the previous receipt's hash.

    :param rows: row_hash, computed_row_hash, previous_hash, computed_previous_hash.
    """
    return (rows["row_hash"] == rows["computed_row_hash"]) & (
        rows["previous_hash"] == rows["computed_previous_hash"]
    )


def blank(rows: Rows) -> Verdicts:
    """Check that a row's text is empty, so that it names no fault.

    :param rows: the text, then further values for a reader.
    """
    return rows[rows.columns[0]] == ""


def as_receipted(rows: Rows) -> Verdicts:
    """Check that a data file has the length that its receipt says, and, if the file was read, the hash.

    :param rows: expected_bytes, found_bytes (-1 if missing), expected_sha256, found_sha256 ("" if not read).
    """
    unread = rows["found_sha256"] == ""
    return (rows["found_bytes"] == rows["expected_bytes"]) & (
        unread | (rows["found_sha256"] == rows["expected_sha256"])
    )


def in_table_once(rows: Rows) -> Verdicts:
    """Check that the table's current snapshot has a data file exactly once, and none of its rows is deleted.

    :param rows: times_in_table, delete_files.
    """
    return (rows["times_in_table"] == 1) & (rows["delete_files"] == 0)


def unique(rows: Rows) -> Verdicts:
    """Check that no two archived rows cover the same bytes, and that there are as many as the receipt says.

    :param rows: duplicates, expected_rows, found_rows.
    """
    return (rows["duplicates"] == 0) & (rows["found_rows"] == rows["expected_rows"])


def none(rows: Rows) -> Verdicts:
    """Check that a count is zero.

    :param rows: the count, then further values for a reader.
    """
    return rows[rows.columns[0]] == 0


def counted(rows: Rows) -> Verdicts:
    """Check that there are as many messages as the receipt says.

    :param rows: expected_messages, found_messages.
    """
    return rows["found_messages"] == rows["expected_messages"]


def follows_on(rows: Rows) -> Verdicts:
    """Check that a segment begins at the end of the segment archived before it.

    :param rows: segment_offset, previous_end (-1 if there is no such segment).
    """
    return (rows["previous_end"] == -1) | (rows["previous_end"] == rows["segment_offset"])


def in_range(rows: Rows) -> Verdicts:
    """Check that a value is within its bounds. A row passes if its value is unknown (-1).

    :param rows: low, value, high.
    """
    value = rows["value"]
    return (value == -1) | ((rows["low"] <= value) & (value <= rows["high"]))


WARNING = "warning"
"""Severity of findings that are no certain fault.

Such a state is one that the broker repairs, that a person decided, or that only looks like a fault. A topic
that was deleted and created again looks like a fault. Moved rows whose receipt must be renewed belong here.
"""

EXAMPLES = 10
"""Largest number of rows that a check names as examples of broken rules."""

SUBJECT = "subject"
"""Column of every fact table that names the row's subject."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """:param rule: decides for each row whether it meets the expectation."""

    name: str
    rule: Callable[[Rows], Verdicts]

    @property
    def type(self) -> str:
        """The name that suites use in JSON. Great Expectations derives it from the class name."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


SUITES = (
    "store_segments",
    "store_frames",
    "store_dispatch",
    "store_queue_files",
    "store_queues",
    "store_index_files",
    "store_checkpoint",
    "lake_receipts",
    "lake_data_files",
    "lake_rows",
    "rows_segments",
    "rows_queues",
    "across_ranges",
    "across_overlaps",
)
"""Names of the fact tables, in the order of their checks on pages."""

_RULES = {
    "ExpectSegmentNamesToBeOffsets": named_by_offset,
    "ExpectSegmentsToBeBackToBack": back_to_back,
    "ExpectSegmentsToHaveTheConfiguredSize": equal,
    "ExpectFramesToBeWhole": equal,
    "ExpectMessagesToBeInTheirQueues": none,
    "ExpectOffsetsToBeContiguous": back_to_back,
    "ExpectFirstLiveEntryAtOrAboveMinOffset": live_entries_at_or_above,
    "ExpectEntriesToPointIntoTheLog": within,
    "ExpectFirstLiveEntryToNameItsMessage": equal,
    "ExpectDependentsToFollowTheLog": none,
    "ExpectCheckpointInRange": in_range,
    "ExpectReceiptsToFormAChain": chained,
    "ExpectReceiptsToBeSound": blank,
    "ExpectRowsToBeWhereTheyWereProven": blank,
    "ExpectDataFilesToMatchReceipts": as_receipted,
    "ExpectDataFilesToBeInTheTableOnce": in_table_once,
    "ExpectRowsToCoverSegments": covered,
    "ExpectRowsToBeUnique": unique,
    "ExpectCountsToMatchReceipts": counted,
    "ExpectArchivedSegmentsToFollowOn": follows_on,
    "ExpectOffsetsToFollowOn": none,
    "ExpectOffsetsNotToBeginAgain": none,
    "ExpectStoreAndLakeToFormOneInterval": one_interval,
    "ExpectNoLostRanges": not_lost,
    "ExpectNoRangesLetGoWithoutArchive": not_let_go,
    "ExpectOverlapsToHoldTheSameBytes": same_bytes,
}

EXPECTATIONS = {expectation.type: expectation for expectation in starmap(Expectation, _RULES.items())}
"""Expectations by the names that suites use."""


def read_suite(directory: Path, name: str) -> Mapping[str, Any]:
    """Read one suite from its JSON file.

    :raises BadInputError: the file is missing, or it lists no expectations.
    """
    path = directory / f"{name}.json"
    try:
        suite: Mapping[str, Any] = json.loads(path.read_bytes())
        iter(suite["expectations"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise not_a_suite(path, error) from error
    return suite


def not_a_suite(path: Path, error: Exception) -> BadInputError:
    """Return the error for a file that isn't an expectation suite."""
    return BadInputError(f"{path}: expected an expectation suite, found {error!r}")


_NOTHING = {"found_bytes": "none (no such file)", "found_sha256": "none (not read)"}
"""Text for a missing value, by column. Other columns have "none"."""


def example_text(subject: object, values: Iterable[tuple[str, object]]) -> str:
    """Return the subject of a row, and the values that were found there.

    :param values: columns that the rule reads, with their values. -1, "", None and NaN are shown as missing.
    """
    text = ", ".join(f"{name.replace('_', ' ')} {_say_value(name, value)}" for name, value in values)
    return f"{subject}: {text}"


def _say_value(name: str, value: object) -> object:
    # Tables of numbers have NaN in place of None, and only NaN differs from itself.
    is_nothing = value is None or value != value or value in (-1, "")
    return _NOTHING.get(name, "none") if is_nothing else value


NOTE = (
    "Great Expectations is not installed. The same rules were checked without it, but there are no Data "
    f"Docs. To get them: {QUALITY.install}"
)


def run_suites(tables: Mapping[str, FactTable], suites: Path) -> tuple[CheckResult, ...]:
    """Check each fact table against the suite of its name.

    :param tables: tables by suite name. A table without rows passes its checks with a count of 0.
    :param suites: directory with the suites' JSON.
    :return: one row for each expectation, in the order of :data:`SUITES`.
    :raises BadInputError: a suite can't be read.
    :raises MissingExtraError: a suite has an expectation that only Great Expectations can check.
    """
    return tuple(
        _check(suites / f"{name}.json", item, tables[name])
        for name in SUITES
        if name in tables
        for item in read_suite(suites, name)["expectations"]
    )


def _check(path: Path, item: Mapping[str, Any], table: FactTable) -> CheckResult:
    try:
        kind, arguments = item["type"], item["kwargs"]
        if kind not in EXPECTATIONS or set(arguments) != {"column_list"}:
            raise QUALITY.missing(f"{path}: {kind} with {', '.join(arguments)}")
        columns = list(arguments["column_list"])
    except (KeyError, TypeError) as error:
        raise not_a_suite(path, error) from error
    expectation, description = EXPECTATIONS[kind], item.get("description") or ""
    failed = Status.WARNING if item.get("severity") == WARNING else Status.FAILURE
    try:
        verdicts = expectation.rule(FactTable(table.rows, tuple(columns))) if table.rows else ()
        broken = [row for row, is_good in zip(table.rows, verdicts, strict=True) if not is_good]
    except Exception as error:
        # A user may have changed the suite. An expectation that can't be evaluated fails.
        text = f"could not be evaluated: {error}"
        return CheckResult(path.stem, expectation.name, description, failed, 0, 0, (text,))
    return CheckResult(
        suite=path.stem,
        expectation=expectation.name,
        description=description,
        status=failed if broken else Status.OK,
        checked_count=len(table.rows),
        unexpected_count=len(broken),
        examples=tuple(
            example_text(row[SUBJECT], [(name, row[name]) for name in columns]) for row in broken[:EXAMPLES]
        ),
    )
