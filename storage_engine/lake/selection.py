"""Which messages of a lake somebody asks for: by store, topic, queue, time and key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages; every part that is None selects all.

    :param key: one of the message's keys, or its unique key.
    :param from_ms: stored at or after, ms since the epoch.
    :param to_ms: stored before.
    """

    topic: str | None = None
    key: str | None = None
    queue_id: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    store_id: str | None = None
    lineage: int | None = None


def row_filter(selection: Selection) -> BooleanExpression:
    """Return what the table itself can select by; a key is looked for in what it gives."""
    equal: dict[str, str | int | None] = {
        "kind": "message",
        "store_id": selection.store_id,
        "lineage": selection.lineage,
        "topic": selection.topic,
        "queue_id": selection.queue_id,
    }
    # PyIceberg's constructors take (term, literal); their pydantic models declare something else.
    terms: list[BooleanExpression] = [
        EqualTo(name, value)  # type: ignore[call-arg,arg-type]
        for name, value in equal.items()
        if value is not None
    ]
    if selection.from_ms is not None:
        terms.append(GreaterThanOrEqual("store_timestamp", _instant(selection.from_ms)))  # type: ignore[call-arg,arg-type]
    if selection.to_ms is not None:
        terms.append(LessThan("store_timestamp", _instant(selection.to_ms)))  # type: ignore[call-arg,arg-type]
    return reduce(And, terms)


def has_key(rows: pa.Table, key: str) -> pa.ChunkedArray[Any]:
    """Return which rows have ``key`` among their keys, which blanks separate, or as their unique key.

    No row has an empty one.
    """
    if not key:
        return pa.chunked_array([pa.repeat(pa.scalar(False), len(rows))])
    # Any: the stubs know no scalar beside an array.
    compute: Any = pc
    keys = compute.binary_join_element_wise("", rows["keys"], "", " ")
    among = compute.or_kleene(
        compute.match_substring(keys, f" {key} "), compute.equal(rows["unique_key"], key)
    )
    found: pa.ChunkedArray[Any] = compute.fill_null(among, False)
    return found


def _instant(timestamp_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
