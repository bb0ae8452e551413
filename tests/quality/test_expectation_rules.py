"""The rules behind the expectations, without Great Expectations."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.quality import expectation_rules


def table(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame(columns)


sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


@given(sizes=sizes, begin=st.integers(0, 1 << 60))
def test_spans_that_follow_each_other_are_back_to_back(sizes: list[int], begin: int) -> None:
    ends = [begin + sum(sizes[: n + 1]) for n in range(len(sizes))]
    rows = table(log=["a"] * len(sizes), start=[begin, *ends[:-1]], end=ends)
    assert expectation_rules.back_to_back(rows).all()


@given(sizes=sizes, shift=st.integers(-50, 50).filter(bool), data=st.data())
def test_a_shifted_span_and_only_it_and_its_follower_break_the_rule(
    sizes: list[int], shift: int, data: st.DataObject
) -> None:
    begin = 100
    ends = [begin + sum(sizes[: n + 1]) for n in range(len(sizes))]
    starts = [begin, *ends[:-1]]
    moved = data.draw(st.integers(1, len(sizes)))
    if moved == len(sizes):
        return
    starts[moved] += shift
    good = expectation_rules.back_to_back(table(log=["a"] * len(sizes), start=starts, end=ends))
    assert not good[moved]
    assert good.drop(moved).all()


def test_each_log_is_a_run_of_its_own() -> None:
    rows = table(log=["a", "b", "a", "b"], start=[0, 500, 10, 510], end=[10, 510, 20, 520])
    assert expectation_rules.back_to_back(rows).all()


def test_a_name_that_is_no_offset_or_not_that_of_its_first_frame_is_wrong() -> None:
    rows = table(
        name=["00000000000000000100", "00000000000000000200", "x0000000000000000300", "400"],
        first_frame_offset=[100, 100, 300, 400],
    )
    assert expectation_rules.named_by_offset(rows).tolist() == [True, False, False, False]


def test_a_segment_without_a_message_may_have_any_offset() -> None:
    assert expectation_rules.named_by_offset(table(name=["0" * 20], first_frame_offset=[-1])).all()


def test_a_queue_without_live_entries_breaks_nothing() -> None:
    rows = table(
        log_min_offset=[100, 100, 100], first_live_offset=[-1, 100, 150], lowest_live_offset=[-1, 99, 150]
    )
    assert expectation_rules.live_entries_at_or_above(rows).tolist() == [True, False, True]


def test_only_what_is_held_has_to_be_one_interval() -> None:
    rows = table(
        log=["c"] * 3,
        start_offset=[0, 10, 20],
        end_offset=[10, 20, 30],
        where=["ARCHIVED", "LOST", "LOCAL"],
        status=["OK", "FAILURE", "OK"],
    )
    assert expectation_rules.one_interval(rows).tolist() == [True, True, False]
    rows["status"] = ["OK", "WARNING", "OK"]
    assert expectation_rules.one_interval(rows).all()


def test_a_loss_that_a_person_decided_is_told_apart_from_one_nobody_did() -> None:
    rows = table(where=["LOST", "LOST", "LOCAL"], status=["FAILURE", "WARNING", "OK"])
    assert expectation_rules.not_lost(rows).tolist() == [False, True, True]
    assert expectation_rules.not_let_go(rows).tolist() == [True, False, True]


def test_an_overlap_needs_equal_hashes_or_an_untouched_file() -> None:
    rows = table(
        archived_sha256=["a", "a", "a", "a"],
        local_sha256=["a", "b", "", ""],
        unchanged=[False, True, True, False],
    )
    assert expectation_rules.same_bytes(rows).tolist() == [True, False, True, False]


def test_a_missing_data_file_is_never_as_receipted() -> None:
    rows = table(
        expected_bytes=[5, 5, 5],
        found_bytes=[5, -1, 5],
        expected_sha256=["a"] * 3,
        found_sha256=["", "", "b"],
    )
    assert expectation_rules.as_receipted(rows).tolist() == [True, False, False]


def test_unknown_values_are_not_compared() -> None:
    assert expectation_rules.equal(table(a=["x", "x", "x"], b=["x", "", "y"])).tolist() == [True, True, False]
    assert expectation_rules.equal(table(a=[1, 1, 1], b=[1, -1, 2])).tolist() == [True, True, False]
    assert expectation_rules.in_range(
        table(low=[0, 0, 0], value=[-1, 5, 11], high=[10, 10, 10])
    ).tolist() == [
        True,
        True,
        False,
    ]


def test_numbers_of_numpy_are_numbers_without_pandas_too() -> None:
    rows = ({"expected": np.int64(3), "found": np.int64(-1)}, {"expected": 3, "found": np.int64(4)})
    assert expectation_rules.equal(expectation_rules.FactTable(rows, ("expected", "found"))).tolist() == [
        True,
        False,
    ]


def test_the_note_without_great_expectations_names_the_command_that_installs_it() -> None:
    assert expectation_rules.NOTE.endswith("To get them: pip install 'storage-engine[quality]'")
