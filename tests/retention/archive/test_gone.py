"""Whose doing it was that an unproven segment went: unknown is never a broker's right."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import hold_memory
from storage_engine.kafka.hold.hold_state import HeldSetting, HoldState, TopicSetting
from storage_engine.kafka.stopped.store_lock import LOCK
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.store_settings import WE_DELETE
from storage_engine.retention.archive.archivable import Unproven
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.gone import record_gone_unproven
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.services.lock_holder import lock_held

LIVE = LiveBroker("127.0.0.1:1", allow_same_disk=True)
OURS = replace(LIVE, deletes=WE_DELETE)


def hold_of(topic: str) -> HoldState:
    """Return a hold that has raised a topic's retention.ms."""
    first = TopicSetting(5, is_own=False)
    return HoldState(settings=(HeldSetting(topic, "id", "retention.ms", first, (9,), True, 0),))


@pytest.mark.parametrize(
    ("live", "runs", "hold", "may_go"),
    [
        pytest.param(LIVE, True, None, True, id="left to its broker"),
        pytest.param(LIVE, True, hold_of("payments"), True, id="another topic is held"),
        pytest.param(LIVE, True, hold_of("orders"), False, id="its topic is held"),
        pytest.param(LIVE, True, {"of": "a newer release"}, False, id="what is held can't be read"),
        pytest.param(OURS, True, hold_of("orders"), False, id="we delete"),
        pytest.param(OURS, True, None, False, id="we delete, and nothing is held yet"),
        pytest.param(None, True, None, True, id="its broker runs, though it isn't named"),
        pytest.param(None, True, hold_of("orders"), False, id="the same, and it was held"),
        pytest.param(None, False, None, False, id="no broker runs"),
    ],
)
def test_only_a_broker_that_runs_and_is_left_to_its_rules_may_delete(
    tmp_path: Path, live: LiveBroker | None, runs: bool, hold: object, may_go: bool
) -> None:
    made = MadeNode(tmp_path / "node")
    made.add("orders-0", {0: [batch_of(0)], 2: [batch_of(2)], 4: [batch_of(4)]})
    properties = made.write()
    store = ManagedStore.local("node", str(properties), tmp_path, broker="kafka", live=live)
    make_lake(store.lake, "kafka")
    with ExitStack() as stack:
        context = stack.enter_context(opened(store))
        stopped = stack.enter_context(opened(replace(store, live=None)))
        (log,) = stopped.snapshot(0).logs
        if hold is not None:
            hold_memory(context.journal, context.record.store_id).save(to_jsonable(hold))
        if live is None and runs:
            directory = context.broker.data_paths[0]
            stack.enter_context(lock_held(directory / LOCK))
        run = begin_background_run(context, "run")
        done = record_gone_unproven(context, run, Unproven(log.sealed), "Nothing was deleted.")
        ((drift, _),) = recorded_gone(context.journal, context.record)
    assert (drift.log, drift.start_offset, drift.end_offset) == ("orders-0", 0, 4)
    if may_go:
        assert done.refusals == ()
        assert ["[0, 4)" in one and "by its own rules" in one for one in done.notices] == [True]
    else:
        assert done.notices == ()
        (refused,) = done.refusals
        assert refused.said.why == (
            "expected records of offsets [0, 4) on disk or in a lake, found them in neither: LOST."
        )
