"""Migrations of a journal that an older release wrote. Each migration makes the next version.

Each runs once, in the transaction that upgrades a journal to this release's version, while foreign keys
are not enforced. Missing tables are made first. A release refuses a journal of a newer version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, inspect

from storage_engine.journal.tables.rows import project_all
from storage_engine.journal.tables.schema import (
    events_incidents,
    events_of_segments,
    lineages,
    reports,
    runs_by_store,
    samples,
    samples_measured,
    stores,
    stores_by_name,
)

Migration = Callable[[Connection], None]


def remember_hosts(connection: Connection) -> None:
    """Migrate 1 to 2: the host where a store was first seen, archive lag, and clock readings."""
    _add(connection, stores.c.host)
    _add(connection, samples.c.archive_lag)
    _add(connection, samples.c.clock)


def sample_progress(connection: Connection) -> None:
    """Migrate 2 to 3: a column for a running broker's progress with its own work."""
    _add(connection, samples.c.progress)


def change_nothing(connection: Connection) -> None:
    """Migrate 3 to 4, 4 to 5, or 10 to 11. Version 4 has a table for decisions that several runs share. In
    version 5 plans may have several logs, which older releases can't read. Version 11 has a table of leases
    for the settings of clusters.
    """


def tell_hosts_apart(connection: Connection) -> None:
    """Migrate 5 to 6: two machines may each have a store at the same path."""
    if connection.dialect.name == "sqlite":
        _rebuild_stores(connection)
        return
    for unique in inspect(connection).get_unique_constraints(stores.name):
        if unique["column_names"] == [stores.c.real_path.name]:
            connection.exec_driver_sql(f'ALTER TABLE {stores.name} DROP CONSTRAINT "{unique["name"]}"')
    columns = f"{stores.c.host.name}, {stores.c.real_path.name}"
    connection.exec_driver_sql(f"ALTER TABLE {stores.name} ADD UNIQUE ({columns})")


def name_stores(connection: Connection) -> None:
    """Migrate 6 to 7: a name for each store, given when it is managed next, and lineages of single logs."""
    _add(connection, stores.c.name)
    stores_by_name.create(connection, checkfirst=True)
    _add(connection, lineages.c.log)


def answer_without_scans(connection: Connection) -> None:
    """Migrate 7 to 8: plain columns for new samples; tables for lakes' last receipts, reports and findings.

    Existing samples are not changed: converting 90 days of them would block the journal for a minute.
    """
    project_all(connection)
    for column in (
        samples.c.min_offset,
        samples.c.max_offset,
        samples.c.oldest_message_ms,
        samples.c.archive_lag_bytes,
    ):
        _add(connection, column)
    samples_measured.create(connection, checkfirst=True)


def find_events_by_kind(connection: Connection) -> None:
    """Migrate 8 to 9: an index for incidents, an index for segments, and a table of topics and days."""
    for index in (events_incidents, events_of_segments):
        index.create(connection, checkfirst=True)


def show_rules_and_verdicts(connection: Connection) -> None:
    """Migrate 9 to 10: a table for the brokers' rules, and columns for the verdicts of new validations.

    Existing reports are not changed: unpacking 90 days of them would block the journal for a minute.
    """
    _add(connection, reports.c.validation)
    _add(connection, reports.c.lost_ranges)
    runs_by_store.create(connection, checkfirst=True)


MIGRATIONS: Mapping[int, Migration] = {
    1: remember_hosts,
    2: sample_progress,
    3: change_nothing,
    4: change_nothing,
    5: tell_hosts_apart,
    6: name_stores,
    7: answer_without_scans,
    8: find_events_by_kind,
    9: show_rules_and_verdicts,
    10: change_nothing,
}
"""Migrations by the version that they upgrade."""


def _add(connection: Connection, column: Column[Any]) -> None:
    """Add a column if its table doesn't have it. A table made in the same upgrade has it already."""
    if column.name in {info["name"] for info in inspect(connection).get_columns(column.table.name)}:
        return
    kind = column.type.compile(connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}")


def _rebuild_stores(connection: Connection) -> None:
    """Copy the table's rows into one of version 6: SQLite can't drop constraints. References to it stay."""
    new, names = f"{stores.name}_new", "store_id, real_path, broker, lineage, created_at_ms, host"
    connection.exec_driver_sql(
        f"CREATE TABLE {new} (store_id VARCHAR(36) NOT NULL, real_path TEXT NOT NULL, "
        "broker VARCHAR(64) NOT NULL, lineage INTEGER NOT NULL, created_at_ms BIGINT NOT NULL, host TEXT, "
        "PRIMARY KEY (store_id), UNIQUE (host, real_path))"
    )
    connection.exec_driver_sql(f"INSERT INTO {new} ({names}) SELECT {names} FROM {stores.name}")
    connection.exec_driver_sql(f"DROP TABLE {stores.name}")
    connection.exec_driver_sql(f"ALTER TABLE {new} RENAME TO {stores.name}")
