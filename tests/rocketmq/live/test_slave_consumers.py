"""Where a slave's groups are says its master, and nobody where that one can't be asked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerUnavailableError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import PositionsFrom
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.live.live_store import live_consumers
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from tests.rocketmq.remoting.test_masters import NAMES, Machines

OFFSETS = b'{"offsetTable":{"t@g":{0:7}}}'
GROUPS = b'{"subscriptionGroupTable":{"g":{"groupName":"g"}}}'


def test_a_slave_s_master_says_where_groups_are(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    layout = resolve_layout(load_broker_config(None, {}, root=tmp_path))
    with ExitStack() as stack:
        machines = Machines(stack)
        more = {command.GET_ALL_CONSUMER_OFFSET: OFFSETS, command.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: GROUPS}
        master = machines.broker("ASYNC_MASTER", more)
        # It answers nothing of this, and isn't asked.
        slave = BrokerAdmin(machines.broker("SLAVE"))
        stack.enter_context(slave)
        servers = machines.name_server({0: master, 1: slave.address})
        settings = {**NAMES, "brokerRole": "SLAVE", "namesrvAddr": servers}
        consumers, source = live_consumers(slave, settings, LiveBroker(slave.address), layout)
        assert consumers.committed.column("committed_offset").to_pylist() == [7]
        assert source.positions is PositionsFrom.BROKER
        assert source.notices[0].startswith(f"groups' positions come from master {master};")

        for nobody in (machines.nobody(), machines.name_server({1: slave.address}), ""):
            settings["namesrvAddr"] = nobody
            with pytest.raises(BrokerUnavailableError, match="only copies positions, and its master can't"):
                live_consumers(slave, settings, LiveBroker(slave.address), layout)
