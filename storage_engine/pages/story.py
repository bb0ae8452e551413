"""The first lines of a report in words: outcome, deleted segments, reasons, and where the data is. Pure.

The input is a report's JSON, filled by :func:`of_any_release`. The web page and the mail have the same text.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage_engine.core.wording import UNCHANGED, bytes_text, count_text, shorten, time_text
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.pages.advice import cause_words, check_advice, error_advice, reason_advice, reason_words
from storage_engine.pages.figures import (
    STEPS,
    amount,
    freed_bytes,
    gone_by_rules,
    is_dry_run,
    is_set_aside,
    sets_aside_until_start,
    span_text,
    took_text,
    unread_count,
    with_fate,
    words_of,
    worst_status,
)

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
"""Values of fields that older reports lack."""

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
"""Errors by which a run refuses to act. After any other error, the run failed."""
NAME_WIDTH = 60
"""Longest shown name. Names of groups and topics have up to 255 characters. The tables show them in full."""

_COMMAND = "; to get them: "
_SHIELD = " in the shield"
SHOWN = 20
"""Largest number of problems that are shown. The report's JSON has all problems."""


@dataclass(frozen=True, slots=True)
class Story:
    """The first screen of a report.

    :param word: the outcome in a word or two.
    :param tone: the colour in which the outcome is shown: ok, warn, bad or dim.
    :param headline: the outcome as a sentence.
    :param loss: consumers' losses, as a sentence; "" if they lose nothing.
    """

    word: str
    tone: str
    headline: str
    loss: str
    answers: tuple[Answer, ...]
    problems: tuple[Problem, ...]


def of_any_release(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report with default values for fields that were added after its release."""
    return {**_LATER, **report}


def tell(report: Mapping[str, Any]) -> Story:
    """Return the text of a report."""
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
    return word, "warn" if report["unread_lines"] and with_fate(report, "deleted") else "ok"


def _headline(report: Mapping[str, Any]) -> str:
    outcome = str(report["outcome"])
    deleted, pending = with_fate(report, "deleted"), with_fate(report, "pending")
    if outcome == "dry-run":
        would = f"{amount(pending)} would be deleted" if pending else "nothing would be deleted"
        return f"This was a dry run: nothing was changed, and {would}."
    if outcome == "failed":
        return f"{_failure(report)} {_meanwhile(deleted)}"
    if outcome == "released-in-part":
        refused = count_text(len(report["refused"]), "log")
        return f"{refused} of the store was refused and stays as it is. {_meanwhile(deleted)}"
    if outcome == "undone":
        return "Everything that this run deleted was brought back."
    if outcome == "blocked":
        return "Segments are due for deletion, but none may be deleted now."
    if outcome == "unfinished":
        return f"The run has not finished. {_meanwhile(deleted)}"
    if outcome == "nothing-to-do":
        return "Nothing was due, so nothing was deleted."
    if not deleted:
        return "The run did the requested work, and deleted nothing."
    return _tell_deleted(report, deleted)


def _tell_deleted(report: Mapping[str, Any], deleted: Sequence[Mapping[str, Any]]) -> str:
    verb = "was" if len(deleted) == 1 else "were"
    proven = [row for row in deleted if row["proof"] == "proven"]
    action = "archived, proven and deleted" if len(proven) == len(deleted) else "deleted"
    if is_set_aside(report):
        action = action.replace("deleted", "moved to quarantine")
    freed = freed_bytes(report)
    free = f"; {bytes_text(freed)} of disk is free again" if freed else ""
    return f"{amount(deleted)} {verb} {action}{free}."


def _failure(report: Mapping[str, Any]) -> str:
    broken = [step["step"] for step in report["steps"] if step["error"]]
    if broken:
        return f"The run stopped at this step: “{STEPS.get(broken[0], broken[0])}”."
    validation = report["validation"] or {"checks": ()}
    if checks := sum(check["status"] == "FAILURE" for check in validation["checks"]):
        return f"{checks} {'check fails' if checks == 1 else 'checks fail'} after the run."
    return "The run failed."


def _meanwhile(deleted: Sequence[Mapping[str, Any]]) -> str:
    if not deleted:
        return "Nothing was deleted."
    return f"{amount(deleted)} {'was' if len(deleted) == 1 else 'were'} deleted before that."


def _loss(report: Mapping[str, Any]) -> str:
    unread, would = report["unread"], not with_fate(report, "deleted")
    if not with_fate(report, "deleted", "pending") or report["lag_policy"] == "ignore":
        return ""
    if unread is None or unread["error"]:
        return "It is not known whether consumers had read all messages of these segments."
    if not (rows := unread["rows"]):
        return ""
    groups = count_text(len({row["group"] for row in rows}), "consumer group")
    lost = f"{groups} {'would miss' if would else 'missed'} {unread_count(unread)} not read yet"
    if report["archive_mode"] == "off" or report["waiver"] is not None:
        return f"{lost}; no lake is known to have them."
    return f"{lost}; {'they would be' if would else 'they are'} only in the lake."


@dataclass(frozen=True, slots=True)
class Line:
    """:param command: the command that does what the text says; "" for none."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question of a reader about a run, and the answer.

    :param short: the answer in a few words, for a place with little room.
    """

    question: str
    lines: tuple[Line, ...]
    short: str
    tone: str = ""


def answers(report: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Answer a reader's questions about a run. Questions without an answer are left out."""
    makers = (_answer_deleted, _answer_reasons, _answer_place, _answer_cost, _answer_checks, _answer_readers)
    return tuple(answer for make in makers if (answer := make(report)) is not None)


def _answer_deleted(report: Mapping[str, Any]) -> Answer | None:
    deleted, pending, missing = (with_fate(report, fate) for fate in ("deleted", "pending", "missing"))
    proven = with_fate(report, "gone-proven")
    kept = with_fate(report, "kept")
    lines = []
    short = "nothing"
    if deleted:
        short = amount(deleted)
        lines.append(Line(f"{short}{_messages(report, deleted)}"))
    elif not is_dry_run(report):
        lines.append(Line("Nothing"))
    if files := report["dependents"]:
        size = bytes_text(sum(row["facts"]["size_bytes"] for row in files))
        kinds = Counter(str(row["kind"]) for row in files)
        named = " and ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        lines.append(Line(f"{named} {'file' if len(files) == 1 else 'files'} that pointed at them, {size}"))
    if pending:
        short = short if deleted else amount(pending) if is_dry_run(report) else "nothing yet"
        lines.append(Line(amount(pending) + ("" if is_dry_run(report) else " still to be deleted")))
    if proven:
        them = "it" if len(proven) == 1 else "them"
        lines.append(Line(f"{amount(proven)}: deleted by none of our runs, but a lake has {them}"))
    if missing:
        lines.append(
            Line(f"{amount(missing)} {'is' if len(missing) == 1 else 'are'} missing: deleted by no run")
        )
    if ahead := report["archived_ahead"]:
        lines.append(Line(f"{count_text(ahead, 'segment')} archived and proven ahead of deletion"))
    if again := report["hashed_again"]:
        lines.append(Line(f"{count_text(again, 'segment')} {UNCHANGED}"))
    if kept:
        verb = "stays" if len(kept) == 1 else "stay"
        lines.append(Line(f"{amount(kept)} {verb} on disk"))
    if not report["segments"] and not lines:
        return None
    return Answer("What would be deleted" if is_dry_run(report) else "What was deleted", tuple(lines), short)


def _messages(report: Mapping[str, Any], deleted: Sequence[Mapping[str, Any]]) -> str:
    """Return a text on the segments' messages and their store times, as far as receipts show them."""
    slots = {(row["log"], row["base_offset"]) for row in deleted}
    rows = [row for row in report["archived"] if (row["log"], row["base_offset"]) in slots]
    if not rows:
        return ""
    where = "" if len(rows) == len(deleted) else f" in {len(rows)} of them"
    text = f", {sum(row['message_count'] for row in rows):,} messages{where}"
    first = [row["first_stored_at_ms"] for row in rows if row.get("first_stored_at_ms") is not None]
    last = [row["last_stored_at_ms"] for row in rows if row.get("last_stored_at_ms") is not None]
    return f"{text}, stored {span_text(min(first), max(last))}" if first and last else text


def _answer_reasons(report: Mapping[str, Any]) -> Answer | None:
    if report["plan_digest"] is None:
        return None
    words = words_of(report["broker"])
    lines = [
        Line(
            cause_words(trigger["cause"], words)
            + (f": {trigger['detail']}" if trigger["cause"] != "manual" else "")
            + ("; age was ignored" if trigger["urgency"] == "forced" else "")
        )
        for trigger in report["triggers"]
    ] or [Line("No cause for a deletion was present")]
    if reason := report["request"].get("reason"):
        lines.append(Line(f"The reason given: {reason}"))
    if (waiver := report["waiver"]) is not None:
        waived = f"{waiver['person']} allowed the plan without a proof ({time_text(waiver['at_ms'])})"
        lines.append(Line(f"{waived}: {waiver['reason']}"))
    if report["approval"]:
        lines.append(Line(report["approval"]))
    lines += (Line(text) for text in _reasons(report))
    return Answer("Why", tuple(lines), lines[0].text)


def _reasons(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield each reason with its number of segments. Reasons of deletions come first."""
    counts = Counter((row["fate"] == "kept", str(row["reason"])) for row in report["segments"])
    for (kept, reason), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        leaves = "would be deleted" if is_dry_run(report) else "is not kept" if count == 1 else "are not kept"
        verb = ("stays" if count == 1 else "stay") if kept else leaves
        yield f"{count_text(count, 'segment')} {verb}: {reason_words(reason)}"


def _answer_place(report: Mapping[str, Any]) -> Answer | None:
    deleted = with_fate(report, "deleted")
    archived = report["archived"]
    if not archived and not deleted:
        return None
    lines, places = [], []
    for lake in dict.fromkeys(row["lake"] for row in archived):
        rows = [row for row in archived if row["lake"] == lake]
        proven = [row["proven_at_ms"] for row in rows]
        place = f"in the lake {lake}, proven byte for byte {span_text(min(proven), max(proven))}"
        places.append(place)
        lines.append(Line(f"{count_text(len(rows), 'segment')} {place}"))
    slots = {(row["log"], row["base_offset"]) for row in archived}
    copied = [row for row in deleted if (row["log"], row["base_offset"]) in slots]
    if copied:
        lines.append(Line("To restore identical files:", _restore_command(report, copied)))
    bare = [row for row in deleted if (row["log"], row["base_offset"]) not in slots]
    if bare:
        verb, is_off = "was" if len(bare) == 1 else "were", report["archive_mode"] == "off"
        reason = "the policy is archive: off" if is_off else "no lake is known to have a copy"
        lines.append(Line(f"{amount(bare)} {verb} deleted without a copy: {reason}"))
    if is_set_aside(report) and report["quarantine"]["state"] != "undo-ended":
        until = time_text(report["quarantine"]["until_ms"])
        before = ", before its broker starts" if sets_aside_until_start(report["broker"]) else ""
        text = f"The files stay in quarantine until {until}. To undo the run{before}:"
        lake = ("--lake", report["lake_directory"])
        words = ("storage-engine", "undo", report["run_key"], report["root"], *lake)
        lines.append(Line(text, shlex.join(map(str, words))))
    short = "; ".join(places) if not bare else "only a part is in a lake" if places else "in no lake"
    question = "Where it is now" if deleted else "In the lake already"
    return Answer(question, tuple(lines), short, "warn" if bare else "")


def _restore_command(report: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    words = ["storage-engine", "restore", "--lake", str(report["lake_directory"]), "--to", "DIRECTORY"]
    words += ["--store-id", str(report["store_id"]), "--lineage", str(report["lineage"])]
    if len({row["log"] for row in rows}) == 1:
        offsets = sorted(row["base_offset"] for row in rows)
        words += ["--log", str(rows[0]["log"]), "--from-offset", str(offsets[0])]
        # The end offset is behind the last segment's first byte, and whole segments are restored.
        words += ["--to-offset", str(offsets[-1] + 1)]
    return shlex.join(words)


def _answer_readers(report: Mapping[str, Any]) -> Answer | None:
    would = not with_fate(report, "deleted")
    if not with_fate(report, "deleted", "pending"):
        return None
    question = "Who would miss messages" if would else "Who missed messages"
    unchecked: dict[str, Any] = {
        "rows": (),
        "error": "the release that wrote this report did not measure consumers' losses",
        "more": 0,
    }
    unread = report["unread"] or unchecked
    rows = unread["rows"]
    shielded = [Line(line) for line in report["unread_lines"] if _SHIELD in line]
    if report["lag_policy"] == "ignore":
        return Answer(question, (Line("Nobody was asked: lag_policy is ignore"),), "not asked")
    if error := unread["error"]:
        return Answer(question, (Line(f"Not known: {error}"), *shielded), "not known", "warn")
    if not rows and not shielded and (notices := unread.get("notices")):
        unknown = tuple(Line(f"No known group: {notice}") for notice in notices)
        return Answer(question, unknown, "nobody known", "warn")
    if not rows and not shielded:
        done = "has read the segments to delete" if would else "had read the deleted segments"
        return Answer(question, (Line(f"Nobody: every group {done}"),), "nobody")
    commands = [line.rpartition(_COMMAND)[2] for line in report["unread_lines"] if _COMMAND in line]
    listed = rows[: max(len(commands), 10)]
    unit = words_of(report["broker"]).queue
    lines = [
        Line(_loss_text(row, unit), commands[i] if i < len(commands) else "") for i, row in enumerate(listed)
    ]
    if more := len(rows) - len(listed) + unread["more"]:
        lines.append(Line(f"Listed only in report.json: {more:,} more"))
    lines += shielded
    groups = len({row["group"] for row in rows})
    short = f"{count_text(groups, 'group')}, {unread_count(unread)} unread"
    return Answer(question, tuple(lines), short, "warn")


def _loss_text(row: Mapping[str, Any], unit: str) -> str:
    """Return a text about one group's unread messages of one topic.

    :param unit: the word for a part of a topic, such as queue.
    """
    group, topic = shorten(str(row["group"]), NAME_WIDTH), shorten(str(row["topic"]), NAME_WIDTH)
    queues = count_text(row["queues"], unit)
    since = f", stored from {time_text(row['from_ms'])} on" if row["from_ms"] is not None else ""
    if row["messages"] is None:
        return f"{group} may need any message in {queues} of {topic}{since}: its position is unknown"
    many = "message" if row["messages"] == 1 else "messages"
    return f"{group}: {row['messages']:,} unread {many} of {topic} in {queues}{since}"


def _answer_cost(report: Mapping[str, Any]) -> Answer | None:
    lines = []
    total_ms = report["finished_at_ms"] and report["finished_at_ms"] - report["began_at_ms"]
    steps = [
        f"{STEPS.get(step['step'], step['step'])} {took_text(step['took_ms'])}"
        for step in report["steps"]
        if step["took_ms"] is not None
    ]
    if total_ms or steps:
        took = f"{took_text(total_ms)} in all" if total_ms else "So far"
        lines.append(Line(f"{took}: {', '.join(steps)}" if steps else took))
    if rows := [row for row in report["archived"] if row["by_this_run"]]:
        files = {row["data_file"]: row["data_file_bytes"] for row in rows}
        read, written = sum(row["size_bytes"] for row in rows), sum(files.values())
        percent = f" ({written * 100 // read} %)" if read else ""
        lines.append(
            Line(f"{bytes_text(read)} read from disk, {bytes_text(written)} written to the lake{percent}")
        )
    if freed := freed_bytes(report):
        lines.append(Line(f"{bytes_text(freed)} freed on disk"))
    return Answer("What it cost", tuple(lines), took_text(total_ms) or "not known yet") if lines else None


def _answer_checks(report: Mapping[str, Any]) -> Answer | None:
    validation = report["validation"]
    if validation is None:
        nothing = Answer("Checked after it", (Line("Not checked"),), "not checked")
        return nothing if with_fate(report, "deleted") else None
    passed = sum(check["status"] == "OK" for check in validation["checks"])
    worst = worst_status(validation)
    tone = {"OK": "ok", "WARNING": "warn", "FAILURE": "bad"}[worst]
    text = f"{passed} of {len(validation['checks'])} checks passed"
    lost = [row for row in validation["ranges"] if row["where"] == "LOST"]
    claim = "store and lake together have every byte once" if worst == "OK" and not lost else ""
    if claim and (parts := gone_by_rules({row["where"] for row in validation["ranges"]})):
        claim += f", except for {parts}"
    return Answer("Checked after it", (Line(f"{text}{'; ' if claim else ''}{claim}"),), text, tone)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that needs a person's action or attention.

    :param tone: bad or warn.
    :param what: the expected and the found state.
    :param remedy: "" if ``what`` contains the remedy.
    """

    title: str
    tone: str
    what: str
    remedy: str


def problems(report: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return the problems that need a person, the worst first."""
    words = words_of(report["broker"])
    rows = [
        Problem("A lake can't be used in its present state", "bad", why, "") for why in report["wrong_lakes"]
    ]
    rows += [*_find_refused(report, words), *_errors(report, words)]
    rows += [*broken_checks(report["validation"], words), *_open(report)]
    rows += (Problem("Alarm", "warn", alarm, "") for alarm in report["alarms"])
    return tuple(sorted(rows, key=lambda problem: problem.tone != "bad"))


def broken_checks(validation: Mapping[str, Any] | None, words: BrokerWords) -> Iterator[Problem]:
    """Yield the checks that failed or have a warning.

    :param validation: the validation as JSON; None without a validation.
    """
    for check in validation["checks"] if validation else ():
        if check["status"] == "OK":
            continue
        broken = f"{check['unexpected_count']:,} of {check['checked_count']:,} don't follow this rule"
        example = f": {check['examples'][0]}" if check["examples"] else ""
        title = f"A rule is broken: {check['description'] or check['expectation']}"
        tone = "bad" if check["status"] == "FAILURE" else "warn"
        yield Problem(title, tone, f"{broken}{example}", check_advice(check["expectation"], words))


def _find_refused(report: Mapping[str, Any], words: BrokerWords) -> Iterator[Problem]:
    for log in report["refused"]:
        is_unnamed = log["remedy"] == "Mend what it names."
        remedy = error_advice(log["error"], words) if is_unnamed else log["remedy"]
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
        again = f"Start the run again with the run key {report['run_key']}, or clear its task in Airflow."
        yield Problem("The run has not finished", "warn", "Some steps are still to be done.", again)
    if report["crashed"]:
        text = "The store can be read, but must not be changed."
        yield Problem("The broker did not stop cleanly", "warn", text, reason_advice("store-crashed"))
    for reason in dict.fromkeys(row["reason"] for row in report["segments"] if row["fate"] == "kept"):
        if reason in ("refused", "store-crashed") or not reason_advice(reason):
            continue
        rows = [row for row in report["segments"] if row["fate"] == "kept" and row["reason"] == reason]
        title = f"{count_text(len(rows), 'segment')} can't be deleted: {reason_words(reason)}"
        yield Problem(title, "warn", rows[0]["detail"], reason_advice(reason))
