"""A real broker on a fixture store as it is: shows that the harness reads what the broker serves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.integration.broker import Broker, running_broker
from tests.integration.stores import Truth, served, unpack

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Broker]:
    work = tmp_path_factory.mktemp("untouched")
    with running_broker(unpack("clean-stop", work / "store"), work, name_server_port) as broker:
        yield broker


def test_broker_serves_every_message_of_every_queue_as_written(broker: Broker, truth: Truth) -> None:
    expected = truth.messages(0, max(truth.frames) + 1)
    assert sum(map(len, expected.values())) == sum(map(len, truth.queues.values()))
    assert served(broker.client, expected) == expected


def test_broker_finds_every_message_by_its_physical_offset(broker: Broker, truth: Truth) -> None:
    found = {offset: hashlib.sha256(broker.client.view(offset) or b"").hexdigest() for offset in truth.frames}
    assert found == truth.frames


def test_broker_begins_at_the_first_segment(broker: Broker, truth: Truth) -> None:
    assert broker.client.runtime_info()["commitLogMinOffset"] == "0"
    assert {queue: broker.client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(0)
