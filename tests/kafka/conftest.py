from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kafka_fixture import unpack


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node whose broker was stopped cleanly. Tests leave it as it is."""
    return unpack(tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def copy(node: Path, tmp_path: Path) -> Path:
    """A node that a test may change."""
    copied = Path(shutil.copytree(node, tmp_path / "node"))
    properties = copied / "server.properties"
    properties.write_text(properties.read_text().replace(str(node), str(copied)))
    return copied
