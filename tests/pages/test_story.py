"""A report's first screen: the outcome as a sentence, the answers, and what needs a person."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.journal.journal import Waiver
from storage_engine.model.lag import Unread
from storage_engine.model.plan import PlanRequest, Reason
from storage_engine.model.report.validation import Status
from storage_engine.pages.figures import took_text
from storage_engine.pages.report import report_html
from storage_engine.pages.story import Answer, Story, of_any_release, tell
from storage_engine.retention.proof.refusing import MEND, RefusedLog
from storage_engine.retention.quarantine.records import Quarantine, QuarantineState
from storage_engine.retention.report.report import Fate, Outcome, Report, StepReport
from tests.pages.reports import DONE, MIB, NOON_MS, NOTHING, plain, segment, unread, validation

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "reports"
EXPORT = "storage-engine export --lake /lake --topic orders --to unread.parquet"
LOSS = f"51 unread messages of cg_orders in orders are only in the lake now; to get them: {EXPORT}"


def story(report: Report = DONE, **changes: Any) -> Story:
    return tell(of_any_release(plain(report, **changes)))


def answer(told: Story, question: str) -> Answer:
    (found,) = (one for one in told.answers if one.question == question)
    return found


def texts(told: Story, question: str) -> list[str]:
    return [line.text for line in answer(told, question).lines]


def pending(report: Report = DONE) -> tuple[Any, ...]:
    return (segment(0, Fate.PENDING, Reason.EXPIRED), *report.segments[2:])


FAILED = {
    "outcome": Outcome.FAILED,
    "segments": pending(),
    "archived": (),
    "freed_bytes": 0,
    "validation": None,
}


def failed(error: str, step: str = "archive") -> Story:
    return story(**FAILED, steps=(StepReport(step, False, None, error),))


@pytest.mark.parametrize(
    ("told", "word", "tone", "headline"),
    [
        (
            story(),
            "Done",
            "ok",
            "2 segments (2.0 MiB) were archived, proven and deleted; 2.0 MiB of disk is free again.",
        ),
        (story(NOTHING), "Nothing to do", "ok", "Nothing was due, so nothing was deleted."),
        (
            story(
                outcome=Outcome.DRY_RUN,
                segments=pending(),
                request=PlanRequest(dry_run=True),
                validation=None,
            ),
            "Dry run",
            "dim",
            "This was a dry run: nothing was changed, and 1 segment (1.0 MiB) would be deleted.",
        ),
        (
            failed("OSError: disk gone"),
            "Failed",
            "bad",
            "The run stopped at this step: “archive and prove”. Nothing was deleted.",
        ),
        (
            failed("GateRefusedError: no receipt", "release"),
            "Refused",
            "bad",
            "The run stopped at this step: “delete”. Nothing was deleted.",
        ),
        (
            story(outcome=Outcome.FAILED, validation=validation(Status.FAILURE)),
            "Failed",
            "bad",
            "1 check fails after the run. 2 segments (2.0 MiB) were deleted before that.",
        ),
        (
            story(NOTHING, outcome=Outcome.BLOCKED),
            "Blocked",
            "warn",
            "Segments are due for deletion, but none may be deleted now.",
        ),
        (
            story(outcome=Outcome.RELEASED_IN_PART, refused=(RefusedLog("b", "ReceiptError", "none", MEND),)),
            "Refused in part",
            "bad",
            "1 log of the store was refused and stays as it is. "
            "2 segments (2.0 MiB) were deleted before that.",
        ),
        (story(outcome=Outcome.UNDONE), "Undone", "ok", "Everything that this run deleted was brought back."),
        (story(validation=validation(Status.WARNING)), "Done", "warn", story().headline),
    ],
)
def test_the_outcome_is_a_sentence(told: Story, word: str, tone: str, headline: str) -> None:
    assert (told.word, told.tone, told.headline) == (word, tone, headline)


def test_it_says_what_went_why_where_it_is_and_what_it_cost() -> None:
    told = story()
    assert texts(told, "What was deleted") == [
        "2 segments (2.0 MiB), 2,000 messages, stored 2026-11-23 12:00:00Z to 2026-11-23 12:02:00Z",
        "1 segment (1.0 MiB) stays on disk",
    ]
    assert texts(told, "Why") == [
        "It was an hour that deleteWhen names: 12 h is in deleteWhen 12 (UTC)",
        "2 segments are not kept: older than the store keeps messages",
        "1 segment stays: the broker writes to it",
    ]
    place, restore = answer(told, "Where it is now").lines
    assert (
        place.text
        == "2 segments in the lake file:///lake/warehouse, proven byte for byte 2026-11-24 12:00:01Z"
    )
    assert restore.command == (
        "storage-engine restore --lake /lake --to DIRECTORY --store-id 9b8ba77a --lineage 1 --log commitlog "
        f"--from-offset 0 --to-offset {MIB + 1}"
    )
    assert texts(told, "What it cost") == [
        "9.2 s in all: archive and prove 441 ms, delete 1.9 s, check store and lake 1 min 1 s",
        "2.0 MiB read from disk, 512.0 KiB written to the lake (25 %)",
        "2.0 MiB freed on disk",
    ]
    assert texts(told, "Who missed messages") == ["Nobody: every group had read the deleted segments"]
    assert (told.loss, told.problems) == ("", ())


def test_unread_messages_that_went_are_said_first_and_with_the_command_that_gets_them() -> None:
    told = story(unread=unread(), unread_lines=(LOSS,))
    assert told.loss == "1 consumer group missed 51 messages not read yet; they are only in the lake."
    assert told.tone == "warn"
    (line,) = answer(told, "Who missed messages").lines
    assert (
        line.text
        == "cg_orders: 51 unread messages of orders in 8 queues, stored from 2026-11-24 11:00:00Z on"
    )
    assert line.command == EXPORT


def test_a_dry_run_says_who_would_lose_what() -> None:
    told = story(outcome=Outcome.DRY_RUN, segments=pending(), archived=(), unread=unread(), validation=None)
    assert told.loss == (
        "1 consumer group would miss 51 messages not read yet; they would be only in the lake."
    )
    assert texts(told, "What would be deleted") == [
        "1 segment (1.0 MiB)",
        "1 segment (1.0 MiB) stays on disk",
    ]
    assert answer(told, "Who would miss messages").short == "1 group, 51 messages unread"
    nobody = story(outcome=Outcome.DRY_RUN, segments=pending(), archived=(), validation=None)
    assert texts(nobody, "Who would miss messages") == ["Nobody: every group has read the segments to delete"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unread": Unread(error="no answer")}, "Not known: no answer"),
        ({"unread": unread(), "lag_policy": "ignore"}, "Nobody was asked: lag_policy is ignore"),
    ],
)
def test_what_is_not_known_of_consumers_is_not_nobody(changes: dict[str, Any], said: str) -> None:
    assert texts(story(**changes), "Who missed messages") == [said]


def test_a_group_without_a_position_may_need_any_message() -> None:
    told = story(unread=unread(None), unread_lines=("x",))
    assert "may need any message in 8 queues of orders" in texts(told, "Who missed messages")[0]
    assert "an unknown number of messages" in told.loss


def test_what_is_known_of_some_groups_only_is_said_as_the_least() -> None:
    both = Unread(rows=(*unread().rows, *unread(None, "cg_other").rows))
    told = story(unread=both, unread_lines=("x",))
    assert told.loss.startswith("2 consumer groups missed at least 51 messages not read yet")


def test_what_went_without_a_copy_is_not_in_the_lake() -> None:
    told = story(archive_mode="off", archived=(), unread=unread(), unread_lines=("gone",))
    assert texts(told, "Where it is now") == [
        "2 segments (2.0 MiB) were deleted without a copy: the policy is archive: off"
    ]
    assert answer(told, "Where it is now").short == "in no lake"
    assert told.loss.endswith("no lake is known to have them.")


def test_a_waiver_and_a_reason_are_said_with_who_decided() -> None:
    waiver = Waiver("cd", "ann", "disk full", NOON_MS)
    lines = texts(story(waiver=waiver, request=PlanRequest(forced=True, reason="audit is over")), "Why")
    assert "The reason given: audit is over" in lines
    assert "ann allowed the plan without a proof (2026-11-24 12:00:00Z): disk full" in lines


def test_a_quarantine_frees_nothing_and_names_the_command_that_undoes() -> None:
    aside = Quarantine("run-1", (), 1, NOON_MS, NOON_MS + 86_400_000, QuarantineState.KEPT)
    told = story(quarantine=aside, freed_bytes=0)
    assert told.headline == "2 segments (2.0 MiB) were archived, proven and moved to quarantine."
    assert answer(told, "Where it is now").lines[-1].command == (
        "storage-engine undo run-1 /store --lake /lake"
    )
    assert not any("freed" in text for text in texts(told, "What it cost"))


def test_an_undo_that_fits_only_before_the_broker_starts_says_so() -> None:
    aside = Quarantine("run-1", (), 1, NOON_MS, NOON_MS + 86_400_000, QuarantineState.KEPT)
    line = answer(story(quarantine=aside, freed_bytes=0), "Where it is now").lines[-1].text
    assert line.endswith("To undo the run:")
    line = answer(story(quarantine=aside, freed_bytes=0, broker="kafka"), "Where it is now").lines[-1].text
    assert line.endswith("To undo the run, before its broker starts:")
    page = report_html(plain(quarantine=aside, broker="kafka"))
    assert "brings all of them back, if run before its broker starts.</p>" in page
    assert "brings all of them back.</p>" in report_html(plain(quarantine=aside))


def test_groups_that_nobody_knows_of_are_not_said_to_have_read_all() -> None:
    found = answer(story(unread=Unread(notices=("which groups read isn't known",))), "Who missed messages")
    assert [line.text for line in found.lines] == ["No known group: which groups read isn't known"]
    assert (found.short, found.tone) == ("nobody known", "warn")


def test_a_failure_says_what_to_do() -> None:
    (problem,) = failed("LakeUnavailableError: lake s3://x: no answer").problems
    assert problem.title == "Step archive failed"
    assert problem.what == "lake s3://x: no answer"
    assert problem.remedy.startswith("Check that the lake is mounted or reachable")
    (problem,) = story(outcome=Outcome.FAILED, validation=validation(Status.FAILURE)).problems
    assert problem.title == "A rule is broken: Nothing is lost."
    assert problem.what == "1 of 3 don't follow this rule: commitlog: lost"
    assert problem.remedy.startswith("Stop deleting.")


def test_a_refused_log_says_why_and_what_to_do_once() -> None:
    why = "x: bad frame"
    log = RefusedLog("commitlog", "CorruptFrameError", why, MEND)
    steps = (StepReport("archive", False, None, f"CorruptFrameError: {why}"),)
    (problem,) = story(**FAILED, steps=steps, refused=(log,)).problems
    assert (problem.title, problem.what) == ("Log commitlog was refused", why)
    assert problem.remedy.startswith("Compare the segment with a replica")
    own = replace(log, remedy="Do that.")
    (problem,) = story(**FAILED, steps=steps, refused=(own,)).problems
    assert problem.remedy == "Do that."


def test_what_may_not_go_says_what_it_waits_for() -> None:
    blocked = (segment(0, Fate.KEPT, Reason.LAG_BLOCKED, "cg_orders has to read it"), *DONE.segments[2:])
    (problem,) = story(NOTHING, outcome=Outcome.BLOCKED, segments=blocked).problems
    assert problem.title.startswith("1 segment can't be deleted: consumers still have to read it")
    assert problem.what == "cg_orders has to read it"
    assert problem.remedy.startswith("Wait until these groups have read the messages")


def test_the_worst_comes_first() -> None:
    told = story(
        outcome=Outcome.FAILED, alarms=("late",), validation=validation(Status.FAILURE), crashed=True
    )
    assert [problem.tone for problem in told.problems] == ["bad", "warn", "warn"]


def test_a_report_of_an_older_release_is_told_and_what_it_did_not_look_for_is_not_known() -> None:
    told = tell(of_any_release(json.loads((FIXTURES / "before-lake-uuid.json").read_bytes())))
    assert (told.word, told.problems) == ("Done", ())
    assert told.headline.startswith("7 segments (7.0 MiB) were archived, proven and deleted;")
    assert told.loss == "It is not known whether consumers had read all messages of these segments."
    assert texts(told, "What was deleted")[0] == "7 segments (7.0 MiB), 7,765 messages"
    assert " --lake LAKE " in answer(told, "Where it is now").lines[-1].command
    assert texts(told, "Who missed messages") == [
        "Not known: the release that wrote this report did not measure consumers' losses"
    ]


@pytest.mark.parametrize(
    ("took_ms", "text"),
    [(None, ""), (56, "56 ms"), (5_952, "6.0 s"), (61_000, "1 min 1 s"), (7_322_000, "2 h 2 min")],
)
def test_durations_are_as_precise_as_it_matters(took_ms: int | None, text: str) -> None:
    assert took_text(took_ms) == text
