"""The kind of broker that a lake is for: as its maker said, or the kind of the first store archived into it.

A lake that was made without one has the default broker's table of rows, as older releases expect, and no kind
among the properties of ``segments``. The commit of that property decides: of two first archives at once, one
makes it. A table of rows that is another broker's goes when that is done, by whoever archives next.
"""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table

from storage_engine.brokers import broker_names, find_broker
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake, check_broker, has_no_broker
from storage_engine.lake.catalog.commit_lock import nobody_commits
from storage_engine.lake.catalog.deletions_table import remove_old_mark
from storage_engine.lake.catalog.identity import (
    LAKE_ID_PROPERTY,
    lake_id_of,
    mark_location,
    mark_of,
    put_mark,
    read_mark,
    write_mark,
)
from storage_engine.lake.catalog.tables import (
    BROKER_PROPERTY,
    make_rows_table,
)
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import delete_small_file


def settle_broker(lake: Lake, broker: str) -> None:
    """Make a lake that takes any kind one for a broker's segments; make sure that any other is one.

    Killed at any instant and run again, for the same broker or another, it goes on.

    :raises BadInputError: the lake has another broker's, or got it at this moment; nothing was changed.
    :raises LakeUnavailableError: it can't be read or written.
    """
    check_broker(lake, broker)
    if has_no_broker(lake):
        with CHANGE_LOCK, nobody_commits(lake):
            if has_no_broker(lake):
                _take(lake, broker)
    check_broker(lake, broker)
    _drop_others(lake)


def _take(lake: Lake, broker: str) -> None:
    segments, rows = lake.segments(), find_broker(broker).rows_table
    if rows != lake.rows_table:
        _make_rows(lake, segments, broker)
    with lake_errors(lake.location, f"make it one for segments of {broker}"):
        try:
            with segments.transaction() as transaction:
                transaction.set_properties({BROKER_PROPERTY: broker})
        except CommitFailedException:
            # On an object store nobody is held off: another archive came first, and its kind counts.
            return
    write_mark(segments.refresh(), segments.properties[LAKE_ID_PROPERTY], lake.catalog_id)


def _make_rows(lake: Lake, segments: Table, broker: str) -> None:
    kind = find_broker(broker)
    codec, name = kind.codec, (lake.config.namespace, kind.rows_table)
    lake_id = segments.properties[LAKE_ID_PROPERTY]
    location = f"{segments.location().rstrip('/').rpartition('/')[0]}/{kind.rows_table}"
    own = {LAKE_ID_PROPERTY: lake_id, BROKER_PROPERTY: broker}
    with lake_errors(location, "make the table"):
        if not lake.catalog.table_exists(name):
            remove_old_mark(lake, segments, location)
            make_rows_table(lake.catalog, name, codec, location, own)
        table = lake.catalog.load_table(name)
        if read_mark(table) is None:
            put_mark(table.io, table.location(), mark_of(table, lake_id, lake.catalog_id))


def _drop_others(lake: Lake) -> None:
    """Drop empty tables of rows of other kinds with this lake's UUID. Their directories and locks stay."""
    lake_id = lake_id_of(lake.segments())
    with lake_errors(lake.location, "list the catalog's tables"):
        there = {name[-1] for name in lake.catalog.list_tables(lake.config.namespace)}
    for broker in broker_names():
        with suppress(BadInputError, LakeUnavailableError, NoSuchTableError):
            name = find_broker(broker).rows_table
            if name not in there or name == lake.rows_table:
                continue
            table = lake.load(name)
            if lake_id is None or lake_id_of(table) != lake_id or table.current_snapshot() is not None:
                continue
            delete_small_file(table.io, mark_location(table.location()))
            with lake_errors(table.location(), "drop the table"):
                lake.catalog.drop_table((lake.config.namespace, name))
            delete_small_file(table.io, table.metadata_location)
