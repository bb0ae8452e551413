"""A clock that was set forward makes everything look old; a clock that can't be set tells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from storage_engine.core.clock import (
    JUMP_MS,
    REMEMBERED_MS,
    ClockReading,
    jumped_forward_ms,
    read_clock,
)
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
NOW = ClockReading("boot", 10 * REMEMBERED_MS, 1_700_000_000_000)
HOUR_S = 3600

SENSE_AS_IF_UP_LONGER = """
import sys
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.steps import sense
sense(ManagedStore.from_json(sys.argv[1]))
"""


def before(*, set_by_ms: int, ago_ms: int = 60_000, boot_id: str = "boot") -> ClockReading:
    return ClockReading(boot_id, NOW.boottime_ms - ago_ms, NOW.started_at_ms - set_by_ms)


@pytest.mark.parametrize(
    ("readings", "jumped_ms"),
    [
        ([], 0),
        ([before(set_by_ms=0), before(set_by_ms=-3 * JUMP_MS)], 0),
        ([before(set_by_ms=JUMP_MS - 1)], 0),
        ([before(set_by_ms=0), before(set_by_ms=80 * JUMP_MS, ago_ms=JUMP_MS)], 80 * JUMP_MS),
        ([before(set_by_ms=80 * JUMP_MS, boot_id="another start")], 0),
        ([before(set_by_ms=80 * JUMP_MS, ago_ms=REMEMBERED_MS)], 0),
    ],
    ids=["nothing known", "steady or set back", "corrected", "set forward", "restarted", "a day ago"],
)
def test_a_clock_is_doubted_for_a_day_after_it_was_set_forward(
    readings: list[ClockReading], jumped_ms: int
) -> None:
    assert jumped_forward_ms(NOW, readings) == jumped_ms
    assert jumped_forward_ms(None, readings) == 0


def test_both_clocks_go_on_together() -> None:
    first, second = read_clock(), read_clock()
    if first is None or second is None:
        pytest.skip("this system has no clock that counts from its start")
    assert abs(second.started_at_ms - first.started_at_ms) < 1000
    assert second.boottime_ms >= first.boottime_ms


def sense_as_if_up_longer(store: ManagedStore, hours: int) -> None:
    """Take a sample where the machine has been up for longer: against that, our clock is ahead now."""
    command = ["unshare", "--time", "--boottime", str(hours * HOUR_S)]
    command += [sys.executable, "-c", SENSE_AS_IF_UP_LONGER, store.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "unshare:" in done.stderr:
        pytest.skip(f"no time namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


@pytest.mark.again
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare of util-linux")
def test_nothing_goes_for_its_age_after_the_clock_was_set_forward(archived: Make) -> None:
    store = archived(max_segments=2, overrides={"cleanFileForciblyEnable": "true"})
    sense_as_if_up_longer(store, 80)
    with pytest.raises(GateRefusedError, match=r"found it set forward by 3 d [78] h within the last day"):
        steps.release(store, "r")
    steps.make_plan(store, "forced", PlanRequest(manual=True, forced=True, max_segments=1))
    steps.archive(store, "forced", steps.archive_jobs(store, "forced"))
    assert len(steps.release(store, "forced").deleted) == 1


def test_every_plan_takes_down_what_the_clocks_said(planned: Make) -> None:
    store = planned()
    journal = Journal(store.journal_url)
    readings = journal.clock_readings(identify(store, journal).store_id)
    now = read_clock()
    if now is None:
        pytest.skip("this system has no clock that counts from its start")
    assert [reading.boot_id for reading in readings] == [now.boot_id]
    assert jumped_forward_ms(now, readings) == 0
