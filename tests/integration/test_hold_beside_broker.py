"""Our hold on a store and a real broker keep each other out."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import StoreBusyError
from tests.integration.broker import Broker, BrokerStartError, start_broker
from tests.integration.stores import file_hashes, open_store, unpack

pytestmark = pytest.mark.integration


def test_running_broker_is_noticed_and_its_store_left_alone(untouched_broker: Broker) -> None:
    root = untouched_broker.store
    store = open_store(root)
    log = (root / "commitlog", root / "consumequeue", root / "index")
    before = file_hashes(*log)
    # Twice: a refused attempt must not have loosened the broker's own lock.
    for _ in range(2):
        with pytest.raises(StoreBusyError, match=str(untouched_broker.java.process.pid)), store.hold():
            pytest.fail("held a store that a broker runs on")
    assert file_hashes(*log) == before
    assert untouched_broker.client.runtime_info().commitlog_min_offset == 0


def test_broker_refuses_to_start_on_a_store_that_we_hold(tmp_path: Path, name_server_port: int) -> None:
    root = unpack("clean-stop", tmp_path / "store")
    before = file_hashes(root / "commitlog")
    with open_store(root).hold():
        with pytest.raises(BrokerStartError, match="Lock failed"):
            start_broker(root, tmp_path, name_server_port)
        assert file_hashes(root / "commitlog") == before
