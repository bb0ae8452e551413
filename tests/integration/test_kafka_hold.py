"""The hold of topics on real brokers: nothing expires while it is renewed, and settings come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from demo.brokers.kafka import Kafka
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import GateRefusedError
from storage_engine.kafka.hold.hold_state import RETENTION_BYTES, RETENTION_MS, TopicSetting
from storage_engine.kafka.live import raised_settings
from storage_engine.kafka.live.live_store import LiveKafkaStore
from storage_engine.kafka.live.observe import LiveNode
from storage_engine.kafka.live.topic_state import read_settings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import DriftKind, HoldMemory, HoldStatus
from storage_engine.model.settings.store_settings import STRICT, WE_DELETE
from tests.integration.kafka_broker import (
    SECONDS,
    VERSIONS,
    admin_of,
    make_topics,
    produce,
    running_kafka,
    small,
)
from tests.kafka.hold_memory import Memory

pytestmark = [pytest.mark.integration, pytest.mark.again]

INTERVAL_MS = 1000
HOUR_MS = 3_600_000
RECORD = b"x" * 1000
SETTINGS = {
    "log.retention.check.interval.ms": INTERVAL_MS,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 0,
    "log.retention.ms": 10 * HOUR_MS,
}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def kafka(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_kafka(tmp_path_factory.mktemp("kafka-hold"), version, SETTINGS) as node:
        # Records of nine hours: own keeps them for a minute and a half, default for an hour.
        make_topics(node.address, "own", "compacted", retention_ms=9 * HOUR_MS + 90_000, **small(version))
        make_topics(node.address, "default", **small(version))
        make_topics(node.address, "young", retention_ms=2_000 * HOUR_MS, **small(version))
        make_topics(node.address, "sized", retention_bytes=130_000, **small(version))
        change(node, "compacted", "cleanup.policy", "compact,delete")
        for topic in ("own", "default", "young", "compacted"):
            produce(
                node.address,
                topic,
                [RECORD] * 60,
                timestamp_ms=clock_ms() - 9 * HOUR_MS,
                batch_num_messages=1,
                key=b"k",
            )
        produce(node.address, "sized", [RECORD] * 100, batch_num_messages=1)
        yield node


def change(kafka: Kafka, topic: str, key: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(kafka.address)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS)


def store_of(kafka: Kafka, memory: HoldMemory, **live: Any) -> LiveKafkaStore:
    broker = replace(LiveBroker(kafka.address, deletes=WE_DELETE), **live)
    return LiveKafkaStore(LiveNode(Path(kafka.server_properties), live=broker, memory=memory))


def settings(store: LiveKafkaStore, topic: str) -> dict[str, TopicSetting]:
    found = read_settings(store.node.asked, [topic])[topic]
    assert isinstance(found, dict)
    return found


def wait_for(store: LiveKafkaStore, expected: dict[str, dict[str, TopicSetting]]) -> None:
    """A node shows a change of settings a moment later."""
    deadline = time.monotonic() + SECONDS
    while (found := {topic: settings(store, topic) for topic in expected}) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def renewed(store: LiveKafkaStore) -> HoldStatus:
    """Renew a hold until it counts."""
    deadline = time.monotonic() + SECONDS
    while not (status := store.hold.renew(clock_ms())).is_well:
        assert time.monotonic() < deadline, status
        time.sleep(INTERVAL_MS / 1000)
    return status


def test_topics_are_raised_as_far_as_needed_and_come_back_by_their_sources(kafka: Kafka) -> None:
    store = store_of(kafka, Memory())
    before = {topic: settings(store, topic) for topic in ("own", "default", "young", "compacted", "sized")}
    first = store.hold.renew(clock_ms())
    status = renewed(store)
    held = {topic: settings(store, topic) for topic in before}
    assert held["young"] == before["young"]
    assert held["compacted"] == before["compacted"]
    assert any("compacted is never held" in notice for notice in first.notices)
    for topic in ("own", "default"):
        assert held[topic][RETENTION_MS].is_own
        assert 33 * HOUR_MS - 60_000 < held[topic][RETENTION_MS].value < 33 * HOUR_MS + 600_000
        assert held[topic][RETENTION_BYTES] == before[topic][RETENTION_BYTES]
    assert held["sized"][RETENTION_BYTES].value > 200_000
    assert status.ends_at_ms is not None
    assert 23 * HOUR_MS < status.ends_at_ms - clock_ms() <= 24 * HOUR_MS
    # What is held is decided on by the settings that the topics had before.
    kept = store.node.look(clock_ms()).node.live
    assert kept is not None
    own = kept.partitions["own-0"].topic_settings
    assert own is not None
    assert own[RETENTION_MS] == str(before["own"][RETENTION_MS].value)
    assert renewed(store).disturbances == ()
    assert {topic: settings(store, topic) for topic in before} == held
    ended = store.hold.end(clock_ms())
    assert ended.notices == ()
    wait_for(store, before)


def test_nothing_expires_that_would_have_without_the_hold(kafka: Kafka, version: str) -> None:
    make_topics(kafka.address, "going", retention_ms=HOUR_MS + 30_000, **small(version))
    made_ms = clock_ms()
    produce(kafka.address, "going", [RECORD] * 60, timestamp_ms=made_ms - HOUR_MS, batch_num_messages=1)
    memory = Memory()
    store = store_of(kafka, memory)
    renewed(store)
    going = ("going-0", store.node.look(0).known["going-0"].seen.min_offset)
    assert going == ("going-0", 0)
    while clock_ms() < made_ms + 30_000 + 3 * INTERVAL_MS:
        time.sleep(0.5)
    status = store.hold.renew(clock_ms())
    assert status.held
    assert status.disturbances == ()
    assert store.node.look(0).known["going-0"].seen.min_offset == 0
    # Without the hold they go at once, which shows that it was the hold that kept them.
    store.hold.end(clock_ms())
    deadline = time.monotonic() + SECONDS
    while store.node.look(0).known["going-0"].seen.segments[0].base_offset == 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_what_somebody_else_sets_is_drift_and_stays_theirs(kafka: Kafka) -> None:
    memory = Memory()
    store = store_of(kafka, memory)
    renewed(store)
    change(kafka, "own", RETENTION_MS, str(9 * HOUR_MS + 95_000))
    change(kafka, "default", RETENTION_MS, None)
    time.sleep(1)
    status = store.hold.renew(clock_ms())
    drift = {one.log: one for one in status.disturbances}
    assert set(drift) == {"own", "default"}
    assert {one.kind for one in drift.values()} == {DriftKind.SETTING_CHANGED}
    assert f"found {9 * HOUR_MS + 95_000}" in drift["own"].detail
    assert "between 2" in drift["own"].detail
    assert memory.drift == list(status.disturbances)
    assert renewed(store).disturbances == ()
    assert settings(store, "own")[RETENTION_MS].value > 30 * HOUR_MS
    # Restored is what they set; what they set last is left alone.
    change(kafka, "default", RETENTION_MS, str(5_000 * HOUR_MS))
    time.sleep(1)
    ended = store.hold.end(clock_ms())
    back = TopicSetting(9 * HOUR_MS + 95_000, is_own=True)
    wait_for(store, {"own": {**settings(store, "own"), RETENTION_MS: back}})
    assert settings(store, "default")[RETENTION_MS] == TopicSetting(5_000 * HOUR_MS, True)
    assert any("another program set it" in notice for notice in ended.notices)
    change(kafka, "default", RETENTION_MS, None)
    change(kafka, "own", RETENTION_MS, str(9 * HOUR_MS + 90_000))


def test_strict_sets_no_limit(kafka: Kafka) -> None:
    store = store_of(kafka, Memory(), hold=STRICT)
    before = settings(store, "own")
    status = renewed(store)
    assert {one.value for one in settings(store, "own").values()} == {-1}
    assert {one.value for one in settings(store, "young").values()} == {-1}
    assert status.ends_at_ms is None
    store.hold.end(clock_ms())
    wait_for(store, {"own": before})


@pytest.mark.parametrize("sets", [False, True], ids=["before it was set", "before that is known"])
def test_killed_between_recording_and_setting(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, sets: bool
) -> None:
    memory = Memory()
    store = store_of(kafka, memory)
    before = {topic: settings(store, topic) for topic in ("own", "default")}
    really = raised_settings.change_settings

    def die(*words: Any) -> Any:
        if sets:
            really(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(raised_settings, "change_settings", die)
    with pytest.raises(KeyboardInterrupt):
        store.hold.renew(clock_ms())
    monkeypatch.undo()
    assert memory.state is not None
    # Ended at once, and after a renewal: both times as they were, and nobody is blamed.
    kept = memory.state
    other = store_of(kafka, Memory(kept))
    assert other.hold.end(clock_ms()).disturbances == ()
    wait_for(store, before)
    if sets:
        return
    memory.state = kept
    status = renewed(store)
    assert status.disturbances == ()
    assert memory.drift == []
    store.hold.end(clock_ms())
    wait_for(store, before)


def test_without_a_journal_nothing_is_held(kafka: Kafka) -> None:
    store = LiveKafkaStore(
        LiveNode(Path(kafka.server_properties), live=LiveBroker(kafka.address, deletes=WE_DELETE))
    )
    with pytest.raises(GateRefusedError, match="expected a journal"):
        store.hold.renew(clock_ms())
    assert (
        not LiveKafkaStore(
            LiveNode(Path(kafka.server_properties), live=LiveBroker(kafka.address), memory=Memory())
        )
        .hold.renew(clock_ms())
        .held
    )
