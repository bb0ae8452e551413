"""What sums say of rows: that they cover a segment once, whatever their order, and that one of them moved."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from storage_engine.brokers import find_broker
from storage_engine.rocketmq.codec.message_schema import queue_steps
from storage_engine.spark.row_sums import ROWS, SUMS, columns_read, hash_numbers, place_rows, sum_rows
from tests.spark.row_lakes import made_segments

CODEC = find_broker("rocketmq").codec
SIZES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 1 << 22)), min_size=2)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema([pa.field("lineage", pa.int32()), pa.field("log", pa.string())])
    schema = schema.append(pa.field("segment_base_offset", pa.int64()))
    for name in columns_read(CODEC.columns)[3:]:
        schema = schema.append(CODEC.schema.field(name))
    return pa.Table.from_pylist(rows, schema)


def total(table: pa.Table, name: str) -> int:
    found: int = table[name].combine_chunks().sum().as_py()
    return found


def hashed(number: int) -> int:
    found: int = hash_numbers(pa.array([number])).to_pylist()[0]
    return found


@given(SIZES, st.randoms(use_true_random=False), st.data())
def test_bytes_join_only_where_rows_cover_a_segment_once(
    sizes: list[tuple[str, int, int]], chance: random.Random, data: st.DataObject
) -> None:
    first, second = made_segments("commitlog", [sizes, sizes])
    rows = list(second.rows)
    chance.shuffle(rows)
    length = first.receipt.size_bytes
    joined = hashed(length) - hashed(0)
    parts = [rows[:1], rows[1:]]
    sums = pa.concat_tables([sum_rows(table_of(part), "file", CODEC) for part in parts])
    assert sums.select(SUMS.names).cast(SUMS).schema == SUMS
    assert (total(sums, "byte_chain") - joined) % (1 << 64) == 0
    assert (total(sums, "row_count"), total(sums, "messages")) == (len(rows), len(sizes))
    moves = data.draw(st.dictionaries(st.sampled_from(range(len(rows))), st.integers(-4, 4), min_size=1))
    for at, moved in moves.items():
        rows[at] = {**rows[at], "physical_offset": rows[at]["physical_offset"] + moved}
    ends = sorted((row["physical_offset"] - length, row["size"]) for row in rows)
    covers = [start for start, _ in ends] == [0, *accumulate(size for _, size in ends)][:-1]
    found = total(sum_rows(table_of(rows), "file", CODEC), "byte_chain")
    assert ((found - joined) % (1 << 64) == 0) == covers


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.sampled_from([0, 1 << 40]))
@example([0, 2, 2, 2, 4], 0)
@example([0, 1, 1, 4, 4, 5], 0)
def test_offsets_join_only_where_each_is_there_once(offsets: list[int], base: int) -> None:
    (segment,) = made_segments("commitlog", [[("a", 0, 100)] * len(offsets)])
    messages = [
        {**row, "queue_offset": base + at} for row, at in zip(segment.rows[:-1], offsets, strict=True)
    ]
    sums = pa.concat_tables([sum_rows(table_of([row]), "file", CODEC) for row in messages])
    joined = hashed(base + max(offsets) + 1) - hashed(base + min(offsets))
    is_range = sorted(offsets) == [*range(min(offsets), max(offsets) + 1)]
    assert ((total(sums, "offset_chain") - joined) % (1 << 64) == 0) == is_range


@given(SIZES)
def test_streams_are_counted_apart(sizes: list[tuple[str, int, int]]) -> None:
    (segment,) = made_segments("commitlog", [sizes])
    sums = sum_rows(table_of(segment.rows), "file", CODEC).to_pylist()
    for stream in {f"{topic} {queue}" for topic, queue, _ in sizes}:
        count = sum(f"{topic} {queue}" == stream for topic, queue, _ in sizes)
        (row,) = (row for row in sums if row["stream"] == stream)
        assert (row["offsets"], row["distinct_offsets"]) == (count, count)
        assert (row["first_offset"], row["last_offset"]) == (0, count - 1)
        assert row["unknown_steps"] == 0
    (blank,) = (row for row in sums if row["stream"] is None)
    assert (blank["offsets"], blank["row_count"]) == (0, 1)


def test_messages_outside_of_queues_count_nothing_and_inner_batches_as_many_as_nobody_tells() -> None:
    flags = pa.table({"sys_flag": pa.array([0, 1, 4, 8, 12, 128, 128 | 8], pa.int32())})
    assert queue_steps(flags).to_pylist() == [1, 1, 0, 1, 0, None, None]
    (segment,) = made_segments("commitlog", [[("a", 0, 100), ("a", 0, 100), ("a", 0, 100)]])
    rows = [{**row, "sys_flag": flag} for row, flag in zip(segment.rows, [4, 128, 0, None], strict=True)]
    (found,) = (r for r in sum_rows(table_of(rows), "file", CODEC).to_pylist() if r["stream"] == "a 0")
    assert (found["offsets"], found["unknown_steps"], found["first_offset"]) == (2, 1, 1)
    placed = place_rows(table_of(rows), 7, CODEC).select(ROWS.names).cast(ROWS).to_pylist()
    assert [(row["row"], row["offset"], row["step"]) for row in placed] == [
        (7, None, 0),
        (8, 1, None),
        (9, 2, 1),
        (10, None, None),
    ]
