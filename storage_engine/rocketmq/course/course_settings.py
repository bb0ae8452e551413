"""The settings that a simulation can change, and their values in effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.exceptions import BrokerConfigError
from storage_engine.model.course.course import RuleSetting, SettingType
from storage_engine.rocketmq.format.broker_config import (
    CLEAN_FORCIBLY_PROPERTY,
    MULTI_PATH_SPLITTER,
    WARNING_LEVEL_PROPERTY,
    BrokerConfig,
    load_broker_config,
)
from storage_engine.rocketmq.rules.cleanup_schedule import DEFAULT_INTERVAL_MS

_INTERVAL = "cleanResourceInterval"
_MOST_INTERVAL_MS = DAY_MS

SETTINGS = (
    RuleSetting(
        "fileReservedTime",
        SettingType.INT,
        "Messages stay at least so long, unless the disk is too full.",
        0,
        87_600,
        "h",
    ),
    RuleSetting(
        "deleteWhen",
        SettingType.HOURS,
        "At these hours of the day what has expired goes, such as 04 or 02;14.",
    ),
    RuleSetting(
        "diskMaxUsedSpaceRatio",
        SettingType.PERCENT,
        "Above this level what has expired goes at any hour.",
        10,
        95,
        "%",
    ),
    RuleSetting(
        "diskSpaceCleanForciblyRatio",
        SettingType.PERCENT,
        "Above this level the oldest segments go whatever their age.",
        30,
        85,
        "%",
    ),
    RuleSetting(
        "diskSpaceWarningLevelRatio",
        SettingType.PERCENT,
        "Above this level the broker refuses writes, until the level is down to diskSpaceCleanForciblyRatio.",
        35,
        90,
        "%",
    ),
    RuleSetting(
        "cleanFileForciblyEnable",
        SettingType.BOOL,
        "Whether segments may go before their time when the disk is too full.",
    ),
    RuleSetting("deleteFileBatchMax", SettingType.INT, "Segments that go in one pass at most.", 1, 100_000),
    RuleSetting(
        "deleteCommitLogFilesInterval",
        SettingType.INT,
        "The pause after each segment that is deleted.",
        0,
        HOUR_MS,
        "ms",
    ),
    RuleSetting(
        _INTERVAL, SettingType.INT, "From one cleanup pass to the next.", 100, _MOST_INTERVAL_MS, "ms"
    ),
)
_NAMES = frozenset(setting.name for setting in SETTINGS)
_READ = _NAMES | {WARNING_LEVEL_PROPERTY, CLEAN_FORCIBLY_PROPERTY}


def config_of(values: Mapping[str, str]) -> BrokerConfig:
    """Return the settings in effect of which only those that decide a simulation are set.

    :raises BrokerConfigError: a value that the broker would not work with.
    """
    known = {name: value for name, value in values.items() if name in _READ}
    interval = known.get(_INTERVAL, str(DEFAULT_INTERVAL_MS))
    if not (interval.isascii() and interval.isdigit() and 100 <= int(interval[:10]) <= _MOST_INTERVAL_MS):
        raise BrokerConfigError(
            f"{_INTERVAL}: expected a whole number of 100 to {_MOST_INTERVAL_MS}, found {interval!r}."
        )
    return load_broker_config(None, known, root="/")


def values_of(config: Mapping[str, str]) -> dict[str, str]:
    """Return the values in effect of all settings that can be changed.

    :raises BrokerConfigError: a value that the broker would not work with.
    """
    read = config_of(config)
    return {
        "fileReservedTime": str(read.file_reserved_time_hours),
        "deleteWhen": read.delete_when,
        "diskMaxUsedSpaceRatio": str(read.disk_max_used_space_ratio_percent),
        "diskSpaceCleanForciblyRatio": str(read.disk_space_clean_forcibly_percent),
        "diskSpaceWarningLevelRatio": str(read.disk_space_warning_level_percent),
        "cleanFileForciblyEnable": "true" if read.clean_file_forcibly_enable else "false",
        "deleteFileBatchMax": str(read.delete_file_batch_max),
        "deleteCommitLogFilesInterval": str(read.delete_commit_log_files_interval_ms),
        _INTERVAL: config.get(_INTERVAL, str(DEFAULT_INTERVAL_MS)),
    }


def unsupported(config: Mapping[str, str]) -> str:
    """Say why a store so configured can't be simulated; "": it can."""
    paths = config.get("storePathCommitLog", "").strip().rstrip(MULTI_PATH_SPLITTER)
    if MULTI_PATH_SPLITTER in paths:
        return "its commitlog is on several disks (storePathCommitLog), and a simulation has one"
    if config.get("replicasPerDiskPartition", "1").strip() not in ("1", "0"):
        return "several brokers share its disk (replicasPerDiskPartition), and a simulation has one of them"
    return ""
