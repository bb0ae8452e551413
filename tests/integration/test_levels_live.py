"""While a store is held its broker deletes nothing, however full the disk; a release works at any level."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.holding import hold, unmanage
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, TOPIC, LiveLog, create_topic, send

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

DISK_BYTES = 96 * 1024 * 1024
SERVICE_NOT_AVAILABLE = 14
PASSES = 5
SECONDS = 120
ROUND_THE_CLOCK = ";".join(f"{hour:02d}" for hour in range(24))
NEVER = "99"
RUN = "run"


class Disk:
    """A file system of its own, as full as a test wants it."""

    def __init__(self, path: Path) -> None:
        self.path, self._ballast = path, path / "ballast"

    def fill_to(self, percent: int) -> None:
        self._ballast.unlink(missing_ok=True)
        here = os.statvfs(self.path)
        used = (here.f_blocks - here.f_bfree) * here.f_frsize
        # A broker rounds up to the next whole percent.
        wanted = here.f_blocks * here.f_frsize * (percent * 10 - 5) // 1000 - used
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, wanted)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(target)], check=True)
    yield Disk(target)
    subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture
def log(disk: Disk, tmp_path: Path, name_server_port: int) -> Iterator[LiveLog]:
    store = disk.path / "store"
    with running_broker(store, tmp_path, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(6)
        yield log


def wait_for_passes(tmp_path: Path, begun_by: str) -> None:
    """Until the broker has cleaned a few times for this cause, by its own log."""
    logs = list((tmp_path / "broker" / "logs").rglob("store.log"))

    def passes() -> int:
        return sum(len(re.findall(rf"begin to delete .*{begun_by}", path.read_text())) for path in logs)

    before, deadline = passes(), time.monotonic() + SECONDS
    while passes() < before + PASSES:
        assert time.monotonic() < deadline, f"no pass for {begun_by}"
        time.sleep(0.1)


def is_taken(log: LiveLog) -> bool:
    """Whether the broker takes a message; otherwise it says why it can't."""
    try:
        log.sent.append(send(log.broker.client, 100))
    except BrokerRefusedError as error:
        if error.code != SERVICE_NOT_AVAILABLE:
            raise
        return False
    return True


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def release_two(store: ManagedStore, run: str) -> tuple[int, ...]:
    planned = steps.make_plan(store, run, PlanRequest(manual=True, max_segments=2)).delete_offsets
    steps.archive(store, run, steps.archive_jobs(store, run))
    steps.record_lag(store, run, LagSummary(0, 0, 0, 0, 0, (), 0), [])
    assert tuple(one.base_offset for one in steps.release(store, run).deleted) == planned
    return planned


def test_nothing_goes_at_any_level_while_held_and_everything_after(
    log: LiveLog, disk: Disk, tmp_path: Path
) -> None:
    client, store = log.broker.client, log.managed(tmp_path / "managed")
    names = log.names()
    assert hold(store).status.held
    assert client.config()["cleanFileForciblyEnable"] == "false"

    client.update_config({"deleteWhen": ROUND_THE_CLOCK})
    wait_for_passes(tmp_path, "isTimeUp: true")
    client.update_config({"deleteWhen": NEVER})
    for percent in (80, 88, 95):
        disk.fill_to(percent)
        wait_for_passes(tmp_path, "isUsageExceedsThreshold: true")
        assert log.names()[: len(names)] == names, f"at {percent} %"
    assert client.runtime_info().commitlog_min_offset == 0

    wait_until(lambda: not is_taken(log))
    # What is there is served all the same, and what is archived may go, though the broker takes nothing.
    assert client.pull(TOPIC, 0, 0).frames
    assert release_two(store, RUN) == (0, SEGMENT_BYTES)
    assert log.names()[: len(names) - 2] == names[2:]
    disk.fill_to(60)
    wait_until(lambda: is_taken(log))

    assert not unmanage(store).status.held
    assert client.config()["cleanFileForciblyEnable"] == "true"
    assert {base: log.mtimes()[base] for base in names[2:6]} == {b: log.mtime_ns[b] for b in names[2:6]}
    disk.fill_to(88)
    log.wait_for_min_offset(client.runtime_info().commitlog_max_offset // SEGMENT_BYTES * SEGMENT_BYTES)
