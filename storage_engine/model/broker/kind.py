"""The contract of a broker: the engine uses one kind of broker only through the classes here.

A package offers its broker as an entry point of the group ``storage_engine.brokers``; the entry point has the
broker's name. The import has to be cheap: NumPy, Arrow and clients are imported at their first use.

The contract includes consumers' positions, from which lag is computed on Spark executors or in this process.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    Contract,
    FenceWatch,
    StoreSettings,
    former_members,
)
from storage_engine.model.broker.broker_words import Aside, BrokerWords
from storage_engine.model.lag import LagSource, Unread
from storage_engine.model.report.diagnosis import BrokerDiagnosis
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_engine.model.broker.broker_store import Watch
    from storage_engine.model.broker.codec import RestoredConfig, SegmentCodec
    from storage_engine.model.broker.live import LiveBroker, RunningBroker
    from storage_engine.model.hold import HoldMemory
    from storage_engine.model.plan import Release
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.model.report.facts import FactsScope, StoreFacts
    from storage_engine.model.report.inspection import Inspection, KeyLookup, StoreRecovery
    from storage_engine.model.simulation import BrokerRules


@dataclass(frozen=True, slots=True)
class RowTraits:
    """Facts about segments' rows that are known before the codec is loaded.

    :param table: name of the lakes' table that has the rows; never changes.
    :param task_modules: modules of the broker's package that a Spark task needs, loaded before workers fork.
    :param offsets_count_bytes: offsets count bytes, as positions do, so that sizes follow from offsets.
    :param sets_times: the broker itself writes a message's store time. Otherwise producers may write it.
    """

    table: str = "messages"
    task_modules: tuple[str, ...] = ()
    offsets_count_bytes: bool = True
    sets_times: bool = False


class BrokerEngine(ABC):
    """A package's own engine, which writes stores in place of the broker."""

    @abstractmethod
    def recover(
        self, settings: StoreSettings, *, dry_run: bool, cut_messages: bool, whole_index: bool
    ) -> StoreRecovery:
        """Recover a store whose broker did not stop cleanly, as the broker itself would at its start.

        :param cut_messages: recover even if whole messages are lost.
        :param whole_index: rebuild an index of keys even if much of the log has to be read for it.
        :raises BadInputError: a recovery isn't possible without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: whole messages would be lost.
        """

    @abstractmethod
    def rebuild_queues(self, settings: StoreSettings) -> StoreRecovery:
        """Rebuild the queues and indexes of a store from its log.

        :raises BadInputError: a rebuild isn't possible without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: the log is damaged; nothing was changed.
        """

    @abstractmethod
    def write_sample(self, request: SampleRequest) -> SampleStore:
        """Write a sample store, as a broker leaves it, for trials.

        :raises BadInputError: this isn't possible without the broker, or not in the requested directory.
        """

    @abstractmethod
    def serve(
        self,
        settings: StoreSettings,
        topic: str | None,
        lines: Iterable[bytes],
        ends: threading.Event,
        release: Release | None,
    ) -> None:
        """Write a store in place of a broker, and serve clients, until asked to stop.

        :param topic: each input line becomes a message of this topic; None if no input is read.
        :param release: called to delete, whenever the broker's rules permit deletions; None if nothing is
            deleted.
        :raises BadInputError: this package's engine serves no clients.
        :raises StoreBusyError: another process has the store.
        """


class RunningKind(ABC):
    """Questions to a running broker, and the hold on its store.

    :cvar client_connection: type of Airflow connections whose extra has the settings of this broker's client.
        "" if connections have only the broker's access key and secret key.
    """

    client_connection: ClassVar[str] = ""

    @abstractmethod
    def ask(self, live: LiveBroker) -> RunningBroker:
        """Ask a broker for its description of itself.

        :raises BrokerError: the broker can't be asked.
        """

    def watch_fence(self, settings: StoreSettings) -> FenceWatch | None:
        """Return a watch of the files that a hold needs; None if holds need no watch.

        The store need not exist yet.
        """
        return None

    def watch_store(self, settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch | None:
        """Return the causes of a cleanup as ``StoreCauses.watch`` does, on a host that reaches the store's
        running broker but not its files.

        None if the store itself has to be opened. If the broker can't be asked, the watch isn't ``known``.
        """
        return None

    def open_to_make_room(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore | None:
        """Open the store of a stopped broker whose disk is full, to delete data that cluster replicas have.

        None if this kind has no replicas that could be asked.

        :param settings: address and settings of the cluster, if one runs; the store's own broker is stopped.
        :param memory: as of :meth:`Broker.open_store`.
        :raises StoreNotFoundError: a directory of the store is missing.
        """
        return None


class Inspecting(ABC):
    """Descriptions of a store for a person, beyond its logs, segments and disks."""

    @abstractmethod
    def inspect(
        self,
        settings: StoreSettings,
        now_ms: int,
        *,
        messages: bool,
        queues: bool,
        snapshot: StoreSnapshot | None = None,
    ) -> Inspection:
        """Describe a store for a person.

        :param messages: also read every segment.
        :param queues: also list the queues by which consumers find messages.
        :param snapshot: the snapshot of a running broker's store; None if a new one is to be taken.
        """

    def diagnose(self, settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
        """Return findings that only this kind of broker can make on a store, even if the store can't be
        opened. Reads only. By default there are no findings.

        :param memory: a journal's memory of a hold; None if no journal was named.
        :raises StoreNotFoundError: there is no such store.
        :raises BadInputError: settings given in addition to the broker's own are wrong.
        :raises BrokerError: the settings say that the store's broker runs, but it can't be asked.
        """
        return BrokerDiagnosis()

    def look_up(
        self, settings: StoreSettings, topic: str, key: str, max_count: int | None
    ) -> KeyLookup | None:
        """Find messages by a key in the broker's own index, and read them. None if it has no such index."""
        return None

    def unindexed(self, settings: StoreSettings) -> tuple[tuple[int, int | None], ...]:
        """Return the ranges of physical offsets whose messages may be missing from the broker's index. An end
        of None means up to the log's end.

        :raises BadInputError: there is no log.
        """
        return ()


class Topics:
    """Facts that a kind of broker knows about topics by their names. By default it knows none."""

    def is_system(self, topic: str) -> bool:
        """Return whether a topic is the broker's own, or unknown. Wildcards don't match such topics."""
        return True

    @property
    def are_logs(self) -> bool:
        """Return whether each log has one topic. Otherwise one log has messages of many topics."""
        return type(self).of_log is not Topics.of_log

    def of_log(self, log: str) -> str | None:
        """Return the only topic of a log's messages. None if the log may have several topics."""
        return None


class ReceiptRules:
    """Rules that say when a receipt also proves other files. By default: only files with the same bytes."""

    def continues(self, left: Receipt, right: Receipt) -> bool:
        """Return whether the segment of ``right`` continues that of ``left``, which another replica archived.

        Only a kind whose replicas share a log's identity has to implement this.

        :param right: a receipt of the same log. It begins at the offset at which ``left`` ends.
        """
        return False

    def same_companion(self, name: str, archived: bytes, found: bytes) -> bool:
        """Return whether two versions of a segment's companion file have the same content.

        By default only equal bytes count as the same. Some brokers write such a file again at recovery,
        although the segment is unchanged.

        :param name: the file's name.
        """
        return archived == found

    def drops_companion(self, name: str) -> bool:
        """Return whether the broker itself may remove this companion file of a kept segment. Default: no."""
        return False


class SettingNames:
    """Names of a kind's own settings, as far as they are known."""

    @property
    def known(self) -> frozenset[str] | None:
        """Names of the kind's settings that the engine uses, to check typed names. None: any is accepted."""
        return None

    @property
    def of_age(self) -> frozenset[str] | None:
        """Names of the kind's settings that decide how long segments are kept. None if they are unknown: then
        any setting may be one. Empty if a person can't give such settings, because only a store's own files
        have them.
        """
        return None


class Places(ABC):
    """Places of stores' data, derived only from the files on a disk."""

    @abstractmethod
    def store_around(self, path: Path) -> Path | None:
        """Return the root of the store that has ``path`` or is ``path``. None if there is no such store.

        ``path`` itself need not exist: the existing files around it decide.
        """

    def stamped_directories(self, root: Path) -> tuple[Path, ...]:
        """Return the directories with a copy of a store's stamp as a plain file. () if only the root has one.

        Called for a store whose root is a file.

        :raises BadInputError: the file can't be read.
        """
        return ()

    def default_name(self, root: Path) -> str:
        """Return a store's default name. The name never depends on facts that only a running broker knows.

        :param root: the absolute path, as a person gave it.
        """
        return root.name

    def segment_path(self, log: str, base_offset: int) -> str:
        """Return a segment's path relative to its store's root, with ``/`` between names."""
        return f"{log}/{base_offset:020d}"


class Cleanups(Enum):
    """Times at which segments of a store are deleted."""

    WHEN_DUE = auto()
    """When a cleanup is due, and also when a person or a schedule begins one."""
    ON_REQUEST = auto()
    """Only when a person or a schedule begins a cleanup."""
    NEVER = auto()


PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    "aside": (Aside, NoneType),
    "engine": (BrokerEngine, NoneType),
    "inspection": (Inspecting, NoneType),
    "places": (Places,),
    "receipts": (ReceiptRules,),
    "rows": (RowTraits,),
    "running": (RunningKind, NoneType),
    "settings": (SettingNames,),
    "topics": (Topics,),
    "words": (BrokerWords,),
}
"""The class of each part. A package that gives a class in place of an object is refused, since some calls
would work by chance.
"""
FORMER_MEMBERS: Final = former_members(
    aside="has_shield= has_undo= undo_outside=",
    cleanups="archives_at_seal= cleans_up= cleans_up_on_request=",
    codec="bodies",
    collect_facts="without_suites=",
    engine="has_engine= rebuild_queues recover serve write_sample",
    inspection="diagnose inspect look_up unindexed",
    places="default_name segment_path stamped_directories store_around",
    receipts="continues drops_companion same_companion",
    rows="offsets_count_bytes rows_table=table sets_times task_modules",
    running="client_connection open_to_make_room running_broker=ask watch_fence watch_store",
    settings="age_settings=of_age known_settings=known",
    topics="has_logs_of_topics=are_logs is_system_topic=is_system topic_of_log=of_log",
    words="crash_sign title",
)
"""Members that kinds had before version 0.2, with their present names."""


class Broker(Contract):
    """A kind of broker. A part that only some kinds have is an object of its own, or None.

    :cvar name: in connections, receipts, lakes and journals; never changes.
    :cvar words: words on this kind and its stores in texts that the engine writes.
    :cvar places: places of its stores' data.
    :cvar rows: facts about its segments' rows that are known without its codec.
    :cvar topics: facts about topics that follow from their names.
    :cvar receipts: rules that say when a receipt also proves other files.
    :cvar settings: names of its own settings.
    :cvar aside: the place where deleted files of its stores can be kept for a while; None means nowhere.
    :cvar engine: the engine that writes stores in place of a broker; None if only the broker writes them.
    :cvar inspection: parts of a store's description beyond logs, segments and disks; None if there are none.
    :cvar running: questions to its running brokers; None if its stores are managed only while stopped.
    :cvar is_default: stores and lakes that name no broker are of this kind, once the only kind. Only a
        broker of this package may be the default.
    """

    _former = FORMER_MEMBERS

    name: ClassVar[str]
    words: ClassVar[BrokerWords]
    places: ClassVar[Places]
    is_default: ClassVar[bool] = False
    topics: ClassVar[Topics] = Topics()
    settings: ClassVar[SettingNames] = SettingNames()
    receipts: ClassVar[ReceiptRules] = ReceiptRules()
    rows: ClassVar[RowTraits] = RowTraits()
    aside: ClassVar[Aside | None] = None
    engine: ClassVar[BrokerEngine | None] = None
    inspection: ClassVar[Inspecting | None] = None
    running: ClassVar[RunningKind | None] = None

    # Segments

    @property
    @abstractmethod
    def codec(self) -> SegmentCodec:
        """Turns segments into rows and back."""

    def restored_config(self, serving: Sequence[Path]) -> RestoredConfig | None:
        """Return an object that derives the files that a broker needs beside restored segments. None if a
        broker needs no such files.

        :param serving: stores of the stopped brokers that are to serve the segments. The first broker will
            serve from the restored directory. If empty, any broker may serve the segments.
        :raises RestoreError: one of these brokers can't serve restored segments in its present state.
        :raises BadInputError: this kind doesn't use ``serving``.
        """
        if serving:
            raise BadInputError(
                f"{serving[0]}: expected that no broker's store is named, because any broker of "
                f"{self.words.title} serves restored segments. Nothing was written. Leave the store out."
            )
        return None

    # Stores

    def cleanups(self, live: LiveBroker | None) -> Cleanups:
        """Return when segments of a store are held and deleted. With ``NEVER`` they are only archived.

        If the answer for a kind's stopped stores isn't ``WHEN_DUE``, segments of all its stores are archived
        once they are sealed, whatever a policy says.

        :param live: the running broker of the store; None if it is stopped.
        """
        return Cleanups.WHEN_DUE

    @property
    def rules(self) -> BrokerRules | None:
        """The kind's deletion rules, for simulation without a store. None if it can't be simulated."""
        return None

    @abstractmethod
    def open_store(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        """Open a store with the broker's own settings.

        :param memory: the remembered state of a hold beside a running broker; None if there is none.
        :raises BadInputError: the broker would not work with these settings.
        :raises StoreNotFoundError: a directory of the store is missing.
        :raises BrokerError: the settings say that the store's broker runs, but it can't be asked.
        """

    @abstractmethod
    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        """Return a store's facts that validation checks. It judges nothing: faults are rows, not errors.

        :raises StoreNotFoundError: there is no such store.
        :raises BrokerError: the store's broker runs, and can't be asked.
        """

    # Consumers

    def lag(self, request: LagRequest) -> LagJob | None:
        """Prepare the computation of consumer lag, in Spark or in this process. None if lag is unknown.

        :raises BadInputError: the store or its settings can't be read, or the plan is for another store.
        """
        return None


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample store to write. The same request gives the same bytes.

    :param directory: new or empty; it gets the store and its broker's configuration.
    :param messages: the least number of messages. Messages that the broker itself adds for delays and
        transactions count as well.
    :param end_ms: store time of the last message.
    :param segment_bytes: size of a file of the log.
    """

    directory: Path
    messages: int
    topics: int
    days: float
    seed: int
    end_ms: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class SampleStore:
    """A sample store that was written.

    :param store: the broker's root directory.
    :param configuration: the broker's own configuration file, which commands and brokers accept.
    :param lagging_groups: those of ``groups`` that are far behind.
    :param pending: delayed messages that are not due yet, and undecided transactions.
    """

    store: str
    configuration: str
    messages: int
    log_bytes: int
    log_files: int
    topics: int
    groups: int
    lagging_groups: int
    pending: int


Place = Callable[["pa.Table"], "pa.Table"]
"""Finds the segment of each group's position (``name_columns.PLACES_SCHEMA``). It is sent to executors."""


@dataclass(frozen=True, slots=True)
class LagRequest:
    """Data that lag is measured against.

    :param plan_segments: the segments that a plan deletes; empty without a plan. Only their logs are at risk.
    :param now_ms: the present time, in milliseconds since the epoch.
    """

    settings: StoreSettings
    plan_segments: tuple[SegmentId, ...]
    now_ms: int


def check_plan(snapshot: StoreSnapshot, plan_segments: Collection[SegmentId]) -> None:
    """Make sure that each segment of a plan is in the store, or was deleted from the beginning of its log.

    :raises BadInputError: a segment isn't in the store, and wasn't deleted meanwhile.
    """
    present = {segment.id for log in snapshot.logs for segment in log.segments}
    begins = {log.name: log.min_offset for log in snapshot.logs}
    deleted = {segment for segment in plan_segments if segment.base_offset < begins.get(segment.log, 0)}
    if unknown := set(plan_segments) - deleted - present:
        name, base_offset = min(unknown)
        raise BadInputError(
            f"{snapshot.root}: no segment of log {name} begins at {base_offset}: expected the segments of a "
            "plan for this store as it is now. Make a new plan."
        )


class LagJob(Protocol):
    """The positions of a store's consumers, and the data that they are measured against."""

    @property
    def source(self) -> LagSource:
        """Return the source of the positions."""

    @property
    def snapshot(self) -> StoreSnapshot:
        """The snapshot of the store that positions are measured against."""

    @property
    def logs(self) -> tuple[str, ...] | None:
        """The logs whose consumers are measured; None for all. The lag in other logs is unknown."""

    @property
    def positions(self) -> pa.Table:
        """Every group's position in every queue. Rows of one queue are next to each other."""

    @property
    def segments(self) -> pa.Table:
        """Return the segments (``name_columns.SEGMENTS_SCHEMA``). Joined with positions they give lag."""

    @property
    def newest(self) -> FileFacts | None:
        """A file of the store that a process must see to measure lag. None if the store has no such file."""

    @property
    def place(self) -> Place: ...

    def unread(self, run: Sequence[Segment]) -> Unread:
        """Return the messages that consumers have not read, in segments that the broker has deleted.

        :param run: segments without a gap between them, whose files still exist elsewhere.
        :raises BadInputError: positions or queues can't be read.
        """
