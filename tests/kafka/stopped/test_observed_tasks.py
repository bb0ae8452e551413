"""How far a broker's five tasks are: of a stopped node verified, of a running one watched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.kafka.format.checkpoints import read_offsets
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node, read_node
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.stopped import observed_tasks as tasks_module
from storage_engine.kafka.stopped.observed_tasks import OVERDUE_MS, observed_tasks, stopped_tasks, tasks_of
from storage_engine.kafka.stopped.stopped_release import stopped_node
from storage_engine.model.broker.broker_tasks import BrokerTask, TaskLimits
from tests.kafka.left_over_node import GONE, delete_first_segment, write_recovery_points
from tests.kafka.made_node import CLUSTER, MadeNode
from tests.kafka.stopped_nodes import make_node

LIMITS = TaskLimits(checkpoint_ms=600_000, unflushed_bytes=1 << 30)


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    node = make_node(tmp_path / "node")
    write_recovery_points(node)
    return node


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stopped(made: MadeNode) -> dict[str, BrokerTask]:
    node = read_node(made.properties)
    topics = read_topic_settings(node)
    tasks = stopped_tasks(node, topics, now_ms(), stopped_node(node, topics))
    return {one.name: one for one in tasks}


def observed(
    made: MadeNode, at_ms: int, node: Node | None = None, limits: TaskLimits = LIMITS
) -> dict[str, BrokerTask]:
    node = node or read_node(made.properties)
    return {one.name: one for one in observed_tasks(node, read_topic_settings(node), at_ms, limits)}


def test_after_a_clean_stop_recovery_points_are_where_logs_end(made: MadeNode) -> None:
    found = stopped(made)
    assert found["checkpointLogRecoveryOffsets"].found == ("2 of 2 recovery points at the log's end",)
    assert [one.overdue for one in found.values()] == [()] * 5
    made.checkpoint("recovery-point-offset-checkpoint", {"a-0": 4})
    (said,) = stopped(made)["checkpointLogRecoveryOffsets"].overdue
    assert "log a-0: expected its end 6, as after a clean stop, found 4" in said
    (made.directories[0] / ".kafka_cleanshutdown").unlink()
    assert stopped(made)["checkpointLogRecoveryOffsets"].overdue == ()


@pytest.mark.parametrize("runs", [True, False])
def test_each_checkpoint_is_read_once_a_task_however_many_logs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    node = make_node(tmp_path / "node", [f"a-{number}" for number in range(20)])
    write_recovery_points(node)
    node.checkpoint("log-start-offset-checkpoint", {})
    read: list[Path] = []

    def read_one(path: Path) -> Mapping[str, int]:
        read.append(path)
        return read_offsets(path)

    monkeypatch.setattr(tasks_module, "read_offsets", read_one)
    observed(node, now_ms()) if runs else stopped(node)
    assert 0 < len(read) <= 2 * len(node.directories)


def test_of_a_damaged_checkpoint_s_directory_nothing_is_looked_at(made: MadeNode) -> None:
    def directories() -> set[Path]:
        tasks = tasks_of(read_node(made.properties), now_ms() + OVERDUE_MS, LIMITS)
        left = (one for task in tasks for one in task.left)
        return {Path(file.facts.path).parents[1] for one in left for file in one.files}

    delete_first_segment(made.directories[0] / "a-0")
    delete_first_segment(made.directories[1] / "b-0")
    assert directories() == set(made.directories)
    (made.directories[0] / "recovery-point-offset-checkpoint").write_bytes(bytes(9))
    assert directories() == {made.directories[1]}


@pytest.mark.parametrize("lost", ["its identity", "its marker"])
def test_what_a_damaged_directory_says_of_the_stop_keeps_what_others_have_left(
    made: MadeNode, lost: str
) -> None:
    delete_first_segment(made.directories[1] / "b-0")
    (made.directories[1] / GONE).mkdir()
    if lost == "its identity":
        (made.root / "meta" / "meta.properties").write_bytes(bytes(9))
        why = "no broker starts without the directory of its metadata"
    else:
        (made.directories[0] / "recovery-point-offset-checkpoint").write_bytes(bytes(9))
        (made.directories[0] / ".kafka_cleanshutdown").unlink()
        why = "its broker did not stop cleanly"
    tasks = tasks_of(read_node(made.properties), now_ms() + OVERDUE_MS, LIMITS)
    kept = {task.name: task.kept for task in tasks if task.kept}
    assert kept.keys() == {"cleanupLogs", "deleteLogs"}
    assert all(f"nothing is removed: {why}" in said[-1] for said in kept.values())
    assert not any(task.left for task in tasks)


def test_a_start_above_the_end_is_told(made: MadeNode) -> None:
    made.checkpoint("log-start-offset-checkpoint", {"a-0": 3})
    found = stopped(made)["checkpointLogStartOffsets"]
    assert found.found == ("1 start in checkpoints, 1 inside a first segment, 0 above an end",)
    assert found.overdue == ()
    made.checkpoint("log-start-offset-checkpoint", {"a-0": 7})
    (said,) = stopped(made)["checkpointLogStartOffsets"].overdue
    assert "log a-0: expected a start up to its end 6, found 7" in said


def test_of_a_running_broker_what_is_overdue_is_told(made: MadeNode) -> None:
    delete_first_segment(made.directories[0] / "a-0")
    gone = made.directories[0] / GONE
    gone.mkdir()
    made.checkpoint("log-start-offset-checkpoint", {})
    found = observed(made, now_ms())
    assert [one.overdue for one in found.values()] == [()] * 5
    found = observed(made, now_ms() + OVERDUE_MS + 120_000)
    assert (
        "expected it gone after file.delete.delay.ms, found it and 3 more" in found["cleanupLogs"].overdue[0]
    )
    assert str(gone) in found["deleteLogs"].overdue[0]
    for name in ("checkpointLogRecoveryOffsets", "checkpointLogStartOffsets"):
        assert "expected it written within 10 min" in found[name].overdue[0]


def test_a_delay_that_cannot_be_read_is_no_delay_of_0(made: MadeNode) -> None:
    delete_first_segment(made.directories[0] / "a-0")
    (made.directories[0] / GONE).mkdir()
    made.settings["a"]["file.delete.delay.ms"] = "soon"
    made.node_settings["log.segment.delete.delay.ms"] = "later"
    made.write()
    found = observed(made, now_ms() + OVERDUE_MS + 120_000)
    assert [found[name].overdue for name in ("cleanupLogs", "deleteLogs")] == [(), ()]
    assert "file.delete.delay.ms isn't known of a" in found["cleanupLogs"].found
    assert "log.segment.delete.delay.ms of the node can't be read" in found["deleteLogs"].found


def test_what_lies_behind_a_recovery_point_is_counted_by_whole_segments(made: MadeNode) -> None:
    size = (made.directories[0] / "a-0" / f"{4:020d}.log").stat().st_size
    made.checkpoint("recovery-point-offset-checkpoint", {"a-0": 3})
    made.checkpoint("recovery-point-offset-checkpoint", {"b-0": 6}, 1)
    assert observed(made, now_ms())["flushDirtyLogs"].found == (f"{3 * size} bytes behind recovery points",)
    made.settings["a"]["segment.bytes"] = "1"
    made.write()
    (said,) = observed(made, now_ms(), limits=replace(LIMITS, unflushed_bytes=10))["flushDirtyLogs"].overdue
    assert f"a-0: expected at most 11 bytes behind its recovery point, found {2 * size} bytes" in said


def test_starts_are_compared_with_leaders(made: MadeNode) -> None:
    node = read_node(made.properties)
    partitions = {"a-0": LivePartition(log_start=3), "b-0": LivePartition(log_start=0)}
    live = replace(node, live=LiveFacts(now_ms(), CLUSTER, partitions))
    assert (
        "1 start behind the leader's, by 3 offsets"
        in observed(made, now_ms(), live)["checkpointLogStartOffsets"].found
    )
    assert (
        "not compared with leaders: no broker was asked"
        in observed(made, now_ms())["checkpointLogStartOffsets"].found
    )


def test_an_old_checkpoint_of_an_idle_directory_is_none(made: MadeNode) -> None:
    long_ago = time.time() - 10_000
    os.utime(made.directories[0] / "recovery-point-offset-checkpoint", (long_ago, long_ago))
    made.checkpoint("replication-offset-checkpoint", {})
    assert observed(made, now_ms())["checkpointLogRecoveryOffsets"].overdue == ()
