"""A broker that is left to its own rules: what a look can't do, or can't tell, is an alarm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, BrokerUnavailableError, GateRefusedError
from storage_engine.journal.journal import drift_since_renewal
from storage_engine.kafka.live.live_store import TopicsHold
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import Drift, DriftKind, DueRange, HoldStatus
from storage_engine.model.settings.store_settings import WE_DELETE
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.hold import holding
from storage_engine.retention.hold.holding import hold, keep_held
from storage_engine.retention.monitor import monitoring
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of

GONE = Drift(DriftKind.SEGMENT_GONE, "log orders-0: records went.", "orders-0", 0, 2)
DUE = DueRange("orders-0", 2, 4, 100, 7, "the account may not")


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedStore:
    made = MadeNode(tmp_path / "node")
    made.add("orders-0", {0: [batch_of(0)], 2: [batch_of(2)]})
    live = LiveBroker("127.0.0.1:1", allow_same_disk=True)
    monkeypatch.setattr(holding, "_find_proven", lambda *_: ({}, ()))
    store = ManagedStore.local("node", str(made.write()), tmp_path, broker="kafka", live=live)
    make_lake(store.lake, "kafka")
    return store


def fail(hold: TopicsHold, *_: Any) -> HoldStatus:
    """Find what went, and fail with the next question."""
    assert hold.node.memory is not None
    hold.node.memory.record_drift((GONE,))
    raise BrokerUnavailableError("no answer in time")


def test_what_a_look_found_before_it_failed_is_told(
    managed: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicsHold, "hold_due", fail)
    with opened(managed) as context:
        status, alarms = monitoring._hold_due(context, "first", None)
        assert status is None
        assert any("no answer in time" in one for one in alarms)
        assert any(one.startswith("segment-gone: log orders-0: records went") for one in alarms)
        # Where nobody told it, as after a kill, the next look does.
        monkeypatch.setattr(TopicsHold, "hold_due", lambda *_: HoldStatus(False, left_to_broker=True))
        status, alarms = monitoring._hold_due(context, "second", None)
        assert status is not None
        assert [one.kind for one in status.disturbances] == [DriftKind.SEGMENT_GONE]
        assert drift_since_renewal(context.journal, context.record) == ()
        assert monitoring._hold_due(context, "third", None)[1] == ()


def test_a_look_that_another_run_keeps_away_is_not_well(managed: ManagedStore) -> None:
    with opened(managed) as context, context.journal.lease(context.record.store_id):
        result = hold(context, run_key="kept-away")
    assert not result.renewed
    assert not result.status.is_well
    assert "segments that will be deleted soon were not looked for" in result.status.alarms[0]


def test_where_nothing_else_can_be_told_what_goes_soon_is(
    managed: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = HoldStatus(False, left_to_broker=True, due=(DUE,), alarms=("topic orders stays held",))
    monkeypatch.setattr(TopicsHold, "hold_due", lambda *_: status)

    def failed(*_: Any) -> Any:
        raise BadInputError("a log directory can't be read")

    monkeypatch.setattr(monitoring, "sense", failed)
    with pytest.raises(BadInputError) as error:
        monitoring.monitor(managed, "first")
    said = "\n".join(error.value.__notes__)
    assert "records of offsets [2, 4)" in said
    assert "topic orders stays held" in said


def test_a_run_whose_hold_was_reverted_says_who_did_what(
    managed: ManagedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reverted = Drift(DriftKind.SETTING_CHANGED, "topic orders: expected retention.ms 9, found 5.")
    status = HoldStatus(held=False, disturbances=(reverted,), notices=("the hold counts from 12:00 on",))
    monkeypatch.setattr(TopicsHold, "status", lambda *_: status)
    monkeypatch.setattr(TopicsHold, "renew", lambda *_: status)
    live = replace(managed.live or LiveBroker(), deletes=WE_DELETE)
    with opened(replace(managed, live=live)) as context:
        run = begin_background_run(context, "run")
        with pytest.raises(GateRefusedError, match=r"counts from 12:00 on; .*retention\.ms 9, found 5"):
            keep_held(context, run, clock_ms())
