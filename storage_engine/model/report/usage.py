"""Usage of a store by topic, producer, hour and message size, with advice that follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

HOUR_S = 3600
HOURS_A_DAY = 24
SIZE_CLASSES = ("up to 1 KiB", "up to 16 KiB", "up to 128 KiB", "up to 1 MiB", "above 1 MiB")
SIZE_CLASS_BYTES = (1 << 10, 16 << 10, 128 << 10, 1 << 20)
"""The greatest message size of each size class but the last, which has no limit."""
LARGE_SHARE = 0.25
"""Least share of all bytes with which a topic decides how long all other topics can be kept."""
QUIET_SHARE = 0.25
"""Share of the span, at its end. A topic without a message in that part has ended, or pauses."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Messages of one topic, host, hour or size class; with ``is_rest``, of all without their own row."""

    name: str
    messages: int
    size_bytes: int
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class TopicUsage:
    """Bytes of a topic, and how much the topic shortens the retention of all other topics.

    :param share: the topic's share of all bytes in the span, 0 to 1.
    :param cost_hours_a_day: how many hours longer one day's disk space would last without the topic; None if
        no other topic has bytes.
    :param advice: a better policy for the topic, as a clause; "" if there is none.
    """

    name: str
    messages: int
    size_bytes: int
    share: float
    cost_hours_a_day: float | None
    advice: str


@dataclass(frozen=True, slots=True)
class QuietHour:
    """The hour of the day with the fewest bytes.

    :param hour: hour of the day, in ``time_zone``.
    :param share: the hour's share of a mean day's bytes, 0 to 1.
    :param days: number of whole days in the span.
    """

    hour: int
    share: float
    days: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class DeletionHours:
    """The hours at which a broker deletes by age, with the broker's own name of that setting."""

    setting: str
    hours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HourAdvice:
    """A finding on the hours at which a broker deletes. ``advice`` is "" if nothing has to be changed."""

    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Usage in the span. The largest topics and hosts have their own rows; all others share one row.

    :param first_hour: hour since the epoch of the first counted message; None if there was no message.
    :param quiet: the quiet hour; None if the span has no whole day.
    """

    first_hour: int | None
    last_hour: int | None
    topics: tuple[TopicUsage, ...]
    hosts: tuple[Usage, ...]
    size_classes: tuple[Usage, ...]
    quiet: QuietHour | None
    advice: HourAdvice | None
    usage_path: str

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.size_classes)

    @property
    def messages(self) -> int:
        return sum(row.messages for row in self.size_classes)


def hour_means(bytes_by_hour: Mapping[int, int], zone: ZoneInfo) -> tuple[tuple[float, ...], int] | None:
    """Return the mean bytes of each hour of the day, and the number of whole days. None if there is no whole
    day.

    The first and the last hour don't count, because only a part of each may have been archived.

    :param bytes_by_hour: bytes by the hour since the epoch. Hours without bytes may be missing.
    """
    if not bytes_by_hour:
        return None
    hours = range(min(bytes_by_hour) + 1, max(bytes_by_hour))
    sums, counts = [0] * HOURS_A_DAY, [0] * HOURS_A_DAY
    for hour in hours:
        of_day = datetime.fromtimestamp(hour * HOUR_S, UTC).astimezone(zone).hour
        sums[of_day] += bytes_by_hour.get(hour, 0)
        counts[of_day] += 1
    if not min(counts):
        return None
    means = tuple(total / count for total, count in zip(sums, counts, strict=True))
    return means, len(hours) // HOURS_A_DAY


def quiet_hour(bytes_by_hour: Mapping[int, int], time_zone: str) -> QuietHour | None:
    """Return the quiet hour of the day; None if the span has no whole day, or no bytes in full hours."""
    hourly = hour_means(bytes_by_hour, ZoneInfo(time_zone))
    if hourly is None or not sum(hourly[0]):
        return None
    means, days = hourly
    hour = min(range(HOURS_A_DAY), key=lambda hour: means[hour])
    return QuietHour(hour, means[hour] / sum(means), days, time_zone)


def hour_advice(quiet: QuietHour | None, deletion: DeletionHours | None) -> HourAdvice | None:
    """Return a finding that compares the hours of deletion with the quiet hour. None without a quiet hour.

    :param deletion: None if the broker deletes at any hour.
    """
    if quiet is None:
        return None
    days = f"{quiet.days} days" if quiet.days != 1 else "1 day"
    text = (
        f"the quiet hour of the day is {quiet.hour:02d} ({quiet.time_zone}): {100 * quiet.share:.1f} % of a "
        f"day's bytes, over {days} in the lake"
    )
    if deletion is None or deletion.hours == (quiet.hour,):
        return HourAdvice(text)
    hours = ";".join(f"{hour:02d}" for hour in deletion.hours)
    return HourAdvice(f"{text}; {deletion.setting} is {hours}", f"set {deletion.setting} to {quiet.hour:02d}")


def topic_usages(
    topics: Sequence[Usage], last_hours: Mapping[str, int], first_hour: int, last_hour: int
) -> tuple[TopicUsage, ...]:
    """Return topics, the largest first, with the hours by which each shortens the retention of the others.

    :param last_hours: for each topic, the hour since the epoch of its last message.
    :param first_hour: first hour of the span, in hours since the epoch.
    :param last_hour: last hour of the span, likewise.
    """
    total = sum(topic.size_bytes for topic in topics)
    others = next((topic for topic in topics if topic.is_rest), None)
    quiet_from = last_hour - int((last_hour - first_hour) * QUIET_SHARE)

    def make(topic: Usage) -> TopicUsage:
        share = topic.size_bytes / total if total else 0.0
        if topic is others:
            return TopicUsage(topic.name, topic.messages, topic.size_bytes, share, None, "")
        cost = HOURS_A_DAY * share / (1 - share) if topic.size_bytes < total else None
        advice = ""
        if last_hours.get(topic.name, last_hour) < quiet_from:
            day = datetime.fromtimestamp(last_hours[topic.name] * HOUR_S, UTC).date()
            advice = f"no message since {day}: where it has ended, delete the topic"
        elif share >= LARGE_SHARE and cost is not None:
            advice = (
                "decides how long all other topics are kept: give it its own, shorter retention or its own "
                "store"
            )
        return TopicUsage(topic.name, topic.messages, topic.size_bytes, share, cost, advice)

    return tuple(make(topic) for topic in sorted(topics, key=lambda topic: (-topic.size_bytes, topic.name)))


def largest(usages: Iterable[Usage], most: int) -> tuple[Usage, ...]:
    """Return the largest usages. All other usages become one further usage, named "others"."""
    ordered = sorted(usages, key=lambda usage: (-usage.size_bytes, usage.name))
    rest = ordered[most:]
    if not rest:
        return tuple(ordered)
    others = Usage("others", sum(u.messages for u in rest), sum(u.size_bytes for u in rest), is_rest=True)
    return (*ordered[:most], others)
