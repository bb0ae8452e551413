"""Export of messages from the lake: by topic, key, queue and time, as Parquet or JSON lines.

Only the files and row groups that can have wanted messages are read. The exported file has one row for each
message, is written with a limited amount of memory, and gets its name when it is complete. To get the exact
bytes of a store, use :mod:`storage_engine.lake.restore.restore`.

LakeUnavailableError is raised if the lake can't be read, ProofError if a data file is no Parquet file.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThan,
)

from storage_engine.brokers import find_broker
from storage_engine.core.durable import new_file, opened, remove_abandoned
from storage_engine.core.wording import did_you_mean, time_text
from storage_engine.exceptions import BadInputError, ExportError
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.nesting import refuse_target_inside_store
from storage_engine.lake.catalog.tables import IDENTITY_COLUMNS
from storage_engine.lake.file.scan import read_rows
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.lake.restore.restore_span import LineageRange, Span, expired_ranges
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.soundness.segment_reader import (
    ReadCount,
    expired_files,
    message_batches,
    plain_field,
    shape_rows,
    with_sources,
)
from storage_engine.model.broker.codec import Bodies, Columns
from storage_engine.model.broker.kind import Broker
from storage_engine.model.proof.receipt import Receipt, ended
from storage_engine.model.report.diagnosis import named_in_short

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that exported messages meet. A condition that is None selects all.

    :param queue_id: number of the queue, or of the partition.
    :param from_ms: earliest time of storing, in milliseconds since the epoch.
    :param to_ms: end of the time of storing, exclusive.
    :param topic_id: the topic's id, as receipts name it.
    """

    topic: str | None = None
    key: str | None = None
    queue_id: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    store_id: str | None = None
    lineage: int | None = None
    topic_id: str | None = None


def row_filter(selection: Selection, columns: Columns) -> BooleanExpression:
    """Return the conditions by which the table itself can select rows. The key isn't among them.

    :param columns: columns of the rows' codec; they include a topic, a queue and a time of storing.
    """
    topic, queue, *_ = columns.streams
    equal: dict[str, str | int | None] = {
        "kind": "message",
        "store_id": selection.store_id,
        "lineage": selection.lineage,
        topic: selection.topic,
        queue: selection.queue_id,
    }
    # PyIceberg's constructors take (term, literal); their pydantic models declare something else.
    terms: list[BooleanExpression] = [
        EqualTo(name, value)  # type: ignore[call-arg,arg-type]
        for name, value in equal.items()
        if value is not None
    ]
    stored_at = str(columns.stored_at)
    if selection.from_ms is not None:
        terms.append(GreaterThanOrEqual(stored_at, _instant(selection.from_ms)))  # type: ignore[call-arg,arg-type]
    if selection.to_ms is not None:
        terms.append(LessThan(stored_at, _instant(selection.to_ms)))  # type: ignore[call-arg,arg-type]
    return reduce(And, terms)


def has_key(rows: pa.Table, key: str, columns: Columns) -> pa.ChunkedArray[Any]:
    """Return for each row whether ``key`` is its key or in its list of keys. No row has an empty key.

    :param rows: rows with the codec's columns of keys. There must be at least one such column.
    """
    if not key:
        return pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    # Any: the stubs know no scalar beside an array.
    compute: Any = pc
    masks = [
        compute.match_substring(compute.binary_join_element_wise("", rows[name], "", " "), f" {key} ")
        for name in columns.key_lists
    ]
    for name in columns.keys:
        kind = rows.schema.field(name).type
        value = key if pa.types.is_string(kind) or pa.types.is_large_string(kind) else key.encode()
        masks.append(compute.equal(rows[name], pa.scalar(value, kind)))
    among: pa.ChunkedArray[Any] = compute.fill_null(reduce(compute.or_kleene, masks), False)
    return among


def _instant(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")


LOG_LINEAGE = ("store_id", "lineage", "log")
"""The columns of rows and receipts that together identify a log."""

TopicIds = Mapping[tuple[str, int, str], str]
"""Ids of topics, by the values of :data:`LOG_LINEAGE`."""


def read_topic_ids(lake: Lake, topic_id_of: Callable[[str], str]) -> TopicIds:
    """Return the topic's id of each log that a lake has. Logs whose receipts name no id are left out.

    :param topic_id_of: returns the topic's id in a log's identity.
    """
    table = lake.segments()
    if "log_id" not in table.schema().column_names:
        # An older version made the table.
        return {}
    rows = read_rows(table, AlwaysTrue(), (*LOG_LINEAGE, "log_id"))
    ids_of: dict[tuple[str, int, str], set[str]] = {}
    for row in rows.group_by([*LOG_LINEAGE, "log_id"]).aggregate([]).to_pylist():
        ids = ids_of.setdefault((row["store_id"], row["lineage"], row["log"]), set())
        ids.update({topic_id_of(row["log_id"])} if row["log_id"] else ())
    return {log: ids.pop() for log, ids in ids_of.items() if len(ids) == 1}


def topic_id_column(rows: pa.Table, ids: TopicIds) -> pa.ChunkedArray[Any]:
    """Return the topic's id of each row; null where it isn't known.

    :param rows: rows with the columns of :data:`LOG_LINEAGE`.
    """
    # Any: the stubs know no scalar beside an array.
    compute: Any = pc
    column: Any = pa.nulls(len(rows), pa.string())
    for log in rows.group_by(list(LOG_LINEAGE)).aggregate([]).to_pylist():
        if topic_id := ids.get((log["store_id"], log["lineage"], log["log"])):
            is_of_log = reduce(compute.and_, (compute.equal(rows[name], log[name]) for name in LOG_LINEAGE))
            column = compute.if_else(is_of_log, topic_id, column)
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


_STORE_COLUMNS = ("store_id", "lineage")
"""The first columns of an exported message. The columns that the codec names follow them."""

Write = Callable[[pa.Table], None]

_TOPIC_ID = pa.field("topic_id", pa.string())
"""Column for brokers whose topics have ids. It comes after the columns that the codec names."""

_COMPRESSED = pa.field("body_compressed", pa.bool_())
"""Column for brokers whose producers compress bodies. It comes after all other columns."""

_ROWS_AT_A_TIME = 64 << 10
_BYTES_AT_A_TIME = 32 << 20
_BUFFER_BYTES = 1 << 20
_PARTIAL_SUFFIX = ".exporting"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export: the messages written, and the bytes read.

    :param still_compressed: number of messages whose bodies are still compressed by their producers.
    :param bytes_read: bytes of the lake's Parquet columns that were read.
    :param expired: expired ranges that may have had selected messages.
    """

    path: str
    message_count: int
    size_bytes: int
    still_compressed: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None
    files_read: int
    files_total: int
    row_groups_read: int
    bytes_read: int
    expired: tuple[LineageRange, ...] = ()


def export_messages(
    lake: Lake,
    path: str | os.PathLike[str],
    selection: Selection,
    *,
    file_format: ExportFormat = ExportFormat.PARQUET,
    decompress: bool = False,
) -> Exported:
    """Write the selected messages into a new file. The messages of one queue are in order.

    :param path: path of the new file. It appears when it is complete. An existing file is never overwritten.
    :param decompress: decompress bodies. Damaged ones stay compressed. ``body_compressed`` is true for bodies
        that are still compressed.
    :raises BadInputError: the key is empty, the span of time ends before it begins, the lake has no topic
        with the id, or the file would be among a store's files.
    :raises ExportError: the file exists already, or can't be written.
    """
    if selection.key == "":
        raise BadInputError(
            "export: expected a key, found an empty text, which is no message's key. Nothing was written. "
            "Name a key, or leave the option out."
        )
    from_ms, to_ms = selection.from_ms, selection.to_ms
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise BadInputError(
            f"export: expected a span of time that begins before it ends, found {time_text(from_ms)} to "
            f"{time_text(to_ms)}. Nothing was written. Swap the two."
        )
    broker = _messages_broker(lake)
    columns = broker.codec.columns
    target = Path(path)
    refuse_target_inside_store(target)
    schema = _read_schema(broker)
    ids = None if columns.topic_id_of is None else read_topic_ids(lake, columns.topic_id_of)
    _check_topic_id(lake, selection.topic_id, ids)
    count, tally = ReadCount(), _Tally(str(columns.stored_at))
    every_row = _receipts_of(lake, selection)
    # Links in the directory's path are resolved only once.
    with _target_errors(target), opened(target.parent, _DIRECTORY) as directory:
        if target.is_symlink() or target.exists():
            raise _exists(target)
        remove_abandoned(target.name, _PARTIAL_SUFFIX, dir_fd=directory)
        with new_file(target.name, _PARTIAL_SUFFIX, dir_fd=directory) as new, _HashedWriter(new.file) as file:
            tables = _select_rows(lake, selection, columns, schema, count, ids, every_row)
            if ids is not None:
                schema = schema.append(_TOPIC_ID)
            if (bodies := broker.codec.bodies) is not None:
                tables = _with_plain_bodies(bodies, tables, decompress)
                schema = schema.append(_COMPRESSED)
            with _WRITERS[file_format](file, schema) as write:
                for rows in _gathered(tables):
                    tally.add(rows)
                    write(rows)
            file.flush()
            size_bytes = file.tell()
            if new.sha256() != file.digest.hexdigest():
                raise ExportError(
                    f"{target}: expected to read back the written bytes, found other bytes. Nothing was left "
                    "behind. Another program writes there, or its disk is damaged: export to another place."
                )
            try:
                new.publish()
            except FileExistsError:
                raise _exists(target) from None
    return Exported(
        path=str(target),
        message_count=tally.messages,
        size_bytes=size_bytes,
        still_compressed=tally.compressed,
        first_store_timestamp_ms=tally.first_ms,
        last_store_timestamp_ms=tally.last_ms,
        files_read=count.files,
        files_total=count.total_files,
        row_groups_read=count.row_groups,
        bytes_read=count.bytes,
        expired=_expired_of(every_row, selection, merged_expiries([(lake, ended(every_row))])),
    )


def _receipts_of(lake: Lake, selection: Selection) -> tuple[Receipt, ...]:
    return tuple(
        row
        for store in list_stores(lake)
        if selection.store_id in (None, store.store_id)
        for row in receipts(lake, store.store_id, lineage=selection.lineage, with_ended=True)
    )


def _expired_of(
    rows: Iterable[Receipt], selection: Selection, expiries: Mapping[str, str]
) -> tuple[LineageRange, ...]:
    span = Span(from_ms=selection.from_ms, to_ms=selection.to_ms)
    of_topic = [
        row
        for row in ended(rows)
        if selection.topic is None or not row.streams or selection.topic in row.gone_streams
    ]
    return expired_ranges(of_topic, span, expiries)


def check_topic(lake: Lake, topic: str) -> None:
    """Raise BadInputError if no archived message has this topic, unless the lake is empty."""
    columns = _messages_broker(lake).codec.columns
    name = columns.streams[0]
    batches = message_batches(lake.messages(), row_filter(Selection(topic=topic), columns), (name,))
    if any(rows.num_rows for rows in batches):
        return
    topics: set[str] = set()
    for rows in message_batches(lake.messages(), row_filter(Selection(), columns), (name,)):
        topics.update(map(str, rows[name].unique().to_pylist()))
    if topics:
        raise BadInputError(
            f"lake {lake.location}: expected one of the {len(topics)} topics that are archived, found "
            f"{topic!r}.{did_you_mean(topic, topics)} Nothing was written. Topics are compared letter by "
            "letter."
        )


def _check_topic_id(lake: Lake, topic_id: str | None, ids: TopicIds | None) -> None:
    """Raise BadInputError if the lake has no topic with this id."""
    if topic_id is None or topic_id in (ids or {}).values():
        return
    names = sorted({f"{id_text} ({log})" for (_, _, log), id_text in (ids or {}).items()})
    listing = f"there are {named_in_short(names)}" if names else "its receipts name none"
    raise BadInputError(
        f"lake {lake.location}: expected the id of an archived topic, found {topic_id!r}; {listing}. "
        "Nothing was written. Ids are compared letter by letter. Without an id, all topics of a name are "
        "exported."
    )


def _select_rows(
    lake: Lake,
    selection: Selection,
    columns: Columns,
    schema: pa.Schema,
    count: ReadCount,
    ids: TopicIds | None,
    rows_of_lake: Sequence[Receipt],
) -> Iterator[pa.Table]:
    key, where = selection.key, row_filter(selection, columns)
    table, codec = lake.messages(), find_broker(lake.broker).codec
    available = {*schema.names, *table.schema().column_names}
    names = [name for name in with_sources(schema.names, columns) if name in available]
    if ids is not None:
        names += [name for name in LOG_LINEAGE if name not in names]
        logs = {log for (_, _, log), topic_id in ids.items() if topic_id == selection.topic_id}
        if selection.topic_id is not None:
            where = And(where, In("log", logs))  # type: ignore[call-arg,arg-type]
    for batch in message_batches(
        table,
        where,
        names,
        mask_columns=() if key is None else (*columns.key_lists, *columns.keys),
        mask=None if key is None else lambda rows: has_key(rows, key, columns),
        count=count,
        left_out=expired_files(table, rows_of_lake),
    ):
        rows = shape_rows(batch, schema, codec)
        if ids is not None:
            rows = rows.append_column(_TOPIC_ID, topic_id_column(batch, ids))
            if selection.topic_id is not None:
                rows = rows.filter(pc.equal(rows[_TOPIC_ID.name], pa.scalar(selection.topic_id)))
        yield rows


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join rows into larger tables, so that a file with few messages has few row groups."""
    gathered: list[pa.Table] = []
    row_count = size_bytes = 0
    for rows in tables:
        gathered.append(rows)
        row_count += rows.num_rows
        size_bytes += rows.nbytes
        if row_count >= _ROWS_AT_A_TIME or size_bytes >= _BYTES_AT_A_TIME:
            yield pa.concat_tables(gathered)
            gathered, row_count, size_bytes = [], 0, 0
    if gathered:
        yield pa.concat_tables(gathered)


def _with_plain_bodies(bodies: Bodies, tables: Iterable[pa.Table], decompress: bool) -> Iterator[pa.Table]:
    """Yield the rows in parts that are small enough to keep their decompressed bodies in memory."""
    for rows in tables:
        compressed = bodies.is_compressed(rows["sys_flag"])
        if not decompress:
            yield rows.append_column(_COMPRESSED, compressed)
            continue
        start, column = 0, rows.schema.get_field_index("body")
        for plain in bodies.decompressed_parts(rows["body"], rows["sys_flag"]):
            part, damaged = rows.slice(start, len(plain)), pc.is_null(plain)
            still = pc.and_(compressed.slice(start, len(plain)), damaged)
            kept = pc.coalesce(plain, part["body"].combine_chunks())
            part = part.set_column(column, part.schema.field(column), kept)
            yield part.append_column(_COMPRESSED, still)
            start += len(plain)


@cache
def _read_schema(broker: Broker) -> pa.Schema:
    codec = broker.codec
    fields = {field.name: field for field in (*IDENTITY_COLUMNS, *codec.schema)}
    return pa.schema(plain_field(fields[name]) for name in (*_STORE_COLUMNS, *codec.columns.export))


def _messages_broker(lake: Lake) -> Broker:
    """Return the lake's broker. Raise BadInputError if it has no messages with topics and bodies."""
    broker = find_broker(lake.broker)
    columns = broker.codec.columns
    if not columns.export or len(columns.streams) < 2 or columns.stored_at is None:
        raise BadInputError(
            f"lake {lake.location}: expected a lake of messages with topics and bodies, found a lake of "
            f"{broker.words.title}, whose rows aren't such messages. Nothing was written. Query the lake's "
            "table, or restore its segments."
        )
    return broker


class _HashedWriter(io.BufferedWriter):
    """A buffered file that computes the SHA-256 of all that is written to it."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw, _BUFFER_BYTES)
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return super().write(data)


class _Tally:
    def __init__(self, stored_at: str) -> None:
        self._stored_at = stored_at
        self.messages = self.compressed = 0
        self.first_ms: int | None = None
        self.last_ms: int | None = None

    def add(self, rows: pa.Table) -> None:
        self.messages += rows.num_rows
        if _COMPRESSED.name in rows.column_names:
            self.compressed += pc.sum(rows[_COMPRESSED.name]).as_py() or 0
        stored = rows[self._stored_at]
        stored = stored.cast(pa.timestamp("ms", tz=stored.type.tz), safe=False).cast(pa.int64())
        extremes: Any = pc.min_max(stored).as_py()
        if extremes["min"] is not None:
            first_ms, last_ms = extremes["min"], extremes["max"]
            self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
            self.last_ms = last_ms if self.last_ms is None else max(last_ms, self.last_ms)


@contextmanager
def _parquet(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    with pq.ParquetWriter(file, schema, compression="zstd", version="2.6") as writer:
        yield writer.write_table


@contextmanager
def _json_lines(file: BinaryIO, schema: pa.Schema) -> Iterator[Write]:
    def write(rows: pa.Table) -> None:
        # A line costs some 20 µs, which is acceptable for selected messages. No library makes such lines.
        for row in rows.to_pylist():
            file.write(json.dumps(_json_row(row, schema), ensure_ascii=False).encode() + b"\n")

    yield write


def _json_row(row: dict[str, Any], fields: Iterable[pa.Field[Any]]) -> dict[str, Any]:
    """Return a row for JSON, with binaries last.

    A binary is text if it is UTF-8, otherwise base64; ``NAME_encoding`` says which.
    """
    plain: dict[str, Any] = {}
    binaries: dict[str, Any] = {}
    for field in fields:
        name, value = field.name, row[field.name]
        if pa.types.is_binary(field.type):
            binaries[name], binaries[f"{name}_encoding"] = _json_binary(value)
        elif value is None:
            plain[name] = None
        elif pa.types.is_timestamp(field.type):
            plain[name] = value.isoformat(timespec="milliseconds")
        elif pa.types.is_map(field.type):
            plain[name] = dict(value)
        elif pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type):
            plain[name] = [_json_row(item, field.type.value_type) for item in value]
        else:
            plain[name] = value
    return plain | binaries


def _json_binary(value: bytes | None) -> tuple[str | None, str]:
    try:
        return None if value is None else value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value or b"").decode(), "base64"


_WRITERS: dict[ExportFormat, Callable[[BinaryIO, pa.Schema], AbstractContextManager[Write]]] = {
    ExportFormat.PARQUET: _parquet,
    ExportFormat.JSON_LINES: _json_lines,
}


def _exists(target: Path) -> ExportError:
    return ExportError(
        f"{target}: expected no file of this name, found a file. Nothing was changed. Export into "
        "another file, or remove this file."
    )


@contextmanager
def _target_errors(target: Path) -> Iterator[None]:
    """Turn errors of the target's file system into ours. The lake's errors aren't changed."""
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{target}: can't export there: {error.strerror or error}. Nothing was left behind; free space "
            "or fix permissions, and run the export again."
        ) from error
