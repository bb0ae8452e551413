"""A hold outlives a run only where a broker runs; nobody ends one while a run has the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import StoreBusyError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.retention import steps
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.managed_store import ManagedStore

JournalOf = Callable[[ManagedStore], Journal]


def test_a_stopped_brokers_store_needs_no_hold_and_none_is_reported(
    managed: Callable[..., ManagedStore], fingerprint: Callable[[str | Path], dict[str, str]]
) -> None:
    store = managed()
    before = fingerprint(store.root)
    result = steps.hold(store, run_key="r")
    assert (result.beside, result.renewed, result.status.held) == (False, False, False)
    steps.make_plan(store, "r")
    report = build_report(store, "r")
    assert report.hold is None
    assert not any("hold" in notice or "held" in notice for notice in report.notices)
    assert "hold" not in {step.step for step in report.steps}
    assert fingerprint(store.root) == before


def test_unmanage_is_refused_while_a_run_has_the_store(
    managed: Callable[..., ManagedStore], journal_of: JournalOf
) -> None:
    store = managed()
    journal = journal_of(store)
    with journal.lease(identify(store, journal).store_id), pytest.raises(StoreBusyError, match="lease"):
        steps.unmanage(store)
    assert not steps.unmanage(store).status.held


@pytest.mark.slow
def test_a_report_has_the_last_look_and_all_that_disturbed_the_hold(
    planned: Callable[..., ManagedStore],
) -> None:
    store = planned()
    context = open_context(store)
    run = context.run("r")
    gone = Drift(DriftKind.SEGMENT_GONE, "expected it, found no file.", "commitlog", 0, 1048576, ("orders",))
    restarted = Drift(DriftKind.BROKER_RESTARTED, "it began again.")
    for status in (
        HoldStatus(held=True, fence_offset=0, ends_at_ms=1_700_000_000_000, disturbances=(gone,)),
        HoldStatus(held=True, fence_offset=1048576, ends_at_ms=1_700_000_360_000, disturbances=(restarted,)),
    ):
        context.save(run, Step.HOLD, status, 0)
    report = build_report(store, "r")
    assert report.hold is not None
    assert report.hold.disturbances == (gone, restarted)
    text = report_text(report)
    assert "held until 2023-11-14 22:19:20Z: from offset 1048576 on" in text
    assert "WARNING segment-gone commitlog [0, 1048576): expected it, found no file." in text
    assert "WARNING broker-restarted: it began again." in text
    assert Phase.RESULT in {event.phase for event in context.journal.events(run, Step.HOLD)}
