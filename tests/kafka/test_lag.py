"""Where a group's next record lies, its time, and what is behind it, against a walk over each log."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import LAG_SCHEMA, POSITIONS_SCHEMA
from storage_engine.exceptions import BadInputError
from storage_engine.kafka import BROKER
from storage_engine.kafka.codec.codec import CODEC, KafkaCodec
from storage_engine.kafka.format.batch_headers import opened
from storage_engine.kafka.lag import (
    Consumers,
    LagContext,
    LogOfLag,
    SegmentOfLag,
    find_all,
    unread_by_log,
    unread_records,
)
from storage_engine.kafka.lag_job import KafkaLagJob, lag_job
from storage_engine.kafka.metadata.consumer_offsets import read_consumer_offsets
from storage_engine.kafka.store.lag_context import lag_context
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.kind import LagRequest, check_plan
from storage_engine.model.lag import LagSource
from storage_engine.model.store import SegmentId
from storage_engine.retention.lag.lag_table import queue_shares
from tests.kafka.batches import Record, batch
from tests.services.lag import measured_by, partition_lags

NOW_MS = 1_795_190_000_000
LOGS = (
    "plain-0",
    "txn-0",
    "javacodec-0",
    "tinyseg-0",
    "compdel-0",
    "lat-0",
    "retslow-0",
    "delrec-0",
    "flushy-0",
)


@pytest.fixture(scope="module")
def job(node: Path) -> KafkaLagJob:
    return job_of(node)


def job_of(node: Path, *going: SegmentId) -> KafkaLagJob:
    return lag_job(LagRequest(StoreSettings(str(node / "server.properties")), going, NOW_MS))


def records(log: str, job: KafkaLagJob) -> Iterator[tuple[int, int | None, int, str]]:
    """Yield each record's offset, its time, how many bytes the log has from its batch on, and its segment."""
    (seen,) = (one for one in job.snapshot.logs if one.name == log)
    total = sum(segment.facts.size_bytes for segment in seen.segments)
    before = 0
    for segment in seen.segments:
        data = Path(segment.facts.path).read_bytes()
        position = 0
        for rows, _ in CODEC.decode(memoryview(data), 0):
            for row in rows.select(["kind", "offset", "timestamp", "physical_offset"]).to_pylist():
                if row["kind"] == "batch":
                    position = row["physical_offset"]
                elif row["kind"] in ("message", "control"):
                    time = None if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1000)
                    yield row["offset"], time, total - before - position, segment.facts.path
        before += len(data)


def table(*rows: tuple[str, int | None]) -> pa.Table:
    def row(log: str, committed: int | None) -> dict[str, Any]:
        topic, _, number = log.rpartition("-")
        return {"topic": topic, "queue_id": int(number), "group": "g", "committed_offset": committed}

    return pa.Table.from_pylist([row(*one) for one in rows], schema=POSITIONS_SCHEMA)


def context_of(node: Path, logs: tuple[str, ...], *going: SegmentId) -> tuple[KafkaLagJob, LagContext]:
    """Return what lag in some logs is measured against, whoever reads there."""
    made = job_of(node, *going)
    store = BROKER.open_store(StoreSettings(str(node / "server.properties")), None)
    snapshot = store.snapshot(NOW_MS)
    seen = store.node.seen  # type: ignore[attr-defined]
    return made, lag_context(seen, snapshot, logs, frozenset(going), NOW_MS)


@pytest.mark.parametrize("log", LOGS)
def test_a_position_is_found_where_a_walk_over_the_log_finds_it(log: str, node: Path) -> None:
    job, context = context_of(node, (log,))
    there = sorted(records(log, job))
    known = context.logs[log]
    offsets = sorted({one[0] for one in there} | {there[-1][0] + 1, known.begin, 0})
    chosen = random.Random(log).sample(offsets, min(25, len(offsets)))
    for row in partition_lags(context, table(*((log, one) for one in chosen))).to_pylist():
        committed = row["committed_offset"]
        following = max(committed, known.begin)
        expected = next((one for one in there if one[0] >= following), None)
        assert row["lag_messages"] == known.end - committed
        assert row["lost_messages"] == max(known.begin - committed, 0)
        if expected is None:
            assert (row["lag_bytes"], row["lag_ms"], row["next_physical_offset"]) == (0, 0, None)
            continue
        _, time, size, path = expected
        assert row["lag_bytes"] == size
        assert row["next_physical_offset"] == following
        assert path.endswith(f"{row['next_segment_base_offset']:020d}.log")
        if time is not None:
            assert row["lag_ms"] == max(known.newest_ms - time, 0)  # type: ignore[operator]


def test_lag_of_a_real_brokers_groups_has_each_column(job: KafkaLagJob) -> None:
    found = measured_by(job)
    assert found.schema == LAG_SCHEMA
    rows = {(row["group"], row["log"]): row for row in found.to_pylist()}
    manual = rows["g-manual", "plain-0"]
    assert (manual["committed_offset"], manual["lag_messages"], manual["max_offset"]) == (123, 2877, 3000)
    unknown = rows["g-classic", "plain-0"]
    assert (unknown["committed_offset"], unknown["lag_messages"], unknown["lag_bytes"]) == (None, None, None)


def test_a_group_is_at_risk_by_the_segment_that_holds_its_next_record(node: Path) -> None:
    _, context = context_of(node, ("tinyseg-0",))
    first, second = context.logs["tinyseg-0"].segments[:2]
    going = SegmentId("tinyseg-0", first.base_offset)
    _, context = context_of(node, ("tinyseg-0",), going)
    rows = partition_lags(
        context,
        table(("tinyseg-0", first.base_offset), ("tinyseg-0", second.base_offset), ("tinyseg-0", None)),
    ).to_pylist()
    assert [row["at_risk"] for row in rows] == [True, False, True]
    assert rows[0]["time_to_loss_ms"] == 0


def test_a_segment_that_went_away_meanwhile_leaves_a_group_at_risk_of_what_goes(
    node: Path, tmp_path: Path
) -> None:
    _, context = context_of(node, ("tinyseg-0",))
    log = context.logs["tinyseg-0"]
    gone = replace(log.segments[0], path=str(tmp_path / "gone"), index_path=None, going=True)
    gone_log = replace(log, segments=(gone, *log.segments[1:]))
    (row,) = partition_lags(LagContext({log.name: gone_log}), table((log.name, 0))).to_pylist()
    assert (row["at_risk"], row["next_physical_offset"], row["lag_bytes"]) == (True, None, None)
    assert row["lag_messages"] == log.end


def test_a_planned_segment_that_went_from_the_beginning_of_its_log_is_none_of_another_plan(
    node: Path,
) -> None:
    snapshot = BROKER.open_store(StoreSettings(str(node / "server.properties")), None).snapshot(0)
    log = next(log for log in snapshot.logs if log.name == "tinyseg-0")
    later = replace(log, segments=log.segments[1:])
    assert later.min_offset > log.segments[0].base_offset
    check_plan(replace(snapshot, logs=(later,)), [log.segments[0].id])


def test_a_segment_of_another_plan_is_refused(node: Path) -> None:
    with pytest.raises(BadInputError, match="no segment of log tinyseg-0 begins at 1: expected the segments"):
        job_of(node, SegmentId("tinyseg-0", 1))


def test_shares_are_of_whole_partitions_and_measured_elsewhere_are_the_same(job: KafkaLagJob) -> None:
    shares = queue_shares(job.positions, 2)
    assert shares[0][0] == 0
    assert shares[-1][1] == job.positions.num_rows
    assert all(one[1] == other[0] for one, other in pairwise(shares))
    keys = [
        [(row["topic"], row["queue_id"]) for row in job.positions.slice(a, b - a).to_pylist()]
        for a, b in shares
    ]
    assert all(one[-1] != other[0] for one, other in pairwise(keys))
    place = pickle.loads(pickle.dumps(job.place))
    parts = [place(job.positions.slice(a, b - a)) for a, b in shares]
    assert pa.concat_tables(parts).to_pylist() == job.place(job.positions).to_pylist()


def test_what_nobody_has_read_of_what_goes_is_told_by_group_and_topic(node: Path) -> None:
    store = BROKER.open_store(StoreSettings(str(node / "server.properties")), None)
    snapshot = store.snapshot(NOW_MS)
    found = store.consumers.unread(snapshot, {"plain-0": 200, "txn-1": 300, "empty-0": 5, "retms-0": 900})
    assert (found.error, found.logs, found.notices) == ("", None, ())
    rows = {(row.group, row.topic): (row.messages, row.queues) for row in found.rows}
    assert rows == {
        ("g-manual", "plain"): (77, 1),
        ("g-new", "plain"): (135, 1),
        ("g-classic", "plain"): (None, 1),
        ("g-classic", "txn"): (108, 1),
        ("g-manual", "empty"): (None, 1),
    }
    assert [row.messages for row in found.rows] == [135, 108, 77, None, None]
    assert all(row.from_ms is not None for row in found.rows if row.topic != "empty")
    gone = store.consumers.unread(snapshot, {"plain-0": 200}, deleted=True)
    assert {(row.group, row.messages, row.from_ms) for row in gone.rows} == {
        ("g-manual", 77, None),
        ("g-new", 135, None),
        ("g-classic", None, None),
    }


def test_what_is_lost_of_each_log_is_what_it_alone_would_lose_with_positions_taken_once(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BROKER.open_store(StoreSettings(str(node / "server.properties")), None)
    snapshot = store.snapshot(NOW_MS)
    ends = {"plain-0": 200, "txn-1": 300, "empty-0": 5, "retms-0": 900}
    alone = {log: store.consumers.unread(snapshot, {log: end}) for log, end in ends.items()}
    taken: list[object] = []

    def counted(*arguments: Any, **more: Any) -> Any:
        taken.append(arguments)
        return read_consumer_offsets(*arguments, **more)

    monkeypatch.setattr("storage_engine.kafka.lag.read_consumer_offsets", counted)
    assert store.consumers.unread_by_log(snapshot, ends) == alone
    assert len(taken) == 1
    assert [log for log, unread in alone.items() if unread.rows] == ["plain-0", "txn-1", "empty-0"]


def test_a_log_that_cannot_be_read_changes_no_loss_of_another(tmp_path: Path) -> None:
    logs = {name: made_log(name, tmp_path, [made_batch(0), made_batch(1)]) for name in ("t-0", "t-1")}
    Path(logs["t-0"].segments[0].path).unlink()
    Path(logs["t-0"].segments[0].path).mkdir()
    consumers = Consumers({("g", "t", 0): 1, ("g", "t", 1): 1}, LagSource())
    found = unread_by_log(consumers, LagContext(logs), {"t-0": 4, "t-1": 4})
    rows = {log: [(row.messages, row.from_ms) for row in unread.rows] for log, unread in found.items()}
    assert rows == {"t-0": [(3, None)], "t-1": [(3, 1001)]}


def made_log(name: str, directory: Path, batches: list[bytes]) -> LogOfLag:
    """Return a log of one segment whose batches have two records each."""
    path = directory / f"{name}.log"
    path.write_bytes(b"".join(batches))
    end = 2 * len(batches)
    segment = SegmentOfLag(0, str(path), None, path.stat().st_size, True, None)
    return LogOfLag(name, 0, end, 1000 + end, (segment,))


def made_batch(number: int) -> bytes:
    return batch([Record(1000 + 2 * number + one, None, b"v") for one in (0, 1)], base_offset=2 * number)


def test_an_offset_is_looked_up_once_whatever_the_number_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = {
        f"t-{number}": made_log(f"t-{number}", tmp_path, [made_batch(0), made_batch(1)])
        for number in range(10)
    }
    # Of each partition a third of the groups has committed; the others stand together at its begin.
    committed = {
        (f"g{group}", "t", number): group % 4 if group % 3 == number % 3 else None
        for group in range(50)
        for number in range(10)
    }
    opened_paths: list[str] = []
    decoded_bytes: list[int] = []
    decode = KafkaCodec.decode

    def counted(self: KafkaCodec, data: Any, *arguments: Any) -> Any:
        decoded_bytes.append(len(data))
        return decode(self, data, *arguments)

    def counted_open(path: str) -> Any:
        opened_paths.append(path)
        return opened(path)

    monkeypatch.setattr(KafkaCodec, "decode", counted)
    monkeypatch.setattr("storage_engine.kafka.lag.opened", counted_open)
    consumers = Consumers(committed, LagSource())
    found = unread_records(consumers, LagContext(logs), dict.fromkeys(logs, 4), deleted=False)
    assert sum(row.queues for row in found.rows) == len(committed)
    assert {row.from_ms for row in found.rows if row.messages is None} == {1000}
    distinct = {(place[1:], offset or 0) for place, offset in committed.items()}
    # Once to find an offset's batch, and once each batch to be decoded.
    assert len(opened_paths) <= len(distinct) + 2 * len(logs)
    assert decoded_bytes == [sum(one.segments[0].size_bytes for one in logs.values())]
    lags = partition_lags(LagContext(logs), consumers.table).to_pylist()
    assert len(decoded_bytes) == 2
    opened_paths.clear()
    # What a run records of a deletion is told without the logs, also of groups whose position isn't known.
    recorded = unread_records(consumers, LagContext(logs), dict.fromkeys(logs, 4), deleted=True)
    assert [replace(row, from_ms=None) for row in found.rows] == list(recorded.rows)
    assert (opened_paths, len(decoded_bytes)) == ([], 2)
    assert {row["lag_ms"] for row in lags if row["committed_offset"] == 3} == {1004 - 1003}


@given(
    damages=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 80), st.integers(0, 255)), max_size=3),
    offset=st.integers(0, 15),
)
def test_a_damaged_batch_changes_no_time_of_another(
    damages: list[tuple[int, int, int]], offset: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    logs = {}
    for number in range(8):
        data = bytearray(made_batch(0) + made_batch(1))
        for which, place, value in damages:
            if which == number:
                data[place] = value
        logs[f"t-{number}"] = made_log(f"t-{number}", directory, [bytes(data[:80]), bytes(data[80:])])
    keys = [(name, (offset + number) % 4) for number, name in enumerate(logs)]
    alone = {}
    for key in keys:
        alone |= find_all(LagContext(logs), [key])
    assert find_all(LagContext(logs), keys) == alone
    whole = [key for key in keys if int(key[0][2:]) not in {which for which, _, _ in damages}]
    assert {key: alone[key].timestamp_ms for key in whole} == {key: 1000 + key[1] for key in whole}
