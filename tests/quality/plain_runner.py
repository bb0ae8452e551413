"""Runs the suites as Great Expectations does, without its project, its checkpoints and its Data Docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd

from storage_engine.model.validation import CheckResult, Status
from storage_engine.quality import rules
from storage_engine.quality.engine import EXAMPLES, SUBJECT
from storage_engine.quality.expectations import RowExpectation
from storage_engine.quality.suite import SUITES, load_suite


def run_plainly(
    tables: Mapping[str, pd.DataFrame], suites: Path, directory: Path, *, run_name: str
) -> tuple[CheckResult, ...]:
    """Stand in for :func:`storage_engine.quality.engine.run_suites`; nothing is written to ``directory``."""
    return tuple(check for name in SUITES for check in _checks(name, suites, tables[name]))


def _checks(name: str, suites: Path, table: pd.DataFrame) -> Iterator[CheckResult]:
    for item in load_suite(suites, name).expectations:
        assert isinstance(item, RowExpectation)
        broken = table if table.empty else table[~_holds(item, table)]
        failed = Status.WARNING if item.severity == "warning" else Status.FAILURE
        yield CheckResult(
            suite=name,
            expectation=type(item).__name__,
            description=item.description,
            status=Status.OK if broken.empty else failed,
            checked_count=len(table),
            unexpected_count=len(broken),
            examples=tuple(_example(row, item.columns) for _, row in broken.head(EXAMPLES).iterrows()),
        )


def _holds(item: RowExpectation, table: pd.DataFrame) -> pd.Series[bool]:
    rule = getattr(rules, item.map_metric.rpartition(".")[2])
    held: pd.Series[bool] = rule(table[list(item.columns)])
    return held


def _example(row: pd.Series[object], columns: tuple[str, ...]) -> str:
    return f"{row[SUBJECT]}: {', '.join(f'{name} = {row[name]}' for name in columns)}"
