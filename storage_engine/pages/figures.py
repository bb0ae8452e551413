"""Figures that pages read from a report's JSON, and their formats. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from storage_engine.brokers import find_broker
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_words import Aside, BrokerWords
from storage_engine.model.report.validation import Where

STEPS: Mapping[str, str] = {
    "plan": "plan",
    "lag": "measure consumer lag",
    "archive": "archive and prove",
    "archive-sealed": "archive ahead",
    "archive-lag": "measure archive lag",
    "hold": "hold the store",
    "stamp": "stamp the store",
    "release": "delete",
    "dependents": "delete the files that pointed into it",
    "checkpoint": "flush to disk",
    "validate": "check store and lake",
    "retention-report": "count the lake's rows",
    "report": "write the report",
}
"""What a step does, by its stored name."""


def is_dry_run(report: Mapping[str, Any]) -> bool:
    return bool(report["outcome"] == "dry-run")


def with_fate(report: Mapping[str, Any], *fates: str) -> list[Mapping[str, Any]]:
    """Return the report's segments whose ``fate`` is one of these words."""
    return [row for row in report["segments"] if row["fate"] in fates]


def span_text(first_ms: int | None, last_ms: int | None) -> str:
    """Return a span of time as text; "" if its beginning isn't known."""
    first, last = time_text(first_ms), time_text(last_ms)
    return first if first == last or not last else f"{first} to {last}"


def took_text(took_ms: int | None) -> str:
    """Return a duration as text, more precise the shorter it is; "" for None."""
    if took_ms is None:
        return ""
    if took_ms < 1000:
        return f"{took_ms} ms"
    if took_ms < 60_000:
        return f"{took_ms / 1000:.1f} s"
    minutes, seconds = divmod(took_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def worst_status(validation: Mapping[str, Any] | None) -> str:
    """Return the worst verdict in a validation's JSON; OK if there was no validation."""
    parts = validation or {"checks": (), "ranges": ()}
    statuses = {row["status"] for row in (*parts["checks"], *parts["ranges"])}
    return next((status for status in ("FAILURE", "WARNING") if status in statuses), "OK")


def gone_by_rules(places: Collection[str]) -> str:
    """Name the parts that rules kept out of the lake or removed from it; "" if the places show none."""
    texts = {Where.EXPIRED: "expired parts", Where.NOT_ARCHIVED: "parts that a rule keeps out"}
    return " and ".join(text for where, text in texts.items() if where in places)


def amount(segments: Sequence[Mapping[str, Any]]) -> str:
    """Return a number of segments with their size."""
    size = sum(row["size_bytes"] for row in segments)
    return f"{count_text(len(segments), 'segment')} ({bytes_text(size)})"


def is_set_aside(report: Mapping[str, Any]) -> bool:
    """Return whether the deleted files are in a quarantine."""
    aside = report["quarantine"]
    return aside is not None and aside["state"] not in ("emptied", "undone")


def freed_bytes(report: Mapping[str, Any]) -> int:
    """Return the bytes that the run freed on disk, including files that pointed into the log."""
    if is_set_aside(report) or not report["freed_bytes"]:
        return 0
    return int(report["freed_bytes"] + sum(row["facts"]["size_bytes"] for row in report["dependents"]))


def unread_count(unread: Mapping[str, Any]) -> str:
    """Return the number of messages that the groups have not read, as far as it is known.

    :param unread: consumers' losses, as JSON, with at least one row.
    """
    count = sum(row["messages"] or 0 for row in unread["rows"])
    if not count:
        return "an unknown number of messages"
    is_partial = unread["more"] or any(row["messages"] is None for row in unread["rows"])
    return f"{'at least ' if is_partial else ''}{count:,} {'message' if count == 1 else 'messages'}"


def words_of(broker: str) -> BrokerWords:
    """Return the words of a kind of broker. If its package isn't installed, the words fit any broker."""
    try:
        return find_broker(broker).words
    except BadInputError:
        return BrokerWords()


def sets_aside_until_start(broker: str) -> bool:
    """Return whether an undo of the deletion works only before the store's broker starts."""
    try:
        return find_broker(broker).aside is Aside.OUTSIDE
    except BadInputError:
        return False
