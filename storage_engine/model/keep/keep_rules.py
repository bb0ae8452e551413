"""Rules of how long a lake keeps messages, holds, and when messages may leave by every policy. Pure.

What is not known keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise

from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import printable
from storage_engine.exceptions import BadInputError

FOREVER = "forever"
DAYS_OF_YEAR = 366
"""Days of a year, so that no calendar year is cut short."""

_KEEP = re.compile(r"(0|[1-9]\d{0,4}) (day|year)s?")
_MOST_DAYS = 100 * DAYS_OF_YEAR
_MOST_CHARACTERS = 255
_WILDCARDS = "*?"


@dataclass(frozen=True, slots=True)
class Stream:
    """The messages of one topic in one log of a store.

    :param store_names: names that people have given the store, the newest last; (): it has none.
    :param topic: "": rows without a topic, for which only rules for every topic are.
    :param is_system: the topic is the broker's own.
    """

    store_id: str
    store_names: tuple[str, ...]
    log: str
    topic: str
    is_system: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """Patterns of names: ``*`` stands for any characters, ``?`` for one.

    :param store: of its id or its name.
    """

    topic: str = "*"
    log: str = "*"
    store: str = "*"

    def __post_init__(self) -> None:
        for pattern in (self.topic, self.log, self.store):
            if not 0 < len(pattern) <= _MOST_CHARACTERS or pattern != printable(pattern).strip():
                raise BadInputError(
                    f"pattern: expected 1 to {_MOST_CHARACTERS} characters that can be printed, without "
                    f"blanks around them, found {pattern!r}. Nothing was changed."
                )

    @property
    def text(self) -> str:
        """Return the patterns in words, without those that match everything."""
        patterns = (("topic", self.topic), ("log", self.log), ("store", self.store))
        return ", ".join(f"{name} {pattern}" for name, pattern in patterns if pattern != "*") or "everything"

    @property
    def specificity(self) -> tuple[tuple[bool, int], ...]:
        """Return a key that is greater the more specific the patterns are: topic first, then log, then
        store.
        """
        return tuple(map(_specificity, (self.topic, self.log, self.store)))

    def applies_to(self, stream: Stream) -> bool:
        """Return whether a rule for these patterns applies to a stream.

        Wildcards match no topic of the broker's own; ``*`` matches what has no topic. A store is matched by
        its newest name.
        """
        if stream.is_system and self.topic != stream.topic:
            return False
        names = (stream.store_id, *stream.store_names[-1:])
        return (
            matches(self.topic, stream.topic)
            and matches(self.log, stream.log)
            and any(matches(self.store, name) for name in names)
        )


@dataclass(frozen=True, slots=True)
class KeepRule:
    """:param keep: ``forever``, or days or years since the newest message, such as ``30 days``."""

    scope: Scope
    keep: str

    def __post_init__(self) -> None:
        keep_days(self.keep)

    @property
    def days(self) -> int | None:
        """Return for how many days it keeps; None: for ever."""
        return keep_days(self.keep)

    def applies_to(self, stream: Stream) -> bool:
        """Return whether it says how long a stream is kept."""
        return self.scope.applies_to(stream)


@dataclass(frozen=True, slots=True)
class ArchiveRule:
    """A person's word on whether messages enter the lake.

    :param rule_id: SHA-256 of the act that records it; "": it is no act yet.
    :param archives: they do, as without a rule.
    """

    rule_id: str
    scope: Scope
    archives: bool
    person: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A person's word that nothing is deleted, whatever the rules say.

    :param hold_id: SHA-256 of the act that records it.
    """

    hold_id: str
    scope: Scope
    reason: str
    person: str
    at_ms: int

    def covers(self, stream: Stream) -> bool:
        """Return whether a stream is held. The wildcards of a hold match the broker's own topics, too.

        A store is matched by each name that it ever had, and rows without a topic are held with their log.
        """
        return (
            (not stream.topic or matches(self.scope.topic, stream.topic))
            and matches(self.scope.log, stream.log)
            and self.covers_store(stream.store_id, stream.store_names)
        )

    def covers_store(self, store_id: str, names: Iterable[str]) -> bool:
        """Return whether something of a store is held."""
        return any(matches(self.scope.store, name) for name in (store_id, *names))


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, whose only wildcards are ``*`` and ``?``."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def keep_days(keep: str) -> int | None:
    """Return for how many days a rule keeps; None: for ever.

    :raises BadInputError: it is none of ``forever``, ``N days``, ``N years``, or too long.
    """
    if keep == FOREVER:
        return None
    span = _KEEP.fullmatch(keep)
    days = -1 if span is None else int(span[1]) * (DAYS_OF_YEAR if span[2] == "year" else 1)
    if not 0 <= days <= _MOST_DAYS:
        raise BadInputError(
            f"keep: expected {FOREVER}, a number of days such as '30 days', or of years such as '7 years', "
            f"100 years at most, found {keep!r}. Nothing was changed."
        )
    return days


def rule_for(rules: Iterable[KeepRule], stream: Stream) -> KeepRule | None:
    """Return the most specific of the rules that apply to a stream, of two alike the one that keeps longer.

    :return: None: none applies, so that the stream is kept for ever.
    """
    applying = [rule for rule in rules if rule.applies_to(stream)]
    return max(applying, key=lambda rule: (rule.scope.specificity, _longest(rule)), default=None)


def archive_rule_for(rules: Iterable[ArchiveRule], stream: Stream) -> ArchiveRule | None:
    """Return the most specific of the rules that apply to a stream, of two alike the one that archives.

    One that archives applies to a store by each name that it ever had: whoever renames it ends no exception.

    :return: None: none applies, so that the stream is archived.
    """
    by_name = [replace(stream, store_names=(name,)) for name in stream.store_names]
    applying = [
        rule
        for rule in rules
        if rule.scope.applies_to(stream) or (rule.archives and any(map(rule.scope.applies_to, by_name)))
    ]
    return max(applying, key=lambda rule: (rule.scope.specificity, rule.archives), default=None)


def with_rule(rules: Sequence[KeepRule], scope: Scope, keep: str | None) -> tuple[KeepRule, ...]:
    """Return rules with another one for a scope.

    :param keep: None: with none for it.
    """
    others = tuple(rule for rule in rules if rule.scope != scope)
    return others if keep is None else (*others, KeepRule(scope, keep))


def _longest(rule: KeepRule) -> float:
    return float("inf") if rule.days is None else rule.days


def _specificity(pattern: str) -> tuple[bool, int]:
    literal = [character for character in pattern if character not in _WILDCARDS]
    return len(literal) == len(pattern), len(literal)


GRACE_MS = DAY_MS
"""Time after a stricter policy in which nothing leaves that the policy before it would have kept."""


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """A lake's keep rules from one act until the next.

    :param version: SHA-256 of the act that it begins with; "": there was none yet.
    :param since_ms: when that was, by the lake's clock; never before the policy in front of it.
    :param rules: without one everything is kept for ever.
    :param archive_rules: without one everything is archived.
    """

    version: str
    since_ms: int
    rules: tuple[KeepRule, ...] = ()
    holds: tuple[Hold, ...] = ()
    archive_rules: tuple[ArchiveRule, ...] = ()

    def holds_of(self, stream: Stream) -> tuple[Hold, ...]:
        """Return the holds that cover a stream."""
        return tuple(hold for hold in self.holds if hold.covers(stream))

    def due_ms(self, stream: Stream, newest_ms: int) -> int | None:
        """Return when a stream is past, in milliseconds since the epoch; None: never by this policy.

        :param newest_ms: when its newest message was stored, by :func:`age_begins_ms`.
        """
        rule = rule_for(self.rules, stream)
        if rule is None or rule.days is None or self.holds_of(stream):
            return None
        return newest_ms + rule.days * DAY_MS


def holds_since(policies: Sequence[KeepPolicy], since_ms: int) -> tuple[Hold, ...]:
    """Return the holds that are in force, or were after some moment, by policies in their order."""
    ended_ms = (*(policy.since_ms for policy in policies[1:]), None)
    return tuple(
        hold
        for policy, end_ms in zip(policies, ended_ms, strict=False)
        if end_ms is None or end_ms > since_ms
        for hold in policy.holds
    )


NO_POLICY = KeepPolicy("", 0)
"""Policy of a lake before its first act: it keeps everything for ever."""


def age_begins_ms(
    *, broker_sets_times: bool, last_ms: int | None, first_proven_at_ms: int | None
) -> int | None:
    """Return from when a stream's age counts, in milliseconds since the epoch; None: that isn't known.

    A producer of Kafka may write any timestamp. So the age counts from the later of the timestamp and the
    time when the lake first proved the message, and a timestamp above the proof's counts as that: which is
    always the time of that proof.

    :param broker_sets_times: the broker itself writes when it stored a message.
    :param last_ms: that time of the newest message.
    :param first_proven_at_ms: of the segment with it.
    """
    return last_ms if broker_sets_times else first_proven_at_ms


def goes_at_ms(policies: Sequence[KeepPolicy], stream: Stream, newest_ms: int | None) -> int | None:
    """Return from when a stream may leave the lake, if the policy stays as it is; None: never.

    At that moment every policy of the 24 hours before it would have taken the stream.

    :param policies: every policy that the lake had, the one in force last.
    :param newest_ms: as of :meth:`KeepPolicy.due_ms`; None: not known.
    """
    if newest_ms is None or not policies:
        return None
    goes_ms = policies[-1].due_ms(stream, newest_ms)
    if goes_ms is None:
        return None
    for policy, following in pairwise((NO_POLICY, *policies)):
        due_ms, over_ms = policy.due_ms(stream, newest_ms), following.since_ms + GRACE_MS
        goes_ms = max(goes_ms, over_ms if due_ms is None else min(due_ms, over_ms))
    return goes_ms
