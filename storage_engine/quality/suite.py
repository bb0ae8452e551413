"""Which expectations hold of which fact table, and their JSON form in ``expectations/``.

What runs is the JSON (a user may read and tighten it); what writes the JSON is this module, and a test
keeps them equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from storage_engine.core.durable import write_file
from storage_engine.exceptions import BadInputError
from storage_engine.quality import expectations as e
from storage_engine.quality.expectations import Expectation

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


_CRITICAL = "critical"
WARNING = "warning"
"""For what does no harm (a broker cleans it up itself), what a person decided, what is proven and has to be
renewed (rows that another engine moved), and what the files alone can't tell from a fault (a topic that was
deleted and made again counts its queue offsets from 0 again)."""

SUITES: dict[str, tuple[tuple[Expectation, str], ...]] = {
    "store_segments": (
        (e.SEGMENT_NAMES_TO_BE_OFFSETS, _CRITICAL),
        (e.SEGMENTS_TO_BE_BACK_TO_BACK, _CRITICAL),
        (e.SEGMENTS_TO_HAVE_THE_CONFIGURED_SIZE, _CRITICAL),
    ),
    "store_frames": ((e.FRAMES_TO_BE_WHOLE, _CRITICAL),),
    "store_dispatch": ((e.MESSAGES_TO_BE_IN_THEIR_QUEUES, WARNING),),
    "store_queue_files": ((e.OFFSETS_TO_BE_CONTIGUOUS, _CRITICAL),),
    "store_queues": (
        (e.FIRST_LIVE_ENTRY_AT_OR_ABOVE_MIN_OFFSET, _CRITICAL),
        (e.ENTRIES_TO_POINT_INTO_THE_LOG, _CRITICAL),
        (e.FIRST_LIVE_ENTRY_TO_NAME_ITS_MESSAGE, _CRITICAL),
        (e.DEPENDENTS_TO_FOLLOW_THE_LOG, WARNING),
    ),
    "store_index_files": (
        (e.ENTRIES_TO_POINT_INTO_THE_LOG, _CRITICAL),
        (e.DEPENDENTS_TO_FOLLOW_THE_LOG, WARNING),
    ),
    "store_checkpoint": ((e.CHECKPOINT_IN_RANGE, _CRITICAL),),
    "lake_receipts": (
        (e.RECEIPTS_TO_FORM_A_CHAIN, _CRITICAL),
        (e.RECEIPTS_TO_BE_SOUND, _CRITICAL),
        (e.ROWS_TO_BE_WHERE_THEY_WERE_PROVEN, WARNING),
    ),
    "lake_data_files": (
        (e.DATA_FILES_TO_MATCH_RECEIPTS, _CRITICAL),
        (e.DATA_FILES_TO_BE_IN_THE_TABLE_ONCE, _CRITICAL),
    ),
    "lake_rows": (
        (e.ROWS_TO_COVER_SEGMENTS, _CRITICAL),
        (e.ROWS_TO_BE_UNIQUE, _CRITICAL),
    ),
    "rows_segments": (
        (e.ROWS_TO_COVER_SEGMENTS, _CRITICAL),
        (e.ROWS_TO_BE_UNIQUE, _CRITICAL),
        (e.COUNTS_TO_MATCH_RECEIPTS, _CRITICAL),
        (e.ARCHIVED_SEGMENTS_TO_FOLLOW_ON, WARNING),
    ),
    "rows_queues": (
        (e.OFFSETS_TO_FOLLOW_ON, _CRITICAL),
        (e.OFFSETS_NOT_TO_BEGIN_AGAIN, WARNING),
    ),
    "across_ranges": (
        (e.STORE_AND_LAKE_TO_FORM_ONE_INTERVAL, _CRITICAL),
        (e.NO_LOST_RANGES, _CRITICAL),
        (e.NO_RANGES_LET_GO_WITHOUT_ARCHIVE, WARNING),
    ),
    "across_overlaps": ((e.OVERLAPS_TO_HOLD_THE_SAME_BYTES, _CRITICAL),),
}
"""Name of a fact table → what is expected of its rows, in the order in which a person reads it. A validation
has the tables of what it looks at."""

EXPECTATIONS = {one.type: one for suite in SUITES.values() for one, _ in suite}
"""By the name that suites have for them."""


def build_suite(name: str) -> dict[str, Any]:
    """The JSON form of one suite, as Great Expectations reads it."""
    return {
        "name": name,
        "expectations": [
            {
                "type": expectation.type,
                "description": expectation.description,
                "severity": severity,
                "kwargs": {"column_list": list(expectation.columns)},
                "meta": {},
            }
            for expectation, severity in SUITES[name]
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
