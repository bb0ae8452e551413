"""A store that is archived alone: whatever would change it, or say what points into its log, refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from storage_engine.exceptions import GateRefusedError, UnsupportedLayoutError
from storage_engine.model.broker.broker_store import PendingKind, StoreSettings
from storage_engine.model.plan import Cause, PlanRequest, Reason
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.rocketmq.store import broker
from storage_engine.rocketmq.store.broker import RocketMQBrokerStore, open_any, open_files
from tests.fixture_stores import file_sha256
from tests.rocketmq.remoting.test_masters import Machines

ROCKSDB = {"storeType": "defaultRocksDB"}


def locked(store: RocketMQBrokerStore) -> object:
    with store.lock() as held:
        return held


REFUSING: dict[str, Callable[[RocketMQBrokerStore], object]] = {
    "lock": locked,
    "delete_segments": lambda store: store.delete_segments(store.snapshot(0).logs[0].segments, lambda: None),
    "dependents": lambda store: store.dependents.find({LOG: 1 << 20}),
    "delete_dependents": lambda store: store.dependents.delete((), lambda: None),
    "unread": lambda store: store.consumers.unread(store.snapshot(0), {LOG: 1 << 20}),
}


@pytest.mark.parametrize("name", REFUSING)
def test_nothing_is_deleted_of_a_store_that_is_archived_alone(
    store_copy: Callable[[str], Path], name: str
) -> None:
    root = store_copy("clean-stop")
    before = {path: file_sha256(path) for path in root.rglob("*") if path.is_file()}
    store = open_any(StoreSettings(str(root), None, ROCKSDB))
    with pytest.raises(UnsupportedLayoutError, match="RocksDB consume queue"):
        REFUSING[name](store)
    assert {path: file_sha256(path) for path in root.rglob("*") if path.is_file()} == before


def test_its_log_is_seen_as_that_of_any_store(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("clean-stop")
    usual = open_files(StoreSettings(str(root))).snapshot(0).logs[0]
    alone = open_any(StoreSettings(str(root), None, ROCKSDB))
    (log,) = alone.renewed(None).snapshot(0).logs  # type: ignore[arg-type]
    assert (log.segments, log.max_offset) == (usual.segments, usual.max_offset)
    # No deletion rests on it.
    assert log.dispatched_offset == log.sealed[-1].end_offset
    assert [one.base_offset for one in alone.archivable(alone.snapshot(0)).segments] == [
        one.base_offset for one in usual.sealed
    ]
    with pytest.raises(UnsupportedLayoutError):
        open_files(StoreSettings(str(root), None, ROCKSDB))


def test_its_plans_keep_everything_and_what_is_pending_is_unknown(store_copy: Callable[[str], Path]) -> None:
    store = open_any(StoreSettings(str(store_copy("clean-stop")), None, ROCKSDB))
    assert store.limit is not None
    assert "RocksDB consume queue" in store.limit.why
    snapshot = store.snapshot(0)
    found = store.plan(snapshot, 0, PlanRequest(manual=True))
    assert [decision.segment for decision in found.decisions] == list(snapshot.logs[0].segments)
    assert {decision.reason for decision in found.decisions} == {Reason.UNKNOWN}
    assert [trigger.cause for trigger in found.triggers] == [Cause.MANUAL]
    assert [one.count for one in store.consumers.pending(snapshot)] == [None] * len(PendingKind)


def test_beside_its_running_broker_it_has_not_crashed(
    store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = store_copy("clean-stop")
    (root / "abort").touch()
    store = open_any(StoreSettings(str(root), None, ROCKSDB))
    assert store.snapshot(0).crashed
    monkeypatch.setattr(broker, "holder_text", lambda _layout: "its lock, which process 1 has")
    assert not store.snapshot(0).crashed
    assert open_files(StoreSettings(str(root))).snapshot(0).crashed


@pytest.mark.parametrize(
    ("identity", "in_sync", "confirmed"), [("c#b#1", "[1]", None), ("c#b#1", "[1,2]", 0), ("", "[1]", 0)]
)
def test_a_stopped_store_is_final_where_its_controller_has_it_alone_in_sync(
    store_copy: Callable[[str], Path], identity: str, in_sync: str, confirmed: int | None
) -> None:
    root = store_copy("clean-stop")
    if identity:
        (root / "brokerIdentity").write_text(identity)
    with ExitStack() as stack:
        controller = Machines(stack).controller("", in_sync)
        names = {"brokerClusterName": "c", "brokerName": "b", "controllerAddr": controller}
        store = open_any(StoreSettings(str(root), overrides={**names, "enableControllerMode": "true"}))
        snapshot, glance = store.snapshot(0), store.glance(0)
    assert (snapshot.logs[0].confirmed_offset, glance.logs[0].confirmed_offset) == (confirmed, confirmed)
    assert bool(store.archivable(snapshot).segments) is (confirmed is None)
    # Once it doesn't answer any more, nobody can tell.
    assert store.snapshot(0).logs[0].confirmed_offset == 0


def test_of_a_stopped_slave_nobody_is_asked_but_a_controller_which_may_make_it_the_master(
    store_copy: Callable[[str], Path],
) -> None:
    root = str(store_copy("clean-stop"))
    slave = {"brokerClusterName": "c", "brokerName": "b", "brokerRole": "SLAVE"}
    open_any(StoreSettings(root, overrides=slave)).locked(()).check_deletable(lambda: True)
    with ExitStack() as stack:
        machines = Machines(stack)
        controlled = {**slave, "enableControllerMode": "true", "namesrvAddr": machines.name_server({})}
        for chosen in ("", "10.0.0.9:1"):
            settings = {**controlled, "controllerAddr": machines.controller(chosen)}
            store = open_any(StoreSettings(root, overrides=settings))
            with ExitStack() as refused:
                if chosen:
                    refused.enter_context(
                        pytest.raises(GateRefusedError, match=r"has 10\.0\.0\.9:1 as the master")
                    )
                store.locked(()).check_deletable(lambda: True)
