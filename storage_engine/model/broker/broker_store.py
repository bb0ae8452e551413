"""An open store of a broker: what a broker package implements for retention, with its promises.

Each function that reads files raises OSError if one can't be read.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import isfunction
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from storage_engine.core import durable
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_tasks import BackgroundTasks
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import BrokerProgress, Drift, HoldMemory, HoldStatus, ShieldNeed, WatchLook
from storage_engine.model.lag import Unread
from storage_engine.model.plan import Cause, DependentFile, Plan, PlanRequest, Trigger, Urgency
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.simulation import CourseStart
from storage_engine.model.store import (
    Absence,
    Archivable,
    FileFacts,
    LogIdentity,
    Segment,
    SegmentContext,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)


class FenceWatch(Protocol):
    """Checks and repairs what a store's hold depends on, without a request to the broker or the journal."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return the directories of the files that the last look checked. A change there requires a look."""

    @property
    def last_look(self) -> WatchLook:
        """Return the result of the last look that saw everything that the hold depends on."""

    def watching(self) -> AbstractContextManager[Beating | None]:
        """Be the store's only watch until the block ends. Yield None if another process is the watch.

        :raises OSError: the store can't be written.
        """

    def silent(self) -> str:
        """Return why the store's watch doesn't look; "" if it looks, or if there is no watch."""

    def look(self, now_ms: int) -> tuple[Drift, ...]:
        """Repair changes to what the hold needs, and return the findings and repairs.

        :raises StorageEngineError: something can't be repaired; the error says why.
        :raises OSError: the store can't be read or written.
        """

    def left_over(self) -> tuple[Drift, ...]:
        """Return, only once, the findings and repairs of a look that raised an error afterwards."""


class Beating(Protocol):
    """Shows other processes that a watch is alive, and whether it has looked."""

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """Record that the watch is alive. Called after each look.

        :param look: the last look that saw everything.
        :param tends_shield: the watch reacts to each deleted file, so that no other process has to.
        :param tended_at_ms: when the watch last looked at the whole shield; 0 if it hasn't yet.
        :raises OSError: the store can't be written.
        """


@dataclass(frozen=True, slots=True)
class Watch:
    """The present causes of a cleanup. Only the clock and the disks decide. No segment was read.

    :param levels: levels of all the log's disks, then of the dependents' disk.
    :param deciding_percent: the highest of the levels that the broker's rules compare with its thresholds;
        None when all of them are unknown.
    :param ordinary_percent: above this level the broker cleans because of space; None if not known.
    :param next_window_ms: when the time of day is next a cause: now while it is one; None if never or
        unknown.
    :param known: False if the broker couldn't be asked (see ``notices``), so that the causes are unknown.
    """

    watched_at_ms: int
    triggers: tuple[Trigger, ...]
    notices: tuple[str, ...]
    levels: tuple[DiskUsage, ...]
    deciding_percent: int | None
    ordinary_percent: int | None
    next_window_ms: int | None
    known: bool = True


class PendingKind(StrEnum):
    DELAYED = "delayed"
    """A message in the queue of a delay level."""
    TIMER = "timer"
    """A message in the timer wheel, or on its way there. A message that cancels a timer counts as well."""
    HALF = "half"
    """A transaction that is neither committed nor rolled back."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending messages of one kind. Files that the broker has yet to update show too many, never too few.

    :param count: messages whose segments exist; None if unknown. Then any segment may have such messages.
    :param first_offset: the smallest physical offset among these messages; None if there are no messages, or
        if it is unknown.
    :param first_due_ms: when the first message is due; None if unknown, or the messages have no due time.
    :param last_due_ms: when the last message is due; None for the same reasons.
    :param lost: messages that the broker waits for, and whose segments are gone already.
    :param consequence: further losses if segments with its messages are deleted; "" for none.
    :param error: why the count is unknown; "" when it is known.
    :param log: the log that has the messages; None if any log of the store may have them.
    """

    kind: PendingKind
    count: int | None
    first_offset: int | None = None
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    lost: int = 0
    consequence: str = ""
    error: str = ""
    log: str | None = None


@dataclass(frozen=True, slots=True)
class StorePositions:
    """Offsets of the log up to which each step is done: ``flushed`` ≤ ``committed`` ≤ ``wrote``.

    :param wrote: bytes below this offset are at least in memory.
    :param committed: bytes below it are in the files, where readers see them.
    :param flushed: bytes below it are on disk; None if not known.
    :param dispatched: messages below it are in consume queues and index.
    :param checkpoint: the checkpoint file's values by name.
    """

    wrote: int
    committed: int
    flushed: int | None
    dispatched: int
    checkpoint: Mapping[str, int]


def positions_of(progress: BrokerProgress, checkpoint: Mapping[str, int]) -> StorePositions:
    """Return the positions that a running broker reports. The log ends where the committed bytes end."""
    behind = progress.flush_behind_bytes
    end = progress.max_offset
    return StorePositions(
        wrote=end + progress.commit_behind_bytes,
        committed=end,
        flushed=None if behind is None else max(0, end - behind),
        dispatched=max(0, end - (progress.dispatch_behind_bytes or 0)),
        checkpoint=checkpoint,
    )


@dataclass(frozen=True, slots=True)
class FlushedStore:
    """The positions before and after a requested flush."""

    before: StorePositions
    after: StorePositions


NO_HOLD: Final = HoldStatus(
    held=False,
    notices=("nothing is held: no broker runs, or nothing keeps this kind of broker from deleting",),
)
"""Value for a store whose broker is stopped, and for one without a hold."""


@dataclass(frozen=True, slots=True)
class UnheldSegments:
    """Segments that the broker's own rules delete by some moment once the store's hold has ended.

    :param unknown: clauses on further ranges that the broker may delete, whose segments are unknown.
    """

    segments: tuple[Segment, ...]
    unknown: tuple[str, ...] = ()


class StoreHold:
    """A hold keeps a running broker from deleting. Default: no hold; the broker's deletions are unknown."""

    __slots__ = ()

    def renew(self, now_ms: int) -> HoldStatus:
        """Begin or renew a hold that outlives this process, and report the drift found on it.

        :raises GateRefusedError: the store can't be held, for the named reason. Nothing was changed.
        """
        return NO_HOLD

    def hold_due(self, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int) -> HoldStatus:
        """Hold segments that no lake has and that the broker will delete soon. End the hold of segments that
        were archived after the last call.

        Called where the running broker deletes by its own rules (:meth:`Broker.cleanups`).

        :param proven: segments that a lake proves, with the state of the proven files.
        :param margin_ms: the hold of a segment begins this long before the broker would delete the segment.
        :return: ``due`` are segments that will be deleted within the margin and can't be held.
        :raises GateRefusedError: nothing can be held, for the named reason. Nothing was changed.
        """
        return NO_HOLD

    def status(self, now_ms: int) -> HoldStatus:
        """Return the result that :meth:`renew` would have, without a change."""
        return NO_HOLD

    def held_until_ms(self) -> int | None:
        """Return when the store's hold ends, by the copy of the hold in the store. None if there is no such
        copy. Any journal may have begun the hold.

        :raises StorageEngineError: the copy in the store can't be read.
        """
        return None

    def holds(self, log: str) -> bool:
        """Return whether any part of a log is remembered as held. Unknown counts as held.

        Called where the running broker deletes by its own rules (:meth:`Broker.cleanups`).
        """
        return True

    def unheld_segments(self, now_ms: int, until_ms: int) -> UnheldSegments:
        """Return the segments that the broker deletes by a moment if the hold ends now.

        The broker's rules of age, size and disk level decide, with the settings that the hold restores.

        :raises StorageEngineError: the store can't be looked at, or its broker can't be asked.
        """
        return UnheldSegments(
            (), ("its broker doesn't say which segments it deletes of a store that isn't held",)
        )

    def end(self, now_ms: int) -> HoldStatus:
        """End the hold: restore every file's time and every setting."""
        return NO_HOLD


class IdentifiedLogs(ABC):
    """The logs that a store is known to have, by identity. Without this part no logs are remembered."""

    __slots__ = ()

    @abstractmethod
    def read(self, snapshot: StoreSnapshot) -> Mapping[str, LogIdentity]:
        """Return the logs of a snapshot, by name."""

    @abstractmethod
    def absences(self, logs: Mapping[str, LogIdentity]) -> Mapping[str, Absence]:
        """Return why logs that were seen before are missing now."""

    def is_present(self, directory: Path) -> bool:
        """Return whether a directory of the store exists and isn't an empty mount point of a missing disk."""
        return directory.is_dir()

    def own_ends(self, segments: Sequence[Segment]) -> Mapping[SegmentId, int]:
        """Return the ends of sealed segments that are followed by a gap before the next segment."""
        return {}

    def contradiction(self, log: str, receipts: Sequence[Receipt]) -> str:
        """Return the contradiction between a log and the receipts of that name, or "". A contradiction shows
        that the receipts may be of another log with the same name and offsets.

        :param receipts: receipts of this log's name, of any offsets.
        :raises StorageEngineError: it is unknown whether there is a contradiction.
        """
        return ""


class StoreReplicas(ABC):
    """A store's logs compared with their replicas: by identity, and by bytes."""

    __slots__ = ()

    @abstractmethod
    def contexts(self, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
        """Return facts about segments from other sources than their files. Called before they are archived.

        :raises StorageEngineError: the facts of a log are unknown; the error names the log.
        """

    @abstractmethod
    def range_sha256(self, segments: Sequence[Segment], first: int, end: int) -> str | None:
        """Return the SHA-256, in hex, of a log's bytes at the offsets [first, end), whichever files contain
        them. None if the log lacks these bytes, or this broker's offsets can't be found in files.

        :param segments: of one log, oldest first.
        """


class StoreConsumers:
    """The store's consumers, and the messages that its broker still has to deliver. Default: unknown."""

    __slots__ = ()

    def pending(self, snapshot: StoreSnapshot) -> tuple[Pending, ...]:
        """Return messages that the broker has accepted and still has to deliver, commit or roll back. A kind
        that can't be read has no count, but an error.
        """
        return ()

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        """Return the messages below these offsets that consumers haven't read, rows with most messages first.

        :param new_min_offsets: for each log by name, the end of the deleted offsets. Other logs lose nothing.
        :param deleted: the broker has deleted these messages already, so that its queues may lack entries for
            some of them. The result's error tells of the missing entries, and its rows count the rest.
        :raises BadInputError: positions or queues can't be read.
        :raises StoreBusyError: files change while they are read.
        :raises BrokerError: a running broker can't be asked, and its files don't have the answer either.
        """
        return Unread(error="the broker doesn't say who consumes")

    def unread_by_log(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
    ) -> Mapping[str, Unread]:
        """Return the answer of :meth:`unread` for each log alone. By default :meth:`unread` is called for
        each log. A store of many logs overrides this, so that its consumers' positions are read only once.

        :raises StorageEngineError: as :meth:`unread`, if its error concerns all logs.
        """
        return {log: self.unread(snapshot, {log: offset}) for log, offset in new_min_offsets.items()}


class StoreCourse:
    """Future deletions by the broker's own rules, and the start of a simulation. Default: unknown."""

    __slots__ = ()

    def sealed_at_ms(self, snapshot: StoreSnapshot) -> Mapping[SegmentId, int]:
        """Return the last write time of sealed segments, by their content. Unknown times are left out."""
        return {}

    def deletes_at_ms(self, snapshot: StoreSnapshot, now_ms: int) -> Mapping[SegmentId, int | None]:
        """Return when the broker's rules may delete each sealed segment because of its age. No time is
        before ``now_ms``. Older segments of its log are assumed deleted by then. The time is None if age
        never permits the deletion. A segment is missing from the result if the time is unknown.
        """
        return {}

    def kept_ms(self) -> int | None:
        """Return the age, in ms, from which the settings in force let segments expire. None if not known.

        Called for kinds whose age setting a person may give beside the store's files
        (:attr:`SettingNames.of_age`).
        """
        return None

    def rule_config(self) -> Mapping[str, str]:
        """Return the broker's own settings as texts, for the ``rules`` of its kind. Nothing else may read
        these settings: secrets may be among them.
        """
        return {}

    def start(self, snapshot: StoreSnapshot) -> CourseStart | None:
        """Return the start of a simulation of this store. None if unknown, or it can't be simulated.

        The ingest is estimated from the segments' last write times. Samples of the store estimate it better.
        """
        return None

    def oldest_message_ms(self, snapshot: StoreSnapshot) -> int | None:
        """Return when the oldest message was stored, in milliseconds since the epoch. None if unknown."""
        return None


class StoreCauses(ABC):
    """Causes for a cleanup. They delete nothing: a plan has its own causes. A store without this part always
    has a cause: expired segments may be deleted at any time.
    """

    __slots__ = ()

    @abstractmethod
    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        """Return the present causes, and notices for a person."""

    @abstractmethod
    def watch(self, now_ms: int) -> Watch:
        """Return the present causes. Only the clock and the disks decide. No segment is read."""


ALWAYS: Final = Trigger(Cause.TIME_UP, Urgency.ORDINARY, "expired segments are deleted at any time")
"""The cause of a store whose broker deletes at any hour, and at any level of its disks."""


class StoreProcess:
    """The broker's process: which process has the store, and how far its writes are. Default: unknown."""

    __slots__ = ()

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...] | None:
        """Return the files and directories that a broker needs in a durable state when it starts after a
        cleanup. None means: the active segments, and the directories that the broker writes to.
        """
        return None

    def signs_of_a_run(self, directories: Collection[Path]) -> tuple[Path, ...]:
        """Return the files that show whether the broker has run since a deletion. They change, appear or
        vanish as soon as the broker starts.

        They are needed where a deletion can be undone only before the next start. By default it can be undone
        afterwards, too.

        :param directories: the directories that files are deleted from.
        """
        return ()

    def user(self) -> str:
        """Return the other process that has the store's lock, as a clause on the lock and its owner.

        :return: "" if the store's files show that no process has it. Only :meth:`BrokerStore.lock` is
            certain.
        """
        return ""

    def is_user_ours(self) -> bool:
        """Return whether the lock's owner is another of our runs, which will release it. False if unknown."""
        return False

    def running_pid(self) -> int | None:
        """The id of the broker's process, which maps the files. None if no broker runs on this host."""
        return None

    def progress(self, now_ms: int) -> BrokerProgress | None:
        """Return a running broker's progress: flush, dispatch, index, checkpoint. None if no broker runs."""
        return None

    def flush_now(self) -> FlushedStore | None:
        """Flush log, queues and checkpoint of a store that our own engine writes. By default None: a broker
        writes the store and flushes by itself, or is stopped.

        :raises StoreBusyError: another process has the store.
        :raises BrokerError: the process that writes it can't be asked.
        """
        return None

    def checkpoint(self) -> Mapping[str, int]:
        """The values of the broker's checkpoint by name; empty when it has none."""
        return {}


class StoreShield(ABC):
    """The disks for second names (hard links) of segments, and the running broker's rules for these disks."""

    __slots__ = ()

    @abstractmethod
    def need(self) -> ShieldNeed:
        """Return how large this broker's shield must be, and whether it is permitted. Measures the disks."""

    @abstractmethod
    def sealed_files(self) -> tuple[Segment, ...]:
        """Return the sealed segments that exist, even if others between them don't. Never used to delete.

        :raises StoreLayoutError: a symbolic link is among them.
        :raises BrokerError: a running broker can't be asked.
        :raises OSError: a segment can't be read, or vanished meanwhile.
        """

    def end_force(self) -> Drift | None:
        """Turn off the setting by which a running broker deletes segments of any age. Done only where we may
        change settings and the disk is in no emergency.

        :return: the finding and the change made; None if the setting may not be changed, or no broker runs.
        :raises BrokerError: the broker can't be asked, or doesn't accept the setting.
        """
        return None


class StoreDependents(ABC):
    """Files of a store that are of no use without their segments. Default: only segments are deleted."""

    __slots__ = ()

    @abstractmethod
    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        """Return the files that point only below these offsets, by the broker's own rule.

        :param min_offsets: each log's new first offset, by the log's name. Files that point into other logs
            are kept.
        """

    @property
    def unread(self) -> tuple[str, ...]:
        """Return why files were left out of the last :meth:`find`: their pointers can't be read.

        The store keeps these texts, so every ``dependents`` object of the same store returns them.
        """
        return ()

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        """Delete these files, in an order that is safe to interrupt, and flush their directories.

        A running broker deletes the files by itself. This method waits for the broker, but not for ever:
        files may remain.

        :param meanwhile: called now and then during a wait for a broker.
        :param remove: as for ``delete_segments``.
        """
        for path in (Path(file.facts.path) for file in files):
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                remove(path, directory)
                os.fsync(directory)
            finally:
                os.close(directory)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings that a broker package needs to open a store; see ``ManagedStore``."""

    root: str
    broker_conf: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    time_zone: str | None = None
    live: LiveBroker | None = None
    engine: bool = False


Remove = Callable[[Path, int], bool]
"""Removes a file from this descriptor's directory, which the caller flushes. False if it was gone already."""


def former_members(**parts: str) -> Mapping[str, str]:
    """Return the present name of each former member.

    :param parts: the members that are now in each part, by the part's name. ``former=new`` is a member with a
        new name; with ``former=`` the part itself has replaced the member.
    """
    moved = [(part, *word.partition("=")) for part, names in parts.items() for word in names.split()]
    return {old: f"{part}.{new or old}" if new or not sign else part for part, old, sign, new in moved}


FORMER_MEMBERS: Final = former_members(
    consumers="pending unread unread_by_log",
    course="course_start=start deletes_at_ms oldest_message_ms rule_config sealed_at_ms",
    dependents="delete_dependents=delete dependents=find unread_dependents=unread",
    hold="end_hold=end held_until_ms hold_due hold_status=status holds renew_hold=renew unheld_segments",
    identities="absences contradiction is_present log_identities=read own_ends tells_absences= "
    "tells_logs_apart=",
    archivable="keeps_out=is_all",
    causes="triggers watch",
    limit="archive_only=why check_manageable=may_archive",
    lock="check_deletable check_lock=check deleted max_delete_batch removal=deleted "
    "removes_files_later=deleted",
    process="checkpoint flush_now flush_paths progress running_pid signs_of_a_run user used_by=user "
    "is_used_by_us=is_user_ours",
    replicas="contexts has_replicas= range_sha256",
    shield="end_force sealed_files shield_need=need",
    tasks="background_tasks=look check_deleted_topics delete_left_over",
)
"""Members that stores had before version 0.2, with their present names."""


def refuse_former_members(package: object, former: Mapping[str, str]) -> None:
    """Make sure that a package defines no member by a former name: the engine would never call the member.

    :param package: a class or an object of the package.
    :param former: members' present names, by former name.
    :raises TypeError: the package defines a member by a former name.
    """
    for cls in package.__mro__ if isinstance(package, type) else (package, *type(package).__mro__):
        members = getattr(cls, "__dict__", {})
        for name in former.keys() & {*members, *members.get("__annotations__", ())}:
            # A member that has kept its name was a method, and is an object now.
            if former[name].partition(".")[0] != name or isfunction(members.get(name)):
                owner = cls if isinstance(cls, type) else type(cls)
                raise TypeError(f"{owner.__qualname__} defines {name}, which is {former[name]} since 0.2")


@dataclass(frozen=True, slots=True)
class LockedStore:
    """A store that no other process changes: locked, or held while its broker runs.

    :param notices: checks that could not be made when the store was locked.
    :param max_delete_batch: maximum number of segments for one call of ``delete_segments``; None: no limit.
    """

    notices: tuple[str, ...] = ()
    max_delete_batch: int | None = None

    def check(self) -> None:
        """Make sure that the lock or hold still keeps the broker from changing the store. Default: no check.

        :raises ChangedUnderUsError: the lock or hold no longer keeps the broker from changes.
        """

    def check_deletable(self, is_replicated: Callable[[], bool]) -> None:
        """Make sure that nothing outside the store, such as its cluster, forbids a deletion.

        :param is_replicated: whether a lake has receipts of another store with a log of the same identity.
        :raises GateRefusedError: a deletion is or may be forbidden.
        """

    def deleted(self, segments: Sequence[Segment]) -> frozenset[SegmentId] | None:
        """Return the given segments that count as deleted, for a broker that removes their files later. By
        default None: the segments whose files are gone count as deleted.

        :raises BrokerError: the broker can't be asked.
        """
        return None


@dataclass(frozen=True, slots=True)
class StoreLimit:
    """Actions that are never done with a store, although it can be inspected.

    :param why: why nothing of the store is deleted. Its plans keep everything, and every action that would
        change it raises an error.
    :param may_archive: the store's log can be archived nevertheless. False if this is only a part of a store;
        then ``why`` is the whole error message.
    """

    why: str
    may_archive: bool = True


class Contract(ABC):
    """Base of the classes that a package implements. A subclass for an older contract can't be defined."""

    __slots__ = ()
    _former: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_former_members(cls, cls._former)


class BrokerStore(Contract):
    """One store, with the broker's own settings and rules.

    The store is changed only by ``delete_segments``, ``dependents.delete``, ``tasks.delete_left_over`` and,
    beside a running broker, ``hold``. A part that only some stores have is an object of its own. A part is
    None if this store lacks it.
    """

    __slots__ = ()
    _former = FORMER_MEMBERS

    @property
    def hold(self) -> StoreHold | None:
        return None

    @property
    def identities(self) -> IdentifiedLogs | None:
        return None

    @property
    def consumers(self) -> StoreConsumers | None:
        return None

    @property
    def course(self) -> StoreCourse | None:
        return None

    @property
    def causes(self) -> StoreCauses | None:
        return None

    @property
    def process(self) -> StoreProcess | None:
        return None

    @property
    def shield(self) -> StoreShield | None:
        return None

    @property
    def dependents(self) -> StoreDependents | None:
        return None

    @property
    def replicas(self) -> StoreReplicas | None:
        return None

    @property
    def tasks(self) -> BackgroundTasks | None:
        return None

    def renewed(self, memory: HoldMemory) -> BrokerStore | None:
        """Return this store with the present settings of its files and its broker. Called before each step.
        By default None: the caller has to open the store again.

        :param memory: the remembered state of a hold beside a running broker.
        :raises BadInputError: the settings are unusable.
        :raises BrokerError: the running broker can't be asked.
        """
        return None

    def close(self) -> None:
        """Close connections to a running broker. The store may be used afterwards: it then connects again."""

    @property
    def is_live(self) -> bool:
        """Return whether the broker keeps running. By default it is stopped.

        A running broker deletes by its own rules if the store isn't held. It deletes queues after their
        segments by itself, manages its disk, and repairs what a kill left.
        """
        return False

    @property
    def limit(self) -> StoreLimit | None:
        """Return which actions are never done with this store. None if its files exclude no action."""
        return None

    @property
    @abstractmethod
    def data_paths(self) -> tuple[Path, ...]:
        """The directories that the broker writes to."""

    @abstractmethod
    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Read the store's present state.

        :raises StoreNotFoundError: there is no store.
        :raises StoreLayoutError: its files don't form one contiguous log.
        """

    def glance(self, now_ms: int) -> StoreSnapshot:
        """Return the state as :meth:`snapshot` does, from as few reads as possible. Never used to delete."""
        return self.snapshot(now_ms)

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        """Return the segments that may be archived now, and why others may not. Default: all sealed ones."""
        sealed = tuple(segment for log in snapshot.logs for segment in log.sealed)
        return Archivable(sealed, is_all=True)

    @abstractmethod
    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide for every segment whether it is deleted, with the reason. Pure."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[LockedStore]:
        """Lock the store, so that neither the broker nor any other process that respects the lock changes it.

        :raises StoreBusyError: another process has it.
        """

    @abstractmethod
    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        """Delete exactly these segments, the oldest of their logs, and their companions. Durable on return.

        Called while the store is locked or held. Safe to repeat with the remaining segments after a kill. A
        segment's own file is durably deleted before its companions. The engine removes remaining companions.

        :param segments: the first segments of each log, oldest first, as in the snapshot of this lock.
        :param meanwhile: called now and then during a wait for a broker.
        :param remove: removes a file. It isn't called where a running broker deletes by itself.
        :raises ChangedUnderUsError: a file changed a moment ago; it was not deleted. If the error's ``path``
            names that file, this call deleted the other files that are gone, and the caller repeats it for
            the remaining segments of other logs.
        :raises ReleasedTooMuchError: a running broker, or another program, deleted more than these.
        :raises BrokerError: a running broker didn't delete all segments; it may still do so at any time.
        """


def hold_of(store: BrokerStore) -> StoreHold:
    """Return a store's hold, or the default hold, which holds nothing."""
    return store.hold or StoreHold()


def consumers_of(store: BrokerStore) -> StoreConsumers:
    return store.consumers or StoreConsumers()


def course_of(store: BrokerStore) -> StoreCourse:
    return store.course or StoreCourse()


def watch_of(store: BrokerStore, now_ms: int) -> Watch:
    """Return a store's present causes of a cleanup. Only the clock and the disks decide."""
    if store.causes is not None:
        return store.causes.watch(now_ms)
    levels = store.snapshot(now_ms).disks
    percents = [disk.used_percent for disk in levels if disk.used_percent is not None]
    return Watch(now_ms, (ALWAYS,), (), levels, max(percents, default=None), None, None)


def check_manageable(store: BrokerStore) -> None:
    """Make sure that a store may be archived and get an identity.

    :raises BadInputError: ``store`` is only a part of a store. It can be inspected but not managed.
    """
    if (limit := store.limit) is not None and not limit.may_archive:
        raise BadInputError(limit.why)


def is_used_by_others(store: BrokerStore) -> bool:
    """Return whether the store's files show that a process other than our runs has its lock."""
    process = process_of(store)
    return bool(process.user()) and not process.is_user_ours()


def flush_paths(store: BrokerStore, snapshot: StoreSnapshot) -> tuple[Path, ...]:
    """Return the store's files and directories that its broker needs in a durable state when it starts."""
    if (paths := process_of(store).flush_paths(snapshot)) is not None:
        return paths
    active = (s for log in snapshot.logs for s in log.segments if s.state is SegmentState.ACTIVE)
    return (*(Path(file.path) for segment in active for file in segment.files), *store.data_paths)


def process_of(store: BrokerStore) -> StoreProcess:
    return store.process or StoreProcess()


def is_present(store: BrokerStore, directory: Path) -> bool:
    """Return whether a directory of a store exists and, if the kind can tell, isn't an empty mount point."""
    return directory.is_dir() if store.identities is None else store.identities.is_present(directory)


def contradiction(store: BrokerStore, log: str, receipts: Sequence[Receipt]) -> str:
    """Return how a log contradicts the receipts of its name. "" if it doesn't, or the kind can't know."""
    return "" if store.identities is None else store.identities.contradiction(log, receipts)


def contexts_of(store: BrokerStore, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
    """Return a store's facts about segments, from other sources than their files. Empty without replicas."""
    return {} if store.replicas is None else store.replicas.contexts(segments)
