"""Validations by day: a gap or a loss can't be overlooked, and what nobody knows is not passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update

from storage_engine.console.stores import validation_calendar
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal, ReportRow
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.schema import reports
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import RangeStatus, Status, ValidationResult, Where
from storage_engine.retention.report.finishing import REPORT_VERSION
from tests.console.conftest import NOW_MS
from tests.pages.reports import plain, validation
from tests.services.console_course import clock_at


def test_each_day_says_what_was_validated_and_what_was_lost(past: JournalReader) -> None:
    days = {one.day: one for one in validation_calendar(past, "store_orders", 2026).days}
    passed, failed = days["2026-11-22"], days["2026-10-24"]
    assert (passed.passed, passed.failed, passed.gaps, passed.losses) == (1, 0, 0, 0)
    assert (failed.passed, failed.failed) == (0, 1)
    (run,) = failed.runs
    assert (run.dag_id, run.outcome, run.validation) == (
        "storage_retention__store_orders",
        "failed",
        "failed",
    )
    # Others deleted a range, and a day later a person accepted its loss.
    assert (days["2026-11-03"].gaps, days["2026-11-04"].losses) == (1, 1)
    assert sum(one.gaps + one.losses for one in days.values()) == 2
    quiet = validation_calendar(past, "store_payments", 2026).days
    assert {(one.failed, one.gaps, one.losses) for one in quiet} == {(0, 0, 0)}
    assert validation_calendar(past, "store_orders", 2025).days == ()
    assert validation_calendar(past, "nope", 2026).days == ()
    with pytest.raises(BadInputError, match="year"):
        validation_calendar(past, "store_orders", 99_999)


def lost() -> ValidationResult:
    ranges = (
        RangeStatus("log", 0, 1, Where.LOST, Status.FAILURE, (), "nowhere"),
        RangeStatus("log", 5, 6, Where.LOST, Status.WARNING, (), "accepted"),
        RangeStatus("log", 8, 9, Where.LOST, Status.FAILURE, (), "nowhere"),
    )
    return ValidationResult("/s", "id", "r", "boundaries", 0, 1, ranges, ())


def test_verdicts_of_an_older_release_are_read_from_its_reports_and_else_unknown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/journal.db"
    journal = Journal(url)
    store_id = journal.add_store("/s", "rocketmq", name="s").store_id
    stored = {
        "ok": json.dumps(plain()).encode(),
        "warned": json.dumps(plain(validation=validation(Status.WARNING))).encode(),
        "lost": json.dumps(plain(validation=lost())).encode(),
        "none": json.dumps(plain(validation=None)).encode(),
        "gone": None,
    }
    with clock_at(NOW_MS):
        for run_key, report in stored.items():
            run = journal.begin_run(store_id, run_key, PlanRequest())
            journal.save_report(run, ReportRow(REPORT_VERSION, "done", (), 2, 0, report))
        run = journal.begin_run(store_id, "idle", PlanRequest())
        journal.save_report(run, ReportRow(REPORT_VERSION, "nothing-to-do", (), 0, 0, None, "ok"))
    journal._database.write(lambda c: c.execute(update(reports).values(validation=None, lost_ranges=None)))
    (day,) = validation_calendar(JournalReader(url), "s", 2026).days
    assert {one.run_key: one.validation for one in day.runs} == {
        "ok": "passed",
        "warned": "passed",
        "lost": "failed",
        "none": "not-run",
        "gone": "unknown",
    }
    assert {one.run_key for one in day.runs if not one.has_report} == {"gone"}
    assert (day.passed, day.failed, day.not_run, day.unknown, day.gaps) == (2, 1, 1, 1, 2)
