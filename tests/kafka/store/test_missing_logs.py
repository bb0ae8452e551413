"""Logs that a node should have and that no directory of log.dirs has are named wherever it is looked at."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.kafka import BROKER
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.store.absent_logs import missing_logs
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.facts import FactsScope
from tests.kafka.made_node import MadeNode
from tests.kafka.stopped_nodes import make_node

SAID = (
    "no directory of log.dirs has 1 log that this node should have by the cluster's metadata, b-0: "
    "a directory was taken"
)


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    return make_node(tmp_path / "node")


def take_out(made: MadeNode) -> None:
    """Take the second directory out of the node's file, as nothing else."""
    text = made.properties.read_text()
    made.properties.write_text(text.replace(f",{made.directories[1]}", ""))


def missing(made: MadeNode) -> tuple[str, ...]:
    node = read_node(made.properties)
    return missing_logs(node, read_topic_settings(node))


def test_a_directory_that_was_taken_out_is_told_by_its_logs(made: MadeNode) -> None:
    assert missing(made) == ()
    take_out(made)
    assert missing(made) == ("b-0",)
    store = KafkaStore(OpenNode(made.properties))
    plan = store.plan(store.snapshot(clock_ms()), clock_ms(), PlanRequest())
    assert [one for one in plan.notices if one.startswith(SAID)]
    settings = StoreSettings(str(made.properties))
    (finding,) = (
        one
        for one in BROKER.inspection.diagnose(settings, None, clock_ms()).findings
        if one.kind == "logs-missing"
    )
    assert finding.what.startswith(SAID)
    assert "before a broker starts" in finding.advice
    scope = FactsScope(full=False, queues=None, files=(), accepted_damage={})
    assert [one for one in BROKER.collect_facts(settings, scope).notes if one.startswith(SAID)]


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.replicas.update({"b-0": (2, 3)}),
        lambda made: (made.topic_ids.pop("b"), made.settings.pop("b"), made.replicas.pop("b-0")),
        lambda made: made.more_records.append(b"\x00"),
    ],
    ids=["elsewhere", "deleted", "unknown"],
)
def test_what_need_not_be_here_is_not_missing(made: MadeNode, change: Any) -> None:
    change(made)
    made.watermarks.pop("b-0")
    made.write()
    take_out(made)
    assert missing(made) == ()


def test_a_log_that_its_broker_has_set_aside_is_not_missing(made: MadeNode) -> None:
    path = made.directories[1] / "b-0"
    aside = path.rename(path.with_name(f"b-0.{'0' * 32}-stray"))
    assert missing(made) == ()
    (aside / "partition.metadata").write_text(f"version: 0\ntopic_id: {text_of(uuid.uuid4())}")
    assert missing(made) == ("b-0",)


def test_a_directory_that_appears_meanwhile_is_not_missing(made: MadeNode) -> None:
    take_out(made)
    node = read_node(made.properties)
    (made.directories[0] / "b-0").mkdir()
    assert missing_logs(node, read_topic_settings(node)) == ()
