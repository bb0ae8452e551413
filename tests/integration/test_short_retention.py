"""A real RocketMQ broker that keeps nothing but what it writes to, held by nobody, while it is archived."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.hold import Drift
from storage_engine.retention.ranges.drift import recorded_gone
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.load import running_load
from tests.integration.test_release_live import bodies_in_lake, key
from tests.rounds import rounds
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_800)]

ROUNDS = rounds("STORAGE_ENGINE_SHORT_RETENTION", 2, 12)
SEGMENT_BYTES = 128 * 1024
SETTINGS = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 1000,
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": 8_000,
    "deleteCommitLogFilesInterval": 1,
    "deleteConsumeQueueFilesInterval": 0,
    "timerWheelEnable": False,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""It deletes each segment that it doesn't write to, ten every eight seconds."""
SLOWLY = ("--archive-bytes-per-second", 300_000)
"""So that segments go while a run is at work."""


def test_what_a_broker_deletes_while_it_is_archived_is_named_and_ends_no_run(
    tmp_path: Path, name_server_port: int, begins: dict[str, list[int]]
) -> None:
    store, work, lake = tmp_path / "store", tmp_path / "broker", tmp_path / "lake"
    assert run_command("init-lake", "--broker-type", "rocketmq", "--lake", lake).exit_code == 0
    journal = Journal(f"sqlite:///{lake}/journal.db")
    recorded: set[Drift] = set()
    is_any_proven = False
    with (
        running_broker(store, work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker,
        running_load(
            broker, name_server_port, tmp_path / "load", topics=("orders",), rate=30, body_bytes=7000
        ) as load,
    ):
        live = ("--broker", broker.client.address, "--allow-same-disk", "--broker-conf", work / "broker.conf")
        deadline = time.monotonic() + 900
        while len(recorded) < ROUNDS or not is_any_proven:
            assert time.monotonic() < deadline, "expected segments that go while they are archived"
            done = run_command("archive", store, "--lake", lake, *live, *SLOWLY)
            said = done.out + done.err
            assert done.exit_code == 0, said
            assert "Traceback" not in said
            gone = {one for known in journal.all_stores() for one, _ in recorded_gone(journal, known)}
            for one in gone - recorded:
                assert f"[{one.start_offset}, {one.end_offset})" in said
                assert "by its own rules" in one.detail
            recorded |= gone
            is_any_proven |= "Archived and proven" in done.out
        load.stop()
        assert load.summary["failed"] == 0
        # From the first look that a run took to the last one's.
        assert run_command("archive", store, "--lake", lake, *live).exit_code == 0
        recorded = {one for known in journal.all_stores() for one, _ in recorded_gone(journal, known)}
        archived = bodies_in_lake(LakeConfig.local(lake))
        assert archived
        for message in load.sent():
            at = message.physical_offset
            if key(message) in archived:
                assert archived[key(message)] == message.sha256
            elif begins["commitlog"][0] <= at < begins["commitlog"][-1]:
                assert any(one.start_offset <= at < one.end_offset for one in recorded), message
