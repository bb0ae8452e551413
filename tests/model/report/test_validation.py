"""What a check of store and lake found."""

from __future__ import annotations

import json

from storage_engine.model.report.validation import (
    CheckResult,
    RangeStatus,
    Status,
    ValidationResult,
    Where,
    worst,
)


def result(*statuses: Status) -> ValidationResult:
    return ValidationResult(
        store_root="/store",
        store_id=None,
        run_key="run-1",
        scope="boundaries",
        checked_at_ms=1,
        duration_ms=2,
        ranges=(RangeStatus("commitlog", 0, 10, Where.LOCAL, Status.OK, ("0",), "on disk"),),
        checks=tuple(CheckResult("store", "ExpectX", "x", status, 1, 0, ("a",)) for status in statuses),
        notes=("no lake",),
    )


def test_the_worst_verdict_wins() -> None:
    assert worst([]) is Status.OK
    assert result(Status.OK, Status.WARNING).overall is Status.WARNING
    assert result(Status.WARNING, Status.FAILURE, Status.OK).overall is Status.FAILURE


def test_a_result_survives_json() -> None:
    before = result(Status.OK, Status.FAILURE)
    data = json.loads(json.dumps(before.to_dict()))
    assert data["overall"] == "FAILURE"
    assert ValidationResult.from_dict(data) == before
