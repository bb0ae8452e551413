"""Making the lake's table of deletions, and making it again where it is lost: its rows come from the journal.

Who makes it holds :data:`~storage_engine.lake.catalog.catalog.CHANGE_LOCK` and the commit lock.
"""

from __future__ import annotations

from contextlib import suppress

from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from storage_engine.exceptions import LakeIdentityError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import (
    LAKE_ID_PROPERTY,
    is_same_catalog,
    lake_id_of,
    mark_location,
    mark_of,
    put_mark,
    read_mark,
    read_mark_at,
    write_mark,
)
from storage_engine.lake.catalog.tables import (
    BROKER_PROPERTY,
    DELETIONS,
    DELETIONS_PROPERTIES,
    deletions_schema,
    partition_by_store,
)
from storage_engine.lake.storage.errors import is_damage, lake_errors
from storage_engine.lake.storage.small_files import delete_small_file


def make_deletions(lake: Lake) -> None:
    """Make the table where the catalog has none. Killed at any instant and run again, it goes on.

    :raises LakeUnavailableError: it is there and can't be used, or can't be made.
    :raises BadInputError: a newer release made it.
    """
    table = lake.deletions()
    if table is None:
        table = _create(lake)
    lake_id = lake_id_of(table)
    if lake_id is not None and table.current_snapshot() is None and read_mark(table) is None:
        put_mark(table.io, table.location(), mark_of(table, lake_id, lake.catalog_id))


def mark_deletions(lake: Lake) -> None:
    """Record below the table what was committed, where there is one.

    :raises LakeIdentityError: the mark says that another catalog committed, or a later one: it stays.
    :raises LakeUnavailableError: it can't be read or written.
    """
    table = lake.deletions()
    if table is not None and (lake_id := lake_id_of(table)) is not None:
        write_mark(table, lake_id, lake.catalog_id)


def drop_damaged(lake: Lake, error: LakeUnavailableError) -> bool:
    """Take a table that is lost or damaged out of the catalog, so that it is made again; its files stay.

    :return: whether that was done; not where the lake can't be reached, or the table is of another lake.
    :raises LakeUnavailableError: the catalog can't be written.
    """
    if not is_damage(error.__cause__):
        return False
    with lake_errors(lake.location, f"drop table {DELETIONS}"), suppress(NoSuchTableError):
        lake.catalog.drop_table((lake.config.namespace, DELETIONS))
    return True


def _create(lake: Lake) -> Table:
    # Beside the receipts, wherever these lie by now.
    segments = lake.segments()
    schema = deletions_schema()
    location = f"{segments.location().rstrip('/').rpartition('/')[0]}/{DELETIONS}"
    with lake_errors(location, "make the table"):
        remove_old_mark(lake, segments, location)
        properties = {name: segments.properties.get(name) for name in (LAKE_ID_PROPERTY, BROKER_PROPERTY)}
        with suppress(TableAlreadyExistsError):
            lake.catalog.create_table(
                (lake.config.namespace, DELETIONS),
                schema=schema,
                location=location,
                partition_spec=partition_by_store(schema),
                properties={
                    **DELETIONS_PROPERTIES,
                    **{name: value for name, value in properties.items() if value is not None},
                },
            )
    table = lake.deletions()
    if table is None:
        raise LakeUnavailableError(
            f"lake {lake.location}: expected the table {DELETIONS} that was made a moment ago, found that "
            "another program dropped it. Run again: it is made again from the journal."
        )
    return table


def remove_old_mark(lake: Lake, segments: Table, location: str) -> None:
    """Remove the mark of a table that was lost, which names another one.

    :raises LakeIdentityError: it is another lake's, or another catalog's.
    """
    mark = read_mark_at(segments.io, location)
    if mark is None:
        return
    if mark.lake_id != lake_id_of(segments) or not is_same_catalog(mark.catalog, lake.catalog_id):
        raise LakeIdentityError(
            f"{location}: expected a place for a table of lake {lake_id_of(segments)}, found "
            f"the mark of lake {mark.lake_id}, whose catalog is {mark.catalog}. Nothing was changed. Give "
            "each lake a warehouse or namespace of its own."
        )
    delete_small_file(segments.io, mark_location(location))
