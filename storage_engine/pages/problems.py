"""What of a report needs a person, each with what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage_engine.core.wording import count_text
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.pages.advice import check_advice, error_advice, reason_advice, reason_words
from storage_engine.pages.words import words_of

SHOWN = 20
"""Of more problems than these, the rest is in the report's JSON only."""


@dataclass(frozen=True, slots=True)
class Problem:
    """:param tone: bad or warn.
    :param what: what was expected and found.
    :param remedy: what to do; "" where ``what`` says it.
    """

    title: str
    tone: str
    what: str
    remedy: str


def problems(report: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return what needs a person, the worst first.

    :param report: with every field, as JSON.
    """
    words = words_of(report["broker"])
    found = [Problem("A lake isn't what it should be", "bad", why, "") for why in report["wrong_lakes"]]
    found += [*_refused(report, words), *_errors(report, words)]
    found += [*broken_checks(report["validation"], words), *_open(report)]
    found += (Problem("Alarm", "warn", alarm, "") for alarm in report["alarms"])
    return tuple(sorted(found, key=lambda problem: problem.tone != "bad"))


def broken_checks(validation: Mapping[str, Any] | None, words: BrokerWords) -> Iterator[Problem]:
    """Return the checks that don't hold.

    :param validation: as JSON; None: there was none.
    :param words: of the store's broker.
    """
    for check in validation["checks"] if validation else ():
        if check["status"] == "OK":
            continue
        broken = f"{check['unexpected_count']:,} of {check['checked_count']:,} break this rule"
        example = f": {check['examples'][0]}" if check["examples"] else ""
        title = f"A rule is broken: {check['description'] or check['expectation']}"
        tone = "bad" if check["status"] == "FAILURE" else "warn"
        yield Problem(title, tone, f"{broken}{example}", check_advice(check["expectation"], words))


def _refused(report: Mapping[str, Any], words: BrokerWords) -> Iterator[Problem]:
    for log in report["refused"]:
        named = log["remedy"] != "Mend what it names."
        remedy = log["remedy"] if named else error_advice(log["error"], words)
        yield Problem(f"Log {log['log']} was refused", "bad", log["why"], remedy)


def _errors(report: Mapping[str, Any], words: BrokerWords) -> Iterator[Problem]:
    refused = {log["why"] for log in report["refused"]}
    for step in report["steps"]:
        error, _, message = step["error"].partition(": ")
        if error and message not in refused:
            remedy = error_advice(error, words)
            yield Problem(f"Step {step['step']} failed", "bad", message, remedy)


def _open(report: Mapping[str, Any]) -> Iterator[Problem]:
    if report["outcome"] == "unfinished":
        again = f"Run it again with the run key {report['run_key']}, or clear its task in Airflow."
        yield Problem("The run is not finished", "warn", "Steps are left to do.", again)
    if report["crashed"]:
        what = "The store may be read, but not changed."
        yield Problem("The broker did not stop cleanly", "warn", what, reason_advice("store-crashed"))
    for reason in dict.fromkeys(row["reason"] for row in report["segments"] if row["fate"] == "kept"):
        if reason in ("refused", "store-crashed") or not reason_advice(reason):
            continue
        rows = [row for row in report["segments"] if row["fate"] == "kept" and row["reason"] == reason]
        title = f"{count_text(len(rows), 'segment')} may not go: {reason_words(reason)}"
        yield Problem(title, "warn", rows[0]["detail"], reason_advice(reason))
