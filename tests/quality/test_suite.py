"""The suites in ``expectations/`` name each rule and no other; both engines read them, and name a bad one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BadInputError, MissingExtraError
from storage_engine.model.report.validation import CheckResult, Status
from storage_engine.quality import expectation_rules
from storage_engine.quality.expectation_rules import EXPECTATIONS, SUITES, FactTable, read_suite
from storage_engine.resources import project_path

NAMES = sorted(path.stem for path in project_path("expectations").glob("*.json"))


SHIPPED = {name: read_suite(project_path("expectations"), name)["expectations"] for name in NAMES}


def test_the_shipped_suites_name_every_expectation_and_no_other() -> None:
    assert {item["type"] for suite in SHIPPED.values() for item in suite} == EXPECTATIONS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_suite_says_what_is_expected_of_which_columns_and_how_bad_it_is(name: str) -> None:
    for item in SHIPPED[name]:
        assert item["description"].endswith(".")
        assert item["severity"] in ("critical", "warning")
        assert item["kwargs"].keys() == {"column_list"}


def test_every_suite_and_no_other_is_shipped() -> None:
    assert set(NAMES) == set(SUITES)


@pytest.fixture(scope="module")
def load_suite() -> Callable[[Path, str], Any]:
    """The reader of Great Expectations, whose import no other test should wait for."""
    from storage_engine.quality.engine import load_suite

    return load_suite


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_great_expectations_reads_every_suite(load_suite: Callable[[Path, str], Any], name: str) -> None:
    read = load_suite(project_path("expectations"), name)
    types = [item["type"] for item in SHIPPED[name]]
    assert [item.expectation_type for item in read.expectations] == types
    assert [type(item).__name__ for item in read.expectations] == [EXPECTATIONS[it].name for it in types]
    assert all(item.description for item in read.expectations)


@pytest.mark.slow
def test_great_expectations_names_a_broken_suite(
    load_suite: Callable[[Path, str], Any], tmp_path: Path
) -> None:
    for broken in ("{", '{"name": "across_ranges", "expectations": 1}'):
        (tmp_path / "across_ranges.json").write_text(broken)
        with pytest.raises(BadInputError, match=r"across_ranges\.json"):
            load_suite(tmp_path, "across_ranges")


@pytest.fixture
def suites(tmp_path: Path) -> Path:
    shutil.copytree(project_path("expectations"), tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(suites: Path, **changes: object) -> None:
    """Change the only expectation of a suite."""
    suite = dict(read_suite(suites, "store_frames"))
    suite["expectations"][0].update(changes)
    (suites / "store_frames.json").write_text(json.dumps(suite))


def judge(suites: Path, **frames: object) -> CheckResult:
    """Judge one row of frames by the rules alone; no other table has any."""
    row = FactTable(({"subject": "a segment", "accepted_damaged_bytes": 0, "damaged_bytes": 7, **frames},))
    tables = {name: row if name == "store_frames" else FactTable(()) for name in SUITES}
    (found,) = (
        check for check in expectation_rules.run_suites(tables, suites) if check.suite == "store_frames"
    )
    return found


def test_the_rules_alone_judge_as_a_suite_says(suites: Path) -> None:
    assert judge(suites).status is Status.FAILURE
    assert judge(suites).examples == ("a segment: accepted damaged bytes 0, damaged bytes 7",)
    change(suites, severity="warning", description="No byte is damaged.")
    assert judge(suites).status is Status.WARNING
    assert judge(suites).description == "No byte is damaged."
    change(suites, kwargs={"column_list": ["damaged_bytes", "damaged_bytes"]})
    assert judge(suites).status is Status.OK


def test_the_rules_alone_hold_nothing_for_true_that_they_cannot_evaluate(suites: Path) -> None:
    change(suites, kwargs={"column_list": ["no_such_column"]})
    found = judge(suites)
    assert found.status is Status.FAILURE
    assert found.examples[0].startswith("could not be evaluated: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "damaged_bytes", "max_value": 0}},
        {"kwargs": {"column_list": ["accepted_damaged_bytes", "damaged_bytes"], "mostly": 0.9}},
    ],
    ids=["a type", "an argument"],
)
def test_what_only_great_expectations_can_tell_is_refused_without_it(
    suites: Path, changes: dict[str, object]
) -> None:
    change(suites, **changes)
    with pytest.raises(
        MissingExtraError, match=r"store_frames\.json.*pip install 'storage-engine\[quality\]'"
    ):
        judge(suites)


@pytest.mark.parametrize(
    "broken", ["{", "[1]", '{"name": "store_frames"}', '{"expectations": [{"type": "x"}]}']
)
def test_the_rules_alone_name_a_broken_suite(suites: Path, broken: str) -> None:
    (suites / "store_frames.json").write_text(broken)
    with pytest.raises(BadInputError, match=r"store_frames\.json: expected an expectation suite"):
        judge(suites)
