"""What is read since the last look gives the ranges that reading all gives, whatever happened meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.lake.coverage.coverage import Interval, ReleasedSpan, merge_intervals, subtract_intervals
from storage_engine.lake.coverage.spans import ArchivedSpan, ReceiptSpan, archived_spans
from storage_engine.lake.coverage.verify_turns import by_receipt
from storage_engine.model.plan import Decision, Reason
from storage_engine.model.report.validation import Check, VerifyLevel
from storage_engine.model.store import FileFacts, Lineages, Segment, SegmentId, SegmentState
from storage_engine.retention.ranges.offset_ranges import Lakes, OffsetRange, offset_ranges
from storage_engine.retention.ranges.range_memory import (
    LakeLook,
    RangeMemory,
    Slot,
    join_spans,
    known_spans,
    look_at_lakes,
)

MIB = 1 << 20
LOGS = ("one", "other")
MOST = 12
"""Segments of a log."""


@dataclass
class Lake:
    """A lake's receipts, and what verifying remembers of them."""

    rows: list[ReceiptSpan] = field(default_factory=list)
    faults: set[str] = field(default_factory=set)
    read_rows: int = 0

    def add(self, log: str, lineage: int, number: int, extra: int = 0) -> None:
        at, start = len(self.rows), number * MIB
        before = self.rows[-1].row_hash if self.rows else f"{id(self)}"
        # A receipt's hash has that of the one before it: equal ones have an equal past.
        row_hash = sha256(f"{before}-{at}-{log}-{lineage}-{number}-{extra}".encode()).hexdigest()
        self.rows.append(ReceiptSpan(at, log, lineage, start, start + MIB + extra, MIB + extra, row_hash))

    def expire(self, row: ReceiptSpan) -> None:
        row_hash = sha256(f"{self.rows[-1].row_hash}-expired".encode()).hexdigest()
        ended = f"expired by act {len(self.rows) // 3}"
        self.rows.append(replace(row, sequence=len(self.rows), row_hash=row_hash, ended=ended))

    def look(self, first_sequence: int, hidden: frozenset[Slot]) -> LakeLook:
        rows = self.rows[first_sequence:]
        self.read_rows += len(rows)
        checks = (Check("s", 1, "one", 0, one, VerifyLevel.FILES, 5, "torn") for one in sorted(self.faults))
        return LakeLook(rows, by_receipt(checks), hidden, has_those_before=True)


@dataclass
class World:
    """A store whose segments come, are archived, and go; two lakes; and what the looks at it keep.

    :param known: what the last look kept; it goes through JSON, as in the journal.
    """

    lakes: dict[str, Lake] = field(default_factory=lambda: {"a": Lake(), "b": Lake()})
    first: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    lineages: Lineages = field(default_factory=lambda: Lineages(1))
    gone: list[ReleasedSpan] = field(default_factory=list)
    known: RangeMemory = field(default_factory=RangeMemory)
    told_gone: int = 0

    def do(self, step: tuple[str, str, str, int]) -> None:
        what, lake, log, number = step
        rows = self.lakes[lake].rows
        match what:
            case "archive":
                self.lakes[lake].add(log, self.lineages.of(log), number)
            case "archive-more":
                for each in range(number):
                    self.lakes[lake].add(log, self.lineages.of(log), each)
            case "archive-oddly":
                self.lakes[lake].add(log, self.lineages.of(log), number, extra=MIB // 2)
            case "expire" if rows:
                self.lakes[lake].expire(rows[number % len(rows)])
            case "fault" if rows:
                self.lakes[lake].faults.add(rows[number % len(rows)].row_hash)
            case "heal":
                self.lakes[lake].faults -= {row.row_hash for row in rows[number:]}
            case "delete":
                lineage = self.lineages.of(log)
                for each in range(self.first[log], max(number, self.first[log])):
                    excuse = "waived by ann" if each % 5 == 4 else ""
                    span = ReleasedSpan(log, each * MIB, (each + 1) * MIB, excuse, lineage=lineage)
                    self.gone.append(span)
                self.first[log] = max(number, self.first[log])
            case "bring back":
                self.first[log] = min(number, self.first[log])
            case "adopt":
                self.lineages = Lineages(self.lineages.newest + 1)
            case "roll back" if rows:
                # As a lake that was brought back from an older copy, and written to since.
                del rows[len(rows) // 2 :]
                self.lakes[lake].add(log, self.lineages.of(log), number, extra=1)

    def look(self, lake: str, first_sequence: int) -> LakeLook:
        return self.lakes[lake].look(first_sequence, frozenset())

    def hidden(self, lake: str) -> frozenset[Slot]:
        """Segments on disk whose data file was found to be away at this moment."""
        if lake == "a":
            return frozenset()
        return frozenset((log, self.lineages.of(log), self.first[log] * MIB) for log in LOGS)

    def looked(self, asked: Sequence[str]) -> tuple[OffsetRange, ...]:
        """Look as the monitor does."""
        first_offsets = {log: first * MIB for log, first in self.first.items() if first < MOST}

        def read(lake: str, first_sequence: int) -> LakeLook:
            return self.lakes[lake].look(first_sequence, self.hidden(lake))

        found, spans = look_at_lakes(self.known, asked, read, first_offsets, self.lineages)
        deleted = replace(
            found.deleted, spans=tuple(join_spans((*found.deleted.spans, *self.gone[self.told_gone :])))
        )
        # What came within the last hour is read once more.
        self.told_gone = max(self.told_gone, len(self.gone) - 2)
        self.known = from_jsonable(RangeMemory, to_jsonable(replace(found, deleted=deleted)))
        return self.ranges(asked, spans, self.known.deleted.spans)

    def from_scratch(self, asked: Sequence[str]) -> tuple[OffsetRange, ...]:
        """Lay all receipts, segment by segment, over all that went."""
        spans: set[ArchivedSpan] = set()
        for lake in asked:
            look = self.lakes[lake].look(0, self.hidden(lake))
            every = archived_spans(look.rows, look.history)
            spans |= {one for one in every if (one.log, one.lineage, one.start_offset) not in look.hidden}
        return self.ranges(asked, sorted(spans), self.gone)

    def ranges(
        self, asked: Sequence[str], spans: Sequence[ArchivedSpan], gone: Sequence[ReleasedSpan]
    ) -> tuple[OffsetRange, ...]:
        decisions = [
            Decision(segment(log, number), Reason.NOT_EXPIRED, "because")
            for log in LOGS
            for number in range(self.first[log], MOST)
        ]
        proven = frozenset(
            SegmentId(row.log, row.start_offset) for lake in asked for row in self.lakes[lake].rows
        )
        lakes = Lakes(spans, proven, "" if len(asked) == 2 else "a lake is away")
        ends = dict.fromkeys(LOGS, MOST * MIB)
        return offset_ranges(decisions, ends, lakes, self.lineages, gone=gone)


def segment(log: str, number: int) -> Segment:
    facts = FileFacts(f"/s/{log}/{number * MIB:020d}", 1, number, MIB, 2, 3)
    return Segment(log, number * MIB, facts, SegmentState.SEALED)


KINDS = (
    "archive",
    "archive-more",
    "archive-oddly",
    "expire",
    "fault",
    "heal",
    "delete",
    "bring back",
    "adopt",
    "roll back",
)
steps = st.lists(
    st.tuples(
        st.sampled_from(("archive-more", "delete", *KINDS)),
        st.sampled_from(("a", "a", "b")),
        st.sampled_from(LOGS),
        st.integers(0, MOST),
    ),
    max_size=4,
)
looks = st.lists(st.tuples(steps, st.sampled_from((("a", "b"), ("a", "b"), ("a",), ("b",)))), max_size=8)


ODD, HEALED = ("archive-oddly", "a", "one", 0), ("heal", "a", "one", 0)


@pytest.mark.again
@given(looks)
@example(
    [
        (
            [("archive-more", "a", "one", 1), ODD, ("fault", "a", "one", 0), ("adopt", "a", "one", 0)],
            ("a", "b"),
        ),
        ([HEALED], ("a", "b")),
    ]
)
@example(
    [
        (
            [ODD, ("archive-more", "a", "one", 1), ("fault", "a", "one", 0), ("adopt", "a", "one", 0)],
            ("a", "b"),
        ),
        ([HEALED], ("a", "b")),
    ]
)
@settings(max_examples=400, deadline=None)
def test_what_came_since_gives_what_reading_all_gives(
    past: list[tuple[list[tuple[str, str, str, int]], tuple[str, ...]]],
) -> None:
    world = World()
    for happened, asked in past:
        for step in happened:
            world.do(step)
        found = known_spans(world.known, asked, world.look)
        if found is not None:
            all_of = [row for lake in asked for row in world.lakes[lake].rows]
            assert all(
                [*subtract_intervals(start, end, intervals(all_of, *key))] == []
                for key in {(one.log, one.lineage) for one in found}
                for start, end in intervals(found, *key)
            ), happened
            assert begins(found) == begins(all_of), happened
        assert world.looked(asked) == world.from_scratch(asked), happened


Spans = Sequence[ReceiptSpan | ArchivedSpan]


def intervals(spans: Spans, log: str, lineage: int) -> list[Interval]:
    return merge_intervals(
        (one.start_offset, one.end_offset) for one in spans if (one.log, one.lineage) == (log, lineage)
    )


def begins(spans: Spans) -> dict[tuple[str, int], int]:
    """Return where what lakes have of each log begins."""
    ordered = sorted(spans, key=lambda one: -one.start_offset)
    return {(one.log, one.lineage): one.start_offset for one in ordered if one.start_offset < one.end_offset}


def test_a_look_reads_what_came_since_however_much_there_is() -> None:
    world = World()
    for number in range(10):
        world.do(("archive", "a", "one", number))
    world.do(("delete", "a", "one", 10))
    world.looked(("a", "b"))
    for _ in range(3):
        world.lakes["a"].read_rows = 0
        assert world.looked(("a", "b")) == world.from_scratch(("a", "b"))
        # The last known one alone; the rest is that of reading all.
        assert world.lakes["a"].read_rows == 1 + len(world.lakes["a"].rows)
    assert len(world.known.archived[0].settled) == 1
    assert world.known.archived[0].marks[0].open == ()
