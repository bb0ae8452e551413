"""A running broker's own figures decide as this machine's disks do; what it can't measure decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

import pytest

from storage_engine.model.plan import Cause, Urgency
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.live.live_store import unknown, watch
from storage_engine.rocketmq.remoting.answers import RuntimeInfo, runtime_info

NOW_MS = 1_700_000_000_000
CONFIG = load_broker_config(None, {"deleteWhen": "99"}, root="/there")


def info(logs: Mapping[str, str], queues: str) -> RuntimeInfo:
    """As a broker sends it: ratios as Java writes doubles."""
    table = {
        "brokerVersionDesc": "V5_3_3",
        "bootTimestamp": "1",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "1",
        "consumeQueueDiskRatio": queues,
        "earliestMessageTimeStamp": "-1",
        "dispatchBehindBytes": "0",
        "timerOffsetBehind": "0",
        **{f"commitLogDiskRatio_{path}": ratio for path, ratio in logs.items()},
    }
    entries = ",".join(f'"{key}":"{value}"' for key, value in table.items())
    return runtime_info(f'{{"table":{{{entries}}}}}'.encode())


@pytest.mark.parametrize("percent", range(101))
def test_a_whole_percent_stays_what_it_is(percent: int) -> None:
    ratio = str(percent / 100)
    seen = watch(info({"/a": ratio}, ratio), CONFIG, NOW_MS, ZoneInfo("UTC"))
    assert [disk.used_percent for disk in seen.levels] == [percent, percent]
    assert seen.deciding_percent == percent
    assert bool(seen.triggers) == (percent > 75)


def test_the_least_used_log_disk_decides_and_paths_are_the_brokers() -> None:
    seen = watch(info({"/b": "0.99", "/a": "0.5"}, "0.4"), CONFIG, NOW_MS, ZoneInfo("UTC"))
    assert [(disk.path, disk.used_percent) for disk in seen.levels] == [
        ("/a", 50),
        ("/b", 99),
        ("/there/consumequeue", 40),
    ]
    assert (seen.deciding_percent, seen.triggers) == (50, ())


def test_force_is_the_brokers_to_decide() -> None:
    seen = watch(info({"/a": "0.88"}, "0.1"), CONFIG, NOW_MS, ZoneInfo("UTC"))
    assert [(one.cause, one.urgency) for one in seen.triggers] == [(Cause.SPACE_FULL, Urgency.FORCED)]


def test_a_disk_that_the_broker_can_not_measure_is_no_cause() -> None:
    seen = watch(info({"/a": "-1.0", "/b": "0.99"}, "-1.0"), CONFIG, NOW_MS, ZoneInfo("UTC"))
    assert (seen.triggers, seen.deciding_percent, seen.known) == ((), None, True)
    assert any("/a: the broker can't measure its disk" in notice for notice in seen.notices)


def test_the_window_needs_no_disk() -> None:
    hours = ";".join(str(hour) for hour in range(24))
    config = load_broker_config(None, {"deleteWhen": hours}, root="/there")
    seen = watch(info({"/a": "-1.0"}, "-1.0"), config, NOW_MS, ZoneInfo("UTC"))
    assert [one.cause for one in seen.triggers] == [Cause.TIME_UP]


def test_a_broker_that_can_not_be_asked_says_neither_yes_nor_no() -> None:
    seen = unknown(NOW_MS, "no answer")
    assert (seen.known, seen.triggers, seen.deciding_percent, seen.next_window_ms) == (False, (), None, None)
    assert seen.notices == ("no answer",)
