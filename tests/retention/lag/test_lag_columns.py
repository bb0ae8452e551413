"""What a deletion costs a group, against its definition, row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import ANYWHERE, LAG_SCHEMA, PLACES_SCHEMA, add_risk, segments_table

logs = st.sampled_from(["a-0", "a-1", "b-0"])
segments = st.dictionaries(
    st.tuples(logs, st.integers(0, 3)), st.tuples(st.booleans(), st.none() | st.integers(0, 9)), max_size=9
)
places = st.lists(
    st.tuples(logs, st.none() | st.integers(0, 2), st.none() | st.integers(ANYWHERE, 4)), max_size=20
)


def place(log: str, committed: int | None, needed: int | None, number: int) -> dict[str, Any]:
    known = {"group": f"g{number}", "topic": log[0], "queue_id": 0, "log": log, "lost_messages": number}
    unknown: dict[str, Any] = dict.fromkeys(PLACES_SCHEMA.names, 0)
    return {**unknown, **known, "committed_offset": committed, "next_segment_base_offset": needed}


@given(segments=segments, places=places)
def test_a_group_is_at_risk_by_the_segment_it_needs_or_by_any_where_that_is_not_known(
    segments: dict[tuple[str, int], tuple[bool, int | None]],
    places: list[tuple[str, int | None, int | None]],
) -> None:
    rows = [place(*given_place, number) for number, given_place in enumerate(places)]
    found = add_risk(
        pa.Table.from_pylist(rows, PLACES_SCHEMA),
        segments_table((*segment, *fate) for segment, fate in segments.items()),
    )
    assert found.schema == LAG_SCHEMA
    going = {log for (log, _), (goes, _) in segments.items() if goes}
    for (log, committed, needed), row, before in zip(places, found.to_pylist(), rows, strict=True):
        goes, loss_ms = segments.get((log, -9 if needed is None else needed), (False, None))
        is_known = committed is not None
        assert row == {
            **before,
            "at_risk": log in going if needed == ANYWHERE else goes,
            "next_segment_base_offset": needed if is_known and needed != ANYWHERE else None,
            "time_to_loss_ms": loss_ms if is_known else None,
        }
