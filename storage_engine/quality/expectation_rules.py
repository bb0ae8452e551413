"""The rules behind the expectations, the suites that name them, and runs of suites by the rules alone.

A rule is pure: it takes the columns that its expectation names, by name, and returns one boolean a row. They
are arrays of NumPy or Series of pandas; those of the suites of rows may be Spark's as well. Text is "" and an
offset is -1 where a fact table has nothing to say.

The suites of ``expectations/`` name each expectation's columns. The JSON there is all that says what is
expected of a fact table; a user may read and tighten it. Free of Great Expectations, since the rules judge
without it as well: ``engine`` makes its classes of these.
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
"""A table of facts: a :class:`FactTable`, or a DataFrame of pandas or of Spark, where there are any."""
Verdicts = Any
"""One boolean a row, as the columns have it."""
_NUMBERS = (int, float, np.number, np.bool_)


@dataclass(frozen=True, slots=True)
class FactTable:
    """Facts as rows and as columns of NumPy: what the rules read without pandas.

    :param rows: each with the same columns.
    :param columns: that a rule reads, in its order; one may stand there twice.
    """

    rows: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        """Return a column as an array. A number that isn't known is NaN, as in pandas."""
        values = [row[name] for row in self.rows]
        known = [value for value in values if value is not None]
        if not all(isinstance(value, _NUMBERS) for value in known) or not known:
            return np.array(values, object)
        if len(known) < len(values):
            return np.array([np.nan if value is None else value for value in values], float)
        return np.array(values)


def named_by_offset(rows: Rows) -> Verdicts:
    """A segment's name is 20 digits and its first frame carries that physical offset.

    (``MappedFileQueue#load`` takes the offset from the name; ``CommitLog#checkMessageAndReturnSize``
    compares nothing with it, so only the frame itself tells.)

    :param rows: name, first_frame_offset (-1: no message begins the file).
    """
    well_named = np.array([re.fullmatch(r"\d{20}", str(name)) is not None for name in rows["name"]], bool)
    offset = np.array(
        [int(name) if good else -1 for name, good in zip(rows["name"], well_named, strict=True)]
    )
    first = rows["first_frame_offset"]
    return well_named & ((first == -1) | (first == offset))


def back_to_back(rows: Rows) -> Verdicts:
    """Each row begins where the row before it in its group ends; nothing has a negative start.

    :param rows: group, start, end by position, in ascending order.
    """
    group, start, end = (rows[name] for name in rows.columns[:3])
    return _follow(group, start, end, np.ones(len(start), bool))


def _follow(group: Iterable[object], start: Any, end: Any, counts: Iterable[bool]) -> Verdicts:
    """Judge whether each row begins at the end of the previous counted row of its group."""
    ends: dict[object, int] = {}
    previous_end = []
    for name, its_end, is_counted in zip(group, end, counts, strict=True):
        previous_end.append(ends.get(name, -1))
        if is_counted:
            ends[name] = its_end
    previous = np.array(previous_end)
    return (start >= 0) & (end >= start) & ((previous == -1) | (previous == start))


def equal(rows: Rows) -> Verdicts:
    """Both columns hold the same; a row whose second one is unknown ("" or -1) has nothing to compare.

    :param rows: expected, found by position.
    """
    expected, found = (rows[name] for name in rows.columns[:2])
    return (found == expected) | (found == ("" if found.dtype.kind not in "iu" else -1))


def live_entries_at_or_above(rows: Rows) -> Verdicts:
    """The first live entry, and what follows it, points at or above the log's min offset.

    :param rows: log_min_offset, first_live_offset (-1: every entry is dead), lowest_live_offset.
    """
    dead = rows["first_live_offset"] == -1
    return dead | (
        (rows["first_live_offset"] >= rows["log_min_offset"])
        & (rows["lowest_live_offset"] >= rows["log_min_offset"])
    )


def within(rows: Rows) -> Verdicts:
    """low ≤ first ≤ last ≤ high, where first and last are known (not -1).

    :param rows: low, first, last, high by position.
    """
    low, first, last, high = (rows[name] for name in rows.columns[:4])
    return (first == -1) | (last == -1) | ((low <= first) & (first <= last) & (last <= high))


def covered(rows: Rows) -> Verdicts:
    """Archived rows cover [base_offset, end_offset) without gap.

    :param rows: base_offset, end_offset, first_row_offset, last_row_end, row_bytes, gaps.
    """
    return (
        (rows["first_row_offset"] == rows["base_offset"])
        & (rows["last_row_end"] == rows["end_offset"])
        & (rows["row_bytes"] >= rows["end_offset"] - rows["base_offset"])
        & (rows["gaps"] == 0)
    )


def one_interval(rows: Rows) -> Verdicts:
    """Judge whether store and lake hold one interval: each range begins where the one before it ends.

    A range that is lost doesn't count, so the range behind a gap breaks the rule; one that a person
    gave up (WARNING) does. What is unknown counts as lost.

    :param rows: log, start_offset, end_offset, where, status.
    """
    held = not_lost(rows)
    return ~held | _follow(rows["log"], rows["start_offset"], rows["end_offset"], held)


def not_lost(rows: Rows) -> Verdicts:
    """No range is lost unless a person decided it. What is unknown counts as lost.

    :param rows: where, status.
    """
    return ((rows["where"] != "LOST") & (rows["where"] != "UNKNOWN")) | (rows["status"] != "FAILURE")


def not_let_go(rows: Rows) -> Verdicts:
    """No range is gone by a person's decision.

    :param rows: where, status.
    """
    return (rows["where"] != "LOST") | (rows["status"] != "WARNING")


def same_bytes(rows: Rows) -> Verdicts:
    """Judge whether hashes agree where store and lake overlap; an unchanged file isn't hashed again.

    :param rows: archived_sha256, local_sha256 ("" when not read), unchanged.
    """
    read = rows["local_sha256"] != ""
    return (read & (rows["local_sha256"] == rows["archived_sha256"])) | (~read & rows["unchanged"])


def chained(rows: Rows) -> Verdicts:
    """A receipt hashes to what it says, and names the hash of the one before it.

    :param rows: row_hash, computed_row_hash, previous_hash, computed_previous_hash.
    """
    return (rows["row_hash"] == rows["computed_row_hash"]) & (
        rows["previous_hash"] == rows["computed_previous_hash"]
    )


def blank(rows: Rows) -> Verdicts:
    """Nothing is said against a row: its text is empty.

    :param rows: the text, then further values for a reader.
    """
    return rows[rows.columns[0]] == ""


def as_receipted(rows: Rows) -> Verdicts:
    """A data file is there, with the length and (where it was read) the hash of its receipt.

    :param rows: expected_bytes, found_bytes (-1: no such file), expected_sha256, found_sha256 ("": not read).
    """
    unread = rows["found_sha256"] == ""
    return (rows["found_bytes"] == rows["expected_bytes"]) & (
        unread | (rows["found_sha256"] == rows["expected_sha256"])
    )


def in_table_once(rows: Rows) -> Verdicts:
    """The table's current snapshot has a data file exactly once, and deletes nothing from it.

    :param rows: times_in_table, delete_files.
    """
    return (rows["times_in_table"] == 1) & (rows["delete_files"] == 0)


def unique(rows: Rows) -> Verdicts:
    """No two archived rows cover the same bytes, and their number is the receipt's.

    :param rows: duplicates, expected_rows, found_rows.
    """
    return (rows["duplicates"] == 0) & (rows["found_rows"] == rows["expected_rows"])


def none(rows: Rows) -> Verdicts:
    """A count is zero.

    :param rows: the count, then further values for a reader.
    """
    return rows[rows.columns[0]] == 0


def counted(rows: Rows) -> Verdicts:
    """Check that there are as many messages as the receipt says.

    :param rows: expected_messages, found_messages.
    """
    return rows["found_messages"] == rows["expected_messages"]


def follows_on(rows: Rows) -> Verdicts:
    """A segment begins at the offset where the one archived before it ends.

    :param rows: segment_offset, previous_end (-1: none comes before it).
    """
    return (rows["previous_end"] == -1) | (rows["previous_end"] == rows["segment_offset"])


def in_range(rows: Rows) -> Verdicts:
    """A value lies within its bounds, where it says something (isn't -1).

    :param rows: low, value, high.
    """
    value = rows["value"]
    return (value == -1) | ((rows["low"] <= value) & (value <= rows["high"]))


WARNING = "warning"
"""Severity of findings that do no harm (a broker cleans it up itself), that a person decided, that are proven
and have to be renewed (rows that another engine moved), and that the files alone can't tell from a fault (a
topic that was deleted and made again counts its queue offsets from 0 again)."""

EXAMPLES = 10
"""Number of rows that a check names of those that break its rule."""

SUBJECT = "subject"
"""Column of every fact table that names what the row is about."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """:param rule: tells of each row whether it is as it should be."""

    name: str
    rule: Callable[[Rows], Verdicts]

    @property
    def type(self) -> str:
        """The name that suites have in JSON, as Great Expectations makes it of a class name."""
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
"""Fact tables, in the order in which a person reads what is expected of their rows."""

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

EXPECTATIONS = {one.type: one for one in starmap(Expectation, _RULES.items())}
"""By the name that suites have for them."""


def read_suite(directory: Path, name: str) -> Mapping[str, Any]:
    """Read one suite as its JSON says it.

    :raises BadInputError: there is no such file, or it lists no expectations.
    """
    path = directory / f"{name}.json"
    try:
        suite: Mapping[str, Any] = json.loads(path.read_bytes())
        iter(suite["expectations"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise not_a_suite(path, error) from error
    return suite


def not_a_suite(path: Path, error: Exception) -> BadInputError:
    """Return the error for a file that is no expectation suite."""
    return BadInputError(f"{path}: expected an expectation suite, found {error!r}")


_NOTHING = {"found_bytes": "none (no such file)", "found_sha256": "none (not read)"}
"""By column, what it means that a fact table has nothing to say; see the module."""


def example_text(subject: object, values: Iterable[tuple[str, object]]) -> str:
    """Return the subject of a row, and the value found there.

    :param values: the columns that the rule looks at, each with its value; -1, "", None and non-numbers say
        nothing.
    """
    said = ", ".join(f"{name.replace('_', ' ')} {_said(name, value)}" for name, value in values)
    return f"{subject}: {said}"


def _said(name: str, value: object) -> object:
    # A table of numbers has NaN where another one has None: it alone isn't equal to itself.
    is_nothing = value is None or value != value or value in (-1, "")
    return _NOTHING.get(name, "none") if is_nothing else value


NOTE = (
    "Great Expectations is not installed: the same rules judged without it, and there are no Data Docs. "
    f"To have them: {QUALITY.install}"
)


def run_suites(tables: Mapping[str, FactTable], suites: Path) -> tuple[CheckResult, ...]:
    """Check every fact table against the suite of its name.

    :param tables: by suite name, those that were looked for; one without rows has nothing to check, and
        its checks say so.
    :param suites: directory with the suites' JSON.
    :return: one row an expectation, in the order of :data:`SUITES`.
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
        # Of a suite that was changed: what can't be evaluated doesn't hold.
        said = f"could not be evaluated: {error}"
        return CheckResult(path.stem, expectation.name, description, failed, 0, 0, (said,))
    return CheckResult(
        suite=path.stem,
        expectation=expectation.name,
        description=description,
        status=failed if broken else Status.OK,
        checked_count=len(table.rows),
        unexpected_count=len(broken),
        examples=tuple(_example(row, columns) for row in broken[:EXAMPLES]),
    )


def _example(row: Mapping[str, Any], columns: list[str]) -> str:
    return example_text(row[SUBJECT], ((name, row[name]) for name in columns))
