"""What a pair has in common: names, bytes at the same offsets, and what was written behind what."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.rocketmq.store.broker import continues, open_files, range_sha256
from tests.spark.row_lakes import receipt_of

NAMES = {"brokerClusterName": "c", "brokerName": "b"}


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    gap=st.none() | st.integers(0, 5),
    first=st.integers(0, 320),
    length=st.integers(1, 320),
)
def test_a_range_is_hashed_where_the_files_have_it_whole(
    sizes: list[int], gap: int | None, first: int, length: int
) -> None:
    """However a replica has cut its log into files."""
    data = bytes(at * 7 % 251 for at in range(sum(sizes)))
    with tempfile.TemporaryDirectory() as directory:
        segments, base, missing = [], 0, set()
        for number, size in enumerate(sizes):
            path = Path(directory, f"{base:020d}")
            path.write_bytes(data[base : base + size])
            if number == gap:
                missing = set(range(base, base + size))
            else:
                segments.append(Segment("commitlog", base, FileFacts.of(path), SegmentState.SEALED))
            base += size
        found = range_sha256(segments, first, first + length)
    wanted = range(first, first + length)
    is_whole = wanted.stop <= len(data) and missing.isdisjoint(wanted)
    assert found == (hashlib.sha256(data[first : wanted.stop]).hexdigest() if is_whole else None)


def test_a_store_s_log_is_called_as_its_broker(store_copy: Callable[[str], Path]) -> None:
    store = store_copy("clean-stop")
    broker = open_files(StoreSettings(str(store), overrides=NAMES))
    (log,) = broker.snapshot(0).logs
    contexts = broker.replicas.contexts(log.sealed)
    assert {one.log_id for one in contexts.values()} == {"named:c/b"}
    for before, after in zip(log.sealed, log.sealed[1:], strict=False):
        # Of a segment that is one blank frame there is no message.
        last = contexts[before.id].evidence["last_message"]
        assert contexts[after.id].evidence["message_before"] == last
    assert "message_before" not in contexts[log.sealed[0].id].evidence
    # As the shield keeps a segment that is gone, whose link has a name of its own.
    kept = log.sealed[1]
    link = Path(kept.facts.path).rename(store / f"1-{kept.log}-{kept.base_offset:020d}-3c")
    in_shield = replace(kept, facts=replace(kept.facts, path=str(link)))
    assert broker.replicas.contexts([in_shield]) == {kept.id: contexts[kept.id]}
    for missing in NAMES:
        known = {key: value for key, value in NAMES.items() if key != missing}
        assert open_files(StoreSettings(str(store), overrides=known)).replicas.contexts(log.sealed) == {}


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"last_message": "a"}, {"message_before": "a"}, True),
        ({"last_message": "a"}, {"message_before": "b"}, False),
        ({"last_message": ""}, {"message_before": ""}, False),
        ({}, {}, False),
        ({"last_message": "a"}, {"last_message": "a"}, False),
    ],
)
def test_what_was_written_behind_the_very_segment_goes_on_from_it(
    left: dict[str, Any], right: dict[str, Any], expected: bool
) -> None:
    def of(base: int, evidence: dict[str, Any], log_id: str | None = "c/b") -> Receipt:
        row = receipt_of("commitlog", base, 100, 1, 1)
        return replace(row, log_id=log_id, evidence=json.dumps(evidence))

    assert continues(of(0, left), of(100, right)) is expected
    assert not continues(of(0, left, "c/a"), of(100, right))
    assert not continues(of(0, left, None), of(100, right, None))
