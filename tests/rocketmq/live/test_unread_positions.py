"""Where a broker can't say how far its groups are, its files tell what consumers lose, and that is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from storage_engine.exceptions import BrokerUnavailableError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.retention.lag.unread_losses import find_unread
from storage_engine.rocketmq.live.live_store import LiveStore
from storage_engine.rocketmq.live.observe import LiveParts
from storage_engine.rocketmq.store.broker import open_files

NOW_MS = 1_900_000_000_000
MIB = 1 << 20


class SilentAdmin:
    """A broker that answers nothing any more."""

    def consumer_offsets(self) -> Any:
        raise BrokerUnavailableError("10.0.0.1:10911: expected an answer, found none.")


def test_it_is_said_that_positions_are_those_of_the_files(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    settings = StoreSettings(str(root), time_zone="UTC")
    files = open_files(settings)
    live = LiveBroker(address="10.0.0.1:10911")
    store = LiveStore(
        LiveParts(cast("Any", None), cast("Any", SilentAdmin()), files, {}, live, None, settings)
    )
    unread = find_unread(store, files.snapshot(NOW_MS), {"commitlog": 5 * MIB}, LagPolicy.WARN)
    assert [row.messages for row in unread.rows if row.group == "cg_orders"] == [37]
    assert "the broker could not be asked, so groups' positions are those that it wrote" in unread.notices[0]
