"""A log whose active segment can't be read is unknown; all other logs of its node go on."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from storage_engine.arrow.name_columns import POSITIONS_SCHEMA
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.stopped.observed_tasks import stopped_tasks
from storage_engine.kafka.stopped.stopped_release import stopped_node
from storage_engine.kafka.store.lag_context import lag_context
from storage_engine.kafka.store.store import open_store
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.report.validation import Status, VerifyLevel, Where, worst
from storage_engine.quality.expectation_rules import run_suites
from storage_engine.quality.facts import Facts, collect_facts
from storage_engine.resources import project_path
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import measure_lag
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import MadeNode, batch_of
from tests.kafka.stopped_nodes import GOING, LOGS, OLD_MS, archived, clean, empty_snapshot, make_node
from tests.kafka.unreadable_files import unreadable
from tests.rounds import later, rounds
from tests.services.lag import partition_lags

ACTIVE = 2 * GOING


def segment(node: MadeNode, log: str, base: int) -> Path:
    (directory,) = (one for one in node.directories if (one / log).is_dir())
    return directory / log / f"{base:020d}.log"


def offsets(node: MadeNode, log: str) -> list[int]:
    directory = segment(node, log, ACTIVE).parent
    return sorted(int(one.stem) for one in directory.glob("*.log"))


@pytest.mark.parametrize("number", [errno.EIO, *later(errno.EACCES)])
def test_a_log_whose_active_segment_can_not_be_read_keeps_no_other(tmp_path: Path, number: int) -> None:
    node = make_node(tmp_path / "node")
    store = archived(tmp_path / "managed", node.root)
    with unreadable(segment(node, "a-0", ACTIVE), number=number):
        clean(store, "cleaned")
        assert offsets(node, "b-0") == [ACTIVE]
        assert offsets(node, "a-0") == [0, 2, ACTIVE]
        steps.make_plan(store, "again", PlanRequest())
        with opened(store) as context:
            plan = context.run("again").plan
        assert plan is not None
        (of_log,) = (one for one in plan.logs if one.log == "a-0")
        assert {one.reason for one in of_log.decisions[:-1]} == {Reason.UNKNOWN}
        said = of_log.decisions[0].detail
        assert said.startswith("its active segment can't be read:")
        assert os.strerror(number) in said
    clean(store, "afterwards")
    assert offsets(node, "a-0") == [ACTIVE]


def test_nothing_is_lost_by_any_answer_where_an_active_segment_can_not_be_read(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    store = archived(tmp_path / "managed", node.root)
    # Its high watermark can't be told either, which was known when the log was looked at before.
    del node.watermarks["a-0"]
    node.write()
    with unreadable(segment(node, "a-0", ACTIVE)):
        steps.monitor(store, "look")
        assert not lost(store)
        facts = collect_facts(store, None, full=False, with_lake=True)
        told = {one.log: one for one in facts.ranges if one.where is Where.UNKNOWN}
        assert told.keys() == {"a-0"}
        assert told["a-0"].status is Status.FAILURE
        assert "is on disk and can't be read" in told["a-0"].detail
        found = read_node(node.properties)
        topics = read_topic_settings(found)
        tasks = stopped_tasks(found, topics, 0, stopped_node(found, topics))
        assert not any("a-0" in sentence for task in tasks for sentence in task.overdue)
    # What was seen of it is still known: that all of it is gone, is told.
    for path in segment(node, "a-0", ACTIVE).parent.glob("*"):
        path.unlink()
    segment(node, "a-0", ACTIVE).parent.rmdir()
    assert {(log, end) for log, _, end in lost(store)} == {("a-0", ACTIVE + 2)}


def lost(store: ManagedStore) -> set[tuple[str, int, int]]:
    """Return what verify, validation and the pages call lost."""
    with opened(store) as context:
        measured = measure_lag(context)
        shown = look_for_ranges(context, measured.snapshot, measured)[0]
    told = [*collect_facts(store, None, full=False, with_lake=True).ranges]
    for verified in verify_store(store, VerifyLevel.STORE):
        told += verified.ranges
    found = {(one.log, one.start_offset, one.end_offset) for one in told if one.where is Where.LOST}
    return found | {(one.log, one.start_offset, one.end_offset) for one in shown if one.where.value == "lost"}


def test_lag_behind_an_end_that_is_not_known_is_not_known(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    store = open_store(StoreSettings(str(node.properties)))
    rows = [{"topic": topic, "queue_id": 0, "group": "g", "committed_offset": 6} for topic in "ab"]
    with unreadable(segment(node, "a-0", ACTIVE)):
        snapshot = store.snapshot(OLD_MS)
        assert store.node.seen is not None
        context = lag_context(store.node.seen, snapshot, LOGS, frozenset(), OLD_MS)
        positions = pa.Table.from_pylist(rows, schema=POSITIONS_SCHEMA)
        of_a, of_b = partition_lags(context, positions).to_pylist()
    assert (of_a["lag_messages"], of_a["lag_ms"], of_a["lag_bytes"]) == (None, None, None)
    assert (of_b["lag_messages"], of_b["lag_ms"], of_b["lag_bytes"]) == (0, 0, 0)


def overwrite(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def touch(path: Path) -> None:
    os.utime(path)


CHANGES: Mapping[str, tuple[int, Callable[[Path], object]]] = {
    "nothing": (0, lambda path: None),
    "touched": (0, touch),
    "other bytes": (2, overwrite),
    "sealed cut": (2, cut),
    "sealed gone": (2, Path.unlink),
    "active cut": (ACTIVE, cut),
    "active emptied": (ACTIVE, empty),
    "active damaged": (ACTIVE, overwrite),
}
UNREADABLE = {"sealed unreadable": 2, "active unreadable": ACTIVE, "archived unreadable": 0}
ALL = (*CHANGES, *UNREADABLE)
STRONGEST = ("nothing", "other bytes", "active cut", *UNREADABLE)


def node_of(root: Path, faults: Mapping[str, str]) -> MadeNode:
    node = MadeNode(root)
    for log in faults:
        bases = [2 * place for place in range(GOING + 1)]
        path = node.add(log, {base: [batch_of(base, ms=OLD_MS)] for base in bases})
        for base in bases:
            for suffix in ("index", "timeindex", "txnindex"):
                (path / f"{base:020d}.{suffix}").write_bytes(b"")
        for base in (*bases[1:], bases[-1] + 2):
            (path / f"{base:020d}.snapshot").write_bytes(empty_snapshot())
    node.write()
    return node


@contextmanager
def with_faults(node: MadeNode, faults: Mapping[str, str]) -> Iterator[None]:
    """Have these things happen to the logs of a node that is archived."""
    broken = []
    for log, fault in faults.items():
        if fault in UNREADABLE:
            path = segment(node, log, UNREADABLE[fault])
            touch(path)
            broken.append(path)
        else:
            base, change = CHANGES[fault]
            change(segment(node, log, base))
    with unreadable(*broken):
        yield


def validated(root: Path, faults: Mapping[str, str], *, full: bool) -> dict[str, Any]:
    """Return what a validation finds of each log of a node, and of which suites' rules its rows break."""
    node = node_of(root / "node", faults)
    store: ManagedStore = archived(root / "managed", node.root)
    with with_faults(node, faults):
        facts = collect_facts(store, None, full=full, with_lake=True)
    return {log: found_of(log, facts, root) for log in faults}


def found_of(log: str, facts: Facts, root: Path) -> Any:
    tables = {
        name: replace(table, rows=tuple(row for row in table.rows if row.get("subject", log).startswith(log)))
        for name, table in facts.tables.items()
        if not name.startswith("lake_")
    }
    ranges = [one for one in facts.ranges if one.log == log]
    checks = run_suites({**facts.tables, **tables}, project_path("expectations"))
    broken = sorted((one.expectation, one.status, one.unexpected_count, one.examples) for one in checks)
    said = re.sub(r" on \d{4}-\S+ \S+Z", "", f"{sorted(map(repr, ranges))} {broken}")
    return said.replace(str(root), "ROOT").replace(log, "LOG"), worst(one.status for one in ranges)


@cache
def alone(fault: str, full: bool) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        return validated(Path(directory), {"a-0": fault}, full=full)["a-0"]


EXAMPLES = rounds("STORAGE_ENGINE_VALIDATED_LOGS", 0, 20)
TOPICS = "abcdefghijk"


@pytest.mark.again
@settings(
    max_examples=max(EXAMPLES, 1), deadline=None, phases=tuple(Phase) if EXAMPLES else (Phase.explicit,)
)
@example(dict(zip(TOPICS, ALL if EXAMPLES else STRONGEST, strict=False)), True)
@given(st.dictionaries(st.sampled_from(TOPICS), st.sampled_from(ALL), min_size=2), st.booleans())
def test_a_validation_of_several_logs_is_several_validations_of_one(
    conditions: dict[str, str], full: bool
) -> None:
    faults = {f"{topic}-0": fault for topic, fault in conditions.items()}
    with tempfile.TemporaryDirectory() as directory:
        together = validated(Path(directory), faults, full=full)
    assert together == {log: alone(fault, full) for log, fault in faults.items()}
