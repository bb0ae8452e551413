"""The expectations as classes of Great Expectations.

Importing this module imports Great Expectations, which takes seconds: only :mod:`.engine` does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import new_class
from typing import Any, ClassVar

import pandas as pd

from storage_engine.quality.expectations import Expectation
from storage_engine.quality.gx import (
    ExpectationSuite,
    MulticolumnMapExpectation,
    MulticolumnMapMetricProvider,
    PandasExecutionEngine,
    multicolumn_condition_partial,
)
from storage_engine.quality.suite import EXPECTATIONS, not_a_suite, read_suite


@cache
def _metric(rule: Callable[[pd.DataFrame], pd.Series[bool]]) -> str:
    """Register ``rule`` as a row-wise metric on pandas.

    :return: the metric's name.
    """

    class Rule(MulticolumnMapMetricProvider):  # type: ignore[misc]
        condition_metric_name = f"storage_engine.{rule.__name__}"
        condition_value_keys: ClassVar[tuple[str, ...]] = ()

        @multicolumn_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
        def _pandas(cls, column_list: pd.DataFrame, **_: Any) -> pd.Series[bool]:  # noqa: N805
            return rule(column_list)

    return str(Rule.condition_metric_name)


class RowExpectation(MulticolumnMapExpectation):  # type: ignore[misc]
    """Base of the expectations: every row counts, also one without a single value."""

    ignore_row_if: str = "never"


def _registered(one: Expectation) -> type[RowExpectation]:
    """Make a class of an expectation; Great Expectations finds it by its name from then on."""
    content = {"__module__": __name__, "__doc__": one.description, "map_metric": _metric(one.rule)}
    return new_class(one.name, (RowExpectation,), exec_body=lambda body: body.update(content))


CLASSES = {name: _registered(one) for name, one in EXPECTATIONS.items()}
"""By the name that suites have for them."""


def load_suite(directory: Path, name: str) -> ExpectationSuite:
    """Read one suite.

    :raises BadInputError: there is no such file, or it isn't a suite.
    """
    suite = read_suite(directory, name)
    try:
        return ExpectationSuite(**suite)
    except (ValueError, TypeError) as error:
        raise not_a_suite(directory / f"{name}.json", error) from error
