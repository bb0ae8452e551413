"""What a running cluster knows better than a node's files, and what is taken of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.kafka.format.layout import LiveFacts, LivePartition, Node, read_node
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id
from storage_engine.kafka.hold.hold_state import with_live
from storage_engine.kafka.live.observe import live_findings
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.retention_rules import RetentionSettings

LOG = "retslow-0"
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}


@pytest.fixture
def looked(node: Path) -> Node:
    return read_node(node / "server.properties")


def topic_id(looked: Node) -> uuid.UUID:
    (found,) = (log for _, log in looked.logs if log.name.log == LOG)
    return read_topic_id(found.path / PARTITION_METADATA)


def facts(looked: Node, **more: object) -> LiveFacts:
    (cluster_id,) = looked.cluster_ids
    known = LivePartition(topic_id(looked), 1, 3, 7, 5, SETTINGS, replicas=(1,), in_sync=(1,))
    return LiveFacts(1, cluster_id, {LOG: replace(known, **more)})  # type: ignore[arg-type]


def test_offsets_and_settings_of_the_cluster_win_over_those_on_disk(looked: Node) -> None:
    found = with_live(looked, facts(looked), "a:1")
    (directory,) = (one for one, log in found.logs if log.name.log == LOG)
    assert directory.high_watermarks[LOG] == 7
    assert directory.log_starts[LOG] == 3
    assert directory.stable_offsets == {LOG: 5}
    topics = read_topic_settings(found)
    assert topics.of("retslow") == RetentionSettings(retention_ms=5)
    # Of a topic that the cluster said nothing of the disk goes on counting.
    assert topics.of("txn") == read_topic_settings(looked).of("txn")


def test_what_the_cluster_does_not_tell_leaves_what_the_disk_says(looked: Node) -> None:
    nothing = facts(looked, log_start=None, high_watermark=None, last_stable_offset=None, topic_settings=None)
    found = with_live(looked, nothing, "a:1")
    assert [one.high_watermarks for one in found.directories] == [
        one.high_watermarks for one in looked.directories
    ]
    assert read_topic_settings(found).of("retslow") == read_topic_settings(looked).of("retslow")


def test_nothing_is_taken_of_a_topic_that_was_made_again(looked: Node) -> None:
    other = facts(looked, topic_id=uuid.uuid4())
    found = with_live(looked, other, "a:1")
    assert [one.high_watermarks for one in found.directories] == [
        one.high_watermarks for one in looked.directories
    ]
    assert read_topic_settings(found).of("retslow") == read_topic_settings(looked).of("retslow")
    (finding,) = live_findings(looked, other)
    assert finding.kind == "topic-id"


def test_the_directories_of_another_cluster_are_refused(looked: Node) -> None:
    other = replace(facts(looked), cluster_id="another")
    with pytest.raises(
        BadInputError, match=r"expected log directories of the cluster at a:1, another, found"
    ):
        with_live(looked, other, "a:1")


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        ({}, []),
        ({"leader": None, "in_sync": ()}, ["no-leader"]),
        ({"replicas": (1, 2, 3), "in_sync": (1,)}, ["not-in-sync"]),
        ({"leader": 2, "replicas": (2,), "in_sync": (2,)}, ["no-replica"]),
        ({"refused": ("settings: Topic authorization failed.",)}, ["live-unknown"]),
    ],
)
def test_what_somebody_should_look_at_is_found(
    looked: Node, more: dict[str, object], kinds: list[str]
) -> None:
    assert [one.kind for one in live_findings(looked, facts(looked, **more))] == kinds
