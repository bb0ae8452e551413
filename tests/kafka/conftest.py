from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_fixture import unpack


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node whose broker was stopped cleanly. Tests leave it as it is."""
    return unpack(tmp_path_factory.mktemp("kafka"))
