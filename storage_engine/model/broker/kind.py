"""The contract of a broker: all that the engine knows of one kind of broker goes through this class.

A package offers its broker as an entry point of the group ``storage_engine.brokers``, whose name is the
broker's. Importing it has to be cheap: NumPy, Arrow and clients are imported where they are first used.

Consumer lag as a broker offers it for computing: on Spark's executors, or in this process.
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
    """Facts about segments' rows that are known before their codec is loaded.

    :param table: name of the lakes' table that has them; never changes.
    :param task_modules: modules of the broker's package that a Spark task needs, loaded before workers fork.
    :param offsets_count_bytes: as the codec's positions do; else offsets tell no size.
    :param sets_times: the broker itself writes when it stored a message; else its producers may.
    """

    table: str = "messages"
    task_modules: tuple[str, ...] = ()
    offsets_count_bytes: bool = True
    sets_times: bool = False


class BrokerEngine(ABC):
    """An engine of the package that writes a broker's stores in its place."""

    @abstractmethod
    def recover(
        self, settings: StoreSettings, *, dry_run: bool, cut_messages: bool, whole_index: bool
    ) -> StoreRecovery:
        """Make a store clean whose broker did not stop cleanly, as that broker would when it starts.

        :param dry_run: only describe the changes.
        :param cut_messages: also where whole messages are lost by it.
        :param whole_index: make an index of keys again however much of the log has to be read for it.
        :raises BadInputError: it can't be done without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: whole messages would be lost.
        """

    @abstractmethod
    def rebuild_queues(self, settings: StoreSettings) -> StoreRecovery:
        """Make again from a store's log what its broker finds messages by.

        :raises BadInputError: it can't be done without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: the log is damaged; nothing was changed.
        """

    @abstractmethod
    def write_sample(self, request: SampleRequest) -> SampleStore:
        """Write a store as a broker leaves it, to try things on.

        :raises BadInputError: it can't be done without the broker, or where the request says.
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
        """Write a store in place of a broker, and serve who asks for it, until it is told to end.

        :param topic: each line becomes a message of it; None: nothing is read.
        :param release: asked where the broker's rules let segments go; None: nothing is deleted.
        :raises BadInputError: this package has no engine for it.
        :raises StoreBusyError: another process has the store.
        """


class RunningKind(ABC):
    """Questions to a running broker, and the basis of a hold beside it.

    :cvar client_connection: type of the Airflow connections whose extra is the settings of this broker's
        client; "": a connection has its access key and its secret key.
    """

    client_connection: ClassVar[str] = ""

    @abstractmethod
    def ask(self, live: LiveBroker) -> RunningBroker:
        """Ask a broker what it is.

        :raises BrokerError: the broker can't be asked.
        """

    def watch_fence(self, settings: StoreSettings) -> FenceWatch | None:
        """Return a watch of what a hold rests on; None: on no files. The store needn't be there yet."""
        return None

    def watch_store(self, settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch | None:
        """Return the trigger's watch as ``StoreCauses.watch`` does, for a host that sees only the store's
        running broker.

        None: the store itself has to be opened. A broker that can't be asked is no error: the look isn't
        ``known`` then.
        """
        return None

    def open_to_make_room(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore | None:
        """Open the store of a stopped broker whose disk is full, to delete what others of its cluster have.

        None: this kind has no replicas that could be asked.

        :param settings: how the cluster is reached, where one runs; the store's own broker doesn't.
        :param memory: as of :meth:`Broker.open_store`.
        :raises StoreNotFoundError: a directory of the store is missing.
        """
        return None


class Inspecting(ABC):
    """A store's description for a person beside its logs, segments and disks."""

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

        :param messages: read every segment.
        :param queues: list the queues that lead consumers to messages.
        :param snapshot: of a running broker's store; None: take one.
        """

    def diagnose(self, settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
        """Say of a store what only this kind of broker knows, also of one that can't be opened. Reads only.

        By default there is nothing to say.

        :param memory: a journal's memory of a hold; None: none was named.
        :raises StoreNotFoundError: there is no such store.
        :raises BadInputError: settings given beside the broker's own are wrong.
        :raises BrokerError: the store's broker runs by its settings, and can't be asked.
        """
        return BrokerDiagnosis()

    def look_up(
        self, settings: StoreSettings, topic: str, key: str, max_count: int | None
    ) -> KeyLookup | None:
        """Find messages by one of their keys: by the broker's own index, and as its log has them.

        None: it has no such index.
        """
        return None

    def unindexed(self, settings: StoreSettings) -> tuple[tuple[int, int | None], ...]:
        """Return between which physical offsets the broker's index may lack messages; None: up to the end.

        :raises BadInputError: there is no log.
        """
        return ()


class Topics:
    """Facts that a kind of broker knows about topics by their names. This class itself knows nothing."""

    def is_system(self, topic: str) -> bool:
        """Return whether a topic is the broker's own. Unknown counts as that: wildcards match none."""
        return True

    @property
    def are_logs(self) -> bool:
        """Return whether each log has one topic; else they lie side by side in one log."""
        return type(self).of_log is not Topics.of_log

    def of_log(self, log: str) -> str | None:
        """Return the only topic that a log's messages are of; None: it may have several."""
        return None


class ReceiptRules:
    """Rules that say when a receipt also proves other files. By default: only files with the same bytes."""

    def continues(self, left: Receipt, right: Receipt) -> bool:
        """Return whether a segment that one replica archived begins where another replica's ended.

        Only who gives logs an identity that their replicas share, has to tell.

        :param right: of the same log; it begins at the offset at which ``left`` ends.
        """
        return False

    def same_companion(self, name: str, archived: bytes, found: bytes) -> bool:
        """Return whether two versions of a segment's further file have the same content. Here equal bytes do.

        Some brokers write such a file again when they recover, and the same bytes of the segment are no
        other segment then.

        :param name: of the file.
        """
        return archived == found

    def drops_companion(self, name: str) -> bool:
        """Return whether the broker itself removes such a further file of a segment that stays. Here it
        removes none.
        """
        return False


class SettingNames:
    """Names of a kind's own settings, as far as they are known."""

    @property
    def known(self) -> frozenset[str] | None:
        """Its own names of the settings that decide anything here, for who types one; None: any may."""
        return None

    @property
    def of_age(self) -> frozenset[str] | None:
        """Its own names of the settings that say how long segments stay; None: any setting may.

        Empty: a store's own files say it, and nobody names them beside it.
        """
        return None


class Places(ABC):
    """Places of stores' data, by the files on a disk alone."""

    @abstractmethod
    def store_around(self, path: Path) -> Path | None:
        """Return the root of the store that ``path`` is, or among whose own files it lies or would lie.

        By what is there; None: of none.
        """

    def stamped_directories(self, root: Path) -> tuple[Path, ...]:
        """Return the directories that each have a store's stamp as a plain file; (): its root has one.

        Asked of a store whose root is a file.

        :raises BadInputError: the file can't be read.
        """
        return ()

    def default_name(self, root: Path) -> str:
        """Return a store's default name; it never depends on facts that only a running broker knows.

        :param root: as it was named, from ``/`` on.
        """
        return root.name

    def segment_path(self, log: str, base_offset: int) -> str:
        """Return where a segment lies, relative to its store's root, with ``/`` between names."""
        return f"{log}/{base_offset:020d}"


class Cleanups(Enum):
    """Times at which a store is deleted from."""

    WHEN_DUE = auto()
    """Also where a person begins a cleanup, or a schedule does."""
    ON_REQUEST = auto()
    """Only then."""
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
"""The class of each part of a kind: a class in the place of an object would answer some questions by
chance."""
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
"""Members of kinds before version 0.2, and where each is now."""


class Broker(Contract):
    """A kind of broker. What only some kinds have is an object of its own; None: this kind has none.

    :cvar name: in connections, receipts, lakes and journals; never changes.
    :cvar words: what people read of it and its stores where the engine writes it.
    :cvar places: where the data of its stores lies.
    :cvar rows: what is known of its segments' rows without its codec.
    :cvar topics: what is known of them by their names.
    :cvar receipts: what those of other files prove.
    :cvar settings: names of its own settings.
    :cvar aside: where what goes of its stores can be kept for a while; None: nowhere.
    :cvar engine: what writes its stores in place of a broker; None: the broker alone does.
    :cvar inspection: what tells more of a store than its logs, segments and disks.
    :cvar running: what is asked of its running brokers; None: its stores are managed while it is stopped.
    :cvar is_default: stores and lakes that name no broker are of this kind, as all were once. Only this
        package's brokers may say so.
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
        """Derive the files that a broker needs beside restored segments; None: segments alone are restored.

        :param serving: stores of stopped brokers that are to serve the segments, the first one from the
            restored directory; none: any broker.
        :raises RestoreError: a broker of these can't serve restored segments as it is.
        :raises BadInputError: this kind has no use for them.
        """
        if serving:
            raise BadInputError(
                f"{serving[0]}: expected no store named beside a restore, since any broker of "
                f"{self.words.title} serves what is restored. Nothing was written. Leave it out."
            )
        return None

    # Stores

    def cleanups(self, live: LiveBroker | None) -> Cleanups:
        """Return when a store is held and deleted from; otherwise it is archived, proven and restored alone.

        A kind whose stopped stores aren't cleaned when a cleanup is due has segments archived once they are
        sealed, whatever a policy says.

        :param live: the broker that runs on it; None: it is stopped.
        """
        return Cleanups.WHEN_DUE

    @property
    def rules(self) -> BrokerRules | None:
        """Its rules of deletion without a store, for a simulation; None: it can't be simulated."""
        return None

    @abstractmethod
    def open_store(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        """Open a store with the broker's own settings.

        :param memory: the remembered state of a hold beside a running broker; None: there is none.
        :raises BadInputError: settings that the broker would not work with.
        :raises StoreNotFoundError: a directory of the store is missing.
        :raises BrokerError: the store's broker runs by its settings, and can't be asked.
        """

    @abstractmethod
    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        """Gather the facts of a store that validation checks. Judges nothing: a fault is a row, not an error.

        :raises StoreNotFoundError: there is no such store.
        :raises BrokerError: the store's broker runs, and can't be asked.
        """

    # Consumers

    def lag(self, request: LagRequest) -> LagJob | None:
        """Prepare the consumers' lag, for Spark or for this process; None: unknown.

        :raises BadInputError: a store or settings that can't be read, a plan for another store.
        """
        return None


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample store to write. The same request gives the same bytes.

    :param directory: new or empty; it gets the store and its broker's configuration.
    :param messages: at least so many; those that the broker itself adds for delays and transactions count.
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
    :param configuration: the broker's own file, which commands and a broker take.
    :param lagging_groups: of ``groups``, those that are far behind.
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
"""Finds in the store's files where groups are (``lag_columns.PLACES_SCHEMA``); goes to executors."""


@dataclass(frozen=True, slots=True)
class LagRequest:
    """Data that lag is measured against.

    :param plan_segments: those that a plan deletes; empty: ask without a plan. A position in another log is
        not at risk by them.
    :param now_ms: the moment, in milliseconds since the epoch.
    """

    settings: StoreSettings
    plan_segments: tuple[SegmentId, ...]
    now_ms: int


def check_plan(snapshot: StoreSnapshot, plan_segments: Collection[SegmentId]) -> None:
    """Check that a plan's segments are those of a store, or went from the beginning of their log.

    :raises BadInputError: a segment isn't in the store, and didn't go meanwhile.
    """
    there = {segment.id for log in snapshot.logs for segment in log.segments}
    begins = {log.name: log.min_offset for log in snapshot.logs}
    went = {one for one in plan_segments if one.base_offset < begins.get(one.log, 0)}
    if unknown := set(plan_segments) - went - there:
        name, base_offset = min(unknown)
        raise BadInputError(
            f"{snapshot.root}: no segment of log {name} begins at {base_offset}: expected the segments of a "
            "plan for this store as it is now. Make a new plan."
        )


class LagJob(Protocol):
    """The positions of a store's consumers, and what they are measured against."""

    @property
    def source(self) -> LagSource:
        """Return where the positions are from."""

    @property
    def snapshot(self) -> StoreSnapshot:
        """The store that they are measured against."""

    @property
    def logs(self) -> tuple[str, ...] | None:
        """The logs whose consumers are measured; None: all of the store's. Of others lag is unknown."""

    @property
    def positions(self) -> pa.Table:
        """Every group's position in every queue; rows of one queue are neighbours."""

    @property
    def segments(self) -> pa.Table:
        """Return the segments to delete (``lag_columns.SEGMENTS_SCHEMA``): joined with positions they give
        the lag.
        """

    @property
    def newest(self) -> FileFacts | None:
        """A file that whoever measures has to see; None: the store has none."""

    @property
    def place(self) -> Place: ...

    def unread(self, run: Sequence[Segment]) -> Unread:
        """Return the messages that consumers have not read, in segments that the broker has deleted.

        :param run: back to back; somebody still has their files.
        :raises BadInputError: positions or queues that can't be read.
        """
