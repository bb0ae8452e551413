"""Description of a RocketMQ store, its faults and its settings.

Of each file only name, size, and first and last bytes are read, and nothing is opened for writing. So even a
store that no other command accepts is described. Two kinds of settings are reported: those that contradict
each other, and those that no broker reads.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, partial
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from storage_engine.commands import Command, Text
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import (
    bytes_text,
    count_text,
    duration_text,
    exact_bytes_text,
    nearest,
    time_text,
)
from storage_engine.exceptions import (
    GateRefusedError,
    StorageEngineError,
    StoreLayoutError,
    UnsupportedLayoutError,
)
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.hold import HoldMemory
from storage_engine.model.report.diagnosis import (
    BrokerDiagnosis,
    Finding,
    SettingFrom,
    SettingInEffect,
    Severity,
)
from storage_engine.rocketmq.codec.commitlog import near_logical_end
from storage_engine.rocketmq.codec.stored_messages import newest_message_ms
from storage_engine.rocketmq.engine.serving import is_served
from storage_engine.rocketmq.format.broker_config import (
    CLEAN_FORCIBLY_PROPERTY,
    SETTING_NAMES,
    WARNING_LEVEL_PROPERTY,
    WITHOUT_DIRECTORIES,
    BrokerConfig,
    known_by_traces,
    load_broker_config,
    parse_delete_when,
    usable_broker_config,
)
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.layout import StoreLayout, list_segments, resolve_layout
from storage_engine.rocketmq.format.mapped_files import (
    MappedFile,
    file_name,
    is_offset,
    list_raw_files,
    readable_files,
)
from storage_engine.rocketmq.hold.heartbeat import no_watch
from storage_engine.rocketmq.hold.hold_state import HoldState, load_state, read_local
from storage_engine.rocketmq.hold.marker import NAME, Marker, read_marker
from storage_engine.rocketmq.live.connect import running_broker
from storage_engine.rocketmq.live.connect import settings_in_effect as live_settings
from storage_engine.rocketmq.store.store import find_active
from storage_engine.rocketmq.store.store_lock import is_locked, lock_holder

_LISTEN_PORT = "10911"
_REPLICA = "compare it with a replica or a backup"
_urgent = partial(Finding, Severity.URGENT)
_warning = partial(Finding, Severity.WARNING, "settings")
_END = Text("end it and put everything back: ", Command("unmanage"))


def diagnose(settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Inspecting.diagnose`."""
    version, here = "", settings
    if settings.live is not None:
        version, here = running_broker(settings.live).version, live_settings(settings, settings.live)
    config, findings = _config(here, settings)
    effective = settings_in_effect(config, settings.overrides, by_broker=settings.live is not None)
    layout = None
    try:
        layout = resolve_layout(config, to_archive=True)
        layout.check_cleanable()
    except (UnsupportedLayoutError, StoreLayoutError) as error:
        severity = Severity.URGENT if layout is None else Severity.WARNING
        findings.append(Finding(severity, "layout", *_split_advice(error)))
        if layout is None:
            version = version or known_by_traces(Path(os.path.realpath(config.store_path_root_dir)))
            return BrokerDiagnosis(version, settings=effective, findings=tuple(findings), refused=True)
    is_asked = settings.live is not None or (settings.engine and is_served(layout.root))
    running = _Running(True, "") if is_asked else _check_running(layout, config)
    damage = list(_damage(layout))
    findings += [*damage, *contradictions(config), *([] if is_asked else _state(layout, running))]
    if settings.live is None:
        findings += unread_settings(config.raw)
    findings += hold_remains(layout.root, memory, now_ms)
    return BrokerDiagnosis(
        version=version or known_by_traces(layout.root),
        layout=tuple(_layout(layout)),
        running=running.known,
        running_text=running.text,
        live_option=running.option,
        settings=effective,
        age_setting=f"fileReservedTime={config.file_reserved_time_hours}",
        full_percent=config.disk_space_warning_level_percent,
        newest_message_ms=None if damage else _newest(layout),
        findings=tuple(findings),
        refused=any(finding.severity is Severity.URGENT for finding in findings),
    )


def _config(here: StoreSettings, settings: StoreSettings) -> tuple[BrokerConfig, list[Finding]]:
    """Return the settings in effect, and a finding for each value that the broker doesn't accept.

    In place of such a value of broker.conf, the default is returned.

    :raises BrokerConfigError: broker.conf can't be read, or an override is wrong.
    """
    usable, errors = usable_broker_config(here.broker_conf, root=here.root)
    findings = [Finding(Severity.URGENT, "setting", *_split_advice(error)) for error in errors]
    if not errors:
        usable = load_broker_config(here.broker_conf, here.overrides, root=here.root)
    if settings.broker_conf is None and settings.live is None:
        text = "no broker.conf was named: settings have the broker's defaults, or the values of options"
        findings.append(Finding(Severity.NOTE, "no-broker-conf", text, "name it: --broker-conf FILE"))
    return usable, findings


def _split_advice(error: StorageEngineError) -> tuple[str, str]:
    """Split an error's text into the finding and the advice, which is the last of several sentences."""
    text = Text(error).without(" Nothing was changed.").removesuffix(".")
    at = text.rfind(". ")
    if at < 0:
        return text, ""
    return text[:at], text[at + 2 : at + 3].lower() + text[at + 3 :]


@dataclass(frozen=True, slots=True)
class _Running:
    """Whether a broker runs on a store.

    :param known: True if a broker runs on the store; None if unknown.
    :param text: the process with the store's lock, or the error that hides it.
    :param option: the shell's option for a command that asks this broker.
    """

    known: bool | None
    text: str
    option: str = ""


def _check_running(layout: StoreLayout, config: BrokerConfig) -> _Running:
    """Return whether a process has the broker's lock of the store."""
    option = f"--broker HOST:{config.raw.get('listenPort', _LISTEN_PORT).strip()}"
    try:
        locked = is_locked(layout)
    except OSError as error:
        return _Running(None, f"{layout.lock}: {error.strerror}")
    if not locked:
        return _Running(locked, "")
    holder = lock_holder(layout)
    if holder is None:
        return _Running(True, "a process of another container", option)
    return _Running(True, f"process {holder.pid}, {holder.name}", option)


def _damage(layout: StoreLayout) -> Iterator[Finding]:
    try:
        files = list_raw_files(layout.log_paths)
    except StoreLayoutError as error:
        yield Finding(Severity.URGENT, "foreign-file", *_split_advice(error))
        return
    yield from log_damage(files, layout.segment_size_bytes)
    for path in layout.log_paths:
        below = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
        if below:
            yield Finding(
                Severity.WARNING,
                "foreign-directory",
                f"{path / below[0]} is a directory among the segments: releases before "
                f"{WITHOUT_DIRECTORIES} don't start with it",
                "move it out of there",
            )


def _state(layout: StoreLayout, running: _Running) -> Iterator[Finding]:
    """Yield findings on the broker's state from files of the store. The broker isn't asked."""
    if running.known:
        yield Finding(
            Severity.WARNING,
            "running",
            f"a broker runs on this store ({running.text}): it deletes by its own rules, and its files are "
            "behind its memory",
            f"give the broker as well: {running.option}",
        )
    elif layout.abort.exists():
        if running.known is None:
            text, advice = "it is unknown whether a broker runs", "run as the broker's user, on its host"
        else:
            text = "its broker didn't stop cleanly (abort exists): nothing is cleaned before it has recovered"
            advice = "start the broker and stop it cleanly; archiving works as it is"
        yield Finding(Severity.WARNING, "crashed", text, advice)


def _layout(layout: StoreLayout) -> Iterator[str]:
    paths = len(layout.log_paths)
    read_only = len(set(layout.read_only_paths) - set(layout.commitlog_paths))
    if paths > 1:
        yield f"commitlog in {paths} directories" + (f" ({read_only} read-only)" if read_only else "")
    else:
        yield "commitlog in one directory"
    for directory, kind in (
        (layout.consumequeue, "consume queue"),
        (layout.batchconsumequeue, "batch consume queue"),
        (layout.consumequeue_ext, "extension"),
    ):
        with suppress(StorageEngineError, OSError):
            if count := sum(1 for _ in iter_queues(directory)):
                yield f"{count} of them with extensions" if kind == "extension" else count_text(count, kind)
    with suppress(OSError):
        if count := len(_names(layout.index)):
            yield count_text(count, "index file")
    for name, text in (("timerlog", "timers"), ("rocksdbstore", "RocksDB beside it")):
        if _names(layout.root / name):
            yield text


def _names(directory: Path) -> Sequence[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _newest(layout: StoreLayout) -> int | None:
    """Return the store time of the last message in ms; None if it can't be read."""
    with suppress(StorageEngineError, OSError):
        _, max_offset = find_active(list_segments(layout), near_logical_end)
        return newest_message_ms(layout, max_offset)
    return None


def log_damage(files: Sequence[tuple[Path, int]], size_bytes: int | None) -> Iterator[Finding]:
    """Yield faults with which a broker doesn't start, and holes in the log.

    Only names and sizes of files are read. A broker doesn't start with a file of another size, or with a name
    that is no offset (MappedFileQueue#doLoad).

    :param files: as :func:`~storage_engine.rocketmq.format.mapped_files.list_raw_files` lists them.
    :param size_bytes: mappedFileSizeCommitLog. If it is None, the most frequent size is expected.
    """
    foreign = [path for path, size in files if not is_offset(path.name) or size < 0]
    if foreign:
        yield _urgent(
            "foreign-file",
            f"{_first_text(foreign, 'file')} is no segment: a broker doesn't start with it",
            f"move it out of the directory: mv {foreign[0]} ELSEWHERE",
        )
    segments = [(path, size) for path, size in files if is_offset(path.name) and size >= 0]
    if not segments:
        return
    common = Counter(size for _, size in segments).most_common(1)[0][0]
    if size_bytes is not None and all(size != size_bytes for _, size in segments):
        yield _urgent(
            "segment-size",
            f"mappedFileSizeCommitLog is {exact_bytes_text(size_bytes)}, the segments have "
            f"{exact_bytes_text(common)}: a broker doesn't start with this setting",
            f"set mappedFileSizeCommitLog={common}",
        )
        size_bytes = common
    expected = size_bytes or common
    odd = [(path, size) for path, size in segments if size != expected]
    if odd:
        path, size = odd[0]
        more = f" and {count_text(len(odd) - 1, 'more segment')}" if len(odd) > 1 else ""
        yield _urgent(
            "segment-size",
            f"{path} has {exact_bytes_text(size)} and not {exact_bytes_text(expected)}{more}: a broker "
            "doesn't start with it",
            _REPLICA,
        )
    yield from _offset_faults(readable_files([file for file in segments if file[1] == expected]), expected)


def _offset_faults(files: Sequence[MappedFile], size_bytes: int) -> Iterator[Finding]:
    between = [file.path for file in files if file.base_offset % size_bytes]
    if between:
        yield _urgent(
            "segment-name",
            f"{_first_text(between, 'segment')} begins at no multiple of {bytes_text(size_bytes)}",
            _REPLICA,
        )
    twice = [right.path for left, right in pairwise(files) if left.base_offset == right.base_offset]
    if twice:
        yield _urgent(
            "segment-twice",
            f"{_first_text(twice, 'segment')} is in two of the log's directories",
            "find out which one the broker wrote last, and move the other one away",
        )
    holes = [
        (left.end_offset, right.base_offset)
        for left, right in pairwise(files)
        if right.base_offset > left.end_offset
    ]
    if holes:
        (start, end), missing = holes[0], sum(end - start for start, end in holes)
        more = f", the first of {len(holes)} holes" if len(holes) > 1 else ""
        yield _urgent(
            "hole",
            f"the log has nothing from offset {start} to {end}{more}: {bytes_text(missing)} are missing",
            Text(
                f"bring {file_name(start)} and what follows it back from a replica, or from a lake: ",
                Command("restore"),
            ),
        )


def _first_text(paths: Sequence[Path], kind: str) -> str:
    return f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} (and {count_text(len(paths) - 1, kind)} more)"


def hold_remains(root: Path, memory: HoldMemory | None, now_ms: int) -> Iterator[Finding]:
    """Yield findings on a hold that ended uncleanly, belongs to another journal, or has no watch.

    :param memory: the journal's memory of the store's hold; None if no journal was named.
    """
    try:
        marker, local, state = read_marker(root), read_local(root), load_state(memory)
    except GateRefusedError as error:
        yield Finding(Severity.WARNING, "hold", Text(error))
        return
    watch = "" if marker is None else no_watch(root)
    yield from judged_hold(root, marker, local, state, knows_journal=memory is not None, now_ms=now_ms)
    if marker is not None and marker.ends_at_ms > now_ms and watch:
        yield Finding(
            Severity.NOTE,
            "no-watch",
            f"the store is held and {watch}: no watch mends a fence that another program touches",
            Text("run ", Command("watch"), " on this host"),
        )


def judged_hold(
    root: Path,
    marker: Marker | None,
    local: HoldState | None,
    known: HoldState | None,
    *,
    knows_journal: bool,
    now_ms: int,
) -> Iterator[Finding]:
    """Yield a finding on a hold that ended uncleanly, or that another journal records. Pure.

    :param known: the journal's record of the hold.
    """
    if marker is not None and marker.ends_at_ms <= now_ms:
        yield Finding(
            Severity.WARNING,
            "dead-hold",
            f"a hold by {marker.host} ended {time_text(marker.ends_at_ms)}, and its changes were not put back"
            f"{_left_text(local)}",
            _END,
        )
    elif marker is not None and knows_journal and (known is None or known.manager != marker.manager):
        yield Finding(
            Severity.WARNING,
            "foreign-hold",
            f"{root / NAME}: {marker.host} holds the store until {time_text(marker.ends_at_ms)} by another "
            f"journal than this one, or its journal is gone{_left_text(local)}",
            Text(
                "name the lake with which it was held; if its journal is gone, wait until the hold ends, "
                "then ",
                Command("unmanage"),
            ),
        )
    elif marker is None and local is not None and (local.touched or local.changed_settings):
        yield Finding(
            Severity.WARNING,
            "dead-hold",
            f"a hold has lost its marker, and its changes were not put back{_left_text(local)}",
            _END,
        )


def _left_text(local: HoldState | None) -> str:
    if local is None:
        return ""
    remains = [count_text(len(local.touched), "changed file time")] if local.touched else []
    remains += [f"{item.key}={item.ours} (before: {item.original})" for item in local.changed_settings]
    return f": {', '.join(remains)} left as it set them" if remains else ""


_TIMER_MAX_DELAY_SECONDS = 3 * 24 * 3600
"""Default of timerMaxDelaySec (MessageStoreConfig)."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": HOUR_MS, "d": 24 * HOUR_MS}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_LONG_DESTROY_MS = HOUR_MS
_ALIKE = 0.9
"""Least similarity of a misspelt key to a known one. 1 means that they differ at most in case."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A setting that a diagnosis shows.

    :param property: a JVM property that overrides the setting, if there is one.
    :param is_limited: the broker limits the configured value.
    """

    field: str
    shown: Callable[[Any], str] = str
    property: str = ""
    is_limited: bool = False


_REVIEWED = (
    _Shown("delete_when"),
    _Shown("file_reserved_time_hours", "{} h".format),
    _Shown("disk_max_used_space_ratio_percent", "{} %".format, is_limited=True),
    _Shown("disk_space_clean_forcibly_percent", "{} %".format, CLEAN_FORCIBLY_PROPERTY, is_limited=True),
    _Shown("disk_space_warning_level_percent", "{} %".format, WARNING_LEVEL_PROPERTY, is_limited=True),
    _Shown("clean_file_forcibly_enable", lambda value: str(value).lower()),
    _Shown("delete_file_batch_max", is_limited=True),
    _Shown("destroy_mapped_file_interval_forcibly_ms", duration_text),
    _Shown("mapped_file_size_commit_log_bytes", lambda value: bytes_text(value) or "as the files are"),
    _Shown("replicas_per_disk_partition", is_limited=True),
)


def settings_in_effect(
    config: BrokerConfig, overrides: Mapping[str, str], *, by_broker: bool
) -> tuple[SettingInEffect, ...]:
    """Return the settings that decide when a segment is deleted, with the broker's limits applied.

    :param overrides: settings that replace those of broker.conf or of the running broker.
    :param by_broker: the values are a running broker's answers rather than those of a file.
    """
    return tuple(_resolve_setting(config, setting, overrides, by_broker) for setting in _REVIEWED)


def _resolve_setting(
    config: BrokerConfig, setting: _Shown, overrides: Mapping[str, str], by_broker: bool
) -> SettingInEffect:
    name, value = SETTING_NAMES[setting.field], getattr(config, setting.field)
    key = setting.property if config.raw.get(setting.property) else name
    if key in overrides:
        source = SettingFrom.OVERRIDE
    elif by_broker:
        source = SettingFrom.RUNNING_BROKER
    else:
        source = SettingFrom.CONFIG_FILE if key in config.raw else SettingFrom.DEFAULT
    text = config.raw.get(key, "")
    is_beyond = setting.is_limited and _WHOLE.fullmatch(text) and int(text) != value
    note = f"{text} is configured, beyond the broker's limit" if is_beyond else ""
    return SettingInEffect(name, setting.shown(value), source, note)


def contradictions(config: BrokerConfig) -> Iterator[Finding]:
    """Yield findings on settings that contradict each other, and on values that do harm."""
    ordinary, forced, full = (
        config.disk_max_used_space_ratio_percent,
        config.disk_space_clean_forcibly_percent,
        config.disk_space_warning_level_percent,
    )
    if ordinary >= forced and config.clean_file_forcibly_enable:
        yield _warning(
            f"diskMaxUsedSpaceRatio {ordinary} is not below diskSpaceCleanForciblyRatio {forced}: on a full "
            "disk the broker deletes segments whatever their age, before it deletes expired ones",
            f"set diskMaxUsedSpaceRatio below {forced}, such as {max(10, forced - 10)}",
        )
    if forced >= full:
        yield _warning(
            f"diskSpaceCleanForciblyRatio {forced} is not below diskSpaceWarningLevelRatio {full}: the "
            "broker refuses messages before it makes room",
            f"set diskSpaceCleanForciblyRatio below {full}",
        )
    yield from _age_contradictions(config)
    yield from _check_destroy_interval(config.destroy_mapped_file_interval_forcibly_ms)
    if not config.clean_file_forcibly_enable:
        yield Finding(
            Severity.NOTE,
            "settings",
            f"cleanFileForciblyEnable=false: above {forced} % only expired segments are deleted; if none "
            f"has expired, the broker refuses messages above {full} %",
            "keep an alarm on the disk's level",
        )


def unread_settings(keys: Iterable[str]) -> Iterator[Finding]:
    """Yield findings on keys of broker.conf that no release reads; for a misspelt key, name the right one."""
    names = _setting_names()
    unread = sorted(set(keys) - names - {WARNING_LEVEL_PROPERTY, CLEAN_FORCIBLY_PROPERTY})
    guesses = {key: nearest(key, names) or "" for key in unread}
    misspelt = [
        key
        for key, name in guesses.items()
        if SequenceMatcher(None, key.casefold(), name.casefold()).ratio() >= _ALIKE
    ]
    for key in misspelt:
        yield _warning(
            f"{key}: no broker reads this key; its setting keeps the default", f"write {guesses[key]}"
        )
    if others := [key for key in unread if key not in misspelt]:
        yield Finding(
            Severity.NOTE,
            "settings",
            f"no broker reads {', '.join(others)}: their settings keep the default",
            "remove them, or look up their names",
        )


@cache
def _setting_names() -> frozenset[str]:
    """Return the keys of broker.conf that a release from 4.9.7 to 5.5.1 reads (MixAll#properties2Object)."""
    names = resources.files("storage_engine.rocketmq").joinpath("setting_names.txt")
    return frozenset(names.read_text().split())


def _age_contradictions(config: BrokerConfig) -> Iterator[Finding]:
    hours = parse_delete_when(config.delete_when)
    if hours and not any(0 <= hour <= 23 for hour in hours):
        yield _warning(
            f"deleteWhen {config.delete_when}: no clock shows that hour, so expired segments stay until a "
            "disk is above diskMaxUsedSpaceRatio",
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


def _check_destroy_interval(interval_ms: int) -> Iterator[Finding]:
    """Yield a finding if destroyMapedFileIntervalForcibly is not positive, or long.

    While a reader uses a segment, the broker deletes no younger segment until this interval is over
    (MappedFileQueue#deleteExpiredFileByTime, ReferenceResource#shutdown).
    """
    name = "destroyMapedFileIntervalForcibly"
    if interval_ms <= 0:
        yield _warning(
            f"{name} {interval_ms}: the broker unmaps a segment while a consumer still reads it",
            f"set {name}=120000",
        )
    elif interval_ms > _LONG_DESTROY_MS:
        yield _warning(
            f"{name} is {duration_text(interval_ms)}: while a consumer reads a segment, all younger segments "
            "stay for so long, also on a full disk",
            f"set {name}=120000",
        )


def longest_delay_ms(levels: str) -> int:
    """Return the longest delay of messageDelayLevel; 0 if none can be parsed."""
    matches = (_LEVEL.fullmatch(level) for level in levels.split())
    return max((int(match[1]) * _UNITS_MS[match[2]] for match in matches if match), default=0)
