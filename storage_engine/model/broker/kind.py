"""The contract of a broker: all that the engine knows of one kind of broker goes through this class.

A package offers its broker as an entry point of the group ``storage_engine.brokers``, whose name is the
broker's. Importing it has to be cheap: NumPy, Arrow and clients are imported where they are first used.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import BrokerStore, FenceWatch, StoreSettings
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.model.report.diagnosis import BrokerDiagnosis

if TYPE_CHECKING:
    from storage_engine.model.broker.broker_store import Watch
    from storage_engine.model.broker.codec import Bodies, RestoredConfig, SegmentCodec
    from storage_engine.model.broker.lag_job import LagJob, LagRequest
    from storage_engine.model.broker.live import LiveBroker, RunningBroker
    from storage_engine.model.broker.sample import SampleRequest, SampleStore
    from storage_engine.model.course.course import BrokerRules
    from storage_engine.model.hold import HoldMemory
    from storage_engine.model.plan.plan import Release
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.model.report.facts import FactsScope, StoreFacts
    from storage_engine.model.report.inspection import Inspection, KeyLookup, StoreRecovery
    from storage_engine.model.store.store import StoreSnapshot


class Broker(ABC):
    """A kind of broker. What only some kinds have, has a default.

    :cvar name: in connections, receipts, lakes and journals; never changes.
    :cvar title: for people.
    :cvar words: what people read of its stores where the engine writes it.
    :cvar is_default: stores and lakes that name no broker are of this kind, as all were once. Only this
        package's brokers may say so.
    :cvar archives_at_seal: its stores are archived once segments are sealed, whatever a policy says.
    :cvar has_engine: this package has an engine that writes its stores.
    :cvar crash_sign: how its stores tell that their broker didn't stop cleanly.
    :cvar has_undo: what is deleted of its stores can be set aside for a while, and brought back.
    :cvar has_shield: segments can have a second name in its stores.
    :cvar offsets_count_bytes: as its codec's positions do; else offsets tell no size.
    :cvar sets_times: the broker itself writes when it stored a message; else its producers may.
    :cvar undo_outside: it is set aside in directories that a person names, as none within a store will do.
    :cvar rows_table: name of the lakes' table that has its segments' rows; never changes.
    :cvar client_connection: type of the Airflow connections whose extra is the settings of this broker's
        client; "": a connection has its access key and its secret key.
    :cvar without_suites: suites of a validation that never find anything to check in its stores.
    :cvar task_modules: what a Spark task needs of it, loaded before workers fork.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    words: ClassVar[BrokerWords] = BrokerWords()
    is_default: ClassVar[bool] = False
    archives_at_seal: ClassVar[bool] = False
    has_engine: ClassVar[bool] = False
    crash_sign: ClassVar[str] = "its files say so"
    has_undo: ClassVar[bool] = True
    has_shield: ClassVar[bool] = True
    offsets_count_bytes: ClassVar[bool] = True
    sets_times: ClassVar[bool] = False
    undo_outside: ClassVar[bool] = False
    rows_table: ClassVar[str] = "messages"
    client_connection: ClassVar[str] = ""
    without_suites: ClassVar[frozenset[str]] = frozenset()
    task_modules: ClassVar[tuple[str, ...]] = ()

    # Segments

    @property
    @abstractmethod
    def codec(self) -> SegmentCodec:
        """Turns segments into rows and back."""

    @property
    def bodies(self) -> Bodies | None:
        """Reads payloads that producers compressed; None: there are none."""
        return None

    def is_system_topic(self, topic: str) -> bool:
        """Return whether a topic is the broker's own. By default each may be one: wildcards match none."""
        return True

    @property
    def has_logs_of_topics(self) -> bool:
        """Return whether each of its logs has one topic; else they lie side by side in one log."""
        return type(self).topic_of_log is not Broker.topic_of_log

    def topic_of_log(self, log: str) -> str | None:
        """Return the only topic that a log's messages are of; None: it may have several, as by default."""
        return None

    def restored_config(self, serving: Sequence[Path]) -> RestoredConfig | None:
        """Derive what a broker needs beside restored segments; None: segments alone are restored.

        :param serving: stores of stopped brokers that are to serve the segments, the first one from the
            restored directory; none: any broker.
        :raises RestoreError: a broker of these can't serve restored segments as it is.
        :raises BadInputError: this kind has no use for them.
        """
        if serving:
            raise BadInputError(
                f"{serving[0]}: expected no store to restore for, as any broker of {self.title} serves "
                "what is restored. Nothing was written. Leave it out."
            )
        return None

    def segment_path(self, log: str, base_offset: int) -> str:
        """Return where a segment lies, relative to the store's root, with ``/`` between names."""
        return f"{log}/{base_offset:020d}"

    def continues(self, left: Receipt, right: Receipt) -> bool:
        """Return whether a segment that one replica archived goes on where another replica's ended.

        Only who gives logs an identity that their replicas share, has to tell.

        :param right: of the same log; it begins at the offset at which ``left`` ends.
        """
        return False

    def same_companion(self, name: str, archived: bytes, found: bytes) -> bool:
        """Return whether two contents of a segment's further file say the same. By default equal bytes do.

        Some brokers write such a file again when they recover, and the same bytes of the segment are no
        other segment then.

        :param name: of the file.
        """
        return archived == found

    def drops_companion(self, name: str) -> bool:
        """Return whether the broker itself removes such a further file of a segment that stays. By default it
        removes none.
        """
        return False

    # Stores

    def default_name(self, root: Path) -> str:
        """Return what a store is called where nobody says it; never by what only a running broker knows.

        :param root: as it was named, from ``/`` on.
        """
        return root.name

    def cleans_up(self, live: LiveBroker | None) -> bool:
        """Return whether a store may be held and deleted from; otherwise it is archived, proven and restored
        alone.

        :param live: the broker that runs on it; None: it is stopped.
        """
        return True

    def cleans_up_on_request(self, live: LiveBroker | None) -> bool:
        """Return whether a store is deleted from where a person begins a cleanup, or a schedule does.

        By default wherever :meth:`cleans_up` says so, of which cleanups begin by themselves when one is due.
        """
        return self.cleans_up(live)

    @property
    def known_settings(self) -> frozenset[str] | None:
        """Its own names of the settings that decide anything here, for who types one; None: any may."""
        return None

    @property
    def age_settings(self) -> frozenset[str] | None:
        """Its own names of the settings that say how long segments stay; None: any setting may.

        Empty: a store's own files say it, and nobody names them beside it.
        """
        return None

    @property
    def rules(self) -> BrokerRules | None:
        """Its rules of deletion without a store, for a simulation; None: it can't be simulated."""
        return None

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

    @abstractmethod
    def open_store(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        """Open a store with the broker's own settings.

        :param memory: what is remembered of a hold beside a running broker; None: nothing.
        :raises BadInputError: settings that the broker would not work with.
        :raises StoreNotFoundError: a directory of the store is missing.
        :raises BrokerError: the store's broker runs by its settings, and can't be asked.
        """

    def open_to_make_room(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        """Open the store of a stopped broker whose disk is full, to delete what others of its cluster have.

        :param settings: how the cluster is reached, where one runs; the store's own broker doesn't.
        :param memory: as of :meth:`open_store`.
        :raises BadInputError: this kind has no replicas that could be asked.
        :raises StoreNotFoundError: a directory of the store is missing.
        """
        raise BadInputError(
            f"{settings.root}: expected a node of a cluster with replicas, found {self.title}. Nothing was "
            "changed. storage-engine clean makes room there."
        )

    @abstractmethod
    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        """Gather what validation checks of a store. Judges nothing: a fault is a row, not an error.

        :raises StoreNotFoundError: there is no such store.
        :raises BrokerError: the store's broker runs, and can't be asked.
        """

    def watch_store(self, settings: StoreSettings, now_ms: int) -> Watch:
        """Return what ``BrokerStore.watch`` does, for who may see nothing of a store but its running broker.

        A broker that can't be asked is no error: the look isn't ``known`` then.
        """
        with closing(self.open_store(settings, None)) as store:
            return store.watch(now_ms)

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
        :param queues: list what leads consumers to messages.
        :param snapshot: of a running broker's store; None: take one.
        """
        from storage_engine.model.report.inspection import plain_inspection

        if snapshot is None:
            with closing(self.open_store(settings, None)) as store:
                snapshot = store.snapshot(now_ms)
        return plain_inspection(snapshot)

    def diagnose(self, settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
        """Say of a store what only this kind of broker knows, also of one that can't be opened. Reads only.

        By default there is nothing to say.

        :param memory: what a journal remembers of a hold; None: nobody named a journal.
        :raises StoreNotFoundError: there is no such store.
        :raises BadInputError: what was given beside the broker's own settings is wrong.
        :raises BrokerError: the store's broker runs by its settings, and can't be asked.
        """
        return BrokerDiagnosis()

    def look_up(self, settings: StoreSettings, topic: str, key: str, max_count: int | None) -> KeyLookup:
        """Find messages by one of their keys: by the broker's own index, and as its log has them.

        :raises BadInputError: it has none.
        """
        raise BadInputError(f"{settings.root}: expected a broker with an index of keys, found {self.title}.")

    def unindexed(self, settings: StoreSettings) -> tuple[tuple[int, int | None], ...]:
        """Return between which physical offsets the broker's index may lack messages; None: up to the end.

        :raises BadInputError: there is no log.
        """
        return ()

    def recover(
        self, settings: StoreSettings, *, dry_run: bool, cut_messages: bool, whole_index: bool
    ) -> StoreRecovery:
        """Make a store clean whose broker did not stop cleanly, as that broker would when it starts.

        :param dry_run: only say what would be done.
        :param cut_messages: also where whole messages are lost by it.
        :param whole_index: make an index of keys again however much of the log has to be read for it.
        :raises BadInputError: it can't be done without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: whole messages would be lost.
        """
        raise BadInputError(f"{settings.root}: stores of {self.title} are recovered by their broker alone.")

    def rebuild_queues(self, settings: StoreSettings) -> StoreRecovery:
        """Make again from a store's log what its broker finds messages by.

        :raises BadInputError: it can't be done without the broker.
        :raises StoreBusyError: the broker runs.
        :raises CorruptFrameError: the log is damaged; nothing was changed.
        """
        raise BadInputError(f"{settings.root}: stores of {self.title} are recovered by their broker alone.")

    def write_sample(self, request: SampleRequest) -> SampleStore:
        """Write a store as a broker leaves it, to try things on.

        :raises BadInputError: it can't be done without the broker, or where the request says.
        """
        raise BadInputError(
            f"{request.directory}: stores of {self.title} are written by their broker alone. Nothing was "
            "written."
        )

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
        :raises StoreBusyError: somebody else has the store.
        """
        raise BadInputError(f"{settings.root}: stores of {self.title} are written by their broker alone.")

    # Consumers

    def lag(self, request: LagRequest) -> LagJob | None:
        """Prepare the consumers' lag, for Spark or for this process; None: nobody knows who consumes.

        :raises BadInputError: a store or settings that can't be read, a plan for another store.
        """
        return None

    # Running brokers

    def watch_fence(self, settings: StoreSettings) -> FenceWatch | None:
        """Watch what a hold on a store rests on; None: on nothing. The store needn't be there yet."""
        return None

    def local_settings(self, settings: StoreSettings) -> StoreSettings:
        """Return settings for what reads the store's files alone.

        :raises BrokerError: the running broker can't be asked.
        """
        return settings

    def running_broker(self, live: LiveBroker) -> RunningBroker:
        """Ask a broker what it is.

        :raises BadInputError: stores of this kind are managed while their broker is stopped.
        :raises BrokerError: the broker can't be asked.
        """
        raise BadInputError(
            f"{live.address}: expected a broker that can be asked while it runs, found {self.title}. Nothing "
            "was changed. Stop it, and leave its address out."
        )
