"""A node that is left to its broker: what goes soon and is in no lake is held, and put back once archived."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from demo.brokers.kafka import Kafka
from storage_engine.console.store import one_store
from storage_engine.core.clock import clock_ms
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.kafka.format.server_properties import read_server_properties
from storage_engine.kafka.hold.hold_state import RETENTION_BYTES, RETENTION_MS, TopicSetting
from storage_engine.kafka.live import raised_settings
from storage_engine.kafka.live.live_store import LiveKafkaStore
from storage_engine.kafka.live.observe import LiveNode
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import DriftKind, HoldMemory, HoldStatus
from storage_engine.model.report.validation import Status, Where
from storage_engine.model.store import FileFacts, SegmentId
from storage_engine.quality.validate import validate_store
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.kafka_broker import SECONDS, VERSIONS, admin_of, make_topics, produce, running_kafka
from tests.integration.test_kafka_hold import INTERVAL_MS, Memory, change, settings, wait_for
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("plainly")]

HOUR_MS = 3_600_000
Proven = Mapping[SegmentId, FileFacts]
NOTHING: Proven = {}
MARGIN_MS = 24 * HOUR_MS
RECORD = b"x" * 1000
SETTINGS = {
    "log.retention.check.interval.ms": INTERVAL_MS,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 0,
}
SMALL = {"internal_segment_bytes": 20_000}
ONE = {"batch_num_messages": 1}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_kafka(tmp_path_factory.mktemp("kafka-due"), VERSIONS[-1], SETTINGS) as node:
        make_topics(node.address, "young", **SMALL)
        write(node, "young", 40)
        yield node


def write(kafka: Kafka, topic: str, count: int, age_ms: int = 0) -> None:
    made_ms = clock_ms() - age_ms
    produce(kafka.address, topic, [RECORD] * count, timestamp_ms=made_ms, batch_num_messages=1)


def store_of(kafka: Kafka, memory: HoldMemory) -> LiveKafkaStore:
    return LiveKafkaStore(
        LiveNode(Path(kafka.server_properties), live=LiveBroker(kafka.address), memory=memory)
    )


def sealed(store: LiveKafkaStore) -> Proven:
    return {one.id: one.facts for log in store.snapshot(clock_ms()).logs for one in log.sealed}


def due_now(store: LiveKafkaStore, proven: Proven = NOTHING) -> HoldStatus:
    return store.hold.hold_due(proven, MARGIN_MS, clock_ms())


def topic_id_of(kafka: Kafka, topic: str) -> str:
    """Return the id in the directory of a topic's first log; "": there is none."""
    (directory,) = read_server_properties(Path(kafka.server_properties)).log_dirs
    path = directory / f"{topic}-0" / "partition.metadata"
    return path.read_text().split()[-1] if path.exists() else ""


def wait_until_it_begins_later(store: LiveKafkaStore, log: str) -> None:
    deadline = time.monotonic() + SECONDS
    while store.node.look(0).known[log].start_offset == 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.again
def test_held_before_it_goes_and_put_back_once_it_is_archived(kafka: Kafka, tmp_path: Path) -> None:
    # Of two hours: an hour before it would go, which is within half of what it is kept for.
    make_topics(kafka.address, "orders", retention_ms=3 * HOUR_MS, **SMALL)
    write(kafka, "orders", 30, 2 * HOUR_MS)
    write(kafka, "orders", 30)
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0

    def command(name: str, *words: object) -> Outcome:
        live = ("--broker", kafka.address, "--allow-same-disk")
        return run_command(name, kafka.server_properties, "--lake", lake, *live, *words)

    store = store_of(kafka, Memory())
    before = {topic: settings(store, topic) for topic in ("orders", "young")}
    held = command("hold")
    assert held.exit_code == 0, held.out + held.err
    assert "left to its broker" in held.out
    assert "held until their unarchived segments are archived: orders" in held.out
    assert settings(store, "orders")[RETENTION_MS].value > 25 * HOUR_MS
    assert settings(store, "young") == before["young"]
    assert "held until their unarchived segments" in command("inspect").out
    assert command("archive").exit_code == 0
    held = command("hold")
    assert held.exit_code == 0
    assert "no topic is held" in held.out
    wait_for(store, before)
    # Nothing of it is held on a person's word either, as nothing has to be.
    refused = command("clean")
    assert refused.exit_code == 2
    assert "left to its running broker" in refused.err


@pytest.mark.again
def test_a_topic_that_is_made_again_says_what_went_unproven_and_blames_nobody(
    kafka: Kafka, tmp_path: Path
) -> None:
    make_topics(kafka.address, "remade", retention_ms=3 * HOUR_MS, **SMALL)
    write(kafka, "remade", 30, 2 * HOUR_MS)
    write(kafka, "remade", 30)
    lake = tmp_path / "lake"
    run_command("init-lake", "--broker-type", "kafka", "--lake", lake)
    live = ("--lake", lake, "--broker", kafka.address, "--allow-same-disk")
    held = run_command("hold", kafka.server_properties, *live)
    assert re.search("held until their unarchived segments are archived: .*remade", held.out)
    assert run_command("archive", kafka.server_properties, *live).exit_code == 0
    before = topic_id_of(kafka, "remade")
    admin = admin_of(kafka.address)
    admin.delete_topics(["remade"])["remade"].result(SECONDS)
    make_topics(kafka.address, "remade", retention_ms=7 * HOUR_MS, **SMALL)
    deadline = time.monotonic() + SECONDS
    while topic_id_of(kafka, "remade") in (before, ""):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    said = run_command("hold", kafka.server_properties, *live).out
    (told,) = (line for line in said.splitlines() if "topic-replaced" in line)
    assert "WARNING topic-replaced remade-0 [0, 60): log remade-0: expected the topic with id" in told
    assert re.search(r"No lake has offsets \[[1-9]\d, 60\) of it\.$", told)
    assert "setting-changed" not in said
    assert "topic-replaced" not in run_command("hold", kafka.server_properties, *live).out


@pytest.mark.again
def test_a_monitor_holds_and_says_what_went_all_the_same(kafka: Kafka, tmp_path: Path) -> None:
    make_topics(kafka.address, "watched", retention_ms=3 * HOUR_MS, **SMALL)
    write(kafka, "watched", 40, 2 * HOUR_MS)
    write(kafka, "watched", 1)
    live = LiveBroker(kafka.address, allow_same_disk=True)
    root = str(kafka.server_properties)
    managed = ManagedStore.local("node", root, tmp_path, broker="kafka", live=live, named=True)
    make_lake(managed.lake, "kafka")
    found = monitor(managed, "first")
    assert found.alarms == ()
    assert found.hold is not None
    assert "watched" in found.hold.described
    page = one_store(JournalReader(managed.journal_url), "node", clock_ms())
    assert page.row.retention_ms is not None
    assert [level.path for level in page.row.levels] == [str(Path(kafka.server_properties).parent / "data")]
    assert page.ranges is not None
    assert {one.where for one in page.ranges if one.log == "watched-0"} == {"local"}
    assert page.standing is not None
    assert page.standing.hold is not None
    assert "watched" in page.standing.hold.described
    for key in (RETENTION_MS, RETENTION_BYTES):
        change(kafka, "watched", key, "1000")
    wait_until_it_begins_later(store_of(kafka, Memory()), "watched-0")
    alarms = monitor(managed, "second").alarms
    (gone,) = [one for one in alarms if one.startswith("segment-gone: log watched-0")]
    assert "is LOST" in gone
    assert any(one.startswith("setting-changed: topic watched") for one in alarms)
    # Validation fails over it until a person has accepted it.
    result = validate_store(managed, output_dir=tmp_path / "validation")
    lost = [row for row in result.ranges if row.log == "watched-0" and row.where is Where.LOST]
    assert result.overall is Status.FAILURE
    assert lost[0].start_offset == 0


@pytest.mark.again
def test_what_goes_unproven_is_said_once_it_is_gone(kafka: Kafka) -> None:
    make_topics(kafka.address, "going", retention_ms=200 * HOUR_MS, **SMALL)
    write(kafka, "going", 40, 100 * HOUR_MS)
    memory = Memory()
    store = store_of(kafka, memory)
    first = due_now(store)
    assert (first.due, first.disturbances) == ((), ())
    # Somebody lets it go at once: no margin helps.
    change(kafka, "going", RETENTION_MS, str(HOUR_MS))
    wait_until_it_begins_later(store, "going-0")
    gone = [one for one in due_now(store).disturbances if one.log == "going-0"]
    assert {one.kind for one in gone} == {DriftKind.SEGMENT_GONE}
    assert gone[0].start_offset == 0
    assert "no lake proved them when they were last looked at" in gone[0].detail
    # What is proven goes by the broker's own rules, and is nobody's drift.
    make_topics(kafka.address, "proven", retention_ms=200 * HOUR_MS, **SMALL)
    write(kafka, "proven", 40, 100 * HOUR_MS)
    write(kafka, "proven", 1)
    found = sealed(store)
    due_now(store, found)
    change(kafka, "proven", RETENTION_MS, str(HOUR_MS))
    wait_until_it_begins_later(store, "proven-0")
    assert [one for one in due_now(store, found).disturbances if one.log == "proven-0"] == []


@pytest.mark.again
def test_size_counts_by_how_fast_the_log_grows(kafka: Kafka) -> None:
    make_topics(kafka.address, "sized", retention_bytes=150_000, **SMALL)
    write(kafka, "sized", 60)
    store = store_of(kafka, Memory())
    before = settings(store, "sized")
    said = due_now(store)
    assert any(
        "Until the next look they count as due soon" in one and "sized-0" in one for one in said.notices
    )
    # There is room for as much again as was written until now.
    assert settings(store, "sized") == before
    write(kafka, "sized", 40)
    due_now(store)
    assert settings(store, "sized")[RETENTION_BYTES].value > 200_000
    write(kafka, "sized", 100)
    time.sleep(3 * INTERVAL_MS / 1000)
    assert store.node.look(0).known["sized-0"].seen.segments[0].base_offset == 0
    # Archived, it goes by its own size again.
    due_now(store, sealed(store))
    wait_for(store, {"sized": before})
    wait_until_it_begins_later(store, "sized-0")


@pytest.mark.again
def test_all_that_expires_with_its_active_segment_is_held_too(kafka: Kafka) -> None:
    make_topics(kafka.address, "idle", retention_ms=HOUR_MS)
    write(kafka, "idle", 5, HOUR_MS - 20_000)
    expires_ms = clock_ms() + 20_000
    store = store_of(kafka, Memory())
    due_now(store)
    time.sleep((expires_ms + 3 * INTERVAL_MS - clock_ms()) / 1000)
    assert store.node.look(0).known["idle-0"].start_offset == 0
    change(kafka, "idle", RETENTION_MS, str(HOUR_MS))
    wait_until_it_begins_later(store, "idle-0")


@pytest.mark.again
@pytest.mark.parametrize("sets", [False, True], ids=["before it is set", "before that is known"])
@pytest.mark.parametrize("ends", [False, True], ids=["raised", "put back"])
def test_killed_between_recording_and_setting(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, sets: bool, ends: bool
) -> None:
    topic = f"killed-{sets}-{ends}"
    make_topics(kafka.address, topic, retention_ms=3 * HOUR_MS, **SMALL)
    write(kafka, topic, 30, 2 * HOUR_MS)
    write(kafka, topic, 20)
    memory = Memory()
    store = store_of(kafka, memory)
    before = settings(store, topic)
    proven = sealed(store)
    if ends:
        due_now(store)
    really = raised_settings.change_settings

    def die(*words: Any) -> Any:
        if sets:
            really(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(raised_settings, "change_settings", die)
    with pytest.raises(KeyboardInterrupt):
        due_now(store, proven if ends else NOTHING)
    monkeypatch.undo()
    assert any(held["topic"] == topic for held in memory.state["settings"])
    # Whoever comes next goes on: it is held where nothing proves it, and nobody is blamed.
    other = store_of(kafka, Memory(memory.state))
    status = due_now(other)
    assert [one for one in status.disturbances if topic in one.log] == []
    assert settings(other, topic)[RETENTION_MS].value > 20 * HOUR_MS
    assert [one for one in due_now(other, proven).disturbances if topic in one.log] == []
    wait_for(other, {topic: before})


@pytest.mark.again
def test_stores_of_one_journal_put_a_setting_back_once_none_needs_it(kafka: Kafka) -> None:
    """Two stores with replicas of a log: here the same node, as another one would see the same settings."""
    make_topics(kafka.address, "shared", retention_ms=3 * HOUR_MS, **SMALL)
    write(kafka, "shared", 30, 2 * HOUR_MS)
    write(kafka, "shared", 20)
    one, other = Memory(), Memory()
    first, second = store_of(kafka, one), store_of(kafka, other)
    before = settings(first, "shared")
    due_now(first)
    other.others = [one.state]
    # Nothing of it goes soon any more, so that the second one has nothing to raise; it does in the end.
    second.hold.hold_due(NOTHING, MARGIN_MS, clock_ms() + 20 * HOUR_MS)
    one.others = [other.state]
    held = {each["key"]: each for each in other.state["settings"] if each["topic"] == "shared"}
    assert TopicSetting(**held[RETENTION_MS]["original"]) == before[RETENTION_MS]
    proven = sealed(first)
    status = due_now(first, proven)
    assert [each for each in status.disturbances if each.log == "shared"] == []
    assert any("another store of this journal" in notice for notice in status.notices)
    assert settings(first, "shared")[RETENTION_MS].value > 20 * HOUR_MS
    other.others = [one.state]
    due_now(second, proven)
    wait_for(second, {"shared": before})
    one.others = [other.state]
    status = due_now(first, proven)
    assert [each for each in status.disturbances if each.log == "shared"] == []
    assert not [each for each in one.state["settings"] if each["topic"] == "shared"]


@pytest.mark.again
def test_a_log_directory_that_fails_is_named_and_the_others_stay_held(tmp_path: Path) -> None:
    first, failing = tmp_path / "one", tmp_path / "two"
    soon = dict.fromkeys(("offset", "start.offset"), 200)
    soon = {f"log.flush.{what}.checkpoint.interval.ms": ms for what, ms in soon.items()}
    own = {**SETTINGS, **soon, "log.dirs": f"{first},{failing}"}
    with running_kafka(tmp_path / "kafka", VERSIONS[-1], own) as node:
        make_topics(node.address, "t", partitions=2, retention_ms=3 * HOUR_MS, **SMALL)
        made_ms = clock_ms() - 2 * HOUR_MS
        for partition in (0, 1):
            produce(node.address, "t", [RECORD] * 30, partition=partition, timestamp_ms=made_ms, **ONE)
        store = store_of(node, Memory())
        assert due_now(store).disturbances == ()
        # Its next checkpoint can't be written, so that the broker takes it offline; it can still be read.
        (failing / "recovery-point-offset-checkpoint.tmp").mkdir()
        deadline = time.monotonic() + SECONDS
        while not (found := due_now(store).disturbances):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert {one.kind for one in found} == {DriftKind.DIRECTORY_FAILED}
        assert f"log directory {failing}: expected that its broker serves the logs in it" in found[0].detail
        said = run_command("doctor", node.server_properties, "--broker", node.address)
        assert "its broker serves none of its logs" in " ".join(said.out.split())
        # Gone altogether, it is named all the same, and what lies in the other one stays held.
        failing.rename(tmp_path / "unmounted")
        status = due_now(store)
        (gone,) = [one for one in status.disturbances if one.kind is DriftKind.DIRECTORY_FAILED]
        assert "it can't be read" in gone.detail
        assert "held until" in status.described
        assert settings(store, "t")[RETENTION_MS].value > 20 * HOUR_MS
