"""The rule of each expectation, and the suites of ``expectations/``, which name the columns that it reads.

The JSON there is all that says what is expected of a fact table; a user may read and tighten it. Free of
Great Expectations, since the rules judge without it as well: ``engine`` makes its classes of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from storage_engine.exceptions import BadInputError
from storage_engine.quality import rules

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
    rule: Callable[[rules.Rows], rules.Verdicts]

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
    "ExpectSegmentNamesToBeOffsets": rules.named_by_offset,
    "ExpectSegmentsToBeBackToBack": rules.back_to_back,
    "ExpectSegmentsToHaveTheConfiguredSize": rules.equal,
    "ExpectFramesToBeWhole": rules.equal,
    "ExpectMessagesToBeInTheirQueues": rules.none,
    "ExpectOffsetsToBeContiguous": rules.back_to_back,
    "ExpectFirstLiveEntryAtOrAboveMinOffset": rules.live_entries_at_or_above,
    "ExpectEntriesToPointIntoTheLog": rules.within,
    "ExpectFirstLiveEntryToNameItsMessage": rules.equal,
    "ExpectDependentsToFollowTheLog": rules.none,
    "ExpectCheckpointInRange": rules.in_range,
    "ExpectReceiptsToFormAChain": rules.chained,
    "ExpectReceiptsToBeSound": rules.blank,
    "ExpectRowsToBeWhereTheyWereProven": rules.blank,
    "ExpectDataFilesToMatchReceipts": rules.as_receipted,
    "ExpectDataFilesToBeInTheTableOnce": rules.in_table_once,
    "ExpectRowsToCoverSegments": rules.covered,
    "ExpectRowsToBeUnique": rules.unique,
    "ExpectCountsToMatchReceipts": rules.counted,
    "ExpectArchivedSegmentsToFollowOn": rules.follows_on,
    "ExpectOffsetsToFollowOn": rules.none,
    "ExpectOffsetsNotToBeginAgain": rules.none,
    "ExpectStoreAndLakeToFormOneInterval": rules.one_interval,
    "ExpectNoLostRanges": rules.not_lost,
    "ExpectNoRangesLetGoWithoutArchive": rules.not_let_go,
    "ExpectOverlapsToHoldTheSameBytes": rules.same_bytes,
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
"""By column, what it means that a fact table has nothing to say; see :mod:`storage_engine.quality.rules`."""


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
