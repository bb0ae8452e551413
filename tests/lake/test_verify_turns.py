from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.lake.coverage.verify_turns import by_receipt, choose, coverage, standing_fault
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Check, VerifyLevel

RECEIPTS, FILES, BYTES, ON_DISK = VerifyLevel


def _receipt(number: int) -> Receipt:
    texts = ("store_id", "log", "sha256", "broker", "store_root", "source_path", "data_file")
    fields = dict.fromkeys(Receipt.__dataclass_fields__, 0) | dict.fromkeys(texts, "x")
    return replace(
        Receipt(**fields), base_offset=number, size_bytes=100, data_file_bytes=50, row_hash=str(number)
    )


ROWS = [_receipt(number) for number in range(6)]


def _turn(history: list[Check], max_bytes: int | None, urgent: tuple[Receipt, ...] = ()) -> list[int]:
    chosen = choose(
        ROWS,
        {row.identity for row in urgent},
        by_receipt(history),
        lambda _: BYTES,
        lambda row: row.data_file_bytes,
        max_bytes,
    )
    return [row.base_offset for row in chosen]


def test_what_was_never_seen_comes_first_and_then_what_was_seen_longest_ago() -> None:
    history = [Check.of(ROWS[0], BYTES, 20), Check.of(ROWS[1], BYTES, 10), Check.of(ROWS[2], ON_DISK, 30)]
    assert _turn(history, None) == [3, 4, 5, 1, 0, 2]
    assert _turn(history, 200) == [3, 4, 5, 1]


def test_a_shallower_look_does_not_count() -> None:
    assert _turn([Check.of(ROWS[0], FILES, 20)], 50) == [0]


def test_a_budget_that_is_too_small_still_goes_on() -> None:
    assert _turn([Check.of(ROWS[0], BYTES, 1)], 1) == [1]


def test_what_is_urgent_takes_half_of_the_budget_at_most() -> None:
    assert _turn([], 200, urgent=tuple(ROWS[2:])) == [2, 3, 0, 1]
    assert _turn([], 60, urgent=(ROWS[5],)) == [0]


@given(st.integers(1, 400), st.integers(6, 12))
def test_turns_walk_round_the_whole_lake(max_bytes: int, turns: int) -> None:
    history: list[Check] = []
    seen = set()
    for at_ms in range(turns):
        for number in _turn(history, max_bytes):
            seen.add(number)
            history = [old for old in history if old.base_offset != number]
            history.append(Check.of(ROWS[number], BYTES, at_ms + 1))
    assert seen == set(range(6))


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        (Check.of(ROWS[0], FILES, 20), True),
        (Check.of(ROWS[0], BYTES, 20), False),
        (Check.of(ROWS[0], ON_DISK, 20), False),
        (Check.of(ROWS[0], ON_DISK, 5), True),
    ],
)
def test_a_fault_stands_until_a_look_as_close_finds_none(later: Check, stands: bool) -> None:
    fault = Check.of(ROWS[0], BYTES, 10, "rotten")
    history = by_receipt([later] if later.level is BYTES else [fault, later])
    assert (standing_fault(history, ROWS[0]) is not None) == stands


def test_coverage_counts_what_the_last_look_found_sound() -> None:
    history = by_receipt(
        [
            Check.of(ROWS[0], BYTES, 30),
            Check.of(ROWS[1], ON_DISK, 20),
            Check.of(ROWS[2], FILES, 10),
            Check.of(ROWS[3], BYTES, 5, "rotten"),
            Check.of(ROWS[4], BYTES, 1),
        ]
    )
    found = coverage(ROWS, {ROWS[4].identity}, history, BYTES, lambda _: BYTES)
    # All six have one identity but for the offset.
    assert (found.total_bytes, found.verified_bytes, found.since_ms) == (600, 200, 20)
    assert (found.segment_count, found.never_count) == (6, 2)
