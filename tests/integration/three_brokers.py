"""Three running brokers of Kafka as fixtures, with the settings that the test's module has as ``SETTINGS``.

A module that wants other versions, or a disk of its own for a node, has a fixture of that name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka_broker import VERSIONS
from tests.integration.kafka_cluster import Cluster, running_cluster
from tests.services.command_line import run_command


@pytest.fixture(scope="module")
def cluster_version() -> str:
    return VERSIONS[-1]


@pytest.fixture(scope="module")
def cluster_directory(cluster_version: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(
    cluster_directory: Path, cluster_version: str, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    with running_cluster(cluster_directory, cluster_version, request.module.SETTINGS) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path, cluster_version: str, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Brokers of the test's own, which it may leave without a disk."""
    with running_cluster(tmp_path / "cluster", cluster_version, request.module.SETTINGS) as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    directory = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", directory).exit_code == 0
    return directory
