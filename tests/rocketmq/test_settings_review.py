"""Settings in effect say where they are from; those that defeat each other are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerConfigError
from storage_engine.model.report.diagnosis import SettingFrom, Severity
from storage_engine.rocketmq.diagnose import (
    contradictions,
    longest_delay_ms,
    settings_in_effect,
    unread_settings,
)
from storage_engine.rocketmq.format.broker_config import (
    BrokerConfig,
    load_broker_config,
    usable_broker_config,
)


def config(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, overrides, root="/s")


def test_the_defaults_defeat_nothing() -> None:
    assert not list(contradictions(config()))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"diskMaxUsedSpaceRatio": "85"}, "is not below diskSpaceCleanForciblyRatio 85"),
        (
            {"diskSpaceCleanForciblyRatio": "85", "diskSpaceWarningLevelRatio": "60"},
            "refuses messages before",
        ),
        ({"deleteWhen": "24"}, "no clock shows that hour"),
        ({"fileReservedTime": "0"}, "every segment has expired as soon as it is sealed"),
        ({"fileReservedTime": "48"}, "timerMaxDelaySec allows 3 d"),
        ({"fileReservedTime": "100", "messageDelayLevel": "1s 5d"}, "messageDelayLevel reaches 5 d"),
        ({"destroyMapedFileIntervalForcibly": "0"}, "unmaps a segment while a consumer"),
        ({"destroyMapedFileIntervalForcibly": "86400000"}, "all younger segments stay for so long"),
        ({"cleanFileForciblyEnable": "false"}, "only expired segments are deleted"),
    ],
)
def test_what_defeats_another_is_told_with_what_to_set(overrides: dict[str, str], said: str) -> None:
    (finding,) = contradictions(config(**overrides))
    assert said in finding.what
    assert finding.advice


@pytest.mark.parametrize(
    "overrides",
    [
        {"deleteWhen": "04;99"},
        {"fileReservedTime": "48", "timerMaxDelaySec": "3600"},
        {"fileReservedTime": "48", "timerWheelEnable": "false"},
        # Where nothing is forced, the ordinary level can't come too late for it.
        {"diskSpaceCleanForciblyRatio": "86"},
    ],
)
def test_what_only_looks_like_it_is_not(overrides: dict[str, str]) -> None:
    assert not list(contradictions(config(**overrides)))


def test_a_misspelt_key_is_told_with_the_one_that_a_broker_reads() -> None:
    known = ("fileReservedTime", "listenPort", "brokerIP1", "rocketmq.broker.diskSpaceWarningLevelRatio")
    assert not list(unread_settings(known))
    misspelt = {
        "fileReservedtime": "fileReservedTime",
        "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
        "brokerip1": "brokerIP1",
    }
    found = list(unread_settings([*known, *misspelt]))
    assert {(one.what.partition(":")[0], one.advice) for one in found} == {
        (key, f"write {name}") for key, name in misspelt.items()
    }
    assert {one.severity for one in found} == {Severity.WARNING}


def test_keys_that_resemble_none_are_told_in_one_note() -> None:
    keys = ("storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile")
    (note,) = unread_settings(keys)
    assert note.severity is Severity.NOTE
    assert all(key in note.what for key in keys)


def test_levels_are_shown_with_the_brokers_limits() -> None:
    over = {"diskMaxUsedSpaceRatio": "99", "deleteFileBatchMax": "0"}
    found = {one.name: one for one in settings_in_effect(config(**over), over, by_broker=False)}
    assert found["diskMaxUsedSpaceRatio"].value == "95 %"
    assert found["diskMaxUsedSpaceRatio"].note == "99 is configured, beyond the broker's limit"
    assert found["deleteFileBatchMax"].value == "1"
    assert found["fileReservedTime"].note == ""


def test_all_that_is_wrong_with_times_is_told_at_once() -> None:
    zero = config(fileReservedTime="0", destroyMapedFileIntervalForcibly="0")
    told = [one.what for one in contradictions(zero)]
    assert [text.split()[0] for text in told] == ["fileReservedTime", "destroyMapedFileIntervalForcibly"]


def test_a_jvm_property_counts_as_what_it_is() -> None:
    over = {"rocketmq.broker.diskSpaceCleanForciblyRatio": "0.80"}
    found = {one.name: one for one in settings_in_effect(config(**over), over, by_broker=False)}
    assert found["diskSpaceCleanForciblyRatio"].value == "80 %"
    assert found["diskSpaceCleanForciblyRatio"].source is SettingFrom.OVERRIDE


def test_a_running_brokers_settings_are_its_own() -> None:
    found = settings_in_effect(config(fileReservedTime="5"), {"deleteWhen": "3"}, by_broker=True)
    sources = {one.name: one.source for one in found}
    assert sources.pop("deleteWhen") is SettingFrom.OVERRIDE
    assert set(sources.values()) == {SettingFrom.RUNNING_BROKER}


@pytest.mark.parametrize(("levels", "hours"), [("1s 2h 1m", 2), ("3d", 72), ("", 0), ("x 1y", 0)])
def test_the_longest_delay_counts(levels: str, hours: int) -> None:
    assert longest_delay_ms(levels) == hours * 3_600_000


def test_settings_that_do_not_work_are_left_out_and_named(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("deleteWhen=four\nfileReservedTime=48\ndiskMaxUsedSpaceRatio=x\n")
    found, errors = usable_broker_config(conf, root="/s")
    assert (found.file_reserved_time_hours, found.delete_when) == (48, "04")
    assert sorted(str(error).split(": ")[1] for error in errors) == ["deleteWhen", "diskMaxUsedSpaceRatio"]
    conf.write_text("storePathRootDir=/other\n")
    with pytest.raises(BrokerConfigError, match="storePathRootDir"):
        usable_broker_config(conf, root="/s")
