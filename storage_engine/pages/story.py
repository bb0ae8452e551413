"""What a report says first, in words: what became of the run, what went, why, where it is now. Pure.

Its input is the report's JSON, of this release or an older one. The page and what is sent by mail say the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.core.wording import bytes_text, count_text
from storage_engine.pages.answers import Answer, answers
from storage_engine.pages.figures import (
    STEPS,
    amount,
    fated,
    freed_bytes,
    is_set_aside,
    unread_count,
    worst_status,
)
from storage_engine.pages.problems import Problem, problems

_LATER: Mapping[str, Any] = {
    "quarantine": None,
    "unread": None,
    "unread_lines": (),
    "refused": (),
    "lake_directory": "LAKE",
    "wrong_lakes": (),
    "hashed_again": 0,
    "approval": "",
}
"""Fields that older reports don't have, as they are where there is nothing to say."""

_REFUSALS = frozenset(
    {
        "ChangedUnderUsError",
        "GateRefusedError",
        "LakeConflictError",
        "LakeIdentityError",
        "StoreBusyError",
        "StoreCrashedError",
        "StoreIdentityError",
        "WrongHostError",
    }
)
"""Errors by which a run says no, rather than that something broke."""


@dataclass(frozen=True, slots=True)
class Story:
    """The first screen of a report.

    :param word: the outcome in a word or two.
    :param tone: how it is shown: ok, warn, bad or dim.
    :param headline: the outcome as a sentence.
    :param loss: what consumers lose, as a sentence; "" where they lose nothing.
    """

    word: str
    tone: str
    headline: str
    loss: str
    answers: tuple[Answer, ...]
    problems: tuple[Problem, ...]


def of_any_release(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with the fields that came later than it."""
    return {**_LATER, **report}


def tell(report: Mapping[str, Any]) -> Story:
    """Say what a report says.

    :param report: with every field; see :func:`of_any_release`.
    """
    word, tone = _verdict(report)
    return Story(
        word=word,
        tone=tone,
        headline=_headline(report),
        loss=_loss(report),
        answers=answers(report),
        problems=problems(report),
    )


def _verdict(report: Mapping[str, Any]) -> tuple[str, str]:
    outcome = str(report["outcome"])
    overall = worst_status(report["validation"])
    if outcome == "failed":
        errors = {step["error"].partition(":")[0] for step in report["steps"]}
        return ("Refused" if report["refused"] or errors & _REFUSALS else "Failed"), "bad"
    if overall == "FAILURE":
        return "Failed", "bad"
    if outcome == "released-in-part":
        return "Refused in part", "bad"
    word = outcome.replace("-", " ").capitalize()
    if report["wrong_lakes"]:
        return word, "bad"
    if outcome in ("blocked", "unfinished") or overall == "WARNING" or report["alarms"]:
        return word, "warn"
    if outcome == "dry-run":
        return word, "dim"
    return word, "warn" if report["unread_lines"] and fated(report, "deleted") else "ok"


def _headline(report: Mapping[str, Any]) -> str:
    outcome = str(report["outcome"])
    deleted, pending = fated(report, "deleted"), fated(report, "pending")
    if outcome == "dry-run":
        would = f"{amount(pending)} would go" if pending else "nothing would go"
        return f"This was a dry run: nothing was changed, and {would}."
    if outcome == "failed":
        return f"{_failure(report)} {_meanwhile(deleted)}"
    if outcome == "released-in-part":
        refused = count_text(len(report["refused"]), "log")
        return f"{refused} of the store was refused and stays as it is. {_meanwhile(deleted)}"
    if outcome == "undone":
        return "What this run deleted was brought back, all of it."
    if outcome == "blocked":
        return "Something is due to go, but nothing may be deleted now."
    if outcome == "unfinished":
        return f"The run is not finished. {_meanwhile(deleted)}"
    if outcome == "nothing-to-do":
        return "Nothing was due, so nothing was deleted."
    if not deleted:
        return "The run did what it was asked for, and deleted nothing."
    return _done(report, deleted)


def _done(report: Mapping[str, Any], deleted: Sequence[Mapping[str, Any]]) -> str:
    verb = "was" if len(deleted) == 1 else "were"
    proven = [row for row in deleted if row["proof"] == "proven"]
    how = "archived, proven and deleted" if len(proven) == len(deleted) else "deleted"
    if is_set_aside(report):
        how = how.replace("deleted", "moved to quarantine")
    freed = freed_bytes(report)
    free = f"; {bytes_text(freed)} of disk is free again" if freed else ""
    return f"{amount(deleted)} {verb} {how}{free}."


def _failure(report: Mapping[str, Any]) -> str:
    broken = [step["step"] for step in report["steps"] if step["error"]]
    if broken:
        return f"The run stopped at the step “{STEPS.get(broken[0], broken[0])}”."
    found = report["validation"] or {"checks": ()}
    if checks := sum(check["status"] == "FAILURE" for check in found["checks"]):
        return f"{checks} {'check fails' if checks == 1 else 'checks fail'} after the run."
    return "The run failed."


def _meanwhile(deleted: Sequence[Mapping[str, Any]]) -> str:
    if not deleted:
        return "Nothing was deleted."
    return f"{amount(deleted)} {'was' if len(deleted) == 1 else 'were'} deleted before."


def _loss(report: Mapping[str, Any]) -> str:
    unread, would = report["unread"], not fated(report, "deleted")
    if not fated(report, "deleted", "pending") or report["lag_policy"] == "ignore":
        return ""
    if unread is None or unread["error"]:
        return "What consumers had not read of it is not known."
    if not (rows := unread["rows"]):
        return ""
    groups = count_text(len({row["group"] for row in rows}), "consumer group")
    lost = f"{groups} {'would lose' if would else 'lost'} sight of {unread_count(unread)} not read yet"
    if report["archive_mode"] == "off" or report["waiver"] is not None:
        return f"{lost}; no lake is known to have them."
    return f"{lost}; {'they would be' if would else 'they are'} only in the lake."
