from __future__ import annotations

from pathlib import Path

import pytest

from tests.quality.cases import Case, fresh_case, make_case


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the case once; every test gets it back as it was."""
    base = tmp_path_factory.mktemp("validate")
    make_case(base)
    return base


@pytest.fixture
def case(base: Path) -> Case:
    return fresh_case(base)
