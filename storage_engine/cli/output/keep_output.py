"""What a lake keeps, for a person."""

from __future__ import annotations

from storage_engine.cli.output.output import print_table, say
from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.keep.acts import NO, SHOWN_CHARACTERS, YES
from storage_engine.model.keep.forecast import KeepForecast, TopicForecast
from storage_engine.model.keep.rules import ArchiveRule


def print_forecast(found: KeepForecast) -> None:
    """Print a lake's rules and holds, and what becomes of each topic."""
    if found.rules:
        print_table(
            "Rules",
            ("topic~", "log~", "store~", "keep"),
            ((it.scope.topic, it.scope.log, it.scope.store, it.keep) for it in found.rules),
        )
    else:
        say(f"{found.location}: no rules, everything is kept for ever.")
    if found.archive_rules:
        print_table(
            "Archive",
            ("id", "since", "by", "of", "archive"),
            (
                (_id_text(it.rule_id), time_text(it.at_ms), it.person, it.scope.text, archive_text(it))
                for it in found.archive_rules
            ),
        )
    if found.holds:
        print_table(
            "Holds",
            ("id", "since", "by", "of", "reason"),
            (
                (
                    _id_text(it.hold_id),
                    time_text(it.at_ms),
                    it.person,
                    it.scope.text,
                    it.reason,
                )
                for it in found.holds
            ),
        )
    if found.topics:
        priced = any(it.month_cost is not None for it in found.topics)
        print_table(
            "Topics",
            ("topic~", "store~", "size#", "in the lake#", *(("a month#",) if priced else ()), "keep", "goes"),
            (
                (
                    it.topic or "(no topic)",
                    it.store,
                    bytes_text(it.size_bytes),
                    bytes_text(it.lake_bytes),
                    *((f"{it.month_cost:.4g}",) if it.month_cost is not None else ()),
                    it.keep,
                    _goes(it),
                )
                for it in found.topics
            ),
        )
    if found.uncounted_bytes:
        say(f"Note: {bytes_text(found.uncounted_bytes)} have no topic, or no journal here says which.")


def archive_text(rule: ArchiveRule) -> str:
    """Return whether messages enter the lake, as ``--archive`` takes it."""
    return YES if rule.archives else NO


def _goes(topic: TopicForecast) -> str:
    """Say when how much of a topic goes."""
    if topic.held_by:
        return f"held: {', '.join(map(_id_text, topic.held_by))}"
    if not topic.goes:
        return "never"
    first, last = topic.goes[0], topic.goes[-1]
    text = f"{bytes_text(first.size_bytes)} on {_day_text(first.day)}"
    if len(topic.goes) > 1:
        text += f", the rest on {count_text(len(topic.goes) - 1, 'day')} up to {_day_text(last.day)}"
    return text


def _id_text(hold_id: str) -> str:
    return hold_id[:SHOWN_CHARACTERS] or "new"


def _day_text(day: int) -> str:
    return time_text(day * DAY_MS)[:10]
