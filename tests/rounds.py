"""How often a test repeats what chance or a kill decides.

A few times in ``make test``; in ``make test-all`` as often as it can tell something new.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")

ALL = os.environ.get("STORAGE_ENGINE_ALL_ROUNDS", "0") not in ("", "0")
"""Set by ``make test-all``."""


def rounds(variable: str, few: int, all_of_them: int) -> int:
    """Return the number of rounds: what the environment's variable says, else few or all of them."""
    return int(os.environ.get(variable) or (all_of_them if ALL else few))


def some(cases: Sequence[Case], few: int) -> Sequence[Case]:
    """Return the first few cases, or all of them in ``make test-all``."""
    return cases if ALL else cases[:few]


def later(*cases: Any) -> list[Any]:
    """Return parameters of a test that only ``make test-all`` tries."""
    return [pytest.param(case, marks=pytest.mark.again) for case in cases]


def again_but(cases: Iterable[str], *strongest: str) -> list[Any]:
    """Return cases as parameters of a test; all but the strongest are left to ``make test-all``."""
    return [*strongest, *later(*(case for case in cases if case not in strongest))]
