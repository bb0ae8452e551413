"""Checks of the answers of a broker's package, before anything is decided or recorded by them.

A wrong answer becomes a :class:`BrokerPackageError`. So does every error of a package except our own errors
and those of the operating system. Checks cover whole columns, because a store may have 100,000 segments.
Single segments are looked at only to name a fault.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter, le, lt
from stat import S_ISREG
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar, cast

from storage_engine.commands import Text
from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import BadInputError, BrokerPackageError, FileGoneError, StorageEngineError
from storage_engine.model.broker.broker_store import (
    ALWAYS,
    FORMER_MEMBERS,
    BrokerStore,
    IdentifiedLogs,
    LockedStore,
    StoreCauses,
    StoreConsumers,
    StoreCourse,
    StoreDependents,
    StoreHold,
    StoreLimit,
    StoreProcess,
    StoreReplicas,
    StoreShield,
    Watch,
    process_of,
    refuse_former_members,
    watch_of,
)
from storage_engine.model.broker.broker_tasks import BackgroundTasks
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, DependentFile, LogPlan, Plan, PlanRequest, Reason, Trigger
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import (
    Archivable,
    FileFacts,
    LogSnapshot,
    Segment,
    SegmentState,
    StoreSnapshot,
    log_name_fault,
)

_NO_NAMES = frozenset({"", ".", ".."})
_PATH_MAX = 4096
"""Longest path that any system accepts."""
_MANY = 100
"""From this number of directories on, one listing of their parent costs less than a look at each."""


class RealDirectories:
    """Directories by their real paths. Each directory on a path is looked at once, not once for each file."""

    def __init__(self, paths: Sequence[os.PathLike[str]]) -> None:
        self._text = ", ".join(map(os.fspath, paths))
        self._roots = tuple(dict.fromkeys(os.path.realpath(path) for path in paths))
        self._real: dict[str, str] = {"": "/"}
        self._is_within: dict[str, bool] = {}

    def __str__(self) -> str:
        return self._text

    def first_outside(self, paths: Sequence[str]) -> str | None:
        """Return the first path for which :meth:`has` is false, or None if it is true for all."""
        parts = [path.rpartition("/") for path in paths]
        names = {name for _, _, name in parts}
        is_plain = _NO_NAMES.isdisjoint(names) and "\0" not in "".join(names)
        directories = {directory for directory, _, _ in parts}
        self._list_parents(directories)
        if is_plain and all(map(self._has_directory, directories)):
            return None
        return next((path for path in paths if not self.has(path)), None)

    def _list_parents(self, directories: Set[str]) -> None:
        """Look up the real paths of many directories of one parent by a single listing of that parent."""
        parents = Counter(directory.rpartition("/")[0] for directory in directories)
        for parent, count in parents.items():
            if count < _MANY or not parent.startswith("/") or "\0" in parent or len(parent) > _PATH_MAX:
                continue
            real = self._directory(parent)
            with suppress(OSError), os.scandir(real) as entries:
                for entry in entries:
                    path = f"{parent}/{entry.name}"
                    if path in directories and entry.is_dir(follow_symlinks=False):
                        self._real[path] = f"{real.rstrip('/')}/{entry.name}"

    def has(self, path: str) -> bool:
        """Return whether a path is below one of the directories, and not among our own files."""
        directory, _, name = path.rpartition("/")
        return name not in _NO_NAMES and "\0" not in name and self._has_directory(directory)

    def _has_directory(self, directory: str) -> bool:
        # A bare name, or a file in the file system's root, is below none of the directories.
        if not directory or "\0" in directory or len(directory) > _PATH_MAX:
            return False
        if (is_within := self._is_within.get(directory)) is None:
            real = self._directory(directory) if directory.startswith("/") else os.path.realpath(directory)
            below = any(f"{real}/".startswith(root.rstrip("/") + "/") for root in self._roots)
            is_within = self._is_within[directory] = below and f"/{DIRECTORY}/" not in f"{real}/"
        return is_within

    def real(self, path: str) -> str:
        """Return a file's path with its real directory. A symbolic link at the end isn't followed."""
        directory, _, name = path.rpartition("/")
        real = self._directory(directory) if path.startswith("/") else os.path.realpath(directory)
        return f"{real.rstrip('/')}/{name}"

    def _directory(self, path: str) -> str:
        if (cached := self._real.get(path)) is None:
            parent, _, name = path.rpartition("/")
            real = f"{self._directory(parent).rstrip('/')}/{name}"
            if name in _NO_NAMES or os.path.islink(real):  # noqa: PTH114  takes a third of the time
                real = os.path.realpath(path)
            cached = self._real[path] = real
        return cached


Types = Mapping[str, Set[type]]

MEND: Final = "Mend the package that brings the broker."
UNCHANGED: Final = f"Nothing was changed. {MEND}"
_ASKED: Final = f"Asking changed nothing. {MEND}"
"""End of a question's error. A step may ask after a deletion, so :data:`UNCHANGED` would be wrong there."""
MAY_BE_DONE: Final = f"A part of it may be done. The next run finds out. {MEND}"
_INT: Final[Set[type]] = frozenset({int})
_TEXT: Final[Set[type]] = frozenset({str})
_SENTENCE: Final[Set[type]] = frozenset({str, Text})
_MAYBE_INT: Final[Set[type]] = frozenset({int, NoneType})
SNAPSHOT: Final[Types] = {
    "root": _TEXT,
    "taken_at_ms": _INT,
    "logs": {tuple},
    "log_disks": {tuple},
    "dependents_disk": {DiskUsage},
    "crashed": {bool},
    "used_bytes": _MAYBE_INT,
}
DISK: Final[Types] = {
    "path": _TEXT,
    "used_percent": _MAYBE_INT,
    "total_bytes": _MAYBE_INT,
    "usable_bytes": _MAYBE_INT,
    "error": _SENTENCE,
    "device": _MAYBE_INT,
}
LOG: Final[Types] = {"segments": {tuple}, "max_offset": _INT, "dispatched_offset": _INT}
SEGMENT: Final[Types] = {
    "log": _TEXT,
    "base_offset": _INT,
    "facts": {FileFacts},
    "state": {SegmentState},
    "original_mtime_ns": _MAYBE_INT,
    "end": _MAYBE_INT,
    "companions": {tuple},
}
FACTS: Final[Types] = {
    "path": _TEXT,
    "device": _INT,
    "inode": _INT,
    "size_bytes": _INT,
    "mtime_ns": _INT,
    "ctime_ns": _INT,
}
PLAN: Final[Types] = {
    "store_root": _TEXT,
    "decided_at_ms": _INT,
    "triggers": {tuple},
    "logs": {tuple},
    "notices": {tuple},
}
DECISION: Final[Types] = {"segment": {Segment}, "reason": {Reason}, "detail": _SENTENCE}


def check_all(things: Sequence[Any], of: type, where: Callable[[Any], str]) -> None:
    """Make sure that all objects are exactly of this class.

    An object of a derived class could answer differently each time.
    """
    if not set(map(type, things)) <= {of}:
        wrong = next(thing for thing in things if type(thing) is not of)
        refuse(where(things[0]), f"each of type {of.__name__}", f"{wrong!r:.400}")


def check_each(things: Sequence[Any], of: type, types: Types, where: Callable[[Any], str]) -> None:
    """Make sure that all objects are exactly of this class, and their fields of these types."""
    if not set(map(type, things)) <= {of}:
        wrong = next(thing for thing in things if type(thing) is not of)
        refuse(f"answer of type {type(wrong).__name__}", f"type {of.__name__}", f"{wrong!r:.400}")
    for name, allowed in types.items():
        if not set(map(type, map(attrgetter(name), things))) <= allowed:
            wrong = next(thing for thing in things if type(getattr(thing, name)) not in allowed)
            names = " or ".join(sorted(kind.__name__ for kind in allowed))
            refuse(f"{where(wrong)}: {name}", f"type {names}", f"{getattr(wrong, name)!r:.400}")


def refuse(where: str, expected: str, found: str = "", then: str = UNCHANGED) -> NoReturn:
    text = f"{expected}, found {found}" if found else expected
    raise BrokerPackageError(f"{where}: expected {text}. {then}")


T = TypeVar("T")

QUESTIONS: Final[Mapping[str, str]] = {
    "archivable": "say which segments may be archived",
    "causes.triggers": "say which causes hold",
    "causes.watch": "look at clock and disks",
    "consumers.pending": "list the messages that it still has to deliver",
    "consumers.unread": "say which messages consumers have not read",
    "consumers.unread_by_log": "tell what consumers have not read of each log",
    "course.deletes_at_ms": "say when it deletes segments",
    "course.kept_ms": "say how long it keeps segments",
    "course.oldest_message_ms": "say when its oldest message was stored",
    "course.rule_config": "tell its rules",
    "course.sealed_at_ms": "say when segments were last written to",
    "course.start": "give the starting point of a simulation",
    "data_paths": "name the directories that it writes to",
    "dependents.find": "list the dependents of segments",
    "dependents.unread": "name the dependents that it left out",
    "glance": "describe its store",
    "hold.end": "end its hold",
    "hold.held_until_ms": "say when the hold ends",
    "hold.hold_due": "hold segments that are soon deleted",
    "hold.holds": "say which logs it holds",
    "hold.renew": "hold its store",
    "hold.status": "describe its hold",
    "hold.unheld_segments": "list the segments that it deletes without a hold",
    "identities.absences": "say why logs are missing",
    "identities.contradiction": "say whether a log is the archived one",
    "identities.is_present": "tell its directories",
    "identities.own_ends": "say where segments end",
    "identities.read": "name its logs",
    "is_live": "say whether its broker runs",
    "limit.may_archive": "say whether its store may be archived",
    "limit.why": "say whether segments may be deleted from it",
    "lock.check": "check its lock",
    "lock.check_deletable": "say whether its segments may be deleted",
    "lock.deleted": "say which segments are deleted",
    "lock.max_delete_batch": "say how many segments it deletes at once",
    "lock.notices": "name the checks that could not be made",
    "plan": "plan deletions in its store",
    "process.checkpoint": "read its checkpoint",
    "process.is_user_ours": "say who uses its store",
    "process.flush_now": "flush its store",
    "process.flush_paths": "name the files to flush",
    "process.progress": "describe its progress",
    "process.running_pid": "tell its process",
    "process.signs_of_a_run": "name the files that change when its broker runs",
    "process.user": "say who uses its store",
    "renewed": "open its store again",
    "replicas.contexts": "describe segments beyond their files",
    "replicas.range_sha256": "read a range of offsets",
    "shield.end_force": "end a forced deletion",
    "shield.need": "say how large a shield has to be",
    "shield.sealed_files": "list its sealed files",
    "snapshot": "describe its store",
    "tasks.check_deleted_topics": "say which topics exist",
    "tasks.look": "describe its background tasks",
}
"""Requests to a store, and the verb for each, as in "expected its package to <do>".

Requests that lock or delete are left out: their callers report the store's state. Names that begin with
``lock.`` are requests to a locked store.
"""
PARTS: Final[Mapping[str, type]] = {
    "causes": StoreCauses,
    "consumers": StoreConsumers,
    "course": StoreCourse,
    "dependents": StoreDependents,
    "hold": StoreHold,
    "identities": IdentifiedLogs,
    "limit": StoreLimit,
    "process": StoreProcess,
    "replicas": StoreReplicas,
    "shield": StoreShield,
    "tasks": BackgroundTasks,
}
"""Parts that only some stores have. Their members are requests too, such as ``hold.end``."""
_CHANGING: Final = frozenset(
    {"hold.end", "hold.hold_due", "hold.renew", "process.flush_now", "shield.end_force"}
)
"""Requests that change files, or settings of the running broker."""

_MAX_OFFSET: Final = (1 << 63) - 1


@contextmanager
def package_errors(broker: str, doing: str, then: str = UNCHANGED) -> Iterator[None]:
    """Turn errors of a broker's package into one kind of error.

    Three kinds stay as they are: our errors, those of the operating system, and lack of memory. The contract
    names the first two, and the third is no fault of the package. A missing file becomes a
    :class:`FileGoneError`, because the broker may delete files while its package reads them.

    :param doing: the package's task, as in "expected the package to <doing>".
    :param then: sentences on the known state of the store, and the remedy.
    :raises FileGoneError: a file vanished after it was listed and before it was read.
    :raises BrokerPackageError: the package raised anything else.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileGoneError.at(str(error.filename), then.removesuffix(MEND).rstrip()) from error
    except (StorageEngineError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise BrokerPackageError(
            f"broker {broker}: expected its package to {doing}, found {type(error).__name__}: {error}. {then}"
        ) from error


def ask(broker: str, doing: str, question: Callable[[], T]) -> T:
    """Return a package's answer unchecked. Only a failure to answer is handled.

    :raises BrokerPackageError: the package failed, as in :func:`package_errors`.
    """
    with package_errors(broker, doing):
        return question()


class _Asked:
    """A package's store, or a part of it, with :func:`package_errors` around each of ``QUESTIONS``.

    :param name: name of the part, followed by a full stop, or "" for the store.
    """

    __slots__ = ("_asked", "_broker", "_name")

    def __init__(self, asked: object, broker: str, name: str = "") -> None:
        self._asked, self._broker, self._name = asked, broker, name

    def __getattr__(self, name: str) -> Any:
        question = f"{self._name}{name}"
        if question in PARTS:
            return self._ask_part(name)
        doing = QUESTIONS.get(question)
        if doing is None:
            return getattr(self._asked, name)
        then = MAY_BE_DONE if question in _CHANGING else _ASKED
        with package_errors(self._broker, doing, then):
            answer = getattr(self._asked, name)
        return partial(_ask_with, self._broker, doing, then, answer) if callable(answer) else answer

    def _ask_part(self, name: str) -> _Asked | None:
        with package_errors(self._broker, f"say whether it has {name}", _ASKED):
            part = getattr(self._asked, name)
        if part is not None and not isinstance(part, PARTS[name]):
            where = f"broker {self._broker}: {name}"
            refuse(where, f"type {PARTS[name].__name__}, or None", f"{part!r:.400}", _ASKED)
        return None if part is None else _Asked(part, self._broker, f"{name}.")


def _ask_with(
    broker: str, doing: str, then: str, question: Callable[..., T], /, *arguments: Any, **named: Any
) -> T:
    with package_errors(broker, doing, then):
        return question(*arguments, **named)


def asked(store: BrokerStore, broker: str) -> BrokerStore:
    """Return a store whose failures to answer become a :class:`BrokerPackageError`.

    :raises BrokerPackageError: the package is written for an older contract.
    """
    with package_errors(broker, "open its store"):
        refuse_former_members(store, FORMER_MEMBERS)
    return cast(BrokerStore, _Asked(store, broker))


def wrap_lock(held: object, broker: str) -> LockedStore:
    """Return a locked store whose failures to answer become a :class:`BrokerPackageError`.

    :raises BrokerPackageError: the object isn't a locked store, or has impossible values.
    """
    where = f"broker {broker}: lock"
    if not isinstance(held, LockedStore):
        refuse(where, f"type {LockedStore.__name__}", f"{held!r:.400}")
    locked = cast(LockedStore, _Asked(held, broker, "lock."))
    _check_causes_and_notices((), locked.notices, where)
    size = locked.max_delete_batch
    if size is not None and (type(size) is not int or size < 1):
        refuse(f"{where}: max_delete_batch", "a number of at least 1, or None", f"{size!r:.400}")
    return locked


def answer_for_left(
    segments: Sequence[Segment], question: Callable[[Sequence[Segment]], T]
) -> tuple[Sequence[Segment], T]:
    """Ask about a log's segments while the broker may delete the oldest of them.

    :param segments: segments of one log, oldest first.
    :param question: the question. If segments vanish, it is asked again without them and those before them.
    :return: the remaining segments, and the answer about them.
    :raises FileGoneError: a file is gone, but each of these segments still has its own file.
    """
    remaining = segments
    while True:
        try:
            return remaining, question(remaining)
        except FileGoneError:
            missing = [place for place, s in enumerate(remaining) if not os.path.exists(s.facts.path)]  # noqa: PTH110
            if not missing:
                raise
            remaining = remaining[missing[-1] + 1 :]


def take_snapshot(store: BrokerStore, now_ms: int, broker: str) -> StoreSnapshot:
    """Return a store's present state.

    Offsets between two segments may be missing. A caller that needs all offsets refuses that log.

    :raises BrokerPackageError: the snapshot is impossible.
    :raises StorageEngineError: the same errors as of ``BrokerStore.snapshot``.
    """
    return _take_checked(store, lambda: store.snapshot(now_ms), broker)


def take_glance(store: BrokerStore, now_ms: int, broker: str) -> StoreSnapshot:
    """Return the store's present state from as few reads as possible. Never used to delete."""
    return _take_checked(store, lambda: store.glance(now_ms), broker)


def _take_checked(store: BrokerStore, take: Callable[[], StoreSnapshot], broker: str) -> StoreSnapshot:
    with package_errors(broker, "describe its store"):
        snapshot = take()
        data_paths = store.data_paths
    check_snapshot(snapshot, data_paths, broker)
    return snapshot


def take_sealed_files(store: BrokerStore, broker: str) -> tuple[Segment, ...]:
    """Return the sealed segments that exist. Segments between them may be missing.

    :raises BrokerPackageError: a segment is impossible.
    :raises StorageEngineError: as of ``StoreShield.sealed_files``, or the store can't have a shield.
    """
    if (shield := store.shield) is None:
        raise BadInputError(
            f"broker {broker}: expected a store that can have a shield, found none. Nothing was "
            "changed. Set shield to off."
        )
    with package_errors(broker, "list its sealed files"):
        segments = shield.sealed_files()
        data_paths = store.data_paths
    where = f"broker {broker}: sealed files"
    check_each(segments, Segment, SEGMENT, lambda s: f"{where}: log {s.log}, offset {s.base_offset}")
    check_each([s.facts for s in segments], FileFacts, FACTS, lambda facts: f"{where}: {facts.path}")
    _check_names({segment.log for segment in segments}, where)
    _check_files(segments, RealDirectories(data_paths), where)
    return segments


def take_archivable(store: BrokerStore, snapshot: StoreSnapshot) -> Archivable:
    """Return the segments of a store that may be archived by now.

    :raises BrokerPackageError: a returned segment isn't sealed, or isn't in the snapshot.
    :raises OSError: a file can't be read.
    """
    archivable = store.archivable(snapshot)
    sealed = {segment.id: segment for log in snapshot.logs for segment in log.sealed}
    for segment in archivable.segments:
        if sealed.pop(segment.id, None) != segment:
            where = f"broker {snapshot.broker}: {snapshot.root}: log {segment.log}"
            expected = "a sealed segment of the snapshot to be archived, once"
            refuse(f"{where}, offset {segment.base_offset}", expected, repr(segment))
    if archivable.is_all and (sealed or archivable.kept_out or archivable.refused):
        # The package changed the default answer, whose is_all says that no segment is kept out.
        return replace(archivable, is_all=False)
    return archivable


def check_snapshot(snapshot: StoreSnapshot, data_paths: Sequence[os.PathLike[str]], broker: str) -> None:
    """Make sure that a snapshot is possible, and fits into journal, lake and reports.

    :raises BrokerPackageError: the snapshot is impossible.
    """
    where = f"broker {broker}"
    check_each([snapshot], StoreSnapshot, SNAPSHOT, lambda _: f"{where}: snapshot")
    if snapshot.broker != broker:
        refuse(f"{where}: snapshot", f"the broker's name {broker!r}", repr(snapshot.broker))
    where = f"{where}: {snapshot.root}"
    disks = [*snapshot.log_disks, snapshot.dependents_disk]
    check_each(disks, DiskUsage, DISK, lambda _: f"{where}: disk")
    logs = snapshot.logs
    check_all(logs, LogSnapshot, lambda _: f"{where}: log")
    _check_names([log.name for log in logs], where)
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            refuse(f"{where}: log {name}", "each log once", "it again")
    check_each(logs, LogSnapshot, LOG, lambda log: f"{where}: log {log.name}")
    segments = [segment for log in logs for segment in log.segments]
    _check_segments(segments, [log.name for log in logs for _ in log.segments], where)
    _check_files(segments, RealDirectories(data_paths), where)


def _check_names(names: Iterable[object], where: str) -> None:
    for name in names:
        if fault := log_name_fault(name):
            refuse(f"{where}: name {name!r:.400} of a log", fault)


def _check_segments(segments: Sequence[Segment], logs: Sequence[str], where: str) -> None:
    """:param logs: the name of each segment's log."""

    def at(number: int) -> str:
        return f"{where}: log {logs[number]}, offset {segments[number].base_offset}"

    check_each(segments, Segment, SEGMENT, lambda s: f"{where}: log {s.log}, offset {s.base_offset}")
    check_each([s.facts for s in segments], FileFacts, FACTS, lambda facts: f"{where}: {facts.path}")
    names = list(map(attrgetter("log"), segments))
    if names != logs:
        number = next(i for i, (left, right) in enumerate(zip(names, logs, strict=True)) if left != right)
        refuse(at(number), "a segment of that log", f"one of log {names[number]!r}")
    starts = list(map(attrgetter("base_offset"), segments))
    ends = list(map(attrgetter("end_offset"), segments))
    if segments and (min(starts) < 0 or max(ends) > _MAX_OFFSET):
        number = next(i for i, end in enumerate(ends) if starts[i] < 0 or end > _MAX_OFFSET)
        refuse(at(number), f"offsets from 0 to {_MAX_OFFSET}", f"[{starts[number]}, {ends[number]})")
    if not all(map(le, starts, ends)):
        number = next(i for i, end in enumerate(ends) if end < starts[i])
        refuse(at(number), "an end at its base offset or after it", str(ends[number]))
    same = list(map(str.__eq__, logs, logs[1:]))
    in_order = map(lt, starts, starts[1:]), map(le, ends, starts[1:])
    for number, (is_one_log, grows, is_behind) in enumerate(zip(same, *in_order, strict=True)):
        if is_one_log and not (grows and is_behind):
            refuse(
                at(number + 1),
                "segments that are sorted, oldest first, and don't overlap, so the next one at "
                f"{ends[number]} or after it",
                f"it after [{starts[number]}, {ends[number]})",
            )
    sealed = [state is SegmentState.SEALED for state in map(attrgetter("state"), segments)]
    for number, (is_one_log, before, this) in enumerate(zip(same, sealed, sealed[1:], strict=False)):
        if is_one_log and this and not before:
            refuse(at(number + 1), "an active segment, because the one before it is active", "a sealed one")


def _check_files(segments: Sequence[Segment], directories: RealDirectories, where: str) -> None:
    companions = [file for segment in segments for file in segment.companions]
    check_each(companions, FileFacts, FACTS, lambda facts: f"{where}: {facts.path}")
    files = [*map(attrgetter("facts"), segments), *companions]
    paths = list(map(attrgetter("path"), files))
    if min(map(attrgetter("size_bytes"), files), default=0) < 0:
        path = next(facts.path for facts in files if facts.size_bytes < 0)
        refuse(f"{where}: {path}", "a size in bytes", "one below 0")
    if len(set(paths)) < len(paths):
        path = next(path for path, count in Counter(paths).items() if count > 1)
        refuse(
            f"{where}: {path}", "each file once", "the same file again, of another segment or as a companion"
        )
    if (path := directories.first_outside(paths)) is not None:
        refuse(f"{where}: {path}", f"a file in {directories}", "one elsewhere")


def take_triggers(
    store: BrokerStore, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
    """Return the present causes of a cleanup, and notices.

    :raises BrokerPackageError: the package failed, or didn't answer with causes and notices.
    """
    if (causes := store.causes) is None:
        return (ALWAYS,), ()
    with package_errors(snapshot.broker, "say which causes hold"):
        triggers, notices = causes.triggers(snapshot, now_ms, request)
    _check_causes_and_notices(triggers, notices, f"broker {snapshot.broker}: {snapshot.root}")
    return triggers, notices


def take_watch(store: BrokerStore, now_ms: int, broker: str) -> Watch:
    """Return the present causes of a cleanup that clock and disks alone show.

    :raises BrokerPackageError: the package failed to answer.
    """
    with package_errors(broker, "look at clock and disks", _ASKED):
        return watch_of(store, now_ms)


def _check_causes_and_notices(triggers: object, notices: object, where: str) -> None:
    for name, values, of in (("causes", triggers, Trigger), ("notices", notices, str)):
        if type(values) is not tuple or not all(isinstance(value, of) for value in values):
            refuse(f"{where}: {name}", f"a tuple of {of.__name__}", f"{values!r:.400}")


def take_checkpoint(store: BrokerStore) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return a store's checkpoint, and a notice if it can't be read. No deletion depends on it."""
    try:
        return process_of(store).checkpoint(), ()
    except BrokerPackageError:
        raise
    except (BadInputError, FileGoneError, OSError) as error:
        return {}, (f"the store's checkpoint can't be read: {reason_of(error)}",)


def propose(store: BrokerStore, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
    """Return the deletions that a broker's own rules plan in a store.

    :raises BrokerPackageError: the answer isn't a plan for that snapshot.
    :raises StorageEngineError: the same errors as of ``BrokerStore.plan``.
    """
    with package_errors(snapshot.broker, "plan deletions in its store"):
        plan = store.plan(snapshot, now_ms, request)
    check_plan(plan, snapshot)
    return plan


def due_now(store: BrokerStore, snapshot: StoreSnapshot, now_ms: int) -> tuple[Segment, ...]:
    """Return the segments that a cleanup would delete by its rules if a person requested the cleanup now."""
    most = sum(len(log.segments) for log in snapshot.logs)
    return propose(store, snapshot, now_ms, PlanRequest(manual=True, max_segments=most)).to_delete


def check_plan(plan: Plan, snapshot: StoreSnapshot) -> None:
    """Make sure that a plan deletes only the oldest sealed segments of each log, each once and unchanged.

    :raises BrokerPackageError: the plan deletes others.
    """
    where = f"broker {snapshot.broker}: {snapshot.root}"
    check_each([plan], Plan, PLAN, lambda _: f"{where}: plan")
    if plan.store_root != snapshot.root:
        refuse(f"{where}: plan", f"one for {snapshot.root}", f"one for {plan.store_root}")
    _check_causes_and_notices(plan.triggers, plan.notices, f"{where}: plan")
    check_all(plan.logs, LogPlan, lambda _: f"{where}: plan")
    logs = {log.name: log for log in snapshot.logs}
    names = [log.log for log in plan.logs]
    if strange := [name for name in names if name not in logs]:
        refuse(f"{where}: plan", "decisions on the store's logs", f"one on log {strange[0]!r:.400}")
    if len(set(names)) < len(names):
        refuse(f"{where}: plan", "each log once", "one again")
    decisions = [decision for log in plan.logs for decision in log.decisions]
    check_each(decisions, Decision, DECISION, lambda _: f"{where}: plan: decision")
    for log in plan.logs:
        _check_log_plan(log, logs[log.log].segments, f"{where}: plan: log {log.log}")


def _check_log_plan(log: LogPlan, segments: tuple[Segment, ...], where: str) -> None:
    if tuple([decision.segment for decision in log.decisions]) != segments:
        by_offset = {segment.base_offset: segment for segment in segments}
        for decision in log.decisions:
            planned = decision.segment
            if by_offset.pop(planned.base_offset, None) != planned:
                refuse(
                    f"{where}, offset {planned.base_offset}", "a segment of the snapshot, once", repr(planned)
                )
    going = log.to_delete
    if not going:
        return
    if going != segments[: len(going)]:
        pairs = zip(going, segments, strict=False)
        actual, expected = next(pair for pair in pairs if pair[0] != pair[1])
        where = f"{where}, offset {expected.base_offset}"
        refuse(
            where,
            "the oldest segments to be deleted",
            f"that this segment stays and segment {actual.base_offset} is deleted",
        )
    if going[-1].state is not SegmentState.SEALED:
        where = f"{where}, offset {going[-1].base_offset}"
        refuse(where, "that only sealed segments are deleted", "an active one")
    at_most = segments[len(going)].base_offset if len(going) < len(segments) else _MAX_OFFSET
    if not going[-1].end_offset <= log.new_min_offset <= at_most:
        refuse(
            f"{where}, offset {at_most}",
            f"a decision on the first segment that stays, and the log to begin between "
            f"{going[-1].end_offset} and {at_most}",
            f"{log.new_min_offset}",
        )


def list_dependents(
    store: BrokerStore, snapshot: StoreSnapshot, min_offsets: Mapping[str, int]
) -> tuple[DependentFile, ...]:
    """Return the dependents to delete after a deletion of segments.

    Each dependent was checked: it is in the store, and isn't a segment's file.

    :param min_offsets: name of a log → offset at which the log will begin.
    :raises BrokerPackageError: the package names other files.
    :raises StorageEngineError: the same errors as of ``StoreDependents.find``.
    :raises OSError: the same errors as of ``StoreDependents.find``.
    """
    with package_errors(snapshot.broker, "list the dependents of segments"):
        files = () if store.dependents is None else store.dependents.find(min_offsets)
        data_paths = store.data_paths
    where = f"broker {snapshot.broker}: {snapshot.root}: dependents of {', '.join(min_offsets):.400}"
    if type(files) is not tuple:
        refuse(where, "a tuple", type(files).__name__)
    check_all(files, DependentFile, lambda _: where)
    check_each([file.facts for file in files], FileFacts, FACTS, lambda facts: f"{where}: {facts.path}")
    if not all(isinstance(text, str) for file in files for text in (file.kind, file.detail)):
        refuse(where, "words for each file's kind and why it is deleted", "something else")
    if not files:
        return files
    directories = RealDirectories(data_paths)
    own_files = [file for log in snapshot.logs for segment in log.segments for file in segment.files]
    taken_paths = {directories.real(file.path) for file in own_files}
    taken_files = {(file.device, file.inode) for file in own_files}
    for path in (file.facts.path for file in files):
        if not directories.has(path):
            refuse(f"{where}: {path}", f"a file in {directories}", "one elsewhere")
        real = directories.real(path)
        if real in taken_paths:
            refuse(
                f"{where}: {path}", "a file of no segment, once", "a segment's file, or a file a second time"
            )
        taken_paths.add(real)
        _check_dependent(path, taken_files, where)
    return files


def _check_dependent(path: str, taken: Collection[tuple[int, int]], where: str) -> None:
    """:param taken: device and inode of every file of a segment."""
    try:
        stat = os.lstat(path)
    except FileNotFoundError:
        # A running broker deletes them itself.
        return
    if not S_ISREG(stat.st_mode):
        refuse(f"{where}: {path}", "an ordinary file", "a directory, a link, a pipe or a device")
    if (stat.st_dev, stat.st_ino) in taken:
        refuse(f"{where}: {path}", "a file of no segment", "another name of a segment's file")
