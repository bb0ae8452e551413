"""Description of a lake. If other commands refuse the lake, it says why, and which command helps.

A description never changes the lake.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import load_file_io

from storage_engine.brokers import store_text
from storage_engine.commands import Text
from storage_engine.exceptions import BadInputError, LakeUnavailableError, StorageEngineError
from storage_engine.lake.acts.act_files import Acts, read_acts_at
from storage_engine.lake.catalog.catalog import (
    Lake,
    broker_in,
    check_lake,
    connect,
    read_pointers,
    rows_table_among,
    rows_table_of,
    sql_catalog,
    takes_any_broker,
)
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import (
    COPIED_HEADS_PROPERTY,
    COPY_OF_PROPERTY,
    LAKE_ID_PROPERTY,
    PROMOTED_PROPERTY,
    Mark,
    known_mark_at,
)
from storage_engine.lake.catalog.own_tables import OwnTables, ignored_properties
from storage_engine.lake.catalog.placed_table import PlacedTable, live_files, read_placed
from storage_engine.lake.catalog.tables import DELETIONS, SCHEMA_VERSION_PROPERTY, SEGMENTS, check_version_of
from storage_engine.lake.move.moving import all_receipts, own_location, placed_table
from storage_engine.lake.restore.restore_span import runs
from storage_engine.lake.soundness.receipts import by_store, current
from storage_engine.model.keep.acts import policy_of
from storage_engine.model.keep.keep_rules import ArchiveRule
from storage_engine.model.proof.receipt import ChainHead, Receipt, ended, select_whole


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Description of one table.

    :param location: present location of the table's files.
    :param metadata: name of the metadata file that the catalog names.
    :param named_location: location of the files according to the metadata.
    :param metadata_count: number of metadata files in the metadata's log.
    :param mark: the mark below the table's location; None if none can be read.
    :param fault: why the other fields aren't known; "" if they are.
    """

    name: str
    location: str
    metadata: str
    named_location: str | None = None
    former_locations: tuple[str, ...] = ()
    table_uuid: str | None = None
    schema_version: str | None = None
    snapshot_count: int = 0
    metadata_count: int = 0
    file_count: int = 0
    file_bytes: int = 0
    row_count: int = 0
    mark: Mark | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Description of one store in a lake.

    :param ranges: contiguous ranges in the lake, as (log, lineage, from, to).
    :param expired: contiguous ranges of expired segments. No other field counts these segments.
    :param in_part: contiguous ranges of segments of which archive rules kept some topics out of the lake.
    :param head_sequence: number of the last receipt of the chain.
    :param root: path of the store when its last receipt was written.
    """

    store_id: str
    name: str
    segment_count: int
    size_bytes: int
    ranges: tuple[tuple[str, int, int, int], ...]
    head_sequence: int
    head_hash: str
    root: str
    expired: tuple[tuple[str, int, int, int], ...] = ()
    in_part: tuple[tuple[str, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LakeInfo:
    """Description of a lake.

    :param lake_id: the lake's UUID; None for a lake of version 1, or if its tables can't be read.
    :param refused: why other commands refuse the lake, and what to do; "" if they open it.
    :param copy_of: UUID of the original, if this is a read-only copy.
    :param copied_heads: for each store, number and hash of the last receipt when the lake was copied.
    :param promoted: who made a copy writable, when and why.
    :param broker: broker of its segments; "" if the first archived store decides it; None if the tables can't
        be read.
    :param acts: number of recorded acts; None if they can't be read.
    :param acts_fault: why the acts can't be read; "" if they can, or if the table ``segments`` can't be read.
    :param archive_rules: rules by which messages aren't archived.
    :param ignored: for each table, the names of properties that have no effect here. The table "" stands for
        a REST catalog's own properties.
    """

    location: str
    catalog: str | None
    namespace: str
    lake_id: str | None
    refused: str
    copy_of: str | None
    copied_heads: dict[str, tuple[int, str]]
    promoted: dict[str, object] | None
    tables: tuple[TableInfo, ...]
    stores: tuple[StoreInfo, ...]
    broker: str | None = None
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    acts: int | None = 0
    acts_fault: str = ""
    archive_rules: tuple[ArchiveRule, ...] = ()


def describe(config: LakeConfig) -> LakeInfo:
    """Describe a lake. The description of a lake with a newer major version lacks its stores.

    :raises BadInputError: the configuration names no catalog that PyIceberg knows.
    """
    catalog: str | None = None
    lake: Lake | None = None
    placed: dict[str, PlacedTable] = {}
    infos: tuple[TableInfo, ...] = ()
    refused = ""
    try:
        lake = connect(config)
        catalog = lake.catalog_id
        with suppress(LakeUnavailableError):
            placed, infos = _read_tables(lake)
        try:
            check_lake(lake)
        except BadInputError as error:
            refused = Text(error)
    except LakeUnavailableError as error:
        refused = Text(error)
    stores: tuple[StoreInfo, ...] = ()
    acts, acts_fault = _read_acts(placed)
    rules = policy_of(acts or ()).archive_rules
    properties = placed[SEGMENTS].metadata.properties if SEGMENTS in placed else {}
    if SEGMENTS in placed:
        try:
            # Receipts of a newer version may have another meaning.
            check_version_of(placed[SEGMENTS].location, properties)
            stores = tuple(_describe_stores(all_receipts(placed[SEGMENTS])))
        except StorageEngineError as error:
            refused = refused or Text(error)
    heads = json.loads(properties.get(COPIED_HEADS_PROPERTY, "{}"))
    return LakeInfo(
        location=config.location,
        catalog=catalog,
        namespace=config.namespace,
        lake_id=properties.get(LAKE_ID_PROPERTY),
        refused=refused,
        copy_of=properties.get(COPY_OF_PROPERTY),
        copied_heads={store: (sequence, row_hash) for store, (sequence, row_hash) in heads.items()},
        promoted=json.loads(properties.get(PROMOTED_PROPERTY, "null")),
        tables=infos,
        stores=stores,
        broker=_broker_of(placed),
        ignored=tuple(_list_ignored(lake, placed.values())),
        acts=None if acts is None else len(acts),
        acts_fault=acts_fault,
        archive_rules=tuple(rule for rule in rules if not rule.archives),
    )


def _read_acts(placed: Mapping[str, PlacedTable]) -> tuple[Acts | None, str]:
    if SEGMENTS not in placed:
        return None, ""
    try:
        return read_acts_at(placed[SEGMENTS].io, placed[SEGMENTS].location), ""
    except LakeUnavailableError as error:
        return None, Text(error)


def _broker_of(placed: Mapping[str, PlacedTable]) -> str | None:
    if SEGMENTS not in placed:
        return None
    segments = placed[SEGMENTS].metadata
    rows = placed.get(_rows_table(placed, placed))
    if rows is not None and takes_any_broker(segments, rows.metadata):
        return ""
    return broker_in(segments.properties)


def _list_ignored(lake: Lake | None, tables: Iterable[PlacedTable]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for table in tables:
        names = ignored_properties(table.metadata.properties)
        if table.is_unmoved and table.is_elsewhere:
            names = ("location", *names)
        if names:
            yield table.name, names
    if lake is not None and isinstance(lake.catalog, OwnTables) and lake.catalog.ignored:
        yield "", tuple(sorted(lake.catalog.ignored))


def _read_tables(lake: Lake) -> tuple[dict[str, PlacedTable], tuple[TableInfo, ...]]:
    """Return the tables that can be read, and a description of every table."""
    placed: dict[str, PlacedTable] = {}
    infos: list[TableInfo] = []
    places = _table_places(lake)

    def read_table(name: str) -> None:
        if name not in places:
            return
        pointer, location = places[name]
        file = pointer.rpartition("/")[2]
        try:
            table = _read_table(lake, name, pointer, location)
            infos.append(_describe_table(table))
            placed[name] = table
        except StorageEngineError as error:
            infos.append(TableInfo(name, location, file, fault=Text(error)))

    read_table(SEGMENTS)
    read_table(_rows_table(placed, places))
    read_table(DELETIONS)
    return placed, tuple(infos)


def _read_table(lake: Lake, name: str, pointer: str, location: str) -> PlacedTable:
    if isinstance(lake.catalog, SqlCatalog):
        return placed_table(lake, name, pointer)
    file_io = load_file_io(lake.config.file_io_properties, location)
    table = read_placed(file_io, name, location, pointer.rpartition("/")[2], pointer)
    return replace(table, is_unmoved=True)


def _rows_table(placed: Mapping[str, PlacedTable], names: Iterable[str]) -> str:
    if SEGMENTS in placed:
        with suppress(BadInputError):
            return rows_table_of(placed[SEGMENTS].metadata.properties)
    return rows_table_among(names)


def _table_places(lake: Lake) -> dict[str, tuple[str, str]]:
    if lake.config.properties.get("type") == "sql":
        sql_catalog(lake)
        return {name: (at, own_location(lake.config, name, at)) for name, at in read_pointers(lake).items()}
    return {
        table.name()[-1]: (table.metadata_location, table.location().rstrip("/"))
        for table in lake.every_table()
    }


def _describe_table(table: PlacedTable) -> TableInfo:
    files = live_files(table)
    metadata = table.metadata
    return TableInfo(
        name=table.name,
        location=table.location,
        metadata=table.file_name,
        named_location=table.named_location,
        former_locations=table.former_locations,
        table_uuid=str(metadata.table_uuid),
        schema_version=metadata.properties.get(SCHEMA_VERSION_PROPERTY),
        snapshot_count=len(metadata.snapshots),
        metadata_count=len(metadata.metadata_log) + 1,
        file_count=len(files),
        file_bytes=sum(file.file_size_in_bytes for file in files.values()),
        row_count=sum(file.record_count for file in files.values()),
        mark=known_mark_at(table.io, table.location),
    )


def _describe_stores(rows: Sequence[Receipt]) -> list[StoreInfo]:
    stores = []
    for store, of_store in by_store(rows).items():
        counting = select_whole(current(of_store))
        head, removed = ChainHead.of(of_store), ended(current(of_store))
        stores.append(
            StoreInfo(
                store_id=store,
                name=store_text(of_store[-1].store_name, of_store[-1].broker, of_store[-1].store_root),
                segment_count=len(counting),
                size_bytes=sum(row.size_bytes for row in counting),
                ranges=tuple(_contiguous_ranges(counting)),
                head_sequence=head.sequence,
                head_hash=head.row_hash,
                root=of_store[-1].store_root,
                expired=tuple(_contiguous_ranges([row for row in removed if not row.lacks_by_rules])),
                in_part=tuple(_contiguous_ranges([row for row in removed if row.lacks_by_rules])),
            )
        )
    return stores


def _contiguous_ranges(rows: Sequence[Receipt]) -> list[tuple[str, int, int, int]]:
    """Return the contiguous ranges of receipts, which are sorted by log, lineage and offset."""
    of_logs = groupby(rows, key=lambda row: (row.log, row.lineage))
    return [(*log, *ends) for log, of_log in of_logs for ends in runs(list(of_log))]
