"""From how much work on a step is a Spark job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.settings.policy import SparkFrom, SparkUse, archive_place, lag_place, places_text
from storage_engine.model.settings.store_settings import SETTINGS

GIB = 1 << 30
LIMITS = SparkFrom(GIB, 100, 1000)
SPARK = SparkUse("local[4]", LIMITS)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("16GiB, 1000 segments, 500000 positions", SparkFrom(16 * GIB, 1000, 500_000)),
        ("500000 positions,16 GiB", SparkFrom(size_bytes=16 * GIB, positions=500_000)),
        ("1 segment", SparkFrom(segments=1)),
        ("1 Position", SparkFrom(positions=1)),
        ("50MB", SparkFrom(size_bytes=50_000_000)),
        ("0 positions", SparkFrom(positions=0)),
        (" 0 ", SparkFrom(0, 0, 0)),
    ],
)
def test_a_part_that_is_left_out_keeps_its_default(text: str, limits: SparkFrom) -> None:
    assert SparkFrom.parse(text) == limits


@pytest.mark.parametrize(
    "text",
    ["", "never", "1 GiB 5 segments", "5 segment, 6 segments", "1GiB,", "-1", "1,000 segments", "5 rows"],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="each once, found"):
        SparkFrom.parse(text)


@given(st.integers(0, 1 << 50), st.integers(0, 10**6), st.integers(0, 10**9))
def test_what_limits_say_is_read_again(size_bytes: int, segments: int, positions: int) -> None:
    said = f"{size_bytes}B, {segments} segments, {positions} positions"
    assert SparkFrom.parse(said) == SparkFrom(size_bytes, segments, positions)


@pytest.mark.parametrize(
    ("size_bytes", "segments", "in_spark"),
    [
        (GIB - 1, 99, False),
        (GIB, 1, True),
        (0, 100, True),
        (GIB - 1, 100, True),
        (0, 0, False),
    ],
)
def test_archiving_is_a_spark_job_by_its_bytes_or_its_segments(
    size_bytes: int, segments: int, in_spark: bool
) -> None:
    place = archive_place(SPARK, 3, size_bytes, segments)
    assert place.in_spark is in_spark
    below = "in process, 3 threads (below spark_from of 1.0 GiB or 100 segments)"
    assert place.text == ("in Spark at local[4]" if in_spark else below)


@pytest.mark.parametrize(("positions", "in_spark"), [(999, False), (1000, True), (0, False)])
def test_lag_is_a_spark_job_by_its_positions(positions: int, in_spark: bool) -> None:
    place = lag_place(SPARK, positions)
    assert place.in_spark is in_spark
    below = "in process, 1 thread (below spark_from of 1000 positions)"
    assert place.text == ("in Spark at local[4]" if in_spark else below)


@given(st.integers(0, 1 << 50), st.integers(0, 10**6), st.integers(0, 10**9))
def test_with_0_all_work_is_a_spark_job_and_nothing_never_is(
    size_bytes: int, segments: int, positions: int
) -> None:
    always = SparkUse("yarn", SparkFrom.parse("0"))
    assert archive_place(always, 1, size_bytes, segments).in_spark is (segments > 0)
    assert lag_place(always, positions).in_spark is (positions > 0)
    assert not archive_place(None, 1, size_bytes, segments).in_spark
    assert not lag_place(None, positions).in_spark


def test_where_work_is_done_is_one_sentence() -> None:
    assert places_text(None, 1) == "in process, 1 thread"
    assert places_text(SparkUse("yarn", SparkFrom(0, 0, 0)), 2) == "in Spark at yarn"
    limits = "1.0 GiB or 100 segments, or 1000 positions"
    assert places_text(SPARK, 2) == f"in Spark at local[4] from {limits}; below that in process, 2 threads"


def test_what_the_form_calls_the_default_is_it() -> None:
    assert SparkFrom.parse(SETTINGS["spark_from"].empty) == SparkFrom()
