"""What is expected of a fact table's rows: each expectation binds one rule to the columns that it reads.

Free of Great Expectations, since the rules judge without it as well: :mod:`.gx_expectations` makes its
classes of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from storage_engine.quality import rules

EXAMPLES = 10
"""How many of the rows that break a rule a check names."""

SUBJECT = "subject"
"""Column of every fact table that names what the row is about."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """:param name: class name, as reports show it.
    :param description: the rule as a sentence.
    :param rule: tells of each row whether it is as it should be.
    :param columns: what the rule reads, in its order.
    """

    name: str
    description: str
    rule: Callable[[rules.Rows], rules.Verdicts]
    columns: tuple[str, ...]

    @property
    def type(self) -> str:
        """The name that suites have in JSON, as Great Expectations makes it of a class name."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


SEGMENT_NAMES_TO_BE_OFFSETS = Expectation(
    "ExpectSegmentNamesToBeOffsets",
    "A segment's name is the physical offset that its first frame carries.",
    rules.named_by_offset,
    ("name", "first_frame_offset"),
)

SEGMENTS_TO_BE_BACK_TO_BACK = Expectation(
    "ExpectSegmentsToBeBackToBack",
    "Each segment begins where the one before it ends.",
    rules.back_to_back,
    ("log", "base_offset", "end_offset"),
)

SEGMENTS_TO_HAVE_THE_CONFIGURED_SIZE = Expectation(
    "ExpectSegmentsToHaveTheConfiguredSize",
    "Each segment is as long as its broker's settings say.",
    rules.equal,
    ("expected_size_bytes", "size_bytes"),
)

FRAMES_TO_BE_WHOLE = Expectation(
    "ExpectFramesToBeWhole",
    "Every byte below the logical end belongs to a valid frame, or to damage the receipt accepted.",
    rules.equal,
    ("accepted_damaged_bytes", "damaged_bytes"),
)

OFFSETS_TO_BE_CONTIGUOUS = Expectation(
    "ExpectOffsetsToBeContiguous",
    "Each consume queue file begins at the queue offset where the one before it ends.",
    rules.back_to_back,
    ("queue", "start_offset", "end_offset"),
)

FIRST_LIVE_ENTRY_AT_OR_ABOVE_MIN_OFFSET = Expectation(
    "ExpectFirstLiveEntryAtOrAboveMinOffset",
    "A queue's first live entry, and every one behind it, points at or above the log's min offset.",
    rules.live_entries_at_or_above,
    ("log_min_offset", "first_live_offset", "lowest_live_offset"),
)

ENTRIES_TO_POINT_INTO_THE_LOG = Expectation(
    "ExpectEntriesToPointIntoTheLog",
    "No entry points behind the logical end of the log.",
    rules.within,
    ("floor", "first_offset", "last_offset", "log_max_offset"),
)

FIRST_LIVE_ENTRY_TO_NAME_ITS_MESSAGE = Expectation(
    "ExpectFirstLiveEntryToNameItsMessage",
    "The frame that a queue's first live entry points at carries that topic, queue and queue offset.",
    rules.equal,
    ("expected_message", "found_message"),
)

DEPENDENTS_TO_FOLLOW_THE_LOG = Expectation(
    "ExpectDependentsToFollowTheLog",
    "No file is left that points only below the log's min offset.",
    rules.none,
    ("left_over_files", "log_min_offset"),
)

MESSAGES_TO_BE_IN_THEIR_QUEUES = Expectation(
    "ExpectMessagesToBeInTheirQueues",
    "Every message of a walked segment has an entry at its queue offset that points at it.",
    rules.none,
    ("missing", "messages"),
)

CHECKPOINT_IN_RANGE = Expectation(
    "ExpectCheckpointInRange",
    "No checkpoint value lies before the epoch or behind what the log holds.",
    rules.in_range,
    ("low", "value", "high"),
)

RECEIPTS_TO_FORM_A_CHAIN = Expectation(
    "ExpectReceiptsToFormAChain",
    "Every receipt hashes to what it says and names the one before it.",
    rules.chained,
    ("row_hash", "computed_row_hash", "previous_hash", "computed_previous_hash"),
)

RECEIPTS_TO_BE_SOUND = Expectation(
    "ExpectReceiptsToBeSound",
    "A deletion may rest on every receipt that was looked at.",
    rules.blank,
    ("fault", "row_hash"),
)

ROWS_TO_BE_WHERE_THEY_WERE_PROVEN = Expectation(
    "ExpectRowsToBeWhereTheyWereProven",
    "No other engine has put a receipt's rows into other files since they were proven.",
    rules.blank,
    ("moved", "row_hash"),
)

DATA_FILES_TO_MATCH_RECEIPTS = Expectation(
    "ExpectDataFilesToMatchReceipts",
    "Every data file is there with the length and hash of its receipt.",
    rules.as_receipted,
    ("expected_bytes", "found_bytes", "expected_sha256", "found_sha256"),
)

DATA_FILES_TO_BE_IN_THE_TABLE_ONCE = Expectation(
    "ExpectDataFilesToBeInTheTableOnce",
    "The messages table has every receipted data file exactly once.",
    rules.in_table_once,
    ("times_in_table", "delete_files"),
)

ROWS_TO_COVER_SEGMENTS = Expectation(
    "ExpectRowsToCoverSegments",
    "The rows of an archived segment cover every byte of it.",
    rules.covered,
    ("base_offset", "end_offset", "first_row_offset", "last_row_end", "row_bytes", "gaps"),
)

ROWS_TO_BE_UNIQUE = Expectation(
    "ExpectRowsToBeUnique",
    "No byte of a segment is archived twice.",
    rules.unique,
    ("duplicates", "expected_rows", "found_rows"),
)

COUNTS_TO_MATCH_RECEIPTS = Expectation(
    "ExpectCountsToMatchReceipts",
    "A segment has as many messages as its receipt says.",
    rules.counted,
    ("expected_messages", "found_messages"),
)

ARCHIVED_SEGMENTS_TO_FOLLOW_ON = Expectation(
    "ExpectArchivedSegmentsToFollowOn",
    "Each archived segment of a log begins where the one before it ends.",
    rules.follows_on,
    ("segment_offset", "previous_end"),
)

OFFSETS_TO_FOLLOW_ON = Expectation(
    "ExpectOffsetsToFollowOn",
    "Within a stream each message has the offset behind the one before it, across segments.",
    rules.none,
    ("wrong_offsets", "first_offset", "last_offset", "messages"),
)

OFFSETS_NOT_TO_BEGIN_AGAIN = Expectation(
    "ExpectOffsetsNotToBeginAgain",
    "No stream counts from 0 again, as it does where its topic was deleted and made again.",
    rules.none,
    ("begins_again", "first_offset", "last_offset", "messages"),
)

STORE_AND_LAKE_TO_FORM_ONE_INTERVAL = Expectation(
    "ExpectStoreAndLakeToFormOneInterval",
    "What store and lake hold of a log is one interval.",
    rules.one_interval,
    ("log", "start_offset", "end_offset", "where", "status"),
)

NO_LOST_RANGES = Expectation(
    "ExpectNoLostRanges",
    "No range of a log is neither on disk nor provably in the lake.",
    rules.not_lost,
    ("where", "status"),
)

NO_RANGES_LET_GO_WITHOUT_ARCHIVE = Expectation(
    "ExpectNoRangesLetGoWithoutArchive",
    "No range was deleted without an archive, not even by a person's decision.",
    rules.not_let_go,
    ("where", "status"),
)

OVERLAPS_TO_HOLD_THE_SAME_BYTES = Expectation(
    "ExpectOverlapsToHoldTheSameBytes",
    "A segment that is on disk and in the lake is the same in both.",
    rules.same_bytes,
    ("archived_sha256", "local_sha256", "unchanged"),
)
