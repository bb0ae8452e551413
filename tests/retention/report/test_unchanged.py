"""What answers for a store that is as it was."""

from __future__ import annotations

from collections.abc import Callable

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import ValidationResult
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.report.finishing import validated_since
from storage_engine.retention.steps import record_validation
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore


def test_a_validation_of_rows_says_nothing_of_a_later_runs_plan(managed: Callable[..., ManagedStore]) -> None:
    store = managed("clean-stop", overrides={"fileReservedTime": "999999"})

    def plan(run: str) -> cycle.Cleanup:
        cleanup = cycle.Cleanup(store, run, PlanRequest())
        cycle.plan(cleanup)
        return cleanup

    cycle.validate(plan("first"))
    plan("second")
    assert validated_since(store, "second") == "first"
    begin_background_run(open_context(store), "rows")
    rows = ValidationResult(store.real_root, "id", "rows", "rows", clock_ms(), 1, (), ())
    record_validation(store, "rows", rows)
    assert validated_since(store, "second") == "first"
