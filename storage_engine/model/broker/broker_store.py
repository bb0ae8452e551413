"""One open store of a broker, as retention works with it: what a broker implements, with its promises."""

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
from storage_engine.model.hold import (
    BrokerProgress,
    Drift,
    HoldMemory,
    HoldStatus,
    ShieldNeed,
    WatchLook,
)
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
    """Looks at what the hold on a store rests on, and mends it; asks neither broker nor journal."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """Return where files lie whose change is a reason to look at once, as of the last look."""

    @property
    def last_look(self) -> WatchLook:
        """Return the result of the last look that saw everything that the hold depends on."""

    def watching(self) -> AbstractContextManager[Beating | None]:
        """Be the store's only watch until the block ends; None: another process is.

        :raises OSError: the store can't be written.
        """

    def silent(self) -> str:
        """Return the process that has the store's watch and doesn't look; empty: none has, or it does."""

    def look(self, now_ms: int) -> tuple[Drift, ...]:
        """Mend changes to what the hold left.

        :return: findings, and the mends.
        :raises StorageEngineError: something can't be mended; says why.
        :raises OSError: the store can't be read or written.
        """

    def left_over(self) -> tuple[Drift, ...]:
        """Return, once, what a look has found and done before it raised."""


class Beating(Protocol):
    """Shows others that a watch is alive, and whether it has looked."""

    def beat(self, look: WatchLook, *, tends_shield: bool = False, tended_at_ms: int = 0) -> None:
        """Record that the watch is alive; called after each look.

        :param look: the last that saw all.
        :param tends_shield: the watch acts on what is deleted, and can, so that nobody else has to.
        :param tended_at_ms: when it last looked at all of the shield; 0: it hasn't yet.
        :raises OSError: the store can't be written.
        """


@dataclass(frozen=True, slots=True)
class Watch:
    """The causes that hold now, by clock and disks alone; no segment was looked at.

    :param levels: every disk of the log, then the dependents' disk.
    :param deciding_percent: the highest of the levels that the broker's rules compare with its
        thresholds; None when all of them are unknown.
    :param ordinary_percent: above this level the broker cleans because of space; None: not known.
    :param next_window_ms: when the time of day is next a cause; the present while it is; None: never.
    :param known: False: the broker couldn't be asked, as a notice says; causes then neither hold nor have
        ended.
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
    """Waits in the queue of a delay level."""
    TIMER = "timer"
    """Waits in the timer wheel, or to get into it; what cancels another timer is one as well."""
    HALF = "half"
    """A transaction that is neither committed nor rolled back."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending messages of one kind. Too many where the broker's files are behind it, never too few.

    :param count: messages that are still there; None: unknown, and then any segment may hold some.
    :param first_offset: the smallest physical offset among them; None: there is none, or unknown.
    :param first_due_ms: when the first one is due; None: unknown, or nothing says when.
    :param last_due_ms: when the last one is due; None likewise.
    :param lost: messages that the broker waits for, and whose segments are gone already.
    :param consequence: further losses if segments with its messages are deleted; "" for none.
    :param error: why it is unknown; "" when it is known.
    :param log: in which it lies; None: it may lie in any log of the store.
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
    """Offsets of the log up to which a step is done, each at most the one before it but for ``dispatched``.

    :param wrote: in memory at least.
    :param committed: in the files, where readers see it.
    :param flushed: on disk; None: not known.
    :param dispatched: in consume queues and index.
    :param checkpoint: values of its file by name.
    """

    wrote: int
    committed: int
    flushed: int | None
    dispatched: int
    checkpoint: Mapping[str, int]


def positions_of(progress: BrokerProgress, checkpoint: Mapping[str, int]) -> StorePositions:
    """Return the positions that a running broker says; it counts what is committed as its log."""
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
    """The positions before and after a flush that was asked for."""

    before: StorePositions
    after: StorePositions


NO_HOLD: Final = HoldStatus(
    held=False,
    notices=("nothing is held: no broker runs, or nothing keeps this kind of broker from deleting",),
)
"""Value for a store whose broker is stopped, and for one without a hold."""


@dataclass(frozen=True, slots=True)
class UnheldSegments:
    """Segments that the broker's own rules take by some moment, of a store that is held no more.

    :param unknown: further ranges that may be deleted, and are unknown, a clause each.
    """

    segments: tuple[Segment, ...]
    unknown: tuple[str, ...] = ()


class StoreHold:
    """A hold: what keeps a running broker from deleting. Without one a store isn't held, and what its broker
    deletes is unknown, as this class itself answers.
    """

    __slots__ = ()

    def renew(self, now_ms: int) -> HoldStatus:
        """Begin or renew a hold that outlives this process, and report the drift found on it.

        :raises GateRefusedError: the store can't be held; says why, and the remedy. Nothing was changed.
        """
        return NO_HOLD

    def hold_due(self, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int) -> HoldStatus:
        """Hold segments that will be deleted soon and no lake has, and undo the hold of those that are
        archived by now.

        Asked where the running broker is left to its own rules (:meth:`Broker.cleanups`).

        :param proven: segments that a lake is known to prove, with the files that it does so for.
        :param margin_ms: how long before its broker deletes it something is held.
        :return: ``due`` are segments that will be deleted within the margin and can't be held.
        :raises GateRefusedError: nothing can be held; says why, and the remedy. Nothing was changed.
        """
        return NO_HOLD

    def status(self, now_ms: int) -> HoldStatus:
        """Return the result that :meth:`renew` would have, without a change."""
        return NO_HOLD

    def held_until_ms(self) -> int | None:
        """Return until when the store is held by what lies with it, whoever's journal knows of that.

        :return: None: nothing that lies with it says that it is held.
        :raises StorageEngineError: its copy in the store can't be read.
        """
        return None

    def holds(self, log: str) -> bool:
        """Return whether something of a log is remembered as held; unknown counts as held.

        Asked where the running broker is left to its own rules (:meth:`Broker.cleanups`).
        """
        return True

    def unheld_segments(self, now_ms: int, until_ms: int) -> UnheldSegments:
        """Return the segments that the broker's rules delete by a moment if the hold ends now: by age, size
        and disk level.

        Decided by the settings as they are once they are put back.

        :raises StorageEngineError: the store can't be looked at, or its broker can't be asked.
        :raises OSError: a file can't be read.
        """
        return UnheldSegments((), ("its broker doesn't tell what it deletes of a store that isn't held",))

    def end(self, now_ms: int) -> HoldStatus:
        """End the hold: put every file's time and every setting back as they were."""
        return NO_HOLD


class IdentifiedLogs(ABC):
    """The logs that a store is known to have, by identity, under whatever names. Without it nothing is
    remembered of logs, and none is told from another one of its name.
    """

    __slots__ = ()

    @abstractmethod
    def read(self, snapshot: StoreSnapshot) -> Mapping[str, LogIdentity]:
        """Return the logs of a snapshot, by name.

        :raises OSError: a file can't be read.
        """

    @abstractmethod
    def absences(self, logs: Mapping[str, LogIdentity]) -> Mapping[str, Absence]:
        """Say of logs that were seen before, and that aren't here, why that is.

        :raises OSError: a file can't be read.
        """

    def is_present(self, directory: Path) -> bool:
        """Return whether one of the store's directories is there, and no mount point whose disk is gone."""
        return directory.is_dir()

    def own_ends(self, segments: Sequence[Segment]) -> Mapping[SegmentId, int]:
        """Return the ends of sealed segments behind which something is missing before the next one.

        :raises OSError: a file can't be read.
        """
        return {}

    def contradiction(self, log: str, receipts: Sequence[Receipt]) -> str:
        """Return the contradiction between a log and the receipts of that name, though name and offsets may
        be the same; "": there is none.

        :param receipts: of this log, of any of its offsets.
        :raises StorageEngineError: it can't be told.
        :raises OSError: a file can't be read.
        """
        return ""


class StoreReplicas(ABC):
    """A store's logs compared with their replicas: by identity, and by bytes."""

    __slots__ = ()

    @abstractmethod
    def contexts(self, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
        """Return facts about segments that their files don't have; called with segments that are about to be
        archived.

        :raises StorageEngineError: it can't be told; says of which log.
        :raises OSError: a file can't be read.
        """

    @abstractmethod
    def range_sha256(self, segments: Sequence[Segment], first: int, end: int) -> str | None:
        """Return the SHA-256, in hex, of a log's bytes at the offsets [first, end), whatever files have them.

        None: there are no such bytes, or offsets can't be found in files.

        :param segments: of one log, oldest first.
        :raises OSError: a file can't be read.
        """


class StoreConsumers:
    """The store's consumers, and the messages that its broker still has to deliver. Without it what consumers
    have not read is unknown, as this class itself answers.
    """

    __slots__ = ()

    def pending(self, snapshot: StoreSnapshot) -> tuple[Pending, ...]:
        """Return messages that the broker has taken and still has to deliver or to decide; those that can't
        be read are unknown.
        """
        return ()

    def unread(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], *, deleted: bool = False
    ) -> Unread:
        """Return the messages below these offsets that consumers have not read; the most messages first.

        :param new_min_offsets: by the name of the log; of other logs nothing is deleted.
        :param deleted: the broker has deleted them already, so that its queues may lack entries of them;
            the error names whose, and the rows count the others.
        :raises BadInputError: positions or queues that can't be read.
        :raises StoreBusyError: files change while they are read.
        :raises BrokerError: a running broker can't be asked, and its files don't tell either.
        """
        return Unread(error="the broker doesn't say who consumes")

    def unread_by_log(
        self, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
    ) -> Mapping[str, Unread]:
        """Return the answer of :meth:`unread` for each log alone.

        By default it is asked log by log; a store of many logs takes its consumers' positions once.

        :raises StorageEngineError: as :meth:`unread`, where that is so for all logs.
        """
        return {log: self.unread(snapshot, {log: offset}) for log, offset in new_min_offsets.items()}


class StoreCourse:
    """Deletions to come, by the broker's own rules, and the start of a simulation. Without it that isn't
    known, as this class itself answers.
    """

    __slots__ = ()

    def sealed_at_ms(self, snapshot: StoreSnapshot) -> Mapping[SegmentId, int]:
        """Return when sealed segments were written to last, by what they hold themselves; only where that is
        cheap.

        :raises OSError: a file can't be read.
        """
        return {}

    def deletes_at_ms(self, snapshot: StoreSnapshot, now_ms: int) -> Mapping[SegmentId, int | None]:
        """Return when the broker's rules may delete each sealed segment for its age, from now on.

        Older ones of its log are taken for gone by then. None: never; a segment that is left out: not known.
        """
        return {}

    def kept_ms(self) -> int | None:
        """Return from which age on the settings in force let segments expire, in ms; None: not known.

        Asked of kinds for which a person may give such a setting beside the store's files
        (:attr:`SettingNames.of_age`).
        """
        return None

    def rule_config(self) -> Mapping[str, str]:
        """Return the broker's own settings as texts, for the ``rules`` of its kind; only they may read them.

        They may have secrets among them.
        """
        return {}

    def start(self, snapshot: StoreSnapshot) -> CourseStart | None:
        """Return the start of a simulation of this store; None: it is unknown, or the store can't be
        simulated.

        Its ingest is as the segments' last writes tell it; who has samples of the store knows better.

        :raises OSError: a file can't be read.
        """
        return None

    def oldest_message_ms(self, snapshot: StoreSnapshot) -> int | None:
        """Return when the oldest message was stored, in milliseconds since the epoch; None: it can't be told.

        :raises OSError: a file can't be read.
        """
        return None


class StoreCauses(ABC):
    """Causes for a cleanup. Nothing is deleted by it: a plan has causes of its own. Without it a cause always
    holds: what has expired goes at any time.
    """

    __slots__ = ()

    @abstractmethod
    def triggers(
        self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest
    ) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
        """Return the causes that hold now, and notices for a person."""

    @abstractmethod
    def watch(self, now_ms: int) -> Watch:
        """Return the causes that hold now by clock and disks alone; reads no segment."""


ALWAYS: Final = Trigger(Cause.TIME_UP, Urgency.ORDINARY, "what has expired goes at any time")
"""The cause of a store whose broker deletes at any hour, and at any level of its disks."""


class StoreProcess:
    """Tells of the broker's process: which one has the store, and how far it is with what it writes.

    This class itself answers as where none of that is known.
    """

    __slots__ = ()

    def flush_paths(self, snapshot: StoreSnapshot) -> tuple[Path, ...] | None:
        """Return the files and directories whose state matters to a start of the broker after a cleanup.

        None: the active segments, and where the broker writes.
        """
        return None

    def signs_of_a_run(self, directories: Collection[Path]) -> tuple[Path, ...]:
        """Return the files by which it shows that the broker has run, for an undo that fits only before that.

        They change, come or go as soon as it starts. (), as by default: an undo fits afterwards, too.

        :param directories: those that files are deleted from.
        :raises OSError: a directory can't be read.
        """
        return ()

    def user(self) -> str:
        """Return the other process that has the store's lock, as a clause on the lock and its owner.

        :return: "": none has, by its files; only :meth:`BrokerStore.lock` tells for certain.
        :raises OSError: a file can't be read.
        """
        return ""

    def is_user_ours(self) -> bool:
        """Return whether the lock's owner is another of our runs, which gives it up by itself.

        :return: False: none, or unknown.
        :raises OSError: a file can't be read.
        """
        return False

    def running_pid(self) -> int | None:
        """The process of the running broker, which maps the store's files; None: none runs, or not here."""
        return None

    def progress(self, now_ms: int) -> BrokerProgress | None:
        """Return how far a running broker is with flush, dispatch, index and checkpoint; None: none runs."""
        return None

    def flush_now(self) -> FlushedStore | None:
        """Take log, queues and checkpoint of a store of our own engine to disk.

        None, as by default: a broker writes it, which does so by itself, or is stopped.

        :raises StoreBusyError: another process has the store.
        :raises BrokerError: the process that writes it can't be asked.
        """
        return None

    def checkpoint(self) -> Mapping[str, int]:
        """The values of the broker's checkpoint by name; empty when it has none."""
        return {}


class StoreShield(ABC):
    """Disks that second names of the store's segments need, and how a running broker treats them."""

    __slots__ = ()

    @abstractmethod
    def need(self) -> ShieldNeed:
        """Return how large a shield has to be beside this broker, and whether there may be one; measures
        disks.
        """

    @abstractmethod
    def sealed_files(self) -> tuple[Segment, ...]:
        """Return the sealed segments that are there, whatever is missing between them. Never to delete by.

        :raises StoreLayoutError: a symbolic link is among them.
        :raises BrokerError: a running broker can't be asked.
        :raises OSError: one can't be read, or vanished in the middle.
        """

    def end_force(self) -> Drift | None:
        """Set back what lets a running broker delete whatever its age, where we may and it is no emergency.

        :return: the finding and the change made; None: it may not be changed, or no broker runs.
        :raises BrokerError: the broker can't be asked, or doesn't take the setting.
        """
        return None


class StoreDependents(ABC):
    """Files of a store that are of no use without their segments. Without it nothing goes but segments."""

    __slots__ = ()

    @abstractmethod
    def find(self, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
        """The files that point only below these offsets, by the broker's own rule.

        :param min_offsets: by the name of the log; files that point into other logs stay.
        """

    @property
    def unread(self) -> tuple[str, ...]:
        """Return why files were left out of the last :meth:`find`: where they point can't be read.

        Asked of the object that the store hands on by then: what it says is kept by the store.
        """
        return ()

    def delete(
        self,
        files: Sequence[DependentFile],
        meanwhile: Callable[[], object],
        remove: Remove = durable.unlink_in,
    ) -> None:
        """Delete them, in an order that is safe to be cut short; their directories are flushed.

        A running broker does it by itself: then this waits for it, for a bounded time. Some may stay.

        :param meanwhile: called now and then where it waits for a broker.
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
"""Removes a file from the directory of this descriptor, which the caller then flushes; False: it is gone."""


def former_members(**parts: str) -> Mapping[str, str]:
    """Return the present name of each former member.

    :param parts: by a part's name the members that are in it now, each with ``=`` and its new name if that is
        another one; without a name behind it the part itself tells.
    """
    moved = [(part, *one.partition("=")) for part, names in parts.items() for one in names.split()]
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
"""Members of stores before version 0.2, and where each is now."""


def refuse_former_members(package: object, former: Mapping[str, str]) -> None:
    """Make sure that a package isn't written for a contract that would leave a part of it unasked.

    :param package: a class of it, or an object.
    :param former: by name of a member, its present name.
    :raises TypeError: it defines one.
    """
    for one in package.__mro__ if isinstance(package, type) else (package, *type(package).__mro__):
        own = getattr(one, "__dict__", {})
        for name in former.keys() & {*own, *own.get("__annotations__", ())}:
            # What has kept its name was a method, and is an object.
            if former[name].partition(".")[0] != name or isfunction(own.get(name)):
                of = one if isinstance(one, type) else type(one)
                raise TypeError(f"{of.__qualname__} defines {name}, which is {former[name]} since 0.2")


@dataclass(frozen=True, slots=True)
class LockedStore:
    """A store that no other process changes, locked or held beside its running broker, and what may be
    deleted.

    :param notices: checks that could not be made while it was taken.
    :param max_delete_batch: how many segments one ``delete_segments`` takes; None: any number.
    """

    notices: tuple[str, ...] = ()
    max_delete_batch: int | None = None

    def check(self) -> None:
        """Make sure that what was taken keeps the broker away still. By default it does.

        :raises ChangedUnderUsError: it doesn't.
        """

    def check_deletable(self, is_replicated: Callable[[], bool]) -> None:
        """Make sure that nothing beyond the store forbids a deletion. By default nothing does.

        :param is_replicated: whether a lake has receipts of another store with a log of the same identity.
        :raises GateRefusedError: something does, or can't be asked.
        """

    def deleted(self, segments: Sequence[Segment]) -> frozenset[SegmentId] | None:
        """Return the segments among these that are deleted, if the broker removes their files later.

        None, as by default: those whose files are gone.

        :raises BrokerError: the broker can't be asked.
        """
        return None


@dataclass(frozen=True, slots=True)
class StoreLimit:
    """Actions that are never done with a store, although it can be looked at.

    :param why: nothing of it is deleted. Its plans keep everything, and whatever would change it raises.
    :param may_archive: its log can be archived all the same; else it is a part of a store, and ``why`` is the
        text for a person.
    """

    why: str
    may_archive: bool = True


class Contract(ABC):
    """The parts that a package implements. A class that is written for an older contract can't be defined."""

    __slots__ = ()
    _former: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_former_members(cls, cls._former)


class BrokerStore(Contract):
    """One store, with the broker's own settings and rules.

    Only ``delete_segments``, ``dependents.delete``, ``tasks.delete_left_over`` and, beside a running broker,
    ``hold`` change it. What only some stores have is an object of its own; None: this store has none.
    """

    __slots__ = ()
    _former = FORMER_MEMBERS

    @property
    def hold(self) -> StoreHold | None:
        """Return the part that keeps its running broker from deleting."""
        return None

    @property
    def identities(self) -> IdentifiedLogs | None:
        """Return the logs that the store is known to have."""
        return None

    @property
    def consumers(self) -> StoreConsumers | None:
        """Return its consumers."""
        return None

    @property
    def course(self) -> StoreCourse | None:
        """Return the part that tells what its broker's rules delete, and when."""
        return None

    @property
    def causes(self) -> StoreCauses | None:
        """Return why a cleanup is due."""
        return None

    @property
    def process(self) -> StoreProcess | None:
        """Return the description of its broker's process."""
        return None

    @property
    def shield(self) -> StoreShield | None:
        """Return the disks that the second names of its segments are measured by."""
        return None

    @property
    def dependents(self) -> StoreDependents | None:
        """Return the files that are of no use without their segments."""
        return None

    @property
    def replicas(self) -> StoreReplicas | None:
        """Return the part that compares its logs with their replicas."""
        return None

    @property
    def tasks(self) -> BackgroundTasks | None:
        """Return the broker's background tasks."""
        return None

    def renewed(self, memory: HoldMemory) -> BrokerStore | None:
        """Return the store by its settings and its broker as they are by now; asked before each step.

        None, as by default: it has to be opened again for that.

        :param memory: the remembered state of a hold beside a running broker.
        :raises BadInputError: settings that can't be worked with.
        :raises BrokerError: the running broker can't be asked.
        """
        return None

    def close(self) -> None:
        """End connections to a running broker; the store may be used after it, which connects again."""

    @property
    def is_live(self) -> bool:
        """Return whether the broker runs on: it deletes by its own rules, unless the store is held.

        Its queues go after its segments without being asked, its disk is its own, and what a kill left is its
        own to put right. By default it is stopped.
        """
        return False

    @property
    def limit(self) -> StoreLimit | None:
        """Return the actions that are never done with it, though it can be looked at; None: there are none,
        by its files.
        """
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
        """Return the store's present state for readers only, from as few reads as possible.

        Never to delete by. The errors are those of :meth:`snapshot`.
        """
        return self.snapshot(now_ms)

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        """Return the segments that may be archived by now, and the reasons why others may not. By default all
        sealed may.

        :raises OSError: a file can't be read.
        """
        sealed = tuple(segment for log in snapshot.logs for segment in log.sealed)
        return Archivable(sealed, is_all=True)

    @abstractmethod
    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide, for every segment, whether it goes and why. Pure."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[LockedStore]:
        """Keep the broker, and everybody else who asks, from changing the store.

        :raises StoreBusyError: another process has it.
        """

    @abstractmethod
    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        """Delete the oldest segments of logs with their companions, exactly these; durable when it returns.

        Called while the store is held. Safe to repeat with what is left of them after a kill. A segment's own
        file goes durably before its companions: what a kill leaves of these the engine removes.

        :param segments: the first ones of each log, oldest first, as the snapshot of this hold had them.
        :param meanwhile: called now and then where it waits for a broker.
        :param remove: the function that removes a file; a running broker deletes by itself.
        :raises ChangedUnderUsError: a file isn't as it was a moment ago; it was not deleted. Where its
            ``path`` names that file, other files that are gone were deleted by this call, and the rest of
            other logs is asked for again.
        :raises ReleasedTooMuchError: a running broker, or somebody beside it, deleted more.
        :raises BrokerError: a running broker didn't delete all of them; they may be deleted any time.
        """


def hold_of(store: BrokerStore) -> StoreHold:
    """Return a store's hold, or what stands for none."""
    return store.hold or StoreHold()


def consumers_of(store: BrokerStore) -> StoreConsumers:
    """Return a store's consumers, or the value for a kind that has none."""
    return store.consumers or StoreConsumers()


def course_of(store: BrokerStore) -> StoreCourse:
    """Return the forecast of a store's deletions, or the value for a kind that has none."""
    return store.course or StoreCourse()


def watch_of(store: BrokerStore, now_ms: int) -> Watch:
    """Return the causes that hold for a store by clock and disks alone."""
    if store.causes is not None:
        return store.causes.watch(now_ms)
    levels = store.snapshot(now_ms).disks
    known = [disk.used_percent for disk in levels if disk.used_percent is not None]
    return Watch(now_ms, (ALWAYS,), (), levels, max(known, default=None), None, None)


def check_manageable(store: BrokerStore) -> None:
    """Make sure that a store may be archived and get an identity.

    :raises BadInputError: it is a part of a store, which is only looked at.
    """
    if (limit := store.limit) is not None and not limit.may_archive:
        raise BadInputError(limit.why)


def is_used_by_others(store: BrokerStore) -> bool:
    """Return whether a process other than our runs has a store's lock, by its files."""
    process = process_of(store)
    return bool(process.user()) and not process.is_user_ours()


def flush_paths(store: BrokerStore, snapshot: StoreSnapshot) -> tuple[Path, ...]:
    """Return a store's files and directories whose state matters to a start of its broker."""
    if (paths := process_of(store).flush_paths(snapshot)) is not None:
        return paths
    active = (s for log in snapshot.logs for s in log.segments if s.state is SegmentState.ACTIVE)
    return (*(Path(file.path) for segment in active for file in segment.files), *store.data_paths)


def process_of(store: BrokerStore) -> StoreProcess:
    """Return the description of a store's broker process, or the value for a kind that has none."""
    return store.process or StoreProcess()


def is_present(store: BrokerStore, directory: Path) -> bool:
    """Return whether one of a store's directories is still the same, as far as the store can tell."""
    return directory.is_dir() if store.identities is None else store.identities.is_present(directory)


def contradiction(store: BrokerStore, log: str, receipts: Sequence[Receipt]) -> str:
    """Return the contradiction between a log and the receipts of that name; "": none, or it can't be told."""
    return "" if store.identities is None else store.identities.contradiction(log, receipts)


def contexts_of(store: BrokerStore, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
    """Return a store's facts about segments that their files don't have."""
    return {} if store.replicas is None else store.replicas.contexts(segments)
