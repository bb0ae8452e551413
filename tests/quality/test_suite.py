"""The suites in ``expectations/`` are what the code builds, and Great Expectations reads them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.resources import project_path

NAMES = sorted(path.stem for path in project_path("expectations").glob("*.json"))


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    """The module; importing it imports Great Expectations, which no other file's tests should wait for."""
    from storage_engine.quality import suite

    return suite


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_suite_is_the_one_the_code_builds(suite: ModuleType, name: str) -> None:
    assert json.loads((project_path("expectations") / f"{name}.json").read_bytes()) == suite.build_suite(name)


def test_every_suite_and_no_other_is_shipped(suite: ModuleType) -> None:
    assert set(NAMES) == set(suite.SUITES)


@pytest.mark.parametrize("name", NAMES)
def test_great_expectations_reads_every_suite(suite: ModuleType, name: str) -> None:
    read = suite.load_suite(project_path("expectations"), name)
    assert [type(item) for item in read.expectations] == [
        expectation for expectation, _ in suite.SUITES[name]
    ]
    assert all(item.description for item in read.expectations)


def test_a_broken_suite_is_named(suite: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "across_ranges.json").write_text("{")
    with pytest.raises(BadInputError, match=r"across_ranges\.json"):
        suite.load_suite(tmp_path, "across_ranges")
