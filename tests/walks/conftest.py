"""What newcomers find: the wheels of a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.installs import ROOT
from tests.services.toy import build_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of both distributions' wheels."""
    directory = tmp_path_factory.mktemp("wheels")
    for project in (ROOT, ROOT / "provider"):
        build_wheel(project, directory)
    return directory
