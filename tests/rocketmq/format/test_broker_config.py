from __future__ import annotations

import pickle
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BrokerConfigError
from storage_engine.rocketmq.format.broker_config import (
    CLEAN_FORCIBLY_PROPERTY,
    KNOWN_SETTINGS,
    RELEASE,
    SETTING_NAMES,
    WARNING_LEVEL_PROPERTY,
    BrokerConfig,
    load_broker_config,
    parse_delete_when,
)


def config_of(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.conf"
    path.write_text(text, encoding="latin-1")
    return load_broker_config(path, root=tmp_path)


def test_without_a_file_the_brokers_defaults_are_in_effect() -> None:
    config = load_broker_config(None, root="/data/store")
    assert config.delete_when == "04"
    assert config.file_reserved_time_hours == 72
    assert config.disk_max_used_space_ratio_percent == 75
    assert config.disk_space_warning_level_percent == 90
    assert config.disk_space_clean_forcibly_percent == 85
    assert config.clean_file_forcibly_enable is True
    assert config.delete_file_batch_max == 10
    assert config.store_path_commit_log == ("/data/store/commitlog",)
    assert config.mapped_file_size_commit_log_bytes is None


def test_the_file_is_read_in_javas_properties_syntax(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        "# comment\n! another\n"
        "storePathCommitLog : /d1/cl,\\\n      /d2/cl\n"
        "deleteWhen 2;14\n"
        "file\\u0052eservedTime=48\n"
        "mappedFileSizeCommitLog=1048576\n"
        "fileReservedTime = 24\n",
    )
    assert config.store_path_commit_log == ("/d1/cl", "/d2/cl")
    assert config.delete_when == "2;14"
    assert config.file_reserved_time_hours == 24
    assert config.mapped_file_size_commit_log_bytes == 1 << 20
    assert config.raw["fileReservedTime"] == "24"


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("fileReservedTime=24\ndeleteWhen=05\n")
    config = load_broker_config(path, {"fileReservedTime": "1"}, root=tmp_path)
    assert (config.file_reserved_time_hours, config.delete_when) == (1, "05")


@given(st.integers(-(2**31) + 1, 2**31 - 1))
def test_ratios_are_clamped_as_the_broker_does(percent: int) -> None:
    text = str(percent)
    config = load_broker_config(
        None,
        {
            "diskMaxUsedSpaceRatio": text,
            "diskSpaceWarningLevelRatio": text,
            "diskSpaceCleanForciblyRatio": text,
        },
        root="/s",
    )
    assert config.disk_max_used_space_ratio_percent == min(max(percent, 10), 95)
    assert config.disk_space_warning_level_percent == min(max(percent, 35), 90)
    assert config.disk_space_clean_forcibly_percent == min(max(percent, 30), 85)


def test_system_properties_win_over_the_configured_levels_and_are_clamped() -> None:
    config = load_broker_config(
        None,
        {
            "diskSpaceWarningLevelRatio": "80",
            WARNING_LEVEL_PROPERTY: "0.875",
            CLEAN_FORCIBLY_PROPERTY: "0.99",
        },
        root="/s",
    )
    assert config.disk_space_warning_level_percent == 87
    assert config.disk_space_clean_forcibly_percent == 85


@pytest.mark.parametrize(("release", "levels"), [("4.9.7", (95, 20)), ("5.0.0", (90, 30))])
def test_levels_have_bounds_from_5_on(release: str, levels: tuple[int, int]) -> None:
    set_so = {WARNING_LEVEL_PROPERTY: "0.95", CLEAN_FORCIBLY_PROPERTY: "0.2", RELEASE: release}
    config = load_broker_config(None, set_so, root="/s")
    assert (config.disk_space_warning_level_percent, config.disk_space_clean_forcibly_percent) == levels


def test_a_batch_below_one_still_deletes_one() -> None:
    assert load_broker_config(None, {"deleteFileBatchMax": "0"}, root="/s").delete_file_batch_max == 1


def test_a_consume_queue_file_holds_whole_entries() -> None:
    config = load_broker_config(None, {"mappedFileSizeConsumeQueue": "5999"}, root="/s")
    assert config.mapped_file_size_consume_queue_bytes == 6000


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("deleteWhen", "4am", "hours"),
        ("deleteWhen", "12; 5", "hours"),
        ("deleteWhen", "", "hours"),
        ("fileReservedTime", "72h", "whole number"),
        ("fileReservedTime", "-1", "at least 0"),
        ("fileReservedTime", "3000000000", "at most"),
        ("diskMaxUsedSpaceRatio", "75 ", "without blanks"),
        ("mappedFileSizeCommitLog", "0", "at least 1"),
        ("cleanFileForciblyEnable", "yes", "true or false"),
        ("storePathCommitLog", "/a, /b", "without blanks"),
        ("logicalDiskSpaceCleanForciblyThreshold", "much", "fraction"),
    ],
)
def test_a_value_the_broker_would_not_work_with_names_file_line_key_and_value(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    with pytest.raises(BrokerConfigError) as caught:
        config_of(tmp_path, f"# settings\nbrokerName=a\n{key}={value}\n")
    message = str(caught.value)
    assert f"{tmp_path}/broker.conf, line 3: {key}" in message
    assert expected in message
    stripped = value if key in ("diskMaxUsedSpaceRatio",) else value.strip()
    assert repr(stripped) in message


def test_a_malformed_escape_is_an_error_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match=r"line 2 or after: expected \\u"):
        config_of(tmp_path, "brokerName=a\nx=\\u12\n")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match="can't read"):
        load_broker_config(tmp_path / "none.conf", root=tmp_path)


def test_the_named_store_and_the_configured_root_must_agree(tmp_path: Path) -> None:
    assert config_of(tmp_path, f"storePathRootDir={tmp_path}/\n").store_path_root_dir == str(tmp_path)
    with pytest.raises(BrokerConfigError, match="storePathRootDir"):
        config_of(tmp_path, "storePathRootDir=/elsewhere\n")
    with pytest.raises(BrokerConfigError, match="No store root"):
        load_broker_config(None, root=None)


def test_nothing_in_a_path_is_expanded(tmp_path: Path) -> None:
    config = config_of(tmp_path, "storePathCommitLog=${user.home}/cl,~/cl2\n")
    assert config.store_path_commit_log == ("${user.home}/cl", "~/cl2")


def test_read_only_paths_count_only_beside_several_paths(tmp_path: Path) -> None:
    single = "storePathCommitLog=/a\nreadOnlyCommitLogStorePaths=/old\n"
    assert config_of(tmp_path, single).read_only_commit_log_store_paths == ()
    several = "storePathCommitLog=/a,/b\nreadOnlyCommitLogStorePaths=/old\n"
    assert config_of(tmp_path, several).read_only_commit_log_store_paths == ("/old",)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("04", (4,)), ("2;14", (2, 14)), ("4;", (4,)), (";", ()), ("99", (99,)), ("-1", (-1,))],
)
def test_delete_when_is_parsed_as_the_broker_does(text: str, hours: tuple[int, ...]) -> None:
    assert parse_delete_when(text) == hours


def test_a_config_can_be_sent_to_another_process() -> None:
    config = load_broker_config(None, {"deleteWhen": "2"}, root="/s")
    assert pickle.loads(pickle.dumps(config)) == config


OTHER = {
    "deleteWhen": "02",
    "cleanFileForciblyEnable": "false",
    "storeType": "other",
    "messageDelayLevel": "1s",
}
OTHER |= {"configManagerVersion": "v2", "storePathCommitLog": "/x,/y", "readOnlyCommitLogStorePaths": "/z"}


@pytest.mark.parametrize(("field", "name"), SETTING_NAMES.items())
def test_the_name_of_a_setting_is_the_one_that_sets_it(field: str, name: str) -> None:
    before = load_broker_config(None, root="/store")
    is_switch = isinstance(getattr(before, field), bool)
    overrides = {name: OTHER.get(name, str(not getattr(before, field)).lower() if is_switch else "37")}
    if name == "storePathRootDir":
        assert load_broker_config(None, {name: "/other"}, root=None).store_path_root_dir == "/other"
        return
    if name == "readOnlyCommitLogStorePaths":
        overrides["storePathCommitLog"] = "/x,/y"
    after = load_broker_config(None, overrides, root="/store")
    changed = {one.name for one in fields(after) if getattr(after, one.name) != getattr(before, one.name)}
    assert field in changed
    assert changed <= {field, "raw", "store_path_commit_log"}


def test_every_setting_has_its_brokers_name() -> None:
    assert set(SETTING_NAMES) == {one.name for one in fields(BrokerConfig)} - {"raw", "source"}
    assert set(SETTING_NAMES.values()) < KNOWN_SETTINGS


@pytest.mark.parametrize(
    "log_paths", [None, "/home/rmq/store/commitlog", "/home/rmq/store/cl1,/home/rmq/store/cl2"]
)
def test_a_containers_paths_are_refused_with_the_settings_that_help(
    tmp_path: Path, log_paths: str | None
) -> None:
    conf = tmp_path / "broker.conf"
    given = "" if log_paths is None else f"storePathCommitLog={log_paths}\n"
    conf.write_text(f"storePathRootDir=/home/rmq/store\n{given}")
    with pytest.raises(BrokerConfigError, match="inside a container") as refused:
        load_broker_config(conf, root=tmp_path)
    overrides = dict(re.findall(r"--set (\w+)=(\S+)", str(refused.value)))
    here = (log_paths or "/home/rmq/store/commitlog").replace("/home/rmq/store", str(tmp_path)).split(",")
    assert load_broker_config(conf, overrides, root=tmp_path).store_path_commit_log == tuple(here)
