"""The settings that a simulation can change, with the clamps that the broker applies."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from storage_engine.exceptions import BrokerConfigError
from storage_engine.rocketmq.format.broker_config import KNOWN_SETTINGS
from storage_engine.rocketmq.simulation import RULES


def test_each_setting_is_one_that_the_broker_has_and_has_a_default() -> None:
    names = [setting.name for setting in RULES.settings]
    assert set(names) < KNOWN_SETTINGS
    assert RULES.values({}) == {
        "fileReservedTime": "72",
        "deleteWhen": "04",
        "diskMaxUsedSpaceRatio": "75",
        "diskSpaceCleanForciblyRatio": "85",
        "diskSpaceWarningLevelRatio": "90",
        "cleanFileForciblyEnable": "true",
        "deleteFileBatchMax": "10",
        "deleteCommitLogFilesInterval": "100",
        "cleanResourceInterval": "10000",
    }
    assert list(RULES.values({})) == names


def test_values_are_those_in_effect_with_the_brokers_clamps() -> None:
    given = {
        "diskMaxUsedSpaceRatio": "99",
        "diskSpaceCleanForciblyRatio": "99",
        "rocketmq.broker.diskSpaceWarningLevelRatio": "0.2",
        "deleteFileBatchMax": "-3",
        "storePathRootDir": "/somewhere",
        "listenPort": "not a number",
    }
    values = RULES.values(given)
    assert (values["diskMaxUsedSpaceRatio"], values["diskSpaceCleanForciblyRatio"]) == ("95", "85")
    assert (values["diskSpaceWarningLevelRatio"], values["deleteFileBatchMax"]) == ("35", "1")
    assert RULES.values(values) == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fileReservedTime", "three days"),
        ("fileReservedTime", "-1"),
        ("deleteWhen", "4 o'clock"),
        ("cleanFileForciblyEnable", "maybe"),
        ("cleanResourceInterval", "0"),
        ("cleanResourceInterval", "soon"),
        ("cleanResourceInterval", "9" * 5000),
    ],
)
def test_a_value_that_the_broker_would_not_work_with_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BrokerConfigError, match=name):
        RULES.values({name: value})


def test_levels_say_what_is_in_effect_and_whether_age_is_ever_ignored() -> None:
    levels = RULES.levels({"diskMaxUsedSpaceRatio": "60"})
    assert (levels.notice_percent, levels.cleans_percent, levels.refuses_percent) == (70, 60, 90)
    assert levels.forces_percent == 85
    assert RULES.levels({"cleanFileForciblyEnable": "false"}).forces_percent is None


def test_windows_follow_the_clock_of_the_zone_when_it_changes() -> None:
    zone = "Europe/Berlin"
    start = datetime(2026, 10, 24, tzinfo=ZoneInfo(zone)).timestamp() * 1000
    end = datetime(2026, 10, 26, 2, 30, tzinfo=ZoneInfo(zone)).timestamp() * 1000
    windows = RULES.windows({"deleteWhen": "02"}, zone, int(start), int(end))
    hours = [((since - start) / 3_600_000, (until - start) / 3_600_000) for since, until in windows]
    assert hours == [(2, 3), (26, 28), (51, 51.5)]


def test_windows_of_an_hour_that_no_clock_shows_and_of_every_hour() -> None:
    every = ";".join(map(str, range(24)))
    assert RULES.windows({"deleteWhen": "99"}, "UTC", 0, 86_400_000) == ()
    assert RULES.windows({"deleteWhen": every}, "UTC", 5, 86_400_000) == ((5, 86_400_000),)
    assert RULES.hours({"deleteWhen": "02;14"}) == (2, 14)


def test_a_store_on_several_disks_is_not_simulated() -> None:
    assert RULES.unsupported({"storePathCommitLog": "/a/log"}) == ""
    assert "several disks" in RULES.unsupported({"storePathCommitLog": "/a,/b"})
    assert "share its disk" in RULES.unsupported({"replicasPerDiskPartition": "2"})
