"""A broker's five tasks on real brokers: watched while it runs, ended while it is stopped, and it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from storage_engine.cli.options.store_argument import managed_store
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.retention import steps
from tests.integration.kafka_broker import SECONDS, admin_of, make_topics, running_kafka
from tests.integration.kafka_transactions import (
    LEVELS,
    NAME,
    SEGMENT_BYTES,
    TOPIC,
    consumed,
    limits,
    write,
)
from tests.integration.test_kafka_restored import VERSIONS, settings_of
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_800)]

OFTEN_MS = 500
LATER_MS = 600_000


def wait_for(said: str, seen: object) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if seen():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError(f"not within two minutes: {said}")


def left_of(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the files and the directories that wait for their removal."""
    logs = [root / "first", root / "second"]
    files = [path for one in logs for path in one.glob(f"{NAME}/*.deleted")]
    return files, [path for one in logs for path in one.glob("*-delete")]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_broker_left_is_ended_and_it_starts_on_a_stamped_node(version: str, tmp_path: Path) -> None:
    root, lake = tmp_path / "node", tmp_path / "lake"
    root.mkdir()
    properties = root / "server.properties"
    often = dict.fromkeys(
        (
            "log.retention.check.interval.ms",
            "log.flush.offset.checkpoint.interval.ms",
            "log.flush.start.offset.checkpoint.interval.ms",
        ),
        OFTEN_MS,
    )
    settings = {**settings_of(root), **often, "log.initial.task.delay.ms": 0, "num.partitions": 1}
    roll = "segment_bytes" if version.startswith("3.") else "internal_segment_bytes"
    make_lake(LakeConfig.local(lake), "kafka")
    with running_kafka(root, version, settings) as kafka:
        address = kafka.address
        make_topics(address, TOPIC, "gone", "kept", **{roll: SEGMENT_BYTES})
        write(address, rounds=24)
        archived = run_command(
            "archive", properties, "--lake", lake, "--broker", address, "--allow-same-disk"
        )
        assert archived.exit_code == 0, (archived.out, archived.err)
        stamps = [root / name / PLAIN_STAMP for name in ("first", "second")]
        assert [path.exists() for path in stamps] == [True, True]
        said = stamps[0].read_bytes()

        # Idle or not, the broker writes both checkpoints each time.
        points = [root / "first" / f"{name}-offset-checkpoint" for name in ("recovery-point", "log-start")]
        before = [path.stat().st_mtime_ns for path in points]
        wait_for(
            "checkpoints are written",
            lambda: all(path.stat().st_mtime_ns > at for path, at in zip(points, before, strict=True)),
        )
        watched = run_command(
            "kafka", "run-tasks", properties, "--lake", lake, "--broker", address, "--allow-same-disk"
        )
        assert watched.exit_code == 0, (watched.out, watched.err)
        assert "0 starts behind the leader's" in watched.out

        log = next(path for name in ("first", "second") for path in root.glob(f"{name}/{NAME}"))
        second = sorted(log.glob("*.log"))[2]
        admin = admin_of(address)
        for done in admin.delete_records([TopicPartition(TOPIC, 0, int(second.stem))]).values():
            done.result(SECONDS)
        for done in admin.delete_topics(["gone"]).values():
            done.result(SECONDS)
        wait_for("files and a directory wait for their removal", lambda: all(left_of(root)))
        served = {level: consumed(address, level) for level in LEVELS}
        where = limits(address)
        kafka.stop()

        files, gone = left_of(root)
        assert len(files) >= 2 * 3
        assert len(gone) == 1
        store = managed_store(properties, lake, broker_type="kafka")
        now_ms = clock_ms() + LATER_MS
        words = {"gone": "a trial"}
        results = steps.run_broker_tasks(store, "tasks", words=words, now_ms=now_ms)
        found = {one.name: one for one in results}
        assert [one.alarms for one in found.values()] == [()] * 5
        assert found["cleanupLogs"].kept == ()
        assert found["cleanupLogs"].removed_files == len(files)
        assert found["deleteLogs"].removed_files > 0
        assert left_of(root) == ([], [])
        assert "all flushed by a clean stop" in found["flushDirtyLogs"].text

        kafka.start()
        assert limits(kafka.address) == where
        assert {level: consumed(kafka.address, level) for level in LEVELS} == served
        write(kafka.address, rounds=4)
        assert limits(kafka.address)[1] > where[1]
        assert stamps[0].read_bytes() == said
        kafka.stop()
    verified = run_command("verify", properties, "--lake", lake)
    assert verified.exit_code == 0, verified.out
