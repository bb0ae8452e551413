"""What a RocketMQ store is and what is wrong with it, as far as names, sizes, heads and tails of files tell.

Nothing is opened for writing, and a store that no command works with is told of as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.wording import count_text
from storage_engine.exceptions import (
    StorageEngineError,
    StoreLayoutError,
    UnsupportedLayoutError,
)
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.hold.hold import HoldMemory
from storage_engine.model.report.diagnosis import BrokerDiagnosis, Finding, Severity
from storage_engine.rocketmq.checks.log_damage import log_damage
from storage_engine.rocketmq.codec.log_tail import near_logical_end
from storage_engine.rocketmq.codec.store_times import newest_message_ms
from storage_engine.rocketmq.engine.engine_session import is_served
from storage_engine.rocketmq.format.broker_config import (
    BrokerConfig,
    load_broker_config,
    usable_broker_config,
)
from storage_engine.rocketmq.format.layout import StoreLayout, list_segments, resolve_layout
from storage_engine.rocketmq.format.mapped_files import list_raw_files
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.format.releases import WITHOUT_DIRECTORIES, known_by_traces
from storage_engine.rocketmq.hold.hold_remains import hold_remains
from storage_engine.rocketmq.live.connect import running_broker
from storage_engine.rocketmq.live.connect import settings_in_effect as live_settings
from storage_engine.rocketmq.store.settings_review import contradictions, settings_in_effect, unread_settings
from storage_engine.rocketmq.store.store import find_active
from storage_engine.rocketmq.store.store_lock import is_locked, lock_holder

_LISTEN_PORT = "10911"


def diagnose(settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Broker.diagnose`."""
    version, here = "", settings
    if settings.live is not None:
        version, here = running_broker(settings.live).version, live_settings(settings, settings.live)
    config, findings = _config(here, settings)
    shown = settings_in_effect(config, settings.overrides, by_broker=settings.live is not None)
    layout = None
    try:
        layout = resolve_layout(config, to_archive=True)
        layout.check_cleanable()
    except (UnsupportedLayoutError, StoreLayoutError) as error:
        severity = Severity.URGENT if layout is None else Severity.WARNING
        findings.append(Finding(severity, "layout", *_what_and_advice(error)))
        if layout is None:
            root = Path(os.path.realpath(config.store_path_root_dir))
            version = version or known_by_traces(root)
            return BrokerDiagnosis(version, settings=shown, findings=tuple(findings), refused=True)
    asked = settings.live is not None or (settings.engine and is_served(layout.root))
    running = _Running(True, "") if asked else _running(layout, config)
    damage = list(_damage(layout))
    findings += [*damage, *contradictions(config), *([] if asked else _state(layout, running))]
    if settings.live is None:
        findings += unread_settings(config.raw)
    findings += hold_remains(layout.root, memory, now_ms)
    return BrokerDiagnosis(
        version=version or known_by_traces(layout.root),
        layout=tuple(_layout(layout)),
        running=running.known,
        running_text=running.text,
        live_option=running.option,
        settings=shown,
        age_setting=f"fileReservedTime={config.file_reserved_time_hours}",
        full_percent=config.disk_space_warning_level_percent,
        newest_message_ms=None if damage else _newest(layout),
        findings=tuple(findings),
        refused=any(one.severity is Severity.URGENT for one in findings),
    )


def _config(here: StoreSettings, settings: StoreSettings) -> tuple[BrokerConfig, list[Finding]]:
    """Return the settings in effect, without those of broker.conf that its broker doesn't work with.

    :raises BrokerConfigError: it can't be read, or what was given beside it is wrong.
    """
    usable, errors = usable_broker_config(here.broker_conf, root=here.root)
    found = [Finding(Severity.URGENT, "setting", *_what_and_advice(error)) for error in errors]
    if not errors:
        usable = load_broker_config(here.broker_conf, here.overrides, root=here.root)
    if settings.broker_conf is None and settings.live is None:
        what = "no broker.conf was named: settings count as the broker's defaults, or as options say"
        found.append(Finding(Severity.NOTE, "no-broker-conf", what, "name it: --broker-conf FILE"))
    return usable, found


def _what_and_advice(error: StorageEngineError) -> tuple[str, str]:
    """Split an error's words into what was found and, where its last sentence says so, what to do."""
    said = str(error).replace(" Nothing was changed.", "")
    what, separator, advice = said.rpartition(". ")
    if not separator:
        return said.removesuffix("."), ""
    return what, (advice[:1].lower() + advice[1:]).removesuffix(".")


@dataclass(frozen=True, slots=True)
class _Running:
    """:param known: a broker runs on the store; None: that can't be told.
    :param option: by which a command asks it.
    """

    known: bool | None
    text: str
    option: str = ""


def _running(layout: StoreLayout, config: BrokerConfig) -> _Running:
    """Find out whether a broker has the store's lock."""
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
    """Yield what is wrong with the files of the log."""
    try:
        files = list_raw_files(layout.log_paths)
    except StoreLayoutError as error:
        yield Finding(Severity.URGENT, "foreign-file", *_what_and_advice(error))
        return
    yield from log_damage(files, layout.segment_size_bytes)
    for path in layout.log_paths:
        below = sorted(one.name for one in path.iterdir() if one.is_dir())
        if below:
            yield Finding(
                Severity.WARNING,
                "foreign-directory",
                f"{path / below[0]} is a directory among the segments: releases before "
                f"{WITHOUT_DIRECTORIES} don't start with it",
                "move it out of there",
            )


def _state(layout: StoreLayout, running: _Running) -> Iterator[Finding]:
    """Yield what the store's own marks say of its broker, which isn't asked."""
    if running.known:
        yield Finding(
            Severity.WARNING,
            "running",
            f"a broker runs on this store ({running.text}): it deletes by its own rules, and "
            "files lag behind it",
            f"give the broker as well: {running.option}",
        )
    elif layout.abort.exists():
        if running.known is None:
            what, advice = "whether a broker runs can't be told", "run as the broker's user, on its host"
        else:
            what = "its broker didn't stop cleanly (abort exists): nothing is cleaned before it has recovered"
            advice = "start the broker and stop it cleanly; archiving works as it is"
        yield Finding(Severity.WARNING, "crashed", what, advice)


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
        (layout.consumequeue_ext, "extension of consume queues"),
    ):
        with suppress(StorageEngineError, OSError):
            if count := sum(1 for _ in iter_queues(directory)):
                yield _counted(count, kind)
    with suppress(OSError):
        if count := len(_names(layout.index)):
            yield count_text(count, "index file")
    for name, what in (("timerlog", "timers"), ("rocksdbstore", "RocksDB beside it")):
        if _names(layout.root / name):
            yield what


def _counted(count: int, kind: str) -> str:
    return count_text(count, kind) if not kind.startswith("extension") else f"{count} of them with extensions"


def _names(directory: Path) -> Sequence[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _newest(layout: StoreLayout) -> int | None:
    """Return when the last message was stored."""
    with suppress(StorageEngineError, OSError):
        _, max_offset = find_active(list_segments(layout), near_logical_end)
        return newest_message_ms(layout, max_offset)
    return None
