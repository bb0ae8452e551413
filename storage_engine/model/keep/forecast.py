"""Forecast of the segments that leave a lake by day under today's rules, and of what a month of the rest
costs. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.rules import (
    FOREVER,
    ArchiveRule,
    Hold,
    KeepPolicy,
    KeepRule,
    Stream,
    goes_at_ms,
    rule_for,
)

GB_BYTES = 10**9
"""Object stores bill decimal gigabytes."""


@dataclass(frozen=True, slots=True)
class ArchivedStream:
    """Bytes of one topic in an archived segment.

    :param size_bytes: as the broker stores them.
    :param lake_bytes: its share of the data file.
    :param newest_ms: from when its age counts; by a journal's counts up to a day too late.
    """

    stream: Stream
    size_bytes: int
    lake_bytes: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class GoingBytes:
    """:param day: UTC day, counted from 1970-01-01."""

    day: int
    size_bytes: int
    lake_bytes: int


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """
    :param keep: by the rule that applies; ``forever`` where none does.
    :param rule: the streams that the rule applies to, in words; "": no rule applies.
    :param held_by: ids of the holds that cover it.
    :param goes: from which day on how much may go; the rest never does.
    :param month_cost: cost of the present bytes, by the given price; None: none was given.
    """

    store_id: str
    store: str
    topic: str
    size_bytes: int
    lake_bytes: int
    keep: str
    rule: str
    held_by: tuple[str, ...]
    goes: tuple[GoingBytes, ...]
    month_cost: float | None = None


@dataclass(frozen=True, slots=True)
class KeepForecast:
    """
    :param version: SHA-256 of the act that the policy began with; "": the lake has none, or it is no act yet.
    :param uncounted_bytes: of segments of which no journal says which topics they have.
    """

    location: str
    version: str
    rules: tuple[KeepRule, ...]
    holds: tuple[Hold, ...]
    topics: tuple[TopicForecast, ...]
    uncounted_bytes: int
    archive_rules: tuple[ArchiveRule, ...] = ()


def forecast_topics(
    policies: Sequence[KeepPolicy],
    archived: Iterable[ArchivedStream],
    now_ms: int,
    price: float | None = None,
) -> tuple[TopicForecast, ...]:
    """Return the forecast of each topic of a store, the largest first.

    :param policies: every one that the lake had, the one in force last.
    :param price: of 10⁹ bytes for a month.
    """
    policy = policies[-1] if policies else None
    grouped: dict[tuple[str, str, str, str, str, tuple[str, ...]], list[ArchivedStream]] = defaultdict(list)
    for one in archived:
        stream = one.stream
        rule = rule_for(policy.rules, stream) if policy else None
        held_by = tuple(hold.hold_id for hold in policy.holds_of(stream)) if policy else ()
        name = stream.store_names[-1] if stream.store_names else stream.store_id
        of_rule = (rule.keep, rule.scope.text) if rule else (FOREVER, "")
        grouped[stream.store_id, name, stream.topic, *of_rule, held_by].append(one)
    topics = [
        TopicForecast(
            store_id,
            name,
            topic,
            sum(one.size_bytes for one in streams),
            lake_bytes := sum(one.lake_bytes for one in streams),
            keep,
            rule_text,
            held_by,
            _going(policies, streams, now_ms),
            None if price is None else month_cost(lake_bytes, price),
        )
        for (store_id, name, topic, keep, rule_text, held_by), streams in grouped.items()
    ]
    return tuple(sorted(topics, key=lambda topic: (-topic.size_bytes, topic.store, topic.topic)))


def month_cost(lake_bytes: int, price: float) -> float:
    """Return the cost of bytes for a month.

    :param price: of 10⁹ bytes.
    """
    return lake_bytes / GB_BYTES * price


def _going(
    policies: Sequence[KeepPolicy], streams: Iterable[ArchivedStream], now_ms: int
) -> tuple[GoingBytes, ...]:
    days: dict[int, list[ArchivedStream]] = defaultdict(list)
    for one in streams:
        goes_ms = goes_at_ms(policies, one.stream, one.newest_ms)
        if goes_ms is not None:
            # On the first day at whose beginning it is past.
            days[-(-max(goes_ms, now_ms) // DAY_MS)].append(one)
    return tuple(
        GoingBytes(day, sum(it.size_bytes for it in going), sum(it.lake_bytes for it in going))
        for day, going in sorted(days.items())
    )
