"""Logs that go without a copy, by an archive rule: through the gate, and only where the rule permits it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_engine.brokers import store_text
from storage_engine.core.clock import ClockReading, clock_ms, read_clock
from storage_engine.cycle import archive_here
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Journal, Step
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores
from storage_engine.model.keep.acts import decide_hold, decide_lift
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import NOT_ARCHIVED
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import archive_lag, measure_lag
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.proof.history import releases
from storage_engine.retention.proof.proofs import read_store_permits
from storage_engine.retention.ranges.offset_ranges import Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.release import releasing
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store import known_heads
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.archive_rules import HOUR_MS, record_rule
from tests.kafka.made_node import MadeNode, text_of
from tests.kafka.stopped_nodes import clean, cleanup_steps, files_of, make_node, managed

RULE = Scope(topic="a*")


@pytest.fixture
def node(tmp_path: Path) -> MadeNode:
    """Logs a-0 and b-0 in a directory each, with offsets [0, 6); the active segment begins at 4."""
    return make_node(tmp_path / "node")


@pytest.fixture
def store(node: MadeNode, tmp_path: Path) -> ManagedStore:
    """Its store, whose journal knows it, and of which no lake has anything."""
    (tmp_path / "managed").mkdir()
    found = managed(tmp_path / "managed", node.root)
    make_lake(found.lake, "kafka")
    with opened(found):
        return found


def places(store: ManagedStore) -> dict[tuple[str, int], tuple[Where, Status, str]]:
    """Return where the ranges of a store's logs are, by log and first offset."""
    (found,) = verify_store(store, VerifyLevel.BYTES)
    return {(row.log, row.start_offset): (row.where, row.status, row.detail) for row in found.ranges}


def test_a_log_under_a_rule_goes_without_a_copy_and_is_never_lost(
    store: ManagedStore, node: MadeNode
) -> None:
    rule = record_rule(store, RULE)
    clause = f"{NOT_ARCHIVED}{rule.rule_id[:12]} of topic a*"
    done = steps.archive_sealed(store, "ahead", archive_here)
    assert {row.log for row in done.receipts} == {"b-0"}
    notice = f"2 segments of a-0 may be deleted without a copy if no lake has them: {clause}"
    assert notice in done.notices
    assert archive_lag(store).segments == 0
    assert notice in preview(store, PlanRequest()).plan.notices
    clean(store, "run")
    kept = [
        files_of(directory / log) for directory, log in zip(node.directories, ("a-0", "b-0"), strict=True)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 6
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    released, _ = releases(journal.events(journal.run(record.store_id, "run"), Step.RELEASE))
    passages = {(it.log, it.passage, it.passage_detail) for it in released.values() if it.log == "a-0"}
    assert passages == {("a-0", Passage.NOT_ARCHIVED, clause)}
    assert {it.passage for it in released.values() if it.log == "b-0"} == {Passage.PROVEN}
    with opened(store) as context:
        report = build_report(context, "run")
    assert report.unproven == ()
    assert report.ok
    assert notice in report.notices
    rows = {row.log: row for row in read_deletions(open_lake(store.lake), record.store_id)}
    assert (rows["a-0"].cause, rows["a-0"].start_offset, rows["a-0"].end_offset) == ("not-archived", 0, 4)
    assert rows["a-0"].detail.startswith(clause)
    # Of topics of one name one knows which it was.
    assert {log: row.topic_id for log, row in rows.items()} == {
        f"{topic}-0": text_of(topic_id) for topic, topic_id in node.topic_ids.items()
    }
    found = places(store)
    assert found["a-0", 0] == (Where.NOT_ARCHIVED, Status.OK, clause)
    assert found["b-0", 0][0] is Where.ARCHIVED
    # Lifted, what went by it stays told as that; what comes is archived.
    record_rule(store, RULE, archives=True)
    assert places(store)["a-0", 0] == (Where.NOT_ARCHIVED, Status.OK, clause)


def set_clock_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    now = read_clock()
    assert now is not None
    later = ClockReading(now.boot_id, now.boottime_ms, now.started_at_ms + 30 * HOUR_MS)
    monkeypatch.setattr(known_heads, "read_clock", lambda: later)


def lose_an_act(store: ManagedStore) -> None:
    first, _ = sorted(Path(store.root).parent.parent.rglob("_storage-engine/acts/*.json"))
    first.unlink()


def hold(store: ManagedStore) -> str:
    """Hold what the rule is for, and return the hold's id."""
    return record_act(open_lake(store.lake), partial(decide_hold, scope=RULE, reason="a case"))[-1].sha256


DOUBTS: dict[str, Callable[[ManagedStore, pytest.MonkeyPatch], object]] = {
    "younger than a day": lambda store, _: record_rule(store, RULE, age_ms=23 * HOUR_MS),
    "in the lake alone": lambda store, _: record_rule(store, RULE, in_journal=False),
    "changed since": lambda store, _: (record_rule(store, RULE), record_rule(store, RULE, archives=True)),
    "recorded anew": lambda store, _: (
        record_rule(store, RULE),
        record_rule(store, RULE, archives=True),
        record_rule(store, RULE, in_journal=False),
    ),
    "with an exception": lambda store, _: (
        record_rule(store, RULE),
        record_rule(store, Scope(topic="a"), archives=True),
    ),
    "of another topic": lambda store, _: record_rule(store, Scope(topic="c*")),
    "of another store": lambda store, _: record_rule(store, Scope(topic="a", store="other*")),
    "with a broken chain": lambda store, _: (
        record_rule(store, RULE),
        record_rule(store, Scope(topic="c")),
        lose_an_act(store),
    ),
    "held": lambda store, _: (record_rule(store, RULE), hold(store)),
    "held until now": lambda store, _: (
        record_rule(store, RULE),
        hold(store),
        record_act(open_lake(store.lake), partial(decide_lift, hold_id=hold(store))),
    ),
    "with a clock set forward": lambda store, patch: (record_rule(store, RULE), set_clock_forward(patch)),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_no_rule_certainly_permits_is_archived_and_waits_for_it(
    store: ManagedStore, node: MadeNode, monkeypatch: pytest.MonkeyPatch, doubt: str
) -> None:
    DOUBTS[doubt](store, monkeypatch)
    before = files_of(node.directories[0] / "a-0")
    todo = cleanup_steps(store, "run")
    todo["make_plan"]()
    with pytest.raises(GateRefusedError, match="no receipt in the lake"):
        steps.release(store, "run")
    assert files_of(node.directories[0] / "a-0") == before
    assert {row.log for row in steps.archive_planned(store, "run", archive_here).receipts} == {"a-0", "b-0"}


def test_a_lake_that_is_away_permits_nothing(store: ManagedStore, node: MadeNode, tmp_path: Path) -> None:
    record_rule(store, RULE)
    before = files_of(node.directories[0] / "a-0")
    cleanup_steps(store, "run")["make_plan"]()
    lake = Path(store.root).parent.parent / "managed" / "lake"
    shutil.move(lake / "warehouse", tmp_path / "away")
    with pytest.raises(Exception, match=r"(?s)lake"):
        steps.release(store, "run")
    assert files_of(node.directories[0] / "a-0") == before


def test_a_lake_that_no_call_names_has_its_say(store: ManagedStore, tmp_path: Path) -> None:
    def clause() -> str:
        with opened(store) as context:
            return read_store_permits(store, context.journal, context.record).clause_of_log("a-0")

    other = replace(store, lake=LakeConfig.local(tmp_path / "other"))
    make_lake(other.lake, "kafka")
    record_rule(store, RULE)
    assert clause().startswith(NOT_ARCHIVED)
    steps.archive_sealed(other, "other", archive_here)
    assert clause() == ""
    record_rule(other, RULE)
    assert clause().startswith(NOT_ARCHIVED)
    shutil.move(tmp_path / "other", tmp_path / "away")
    assert clause() == ""


def test_a_store_that_is_renamed_keeps_its_exception(store: ManagedStore) -> None:
    record_rule(store, RULE)
    steps.archive_sealed(store, "first", archive_here)
    with opened(store) as context:

        def clause() -> str:
            (record,) = context.journal.all_stores()
            return read_store_permits(store, context.journal, record).clause_of_log("a-0")

        assert clause().startswith(NOT_ARCHIVED)
        (summary,) = list_stores(open_lake(store.lake))
        called = store_text(summary.store_name, summary.broker, summary.store_root)
        record_rule(store, Scope(topic="a*", store=called), archives=True)
        assert clause() == ""
        context.journal.name_store(context.record.store_id, "another")
        assert clause() == ""


def test_a_rule_that_is_lifted_while_a_run_deletes_lets_nothing_more_go(
    store: ManagedStore, node: MadeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_rule(store, RULE)
    before = files_of(node.directories[0] / "a-0")
    todo = cleanup_steps(store, "run")
    todo["make_plan"]()
    steps.archive_planned(store, "run", archive_here)
    begin = releasing.remover

    def lift(*arguments: Any, **more: Any) -> Any:
        record_rule(store, RULE, archives=True)
        return begin(*arguments, **more)

    monkeypatch.setattr(releasing, "remover", lift)
    (refused,) = steps.release(store, "run").refused
    assert (refused.log, "found that no such rule is in force now" in refused.why) == ("a-0", True)
    assert files_of(node.directories[0] / "a-0") == before
    assert len(files_of(node.directories[1] / "b-0")) < len(before)


def test_what_waits_for_a_rule_is_on_disk_and_in_no_lake(store: ManagedStore, node: MadeNode) -> None:
    for topic in ("a", "b"):
        node.settings[topic]["retention.ms"] = "-1"
    node.write()
    record_rule(store, RULE)
    steps.archive_sealed(store, "ahead", archive_here)
    found = diagnose(store, clock_ms(), has_lake=True)
    assert (found.unproven, found.left_out) == ((), 2)
    with opened(store) as context:
        measured = measure_lag(context)
        shown = {
            it.log: it.where for it in reversed(look_for_ranges(context, measured.snapshot, measured)[0])
        }
    assert shown == {"a-0": Place.LOCAL, "b-0": Place.BOTH}


def test_what_its_broker_deletes_by_itself_under_a_rule_is_not_lost(
    store: ManagedStore, node: MadeNode
) -> None:
    rule = record_rule(store, RULE)
    steps.archive_sealed(store, "first", archive_here)
    for path in (node.directories[0] / "a-0").glob(f"{0:020d}.*"):
        path.unlink()
    done = steps.archive_sealed(store, "second", archive_here)
    assert done.refused == ()
    assert any(f"by none of our runs, and {NOT_ARCHIVED}{rule.rule_id[:12]}" in it for it in done.notices)
    assert not [alarm for alarm in steps.monitor(store, "look").alarms if "LOST" in alarm]
    where, status, detail = places(store)["a-0", 0]
    assert (where, status) == (Where.NOT_ARCHIVED, Status.OK)
    assert detail.startswith(NOT_ARCHIVED)
