"""A topic that nothing is copied of to remote storage: kept as any other, deleted by its broker alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.brokers.jvm import Jars, maven_jars
from demo.brokers.kafka import PLAIN, Kafka
from tests.integration.jars import JAVA_PROJECTS
from tests.integration.kafka_broker import VERSIONS, kafka_jars, make_topics, served, small
from tests.integration.kafka_cluster import wait_until
from tests.integration.test_kafka_hold import settings as settings_of
from tests.integration.test_kafka_hold import store_of
from tests.integration.test_kafka_release import (
    HOUR_MS,
    command,
    in_lake,
    old,
    said,
    start_of,
    until_held,
    values,
)
from tests.kafka.hold_memory import Memory
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

REMOTE = {"remote_storage_enable": "true"}
NOT_COPIED = {**REMOTE, "remote_log_copy_disable": "true"}
SETTINGS = {
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 0,
    "file.delete.delay.ms": 1000,
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": PLAIN,
    "remote.log.manager.task.interval.ms": 500,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
}


def jars_with_remote_storage(version: str) -> Jars:
    project = JAVA_PROJECTS / "kafka_remote_storage"
    (project / "target").mkdir(exist_ok=True)
    listed = project / "target" / f"kafka-{version}.txt"
    found = maven_jars(project / "pom.xml", listed, "Kafka", {"kafka.version": version})
    broker = kafka_jars(version)
    return Jars(broker.java, os.pathsep.join((broker.class_path, found.class_path)))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def kafka(version: str, tmp_path: Path) -> Iterator[Kafka]:
    settings = {**SETTINGS, "rsm.config.dir": tmp_path / "remote"}
    node = Kafka(tmp_path / "kafka", jars_with_remote_storage(version), settings)
    node.start()
    try:
        yield node
    finally:
        node.kill()


def left_to_its_broker(kafka: Kafka, lake: Path, name: str, *words: object) -> Outcome:
    live = ("--broker", kafka.address, "--allow-same-disk")
    return run_command(name, kafka.server_properties, "--lake", lake, *live, *words)


def reasons(done: Outcome, topic: str) -> set[str]:
    found = [one for one in said(done)["report"]["segments"] if one["log"] == f"{topic}-0"]
    assert {one["fate"] for one in found} == {"kept"}
    return {one["reason"] for one in found}


def test_it_is_archived_and_held_and_only_its_broker_deletes_of_it(
    kafka: Kafka, version: str, tmp_path: Path
) -> None:
    make_topics(kafka.address, "stays", retention_ms=10 * HOUR_MS, **NOT_COPIED, **small(version))
    make_topics(kafka.address, "copied", retention_ms=10 * HOUR_MS, **REMOTE, **small(version))
    lake = tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    for topic in ("stays", "copied"):
        old(kafka, topic, 0, 80, age_ms=9 * HOUR_MS)
    remote = tmp_path / "remote"
    wait_until(lambda: any(remote.rglob("copied-0-*/*.log")), "segments in remote storage")
    assert not list(remote.rglob("stays-0-*"))
    store = store_of(kafka, Memory())
    first = settings_of(store, "stays")["retention.ms"].value
    # Left to its broker, it is held before it goes unproven, and put back once it is archived.
    left_to_its_broker(kafka, lake, "hold", "--json")
    assert settings_of(store, "stays")["retention.ms"].value > first
    assert settings_of(store, "copied")["retention.ms"].value == first
    said(left_to_its_broker(kafka, lake, "archive", "--json"))
    archived = in_lake(lake, "stays")
    assert len(archived) > 60
    assert archived == {at: values(at, 1)[0] for at in archived}
    assert in_lake(lake, "copied") == {}
    # Where we delete, it is held, too, and nothing of it goes by us.
    make_topics(kafka.address, "goes", retention_ms=HOUR_MS, **NOT_COPIED, **small(version))
    until_held(kafka, lake)
    old(kafka, "goes", 0, 80)
    said(command(kafka, lake, "archive", "--json"))
    assert "remote-storage" in reasons(command(kafka, lake, "clean", "--json"), "goes")
    assert start_of(kafka, "goes") == 0
    assert served(kafka.address, "goes") == dict(enumerate(values(0, 80)))
    assert len(in_lake(lake, "goes")) > 60
    # Its broker takes it, and raises its start, as soon as it isn't held.
    said(command(kafka, lake, "unmanage", "--json"))
    wait_until(lambda: start_of(kafka, "goes") == 80, "the broker to delete what has expired")
