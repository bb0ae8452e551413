"""Permission to delete bytes without a copy, by archive rules. Pure; an unknown state never permits it.

Archiving asks for this permission. The gate asks again before the deletion.

A deletion is permitted only if every lake of the store has a rule in force for it. The store's journal must
have recorded each of these rules, under its SHA-256, at least 24 hours ago. No lake may have had a hold on
the topic within these 24 hours. The broker's own topics are always archived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_engine.brokers import find_broker
from storage_engine.core.clock import DAY_MS
from storage_engine.model.keep.acts import not_archived_text
from storage_engine.model.keep.keep_rules import ArchiveRule, Hold, Stream, archive_rule_for, matches
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store import Segment

WAIT_MS = DAY_MS
"""How long a rule must have been in the journal before it permits a deletion."""


def permitting_rule(
    stream: Stream, lakes: Sequence[Sequence[ArchiveRule] | None], recorded_ms: Mapping[str, int], now_ms: int
) -> ArchiveRule | None:
    """Return the first lake's rule by which a stream's messages may be deleted without a copy.

    Return None unless every lake has such a rule that is in force and has been in the journal for
    :data:`WAIT_MS`.

    :param lakes: for each lake of the store, its archive rules in force; None if they aren't known.
    :param recorded_ms: when the store's journal recorded each rule, by the SHA-256 of the rule's act.
    :param now_ms: milliseconds since the epoch, by a trusted clock.
    """
    if not lakes or not stream.topic or stream.is_system:
        return None
    matches: list[ArchiveRule] = []
    for rules in lakes:
        rule = None if rules is None else archive_rule_for(rules, stream)
        if rule is None or rule.archives or rule.rule_id not in recorded_ms:
            return None
        # The later time counts: that of the act by the lake's clock, or of its record in the journal.
        if now_ms - max(recorded_ms[rule.rule_id], rule.at_ms) < WAIT_MS:
            return None
        matches.append(rule)
    return matches[0]


@dataclass(frozen=True, slots=True)
class ArchivePermits:
    """The archive rules of a store's lakes and journal at one moment.

    :param store_names: all names that the store ever had, the newest last.
    :param lakes: as in :func:`permitting_rule`; likewise ``recorded_ms`` and ``now_ms``.
    :param holds: holds of all of the store's lakes, also those that were lifted within :data:`WAIT_MS`.
    :param there: topics whose rows the lake has already. No archive rule leaves them out.
    """

    store_id: str = ""
    store_names: tuple[str, ...] = ()
    broker: str = ""
    lakes: tuple[tuple[ArchiveRule, ...] | None, ...] = ()
    recorded_ms: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0
    holds: tuple[Hold, ...] = ()
    there: tuple[str, ...] = ()

    def rule_of(self, log: str, topic: str) -> ArchiveRule | None:
        """Return the rule by which a log's messages of a topic may be deleted without a copy, or None."""
        if not self.lakes or topic in self.there:
            return None
        is_system = find_broker(self.broker).topics.is_system(topic)
        stream = Stream(self.store_id, self.store_names, log, topic, is_system)
        if any(hold.covers(stream) for hold in self.holds):
            return None
        return permitting_rule(stream, self.lakes, self.recorded_ms, self.now_ms)

    def may_lack(self, topic: str) -> bool:
        """Return whether a recorded rule leaves out messages of a topic, in any log."""
        return any(
            rule.rule_id in self.recorded_ms and not rule.archives and matches(rule.scope.topic, topic)
            for rule in (self.lakes[0] if self.lakes else None) or ()
        )

    def clause_of_log(self, log: str) -> str:
        """Return a clause that names the rule by which a log isn't archived, or "" if it is archived."""
        topic = find_broker(self.broker).topics.of_log(log) if self.lakes else None
        rule = None if topic is None else self.rule_of(log, topic)
        return "" if rule is None else not_archived_text(rule)

    def unarchived(self, segments: Sequence[Segment]) -> dict[str, str]:
        """Return the segments' logs that aren't archived, each with the clause of its rule."""
        logs = dict.fromkeys(segment.log for segment in segments)
        return {log: clause for log in logs if (clause := self.clause_of_log(log))}

    @property
    def old_rules(self) -> tuple[ArchiveRule, ...]:
        """Return the rules old enough to permit deletions. Other rules or a hold may forbid a deletion."""
        names = (self.store_id, *self.store_names[-1:])
        return tuple(
            rule
            for rule in (self.lakes[0] if self.lakes else None) or ()
            if not rule.archives
            and any(matches(rule.scope.store, name) for name in names)
            and rule.rule_id in self.recorded_ms
            and self.now_ms - max(self.recorded_ms[rule.rule_id], rule.at_ms) >= WAIT_MS
        )

    @property
    def of_rows(self) -> ArchivePermits | None:
        """Return these rules, or None if they can't leave out single topics of this broker's segments."""
        return self if self.lakes and leaves_out_rows(self.broker) else None

    def beside(self, receipt: Receipt) -> ArchivePermits | None:
        """Return the rules for archiving a receipt's segment again, or None to archive it with all rows.

        A topic with rows in the receipt's copy is archived again, even if the receipt isn't sound.
        """
        return None if receipt.is_whole else replace(self, there=tuple(sorted(receipt.kept_streams)))

    def clause_of_receipt(self, receipt: Receipt) -> str:
        """Return a clause that names the topics that rules kept out of a segment's copy, and the rules.

        Return "" if there is no such topic, or if :meth:`rule_of` finds no rule for one of these topics.
        """
        if not receipt.lacks_by_rules:
            return ""
        topics_of: dict[str, list[str]] = {}
        for topic in sorted(receipt.gone_streams):
            rule = self.rule_of(receipt.log, topic)
            if rule is None:
                return ""
            topics_of.setdefault(not_archived_text(rule), []).append(topic)
        return "; ".join(f"{named_in_short(topics)} {text}" for text, topics in topics_of.items())


def leaves_out_rows(broker: str) -> bool:
    """Return whether segments of a kind of broker have several topics, some of which may be left out."""
    kind = find_broker(broker)
    return not kind.topics.are_logs and bool(kind.codec.columns.streams)


def may_leave_out(broker: str) -> bool:
    """Return whether archive rules can leave out topics of a kind of broker."""
    return find_broker(broker).topics.are_logs or leaves_out_rows(broker)


NO_PERMITS = ArchivePermits()
