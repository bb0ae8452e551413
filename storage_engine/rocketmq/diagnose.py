"""What a RocketMQ store is and what is wrong with it, as far as names, sizes, heads and tails of files tell.

Nothing is opened for writing, and a store that no command works with is told of as well.

What is wrong with the files in a commitlog's directories, by their names and sizes alone. Pure. A broker
doesn't start with a file that has another size or whose name is no offset (MappedFileQueue#doLoad).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.wording import bytes_text, count_text, exact_bytes_text, time_text
from storage_engine.exceptions import (
    GateRefusedError,
    StorageEngineError,
    StoreLayoutError,
    UnsupportedLayoutError,
)
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.hold import HoldMemory
from storage_engine.model.report.diagnosis import BrokerDiagnosis, Finding, Severity
from storage_engine.rocketmq.codec.commitlog import near_logical_end
from storage_engine.rocketmq.codec.stored_messages import newest_message_ms
from storage_engine.rocketmq.engine.serving import is_served
from storage_engine.rocketmq.format.broker_config import (
    BrokerConfig,
    load_broker_config,
    usable_broker_config,
)
from storage_engine.rocketmq.format.layout import StoreLayout, list_segments, resolve_layout
from storage_engine.rocketmq.format.mapped_files import (
    MappedFile,
    file_name,
    is_offset,
    list_raw_files,
    readable_files,
)
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.format.releases import WITHOUT_DIRECTORIES, known_by_traces
from storage_engine.rocketmq.hold.heartbeat import no_watch
from storage_engine.rocketmq.hold.local_hold import read_local
from storage_engine.rocketmq.hold.marker import NAME, Marker, read_marker
from storage_engine.rocketmq.hold.state import HoldState, load_state
from storage_engine.rocketmq.live.connect import running_broker
from storage_engine.rocketmq.live.connect import settings_in_effect as live_settings
from storage_engine.rocketmq.store.settings_review import contradictions, settings_in_effect, unread_settings
from storage_engine.rocketmq.store.store import find_active
from storage_engine.rocketmq.store.store_lock import is_locked, lock_holder

_LISTEN_PORT = "10911"
_REPLICA = "compare it with a replica or a backup"
_END = Text("end it and put everything back: ", Command("unmanage"))


def diagnose(settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Inspecting.diagnose`."""
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
    said = Text(error).without(" Nothing was changed.").removesuffix(".")
    at = said.rfind(". ")
    if at < 0:
        return said, ""
    return said[:at], said[at + 2 : at + 3].lower() + said[at + 3 :]


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


def log_damage(files: Sequence[tuple[Path, int]], size_bytes: int | None) -> Iterator[Finding]:
    """Yield the faults that keep a broker from starting, or that show that bytes of the log are missing.

    :param files: as :func:`~storage_engine.rocketmq.format.mapped_files.list_raw_files` lists them.
    :param size_bytes: mappedFileSizeCommitLog where it is set; None: as most files are.
    """
    foreign = [path for path, size in files if not is_offset(path.name) or size < 0]
    if foreign:
        yield _urgent(
            "foreign-file",
            f"{_first_of(foreign, 'file')} is no segment: a broker doesn't start with it",
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
    sound = readable_files([one for one in segments if one[1] == expected])
    yield from _places(sound, expected)


def _places(files: Sequence[MappedFile], size_bytes: int) -> Iterator[Finding]:
    between = [file.path for file in files if file.base_offset % size_bytes]
    if between:
        yield _urgent(
            "segment-name",
            f"{_first_of(between, 'segment')} begins at no multiple of {bytes_text(size_bytes)}",
            _REPLICA,
        )
    twice = [right.path for left, right in pairwise(files) if left.base_offset == right.base_offset]
    if twice:
        yield _urgent(
            "segment-twice",
            f"{_first_of(twice, 'segment')} is in two of the log's directories",
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


def _first_of(paths: Sequence[Path], thing: str) -> str:
    return f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} (and {count_text(len(paths) - 1, thing)} more)"


def _urgent(kind: str, what: str, advice: str) -> Finding:
    return Finding(Severity.URGENT, kind, what, advice)


def hold_remains(root: Path, memory: HoldMemory | None, now_ms: int) -> Iterator[Finding]:
    """Look for what is left of holds.

    :param memory: the journal's, of the store's hold; None: nobody named a journal.
    """
    try:
        marker, local = read_marker(root), read_local(root)
        known = load_state(memory)
    except GateRefusedError as error:
        yield Finding(Severity.WARNING, "hold", Text(error))
        return
    watch = "" if marker is None else no_watch(root)
    yield from judged_hold(root, marker, local, known, knows_journal=memory is not None, now_ms=now_ms)
    if marker is not None and marker.ends_at_ms > now_ms and watch:
        yield Finding(
            Severity.NOTE,
            "no-watch",
            f"the store is held and {watch}: nobody mends a fence that somebody touches",
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
    """Judge what is left of a hold. Pure.

    :param marker: that says until when it stands.
    :param local: the record of it that lies with the store.
    :param known: what the journal remembers of it.
    :param knows_journal: a journal was asked.
    """
    if marker is not None and marker.ends_at_ms <= now_ms:
        yield Finding(
            Severity.WARNING,
            "dead-hold",
            f"a hold by {marker.host} ended {time_text(marker.ends_at_ms)} and was not put back"
            f"{_left(local)}",
            _END,
        )
    elif marker is not None and knows_journal and (known is None or known.manager != marker.manager):
        yield Finding(
            Severity.WARNING,
            "foreign-hold",
            f"{root / NAME}: {marker.host} holds the store until {time_text(marker.ends_at_ms)} by another "
            f"journal than this one, or its journal is gone{_left(local)}",
            Text(
                "name the lake that it was held with; if its journal is gone, wait until the hold ends, "
                "then ",
                Command("unmanage"),
            ),
        )
    elif marker is None and local is not None and (local.touched or local.changed_settings):
        yield Finding(
            Severity.WARNING, "dead-hold", f"a hold without a marker was not put back{_left(local)}", _END
        )


def _left(local: HoldState | None) -> str:
    if local is None:
        return ""
    left = [count_text(len(local.touched), "changed file time")] if local.touched else []
    left += [f"{one.key}={one.ours} (before: {one.original})" for one in local.changed_settings]
    return f": {', '.join(left)} left as it set them" if left else ""
