"""The Test button's work: a look at a store, its broker, journal and lake. The look changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from shlex import quote

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.credentials import without_secrets
from storage_engine.core.host import check_host
from storage_engine.exceptions import BadInputError, LakeMissingError
from storage_engine.journal.tables.database import missing_sqlite_file, place_of
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.broker.broker_store import hold_of
from storage_engine.retention.hold.hold_text import broker_text, drift_text, hold_text
from storage_engine.retention.store.broker_answers import take_snapshot
from storage_engine.retention.store.brokers import open_to_look, running_broker
from storage_engine.retention.store.context import checked_data_paths
from storage_engine.retention.store.managed_store import ManagedStore


def check_store(store: ManagedStore) -> str:
    """Make sure that a connection's store, journal and lake can be used.

    :return: the findings, in a few sentences.
    :raises StorageEngineError: something can't be used. The error names it and the reason.
    """
    check_host(store.root, store.host, None)
    lakes = tuple(_check_lakes(store))
    broker = running_broker(store)
    running = () if broker is None else (f"{broker_text(broker)}.",)
    return " ".join((*running, *_check_files(store), _check_journal(store.journal_url), *lakes))


def _check_files(store: ManagedStore) -> Iterator[str]:
    """Yield sentences about a store's segments, disks and hold.

    :raises BadInputError: a directory to which we write would be on a disk of the running broker.
    """
    now_ms = clock_ms()
    with closing(open_to_look(store)) as opened:
        checked_data_paths(store, opened)
        snapshot = take_snapshot(opened, now_ms, store.broker)
        segments = sum(len(log.segments) for log in snapshot.logs)
        sealed = sum(len(log.sealed) for log in snapshot.logs)
        levels = ", ".join(
            "unknown" if disk.used_percent is None else f"{disk.used_percent} % used"
            for disk in snapshot.disks
        )
        sign = find_broker(store.broker).words.crash_sign
        crashed = f" Its broker is running or did not stop cleanly ({sign})." if snapshot.crashed else ""
        yield f"Store: {segments} segments, {sealed} of them sealed; disks: {levels}.{crashed}"
        if opened.is_live:
            status = hold_of(opened).status(now_ms)
            yield f"Hold: {hold_text(status)}."
            yield from (f"{drift_text(drift)}." for drift in status.disturbances)
            yield from (Text(notice, ".") for notice in status.notices)


def _check_journal(url: str) -> str:
    """Return a sentence about a journal.

    :raises BadInputError: the database can't be reached. The error never shows its password.
    :raises MissingExtraError: the database's driver isn't installed.
    """
    place = place_of(url)
    if missing_sqlite_file(url):
        return "Journal: it doesn't exist yet. The first run creates it."
    with place.driver_errors():
        engine = create_engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        reason = without_secrets(str(error), place.secrets)
        raise BadInputError(f"journal {place.name}: expected a database that answers: {reason}") from error
    finally:
        engine.dispose()
    return "Journal: reachable."


def _check_lakes(store: ManagedStore) -> Iterator[str]:
    """Yield a sentence about each lake.

    :raises LakeUnavailableError: a lake can't be used. For a missing lake, the error names the remedy.
    """
    if not store.archives:
        yield "Lake: not needed, because nothing is archived."
        return
    for name, config in zip(("Lake", "Second lake"), store.lakes, strict=False):
        try:
            open_lake(config)
        except LakeMissingError as error:
            made_by = Command("init-lake", f"--conn-id {quote(store.name)}")
            problem = f"{name}: it doesn't exist. Mount its disk, or create the lake: "
            raise LakeMissingError(problem, made_by, " (", error, ")") from error
        yield f"{name}: reachable."
