"""One name server for all tests with a real broker, and the ground truth of the store they use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.broker import name_server
from tests.integration.stores import Truth


@pytest.fixture(scope="session")
def name_server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with name_server(tmp_path_factory.mktemp("name-server")) as port:
        yield port


@pytest.fixture(scope="session")
def truth() -> Truth:
    return Truth.of("clean-stop")
