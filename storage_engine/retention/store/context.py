"""An open store, with which every step begins: settings, journal, identity, and its broker's rules.

A process opens it once (:func:`opened`) and closes it. Each step checks again which store it is, and reads
its broker's settings again: a person may have changed them while a step worked for hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text, commands_in
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import take_from_all
from storage_engine.core.jsonable import from_jsonable, to_recorded
from storage_engine.exceptions import (
    FileGoneError,
    NotApprovedError,
    RunStateError,
    StorageEngineError,
    StoreCrashedError,
)
from storage_engine.journal.journal import Extent, Journal, Phase, Run, Step, StoreRecord, hold_memory
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.catalog.place import check_any_catalog_file
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    LockedStore,
    check_manageable,
    course_of,
    process_of,
)
from storage_engine.model.hold import BrokerProgress, HoldMemory
from storage_engine.model.lag import ArchiveLag
from storage_engine.model.plan import Plan
from storage_engine.model.settings.policy import ArchiveMode, archive_limit
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.store.broker_answers import (
    MEND,
    asked,
    package_errors,
    take_snapshot,
    take_watch,
    wrap_lock,
)
from storage_engine.retention.store.broker_disks import checked_data_paths
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify, is_known
from storage_engine.retention.store.managed_store import ManagedStore

T = TypeVar("T")

WHOLE = ""
"""Subject of the event with a step's result as a whole."""
RAN = "ran"
"""Field of an event with a step's result: where the step ran, such as in Spark at a master."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A store that is locked for our changes, with the snapshot from that moment.

    :param notices: checks that could not be made.
    """

    snapshot: StoreSnapshot
    lease: Lease
    store: LockedStore
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """:param data_paths: the directories that the broker writes to, from :func:`checked_data_paths`.
    :param closing: closes everything that was opened for the store, also by :meth:`renewed`.
    :param only_gives_back: the store's hold is only ended, so lakes may be anywhere.
    """

    store: ManagedStore
    journal: Journal
    record: StoreRecord
    broker: BrokerStore
    data_paths: tuple[Path, ...]
    closing: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)
    only_gives_back: bool = False

    @property
    def name(self) -> str:
        """Return the store's name in the journal, or else the one in its settings."""
        return self.record.name or self.store.name

    def renewed(self) -> Context:
        """Return the store with its present identity and its broker's present settings.

        :raises StorageEngineError: the same errors as of :func:`open_context`.
        """
        record = identify(self.store, self.journal)
        broker = _renew_broker(self.store, self.broker, hold_memory(self.journal, record.store_id))
        if broker is not self.broker:
            self.closing.callback(broker.close)
        data_paths = checked_data_paths(self.store, broker, any_place=self.only_gives_back)
        return replace(self, record=record, broker=broker, data_paths=data_paths)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        """Return the store's present state.

        :raises BrokerPackageError: its broker's package returned impossible values.
        """
        return take_snapshot(self.broker, now_ms, self.store.broker)

    def run(self, run_key: str) -> Run:
        """Return a run of the store by its key.

        :raises RunStateError: there is no such run.
        """
        return self.journal.run(self.record.store_id, run_key)

    def result(self, run: Run, step: Step, cls: type[T]) -> T | None:
        """Return the step's result, or None if the step isn't done."""
        done = [e for e in self.journal.events(run, step, Phase.RESULT) if e.subject == WHOLE]
        return from_jsonable(cls, done[0].payload["result"]) if done else None

    def bytes_per_second(self) -> int | None:
        """Return the limit for reading segments now, in bytes a second, or None, as in an emergency."""
        beside = self.broker.is_live or bool(self.broker.limit and process_of(self.broker).user())
        emergency = beside and any(
            trigger.at_once for trigger in take_watch(self.broker, clock_ms(), self.store.broker).triggers
        )
        return archive_limit(self.store.policy, beside=beside, emergency=emergency)

    def sample(
        self,
        snapshot: StoreSnapshot,
        at_ms: int,
        *,
        archive_lag: ArchiveLag | None = None,
        progress: BrokerProgress | None = None,
    ) -> None:
        """Record a sample: the levels of the store's disks, and its logs' first and last offsets."""
        oldest_message_ms = None
        # Only charts show this time. Planning and archiving report a file that can't be read.
        with suppress(OSError, FileGoneError):
            oldest_message_ms = course_of(self.broker).oldest_message_ms(snapshot)
        extent = Extent(
            min_offset=sum(log.min_offset for log in snapshot.logs),
            max_offset=sum(log.max_offset for log in snapshot.logs),
            oldest_message_ms=oldest_message_ms,
        )
        self.journal.add_sample(self.record.store_id, snapshot.disks, at_ms, archive_lag, progress, extent)

    def save(self, run: Run, step: Step, result: Any, started_ns: int) -> None:
        """Record the step's result, and its duration."""
        took_ms = (time.monotonic_ns() - started_ns) // 1_000_000
        payload = {"result": to_recorded(result), "took_ms": took_ms}
        self.journal.record(run, step, Phase.RESULT, [(WHOLE, payload)])

    @contextmanager
    def errors(self, run: Run, step: Step) -> Iterator[Callable[[Any], None]]:
        """Record why a step failed, for the report, and let the error pass.

        The block gets a function that records result and duration. Waiting for a person isn't a failure.
        """
        try:
            yield partial(self.save, run, step, started_ns=time.monotonic_ns())
        except NotApprovedError:
            raise
        except Exception as error:
            with suppress(StorageEngineError):
                self.record_error(run, step, error)
            raise

    def record_error(self, run: Run, step: Step, error: Exception) -> None:
        """Record why a step, or a part of it, failed."""
        payload: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
        if commands_in(text := Text(error)):
            payload["parts"] = text.to_json()
        self.journal.record(run, step, Phase.ERROR, [(WHOLE, payload)])

    @contextmanager
    def _locked(self) -> Iterator[LockedStore]:
        """Hold the broker's lock during a block.

        An error of the block is raised even if the package would suppress it.
        """
        with package_errors(self.store.broker, "lock its store"):
            lock = self.broker.lock()
            held = lock.__enter__()
        try:
            yield wrap_lock(held, self.store.broker)
        except BaseException as error:
            with package_errors(self.store.broker, "unlock its store", MEND):
                lock.__exit__(type(error), error, error.__traceback__)
            raise
        with package_errors(self.store.broker, "unlock its store", MEND):
            lock.__exit__(None, None, None)

    @contextmanager
    def changing(self, now_ms: int) -> Iterator[Locked]:
        """Lock the store with our lease and the broker's lock, and take a new snapshot.

        If another run has the store, wait for it.

        :raises StoreBusyError: a broker has it, or another run still has it.
        :raises GateRefusedError: the store of a running broker can't be held.
        :raises StoreCrashedError: its broker has to recover it first.
        """
        with ExitStack() as stack:
            lease = stack.enter_context(self.journal.lease(self.record.store_id))
            held = stack.enter_context(self._locked())
            # Waiting for the broker's lock may have taken as long as a lease lasts.
            self.journal.renew(lease)
            snapshot = self.snapshot(now_ms)
            if snapshot.crashed:
                broker = find_broker(self.store.broker)
                recover = Text("; or run ", Command("recover")) if broker.engine else ""
                raise StoreCrashedError(
                    f"{snapshot.root}: its broker did not stop cleanly ({broker.words.crash_sign}), so the "
                    "end of its log is not certain. Nothing was deleted. Start the broker, let it recover, "
                    "stop it cleanly, and run again",
                    recover,
                    ".",
                )
            yield Locked(snapshot, lease, held, held.notices)


AnyStore = ManagedStore | Context
"""A store: its settings, or the open store."""


@contextmanager
def opened(
    store: ManagedStore, broker: BrokerStore | None = None, *, only_gives_back: bool = False
) -> Iterator[Context]:
    """Open a store once for everything that a process does with it.

    :param broker: as in :func:`open_context`, like ``only_gives_back``.
    :raises StorageEngineError: the same errors as of :func:`open_context`.
    """
    context = open_context(store, broker, only_gives_back=only_gives_back)
    try:
        yield context
    finally:
        context.closing.close()


def open_context(
    store: AnyStore, broker: BrokerStore | None = None, *, only_gives_back: bool = False
) -> Context:
    """Open a store. If it is already open, its present state is read again.

    :param broker: the open store, if the caller opened it in its own way; None opens it as usual.
    :param only_gives_back: the call only ends the store's hold, so lakes may be anywhere.
    :raises BadInputError: settings can't be used. Or our files would be on a disk of the running broker, or
        among its files. Or a lake of an unknown store is for another kind of broker.
    :raises StoreNotFoundError: there is no such store.
    :raises BrokerError: the running broker can't be asked.
    """
    if isinstance(store, Context):
        return store.renewed()
    with ExitStack() as opening:
        broker = open_store(store) if broker is None else broker
        opening.callback(broker.close)
        check_manageable(broker)
        data_paths = checked_data_paths(store, broker, any_place=only_gives_back)
        journal = None if missing_sqlite_file(store.journal_url) else Journal(store.journal_url)
        if journal is None and store.policy.archive is ArchiveMode.REQUIRED:
            # Without a lake no journal is created, because their disk may not be mounted.
            check_any_catalog_file(store.lakes)
        if not only_gives_back:
            _check_lakes_of_new(store, journal)
        # A new journal is created only after these checks.
        journal = journal or Journal(store.journal_url)
        record = identify(store, journal)
        take_from_all(dict.fromkeys((Path(store.real_root), *data_paths)))
        broker = _renew_broker(store, broker, hold_memory(journal, record.store_id))
        opening.callback(broker.close)
        return Context(
            store, journal, record, broker, data_paths, opening.pop_all(), only_gives_back=only_gives_back
        )


def _check_lakes_of_new(store: ManagedStore, journal: Journal | None) -> None:
    """Make sure that the lakes of an unknown store are for its kind of broker, before a journal records it.

    A lake that can't be read is left to later checks.

    :raises BadInputError: a lake is for another broker's segments.
    """
    if not store.archives:
        return
    if journal is not None:
        with suppress(StorageEngineError):
            if is_known(store, journal):
                return
    # Imported here, because a known store doesn't need the lake's libraries.
    from storage_engine.lake.catalog.catalog import check_broker, open_lake

    for config in store.lakes:
        try:
            lake = open_lake(config)
        except StorageEngineError:
            continue
        check_broker(lake, store.broker)


def _renew_broker(store: ManagedStore, broker: BrokerStore, memory: HoldMemory) -> BrokerStore:
    renewed = broker.renewed(memory)
    if renewed is None:
        broker.close()
        return open_store(store, memory)
    return asked(renewed, store.broker)


def managed_of(store: AnyStore) -> ManagedStore:
    """Return the settings of a store, open or not."""
    return store.store if isinstance(store, Context) else store


def refuse_dry_run(run: Run) -> None:
    """Make sure that a run may archive and delete.

    :raises RunStateError: the run was begun as a dry run.
    """
    if run.request.dry_run:
        raise RunStateError(
            f"run {run.run_key!r}: expected a run that may archive and delete, found a dry run. Nothing was "
            "changed. Begin another run, which is not a dry run."
        )


def approved_plan(run: Run) -> Plan:
    """Return a run's recorded plan.

    :raises RunStateError: the run has no plan, or the journal has another one than was recorded.
    """
    if run.plan is None:
        raise RunStateError(f"run {run.run_key!r}: expected a plan, found none. Make its plan first.")
    if run.plan.digest != run.plan_digest:
        raise RunStateError(
            f"run {run.run_key!r}: expected its plan {run.plan_digest} in the journal, found "
            f"{run.plan.digest}: the stored plan isn't the recorded one. Nothing was changed. Begin another "
            "run."
        )
    return run.plan
