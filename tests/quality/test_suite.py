"""The suites in ``expectations/`` are what the code builds, and Great Expectations reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.quality.suite import SUITES, build_suite, load_suite
from storage_engine.resources import project_path


@pytest.mark.parametrize("name", sorted(SUITES))
def test_the_shipped_suite_is_the_one_the_code_builds(name: str) -> None:
    assert json.loads((project_path("expectations") / f"{name}.json").read_bytes()) == build_suite(name)


def test_no_other_suite_is_shipped() -> None:
    assert {path.stem for path in project_path("expectations").glob("*.json")} == set(SUITES)


@pytest.mark.parametrize("name", sorted(SUITES))
def test_great_expectations_reads_every_suite(name: str) -> None:
    suite = load_suite(project_path("expectations"), name)
    assert [type(item) for item in suite.expectations] == [expectation for expectation, _ in SUITES[name]]
    assert all(item.description for item in suite.expectations)


def test_a_broken_suite_is_named(tmp_path: Path) -> None:
    (tmp_path / "across_ranges.json").write_text("{")
    with pytest.raises(BadInputError, match=r"across_ranges\.json"):
        load_suite(tmp_path, "across_ranges")
