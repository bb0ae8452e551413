"""What validation finds in a node: nothing wrong in what a broker wrote, and each thing that was broken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.kafka.facts import collect
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.facts import FactsScope
from storage_engine.model.report.validation import Status
from storage_engine.quality.validate import validate_store
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka_fixture import truth

SCOPE = FactsScope(full=True, queues=None, files=(), accepted_damage={})
LACKING = {"ExpectNoLostRanges"}
"""The fixture was packed without four of its logs."""


def failures(root: Path, tmp_path: Path) -> set[str]:
    """Return the rules that a node breaks."""
    store = ManagedStore.local("k", str(root / "server.properties"), tmp_path / "managed", broker="kafka")
    result = validate_store(store, None, full=True, with_lake=False)
    return {check.expectation for check in result.checks if check.status is Status.FAILURE}


def test_every_batch_and_index_entry_of_a_broker_is_found(node: Path) -> None:
    facts = collect(StoreSettings(str(node / "server.properties")), SCOPE)
    names = {fact.subject for fact in facts.frames}
    known = [
        batch
        for batch in truth()["batch"]
        if batch["file"].startswith("logs/") and batch["file"].removeprefix("logs/") in names
    ]
    assert sum(fact.frames for fact in facts.frames) == len(known) > 1000
    assert {fact.damaged_bytes for fact in facts.frames} == {0}
    # The fixture was packed without them.
    (missing,) = facts.notes
    assert missing.startswith(
        "no directory of log.dirs has 4 logs that this node should have by the cluster's metadata"
    )
    assert not any(fact.log.startswith("__") for fact in facts.segments)


def test_nothing_is_wrong_with_what_a_broker_wrote(node: Path, tmp_path: Path) -> None:
    assert failures(node, tmp_path) == LACKING


def gone(path: Path) -> None:
    path.unlink()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[130] ^= 1
    path.write_bytes(data)


def without_second_batch(path: Path) -> None:
    data = path.read_bytes()
    second = int.from_bytes(data[8:12], "big") + 12
    third = second + int.from_bytes(data[second + 8 : second + 12], "big") + 12
    path.write_bytes(data[:second] + data[third:])


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        (without_second_batch, "plain-0/00000000000000000000.log", "ExpectNoLostRanges"),
        (gone, "plain-0/00000000000000000623.log", "ExpectStoreAndLakeToFormOneInterval"),
        (damaged, "plain-0/00000000000000000000.log", "ExpectFramesToBeWhole"),
    ],
)
def test_what_is_broken_fails(
    copy: Path, tmp_path: Path, change: Callable[[Path], None], name: str, expected: str
) -> None:
    change(copy / "logs" / name)
    assert expected in failures(copy, tmp_path)


@pytest.mark.parametrize(
    ("name", "end"),
    [("recovery-point-offset-checkpoint", 2), ("meta.properties", 2), ("cleaner-offset-checkpoint", 4)],
)
def test_only_what_the_cleaner_may_have_taken_is_no_hole(tmp_path: Path, name: str, end: int) -> None:
    made = MadeNode(tmp_path / "node")
    log = made.add("a-0", {0: [batch_of(0), batch_of(2)], 4: [batch_of(4)]})
    made.write()
    os.truncate(log / f"{0:020d}.log", len(batch_of(0)))
    (made.directories[0] / name).write_bytes(bytes(9))
    first, _ = collect(StoreSettings(str(made.properties)), SCOPE).local
    assert (first.start_offset, first.end_offset) == (0, end)


def test_a_log_start_above_the_end_fails(copy: Path, tmp_path: Path) -> None:
    checkpoint = copy / "logs" / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\nplain 0 999999\n")
    assert failures(copy, tmp_path) == {"ExpectCheckpointInRange", *LACKING}
