from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import LAG_SCHEMA, POSITIONS_SCHEMA
from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError
from storage_engine.model.store import SegmentId, StoreSnapshot
from storage_engine.rocketmq.codec.stored_messages import UNKNOWN, store_timestamps
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.layout import LOG
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.lag.consumer_offsets import consumers_in_files, group_positions
from storage_engine.rocketmq.lag.lag import LagContext, lag_context
from storage_engine.rocketmq.store.store import RocketMQStore
from tests.fixture_stores import unpack
from tests.rounds import later
from tests.services.lag import queue_lags

UTC = ZoneInfo("UTC")
STORES = ["clean-stop", "cqext-batchcq", "kill9", "multipath"]
SEGMENT_BYTES = 1 << 20

Queue = tuple[str, int]
GroundTruth = Callable[[str, str], list[dict[str, Any]]]


@dataclass(frozen=True)
class Truth:
    """What the broker's own classes read of a store: physical offset of each queue offset, store times."""

    queues: dict[Queue, dict[int, int]]
    times: dict[int, int]


@dataclass(frozen=True)
class Opened:
    files: RocketMQStore
    snapshot: StoreSnapshot
    now_ms: int

    @property
    def config(self) -> BrokerConfig:
        return self.files.config

    def context(self, doomed: Sequence[int] = (), **overrides: Any) -> LagContext:
        config = replace(self.config, **overrides)
        going = [SegmentId(LOG, base_offset) for base_offset in doomed]
        return lag_context(self.files.layout, self.snapshot, config, going, self.now_ms, UTC)


def open_store(root: Path) -> Opened:
    paths = sorted(root.glob("cl*"))
    overrides = {"storePathCommitLog": ",".join(map(str, paths))} if paths else {}
    files = RocketMQStore.open(load_broker_config(None, overrides, root=root))
    now_ms = 1_900_000_000_000
    return Opened(files, files.snapshot(now_ms), now_ms)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    roots = {}
    for name in STORES:
        roots[name] = unpack(name, tmp_path_factory.mktemp(name))
    return roots


@pytest.fixture(scope="module")
def opened(stores: dict[str, Path]) -> dict[str, Opened]:
    return {name: open_store(root) for name, root in stores.items()}


@pytest.fixture(scope="module")
def truths(ground_truth: GroundTruth) -> dict[str, Truth]:
    found = {}
    for name in STORES:
        queues: dict[Queue, dict[int, int]] = defaultdict(dict)
        for entry in ground_truth(name, "consumequeue"):
            queues[entry["topic"], entry["queue"]][entry["index"]] = entry["offset"]
        if name == "cqext-batchcq":
            for entry in ground_truth(name, "batchconsumequeue"):
                for number in range(entry["batchSize"]):
                    queues[entry["topic"], entry["queue"]][entry["msgBaseOffset"] + number] = entry["offset"]
        times = {
            frame["physicOffset"]: frame["storeTimestamp"]
            for frame in ground_truth(name, "commitlog")
            if frame["kind"] == "message"
        }
        found[name] = Truth(queues, times)
    return found


def positions(rows: Sequence[tuple[str, int, str, int | None]]) -> pa.Table:
    names = POSITIONS_SCHEMA.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=POSITIONS_SCHEMA)


def expected(
    truth: Truth, log_min: int, doomed: set[int], row: tuple[str, int, str, int | None]
) -> dict[str, Any]:
    """The same by definition, one row at a time."""
    topic, queue_id, group, committed = row
    entries = truth.queues.get((topic, queue_id), {})
    live = {number: offset for number, offset in entries.items() if offset >= log_min}
    maximum = max(entries, default=-1) + 1
    minimum = min(live, default=maximum)
    oldest = live.get(minimum)
    result = {
        "group": group,
        "topic": topic,
        "queue_id": queue_id,
        "committed_offset": committed,
        "min_offset": minimum,
        "max_offset": maximum,
        "lag_messages": None,
        "lag_ms": None,
        "next_physical_offset": None,
        "next_segment_base_offset": None,
        "at_risk": oldest is not None and oldest // SEGMENT_BYTES * SEGMENT_BYTES in doomed,
        "lost_messages": 0,
        "log": "commitlog",
        "lag_bytes": None,
    }
    if committed is None:
        return result
    result |= {"lag_messages": max(maximum - committed, 0), "lost_messages": max(minimum - committed, 0)}
    following = max(committed, minimum)
    if following >= maximum:
        return result | {"lag_ms": 0, "at_risk": False}
    offset = live[following]
    segment = offset // SEGMENT_BYTES * SEGMENT_BYTES
    return result | {
        "lag_ms": max(truth.times[live[maximum - 1]] - truth.times[offset], 0),
        "next_physical_offset": offset,
        "next_segment_base_offset": segment,
        "at_risk": segment in doomed,
    }


def without_loss_time(table: pa.Table) -> list[dict[str, Any]]:
    return table.drop_columns("time_to_loss_ms").to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_lag_of_every_group_is_what_the_broker_would_say(
    name: str, opened: dict[str, Opened], truths: dict[str, Truth]
) -> None:
    store = opened[name]
    table = group_positions(store.files.layout, consumers_in_files(store.files.layout))
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows
    found = queue_lags(store.context(), table)
    assert found.schema == LAG_SCHEMA
    assert without_loss_time(found) == [expected(truths[name], 0, set(), row) for row in rows]


@pytest.mark.parametrize("name", ["cqext-batchcq", "multipath", *later("clean-stop", "kill9")])
@settings(deadline=None)
@given(data=st.data())
def test_lag_from_any_position_in_any_queue(
    name: str, data: st.DataObject, opened: dict[str, Opened], truths: dict[str, Truth]
) -> None:
    truth = truths[name]
    queues = sorted(truth.queues)
    rows = []
    for topic, queue_id in data.draw(
        st.lists(st.sampled_from([*queues, ("gone", 3)]), unique=True, max_size=6)
    ):
        length = len(truth.queues.get((topic, queue_id), {}))
        for number in range(data.draw(st.integers(1, 4))):
            rows.append(
                (topic, queue_id, f"group{number}", data.draw(st.none() | st.integers(0, length + 3)))
            )
    store = opened[name]
    bases = [segment.base_offset for segment in store.snapshot.logs[0].segments]
    doomed = bases[: data.draw(st.integers(0, len(bases)))]
    found = queue_lags(store.context(doomed), positions(rows))
    assert without_loss_time(found) == [expected(truth, 0, set(doomed), row) for row in rows]


def test_what_was_deleted_is_lost_and_reading_goes_on_at_the_oldest_that_is_left(
    tmp_path: Path, stores: dict[str, Path], truths: dict[str, Truth]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores["clean-stop"], root)
    for segment in sorted((root / "commitlog").iterdir())[:4]:
        segment.unlink()
    store = open_store(root)
    log_min = store.snapshot.logs[0].min_offset
    rows = [
        (topic, queue_id, f"at {committed}", committed)
        for topic, queue_id in sorted(truths["clean-stop"].queues)
        for committed in (None, 0, 5, 200, 2000)
    ]
    found = queue_lags(store.context([log_min]), positions(rows))
    assert without_loss_time(found) == [
        expected(truths["clean-stop"], log_min, {log_min}, row) for row in rows
    ]
    assert max(found["lost_messages"].to_pylist()) > 100
    assert any(found["at_risk"].to_pylist())


def test_queue_may_be_spread_over_several_calls(opened: dict[str, Opened]) -> None:
    store = opened["clean-stop"]
    table = group_positions(store.files.layout, consumers_in_files(store.files.layout))
    context = store.context()
    whole = queue_lags(context, table)
    parts = [queue_lags(context, batch) for batch in table.to_batches(max_chunksize=3)]
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()


def test_no_rows_give_no_rows(opened: dict[str, Opened]) -> None:
    found = queue_lags(opened["clean-stop"].context(), positions([]))
    assert found.num_rows == 0
    assert found.schema == LAG_SCHEMA


def loss_times(store: Opened, context: LagContext) -> dict[int, int | None]:
    rows = [("ledger_ordered", 0, f"group{number}", number) for number in range(0, 1280, 10)]
    found = queue_lags(context, positions(rows)).to_pylist()
    return {row["next_segment_base_offset"]: row["time_to_loss_ms"] for row in found}


def test_time_to_loss_ends_in_the_first_window_after_expiry(opened: dict[str, Opened]) -> None:
    store = opened["clean-stop"]
    segments = store.snapshot.logs[0].segments
    reserved = 1 + (store.now_ms - segments[0].facts.mtime_ns // 1_000_000) // HOUR_MS
    times = loss_times(store, store.context(file_reserved_time_hours=reserved, delete_when="04"))
    assert len(times) > 3
    for segment in segments[: len(times)]:
        loss = times[segment.base_offset]
        assert loss is not None
        loses_at = store.now_ms + loss
        assert loses_at // HOUR_MS % 24 == 4
        assert loses_at >= segment.facts.mtime_ns // 1_000_000 + reserved * HOUR_MS
        assert loss <= 25 * HOUR_MS


def test_segment_in_the_plan_may_go_now_and_one_behind_a_younger_one_goes_after_it(
    opened: dict[str, Opened],
) -> None:
    store = opened["clean-stop"]
    log = store.snapshot.logs[0]
    first, second = log.segments[:2]
    young = replace(first, facts=replace(first.facts, mtime_ns=store.now_ms * 1_000_000))
    younger_first = replace(log, segments=(young, *log.segments[1:]))
    aged = replace(store, snapshot=replace(store.snapshot, logs=(younger_first,)))
    times = loss_times(aged, aged.context(file_reserved_time_hours=72, delete_when="04"))
    assert times[first.base_offset] == times[second.base_offset]
    assert (times[second.base_offset] or 0) >= 72 * HOUR_MS
    doomed = aged.context([0], file_reserved_time_hours=72, delete_when="04")
    assert loss_times(aged, doomed)[0] == 0


def test_time_to_loss_is_unknown_when_the_window_never_comes(opened: dict[str, Opened]) -> None:
    store = opened["clean-stop"]
    assert set(loss_times(store, store.context(delete_when="99")).values()) == {None}


def test_plan_for_another_store_is_an_error(opened: dict[str, Opened]) -> None:
    with pytest.raises(BadInputError, match="no segment of log commitlog begins at 7"):
        opened["clean-stop"].context([0, 7])


def test_a_planned_segment_that_another_run_deleted_meanwhile_is_no_other_stores(
    opened: dict[str, Opened],
) -> None:
    store = opened["clean-stop"]
    (log,) = store.snapshot.logs
    left = replace(store.snapshot, logs=(replace(log, segments=log.segments[1:]),))
    went = [log.segments[0].id]
    context = lag_context(store.files.layout, left, store.config, went, store.now_ms, UTC)
    assert context.log_min_offset == log.segments[1].base_offset


def test_a_segment_of_another_log_puts_no_position_of_this_one_at_risk(opened: dict[str, Opened]) -> None:
    store = opened["clean-stop"]
    other = [SegmentId("another", store.snapshot.logs[0].min_offset)]
    with pytest.raises(BadInputError, match="no segment of log another begins"):
        lag_context(store.files.layout, store.snapshot, store.config, other, store.now_ms, UTC)


def test_lag_in_a_damaged_queue_is_unknown_and_at_risk_and_that_of_others_is_known(
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    places = [("orders", 0, "readers", 3), ("orders", 1, "readers", 3)]
    store = open_store(root)
    going = [store.snapshot.logs[0].segments[-2].base_offset]
    before = queue_lags(store.context(going), positions(places)).to_pylist()
    damaged = root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    unknown, other = queue_lags(store.context(going), positions(places)).to_pylist()
    assert other == before[1]
    assert (unknown["committed_offset"], unknown["lag_messages"], unknown["at_risk"]) == (3, None, True)
    assert (unknown["next_segment_base_offset"], unknown["lost_messages"]) == (None, 0)


def test_store_times_of_all_messages_are_those_of_their_headers(
    opened: dict[str, Opened], truths: dict[str, Truth]
) -> None:
    for name in STORES:
        files = opened[name].context().segments
        offsets = sorted(truths[name].times)
        found = store_timestamps(files, pa.array(offsets).to_numpy())
        assert found.tolist() == [truths[name].times[offset] for offset in offsets]


def test_store_time_where_no_message_begins_is_unknown(opened: dict[str, Opened]) -> None:
    files = opened["clean-stop"].context().segments
    end = files[-1].base_offset + files[-1].size_bytes
    offsets = [1, 291, end - 80, end - 1, end, end + 7]
    assert set(store_timestamps(files, pa.array(offsets).to_numpy()).tolist()) == {UNKNOWN}


def test_store_times_with_ipv6_hosts(ground_truth: GroundTruth, store_copy: Callable[[str], Path]) -> None:
    frames = [frame for frame in ground_truth("edge-frames", "commitlog") if frame["kind"] == "message"]
    assert any(frame["sysFlag"] & 0x10 for frame in frames)
    commitlog = store_copy("edge-frames") / "commitlog"
    files = [MappedFile(path, int(path.name), path.stat().st_size) for path in sorted(commitlog.iterdir())]
    offsets = pa.array([frame["physicOffset"] for frame in frames]).to_numpy()
    assert store_timestamps(files, offsets).tolist() == [frame["storeTimestamp"] for frame in frames]
