"""A node of a real broker, looked at: offsets, plan, findings. Whatever would change it is refused."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.cli.options.options import check_store
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.exceptions import (
    BadInputError,
    StoreBusyError,
    StoreLayoutError,
    StoreNotFoundError,
)
from storage_engine.kafka import BROKER
from storage_engine.kafka.format.layout import read_node, store_around
from storage_engine.kafka.format.log_end import end_offset, segment_facts
from storage_engine.kafka.format.meta_properties import read_meta_properties
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.kafka.metadata.cluster_metadata import read_cluster_metadata
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.retention_rules import LogFacts, Rule, retention_pass
from storage_engine.kafka.stopped.store_lock import lock_holder
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.broker.broker_store import BrokerStore, StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.plan import LogPlan, PlanRequest, Reason
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.model.store import SegmentState
from storage_engine.retention.steps import make_plan
from storage_engine.retention.store.broker_answers import propose, take_snapshot
from storage_engine.retention.store.context import open_context, shared_disk_notice
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.plans import files_of
from tests.kafka_fixture import FIXTURES, truth

NOW_MS = 1_795_190_000_000
"""Later than the timestamps of all records."""
WRITTEN_MS = 1_795_180_400_000
"""When they were written; producers gave some a timestamp of the future."""


def opened(root: Path) -> BrokerStore:
    return BROKER.open_store(StoreSettings(str(root)), None)


def plan_of(root: Path, log: str, now_ms: int = NOW_MS) -> LogPlan:
    store = opened(root)
    plan = propose(store, take_snapshot(store, now_ms, "kafka"), now_ms, PlanRequest())
    (found,) = [one for one in plan.logs if one.log == log]
    return found


def findings(root: Path, now_ms: int = NOW_MS) -> dict[str, Finding]:
    return {
        one.kind: one for one in BROKER.inspection.diagnose(StoreSettings(str(root)), None, now_ms).findings
    }


def test_importing_it_loads_neither_numpy_nor_arrow() -> None:
    code = "import sys, storage_engine.kafka; print(sorted({'numpy', 'pyarrow', 'numba'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_logs_begin_and_end_where_the_broker_says(node: Path) -> None:
    store = opened(node / "server.properties")
    snapshot = take_snapshot(store, NOW_MS, "kafka")
    assert not snapshot.crashed
    reported = json.loads((FIXTURES / "clean-stop.offsets.json").read_text())
    logs = {log.name: log for log in snapshot.logs}
    assert set(logs) <= set(reported)
    assert not [name for name in logs if name.startswith("__")]
    for name, log in logs.items():
        start, end = reported[name]
        assert log.max_offset == log.dispatched_offset == end
        # A log may start in the middle of its first segment.
        assert log.segments[0].base_offset <= start
        assert [segment.state for segment in log.segments[:-1]] == [SegmentState.SEALED] * (
            len(log.segments) - 1
        )
        assert log.segments[-1].state is SegmentState.ACTIVE


def test_companions_are_what_nobody_can_make_again(node: Path) -> None:
    snapshot = opened(node / "server.properties").snapshot(NOW_MS)
    (log,) = [log for log in snapshot.logs if log.name == "txn-0"]
    names = [[Path(one.path).suffix for one in segment.companions] for segment in log.segments]
    assert names[0] == [".txnindex"]
    assert names[1] == [".snapshot", ".txnindex"]


def test_the_end_is_found_without_an_index_too(node: Path, copy: Path) -> None:
    for index in (copy / "logs").glob("*/*.index"):
        index.unlink()
    known = {log.name.log: end_offset(log) for _, log in read_node(node / "server.properties").logs}
    assert {log.name.log: end_offset(log) for _, log in read_node(copy / "server.properties").logs} == known


def test_the_newest_record_is_found_with_and_without_a_time_index(node: Path, copy: Path) -> None:
    newest: dict[str, int] = {}
    for batch in truth()["batch"]:
        newest[batch["file"]] = max(newest.get(batch["file"], -1), batch["maxts"])
    for index in (copy / "logs").glob("*/*.timeindex"):
        index.unlink()
    compared = 0
    for root in (node, copy):
        for _, log in read_node(root / "server.properties").logs:
            for segment in log.segments:
                expected = newest.get(str(Path(segment.log.path).relative_to(root)), -1)
                if expected < 0 or log.name.is_internal:
                    continue
                active = segment is log.segments[-1]
                assert segment_facts(segment, active=active).largest_timestamp_ms == expected
                compared += 1
    assert compared > 200


def test_a_preallocated_index_ends_with_its_last_entry(copy: Path) -> None:
    before = read_node(copy / "server.properties")
    for index in [*(copy / "logs").glob("*/*.index"), *(copy / "logs").glob("*/*.timeindex")]:
        with index.open("ab") as file:
            file.write(bytes(24 * 2000))
    after = read_node(copy / "server.properties")
    for (_, log), (_, other) in zip(before.logs, after.logs, strict=True):
        assert end_offset(log) == end_offset(other)
        assert [segment_facts(one, active=False) for one in log.segments] == [
            segment_facts(one, active=False) for one in other.segments
        ]


def test_topics_have_the_settings_that_they_were_made_with(node: Path) -> None:
    found = read_cluster_metadata(node / "meta" / "__cluster_metadata-0")
    assert found.topic_settings["retms"]["retention.ms"] == "20000"
    assert found.topic_settings["compdel"]["cleanup.policy"] == "compact,delete"
    assert text_of(found.topic_ids["plain"]) == "SpW3_o3XTRKH1zPnJ4tcEQ"
    assert "delme2" not in found.topic_ids, "it was deleted"
    topics = read_topic_settings(read_node(node / "server.properties"))
    settings = topics.of("retbytes")
    assert not isinstance(settings, str)
    assert (settings.retention_bytes, settings.retention_ms, settings.compact) == (150_000, -1, False)
    assert "no such topic" in str(topics.of("other"))


def test_what_the_broker_would_delete_is_planned_with_its_rule(node: Path) -> None:
    root = node / "server.properties"
    decisions = plan_of(root, "retms-0").decisions
    assert [one.reason for one in decisions] == [Reason.EXPIRED, Reason.ACTIVE]
    assert decisions[0].detail.startswith("retention.ms: ")
    assert "it has expired" in decisions[1].detail
    (early, _) = plan_of(root, "retms-0", WRITTEN_MS).decisions
    assert early.reason is Reason.FUTURE_TIMESTAMP
    assert "in the future, and keeps this and all newer segments" in early.detail
    kept = plan_of(root, "retbytes-0").decisions
    assert [one.reason for one in kept][:2] == [Reason.SIZE_NOT_REACHED, Reason.BEHIND_KEPT]
    assert "retention.bytes 146.5 KiB: the log has" in kept[0].detail
    compacted = plan_of(root, "compacted-0").decisions
    assert {(one.reason, one.detail) for one in compacted[:-1]} == {
        (
            Reason.COMPACTED,
            "cleanup.policy contains compact: only the broker's cleaner removes records; it has cleaned "
            "the log up to offset 1380",
        )
    }


def test_the_plan_is_what_the_rules_say_of_every_log(node: Path) -> None:
    found = read_node(node / "server.properties")
    topics = read_topic_settings(found)
    for directory, log in found.logs:
        settings = topics.of(log.name.topic)
        if log.name.is_internal or isinstance(settings, str):
            continue
        settings = replace(settings, retention_ms=0, delete=True, compact=False)
        end = end_offset(log)
        facts = tuple(segment_facts(one, active=one is log.segments[-1]) for one in log.segments)
        name = log.name.log
        start = directory.log_starts.get(name, facts[0].base_offset)
        result = retention_pass(
            LogFacts(facts, start, directory.high_watermarks[name], end), settings, 2 * NOW_MS
        )
        # The cleaner leaves empty segments, which go; an empty last one stays.
        going = facts if facts[-1].size_bytes else facts[:-1]
        assert [one.base_offset for one in result.deletions] == [one.base_offset for one in going]
        assert {one.rule for one in result.deletions} <= set(Rule)


def test_a_log_without_a_checkpointed_high_watermark_keeps_all(copy: Path) -> None:
    (copy / "logs" / "replication-offset-checkpoint").write_text("0\n0\n")
    first, *_ = plan_of(copy / "server.properties", "retms-0").decisions
    assert first.reason is Reason.UNKNOWN
    assert first.detail.startswith("its high watermark isn't known: no checkpoint contains it")


def test_a_log_directory_alone_is_read_and_nothing_is_planned(node: Path) -> None:
    store = opened(node / "logs")
    plan = propose(store, take_snapshot(store, NOW_MS, "kafka"), NOW_MS, PlanRequest())
    assert plan.to_delete == ()
    assert any("name the node's server.properties" in notice for notice in plan.notices)


def test_a_node_with_zookeeper_is_read_and_nothing_is_planned(copy: Path) -> None:
    for path in (copy / "logs", copy / "meta"):
        (path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    assert "ZooKeeper" in findings(copy / "server.properties")["settings-unknown"].what
    assert plan_of(copy / "server.properties", "retms-0").to_delete == ()


@pytest.fixture
def tree(copy: Path) -> Iterator[Path]:
    """A node that is the same afterwards."""
    before = files_of(copy)
    yield copy
    assert files_of(copy) == before


def test_nothing_is_changed_of_what_is_not_locked_or_can_not_be(tree: Path, tmp_path: Path) -> None:
    live = LiveBroker(address="127.0.0.1:1")
    beside = ManagedStore.local(
        "k", str(tree / "server.properties"), tmp_path / "managed", broker="kafka", live=live
    )
    with pytest.raises(BadInputError, match="found one of Apache Kafka that is left to its running broker"):
        make_plan(beside, "run")
    expected = "one of its log directories, which can only be read"
    with pytest.raises(BadInputError, match=expected), opened(tree / "logs").lock():
        pass
    store = opened(tree / "server.properties")
    segments = [segment for log in store.snapshot(NOW_MS).logs for segment in log.segments][:1]
    with pytest.raises(StoreBusyError, match="expected the node's directories to be locked"):
        store.delete_segments(segments, lambda: None)
    assert not (tmp_path / "managed").exists()


def test_a_log_directory_alone_is_only_looked_at(tree: Path, tmp_path: Path) -> None:
    store = ManagedStore.local("k", str(tree / "logs"), tmp_path / "managed", broker="kafka")
    for changing in (open_context, check_store):
        with pytest.raises(BadInputError, match="found one of its log directories"):
            changing(store)
    assert not (tmp_path / "managed").exists()


@pytest.mark.parametrize("messages", [False, True])
def test_it_is_described(tree: Path, messages: bool) -> None:
    settings = StoreSettings(str(tree / "server.properties"))
    found = BROKER.inspection.inspect(settings, NOW_MS, messages=messages, queues=False)
    rows = {row["log"]: row for row in found.data["logs"]}
    assert rows["delrec-0"]["start_offset"] == 2000
    assert rows["plain-0"]["topic_id"] == "SpW3_o3XTRKH1zPnJ4tcEQ"
    assert rows["__consumer_offsets-0"]["internal"]
    assert json.loads(json.dumps(found.data)) == found.data
    if messages:
        name = "logs/plain-0/"
        expected = [batch for batch in truth()["batch"] if batch["file"].startswith(name)]
        in_use = {str(path.relative_to(tree)) for path in (tree / name).glob("*.log")}
        expected = [batch for batch in expected if batch["file"] in in_use]
        assert rows["plain-0"]["batches"] == len(expected)
        assert rows["plain-0"]["records"] == sum(batch["count"] for batch in expected) == 3000
        assert rows["plain-0"]["damaged_bytes"] == 0


def test_a_sound_node_has_notes_alone(node: Path) -> None:
    found = findings(node / "server.properties")
    # The fixture was packed without four of its logs.
    assert {name for name, one in found.items() if one.severity is not Severity.NOTE} == {"logs-missing"}
    assert {"no-stamp", "files-deleted", "directories-delete"} <= set(found)


def test_what_is_wrong_is_found(copy: Path) -> None:
    logs = copy / "logs"
    (logs / ".kafka_cleanshutdown").write_text('{"version":0}')
    assert read_node(copy / "server.properties").left_uncleanly
    (logs / ".kafka_cleanshutdown").unlink()
    (logs / "log-start-offset-checkpoint").write_text("0\n1\ntxn 0 9999\n")
    (logs / "replication-offset-checkpoint").write_text("0\n1\nplain 0 5\n")
    metadata = logs / "ctime-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: " + "B" * 21 + "A")
    shutil.copytree(logs / "hdrs-0", logs / ("hdrs-0." + "a" * 32 + "-stray"))
    (logs / "hdrs-0" / "00000000000000000000.log.cleaned").write_bytes(b"x")
    last = sorted((logs / "retms-0").glob("*.timeindex"))[0]
    last.write_bytes(struct.pack(">qi", NOW_MS + 10**9, 3))
    found = findings(copy / "server.properties")
    for kind in ("start-above-end", "topic-id"):
        assert found[kind].severity is Severity.URGENT
    for kind in ("stopped-uncleanly", "directories-stray", "future-timestamp"):
        assert found[kind].severity is Severity.WARNING
    # No other node has a replica: the crash alone left the watermark behind.
    assert "high-watermark-behind" not in found
    assert found["files-cleaned"].advice.startswith("leave them")
    assert opened(copy / "server.properties").snapshot(NOW_MS).crashed


def test_who_has_the_lock_is_seen_without_taking_it(copy: Path) -> None:
    lock = copy / "logs" / ".lock"
    assert lock_holder(copy / "logs") is None
    lock.touch()
    assert lock_holder(copy / "logs") is None
    take = "f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    code = f"import fcntl, sys; {take}; print(1, flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert lock_holder(copy / "logs") == holder.pid
        said = BROKER.inspection.diagnose(StoreSettings(str(copy / "server.properties")), None, NOW_MS)
        assert (said.running, said.running_text) == (True, f"process {holder.pid}")
        (note,) = (one for one in said.findings if one.kind == "running")
        assert note.advice == "ask its cluster as well: --broker 127.0.0.1:19092"
        store = KafkaStore(OpenNode(copy / "server.properties"))
        managed = ManagedStore.local("k", str(store.node.root), copy.parent / "managed", broker="kafka")
        said_of_disk = shared_disk_notice(managed, store, store.data_paths)
        assert said_of_disk.startswith("on a disk that the running broker writes to: lake ")
    finally:
        holder.kill()
        holder.communicate()
    assert shared_disk_notice(managed, store, store.data_paths) == ""
    with lock.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.path.lexists(lock)


def test_a_store_is_known_by_its_file_or_its_directory(node: Path, tmp_path: Path) -> None:
    file, logs = node / "server.properties", node / "logs"
    assert store_around(file) == file.resolve()
    assert store_around(logs) == logs.resolve()
    assert store_around(logs / "plain-0" / "lake") == logs.resolve()
    assert store_around(tmp_path) is None
    (tmp_path / "client.properties").write_text("bootstrap.servers=a:1\n")
    assert store_around(tmp_path / "client.properties") is None


def test_bad_nodes_are_one_error_that_names_the_file(copy: Path) -> None:
    root = copy / "server.properties"
    shutil.copytree(copy / "logs" / "hdrs-0", copy / "meta" / "hdrs-0")
    with pytest.raises(
        StoreLayoutError, match=r"log hdrs-0: expected one directory, found .*logs.* and .*meta"
    ):
        read_node(root)
    shutil.rmtree(copy / "meta" / "hdrs-0")
    meta = copy / "meta" / "meta.properties"
    meta.write_text(meta.read_text().replace("r8MM", "r9MM"))
    with pytest.raises(StoreLayoutError, match="log directories of one cluster"):
        read_node(root)
    shutil.rmtree(copy / "meta")
    with pytest.raises(StoreNotFoundError, match="meta: expected a log directory, found none"):
        read_node(root)
    root.write_text("log.dirs=relative\nnode.id=1\n")
    with pytest.raises(BadInputError, match="expected absolute directories, found relative"):
        opened(root)


def test_nothing_is_configured_beside_the_nodes_own_file(node: Path) -> None:
    settings = StoreSettings(str(node / "server.properties"), overrides={"log.retention.ms": "1"})
    with pytest.raises(BadInputError, match=r"only a node's server\.properties, found settings"):
        BROKER.open_store(settings, None)


def test_a_segment_that_goes_away_meanwhile_keeps_its_log_and_no_other(copy: Path) -> None:
    """As beside a broker that deletes by its own rules."""
    store = opened(copy / "server.properties")
    snapshot = store.snapshot(NOW_MS)
    lost = next(one for one in snapshot.logs if one.name == "retms-0")
    for path in Path(lost.segments[0].facts.path).parent.glob("*[xg]"):
        path.unlink()
    plan = store.plan(snapshot, NOW_MS, PlanRequest())
    (of_log,) = (one for one in plan.logs if one.log == "retms-0")
    assert {one.detail for one in of_log.decisions if one.segment in lost.sealed} == {
        "a segment vanished while it was read: plan again"
    }
    assert len(plan.logs) == len(snapshot.logs)


def test_a_node_is_named_by_its_number_and_cluster(copy: Path, tmp_path: Path) -> None:
    (meta, *_) = sorted(copy.rglob("meta.properties"))
    known = read_meta_properties(meta)
    name = f"node-{known.node_id}-of-{known.cluster_id}"
    properties = copy / "server.properties"
    assert managed_store(properties).name == name
    assert managed_store(properties, name="mine").name == "mine"
    assert managed_store(copy / "logs").name == "logs"
    for path in copy.rglob("meta.properties"):
        path.unlink()
    assert managed_store(properties, broker_type="kafka").name == f"{copy.name}-server.properties"
