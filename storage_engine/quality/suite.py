"""Which expectations hold of which fact table, and their JSON form in ``expectations/``.

What runs is the JSON (a user may read and tighten it); what writes the JSON is this module, and a test
keeps them equal. An expectation binds one rule to the columns that it reads. Free of Great
Expectations, since the rules judge without it as well: ``engine`` makes its classes of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.core.durable import write_file
from storage_engine.exceptions import BadInputError
from storage_engine.quality import rules

_CRITICAL = "critical"
WARNING = "warning"
"""For what does no harm (a broker cleans it up itself), what a person decided, what is proven and has to be
renewed (rows that another engine moved), and what the files alone can't tell from a fault (a topic that was
deleted and made again counts its queue offsets from 0 again)."""

EXAMPLES = 10
"""How many of the rows that break a rule a check names."""

SUBJECT = "subject"
"""Column of every fact table that names what the row is about."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """:param rule: tells of each row whether it is as it should be.
    :param columns: what the rule reads, in its order.
    :param severity: of a row that breaks it.
    """

    name: str
    description: str
    rule: Callable[[rules.Rows], rules.Verdicts]
    columns: tuple[str, ...]
    severity: str = _CRITICAL

    @property
    def type(self) -> str:
        """The name that suites have in JSON, as Great Expectations makes it of a class name."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


_ENTRIES_TO_POINT_INTO_THE_LOG = Expectation(
    "ExpectEntriesToPointIntoTheLog",
    "No entry points behind the logical end of the log.",
    rules.within,
    ("floor", "first_offset", "last_offset", "log_max_offset"),
)
_DEPENDENTS_TO_FOLLOW_THE_LOG = Expectation(
    "ExpectDependentsToFollowTheLog",
    "No file is left that points only below the log's min offset.",
    rules.none,
    ("left_over_files", "log_min_offset"),
    WARNING,
)
_ROWS_TO_COVER_SEGMENTS = Expectation(
    "ExpectRowsToCoverSegments",
    "The rows of an archived segment cover every byte of it.",
    rules.covered,
    ("base_offset", "end_offset", "first_row_offset", "last_row_end", "row_bytes", "gaps"),
)
_ROWS_TO_BE_UNIQUE = Expectation(
    "ExpectRowsToBeUnique",
    "No byte of a segment is archived twice.",
    rules.unique,
    ("duplicates", "expected_rows", "found_rows"),
)

SUITES: dict[str, tuple[Expectation, ...]] = {
    "store_segments": (
        Expectation(
            "ExpectSegmentNamesToBeOffsets",
            "A segment's name is the physical offset that its first frame carries.",
            rules.named_by_offset,
            ("name", "first_frame_offset"),
        ),
        Expectation(
            "ExpectSegmentsToBeBackToBack",
            "Each segment begins where the one before it ends.",
            rules.back_to_back,
            ("log", "base_offset", "end_offset"),
        ),
        Expectation(
            "ExpectSegmentsToHaveTheConfiguredSize",
            "Each segment is as long as its broker's settings say.",
            rules.equal,
            ("expected_size_bytes", "size_bytes"),
        ),
    ),
    "store_frames": (
        Expectation(
            "ExpectFramesToBeWhole",
            "Every byte below the logical end belongs to a valid frame, or to damage the receipt accepted.",
            rules.equal,
            ("accepted_damaged_bytes", "damaged_bytes"),
        ),
    ),
    "store_dispatch": (
        Expectation(
            "ExpectMessagesToBeInTheirQueues",
            "Every message of a walked segment has an entry at its queue offset that points at it.",
            rules.none,
            ("missing", "messages"),
            WARNING,
        ),
    ),
    "store_queue_files": (
        Expectation(
            "ExpectOffsetsToBeContiguous",
            "Each consume queue file begins at the queue offset where the one before it ends.",
            rules.back_to_back,
            ("queue", "start_offset", "end_offset"),
        ),
    ),
    "store_queues": (
        Expectation(
            "ExpectFirstLiveEntryAtOrAboveMinOffset",
            "A queue's first live entry, and every one behind it, points at or above the log's min offset.",
            rules.live_entries_at_or_above,
            ("log_min_offset", "first_live_offset", "lowest_live_offset"),
        ),
        _ENTRIES_TO_POINT_INTO_THE_LOG,
        Expectation(
            "ExpectFirstLiveEntryToNameItsMessage",
            "The frame that a queue's first live entry points at carries that topic, queue and queue offset.",
            rules.equal,
            ("expected_message", "found_message"),
        ),
        _DEPENDENTS_TO_FOLLOW_THE_LOG,
    ),
    "store_index_files": (
        _ENTRIES_TO_POINT_INTO_THE_LOG,
        _DEPENDENTS_TO_FOLLOW_THE_LOG,
    ),
    "store_checkpoint": (
        Expectation(
            "ExpectCheckpointInRange",
            "No checkpoint value lies before the epoch or behind what the log holds.",
            rules.in_range,
            ("low", "value", "high"),
        ),
    ),
    "lake_receipts": (
        Expectation(
            "ExpectReceiptsToFormAChain",
            "Every receipt hashes to what it says and names the one before it.",
            rules.chained,
            ("row_hash", "computed_row_hash", "previous_hash", "computed_previous_hash"),
        ),
        Expectation(
            "ExpectReceiptsToBeSound",
            "A deletion may rest on every receipt that was looked at.",
            rules.blank,
            ("fault", "row_hash"),
        ),
        Expectation(
            "ExpectRowsToBeWhereTheyWereProven",
            "No other engine has put a receipt's rows into other files since they were proven.",
            rules.blank,
            ("moved", "row_hash"),
            WARNING,
        ),
    ),
    "lake_data_files": (
        Expectation(
            "ExpectDataFilesToMatchReceipts",
            "Every data file is there with the length and hash of its receipt.",
            rules.as_receipted,
            ("expected_bytes", "found_bytes", "expected_sha256", "found_sha256"),
        ),
        Expectation(
            "ExpectDataFilesToBeInTheTableOnce",
            "The messages table has every receipted data file exactly once.",
            rules.in_table_once,
            ("times_in_table", "delete_files"),
        ),
    ),
    "lake_rows": (
        _ROWS_TO_COVER_SEGMENTS,
        _ROWS_TO_BE_UNIQUE,
    ),
    "rows_segments": (
        _ROWS_TO_COVER_SEGMENTS,
        _ROWS_TO_BE_UNIQUE,
        Expectation(
            "ExpectCountsToMatchReceipts",
            "A segment has as many messages as its receipt says.",
            rules.counted,
            ("expected_messages", "found_messages"),
        ),
        Expectation(
            "ExpectArchivedSegmentsToFollowOn",
            "Each archived segment of a log begins where the one before it ends.",
            rules.follows_on,
            ("segment_offset", "previous_end"),
            WARNING,
        ),
    ),
    "rows_queues": (
        Expectation(
            "ExpectOffsetsToFollowOn",
            "Within a stream each message has the offset behind the one before it, across segments.",
            rules.none,
            ("wrong_offsets", "first_offset", "last_offset", "messages"),
        ),
        Expectation(
            "ExpectOffsetsNotToBeginAgain",
            "No stream counts from 0 again, as it does where its topic was deleted and made again.",
            rules.none,
            ("begins_again", "first_offset", "last_offset", "messages"),
            WARNING,
        ),
    ),
    "across_ranges": (
        Expectation(
            "ExpectStoreAndLakeToFormOneInterval",
            "What store and lake hold of a log is one interval.",
            rules.one_interval,
            ("log", "start_offset", "end_offset", "where", "status"),
        ),
        Expectation(
            "ExpectNoLostRanges",
            "No range of a log is neither on disk nor provably in the lake.",
            rules.not_lost,
            ("where", "status"),
        ),
        Expectation(
            "ExpectNoRangesLetGoWithoutArchive",
            "No range was deleted without an archive, not even by a person's decision.",
            rules.not_let_go,
            ("where", "status"),
            WARNING,
        ),
    ),
    "across_overlaps": (
        Expectation(
            "ExpectOverlapsToHoldTheSameBytes",
            "A segment that is on disk and in the lake is the same in both.",
            rules.same_bytes,
            ("archived_sha256", "local_sha256", "unchanged"),
        ),
    ),
}
"""Name of a fact table → what is expected of its rows, in the order in which a person reads it. A validation
has the tables of what it looks at."""

EXPECTATIONS = {one.type: one for suite in SUITES.values() for one in suite}
"""By the name that suites have for them."""


def build_suite(name: str) -> dict[str, Any]:
    """The JSON form of one suite, as Great Expectations reads it."""
    return {
        "name": name,
        "expectations": [
            {
                "type": expectation.type,
                "description": expectation.description,
                "severity": expectation.severity,
                "kwargs": {"column_list": list(expectation.columns)},
                "meta": {},
            }
            for expectation in SUITES[name]
        ],
        "meta": {},
        "notes": None,
    }


def write_suites(directory: Path) -> None:
    """Write every suite as ``<name>.json``."""
    for name in SUITES:
        content = (json.dumps(build_suite(name), indent=2) + "\n").encode()
        write_file(directory / f"{name}.json", content, shared=True)


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
"""By column, what it means that a fact table has nothing to say; see :mod:`storage_engine.quality.rules`."""


def example_text(subject: object, values: Iterable[tuple[str, object]]) -> str:
    """Return what a row is about, and what was found there.

    :param values: the columns that the rule looks at, each with its value; -1, "", None and what is no number
        say nothing.
    """
    said = ", ".join(f"{name.replace('_', ' ')} {_said(name, value)}" for name, value in values)
    return f"{subject}: {said}"


def _said(name: str, value: object) -> object:
    # A table of numbers has NaN where another one has None: it alone isn't equal to itself.
    is_nothing = value is None or value != value or value in (-1, "")
    return _NOTHING.get(name, "none") if is_nothing else value
