"""Which messages of a lake somebody asks for: by store, topic, queue, time and key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan

from storage_engine.model.broker.codec import Columns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages; every part that is None selects all.

    :param key: one of the message's keys.
    :param queue_id: number of the queue, or of the partition.
    :param from_ms: stored at or after, ms since the epoch.
    :param to_ms: stored before.
    :param topic_id: of the topic, as receipts name it.
    """

    topic: str | None = None
    key: str | None = None
    queue_id: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    store_id: str | None = None
    lineage: int | None = None
    topic_id: str | None = None

    @property
    def is_reversed(self) -> bool:
        """Return whether the span of time ends where it begins, or before."""
        return self.from_ms is not None and self.to_ms is not None and self.to_ms <= self.from_ms


def row_filter(selection: Selection, columns: Columns) -> BooleanExpression:
    """Return what the table itself can select by; a key is looked for in what it gives.

    :param columns: of the codec that made the rows, with a topic, a queue and a time of storing.
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
    """Return which rows have ``key`` as a key, or among those of a list.

    No row has an empty one.

    :param rows: with the codec's columns of keys, of which there is at least one.
    """
    if not key:
        return pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    # Any: the stubs know no scalar beside an array.
    compute: Any = pc
    found = [
        compute.match_substring(compute.binary_join_element_wise("", rows[name], "", " "), f" {key} ")
        for name in columns.key_lists
    ]
    for name in columns.keys:
        kind = rows.schema.field(name).type
        wanted = key if pa.types.is_string(kind) or pa.types.is_large_string(kind) else key.encode()
        found.append(compute.equal(rows[name], pa.scalar(wanted, kind)))
    among: pa.ChunkedArray[Any] = compute.fill_null(reduce(compute.or_kleene, found), False)
    return among


def _instant(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
