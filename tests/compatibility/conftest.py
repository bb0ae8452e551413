"""What these tests go on with is judged as in every run, but by the rules alone."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def judged_plainly(plainly: None) -> None:
    """Great Expectations has no part in what a released package wrote."""
