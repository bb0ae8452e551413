"""States of records, against indexes and snapshots of a real broker, and a plain walk over the log."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.kafka.codec.transaction_states import UncommittedTransactions, check_transaction_index
from storage_engine.kafka.format.producer_snapshot import Producer, parse_producer_snapshot
from storage_engine.kafka.format.transaction_index import AbortedTransaction, parse_transaction_index
from tests.kafka import batches

TRANSACTIONAL = 16
_END = 1 << 40


def decoded(data: bytes) -> pa.Table:
    return pa.concat_tables([rows for rows, _ in CODEC.decode(memoryview(data), 0)])


def walked(rows: Iterable[Mapping[str, Any]]) -> list[str | None]:
    """Return the states of rows, by walking over them backwards with the last marker of each producer."""
    ends: dict[int, str] = {}
    states: list[str | None] = []
    for row in reversed(list(rows)):
        if row["control"] in ("commit", "abort"):
            ends[row["producer_id"]] = {"commit": "committed", "abort": "aborted"}[row["control"]]
        if row["kind"] != "message":
            states.append(None)
        elif row["transactional"]:
            states.append(ends.get(row["producer_id"], "open"))
        else:
            states.append("committed")
    return states[::-1]


def segments_of(log: Path) -> list[Path]:
    return sorted(log.glob("*.log"))


def snapshot_of(segment: Path) -> tuple[Producer, ...]:
    path = segment.with_suffix(".snapshot")
    return parse_producer_snapshot(path.read_bytes(), str(path)) if path.exists() else ()


def index_of(segment: Path) -> tuple[AbortedTransaction, ...]:
    path = segment.with_suffix(".txnindex")
    return parse_transaction_index(path.read_bytes(), str(path)) if path.exists() else ()


LOGS = pytest.mark.parametrize("log", ["txn-0", "txn-1"])


@LOGS
def test_the_files_and_the_log_itself_say_what_a_walk_does(node: Path, log: str) -> None:
    segments = segments_of(node / "logs" / log)
    tables = [decoded(path.read_bytes()) for path in segments]
    walk = walked(row for table in tables for row in table.to_pylist())
    counts = Counter(walk)
    assert min(counts[word] for word in ("committed", "aborted", "open")) > 0

    active = segments[-1]
    replayed = UncommittedTransactions.none(0)
    for path, end in zip(segments, [*(int(path.stem) for path in segments[1:]), _END], strict=True):
        replayed = replayed.continued(path.read_bytes(), end)
    by_log = [word for table in tables for word in replayed.state_column(table).to_pylist()]
    assert by_log == walk

    # The newest snapshot may lie at the active segment's base: the log has the rest.
    entries = [entry for path in segments[:-1] for entry in index_of(path)]
    known = UncommittedTransactions.of_files(entries, snapshot_of(active), int(active.stem))
    known = known.continued(active.read_bytes(), _END)
    by_files = [word for table in tables for word in known.state_column(table).to_pylist()]
    assert by_files == walk
    assert pickle.loads(pickle.dumps(known)).first_open_offset == replayed.first_open_offset


@LOGS
def test_what_the_broker_left_open_and_aborted_is_what_the_log_says(node: Path, log: str) -> None:
    known = UncommittedTransactions.none(0)
    segments = segments_of(node / "logs" / log)
    for path, after in pairwise(segments):
        known = known.continued(path.read_bytes(), int(after.stem))
        check_transaction_index(index_of(path), known, int(path.stem), "the/index")
        begins = [one.transaction_first_offset for one in snapshot_of(after)]
        expected = min((first for first in begins if first is not None), default=None)
        assert known.first_open_offset == expected
        again = UncommittedTransactions.of_files(
            [entry for one in segments if one < after for entry in index_of(one)],
            snapshot_of(after),
            int(after.stem),
        )
        assert again.aborted == known.aborted
    assert len(known.aborted) > 30


@pytest.mark.parametrize(
    ("change", "expected", "found"),
    [
        (lambda index: index[:-1], "producer 27, offsets 168 to 176", "no entry"),
        (lambda index: index[1:], "producer 28, offsets 0 to 36", "producer 28, offsets 38 to 60"),
        (lambda index: (*index, index[-1]), "no entry", "producer 27, offsets 168 to 176"),
    ],
    ids=["one is missing", "the first is missing", "one too many"],
)
def test_an_index_that_disagrees_is_one_error(node: Path, change: Any, expected: str, found: str) -> None:
    path = segments_of(node / "logs/txn-0")[0]
    known = UncommittedTransactions.none(0).continued(path.read_bytes(), 178)
    with pytest.raises(
        CorruptFileError, match=rf"x\.txnindex: at byte \d+ expected {expected}, found {found}"
    ):
        check_transaction_index(change(index_of(path)), known, 0, "x.txnindex")


def test_what_is_not_known_yet_has_no_state(node: Path) -> None:
    path = segments_of(node / "logs/txn-0")[0]
    rows = decoded(path.read_bytes())
    known = UncommittedTransactions.none(0).continued(path.read_bytes(), 100)
    with pytest.raises(ValueError, match="expected offsets below 100"):
        known.state_column(rows)
    with pytest.raises(ValueError, match="found a record"):
        known.state_column(rows.slice(1))


Event = tuple[str, int, int]
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["data", "data", "plain", "commit", "abort", "legacy"]),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    max_size=25,
)


def log_of(events: Iterable[Event]) -> Iterator[tuple[int, bytes]]:
    """Yield batches with their base offsets."""
    offset = 0
    for kind, producer, count in events:
        records = [batches.Record(1, b"k", bytes([count]))] * count
        if kind == "legacy":
            yield offset, batches.legacy(1, offset, b"k", b"v")
            count = 1
        elif kind in ("commit", "abort"):
            yield offset, batches.marker(int(kind == "commit"), producer, offset)
            count = 1
        else:
            attributes = TRANSACTIONAL if kind == "data" else 0
            yield (
                offset,
                batches.batch(records, base_offset=offset, attributes=attributes, producer_id=producer),
            )
        offset += count


@given(events=_EVENTS, cuts=st.lists(st.integers(0, 60), max_size=3))
def test_any_log_read_in_any_parts_has_the_states_of_a_walk(events: list[Event], cuts: list[int]) -> None:
    log = list(log_of(events))
    data = b"".join(batch for _, batch in log)
    known = UncommittedTransactions.none(0)
    for cut in (*sorted(cuts), _END):
        known = known.continued(data, cut)
    if not data:
        assert known.first_open_offset is None
        return
    rows = decoded(data)
    walk = walked(rows.to_pylist())
    assert known.state_column(rows).to_pylist() == walk
    is_open = [row["offset"] for row, state in zip(rows.to_pylist(), walk, strict=True) if state == "open"]
    assert known.first_open_offset == min(is_open, default=None)
