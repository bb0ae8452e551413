"""Each log has its own hold: a node of several logs is held as several nodes of one log each are."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.format import batch_headers, log_end
from storage_engine.kafka.format.layout import LiveFacts, LivePartition
from storage_engine.kafka.hold.hold_state import RETENTION_BYTES, RETENTION_MS
from storage_engine.kafka.live import hold
from storage_engine.kafka.live.cut_faults import cut_to_held
from storage_engine.model.hold import HoldStatus
from storage_engine.model.plan import Decision, LogPlan, Reason
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.kafka.live.shared_cluster import (
    DAY_MS,
    HOUR_MS,
    INTERVAL_MS,
    NOW_MS,
    SharedCluster,
    Store,
    node,
    shared_cluster,
)
from tests.kafka.made_node import batch_of

SIZE = len(batch_of(0))
BROKEN = b"no disk has what was here"
OLD = {0: 30, 2: 20, 4: 1}
LATER_MS = NOW_MS + INTERVAL_MS + 1
CONDITIONS = (
    "is old",
    "is young",
    "is first held just now",
    "is set back",
    "grows slowly",
    "grows fast",
    "can't be set",
    "isn't told",
    "can't be read",
    "ends nobody knows where",
    "nobody leads",
)


def break_file(log: Path, name: str = f"{0:020d}.timeindex") -> None:
    """Let the disk fail where a file lies, the time index of a log's first segment or another one."""
    (log / name).write_bytes(BROKEN)


@pytest.fixture(autouse=True, scope="module")
def broken_disk() -> Iterator[None]:
    def read(descriptor: int, count: int, position: int) -> bytes:
        data = os.pread(descriptor, count, position)
        if data == BROKEN:
            raise OSError(errno.EIO, "Input/output error")
        return data

    with pytest.MonkeyPatch.context() as patch:
        for module in (log_end, batch_headers):
            patch.setattr(module, "os", SimpleNamespace(**{**vars(os), "pread": read}))
        yield


class Held:
    """A node of logs of a topic each, in different conditions, and what a hold comes to for each."""

    def __init__(self, root: Path, cluster: SharedCluster, conditions: Mapping[str, str]) -> None:
        self.cluster, self.conditions = cluster, conditions
        cluster.segment_bytes = SIZE
        ages = {f"{topic}-0": OLD if how != "is young" else {0: 3, 2: 1} for topic, how in conditions.items()}
        self.made = node(root, ages)
        self.store = Store(cluster, self.made, deletes="us")
        for topic, how in conditions.items():
            self.write_times(topic, NOW_MS)
            cluster.own[topic] = {RETENTION_MS: DAY_MS}
            if how.startswith("grows"):
                cluster.own[topic] = {RETENTION_MS: -1, RETENTION_BYTES: SIZE}
            if how == "is first held just now":
                cluster.own[topic][RETENTION_MS] = 60 * DAY_MS

    def path(self, topic: str) -> Path:
        return self.made.directories[0] / f"{topic}-0"

    def write_times(self, topic: str, at_ms: int) -> None:
        for file in self.path(topic).glob("*.log"):
            os.utime(file, ns=(at_ms * 1_000_000,) * 2)

    def renew(self, now_ms: int) -> HoldStatus:
        return hold.renew(self.store, now_ms)  # type: ignore[arg-type]

    def disturb(self, now_ms: int) -> None:
        for topic, how in self.conditions.items():
            if how in ("is set back", "is first held just now"):
                self.cluster.own[topic][RETENTION_MS] = DAY_MS
            elif how.startswith("grows"):
                for base in (6, 8, 10):
                    (self.path(topic) / f"{base:020d}.log").write_bytes(batch_of(base, ms=now_ms))
                self.made.watermarks[f"{topic}-0"] = 12
                self.write_times(topic, now_ms - (HOUR_MS if how == "grows slowly" else 0))
            elif how == "can't be set":
                self.cluster.own[topic][RETENTION_MS] = DAY_MS
                self.cluster.refuses.add(topic)
            elif how == "isn't told":
                self.cluster.answers[topic] = BrokerRefusedError("no", code=29, remark="not allowed")
            elif how == "can't be read":
                break_file(self.path(topic))
            elif how == "ends nobody knows where":
                break_file(self.path(topic), f"{4:020d}.log")
            elif how == "nobody leads":
                self.cluster.leaderless.add(topic)

    def of(self, topic: str, status: HoldStatus) -> Any:
        """Return what is known of one topic and its log."""
        name, state = f"{topic}-0", self.store.state
        return (
            self.store.unheld.get(name, ""),  # type: ignore[attr-defined]
            dict(self.cluster.own[topic]),
            [one for one in state.settings if one.topic == topic],
            state.logs.get(name),
            [one for one in status.disturbances if one.log in (topic, name)],
        )


def held_through(root: Path, conditions: Mapping[str, str]) -> list[tuple[Held, HoldStatus, dict[str, Any]]]:
    """Hold a node, disturb it and hold it again; return what came of each topic each time."""
    with shared_cluster() as cluster:
        held, looks = Held(root, cluster, conditions), []
        for at_ms in (NOW_MS, LATER_MS, LATER_MS + 2 * HOUR_MS):
            if at_ms > LATER_MS:
                held.disturb(at_ms)
            status = held.renew(at_ms)
            looks.append((held, status, {topic: held.of(topic, status) for topic in conditions}))
        return looks


@settings(max_examples=8, deadline=None)
@example(dict(zip("abcdefghijk", CONDITIONS, strict=True)))
@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(CONDITIONS), min_size=2))
def test_a_node_of_several_logs_is_held_as_several_nodes_of_one(conditions: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        together = held_through(Path(directory) / "all", conditions)
        alone = [held_through(Path(directory) / topic, {topic: conditions[topic]}) for topic in conditions]
    for place, (_, status, of_topics) in enumerate(together):
        each = [looks[place] for looks in alone]
        for _, _, of_one in each:
            ((topic, expected),) = of_one.items()
            assert of_topics[topic] == expected
        assert status.held or not any(why == "" for why, *_ in of_topics.values())
        assert status.is_well == all(one.is_well for _, one, _ in each)


def test_what_is_held_of_each_log() -> None:
    conditions = dict(zip("abcdefghijk", CONDITIONS, strict=True))
    with tempfile.TemporaryDirectory() as directory:
        first, second, third = held_through(Path(directory) / "node", conditions)
    looks = (first, second, third)
    why = [{conditions[topic]: known[0] for topic, known in of_topics.items()} for _, _, of_topics in looks]
    waiting = {how for how, said in why[0].items() if "the hold counts from" in said}
    assert waiting == set(CONDITIONS) - {"is young", "is first held just now"}
    assert set(why[1].values()) == {""}
    held, not_held = {how for how, said in why[2].items() if not said}, dict(why[2])
    assert held == {"is old", "is young", "grows slowly", "nobody leads"}
    assert "the hold counts from" in not_held["is set back"]
    assert "the hold counts from" in not_held["grows fast"]
    assert not_held["can't be set"] == "the cluster doesn't let us set it: no AlterConfigs"
    assert not_held["isn't told"] == "its settings aren't known: not allowed"
    assert "a file of it can't be read" in not_held["can't be read"]
    assert "a file of it can't be read" in not_held["ends nobody knows where"]
    # It was raised once more, before it would have been too small.
    slow = next(topic for topic, how in conditions.items() if how == "grows slowly")
    assert third[2][slow][1][RETENTION_BYTES] > second[2][slow][1][RETENTION_BYTES]


def test_a_file_that_can_not_be_read_is_due_and_keeps_no_other_topic_from_being_held(tmp_path: Path) -> None:
    with shared_cluster() as cluster:
        cluster.own |= {topic: {RETENTION_MS: DAY_MS} for topic in "ab"}
        store = Store(cluster, node(tmp_path / "node", {"a-0": {0: 20, 2: 1}, "b-0": {0: 20, 2: 1}}))
        break_file(store.made.directories[0] / "a-0")
        status = hold.hold_due(store, {}, DAY_MS, NOW_MS)  # type: ignore[arg-type]
        assert cluster.value("b") > DAY_MS
    (due,) = status.due
    assert (due.log, due.start_offset, due.end_offset, due.at_ms) == ("a-0", 0, 4, NOW_MS)
    assert "a file of it can't be read" in due.why


def log_plan(log: str) -> LogPlan:
    facts = FileFacts(f"/s/{log}", 1, 1, 1, 1, 1)
    segments = [Segment(log, base, facts, SegmentState.SEALED) for base in range(3)]
    reasons = (Reason.EXPIRED, Reason.EXPIRED, Reason.NOT_EXPIRED)
    return LogPlan(log, tuple(Decision(one, why, "") for one, why in zip(segments, reasons, strict=True)))


@pytest.mark.parametrize(
    ("unheld", "live", "why"),
    [
        ({}, LivePartition(leader=1), ""),
        ({"b-0": "set back"}, LivePartition(leader=1), ""),
        ({"a-0": "set back"}, LivePartition(leader=1), "set back"),
        ({}, LivePartition(), "no replica leads it"),
        ({}, None, "the cluster doesn't tell all of it"),
        (
            {},
            LivePartition(leader=1, refused=("topic: no",)),
            "the cluster doesn't tell all of it: topic: no",
        ),
    ],
)
def test_nothing_goes_of_a_log_that_is_not_held_or_led(
    unheld: dict[str, str], live: LivePartition | None, why: str
) -> None:
    facts = LiveFacts(NOW_MS, "c", {} if live is None else {"a-0": live})
    plan = cut_to_held(log_plan("a-0"), unheld, facts)
    reasons = [one.reason for one in plan.decisions]
    assert reasons[2] is Reason.NOT_EXPIRED
    assert reasons[:2] == [Reason.NOT_HELD if why else Reason.EXPIRED] * 2
    assert {one.detail for one in plan.decisions[:2]} == {why}
