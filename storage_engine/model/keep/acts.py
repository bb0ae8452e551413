"""Acts: people's decisions about what a lake keeps, and the removals that follow from them. Each act has the
hash of the act before it. Pure.

An act is never changed. Its name is the SHA-256 of its bytes, so that one changed byte breaks the chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.model.keep.keep_rules import (
    NO_POLICY,
    ArchiveRule,
    Hold,
    KeepPolicy,
    KeepRule,
    Scope,
    with_rule,
)
from storage_engine.model.proof.receipt import NOT_ARCHIVED, SegmentIdentity, StoredFile

SHOWN_CHARACTERS = 12
"""How many digits of an act's SHA-256 people read or type."""


class ActKind(StrEnum):
    """Persisted: never renamed."""

    KEEP = "keep"
    HOLD = "hold"
    LIFT = "lift"
    EXPIRE = "expire"
    UNDO = "undo"
    REMOVED = "removed"
    ARCHIVE = "archive"


YES, NO = "yes", "no"
"""Values of an ``archive``: whether messages enter the lake. Persisted."""

DECIDING = frozenset({ActKind.KEEP, ActKind.HOLD, ActKind.LIFT, ActKind.ARCHIVE})
"""Kinds of acts that begin a new policy."""


@dataclass(frozen=True, slots=True)
class Thinning:
    """The removal of some streams of a segment: a new data file with the rows of the remaining streams
    replaces the segment's own file. Both files are named as in receipts.

    :param streams: names of the removed streams.
    :param file: the file that has the removed rows.
    :param kept: the new file with the kept rows.
    :param row_count: number of kept rows.
    :param message_count: number of messages among the kept rows.
    """

    segment: SegmentIdentity
    streams: tuple[str, ...]
    file: StoredFile
    kept: StoredFile
    row_count: int
    message_count: int


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """:param rules: of a ``keep``: all rules from then on.
    :param scope: of a ``hold``: the held streams; of an ``archive``: the streams that it applies to.
    :param reason: of a ``hold``: why the streams are held.
    :param lifts: of a ``lift``: SHA-256 of the act whose hold ends.
    :param policy: of an ``expire``: SHA-256 of the act that began the applied policy.
    :param segments: of an ``expire``: the segments that leave the lake.
    :param files: data files under their names in receipts. An ``expire`` takes them out of the lake. A
        ``removed`` records that they were deleted for good.
    :param expiry: of an ``undo`` and a ``removed``: SHA-256 of the ``expire`` that it undoes or completes.
    :param thinned: of an ``expire``: the segments that leave in part. ``files`` also has their files.
    :param archive: of an ``archive``: whether messages enter the lake, ``yes`` or ``no``.
    :param replaced: of an ``expire``: older data files that had rows of its segments before ``files`` and
        still exist. They are deleted together with ``files``.
    """

    kind: ActKind
    rules: tuple[KeepRule, ...] = ()
    scope: Scope | None = None
    reason: str = ""
    lifts: str = ""
    policy: str = ""
    segments: tuple[SegmentIdentity, ...] = ()
    files: tuple[StoredFile, ...] = ()
    expiry: str = ""
    thinned: tuple[Thinning, ...] = ()
    archive: str = ""
    replaced: tuple[StoredFile, ...] = ()

    @property
    def taken(self) -> tuple[SegmentIdentity, ...]:
        """Return the segments that leave the lake, whole or in part."""
        return (*self.segments, *(thinned.segment for thinned in self.thinned))

    def __post_init__(self) -> None:
        has_fields = {
            ActKind.HOLD: self.scope is not None and not self.archive,
            ActKind.LIFT: bool(self.lifts),
            ActKind.EXPIRE: bool(self.policy and self.taken),
            ActKind.UNDO: bool(self.expiry and not self.files),
            ActKind.REMOVED: bool(self.expiry and self.files),
            ActKind.ARCHIVE: self.archive in (YES, NO) and self.scope is not None,
        }
        if any((kind is self.kind) != is_there for kind, is_there in has_fields.items()):
            raise BadInputError(f"decision: expected the fields of a {self.kind}, found other fields")


_LATER_FIELDS = ("policy", "segments", "files", "expiry", "thinned", "archive", "replaced")


@dataclass(frozen=True, slots=True)
class Act:
    """One decision, as a file of the lake records it.

    :param number: number of the act in its chain, from 0.
    :param previous: SHA-256 of the act before it; "" for the first act.
    :param lake_id: id of the lake that recorded the act. A copy of a lake has the acts of its original.
    :param host: the person's machine.
    :param at_ms: time of the act on the lake's clock, in ms since the epoch; never before the previous act.
    """

    number: int
    previous: str
    lake_id: str
    person: str
    host: str
    at_ms: int
    decision: KeepDecision

    def encode(self) -> bytes:
        """Return the bytes of the act's file. Fields that newer releases added are left out if empty."""
        fields = to_jsonable(self)
        for name in _LATER_FIELDS:
            if not fields["decision"][name]:
                del fields["decision"][name]
        return json.dumps(fields, indent=1).encode()


@dataclass(frozen=True, slots=True)
class RecordedAct:
    """:param sha256: SHA-256 of the bytes of the act's file, in hex."""

    sha256: str
    act: Act


def sha256_of_act(data: bytes) -> str:
    """Return the name of an act's file by its bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def decode_act(data: bytes, where: str) -> Act:
    """Decode an act from its JSON.

    :raises BadInputError: the text is no act, or a newer release wrote it.
    """
    try:
        return from_jsonable(Act, json.loads(data), where)
    except (ValueError, BadInputError) as error:
        raise BadInputError(f"{where}: expected an act as JSON, found something else ({error})") from error


def order_acts(acts: Mapping[str, Act], named: str) -> tuple[RecordedAct, ...]:
    """Return acts in the order of their chain. An act counts once its file exists, even if it is not yet
    recorded as the newest.

    :param acts: by the SHA-256 of their bytes.
    :param named: the act that was recorded as the newest; "" if no act was recorded. Newer acts may exist.
    :raises ValueError: the acts form no single chain, or the chain lacks the named act. The error has the
        expected and the found act.
    """
    ordered: list[RecordedAct] = []
    following: dict[str, list[str]] = {}
    for sha256, act in sorted(acts.items()):
        following.setdefault(act.previous, []).append(sha256)
    last = ""
    while names := following.pop(last, []):
        if len(names) > 1:
            raise ValueError(f"expected one act after {last or 'the beginning'}, found {' and '.join(names)}")
        last = names[0]
        act = acts[last]
        if act.number != len(ordered) or (ordered and act.at_ms < ordered[-1].act.at_ms):
            raise ValueError(f"expected act {len(ordered)} at its time, found number {act.number} in {last}")
        ordered.append(RecordedAct(last, act))
    if following:
        missing = min(following)
        raise ValueError(f"expected the act {missing}, which {following[missing][0]} follows, found none")
    if named and all(recorded.sha256 != named for recorded in ordered):
        raise ValueError(
            f"expected the act {named}, which was recorded as the newest, found acts up to {last or 'none'}"
        )
    return tuple(ordered)


def policies_of(acts: Sequence[RecordedAct]) -> tuple[KeepPolicy, ...]:
    """Return all policies in their order. Each act that decides what is kept began a policy."""
    policies: list[KeepPolicy] = []
    rules: tuple[KeepRule, ...] = ()
    holds: tuple[Hold, ...] = ()
    archive: tuple[ArchiveRule, ...] = ()
    for recorded in acts:
        act, decision = recorded.act, recorded.act.decision
        if decision.kind not in DECIDING:
            continue
        if decision.kind is ActKind.KEEP:
            rules = decision.rules
        elif decision.kind is ActKind.ARCHIVE and decision.scope is not None:
            archives = decision.archive == YES
            rule = ArchiveRule(recorded.sha256, decision.scope, archives, act.person, act.at_ms)
            archive = (*(old for old in archive if old.scope != decision.scope), rule)
        elif decision.scope is not None:
            holds = (*holds, Hold(recorded.sha256, decision.scope, decision.reason, act.person, act.at_ms))
        else:
            holds = tuple(hold for hold in holds if hold.hold_id != decision.lifts)
        policies.append(KeepPolicy(recorded.sha256, act.at_ms, rules, holds, archive))
    return tuple(policies)


def policy_of(acts: Sequence[RecordedAct]) -> KeepPolicy:
    return (NO_POLICY, *policies_of(acts))[-1]


def not_archived_text(rule: ArchiveRule) -> str:
    """Return a clause on the messages that a rule kept out of the lake."""
    return f"{NOT_ARCHIVED}{rule.rule_id[:SHOWN_CHARACTERS]} of {rule.scope.text}"


def decide_rule(acts: Sequence[RecordedAct], scope: Scope, keep: str | None) -> KeepDecision | None:
    """Return the act that records all rules after a change for one scope. None if nothing would change.

    :param keep: a value of ``KeepRule.keep``; None to leave the scope without a rule of its own.
    """
    before = policy_of(acts).rules
    rules = with_rule(before, scope, keep)
    return None if set(rules) == set(before) else KeepDecision(ActKind.KEEP, rules=rules)


def decide_archive(acts: Sequence[RecordedAct], scope: Scope, *, archives: bool) -> KeepDecision | None:
    """Return the act that records whether messages enter the lake. None if the same rule is in force already.
    Without a rule messages enter the lake.
    """
    in_force = {rule.scope: rule.archives for rule in policy_of(acts).archive_rules}
    if in_force.get(scope) is archives:
        return None
    return KeepDecision(ActKind.ARCHIVE, scope=scope, archive=YES if archives else NO)


def decide_hold(acts: Sequence[RecordedAct], scope: Scope, reason: str) -> KeepDecision | None:
    """Return the act that records a hold; None if the same hold is in force already."""
    if any((hold.scope, hold.reason) == (scope, reason) for hold in policy_of(acts).holds):
        return None
    return KeepDecision(ActKind.HOLD, scope=scope, reason=reason)


def decide_lift(acts: Sequence[RecordedAct], hold_id: str) -> KeepDecision | None:
    """Return the act that ends a hold. None if the hold was lifted before.

    :param hold_id: the first digits of the SHA-256 of the hold's act.
    :raises BadInputError: the id of no hold begins with these digits, or several ids do.
    """
    holds = [
        recorded.sha256
        for recorded in acts
        if hold_id and recorded.act.decision.kind is ActKind.HOLD and recorded.sha256.startswith(hold_id)
    ]
    if len(holds) != 1:
        in_force = ", ".join(hold.hold_id[:SHOWN_CHARACTERS] for hold in policy_of(acts).holds)
        raise BadInputError(
            f"lift: expected the id of a hold ({in_force or 'none is in force'}), found {hold_id!r}: "
            f"{len(holds) or 'no'} ids of holds begin like this. Nothing was changed."
        )
    is_in_force = any(hold.hold_id == holds[0] for hold in policy_of(acts).holds)
    return KeepDecision(ActKind.LIFT, lifts=holds[0]) if is_in_force else None


@dataclass(frozen=True, slots=True)
class RecordedExpiry:
    """Result of an ``expire`` so far.

    :param files: the files that aren't deleted for good yet, with their SHA-256. Replaced files come first,
        since they are deleted first.
    """

    recorded: RecordedAct
    is_undone: bool
    files: tuple[StoredFile, ...]

    @property
    def returning(self) -> tuple[StoredFile, ...]:
        """Return the files that an undo puts back into the lake."""
        return tuple(file for file in self.files if file not in self.recorded.act.decision.replaced)


def expiries_of(acts: Sequence[RecordedAct]) -> tuple[RecordedExpiry, ...]:
    """Return the result of each ``expire``, in their order."""
    undone = {recorded.act.decision.expiry for recorded in acts if recorded.act.decision.kind is ActKind.UNDO}
    removed: dict[str, set[StoredFile]] = {}
    for recorded in acts:
        if recorded.act.decision.kind is ActKind.REMOVED:
            removed.setdefault(recorded.act.decision.expiry, set()).update(recorded.act.decision.files)
    return tuple(
        RecordedExpiry(
            recorded,
            recorded.sha256 in undone,
            # Segments that share a data file each name it.
            tuple(
                file
                for file in dict.fromkeys((*recorded.act.decision.replaced, *recorded.act.decision.files))
                if file not in removed.get(recorded.sha256, ())
            ),
        )
        for recorded in acts
        if recorded.act.decision.kind is ActKind.EXPIRE
    )


def find_expiry(acts: Sequence[RecordedAct], act_id: str) -> RecordedExpiry:
    """Return the expiry that a person names.

    :param act_id: the first digits of the SHA-256 of the expiry's act.
    :raises BadInputError: the id of no expiry begins with these digits, or several ids do.
    """
    expiries = expiries_of(acts)
    matches = [item for item in expiries if act_id and item.recorded.sha256.startswith(act_id)]
    if len(matches) != 1:
        ids = ", ".join(item.recorded.sha256[:SHOWN_CHARACTERS] for item in expiries if not item.is_undone)
        raise BadInputError(
            f"undo: expected the id of an act by which segments expired ({ids or 'there is none'}), found "
            f"{act_id!r}: {len(matches) or 'no'} ids of such acts begin like this. Nothing was changed."
        )
    return matches[0]


def expired_files(acts: Sequence[RecordedAct]) -> frozenset[str]:
    """Return the data files that may be removed only by acts, as names relative to the table of rows."""
    return frozenset(
        file.location for expiry in expiries_of(acts) if not expiry.is_undone for file in expiry.files
    )


def removed_files(acts: Sequence[RecordedAct]) -> frozenset[str]:
    """Return the data files that acts have removed for good, as names relative to the table of rows."""
    removals = (recorded.act.decision for recorded in acts if recorded.act.decision.kind is ActKind.REMOVED)
    return frozenset(file.location for removal in removals for file in removal.files)
