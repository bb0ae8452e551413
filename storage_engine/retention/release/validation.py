"""Record what the validation after a deletion found."""

from __future__ import annotations

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.report.validation import ValidationResult
from storage_engine.retention.store.context import WHOLE, AnyStore, Context, open_context


def record_validation(store: AnyStore, run_key: str, result: ValidationResult) -> None:
    """Record a validation of this run; the latest one counts.

    :raises RunStateError: there is no such run.
    """
    context = open_context(store)
    payload = {"result": to_jsonable(result), "took_ms": result.duration_ms}
    context.journal.record(context.run(run_key), Step.VALIDATE, Phase.RESULT, [(WHOLE, payload)])


def recorded_validation(context: Context, run: Run) -> ValidationResult | None:
    """The run's latest validation."""
    results = context.journal.events(run, Step.VALIDATE, Phase.RESULT)
    return from_jsonable(ValidationResult, results[-1].payload["result"]) if results else None
