"""Which steps a run took, how long each took, and what failed and was not done since."""

from __future__ import annotations

from storage_engine.journal.journal import Event, Phase, Step
from storage_engine.model.store import SegmentId
from storage_engine.retention.report.report import StepReport, step_reports

SEGMENT = SegmentId("commitlog", 0)


def events(*said: tuple[Step, Phase, str, dict[str, object]]) -> list[Event]:
    return [
        Event("r", step.value, phase, subject, payload, 1_000 * number, number)
        for number, (step, phase, subject, payload) in enumerate(said)
    ]


WANTED = (Step.ARCHIVE, Phase.INTENT, "commitlog/0", {})
PROVEN = (Step.ARCHIVE, Phase.RESULT, "commitlog/0", {"took_ms": 441})
BROKEN = (Step.ARCHIVE, Phase.ERROR, "", {"type": "OSError", "message": "disk: gone"})


def test_archiving_took_what_its_batches_took_whatever_lay_between() -> None:
    other = (Step.ARCHIVE, Phase.RESULT, "commitlog/1", {})
    later = (Step.ARCHIVE, Phase.RESULT, "commitlog/2", {"took_ms": 9})
    found = step_reports(events(WANTED, PROVEN, other, WANTED, later), ())
    assert found == (StepReport("archive", True, 450, ""),)


def test_what_was_proven_before_took_no_time_and_is_done() -> None:
    assert step_reports(events(WANTED), ()) == (StepReport("archive", True, None, ""),)
    assert step_reports(events(WANTED), (SEGMENT,)) == (StepReport("archive", False, None, ""),)


def test_a_failure_to_archive_stays_until_it_was_done_since() -> None:
    failed = StepReport("archive", False, None, "OSError: disk: gone")
    assert step_reports(events(WANTED, BROKEN), (SEGMENT,)) == (failed,)
    assert step_reports(events(WANTED, PROVEN, BROKEN), ()) == (failed,)
    assert step_reports(events(WANTED, BROKEN, PROVEN), (SEGMENT,)) == (failed,)
    assert step_reports(events(WANTED, BROKEN, PROVEN), ()) == (StepReport("archive", True, 441, ""),)


def test_a_run_that_archives_nothing_has_no_such_step() -> None:
    planned = (Step.PLAN, Phase.RESULT, "", {"took_ms": 3})
    assert step_reports(events(planned), ()) == (StepReport("plan", True, 3, ""),)
