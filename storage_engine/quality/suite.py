"""Which expectations hold of which fact table, and their JSON form in ``expectations/``.

What runs is the JSON (a user may read and tighten it); what writes the JSON is this module, and a test
keeps them equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage_engine.durable import write_file
from storage_engine.exceptions import BadInputError
from storage_engine.quality import expectations as e
from storage_engine.quality.gx import ExpectationSuite

_CRITICAL = "critical"
_WARNING = "warning"
"""For what does no harm (a broker cleans it up itself), what a person decided, what is proven and has to be
renewed (rows that another engine moved), and what the files alone can't tell from a fault (a topic that was
deleted and made again counts its queue offsets from 0 again)."""

SUITES: dict[str, tuple[tuple[type[e.RowExpectation], str], ...]] = {
    "store_segments": (
        (e.ExpectSegmentNamesToBeOffsets, _CRITICAL),
        (e.ExpectSegmentsToBeBackToBack, _CRITICAL),
        (e.ExpectSegmentsToHaveTheConfiguredSize, _CRITICAL),
    ),
    "store_frames": ((e.ExpectFramesToBeWhole, _CRITICAL),),
    "store_dispatch": ((e.ExpectMessagesToBeInTheirQueues, _WARNING),),
    "store_queue_files": ((e.ExpectOffsetsToBeContiguous, _CRITICAL),),
    "store_queues": (
        (e.ExpectFirstLiveEntryAtOrAboveMinOffset, _CRITICAL),
        (e.ExpectEntriesToPointIntoTheLog, _CRITICAL),
        (e.ExpectFirstLiveEntryToNameItsMessage, _CRITICAL),
        (e.ExpectDependentsToFollowTheLog, _WARNING),
    ),
    "store_index_files": (
        (e.ExpectEntriesToPointIntoTheLog, _CRITICAL),
        (e.ExpectDependentsToFollowTheLog, _WARNING),
    ),
    "store_checkpoint": ((e.ExpectCheckpointInRange, _CRITICAL),),
    "lake_receipts": (
        (e.ExpectReceiptsToFormAChain, _CRITICAL),
        (e.ExpectReceiptsToBeSound, _CRITICAL),
        (e.ExpectRowsToBeWhereTheyWereProven, _WARNING),
    ),
    "lake_data_files": (
        (e.ExpectDataFilesToMatchReceipts, _CRITICAL),
        (e.ExpectDataFilesToBeInTheTableOnce, _CRITICAL),
    ),
    "lake_rows": (
        (e.ExpectRowsToCoverSegments, _CRITICAL),
        (e.ExpectRowsToBeUnique, _CRITICAL),
    ),
    "across_ranges": (
        (e.ExpectStoreAndLakeToFormOneInterval, _CRITICAL),
        (e.ExpectNoLostRanges, _CRITICAL),
        (e.ExpectNoRangesLetGoWithoutArchive, _WARNING),
    ),
    "across_overlaps": ((e.ExpectOverlapsToHoldTheSameBytes, _CRITICAL),),
}
"""Name of a fact table → what is expected of its rows, in the order in which a person reads it."""


def build_suite(name: str) -> dict[str, Any]:
    """The JSON form of one suite, as Great Expectations reads it."""
    return {
        "name": name,
        "expectations": [
            {
                "type": expectation.expectation_type,
                "description": " ".join((expectation.__doc__ or "").split()),
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


def load_suite(directory: Path, name: str) -> ExpectationSuite:
    """Read one suite.

    :raises BadInputError: there is no such file, or it isn't a suite.
    """
    path = directory / f"{name}.json"
    try:
        return ExpectationSuite(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(f"{path}: expected an expectation suite, found {error}") from error
