"""Real brokers on nodes that were cleaned while they were stopped: the same records, and writing goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from storage_engine.kafka.format.layout import PartitionLog, read_node
from tests.integration.kafka_broker import SECONDS, admin_of, any_segment_bytes, make_topics, running_kafka
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
from tests.rounds import rounds
from tests.services.command_line import run_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.again,
    pytest.mark.timeout(3_600),
    pytest.mark.usefixtures("plainly"),
]

ROUNDS = rounds("STORAGE_ENGINE_KAFKA_CLEANUPS", 3, 20)
NEVER_MS = 24 * 3_600_000


def log_of(root: Path) -> PartitionLog:
    (found,) = (log for _, log in read_node(root / "server.properties").logs if log.name.log == NAME)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_serves_what_a_cleanup_left_and_goes_on(version: str, tmp_path: Path) -> None:
    root, lake = tmp_path / "node", tmp_path / "lake"
    root.mkdir()
    properties = root / "server.properties"
    # It deletes nothing by itself: the first look at retention is as late as all others.
    late = {"log.initial.task.delay.ms": NEVER_MS, "log.retention.check.interval.ms": NEVER_MS}
    roll = any_segment_bytes(version)
    assert run_command("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    with running_kafka(root, version, {**settings_of(root), **late}) as kafka:
        make_topics(kafka.address, TOPIC, retention_bytes=3 * SEGMENT_BYTES, **{roll: SEGMENT_BYTES})
        for number in range(ROUNDS):
            write(kafka.address, rounds=16)
            if number % 2:
                # The log begins inside its first segment then, as its checkpoint says.
                start, _ = limits(kafka.address)
                wanted = [TopicPartition(TOPIC, 0, start + 3)]
                admin = admin_of(kafka.address)
                for done in admin.delete_records(wanted).values():
                    done.result(SECONDS)
            before = {level: consumed(kafka.address, level) for level in LEVELS}
            _, end = limits(kafka.address)
            kafka.stop()

            first = log_of(root).segments[0].base_offset
            cleaned = run_command("clean", properties, "--lake", lake, "--run-key", f"round-{number}")
            assert cleaned.exit_code == 0, (cleaned.out, cleaned.err)
            left = log_of(root)
            new_start = left.segments[0].base_offset
            assert new_start > first, cleaned.out
            assert len(left.segments) > 2

            kafka.start()
            assert limits(kafka.address) == (new_start, end)
            for level, records in before.items():
                expected = [one for one in records if one[0] >= new_start]
                assert expected
                assert consumed(kafka.address, level) == expected
        write(kafka.address, rounds=4)
        assert limits(kafka.address)[1] > end
        kafka.stop()
    verified = run_command("verify", properties, "--lake", lake)
    assert verified.exit_code == 0, (verified.out, verified.err)
