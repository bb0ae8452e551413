"""A real broker on a fixture store as it is: shows that the harness reads what the broker serves."""

from __future__ import annotations

import hashlib

import pytest

from tests.integration.broker import Broker
from tests.integration.remoting import RemotingClient
from tests.integration.stores import Truth, served

pytestmark = pytest.mark.integration


@pytest.fixture
def client(untouched_broker: Broker) -> RemotingClient:
    return untouched_broker.client


def test_broker_serves_every_message_of_every_queue_as_written(client: RemotingClient, truth: Truth) -> None:
    expected = truth.messages(0, max(truth.frames) + 1)
    assert sum(map(len, expected.values())) == sum(map(len, truth.queues.values()))
    assert served(client, expected) == expected


def test_broker_finds_every_message_by_its_physical_offset(client: RemotingClient, truth: Truth) -> None:
    found = {offset: hashlib.sha256(client.view(offset) or b"").hexdigest() for offset in truth.frames}
    assert found == truth.frames


def test_broker_begins_at_the_first_segment(client: RemotingClient, truth: Truth) -> None:
    assert client.runtime_info().commitlog_min_offset == 0
    assert {queue: client.min_offset(*queue) for queue in truth.queues} == truth.first_offsets(0)
