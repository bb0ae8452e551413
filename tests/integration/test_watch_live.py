"""What others do to a held store under a running broker is noticed at the next look, and what it came to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage_engine.exceptions import GateRefusedError, StorageEngineError, StoreIdentityError
from storage_engine.model.hold import DriftKind
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt, stamp
from storage_engine.retention.monitor.monitoring import MonitorResult, monitor
from storage_engine.retention.plan.watching import watch
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from tests.integration.broker import CLEANS_AT_ONCE, running_broker, start_again
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, TOPIC, LiveLog, create_topic

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once"), pytest.mark.again]

BOUND_SECONDS = 60
ALL_HOURS = ";".join(str(hour) for hour in range(24))


@dataclass
class Watched:
    """A held store, and what another client does to it."""

    log: LiveLog
    store: ManagedStore
    work: Path
    name_server_port: int
    runs: int = 0

    @property
    def other(self) -> BrokerAdmin:
        """Somebody else's client."""
        return BrokerAdmin(self.log.broker.client.address)

    def alarms(self) -> tuple[str, ...]:
        return steps.sense(self.store).alarms

    def monitor(self) -> MonitorResult:
        self.runs += 1
        return monitor(self.store, f"monitor {self.runs}")

    def restart(self) -> None:
        self.log.broker.client.close()
        self.log.broker.java.kill()
        start_again(self.log.broker, self.work, self.name_server_port, main_class=CLEANS_AT_ONCE)

    def delete_by_broker(self, segments: int) -> None:
        """Have the broker delete the log's first segments behind our back."""
        names = self.log.names()
        for base in reversed(names[:segments]):
            os.utime(self.log.path(base), ns=(0, 0))
        self.log.others_clean()
        self.log.wait_for_min_offset(names[segments])


def only(kind: DriftKind, alarms: tuple[str, ...]) -> str:
    """The one alarm, which has to be of this kind."""
    (alarm,) = alarms
    assert alarm.startswith(f"{kind.value}: ")
    return alarm


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Watched]:
    work = tmp_path_factory.mktemp("watched")
    with running_broker(
        work / "store", work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE
    ) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(6)
        store = replace(log.managed(work / "managed"), broker_conf=str(work / "broker.conf"))
        watched = Watched(log, store, work, name_server_port)
        assert steps.hold(store).status.held
        assert watched.alarms() == ()
        yield watched


def test_every_interference_is_noticed(watched: Watched) -> None:
    touched(watched)
    file_that_has_no_business_there(watched)
    setting_changed(watched)
    segments_deleted_by_the_broker(watched)
    segment_removed_by_hand(watched)
    broker_restarted_with_a_broker_conf_that_it_can_not_write(watched)
    broker_on_a_wiped_store(watched)


def touched(watched: Watched) -> None:
    fence = watched.log.path(watched.log.names()[0])
    held_ns = fence.stat().st_mtime_ns
    os.utime(fence)
    assert str(fence) in only(DriftKind.MTIME_CHANGED, watched.alarms())
    seen = watched.monitor()
    assert seen.hold is not None
    assert seen.hold.held
    assert only(DriftKind.MTIME_CHANGED, seen.alarms)
    assert abs(fence.stat().st_mtime_ns - held_ns) < 3600 * 10**9
    assert watched.monitor().alarms == ()


def file_that_has_no_business_there(watched: Watched) -> None:
    """The sample fails over it, and the hold is renewed all the same."""
    fence, stray = watched.log.path(watched.log.names()[0]), watched.log.directory / "notes.txt"
    held_ns = fence.stat().st_mtime_ns
    stray.write_text("mine")
    os.utime(fence, ns=(0, 0))
    with pytest.raises(StorageEngineError, match=r"notes\.txt"):
        watched.monitor()
    assert abs(fence.stat().st_mtime_ns - held_ns) < 3600 * 10**9
    stray.unlink()
    assert watched.alarms() == ()


def setting_changed(watched: Watched) -> None:
    watched.other.update_config({"cleanFileForciblyEnable": "true"})
    assert "cleanFileForciblyEnable=false" in only(DriftKind.SETTING_CHANGED, watched.alarms())
    assert only(DriftKind.SETTING_CHANGED, watched.monitor().alarms)
    assert watched.other.config()["cleanFileForciblyEnable"] == "false"
    watched.other.update_config({"fileReservedTime": "24"})
    seen = watched.monitor()
    assert "fileReservedTime=48" in only(DriftKind.SETTING_CHANGED, seen.alarms)
    assert seen.hold is not None
    assert seen.hold.held
    assert watched.monitor().alarms == ()
    # Once more is news once more.
    watched.other.update_config({"cleanFileForciblyEnable": "true"})
    assert only(DriftKind.SETTING_CHANGED, watched.alarms())
    watched.monitor()


def segments_deleted_by_the_broker(watched: Watched) -> None:
    archive = steps.archive_sealed(
        watched.store,
        "ahead",
        lambda jobs: steps.archive(watched.store, "ahead", jobs),
        budget_bytes=SEGMENT_BYTES,
    )
    assert [receipt.base_offset for receipt in archive.receipts] == [0]
    watched.delete_by_broker(2)
    alarm = only(DriftKind.SEGMENT_GONE, watched.alarms())
    assert f"[0, {SEGMENT_BYTES}) is ARCHIVED" in alarm
    assert f"[{SEGMENT_BYTES}, {2 * SEGMENT_BYTES}) is LOST" in alarm
    assert TOPIC in alarm
    seen = watched.monitor()
    assert seen.alarms == (alarm,)
    assert seen.hold is not None
    assert (seen.hold.held, seen.hold.fence_offset) == (True, 2 * SEGMENT_BYTES)
    assert watched.monitor().alarms == ()
    (result,) = verify_store(watched.store, VerifyLevel.STORE)
    ranges = {(row.start_offset, row.end_offset): row for row in result.ranges}
    assert ranges[0, SEGMENT_BYTES].where is Where.ARCHIVED
    lost = ranges[SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    assert (lost.where, lost.status) == (Where.LOST, Status.FAILURE)
    assert TOPIC in lost.detail


def segment_removed_by_hand(watched: Watched) -> None:
    first = watched.log.names()[0]
    watched.log.path(first).unlink()
    alarm = only(DriftKind.SEGMENT_GONE, watched.alarms())
    assert f"[{first}, {first + SEGMENT_BYTES}) is LOST" in alarm
    seen = watched.monitor()
    assert seen.hold is not None, seen.alarms


def broker_restarted_with_a_broker_conf_that_it_can_not_write(watched: Watched) -> None:
    conf, backup = watched.work / "broker.conf", watched.work / "broker.conf.bak"
    # Even for root: the broker saves the old content beside it first.
    backup.unlink()
    backup.mkdir()
    watched.other.update_config({"fileReservedTime": "36"})
    saved = conf.read_text()
    assert "fileReservedTime=24" in saved
    kinds = [alarm.partition(":")[0] for alarm in watched.monitor().alarms]
    assert kinds == [DriftKind.SETTING_CHANGED, DriftKind.SETTING_NOT_SAVED]
    assert watched.monitor().alarms == ()
    watched.restart()
    kinds = [alarm.partition(":")[0] for alarm in watched.alarms()]
    assert kinds == [DriftKind.BROKER_RESTARTED, DriftKind.SETTING_CHANGED]
    seen = watched.monitor()
    assert seen.hold is not None
    assert seen.hold.held
    backup.rmdir()


def broker_on_a_wiped_store(watched: Watched) -> None:
    watched.log.broker.client.close()
    watched.log.broker.java.kill()
    shutil.rmtree(watched.log.broker.store)
    start_again(watched.log.broker, watched.work, watched.name_server_port, main_class=CLEANS_AT_ONCE)
    create_topic(watched.log.broker.client)
    log = LiveLog(watched.log.broker)
    log.fill(2)
    with pytest.raises(StoreIdentityError, match="found no stamp"):
        watched.alarms()
    stamp(watched.store, "a test", "the disk was wiped, and is this store's still")
    assert "adopt" in only(DriftKind.BROKER_REPLACED, watched.alarms())
    before = log.mtimes()
    seen = watched.monitor()
    assert seen.hold is not None
    assert not seen.hold.held
    with pytest.raises(GateRefusedError):
        steps.make_plan(watched.store, "plan")
    assert log.mtimes() == before
    steps.unmanage(watched.store)
    adopt(watched.store, "a test", "the store was wiped", force=True)
    assert steps.hold(watched.store).status.held
    assert watched.alarms() == ()


FIRST_EVENTS = """
import asyncio, json
from storage_engine.triggers.cleanup import DeleteWindowTrigger, DiskLevelTrigger

async def first(trigger):
    async for event in trigger.run():
        return event.payload["cause"]

async def both():
    return [
        await first(DeleteWindowTrigger("watched")),
        await first(DiskLevelTrigger("watched", threshold_percent=-1)),
    ]

print(json.dumps(asyncio.run(both())))
"""


def causes_by_triggers(watched: Watched) -> list[str]:
    """What the triggers fire with, in an Airflow of its own, where the store is not mounted."""
    extra = {
        "root": "/not/mounted/here",
        "store_host": "another-host",
        "mode": "beside",
        "broker_address": watched.log.broker.client.address,
        "time_zone": "UTC",
    }
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(watched.work / "airflow"),
        "AIRFLOW_CONN_WATCHED": json.dumps({"conn_type": "storage_engine", "extra": extra}),
    }
    ran = subprocess.run(
        [sys.executable, "-c", FIRST_EVENTS], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    causes: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return causes


def test_triggers_fire_where_the_store_is_not_mounted(watched: Watched) -> None:
    watched.other.update_config({"deleteWhen": ALL_HOURS})
    assert causes_by_triggers(watched) == ["time-up", "space-full"]


def test_any_machine_may_watch_and_what_it_can_not_ask_is_unknown(watched: Watched) -> None:
    elsewhere = replace(watched.store, root="/not/mounted/here", host="another-host")
    seen = watch(elsewhere)
    assert seen.known
    assert [disk.path for disk in seen.levels] == [
        str(watched.log.directory),
        "/not/mounted/here/consumequeue",
    ]
    assert all(disk.used_percent is not None for disk in seen.levels)
    watched.other.update_config({"deleteWhen": ALL_HOURS})
    assert "time-up" in {trigger.cause for trigger in watch(elsewhere).triggers}
    watched.log.broker.java.kill()
    began = time.monotonic()
    dead = watch(elsewhere)
    assert time.monotonic() - began < BOUND_SECONDS
    assert (dead.known, dead.triggers, dead.deciding_percent) == (False, (), None)
    assert "can't be asked" in dead.notices[0]
