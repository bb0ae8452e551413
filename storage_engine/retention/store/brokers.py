"""Opening of a store by the kind of its broker, and a check whether the store's disk answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from storage_engine.brokers import cleanups_of, find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.turns import take_turn
from storage_engine.exceptions import BadInputError, DiskUnavailableError, StoreBusyError, TurnTakenError
from storage_engine.model.broker.broker_store import (
    BrokerStore,
    FenceWatch,
    StoreSettings,
    is_used_by_others,
    process_of,
)
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.broker.kind import Cleanups
from storage_engine.model.broker.live import LiveBroker, RunningBroker
from storage_engine.model.hold import HoldMemory
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.store.broker_answers import ask, asked, package_errors
from storage_engine.retention.store.managed_store import ManagedStore

if TYPE_CHECKING:
    from storage_engine.model.report.inspection import Inspection

ANSWER_SECONDS = 30.0


def check_answers(root: str) -> None:
    """Make sure that the disk of a store answers, even if only to say that a path is missing.

    Nothing can interrupt a wait for a server that is gone. So another thread waits, and may wait for ever.

    :raises DiskUnavailableError: the disk doesn't answer for ``ANSWER_SECONDS``.
    """
    asking = threading.Thread(target=_ask, args=(root,), name=f"storage-engine-ask {root}", daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    if asking.is_alive():
        raise DiskUnavailableError(
            f"{root}: expected an answer of its disk within {ANSWER_SECONDS:.0f} s, found none. Nothing was "
            "read or changed. Check that the disk works, and that the server of its mount can be reached."
        )


def _ask(root: str) -> None:
    with suppress(OSError):
        # The kernel may have a file's attributes in its cache, but has to ask the disk how full it is.
        os.statvfs(root)


def open_store(store: ManagedStore, memory: HoldMemory | None = None) -> BrokerStore:
    """Open ``store`` by its broker.

    :param memory: remembered state of a running broker's hold; without it the store can be read but not held.
    :raises BadInputError: there is no such kind of broker, or it doesn't permit the settings. For example,
        they name a running broker, and stores of this kind are managed only while their broker is stopped.
    :raises BrokerError: the settings name a running broker, and it can't be asked.
    """
    broker = find_broker(store.broker)
    if store.engine and broker.engine is None:
        raise BadInputError(
            f"{store.root}: expected a kind of broker with an engine in this package, found "
            f"{broker.words.title}. Nothing was changed. Leave the mode engine out."
        )
    opened = ask(store.broker, "open its store", lambda: broker.open_store(settings_of(store), memory))
    if store.is_live and not opened.is_live:
        opened.close()
        raise _not_running_error(store)
    return asked(opened, store.broker)


def inspect_store(
    store: ManagedStore, now_ms: int, *, messages: bool, queues: bool, snapshot: StoreSnapshot | None
) -> Inspection:
    """Describe a store for a person. Without a description by its kind of broker, return a general one.

    :param snapshot: snapshot of a running broker's store; None takes one.
    :raises StorageEngineError: the store can't be read.
    """
    if (inspection := find_broker(store.broker).inspection) is not None:
        with package_errors(store.broker, "describe its store"):
            return inspection.inspect(
                settings_of(store), now_ms, messages=messages, queues=queues, snapshot=snapshot
            )
    from storage_engine.model.report.inspection import plain_inspection

    if snapshot is None:
        with closing(open_store(store)) as opened:
            snapshot = opened.snapshot(now_ms)
    return plain_inspection(snapshot)


def open_to_make_room(store: ManagedStore, memory: HoldMemory | None) -> BrokerStore:
    """Open a stopped broker's store on a full disk, to delete segments that other nodes of its cluster have.

    :raises BadInputError: this kind of broker has no replicas that can be asked.
    """
    kind = find_broker(store.broker)
    running, opened = kind.running, None
    if running is not None:
        opened = ask(
            store.broker, "open its store", lambda: running.open_to_make_room(settings_of(store), memory)
        )
    if opened is None:
        raise BadInputError(
            f"{store.root}: expected a node of a cluster with replicas, found {kind.words.title}. Nothing "
            "was changed. ",
            Command("clean"),
            " makes room there.",
        )
    return asked(opened, store.broker)


def _not_running_error(store: ManagedStore) -> BadInputError:
    return BadInputError(
        f"{store.root}: expected a broker whose stores are managed while it runs, found "
        f"{find_broker(store.broker).words.title}. Nothing was changed. Stop the broker, and leave "
        "out its address."
    )


def fence_watch(store: ManagedStore) -> FenceWatch | None:
    """Return a watch of the files that a store's hold needs, or None if such a hold needs no watch."""
    running = find_broker(store.broker).running
    return None if running is None else running.watch_fence(settings_of(store))


def open_to_look(store: ManagedStore) -> BrokerStore:
    """Open ``store``. A running broker's store gets its journal's memory of a hold. No journal is made.

    Without that memory, a held segment's age may be counted from the mtime that the hold has set.

    :raises StorageEngineError: the journal can't be read, or the same errors as of :func:`open_store`.
    """
    if not store.is_live or not store.journal_url:
        return open_store(store)
    # Imported here, because a look at a stopped broker's store doesn't need the database's libraries.
    from storage_engine.journal.journal import Journal, hold_memory
    from storage_engine.journal.tables.database import missing_sqlite_file

    if missing_sqlite_file(store.journal_url):
        return open_store(store)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root, store.host)
    return open_store(store, None if record is None else hold_memory(journal, record.store_id))


def may_clean_now(store: ManagedStore) -> bool:
    """Return whether a cleanup may delete from a store in its present state.

    Some kinds permit it only while no broker runs.
    """
    if store.cleans_up or not store.cleans_up_on_request:
        return store.cleans_up
    with closing(open_to_look(store)) as opened:
        return not is_used_by_others(opened)


def refuse_cleanup(store: ManagedStore) -> None:
    """Make sure that a store may be held and cleaned up.

    :raises BadInputError: the store can only be archived.
    """
    if not store.cleans_up_on_request:
        title = find_broker(store.broker).words.title
        raise BadInputError(
            f"{store.root}: expected a store that can be cleaned up, found one of {title} that is left "
            "to its running broker. Nothing was changed. Let the broker delete by its own rules, which ",
            Command("plan"),
            " shows. Or have us delete: --deletes-us at a shell, deletes: us in the connection. Or stop the "
            "broker, and leave out its address.",
        )
    check_undo_settings(store)


def refuse_in_use(store: ManagedStore, broker: BrokerStore, is_leased: Callable[[], bool]) -> None:
    """Make sure that no process uses a stopped broker's store. If another of our runs uses it, wait for it.

    A run that deletes locks the store anyway. A run with nothing to delete learns only here who uses it.

    :param is_leased: returns whether a run changes the store, as its journal says.
    :raises StoreBusyError: another process has its lock.
    """
    take_turn(lambda: _refuse_in_use(store, broker, is_leased))


def _refuse_in_use(store: ManagedStore, broker: BrokerStore, is_leased: Callable[[], bool]) -> None:
    process = process_of(broker)
    if broker.is_live or not (user := process.user()):
        return
    if is_leased() or process.is_user_ours():
        raise TurnTakenError(
            f"{store.root}: expected a store that no other run changes, found that {user}: it is another run "
            "of storage-engine. Nothing was changed. Wait until it is done."
        )
    kind = find_broker(store.broker)
    deletes = "" if cleanups_of(store.broker, LiveBroker()) is Cleanups.WHEN_DUE else " with --deletes-us"
    engine = Text(" For a store that ", Command("serve"), " writes, give --engine.") if kind.engine else ""
    raise StoreBusyError(
        f"{store.root}: expected a store whose broker is stopped, found that {user}: its broker runs, or "
        "another run works on it. Nothing was changed. Stop the broker or wait for the run; or, to clean up "
        f"beside the running broker, name the broker: --broker ADDRESS{deletes} at a shell, its address in "
        "the connection.",
        engine,
    )


def refuse_shield(store: ManagedStore) -> None:
    """Make sure that a store can have a shield.

    :raises BadInputError: this kind of broker can't have a shield.
    """
    if find_broker(store.broker).aside is not Aside.IN_STORE:
        raise no_shield(store)


def no_shield(store: ManagedStore) -> BadInputError:
    """Return the error for a store that can't have a shield."""
    return BadInputError(
        f"{store.root}: expected a store that can have a shield, found one of "
        f"{find_broker(store.broker).words.title}. Nothing was changed. Archive it: ",
        Command("archive"),
        "; or keep its running broker from deleting: ",
        Command("hold"),
        ".",
    )


def check_undo_settings(store: ManagedStore) -> None:
    """:raises BadInputError: the policy's settings for an undo aren't possible with the store's broker."""
    broker = find_broker(store.broker)
    hours, directories = store.policy.undo_window_hours, store.policy.undo_directories
    if hours is not None and not isinstance(broker.aside, Aside):
        raise BadInputError(
            f"store {store.name}: expected no undo_window_hours with {broker.words.title}, found {hours}: "
            "deleted files can't be set aside there. Nothing was changed. Leave the setting empty. The "
            "command restore brings segments back from the lake."
        )
    if directories and broker.aside is not Aside.OUTSIDE:
        raise BadInputError(
            f"store {store.name}: expected no undo_directories with {broker.words.title}, found "
            f"{', '.join(directories)}: its quarantine is in the store. Nothing was changed. Leave them "
            "empty."
        )
    if broker.aside is Aside.OUTSIDE and (hours is None) == bool(directories):
        setting = "undo_directories alone" if directories else f"undo_window_hours {hours} alone"
        raise BadInputError(
            f"store {store.name}: expected undo_window_hours together with undo_directories, because a "
            f"quarantine of {broker.words.title} is outside the store, found {setting}. Nothing was changed. "
            "Give both, --undo-window-hours and --undo-directory at a shell, or neither."
        )


def running_broker(store: ManagedStore) -> RunningBroker | None:
    """Return how the store's running broker describes itself, or None if no running broker was named.

    :raises BrokerError: the broker can't be asked.
    """
    if store.live is None:
        return None
    running, live = find_broker(store.broker).running, store.live
    if running is None:
        raise _not_running_error(store)
    return ask(store.broker, "tell what runs", lambda: running.ask(live))


def assumes_defaults(store: ManagedStore) -> bool:
    """Return whether no setting says how long the broker keeps segments, so that its default applies."""
    return store.broker_conf is None and not store.is_live and may_set_age(store) and not sets_age(store)


def may_set_age(store: ManagedStore) -> bool:
    """Return whether settings outside a store's own files can say how long its segments are kept."""
    return find_broker(store.broker).settings.of_age != frozenset()


def sets_age(store: ManagedStore) -> bool:
    """Return whether one of the store's ``overrides`` may say how long segments are kept."""
    names = find_broker(store.broker).settings.of_age
    return bool(store.overrides if names is None else names & set(store.overrides))


def settings_of(store: ManagedStore) -> StoreSettings:
    return StoreSettings(
        store.root, store.broker_conf, store.overrides, store.time_zone, store.live, store.engine
    )
