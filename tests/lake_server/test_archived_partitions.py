"""Which offsets of a partition are served, by receipts that were made for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.lake.soundness.chain import row_hash
from storage_engine.lake_server.archived_partitions import Archive, archive_of
from storage_engine.model.proof.receipt import Receipt

CLUSTER = "r8MMkFXnTH6hs0mB1uUMyw"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def receipt(base: int, end: int, **fields: Any) -> Receipt:
    said: dict[str, Any] = {
        **dict.fromkeys(Receipt.__dataclass_fields__),
        "store_id": "node-1",
        "lineage": 0,
        "log": "orders-0",
        "base_offset": base,
        "end_offset": end,
        "size_bytes": 1,
        "sha256": f"{base}-{end}",
        "broker": "kafka",
        "proof_version": 2,
        "proven_at_ms": 1,
        "log_id": f"{CLUSTER}/{TOPIC_ID}/0",
        **fields,
    }
    said["row_hash"] = said.get("row_hash") or row_hash(said)
    return Receipt(**said)


def archive(*rows: Receipt, cluster: str | None = None) -> Archive:
    return archive_of(rows, cluster, "LAKE")


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from(["node-1", "node-2", "node-3"])),
        min_size=1,
        max_size=12,
    )
)
def test_each_offset_that_a_receipt_has_is_served_once(spans: list[tuple[int, int, str]]) -> None:
    rows = [receipt(base, base + length, store_id=store) for base, length, store in spans]
    partition = archive(*rows).topics["orders"][0]
    served = [offset for one in partition.ranges for offset in range(one.first, one.end)]
    assert served == sorted({offset for row in rows for offset in range(row.base_offset, row.end)})
    assert (partition.start, partition.end) == (served[0], served[-1] + 1)
    for offset in range(served[0], served[-1] + 1):
        found = partition.range_at(offset)
        assert found.first <= offset < found.end or offset not in served
        assert found.receipt.base_offset <= found.first
    holes = {offset for first, end in partition.holes() for offset in range(first, end)}
    assert holes == set(range(partition.start, partition.end)) - set(served)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10), st.sampled_from([None, "expired", "partial"])),
        min_size=1,
        max_size=12,
    )
)
def test_what_expired_is_neither_served_nor_a_hole(spans: list[tuple[int, int, str | None]]) -> None:
    rows = [receipt(base, base + length, state=state) for base, length, state in spans]
    partition = archive(*rows).topics["orders"][0]
    whole, gone = (
        {offset for row in rows if row.is_whole is is_whole for offset in range(row.base_offset, row.end)}
        for is_whole in (True, False)
    )
    assert {offset for one in partition.ranges for offset in range(one.first, one.end)} == whole
    if not whole:
        assert (partition.start, partition.end) == (max(gone) + 1, max(gone) + 1)
        return
    assert (partition.start, partition.end) == (min(whole), max(whole) + 1)
    holes = [(first, end) for first, end in partition.holes() if first < end]
    # A hole may have something that expired inside, never at its beginning.
    assert not {first for first, _ in holes} & gone
    missing = set(range(partition.start, partition.end)) - whole - gone
    assert missing <= {offset for first, end in holes for offset in range(first, end)}
    assert {offset for first, end, _ in partition.expired for offset in range(first, end)} == gone


def test_offsets_of_which_two_stores_have_other_bytes_are_refused() -> None:
    rows = [receipt(0, 10), receipt(10, 20, sha256="a"), receipt(10, 20, sha256="b", store_id="node-2")]
    ranges = archive(*rows).topics["orders"][0].ranges
    assert [bool(one.refused) for one in ranges] == [False, True]


def test_a_receipt_that_was_changed_is_refused() -> None:
    ranges = archive(receipt(0, 10), receipt(10, 20, row_hash="0" * 64)).topics["orders"][0].ranges
    assert [bool(one.refused) for one in ranges] == [False, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
@example([(0, 10, False), (0, 5, True)])
def test_a_receipt_that_was_changed_hides_none_that_is_sound(spans: list[tuple[int, int, bool]]) -> None:
    rows = [
        receipt(base, base + length, store_id=f"node-{number}", row_hash=None if is_sound else "0" * 64)
        for number, (base, length, is_sound) in enumerate(spans)
    ]
    partition = archive(*rows).topics["orders"][0]
    served = {offset for one in partition.ranges if not one.refused for offset in range(one.first, one.end)}
    refused = [offset for one in partition.ranges if one.refused for offset in range(one.first, one.end)]
    covered = {
        is_sound: {
            at for base, length, sound in spans if sound is is_sound for at in range(base, base + length)
        }
        for is_sound in (True, False)
    }
    assert served == covered[True]
    assert refused == sorted(covered[False] - covered[True])


def test_a_log_begins_where_records_were_deleted_up_to() -> None:
    said = json.dumps({"log_start_offset": 4})
    assert archive(receipt(0, 10, evidence=said)).topics["orders"][0].start == 4
    said = json.dumps({"log_start_offset": 14})
    assert archive(receipt(0, 10, evidence=said)).topics["orders"][0].start == 0


def test_the_newest_topic_of_a_name_has_it() -> None:
    older = receipt(0, 10, log_id=f"{CLUSTER}/{OTHER_ID}/0", lineage=1, proven_at_ms=1)
    topics = archive(older, receipt(0, 5, proven_at_ms=2)).topics
    assert {name: one[0].end for name, one in topics.items()} == {"orders": 5, f"orders@{OTHER_ID[:8]}": 10}
    # The older one became part of a larger file since.
    again = receipt(0, 10, log_id=older.log_id, lineage=1, proven_at_ms=3)
    rows = (again, receipt(0, 5, proven_at_ms=2))
    assert archive_of(rows, None, "LAKE", first_proven={again.identity: 1}).topics.keys() == topics.keys()
    assert archive_of(rows, None, "LAKE", first_proven={again.identity: 1}).topics["orders"][0].end == 5


def test_a_log_without_a_topic_id_is_named() -> None:
    old = receipt(0, 5, log="old-0", log_id=None)
    assert archive(receipt(0, 5), old).unnamed == ("old-0",)
    with pytest.raises(BadInputError, match="whose topic has an id, found old-0"):
        archive(old)


@pytest.mark.parametrize("asked", [None, "r8MMkFXnTH6hs0mB1uUMyx"])
def test_one_of_several_clusters_has_to_be_named(asked: str | None) -> None:
    rows = receipt(0, 5), receipt(0, 5, log_id=f"another/{TOPIC_ID}/0")
    with pytest.raises(BadInputError, match=CLUSTER):
        archive(*rows, cluster=asked)
    assert archive(*rows, cluster="another").cluster == "another"
