"""Rules on how long a lake keeps messages, and holds. Pure. Anything unknown keeps messages."""

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
"""Days that a rule counts for a year: no calendar year has more."""

_KEEP = re.compile(r"(0|[1-9]\d{0,4}) (day|year)s?")
_MOST_DAYS = 100 * DAYS_OF_YEAR
_MOST_CHARACTERS = 255
_WILDCARDS = "*?"


@dataclass(frozen=True, slots=True)
class Stream:
    """The messages of one topic in one log of a store.

    :param store_names: names that people have given the store, the newest last; () if the store has no name.
    :param topic: the topic's name; "" for rows without a topic. Only rules for all topics apply to them.
    :param is_system: whether the topic is the broker's own.
    """

    store_id: str
    store_names: tuple[str, ...]
    log: str
    topic: str
    is_system: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """Patterns of names: ``*`` matches any characters, ``?`` one character.

    :param store: pattern of the store's id or name.
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
        """Return the patterns in words. Patterns that match everything are left out."""
        patterns = (("topic", self.topic), ("log", self.log), ("store", self.store))
        return ", ".join(f"{name} {pattern}" for name, pattern in patterns if pattern != "*") or "everything"

    @property
    def specificity(self) -> tuple[tuple[bool, int], ...]:
        """Return a sort key, greater for more specific patterns: by topic first, then log, then store."""
        return tuple(map(_specificity, (self.topic, self.log, self.store)))

    def applies_to(self, stream: Stream) -> bool:
        """Return whether a rule for these patterns applies to a stream.

        Wildcards don't match the broker's own topics. ``*`` also matches rows without a topic. A store is
        matched by its newest name.
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
        """Return the number of days that the rule keeps messages, or None if for ever."""
        return keep_days(self.keep)

    def applies_to(self, stream: Stream) -> bool:
        return self.scope.applies_to(stream)


@dataclass(frozen=True, slots=True)
class ArchiveRule:
    """A person's decision on whether messages enter the lake.

    :param rule_id: SHA-256 of the act that records the rule; "" if it is not recorded yet.
    :param archives: whether messages enter the lake, as they do without a rule.
    """

    rule_id: str
    scope: Scope
    archives: bool
    person: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A person's decision that nothing of some streams is deleted, whatever the rules say.

    :param hold_id: SHA-256 of the act that records the hold.
    """

    hold_id: str
    scope: Scope
    reason: str
    person: str
    at_ms: int

    def covers(self, stream: Stream) -> bool:
        """Return whether a stream is held. The wildcards of a hold match the broker's own topics, too.

        A store is matched by each name that it ever had. Rows without a topic are held with their log.
        """
        return (
            (not stream.topic or matches(self.scope.topic, stream.topic))
            and matches(self.scope.log, stream.log)
            and self.covers_store(stream.store_id, stream.store_names)
        )

    def covers_store(self, store_id: str, names: Iterable[str]) -> bool:
        """Return whether any part of a store is held."""
        return any(matches(self.scope.store, name) for name in (store_id, *names))


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, whose only wildcards are ``*`` and ``?``."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def keep_days(keep: str) -> int | None:
    """Return the number of days in a rule's ``keep``, or None for ``forever``.

    :raises BadInputError: ``keep`` is neither ``forever`` nor ``N days`` nor ``N years``, or it is too long.
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
    """Return the most specific rule that applies to a stream. Of equal ones, return the one that keeps
    longer. None if no rule applies, so that the stream is kept for ever.
    """
    applying = [rule for rule in rules if rule.applies_to(stream)]

    def rank(rule: KeepRule) -> tuple[tuple[tuple[bool, int], ...], float]:
        return rule.scope.specificity, float("inf") if rule.days is None else rule.days

    return max(applying, key=rank, default=None)


def archive_rule_for(rules: Iterable[ArchiveRule], stream: Stream) -> ArchiveRule | None:
    """Return the most specific rule that applies to a stream. Of equal rules, return one that archives.

    A rule that archives applies by each name that the store ever had, so that it outlasts a renaming. None if
    no rule applies, so that the stream is archived.
    """
    by_name = [replace(stream, store_names=(name,)) for name in stream.store_names]
    applying = [
        rule
        for rule in rules
        if rule.scope.applies_to(stream) or (rule.archives and any(map(rule.scope.applies_to, by_name)))
    ]
    return max(applying, key=lambda rule: (rule.scope.specificity, rule.archives), default=None)


def with_rule(rules: Sequence[KeepRule], scope: Scope, keep: str | None) -> tuple[KeepRule, ...]:
    """Return the rules with a new rule for a scope. A ``keep`` of None removes the scope's rule."""
    others = tuple(rule for rule in rules if rule.scope != scope)
    return others if keep is None else (*others, KeepRule(scope, keep))


def _specificity(pattern: str) -> tuple[bool, int]:
    literal = [character for character in pattern if character not in _WILDCARDS]
    return len(literal) == len(pattern), len(literal)


GRACE_MS = DAY_MS
"""For this long after a policy becomes stricter, everything that the previous policy kept is still kept."""


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """A lake's keep rules from one act until the next.

    :param version: SHA-256 of the act that begins the policy; "" if no act began it.
    :param since_ms: when the policy began, on the lake's clock; never before the previous policy.
    :param rules: the keep rules. A stream without a rule is kept for ever.
    :param archive_rules: the archive rules. A stream without a rule is archived.
    """

    version: str
    since_ms: int
    rules: tuple[KeepRule, ...] = ()
    holds: tuple[Hold, ...] = ()
    archive_rules: tuple[ArchiveRule, ...] = ()

    def holds_of(self, stream: Stream) -> tuple[Hold, ...]:
        return tuple(hold for hold in self.holds if hold.covers(stream))

    def due_ms(self, stream: Stream, newest_ms: int) -> int | None:
        """Return when a stream's retention ends, in ms since the epoch. None if it never does.

        :param newest_ms: when its newest message was stored, by :func:`age_begins_ms`.
        """
        rule = rule_for(self.rules, stream)
        if rule is None or rule.days is None or self.holds_of(stream):
            return None
        return newest_ms + rule.days * DAY_MS


def holds_since(policies: Sequence[KeepPolicy], since_ms: int) -> tuple[Hold, ...]:
    """Return the holds in force now or at some time after a moment. The policies are in order."""
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
    """Return the time from which a stream's age counts, in milliseconds since the epoch. None if not known.
    If the broker sets the times, this is the store time of the newest message. A producer of Kafka may write
    any timestamp. Too old a timestamp would end the retention too early, and a future one too late. So the
    age counts from the lake's first proof of the message.

    :param broker_sets_times: whether the broker itself writes when it stored a message.
    :param last_ms: store time of the newest message.
    :param first_proven_at_ms: when the lake first proved the segment of that message.
    """
    return last_ms if broker_sets_times else first_proven_at_ms


def goes_at_ms(policies: Sequence[KeepPolicy], stream: Stream, newest_ms: int | None) -> int | None:
    """Return the time from which a stream may leave the lake, if the policy isn't changed, or None if never.

    At that time the stream's retention has ended by each policy that was in force in the 24 hours before.

    :param policies: all policies that the lake has had; the last one is in force.
    :param newest_ms: as in :meth:`KeepPolicy.due_ms`; None if not known.
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
