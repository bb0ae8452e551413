"""Real brokers on nodes whose cleanup was undone serve every record. After a start nothing is undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.kafka.format.layout import read_node
from tests.integration.kafka_broker import any_segment_bytes, make_topics, running_kafka
from tests.integration.kafka_transactions import LEVELS, NAME, SEGMENT_BYTES, TOPIC, consumed, limits, write
from tests.integration.test_kafka_restored import VERSIONS, settings_of
from tests.services.command_line import run_command

pytestmark = [
    pytest.mark.integration,
    pytest.mark.again,
    pytest.mark.timeout(1_800),
    pytest.mark.usefixtures("plainly"),
]

NEVER_MS = 24 * 3_600_000


def first_offset(root: Path) -> int:
    (log,) = (log for _, log in read_node(root / "server.properties").logs if log.name.log == NAME)
    return log.segments[0].base_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_serves_what_an_undo_brought_back_and_after_it_none_does(
    version: str, tmp_path: Path
) -> None:
    root, lake, aside = tmp_path / "node", tmp_path / "lake", tmp_path / "undo"
    root.mkdir()
    aside.mkdir()
    properties = root / "server.properties"
    # It deletes nothing by itself: the first look at retention is as late as all others.
    late = {"log.initial.task.delay.ms": NEVER_MS, "log.retention.check.interval.ms": NEVER_MS}
    window = ("--undo-window-hours", "1", "--undo-directory", aside)
    assert run_command("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    with running_kafka(root, version, {**settings_of(root), **late}) as kafka:
        roll = {any_segment_bytes(version): SEGMENT_BYTES}
        make_topics(kafka.address, TOPIC, retention_bytes=3 * SEGMENT_BYTES, **roll)
        write(kafka.address, rounds=16)
        before = {level: consumed(kafka.address, level) for level in LEVELS}
        reaches = limits(kafka.address)
        kafka.stop()

        first = first_offset(root)
        cleaned = run_command("clean", properties, "--lake", lake, "--run-key", "first", *window)
        assert cleaned.exit_code == 0, (cleaned.out, cleaned.err)
        assert first_offset(root) > first, cleaned.out
        assert list(aside.rglob("*.log"))
        undone = run_command("undo", "first", properties, "--lake", lake)
        assert undone.exit_code == 0, (undone.out, undone.err)
        assert f"the log begins at {first}" in undone.out
        assert not [path for path in aside.rglob("*") if path.is_file()]

        kafka.start()
        assert limits(kafka.address) == reaches
        assert {level: consumed(kafka.address, level) for level in LEVELS} == before
        write(kafka.address, rounds=4)
        written = {level: consumed(kafka.address, level) for level in LEVELS}
        kafka.stop()

        cleaned = run_command("clean", properties, "--lake", lake, "--run-key", "second", *window)
        assert cleaned.exit_code == 0, (cleaned.out, cleaned.err)
        begins = first_offset(root)
        assert begins > first
        kafka.start()
        kafka.stop()
        refused = run_command("undo", "second", properties, "--lake", lake)
        assert refused.exit_code != 0
        assert ".kafka_cleanshutdown: expected the file as run 'second' found it" in refused.err
        assert "the store's broker has run since" in refused.err
        assert first_offset(root) == begins
        kafka.start()
        for level, records in written.items():
            assert consumed(kafka.address, level) == [one for one in records if one[0] >= begins]
        kafka.kill()
        refused = run_command("undo", "second", properties, "--lake", lake)
        assert "the store's broker has run since" in refused.err
    verified = run_command("verify", properties, "--lake", lake)
    assert verified.exit_code == 0, (verified.out, verified.err)
