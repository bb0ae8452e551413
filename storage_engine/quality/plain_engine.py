"""Runs the suites by the rules alone, where Great Expectations is not installed: the same verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage_engine.core.extras import QUALITY
from storage_engine.model.report.validation import CheckResult, Status
from storage_engine.quality.rules import FactTable
from storage_engine.quality.suite import (
    EXAMPLES,
    EXPECTATIONS,
    SUBJECT,
    SUITES,
    WARNING,
    example_text,
    not_a_suite,
    read_suite,
)

NOTE = (
    "Great Expectations is not installed: the same rules judged without it, and there are no Data Docs. "
    f"To have them: {QUALITY.install}"
)


def run_suites(tables: Mapping[str, FactTable], suites: Path) -> tuple[CheckResult, ...]:
    """Check every fact table against the suite of its name.

    :param tables: by suite name, those that were looked for; one without rows has nothing to check, and
        its checks say so.
    :param suites: directory with the suites' JSON.
    :return: one row an expectation, in the order of :data:`SUITES`.
    :raises BadInputError: a suite can't be read.
    :raises MissingExtraError: a suite has an expectation that only Great Expectations can check.
    """
    return tuple(
        _check(suites / f"{name}.json", item, tables[name])
        for name in SUITES
        if name in tables
        for item in read_suite(suites, name)["expectations"]
    )


def _check(path: Path, item: Mapping[str, Any], table: FactTable) -> CheckResult:
    try:
        kind, arguments = item["type"], item["kwargs"]
        if kind not in EXPECTATIONS or set(arguments) != {"column_list"}:
            raise QUALITY.missing(f"{path}: {kind} with {', '.join(arguments)}")
        columns = list(arguments["column_list"])
    except (KeyError, TypeError) as error:
        raise not_a_suite(path, error) from error
    expectation, description = EXPECTATIONS[kind], item.get("description") or ""
    failed = Status.WARNING if item.get("severity") == WARNING else Status.FAILURE
    try:
        verdicts = expectation.rule(FactTable(table.rows, tuple(columns))) if table.rows else ()
        broken = [row for row, is_good in zip(table.rows, verdicts, strict=True) if not is_good]
    except Exception as error:
        # Of a suite that was changed: what can't be evaluated doesn't hold.
        said = f"could not be evaluated: {error}"
        return CheckResult(path.stem, expectation.name, description, failed, 0, 0, (said,))
    return CheckResult(
        suite=path.stem,
        expectation=expectation.name,
        description=description,
        status=failed if broken else Status.OK,
        checked_count=len(table.rows),
        unexpected_count=len(broken),
        examples=tuple(_example(row, columns) for row in broken[:EXAMPLES]),
    )


def _example(row: Mapping[str, Any], columns: list[str]) -> str:
    return example_text(row[SUBJECT], ((name, row[name]) for name in columns))
