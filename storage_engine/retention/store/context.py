"""An open store, with which every step begins: settings, journal, identity, and its broker's rules.

A process opens a store once (:func:`opened`), and closes it. Each step checks again which store it is, and
reads its broker's settings again: a person may have changed them while a step worked for hours. Each step
also checks that local lakes, journal and reports aren't among the broker's files. On a running broker's disks
they need a setting's permission.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    BadInputError,
    FileGoneError,
    NotApprovedError,
    RunStateError,
    StorageEngineError,
    StoreCrashedError,
)
from storage_engine.journal.journal import Extent, Journal, Phase, Run, Step, StoreRecord, hold_memory
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.nesting import (
    inside_store,
    local_directories,
    local_places,
    refuse_inside_store,
    sqlite_file,
)
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
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify, is_known
from storage_engine.retention.store.managed_store import ManagedStore


def checked_data_paths(
    store: ManagedStore, broker: BrokerStore, *, any_place: bool = False
) -> tuple[Path, ...]:
    """Return the directories that a store's broker writes to, after a check of where our own files are.

    :param any_place: skip the check, for a caller that writes nothing.
    :raises BadInputError: our files are in a wrong place, as in :func:`check_places` and :func:`check_disks`.
    :raises BrokerPackageError: the broker's package doesn't name its directories.
    """
    data_paths = tuple(broker.data_paths)
    if not any_place:
        check_places(store, data_paths)
        check_disks(store, data_paths)
    return data_paths


def check_disks(
    store: ManagedStore, data_paths: Sequence[Path], temporary: Mapping[str, Path] | None = None
) -> None:
    """Make sure that lake, journal, reports and temporary files are not on a disk of a running broker.

    A missing directory counts as on the disk of the directory above it.

    :param temporary: directories for temporary files, by their purpose.
    :raises BadInputError: places are on such a disk, and the settings don't allow it. The error names all.
    """
    if store.may_share_disks:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    shared = [
        f"{kind} ({path}) with {disks[_device(path)]}"
        for kind, path in {**{kind: path for kind, path, _ in _places(store)}, **(temporary or {})}.items()
        if _device(path) in disks
    ]
    if shared:
        raise BadInputError(
            f"{store.root}: expected no files of Storage Engine on a disk of the store's running broker, "
            f"found on the same disk: {', '.join(shared)}. When that disk is full, the broker refuses "
            "messages. Nothing was changed. Put these files on another disk, or allow the same disk: "
            "allow_same_disk in the connection, --allow-same-disk on the command line."
        )


def shared_disks(store: ManagedStore, data_paths: Sequence[Path]) -> tuple[tuple[str, Path], ...]:
    """Return lakes, journals and reports on a disk that the broker writes to, each with its kind and path."""
    disks = {_device(path) for path in data_paths}
    return tuple((kind, path) for kind, path, _ in _places(store) if _device(path) in disks)


def check_new_lake(store: ManagedStore, lake: LakeConfig, data_paths: Sequence[Path]) -> None:
    """Make sure that a new lake won't be on a disk of its store's broker, running or stopped.

    :raises BadInputError: the lake would be on such a disk, and the store's settings don't allow it; nothing
        was created.
    """
    if store.live is not None and store.live.allow_same_disk:
        return
    disks = {_device(path): path for path in reversed(data_paths)}
    for kind, path in local_places(lake).items():
        if (owner := disks.get(_device(path))) is not None:
            raise BadInputError(
                f"lake {lake.location}: expected a lake on another disk than its store's, found the {kind} "
                f"({path}) on the same disk as {owner}. The lake would fill the disk that needs space, and "
                "be lost with that disk. Nothing was created. Put it on another disk, or allow it by name: "
                "--allow-same-disk."
            )


def shared_disk_notice(store: ManagedStore, broker: BrokerStore, data_paths: Sequence[Path]) -> str:
    """Return a notice on our files on a running broker's disks if no setting names the broker.

    If the settings name the broker, :func:`check_disks` refuses such files instead.

    :return: the notice, or "" if none of our files is on these disks, or no running broker was found.
    """
    shared = () if store.is_live else shared_disks(store, data_paths)
    if not shared or not process_of(broker).user():
        return ""
    places = ", ".join(f"{name} ({path})" for name, path in shared)
    return (
        f"on a disk that the running broker writes to: {places}; it stops taking messages when that disk is "
        "full, so put these on another disk"
    )


def check_places(store: ManagedStore, data_paths: Sequence[Path]) -> None:
    """Make sure that lake, journal and reports are in no store's root, and not among the broker's files.

    :raises BadInputError: one of them is in such a place. Nothing was changed.
    """
    places = {kind: directory for kind, _, directory in _places(store)}
    refuse_inside_store(places)
    root = Path(store.real_root)
    own_paths = [path for path in map(_real, data_paths) if path != root]
    for kind, place in places.items():
        real = _real(place)
        if real == root or any(real.is_relative_to(path) for path in own_paths):
            raise inside_store(kind, place, root)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _places(store: ManagedStore) -> Iterator[tuple[str, Path, Path]]:
    """Yield each local place that we write to for a store: its kind, its path, and its directory."""
    for name, lake in zip(("lake", "second lake"), store.lakes, strict=False):
        directories = local_directories(lake)
        for kind, path in local_places(lake).items():
            yield f"{name} {kind}", path, directories[kind]
    if (journal := sqlite_file(store.journal_url)) is not None:
        yield "journal", journal, journal.parent
    yield "reports", Path(store.report_dir), Path(store.report_dir)


def _device(path: Path) -> int:
    """Return the device of ``path``, or of the nearest directory above it if it is missing."""
    for place in (path, *path.absolute().parents):
        try:
            return place.stat().st_dev
        except (FileNotFoundError, NotADirectoryError):
            continue
    return Path("/").stat().st_dev


T = TypeVar("T")

WHOLE = ""
"""Subject of an event on a whole step, such as its result or an error."""
RAN = "ran"
"""Field of a result's event. It names the place where the step ran, such as Spark at a master."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A store that is locked for our changes, with the snapshot from that moment.

    :param notices: notices of checks that could not be made.
    """

    snapshot: StoreSnapshot
    lease: Lease
    store: LockedStore
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """:param data_paths: the directories that the broker writes to, from :func:`checked_data_paths`.
    :param closing: closes everything that was opened for the store, also by :meth:`renewed`.
    :param only_gives_back: the store's hold is only ended, so the places of our files aren't checked.
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
        """Return how many bytes a second archiving may read now. None, as in an emergency, means no limit."""
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

    :param broker, only_gives_back: see :func:`open_context`.
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
    :param only_gives_back: the call only ends the store's hold, so the places of our files aren't checked.
    :raises BadInputError: settings can't be used, :func:`checked_data_paths` refuses a place of our files, or
        a lake of an unknown store is for another kind of broker.
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

    :raises RunStateError: the run has no plan, or its stored plan hasn't the digest that was recorded.
    """
    if run.plan is None:
        raise RunStateError(f"run {run.run_key!r}: expected a plan, found none. Make its plan first.")
    if run.plan.digest != run.plan_digest:
        raise RunStateError(
            f"run {run.run_key!r}: expected a plan with the recorded digest {run.plan_digest}, found a plan "
            f"with the digest {run.plan.digest}. Nothing was changed. Begin another run."
        )
    return run.plan
