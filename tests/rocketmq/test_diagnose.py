"""What keeps a broker from starting, and bytes that are missing, are told by names and sizes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import StoreLayoutError
from storage_engine.model.report.diagnosis import Severity
from storage_engine.rocketmq.diagnose import log_damage
from storage_engine.rocketmq.format.mapped_files import file_name, list_mapped_files

SIZE = 1000


def files(*numbers: int, size: int = SIZE, directory: str = "/s/commitlog") -> list[tuple[Path, int]]:
    return [(Path(directory) / file_name(number * SIZE), size) for number in numbers]


def test_a_log_that_is_whole_has_no_fault() -> None:
    assert not list(log_damage([], None))
    assert not list(log_damage(files(0, 1, 2), None))
    assert not list(log_damage(files(7, 8), SIZE))


@pytest.mark.parametrize(
    ("found", "size_bytes", "kinds"),
    [
        (files(0, 2, 3), None, ["hole"]),
        (files(0, 3, 7), None, ["hole"]),
        ([*files(0, 1), *files(2, size=7)], None, ["segment-size"]),
        (files(0, 1), 4096, ["segment-size"]),
        ([*files(0, 1), (Path("/s/commitlog/notes.txt"), 3)], None, ["foreign-file"]),
        ([*files(0, 1), *files(2, size=-1)], None, ["foreign-file"]),
        ([*files(0), *files(1), *files(1, directory="/s/other")], None, ["segment-twice"]),
        ([(Path("/s/commitlog/00000000000000000500"), SIZE)], None, ["segment-name"]),
    ],
)
def test_each_fault_has_its_kind(
    found: list[tuple[Path, int]], size_bytes: int | None, kinds: list[str]
) -> None:
    faults = list(log_damage(found, size_bytes))
    assert [one.kind for one in faults] == kinds
    assert {one.severity for one in faults} == {Severity.URGENT}
    assert all(one.advice for one in faults)


def test_a_hole_is_told_with_its_bytes() -> None:
    (fault,) = log_damage(files(0, 3, 7), None)
    assert "from offset 1000 to 3000, the first of 2 holes" in fault.what
    assert "4.9 KiB are missing" in fault.what


@given(
    names=st.lists(st.sampled_from([file_name(n * 16) for n in range(6)] + ["a"]), unique=True, max_size=6),
    odd=st.integers(0, 5),
)
def test_what_a_plan_refuses_is_told_and_nothing_else_is(
    names: list[str], odd: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """list_mapped_files is what every command but this one lists a log by."""
    directory = tmp_path_factory.mktemp("log")
    for number, name in enumerate(sorted(names)):
        (directory / name).write_bytes(bytes(8 if number == odd and len(names) > 2 else 16))
    found = [(path, path.stat().st_size) for path in sorted(directory.iterdir())]
    try:
        list_mapped_files((directory,), error=StoreLayoutError)
        is_refused = False
    except StoreLayoutError:
        is_refused = True
    assert bool(list(log_damage(found, None))) == is_refused
