"""The settings by which a broker deletes: values, sources, and which defeat each other or are never read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib import resources

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.nearest import nearest
from storage_engine.core.wording import bytes_text, duration_text
from storage_engine.model.report.diagnosis import Finding, SettingFrom, SettingInEffect, Severity
from storage_engine.rocketmq.format.broker_config import (
    CLEAN_FORCIBLY_PROPERTY,
    WARNING_LEVEL_PROPERTY,
    BrokerConfig,
    parse_delete_when,
)

_TIMER_MAX_DELAY_SECONDS = 3 * 24 * 3600
"""Default of timerMaxDelaySec (MessageStoreConfig)."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_LONG_DESTROY_MS = HOUR_MS
_ALIKE = 0.9
"""How like a known key a misspelt one is; 1: the same but for upper and lower case."""


def _percent(value: int) -> str:
    return f"{value} %"


def _hours(value: int) -> str:
    return f"{value} h"


def _size(value: int | None) -> str:
    return "as the files are" if value is None else bytes_text(value)


def _switch(value: bool) -> str:
    return str(value).lower()


@dataclass(frozen=True, slots=True)
class _Shown:
    """A setting that a review has.

    :param name: the broker's; a JVM property of the same meaning wins over it.
    :param shown: makes text of the value in effect.
    :param configured: the value in effect as broker.conf would have it; None: nothing clamps it.
    """

    name: str
    shown: Callable[[BrokerConfig], str]
    property: str = ""
    configured: Callable[[BrokerConfig], int] | None = None


_REVIEWED = (
    _Shown("deleteWhen", lambda it: it.delete_when),
    _Shown("fileReservedTime", lambda it: _hours(it.file_reserved_time_hours)),
    _Shown(
        "diskMaxUsedSpaceRatio",
        lambda it: _percent(it.disk_max_used_space_ratio_percent),
        configured=lambda it: it.disk_max_used_space_ratio_percent,
    ),
    _Shown(
        "diskSpaceCleanForciblyRatio",
        lambda it: _percent(it.disk_space_clean_forcibly_percent),
        CLEAN_FORCIBLY_PROPERTY,
        lambda it: it.disk_space_clean_forcibly_percent,
    ),
    _Shown(
        "diskSpaceWarningLevelRatio",
        lambda it: _percent(it.disk_space_warning_level_percent),
        WARNING_LEVEL_PROPERTY,
        lambda it: it.disk_space_warning_level_percent,
    ),
    _Shown("cleanFileForciblyEnable", lambda it: _switch(it.clean_file_forcibly_enable)),
    _Shown(
        "deleteFileBatchMax",
        lambda it: str(it.delete_file_batch_max),
        configured=lambda it: it.delete_file_batch_max,
    ),
    _Shown(
        "destroyMapedFileIntervalForcibly",
        lambda it: duration_text(it.destroy_mapped_file_interval_forcibly_ms),
    ),
    _Shown("mappedFileSizeCommitLog", lambda it: _size(it.mapped_file_size_commit_log_bytes)),
    _Shown(
        "replicasPerDiskPartition",
        lambda it: str(it.replicas_per_disk_partition),
        configured=lambda it: it.replicas_per_disk_partition,
    ),
)


def settings_in_effect(
    config: BrokerConfig, overrides: Mapping[str, str], *, by_broker: bool
) -> tuple[SettingInEffect, ...]:
    """Return the settings that decide when a segment goes, with the broker's limits applied.

    :param overrides: what was given beside the broker's own settings.
    :param by_broker: those are what a running broker says, none of a file.
    """
    return tuple(_in_effect(config, one, overrides, by_broker) for one in _REVIEWED)


def _in_effect(
    config: BrokerConfig, one: _Shown, overrides: Mapping[str, str], by_broker: bool
) -> SettingInEffect:
    key = one.property if config.raw.get(one.property) else one.name
    if key in overrides:
        source = SettingFrom.OVERRIDE
    elif by_broker:
        source = SettingFrom.RUNNING_BROKER
    else:
        source = SettingFrom.CONFIG_FILE if key in config.raw else SettingFrom.DEFAULT
    said = config.raw.get(key, "")
    note = ""
    if one.configured is not None and _WHOLE.fullmatch(said) and int(said) != one.configured(config):
        note = f"{said} is configured, beyond the broker's limit"
    return SettingInEffect(one.name, one.shown(config), source, note)


def contradictions(config: BrokerConfig) -> Iterator[Finding]:
    """Yield settings that defeat each other, or what they are for."""
    ordinary, forced, full = (
        config.disk_max_used_space_ratio_percent,
        config.disk_space_clean_forcibly_percent,
        config.disk_space_warning_level_percent,
    )
    if ordinary >= forced and config.clean_file_forcibly_enable:
        yield _warning(
            f"diskMaxUsedSpaceRatio {ordinary} is not below diskSpaceCleanForciblyRatio {forced}: a disk "
            "that fills makes the broker delete whatever the age, before what has expired",
            f"set diskMaxUsedSpaceRatio below {forced}, such as {max(10, forced - 10)}",
        )
    if forced >= full:
        yield _warning(
            f"diskSpaceCleanForciblyRatio {forced} is not below diskSpaceWarningLevelRatio {full}: the "
            "broker refuses messages before it makes room",
            f"set diskSpaceCleanForciblyRatio below {full}",
        )
    yield from _times(config)
    yield from _destroy(config.destroy_mapped_file_interval_forcibly_ms)
    if not config.clean_file_forcibly_enable:
        yield Finding(
            Severity.NOTE,
            "settings",
            f"cleanFileForciblyEnable=false: above {forced} % only what has expired goes; if nothing has, "
            f"the broker refuses messages above {full} %",
            "keep an alarm on the disk's level",
        )


def unread_settings(keys: Iterable[str]) -> Iterator[Finding]:
    """Yield keys of broker.conf that no release of the broker reads, with the key that is meant."""
    known = _setting_names()
    unread = sorted(set(keys) - known - {WARNING_LEVEL_PROPERTY, CLEAN_FORCIBLY_PROPERTY})
    meant = {key: nearest(key, known) or "" for key in unread}
    misspelt = [
        key
        for key, name in meant.items()
        if SequenceMatcher(None, key.casefold(), name.casefold()).ratio() >= _ALIKE
    ]
    for key in misspelt:
        yield _warning(
            f"{key}: no broker reads this key; what it sets keeps its default", f"write {meant[key]}"
        )
    if others := [key for key in unread if key not in misspelt]:
        yield Finding(
            Severity.NOTE,
            "settings",
            f"no broker reads {', '.join(others)}: what these lines set keeps its default",
            "take them out, or look their names up",
        )


@cache
def _setting_names() -> frozenset[str]:
    """Return the keys of broker.conf that a release from 4.9.7 to 5.5.1 reads (MixAll#properties2Object)."""
    names = resources.files("storage_engine.rocketmq").joinpath("setting_names.txt")
    return frozenset(names.read_text().split())


def _times(config: BrokerConfig) -> Iterator[Finding]:
    hours = parse_delete_when(config.delete_when)
    never = [hour for hour in hours if not 0 <= hour <= 23]
    if never and len(never) == len(hours):
        yield _warning(
            f"deleteWhen {config.delete_when}: no clock shows that hour, so nothing is deleted by age before "
            "a disk level asks for it",
            "set deleteWhen to an hour from 00 to 23, such as 04",
        )
    reserved_ms = config.file_reserved_time_hours * HOUR_MS
    if reserved_ms == 0:
        yield _warning(
            "fileReservedTime 0: every segment has expired as soon as it is sealed",
            "set fileReservedTime to the hours that messages have to stay",
        )
        return
    delay_ms = longest_delay_ms(config.message_delay_level)
    if delay_ms > reserved_ms:
        yield _warning(
            f"messageDelayLevel reaches {duration_text(delay_ms)}, fileReservedTime is "
            f"{duration_text(reserved_ms)}: a message may be deleted before it is delivered",
            f"set fileReservedTime to at least {-(-delay_ms // HOUR_MS) + 24}",
        )
    timer = config.raw.get("timerMaxDelaySec", "")
    timer_ms = (int(timer) if _WHOLE.fullmatch(timer) else _TIMER_MAX_DELAY_SECONDS) * 1000
    if timer_ms > reserved_ms and config.raw.get("timerWheelEnable", "true").strip().lower() == "true":
        yield _warning(
            f"timerMaxDelaySec allows {duration_text(timer_ms)}, fileReservedTime is "
            f"{duration_text(reserved_ms)}: a timer message may be deleted before it is due",
            f"set fileReservedTime to at least {-(-timer_ms // HOUR_MS)}, or timerMaxDelaySec to at most "
            f"{reserved_ms // 1000}",
        )


def _destroy(interval_ms: int) -> Iterator[Finding]:
    """A segment that somebody reads stops the deletion of all younger ones until the interval is over
    (MappedFileQueue#deleteExpiredFileByTime, ReferenceResource#shutdown)."""
    name = "destroyMapedFileIntervalForcibly"
    if interval_ms <= 0:
        yield _warning(
            f"{name} {interval_ms}: the broker unmaps a segment while a consumer still reads it",
            f"set {name}=120000",
        )
    elif interval_ms > _LONG_DESTROY_MS:
        yield _warning(
            f"{name} is {duration_text(interval_ms)}: a segment that somebody still reads keeps all younger "
            "ones for so long, also on a full disk",
            f"set {name}=120000",
        )


def longest_delay_ms(levels: str) -> int:
    """Return the longest of messageDelayLevel's delays; 0 where none can be parsed."""
    found = (_LEVEL.fullmatch(level) for level in levels.split())
    return max((int(one[1]) * _UNITS_MS[one[2]] for one in found if one), default=0)


def _warning(what: str, advice: str) -> Finding:
    return Finding(Severity.WARNING, "settings", what, advice)
