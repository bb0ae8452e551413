"""The page of what a lake keeps, by the pure forecast."""

from __future__ import annotations

from dataclasses import replace

from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.expiry_rules import ArchivedStream, KeepForecast, forecast_topics
from storage_engine.model.keep.keep_rules import Hold, KeepPolicy, KeepRule, Scope, Stream
from storage_engine.pages.summary import MOST_DAYS, LakeForecast, keep_page

NOW_MS = 20_000 * DAY_MS
HOLD = Hold("f" * 64, Scope(topic="held*"), "case <7>", "ann", NOW_MS)
POLICY = KeepPolicy(
    "a" * 64, 0, (KeepRule(Scope(), "30 days"), KeepRule(Scope(topic="kept"), "forever")), (HOLD,)
)


def streams(topic: str, days: int, size_bytes: int = 2_000_000_000) -> list[ArchivedStream]:
    """One a day, the last of them now."""
    stream = Stream("8c1d", ("main",), "commitlog", topic, False)
    return [ArchivedStream(stream, size_bytes, size_bytes // 2, NOW_MS - day * DAY_MS) for day in range(days)]


def forecast(*archived: ArchivedStream) -> KeepForecast:
    topics = forecast_topics((POLICY,), archived, NOW_MS)
    return KeepForecast("/lake", POLICY.version, POLICY.rules, POLICY.holds, topics, 0)


SOME = forecast(*streams("orders", 3), *streams("kept", 1), *streams("held-<b>", 1), *streams("", 1))
PAGE = keep_page("main", (LakeForecast(NOW_MS, SOME),), 0.5)


def test_it_says_of_each_topic_what_it_costs_and_when_what_goes() -> None:
    orders = next(row for row in PAGE.split("<tr>") if row.startswith('<td class="break">orders'))
    # 3 times 10⁹ bytes in the lake.
    assert '<td class="num">1.5</td><td>30 days</td><td class="break">everything</td>' in orders
    assert "on 2024-11-01, all of it by 2024-11-03" in orders
    assert "A month" not in keep_page("main", (LakeForecast(NOW_MS, SOME),))


def test_what_is_held_goes_on_no_day_and_what_people_wrote_is_escaped() -> None:
    assert "held-&lt;b&gt;" in PAGE
    assert "case &lt;7&gt;" in PAGE
    days = PAGE.split("<h3>Days</h3>")[1]
    assert days.count("<tr><td>") == 3
    held = replace(SOME, topics=tuple(topic for topic in SOME.topics if topic.held_by))
    assert "<h3>Days</h3>" not in keep_page("main", (LakeForecast(NOW_MS, held),))


def test_days_beyond_the_most_are_counted() -> None:
    page = keep_page("main", (LakeForecast(NOW_MS, forecast(*streams("orders", MOST_DAYS + 7))),))
    first, *_ = forecast(*streams("orders", MOST_DAYS + 7)).topics[0].goes
    # What is past already goes on the first day.
    assert first.size_bytes == 2_000_000_000 * (MOST_DAYS + 7 - 30)
    assert "more, up to" not in page
    ahead = [replace(it, newest_ms=it.newest_ms + 200 * DAY_MS) for it in streams("orders", MOST_DAYS + 7)]
    assert "And on 7 days more, up to" in keep_page("main", (LakeForecast(NOW_MS, forecast(*ahead)),))


def test_without_a_forecast_it_says_what_makes_one() -> None:
    assert "storage-engine lake keep" in keep_page("main", ())
