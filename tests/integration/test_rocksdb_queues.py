"""Brokers with queues in RocksDB: archived while they run, never cleaned, and served from the lake again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from storage_engine.rocketmq.codec.codec import CODEC
from tests.fixture_stores import file_sha256
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.live_store import SEGMENT_BYTES, TOPIC, LiveLog, create_topic, send
from tests.integration.live_store import SETTINGS as LIVE_SETTINGS
from tests.rounds import later
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

MESSAGES = 100
GONE, FENCED = 3, 11
AHEAD_NS = (int(time.time()) + 24 * 3600) * 10**9
SEGMENTS = 16
"""More than the 10 of which a broker makes queues by itself."""
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "storeType": "defaultRocksDB",
    "timerWheelEnable": False,
}


@pytest.mark.parametrize("version", ["5.5.1", *later("5.3.3", "5.4.0")])
def test_a_log_is_archived_and_served_from_the_lake_and_nothing_is_deleted(
    version: str, tmp_path: Path, name_server_port: int
) -> None:
    root, lake, conf = tmp_path / "store", tmp_path / "lake", tmp_path / "one" / "broker.conf"
    with running_broker(root, conf.parent, name_server_port, SETTINGS, version=version) as broker:
        create_topic(broker.client)
        for _ in range(MESSAGES):
            send(broker.client)
        of_store = (root, "--broker-conf", conf, "--lake", lake)
        assert run_command("init-lake", "--lake", lake).exit_code == 0
        archiving = run_command("archive", *of_store)
        assert archiving.exit_code == 0, archiving
        sealed = {path: file_sha256(path) for path in sorted((root / "commitlog").iterdir())[:SEGMENTS]}
        assert run_command("verify", *of_store).exit_code == 0
        refused = run_command("clean", *of_store, "--manual")
        assert (refused.exit_code, "RocksDB consume queue" in refused.err) == (2, True)
        assert "leave deleting to its broker" in refused.err
        assert {path: file_sha256(path) for path in sealed} == sealed
    back = tmp_path / "back"
    restored = run_command("restore", "--lake", lake, "--to", back, "--for-store", conf, "--json").json
    settings = {row["name"]: row["value"] for row in restored["settings"]}
    assert "physical offset 0" in restored["settings"][-1]["note"]
    archived = messages_of(sorted((back / "commitlog").iterdir()))
    assert len(archived) > SEGMENTS
    with running_broker(
        back, tmp_path / "two", name_server_port, {**SETTINGS, **settings}, version=version
    ) as broker:
        served = broker.client.queue(TOPIC, 0, 1, max(archived) + 1)
    # The first message of the log is the one that such a broker passes over.
    assert archived.pop(0)
    assert served == archived


@pytest.mark.parametrize("version", ["5.5.1", *later("5.3.3", "5.4.0")])
def test_such_a_broker_deletes_what_no_fence_keeps_and_drops_no_queue_when_asked_to(
    version: str, tmp_path: Path, name_server_port: int
) -> None:
    settings = {**LIVE_SETTINGS, **SETTINGS, "cleanFileForciblyEnable": False}
    root, work = tmp_path / "store", tmp_path / "broker"
    with running_broker(
        root, work, name_server_port, settings, version=version, main_class=CLEANS_AT_ONCE
    ) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(SEGMENTS)
        names = log.names()
        end = broker.client.topic_stats(TOPIC)[0].max_offset
        first = min(messages_of([log.path(base) for base in names[GONE:-1]]))
        for base in names[GONE : GONE + FENCED]:
            os.utime(log.path(base), ns=(AHEAD_NS, AHEAD_NS))
        log.others_clean()
        assert log.names() == names[GONE:]
        assert broker.client.runtime_info().commitlog_min_offset == names[GONE]
        broker.client.clean_expired_consume_queues()
        assert broker.client.pull(TOPIC, 0, 0).next_offset == first
        assert len(broker.client.queue(TOPIC, 0, first, end)) == end - first


def messages_of(segments: list[Path]) -> dict[int, bytes]:
    """Return the messages of the topic's queue by their offsets in it."""
    found = {}
    for path in segments:
        data = path.read_bytes()
        for table, _ in CODEC.decode(memoryview(data), int(path.name)):
            for row in table.to_pylist():
                if (row["kind"], row["topic"]) == ("message", TOPIC):
                    at = row["physical_offset"] - int(path.name)
                    found[row["queue_offset"]] = data[at : at + row["size"]]
    return found
