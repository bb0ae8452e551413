"""When messages may leave a lake, by every policy that it had. Pure; what is not known keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.rules import ArchiveRule, Hold, KeepRule, Stream, rule_for

GRACE_MS = DAY_MS
"""For how long after a policy that takes more nothing goes that the policy before it would have kept."""


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a lake keeps from one act until the next.

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
"""Of a lake before its first act: it keeps everything for ever."""


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
