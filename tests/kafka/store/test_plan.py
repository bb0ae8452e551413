"""Why a segment isn't deleted, by nodes made by hand, and what a running cluster changes in it."""

from __future__ import annotations

import os
import struct
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from storage_engine.crc import crc32c_of
from storage_engine.exceptions import StorageEngineError, StoreLayoutError
from storage_engine.kafka import BROKER
from storage_engine.kafka.format.layout import LiveFacts, read_node
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.store.plan import plan_notices
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import PlanRequest, Reason
from tests.kafka.batches import marker
from tests.kafka.made_node import CLUSTER, WRITTEN_MS, MadeNode, batch_of, feature_level, metadata_record
from tests.kafka.plans import DAY_MS, NOW_MS, THREE, asked, decisions, files_of, first, planned


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    return MadeNode(tmp_path / "node")


@pytest.mark.parametrize(
    ("settings", "now_ms", "reason", "said"),
    [
        ({}, NOW_MS, Reason.EXPIRED, "retention.ms: its newest record is older"),
        ({}, WRITTEN_MS, Reason.NOT_EXPIRED, "so it stays until 2027-01-22 08:00:00Z"),
        ({"retention.ms": "-1"}, NOW_MS, Reason.UNLIMITED, "retention.ms is off; retention.bytes is off"),
        (
            {"retention.ms": "-1", "retention.bytes": "1000"},
            NOW_MS,
            Reason.SIZE_NOT_REACHED,
            "retention.bytes 1000 bytes isn't reached: the log has",
        ),
        ({"cleanup.policy": ""}, NOW_MS, Reason.UNLIMITED, "cleanup.policy has no delete"),
        (
            {},
            WRITTEN_MS - 1,
            Reason.FUTURE_TIMESTAMP,
            "in the future, and keeps this and all newer segments until 2027",
        ),
        ({"cleanup.policy": "compact"}, NOW_MS, Reason.COMPACTED, "it never has, by its checkpoint"),
        ({"cleanup.policy": "compact,delete"}, NOW_MS, Reason.COMPACTED, "and deletes expired segments"),
        ({"retention.ms": "soon"}, NOW_MS, Reason.UNKNOWN, "retention.ms: expected a whole number, found"),
    ],
)
def test_each_reason_has_its_word_and_its_sentence(
    made: MadeNode, settings: Mapping[str, str], now_ms: int, reason: Reason, said: str
) -> None:
    made.add("t-0", THREE, settings=settings)
    found, detail = first(made.write(), now_ms=now_ms)
    assert (found, said in detail) == (reason, True), detail


def test_the_active_segment_says_when_it_closes(made: MadeNode) -> None:
    made.add("t-0", {0: [batch_of(0)]}, settings={"segment.ms": "3600000", "segment.bytes": "1048576"})
    made.add("empty-0", {0: []})
    made.node_settings = {"log.retention.hours": "1000"}
    root = made.write()
    (active,) = decisions(root, now_ms=WRITTEN_MS + 60_000)
    assert "it closes with a record of 2027-01-15 09:00:00Z or later, by segment.ms" in active.detail
    assert "or at segment.bytes 1.0 MiB (it has" in active.detail
    (active,) = decisions(root)
    assert "it closes with the next record: segment.ms was over at 2027-01-15 09:00:00Z" in active.detail
    (active,) = decisions(root, "empty-0")
    assert "it is empty" in active.detail


def test_what_has_a_remote_copy_is_never_planned(made: MadeNode) -> None:
    remote = {"remote.storage.enable": "true", "retention.ms": "-1"}
    made.add("t-0", THREE, settings={**remote, "local.retention.ms": "1000"})
    made.add("kept-0", THREE, settings={**remote, "local.retention.ms": "-1"})
    made.add("empty-0", THREE, settings={**remote, "local.retention.ms": "1000", "cleanup.policy": ""})
    root = made.write()
    assert planned(root).to_delete == ()
    found = decisions(root)
    assert [one.reason for one in found] == [Reason.REMOTE_STORAGE, Reason.REMOTE_STORAGE, Reason.ACTIVE]
    assert found[0].detail.startswith("retention.ms: the broker deletes it once remote storage has it")
    assert decisions(root, "kept-0")[0].reason is Reason.UNLIMITED
    assert decisions(root, "empty-0")[0].reason is Reason.REMOTE_STORAGE
    assert "only Kafka 4.3 and newer do so" in decisions(root, "empty-0")[0].detail


@pytest.mark.parametrize("settings", [{"cleanup.policy": "compact"}, {"remote.storage.enable": "true"}])
def test_an_open_transaction_that_stops_the_broker_is_named_with_its_producer(
    made: MadeNode, settings: Mapping[str, str]
) -> None:
    path = made.add("t-0", THREE, settings=settings)
    left_open = struct.pack(">qhiqiqiq", 4711, 0, 1, 3, 1, WRITTEN_MS, 0, 2)
    body = struct.pack(">i", 1) + left_open
    (path / f"{4:020d}.snapshot").write_bytes(struct.pack(">hI", 1, crc32c_of(body)) + body)
    root = made.write()
    said = "only up to offset 2, where the transaction of producer 4711 is open, last written at 2027-01-15"
    assert said in first(root)[1]
    (path / f"{4:020d}.log").write_bytes(marker(1, 4711, 4))
    assert "producer" not in first(root)[1]
    (path / f"{4:020d}.snapshot").write_bytes(b"x")
    assert "its open transactions aren't known" in first(root)[1]


def test_a_compacted_log_says_since_when_it_is_due(made: MadeNode) -> None:
    path = made.add("t-0", THREE, settings={"cleanup.policy": "compact"})
    for one in path.glob("*.log"):
        os.utime(one, ns=(WRITTEN_MS * 1_000_000, WRITTEN_MS * 1_000_000))
    size = len(batch_of(0))
    detail = first(made.write())[1]
    assert detail.endswith(
        f"; it never has, by its checkpoint; {2 * size} bytes are due since 2027-01-15 08:00:00Z"
    )
    made.checkpoint("cleaner-offset-checkpoint", {"t-0": 4})
    assert first(made.properties)[1].endswith("; it has cleaned the log up to offset 4")


def test_a_forced_run_names_what_ignores_age(made: MadeNode) -> None:
    node = read_node(made.write())
    said, *_ = plan_notices(node, read_topic_settings(node), forced=True)
    assert "Kafka never ignores age" in said
    assert "storage-engine kafka make-room --force REASON" in said


def test_internal_topics_are_named_and_not_planned(made: MadeNode) -> None:
    for name in ("__consumer_offsets-0", "__transaction_state-3", "__remote_log_metadata-1", "t-0"):
        made.add(name, THREE)
    found = planned(made.write())
    assert [log.log for log in found.logs] == ["t-0"]
    assert any("not planned: __cluster_metadata-0, __consumer_offsets-0" in one for one in found.notices)


def test_an_unknown_high_watermark_is_said_and_frees_nothing(made: MadeNode) -> None:
    made.add("t-0", THREE)
    made.watermarks.clear()
    reason, detail = first(made.write())
    assert reason is Reason.UNKNOWN
    assert "its high watermark isn't known" in detail
    assert first(made.properties, asked(high_watermark=6))[0] is Reason.EXPIRED
    assert first(made.properties, asked(high_watermark=3))[0] is Reason.EXPIRED
    assert decisions(made.properties, live=asked(high_watermark=3))[1].reason is Reason.NOT_REPLICATED


def test_a_replica_that_does_not_follow_keeps_what_it_lacks(made: MadeNode) -> None:
    made.replicas["t-0"] = (1, 2)
    made.add("t-0", THREE)
    made.watermarks["t-0"] = 1
    reason, detail = first(made.write())
    assert (reason, "above the high watermark 1" in detail) == (Reason.NOT_REPLICATED, True)


@pytest.mark.parametrize("live", [None, asked(high_watermark=1, replicas=(1,))])
def test_a_log_without_another_replica_waits_for_none(made: MadeNode, live: LiveFacts | None) -> None:
    made.add("t-0", THREE)
    made.watermarks["t-0"] = 1
    reason, detail = first(made.write(), live)
    assert reason is Reason.UNKNOWN
    assert "The broker has the only replica, and sets it when it starts" in detail


@pytest.mark.parametrize("live", [asked(), LiveFacts(NOW_MS, CLUSTER, {})])
def test_what_a_cluster_does_not_say_frees_nothing(made: MadeNode, live: LiveFacts) -> None:
    made.add("t-0", THREE)
    made.watermarks.clear()
    assert planned(made.write(), live).to_delete == ()


def test_a_running_cluster_says_settings_and_start(made: MadeNode) -> None:
    made.add("t-0", THREE, settings={"retention.ms": "-1"})
    root = made.write()
    assert first(root)[0] is Reason.UNLIMITED
    assert first(root, asked(topic_settings={"retention.ms": "1000"}))[0] is Reason.EXPIRED
    assert first(root, asked(topic_settings={"cleanup.policy": "compact"}))[0] is Reason.COMPACTED
    assert first(root, asked(log_start=2)) == (
        Reason.EXPIRED,
        "log-start: lies below the log's start: its records count as deleted",
    )


def test_another_topic_of_the_same_name_frees_nothing(made: MadeNode) -> None:
    path = made.add("t-0", THREE)
    root = made.write()
    other = asked(topic_id=uuid.uuid4(), topic_settings={"retention.ms": "1"})
    assert planned(root, other, WRITTEN_MS + DAY_MS).to_delete == ()
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {'B' * 21}A")
    reason, detail = first(root)
    assert reason is Reason.REFUSED
    assert detail.startswith(
        f"{path}/partition.metadata has topic id {'B' * 21}A, and the cluster's metadata"
    )
    (path / "partition.metadata").write_text("version: 0\n")
    assert "partition.metadata: at byte 11 expected one line with the topic_id" in first(root)[1]
    (path / "partition.metadata").unlink()
    reason, detail = first(root)
    assert (reason, "partition.metadata: expected the topic's id, found no file" in detail) == (
        Reason.REFUSED,
        True,
    )


def test_a_file_that_cannot_be_read_keeps_its_log_and_no_other(made: MadeNode) -> None:
    path = made.add("t-0", THREE)
    made.add("other-0", THREE)
    id_path = made.add("id-0", THREE) / "partition.metadata"
    store = KafkaStore(OpenNode(made.write()))
    snapshot = store.snapshot(NOW_MS)
    for one in (path / f"{0:020d}.log", id_path):
        one.rename(one.with_name("elsewhere"))
        one.symlink_to("elsewhere")
    found = {log.log: log.decisions[0] for log in store.plan(snapshot, NOW_MS, PlanRequest()).logs}
    assert found["t-0"].reason is Reason.UNKNOWN
    assert "a file can't be read: " in found["t-0"].detail
    assert found["id-0"].reason is Reason.REFUSED
    assert "partition.metadata: expected the topic's id, found " in found["id-0"].detail
    assert found["other-0"].reason is Reason.EXPIRED


def test_a_start_above_the_end_is_refused(made: MadeNode) -> None:
    path = made.add("t-0", THREE)
    root = made.write()
    made.checkpoint("log-start-offset-checkpoint", {"t-0": 7})
    assert first(root) == (
        Reason.REFUSED,
        f"{path}: its start 7 in the checkpoint lies above its end 6; a broker would delete all of its "
        "segments",
    )


def test_a_hole_between_segments_is_refused(made: MadeNode) -> None:
    path = made.add("t-0", THREE)
    root = made.write()
    (path / f"{2:020d}.log").unlink()
    reason, detail = first(root)
    assert reason is Reason.REFUSED
    assert detail == (
        f"{path}/{0:020d}.log ends at offset 2, and the next segment begins at 4: [2, 4) is missing"
    )
    made.checkpoint("cleaner-offset-checkpoint", {"t-0": 4})
    assert first(root)[0] is Reason.EXPIRED, "the cleaner leaves gaps"
    assert [one.reason for one in decisions(root, now_ms=WRITTEN_MS)] == [Reason.NOT_EXPIRED, Reason.ACTIVE]


@pytest.mark.parametrize(
    "record",
    [
        metadata_record(4, b"", version=1),
        metadata_record(2, b"", version=9),
        feature_level("metadata.version", 99),
    ],
)
def test_newer_metadata_make_settings_unknown(made: MadeNode, record: bytes) -> None:
    made.add("t-0", THREE)
    made.more_records = [feature_level("metadata.version", 27)]
    assert first(made.write())[0] is Reason.EXPIRED
    made.more_records = [record]
    reason, detail = first(made.write())
    assert reason is Reason.UNKNOWN
    assert "__cluster_metadata-0/00000000000000000000.log: expected" in detail


BAD_CHECKPOINTS = ("0\n2\nt 0 5\n", "1\n1\nt 0 5\n", "0\n1\nt 0 five\n", "0\n1\nt 0 -5\n", "x")


def _twice(made: MadeNode) -> None:
    made.add("t-0", THREE, directory=1)
    made.write()


def _of_two_clusters(made: MadeNode) -> None:
    (made.directories[1] / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=other\n")


BAD_NODES: tuple[tuple[Callable[[MadeNode], None], type[StorageEngineError], str], ...] = (
    (_twice, StoreLayoutError, "log t-0: expected one directory, found .*/a/t-0 and .*/b/t-0"),
    (_of_two_clusters, StoreLayoutError, "expected log directories of one cluster, found those of other and"),
)


@pytest.mark.parametrize(("spoil", "error", "said"), BAD_NODES)
def test_a_bad_node_is_one_error_and_stays_as_it_is(
    tmp_path: Path, spoil: Callable[[MadeNode], None], error: type[StorageEngineError], said: str
) -> None:
    made = MadeNode(tmp_path / "node", ("a", "b"))
    made.add("t-0", THREE)
    made.write()
    spoil(made)
    before = files_of(tmp_path)
    with pytest.raises(error, match=f"{said}.*Nothing was changed"):
        planned(made.properties)
    assert BROKER.inspection.diagnose(StoreSettings(str(made.properties)), None, NOW_MS).refused
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    ["replication-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"],
)
@pytest.mark.parametrize("content", BAD_CHECKPOINTS)
def test_a_bad_checkpoint_keeps_its_directory_alone(tmp_path: Path, name: str, content: str) -> None:
    made = MadeNode(tmp_path / "node", ("a", "b"))
    made.add("t-0", THREE)
    made.add("other-0", THREE, directory=1)
    root = made.write()
    before = {log.log: log.to_delete for log in planned(root).logs}
    (made.directories[0] / name).write_text(content)
    plan = planned(root)
    assert before["t-0"]
    assert {log.log: log.to_delete for log in plan.logs} == {**before, "t-0": ()}
    sealed = [one for log in plan.logs if log.log == "t-0" for one in log.decisions][:-1]
    assert {one.reason for one in sealed} == {Reason.REFUSED}
    assert all(f"{made.directories[0] / name}: at byte" in one.detail for one in sealed)
    (finding,) = (
        one
        for one in BROKER.inspection.diagnose(StoreSettings(str(root)), None, NOW_MS).findings
        if one.kind == "directory-offline"
    )
    assert f"{made.directories[0] / name}: at byte" in finding.what


def test_markers_of_two_stops_are_no_clean_stop(tmp_path: Path) -> None:
    made = MadeNode(tmp_path / "node", ("a", "b"))
    made.add("t-0", THREE)
    root = made.write()
    assert not KafkaStore(OpenNode(root)).snapshot(NOW_MS).crashed
    (made.directories[1] / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":8}')
    assert KafkaStore(OpenNode(root)).snapshot(NOW_MS).crashed
    assert any("no clean stop is marked" in one for one in planned(root).notices)
