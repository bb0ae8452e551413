"""Row filters over the lake's tables."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThanOrEqual


def all_equal(values: Mapping[str, str | int]) -> BooleanExpression:
    """Rows whose columns have all of these values; at least one must be given."""
    # PyIceberg's constructors take (term, literal); their pydantic models declare something else.
    terms: list[BooleanExpression] = [EqualTo(name, value) for name, value in values.items()]  # type: ignore[call-arg,arg-type]
    return And(*terms) if len(terms) > 1 else terms[0]


def between(column: str, first: int, last: int) -> BooleanExpression:
    """Rows whose column lies within these two, inclusive."""
    return And(
        GreaterThanOrEqual(column, first),  # type: ignore[call-arg,arg-type]
        LessThanOrEqual(column, last),  # type: ignore[call-arg,arg-type]
    )


def store_rows(store_id: str, base_offsets: tuple[int, int] | None = None) -> BooleanExpression:
    """A store's rows in the table of rows.

    :param base_offsets: only of segments whose base offset lies within these two, inclusive.
    """
    store = all_equal({"store_id": store_id})
    if base_offsets is None:
        return store
    return And(store, between("segment_base_offset", *base_offsets))


def segment_rows(store_id: str, lineage: int, log: str, base_offset: int) -> BooleanExpression:
    """One segment's rows in the table of rows, in whichever files they lie."""
    return all_equal(
        {"store_id": store_id, "segment_base_offset": base_offset, "lineage": lineage, "log": log}
    )
