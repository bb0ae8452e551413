"""The lake's Iceberg tables: their columns, field ids, partitions and properties, and how they change.

Data files carry Iceberg's field ids, so other engines read them without a name mapping. The ids are the
ones that a catalog gives when it creates the table; :func:`check_messages_schema` makes sure of it.

A table's property says which version of the schema it has, ``<major>.<minor>``. A minor version only adds
columns that may be empty, so that a release that knows an older or a newer minor version can read and write
the table. Any other change makes a new major version. A release that doesn't know the major version must not
touch the table. Version 1 had no identity and named data files by whole locations. It can be read, and
becomes version 2 when it is written to. Version 3 has trees. Only ``storage-engine lake upgrade`` makes
version 3 of version 2; until then a lake of version 2 stays as it is.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, NestedField, StringType

from storage_engine.core.clock import DAY_MS
from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.model.broker.codec import Columns, SegmentCodec
from storage_engine.model.proof.deleted_range import DeletedRange
from storage_engine.model.proof.receipt import Receipt

_MS = "in milliseconds since the epoch"

IDENTITY_COMMENTS: Mapping[str, str] = {
    "store_id": "UUID of the store, for ever",
    "lineage": "counts how often other bytes came under the same offsets of the log",
    "log": "name of the log within its store",
    "segment_base_offset": "first offset of the segment that the row is of",
}

SEGMENTS_COMMENTS: Mapping[str, str] = {
    "store_id": IDENTITY_COMMENTS["store_id"],
    "lineage": IDENTITY_COMMENTS["lineage"],
    "log": IDENTITY_COMMENTS["log"],
    "base_offset": "first offset of the segment",
    "size_bytes": "length of the segment's file",
    "sha256": "SHA-256 of the segment's file, in hex",
    "broker": "kind of broker that wrote the segment",
    "store_root": "directory of the store when the segment was proven",
    "message_count": "messages in the segment",
    "row_count": "rows of the segment in the table of rows",
    "damaged_bytes": "bytes of the segment that could not be read as messages",
    "first_store_timestamp_ms": f"when its first message was stored, {_MS}; null: it has none",
    "last_store_timestamp_ms": f"when its last message was stored, {_MS}; null: it has none",
    "source_path": "file that the segment was archived from",
    "source_device": "device of that file",
    "source_inode": "inode of that file",
    "source_mtime_ns": "when that file was written last, in nanoseconds since the epoch",
    "source_ctime_ns": "when that file's inode was changed last, in nanoseconds since the epoch",
    "data_file": "data file with the segment's rows, relative to the table of rows",
    "data_file_bytes": "length of the data file",
    "data_file_sha256": "SHA-256 of the data file, in hex",
    "proof_version": "version of what proven means",
    "proven_at_ms": f"when every byte was read back from the lake, {_MS}",
    "moved_to": "JSON list of the files that have the rows since another engine moved them; null: data_file",
    "sequence": "number of the receipt among those of its store; of one segment the last counts",
    "previous_hash": "row_hash of the receipt before it",
    "row_hash": "SHA-256 of all other fields that have a value, as canonical JSON, in hex",
    "end_offset": "offset behind the segment's last; null: base_offset + size_bytes",
    "files": "JSON list of the segment's further files; null: it is one file",
    "store_name": "what people called the store then",
    "store_host": "machine on which the store lay then",
    "log_id": "the broker's own identity of the log; null: its name is all",
    "digest": "the broker's digest of the segment's content; null: sha256 is",
    "evidence": "JSON object of what else is known of the proof, and of the last deletion before it",
    "root": "root of the tree over the segment's rows, in hex; null: it has none yet",
    "streams": "JSON list of the streams below the root; null: there is one, and nothing of it is gone",
    "row_groups": "row groups FIRST-END of data_file with the rows, END exclusive; null: all of them",
    "state": "partial: rows of it are gone; expired: all are; null: it is whole",
    "act": "JSON object of the act by which the row was written; null: by archiving",
}

TREE_COMMENTS: Mapping[str, str] = {
    "leaf_key": "key of the row's salt, one for a run of rows; null: the row has no byte, or leaf_salt",
    "leaf_salt": "salt of the row's leaf, where the key of its run is gone",
    "leaf_hash": "the row's leaf, where its bytes are gone",
    "gone": "id of the act by which the row's bytes went; null: they are here",
}

DELETIONS_COMMENTS: Mapping[str, str] = {
    "store_id": IDENTITY_COMMENTS["store_id"],
    "lineage": IDENTITY_COMMENTS["lineage"],
    "log": IDENTITY_COMMENTS["log"],
    "start_offset": "first offset of the range",
    "end_offset": "offset behind the range's last",
    "run": "key of the run in the journal",
    "run_begun_at_ms": f"when the run began, {_MS}",
    "what": "released: a run deleted it; gone: by another's doing; lost: a person accepted its loss",
    "cause": "why it went, in one word",
    "detail": "why it went, as a sentence; of several segments what was said of the first",
    "who": "who decided it: a person, or storage-engine by the store's policy",
    "at_ms": f"when the journal recorded that the last of it had gone, {_MS}",
    "event_id": "number of the last event of the run that events_sha256 covers",
    "events_sha256": "SHA-256 of the run's plan, intents, results and losses as canonical JSON, in hex",
    "store_name": "what people called the store when the row was written",
    "topic_id": "id of the topic that the log was of; null: not known, or the broker has none",
    "first_store_timestamp_ms": f"when its first message was stored, {_MS}; null: no receipt tells",
    "last_store_timestamp_ms": f"when its last message was stored, {_MS}; null: no receipt tells",
}


SEGMENTS = "segments"
"""The table of receipts. The table of rows has a name that the broker's package gives it."""

DELETIONS = "deletions"
"""The table of ranges that a run released or found deleted. It is made from the journal, if it is missing."""

SCHEMA_VERSION = "3.0"
"""Schema version of a new lake."""
VERSION_WITHOUT_TREES = "2.0"
"""Schema version of an older lake that this release has written to, and of the table of deletions."""
SCHEMA_VERSION_PROPERTY = "storage-engine.schema-version"

_MAJOR_WITH_TREES = "3"
READABLE_MAJORS = ("1", "2", _MAJOR_WITH_TREES)

LEAF_KEY, LEAF_SALT = "leaf_key", "leaf_salt"

_TREE_TYPES: dict[str, pa.DataType] = {
    LEAF_KEY: pa.binary(),
    LEAF_SALT: pa.binary(),
    "leaf_hash": pa.binary(),
    "gone": pa.string(),
}
TREE_COLUMNS = pa.schema([pa.field(name, kind) for name, kind in _TREE_TYPES.items()])
"""Columns that the lake adds after a codec's columns since version 3."""

TREE_FIELDS = ("root", "streams", "row_groups", "state", "act")
"""Columns of receipts since version 3."""

LATER_COLUMNS: tuple[str, ...] = ("properties_text",)
"""Columns that some codec has since version 3, in the order in which they were added. A new table gets the
columns of version 1.0 first, then :data:`TREE_COLUMNS`, then these columns. So the field ids are the same in
every lake of version 3."""

COMMIT_RETRIES_PROPERTY = "commit.retry.num-retries"

_IDENTITY_TYPES: dict[str, pa.DataType] = {
    "store_id": pa.string(),
    "lineage": pa.int32(),
    "log": pa.string(),
    "segment_base_offset": pa.int64(),
}
IDENTITY_COLUMNS = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _IDENTITY_TYPES.items()])
"""Columns that the lake adds before a codec's columns."""

SELECTIVE_COLUMNS = (*IDENTITY_COLUMNS.names, "physical_offset", "kind")
"""Columns of every broker's rows with minimum and maximum in the manifests, because queries select by them.
"""

BROKER_PROPERTY = "storage-engine.broker"
"""Property of each table: the broker whose segments the lake has; the default broker if it is missing."""

METADATA_AGE_MS = 7 * DAY_MS
"""Minimum time for which metadata files, manifest lists and manifests are kept after no table names them.
A catalog may be brought back from a backup of that age."""

GROWTH_PROPERTIES = {
    # Otherwise each commit leaves a manifest that every later commit has to open.
    "commit.manifest-merge.enabled": "true",
    # A merge writes all entries of a manifest again. Small manifests keep that cheap in a long history.
    "commit.manifest.min-count-to-merge": "10",
    "commit.manifest.target-size-bytes": "65536",
    # A catalog from a backup names an older metadata file. Garbage collection removes such files by age.
    "write.metadata.delete-after-commit.enabled": "false",
    # Number of older metadata files that each new one names.
    "write.metadata.previous-versions-max": "100",
}
"""Limits on the growth of a table's metadata. A table of another version gets them when it is written to."""

OWN_PROPERTIES = {
    "format-version": "2",
    # A built-in retry commits the same files again, even if the table has them by now.
    COMMIT_RETRIES_PROPERTY: "0",
    "write.parquet.compression-codec": "zstd",
    **GROWTH_PROPERTIES,
}
"""Properties with the values that this package uses for both tables, even if the tables have other values."""

_COMMON_PROPERTIES = {**OWN_PROPERTIES, SCHEMA_VERSION_PROPERTY: SCHEMA_VERSION}


def has_trees(properties: Mapping[str, str]) -> bool:
    """Return whether a lake's segments get trees, by the properties of its table ``segments``. Pure."""
    return properties.get(SCHEMA_VERSION_PROPERTY, "").partition(".")[0] == _MAJOR_WITH_TREES


def version_to_write(properties: Mapping[str, str]) -> str:
    """Return the schema version that a write gives a table: a write never adds or removes trees. Pure."""
    return SCHEMA_VERSION if has_trees(properties) else VERSION_WITHOUT_TREES


SEGMENTS_PROPERTIES = {
    **_COMMON_PROPERTIES,
    # The default, 16 characters, is too little to distinguish the brokers' identities of logs.
    "write.metadata.metrics.column.log_id": "truncate(64)",
}

DELETIONS_PROPERTIES = {**OWN_PROPERTIES, SCHEMA_VERSION_PROPERTY: VERSION_WITHOUT_TREES}

_INTEGERS = {"lineage", "proof_version"}


def check_segments_schema(location: str, actual: Schema) -> None:
    """Raise LakeUnavailableError if ``segments`` has other ids or types than receipts, or lacks a column.

    Columns that may be empty may be missing.
    """
    _check_schema(location, segments_schema(), actual, lambda field: not field.required)


def messages_properties(columns: Columns) -> dict[str, str]:
    """Return the properties of the table of rows, with the columns that have statistics in the manifests."""
    bounds = {
        f"write.metadata.metrics.column.{name}": "truncate(64)"
        for name in (*SELECTIVE_COLUMNS, *columns.bounds)
    }
    return {**_COMMON_PROPERTIES, "write.metadata.metrics.default": "none", **bounds}


def messages_arrow_schema(codec_schema: pa.Schema, *, trees: bool = True) -> pa.Schema:
    """Return a data file's columns with Iceberg field ids. The identity's columns come before the codec's.

    Ids are assigned as a catalog does when it creates a table: first to all columns, then to the fields
    nested in them (Java's AssignFreshIds, PyIceberg's assign_fresh_schema_ids). :data:`TREE_COLUMNS` and
    :data:`LATER_COLUMNS` get the last ids.

    :param trees: whether the lake has trees. If not, the result lacks :data:`TREE_COLUMNS` and
        :data:`LATER_COLUMNS`.
    """
    schema = _with_field_ids(codec_schema, LATER_COLUMNS)
    return schema if trees else pa.schema([schema.field(name) for name in _names_before_trees(schema.names)])


def _names_before_trees(names: Iterable[str]) -> list[str]:
    added = {*TREE_COLUMNS.names, *LATER_COLUMNS}
    return [name for name in names if name not in added]


@cache
def _with_field_ids(codec_schema: pa.Schema, later: tuple[str, ...]) -> pa.Schema:
    ids = itertools.count(1)
    all_columns = pa.schema([*IDENTITY_COLUMNS, *codec_schema, *TREE_COLUMNS])
    added = (*TREE_COLUMNS.names, *(name for name in later if name in all_columns.names))
    first = [_with_id(field, next(ids)) for field in all_columns if field.name not in added]
    columns = {field.name: _with_nested_ids(field, ids) for field in first}
    for name in added:
        field = _with_id(all_columns.field(name), next(ids))
        columns[name] = _with_nested_ids(field, ids)
    return pa.schema([columns[field.name] for field in all_columns])


def messages_schema(
    codec_schema: pa.Schema, comments: Mapping[str, str] | None = None, *, trees: bool = True
) -> Schema:
    """Return the Iceberg schema of the table of rows for a codec's columns.

    :param comments: comments of the codec's columns; None for a caller that needs no comments.
    """
    schema = _messages_schema(codec_schema, LATER_COLUMNS)
    if not trees:
        schema = schema.select(*_names_before_trees(field.name for field in schema.fields))
    if comments is None:
        return schema
    texts = {**IDENTITY_COMMENTS, **comments, **TREE_COMMENTS}
    return Schema(*(field.model_copy(update={"doc": texts.get(field.name)}) for field in schema.fields))


@cache
def _messages_schema(codec_schema: pa.Schema, later: tuple[str, ...]) -> Schema:
    return pyarrow_to_schema(_with_field_ids(codec_schema, later))


@cache
def segments_schema(*, trees: bool = True) -> Schema:
    """Return the Iceberg schema of ``segments``, with one column for each field of :class:`Receipt`.

    :param trees: whether the lake has trees. If not, the result lacks :data:`TREE_FIELDS`.
    """
    fields = _fields_of(Receipt, SEGMENTS_COMMENTS)
    return Schema(*(field for field in fields if trees or field.name not in TREE_FIELDS))


@cache
def deletions_schema() -> Schema:
    """Return the Iceberg schema of ``deletions``, with one column for each field of :class:`DeletedRange`."""
    return Schema(*_fields_of(DeletedRange, DELETIONS_COMMENTS))


def partition_by_store(schema: Schema) -> PartitionSpec:
    """Return the partition spec that gives each store one partition."""
    source = schema.find_field("store_id").field_id
    return PartitionSpec(
        PartitionField(source_id=source, field_id=1000, transform=IdentityTransform(), name="store_id")
    )


def is_by_store(table: Table, spec_id: int) -> bool:
    """Return whether each file of this partition spec has one store, which the file's partition names."""
    (only, *others) = table.specs()[spec_id].fields or (None,)
    return (
        only is not None
        and not others
        and only.source_id == table.schema().find_field("store_id").field_id
        and isinstance(only.transform, IdentityTransform)
    )


def check_partitions(table: Table) -> None:
    """Raise LakeUnavailableError unless a table is partitioned by store: files are skipped by partitions."""
    if not is_by_store(table, table.metadata.default_spec_id):
        fields = ", ".join(field.name for field in table.spec().fields) or "nothing"
        raise LakeUnavailableError(
            f"lake table {table.location()}: expected partitions by store_id, found them by {fields}: "
            "another engine changed that. Nothing was committed. Partition the table by store_id alone "
            "with that engine (in Spark: ALTER TABLE ... REPLACE PARTITION FIELD ... WITH store_id), and "
            "run again."
        )


def check_messages_schema(location: str, expected: Schema, actual: Schema) -> None:
    """Raise LakeUnavailableError if the table's columns have other ids or types than data files.

    The table may have further columns, and may lack :data:`TREE_COLUMNS` and :data:`LATER_COLUMNS`.
    """
    later = (*TREE_COLUMNS.names, *LATER_COLUMNS)
    _check_schema(location, expected, actual, lambda field: field.name in later)


def _check_schema(
    location: str, expected: Schema, actual: Schema, may_lack: Callable[[NestedField], bool]
) -> None:
    columns = {field.name: field for field in actual.fields}
    for field in expected.fields:
        column = columns.get(field.name)
        if column is None and may_lack(field):
            continue
        if column is None or (column.field_id, column.field_type) != (field.field_id, field.field_type):
            raise LakeUnavailableError(
                f"lake table {location}: expected column {field.field_id} {field.name} "
                f"{field.field_type}, found {column}. The table was made by another version or program; "
                "archive into another namespace or warehouse."
            )


def check_version(table: Table) -> None:
    """Raise BadInputError if this release doesn't know the major version of a loaded table's schema."""
    check_version_of(table.location(), table.properties)


def check_version_of(location: str, properties: Mapping[str, str]) -> None:
    """Do the same as :func:`check_version` for a table that isn't loaded."""
    version = properties.get(SCHEMA_VERSION_PROPERTY, "")
    if version.partition(".")[0] not in READABLE_MAJORS:
        majors = ".x or ".join(READABLE_MAJORS)
        raise BadInputError(
            f"lake table {location}: expected schema version {majors}.x, found {version or 'none'}. Nothing "
            "was changed. Use the release of storage-engine that made it, or a later one, on every host "
            "that opens this lake. Or use another lake."
        )


def missing_columns(table: Table, expected: Schema) -> list[NestedField]:
    """Return the columns that a loaded table lacks because an older version made it."""
    names = {field.name for field in table.schema().fields}
    return [field for field in expected.fields if field.name not in names]


def missing_comments(table: Table, expected: Schema) -> list[NestedField]:
    """Return the columns that lack a comment in a loaded table, although this release has one for them.

    An existing comment stays, so that two releases don't replace each other's comments in turn.
    """
    named = {field.name: field for field in table.schema().fields}
    return [
        field for field in expected.fields if field.doc and field.name in named and not named[field.name].doc
    ]


def missing_properties(actual: Mapping[str, str]) -> dict[str, str]:
    """Return properties for other engines and older releases that a table lacks or has with wrong values."""
    expected = {COMMIT_RETRIES_PROPERTY: "0", **GROWTH_PROPERTIES}
    return {key: value for key, value in expected.items() if actual.get(key) != value}


def evolve(table: Table, expected: Schema, properties: Mapping[str, str] | None = None) -> None:
    """Add the columns and comments that a table of an older version lacks. A field id is never used again.

    Data files stay as they are: a column that a file lacks is empty in its rows.

    :param properties: properties to set in the same commit.
    :raises LakeUnavailableError: a column that can't be empty is missing: another program made the table.
    :raises CommitFailedException: another process changes the table at this moment.
    """
    missing, uncommented = missing_columns(table, expected), missing_comments(table, expected)
    if not missing and not uncommented and not properties:
        return
    for field in missing:
        if field.required:
            raise LakeUnavailableError(
                f"lake table {table.location()}: expected column {field.name} {field.field_type}, found "
                "none. The table was made by another version or program; archive into another namespace or "
                "warehouse."
            )
    with table.transaction() as transaction:
        if missing or uncommented:
            with transaction.update_schema() as update:
                for field in sorted(missing, key=lambda field: field.field_id):
                    update.add_column(field.name, field.field_type, doc=field.doc)
                for field in uncommented:
                    update.update_column(field.name, doc=field.doc)
        version = version_to_write(table.properties)
        transaction.set_properties({SCHEMA_VERSION_PROPERTY: version, **(properties or {})})


def make_rows_table(
    catalog: Catalog,
    name: tuple[str, str],
    codec: SegmentCodec,
    location: str | None,
    more_properties: Mapping[str, str],
) -> bool:
    """Make a table of rows if there is none, in one commit. Its field ids are those of an upgraded table.

    :param more_properties: further properties, beside those that the codec determines.
    :return: whether this call made it.
    """
    first = messages_schema(codec.schema, codec.columns.comments, trees=False)
    last = messages_schema(codec.schema, codec.columns.comments)
    # A catalog numbers the columns of the first schema itself. The columns of trees get the ids after them.
    with suppress(TableAlreadyExistsError, CommitFailedException):
        creation = catalog.create_table_transaction(
            name,
            schema=first,
            location=location,
            partition_spec=partition_by_store(first),
            properties={**messages_properties(codec.columns), **more_properties},
        )
        with creation.update_schema() as update:
            later = (field for field in last.fields if field.name not in first.column_names)
            for field in sorted(later, key=lambda field: field.field_id):
                update.add_column(field.name, field.field_type, doc=field.doc)
        creation.commit_transaction()
        return True
    return False


def _fields_of(rows: type, comments: Mapping[str, str]) -> Iterator[NestedField]:
    """Yield a column for each field of the dataclass of a table's rows."""
    for number, (name, hint) in enumerate(typing.get_type_hints(rows).items(), start=1):
        types = set(typing.get_args(hint)) or {hint}
        column_type: IcebergType = IntegerType() if name in _INTEGERS else LongType()
        if str in types:
            column_type = StringType()
        required = type(None) not in types
        yield NestedField(number, name, column_type, required=required, doc=comments[name])


def _with_id(field: pa.Field[Any], field_id: int) -> pa.Field[Any]:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


def _with_nested_ids(field: pa.Field[Any], ids: Iterator[int]) -> pa.Field[Any]:
    """Give ids to nested fields: first to all fields of one level, then to the level below each."""
    if pa.types.is_list(field.type):
        element = _with_id(field.type.value_field, next(ids))
        return field.with_type(pa.list_(_with_nested_ids(element, ids)))
    if pa.types.is_struct(field.type):
        parts = [_with_id(part, next(ids)) for part in field.type]
        return field.with_type(pa.struct([_with_nested_ids(part, ids) for part in parts]))
    if not pa.types.is_map(field.type):
        return field
    key = _with_id(field.type.key_field, next(ids))
    value = _with_id(field.type.item_field, next(ids))
    return field.with_type(pa.map_(key, value))
