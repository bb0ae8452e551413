"""What the tests with real servers share: name server, ground truth, a broker on an untouched store; S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_engine.retention.archive import sealed
from storage_engine.retention.archive.archivable import Listed, list_segments
from storage_engine.retention.store.context import Context
from storage_engine.rocketmq.live import hold as live_hold
from tests.fixture_stores import unpack
from tests.integration.broker import Broker, name_server, running_broker
from tests.integration.object_store import ObjectStore
from tests.integration.object_store import object_store as running_object_store
from tests.integration.stores import Truth
from tests.integration.three_brokers import (  # noqa: F401
    cluster,
    cluster_directory,
    cluster_version,
    lake,
    own_cluster,
)


@pytest.fixture(scope="session")
def name_server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with name_server(tmp_path_factory.mktemp("name-server")) as port:
        yield port


@pytest.fixture(scope="session")
def truth() -> Truth:
    return Truth.of("clean-stop")


@pytest.fixture
def cleans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the end of a hold know that this broker's passes begin as it starts, not a minute later."""
    monkeypatch.setattr(live_hold, "FIRST_PASS_MS", 0)


@pytest.fixture(scope="module")
def untouched_broker(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Broker]:
    work = tmp_path_factory.mktemp("untouched")
    store = unpack("clean-stop", work / "store")
    # Asked how it is, a broker walks its whole timer wheel.
    with running_broker(store, work, name_server_port, {"timerWheelEnable": False}) as broker:
        yield broker


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_object_store(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Where each log began at the looks of archive runs."""
    offsets: dict[str, list[int]] = {}

    def list_and_note(context: Context) -> Listed:
        listing = list_segments(context)
        for log in listing.snapshot.logs:
            offsets.setdefault(log.name, []).append(log.min_offset)
        return listing

    monkeypatch.setattr(sealed, "list_segments", list_and_note)
    return offsets
