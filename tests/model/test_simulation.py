"""What a simulation starts from, and what every broker's rules answer with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.model.simulation import CourseStart, Ingest, SegmentRun, condensed

GIB = 1 << 30
START = CourseStart(
    now_ms=1_700_000_000_000,
    disk_bytes=100 * GIB,
    other_bytes=GIB,
    segment_bytes=GIB,
    runs=(SegmentRun(40, GIB, 1_699_900_000_000, 1_699_999_000_000),),
    active_bytes=GIB // 2,
    oldest_message_ms=1_699_899_000_000,
    time_zone="Asia/Shanghai",
    ingest=Ingest(10 * GIB),
    topic_bytes={"a": 5},
)


def test_a_start_comes_back_from_a_journal_as_it_was() -> None:
    assert from_jsonable(CourseStart, to_jsonable(START)) == START


def test_the_log_is_its_segments_and_what_is_written_behind_them() -> None:
    assert START.log_bytes == 40 * GIB + GIB // 2


def test_a_disk_has_room_for_what_is_on_it() -> None:
    used_bytes = START.used_bytes
    assert used_bytes == START.other_bytes + START.log_bytes + int(START.log_bytes * START.dependents_share)
    assert START.changed(disk_bytes=used_bytes).disk_bytes == used_bytes
    with pytest.raises(
        BadInputError, match=f"disk_bytes: expected {used_bytes} to .*, found {used_bytes - 1}"
    ):
        START.changed(disk_bytes=used_bytes - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("disk_bytes", 0), ("other_bytes", -1), ("segment_bytes", 0), ("dependents_share", -0.1)],
)
def test_a_start_that_no_store_has_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(BadInputError, match=f"{field}: expected"):
        from_jsonable(CourseStart, to_jsonable(START) | {field: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_day": -1},
        {"bytes_per_day": 1, "profile": (1.0,) * 23},
        {"bytes_per_day": 1, "profile": (0.0,) * 24},
        {"bytes_per_day": 1, "profile": (float("nan"),) * 24},
        {"bytes_per_day": 1, "factor": float("inf")},
        {"bytes_per_day": 1, "growth_per_day": 11.0},
    ],
)
def test_an_ingest_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInputError):
        Ingest(**wrong)  # type: ignore[arg-type]


def test_an_ingest_follows_its_profile_its_factor_and_its_growth() -> None:
    profile = (3.0, *(1.0,) * 23)
    ingest = Ingest(26_000, profile, factor=2.0, growth_per_day=0.5)
    assert ingest.hour_bytes(0)[:2] == (6_000, 2_000)
    assert ingest.hour_bytes(1)[:2] == (9_000, 3_000)


def test_segments_are_condensed_to_runs_of_one_size() -> None:
    segments = [(100, 1_000 * n) for n in range(1_000)]
    segments[500] = (70, 500_000)
    runs = condensed(segments, most_runs=100)
    assert len(runs) <= 103
    found = [(run.size_bytes, run.written_ms(i)) for run in runs for i in range(run.segments)]
    assert found == segments


def test_the_contract_imports_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "pyarrow", "numba", "psutil", "sqlalchemy", "pyiceberg"}
    code = f"import sys; import storage_engine.model.simulation; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
