"""What people decided about what a lake keeps: acts, each with the hash of the one before. Pure.

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
from storage_engine.model.keep.keep_policy import KeepPolicy
from storage_engine.model.keep.rules import Hold, KeepRule, Scope

SHOWN_CHARACTERS = 12
"""Of an act's SHA-256, where people read or type it."""


class ActKind(StrEnum):
    """Persisted: never renamed."""

    KEEP = "keep"
    HOLD = "hold"
    LIFT = "lift"


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """
    :param rules: of a ``keep``: all rules from then on.
    :param scope: of a ``hold``: what is held.
    :param reason: of a ``hold``: why.
    :param lifts: of a ``lift``: SHA-256 of the act whose hold ends.
    """

    kind: ActKind
    rules: tuple[KeepRule, ...] = ()
    scope: Scope | None = None
    reason: str = ""
    lifts: str = ""

    def __post_init__(self) -> None:
        if (self.kind is ActKind.HOLD) != (self.scope is not None) or (self.kind is ActKind.LIFT) != bool(
            self.lifts
        ):
            raise BadInputError(f"decision: expected the fields of a {self.kind}, found others")


@dataclass(frozen=True, slots=True)
class Act:
    """One decision, as a file of the lake records it.

    :param number: of the act in its chain, from 0.
    :param previous: SHA-256 of the act before; "" of the first.
    :param lake_id: of the lake in which it was recorded; a copy has the acts of its original.
    :param host: machine of the person.
    :param at_ms: by the lake's clock, in milliseconds since the epoch; never before the act in front of it.
    """

    number: int
    previous: str
    lake_id: str
    person: str
    host: str
    at_ms: int
    decision: KeepDecision

    def encode(self) -> bytes:
        """Return the bytes of its file."""
        return json.dumps(to_jsonable(self), indent=1).encode()


@dataclass(frozen=True, slots=True)
class RecordedAct:
    """:param sha256: of the bytes of its file, in hex."""

    sha256: str
    act: Act


def sha256_of_act(data: bytes) -> str:
    """Return what an act's file is called by its bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def decode_act(data: bytes, where: str) -> Act:
    """
    :raises BadInputError: it is none, or a newer release wrote it.
    """
    try:
        return from_jsonable(Act, json.loads(data), where)
    except (ValueError, BadInputError) as error:
        raise BadInputError(f"{where}: expected an act as JSON, found something else ({error})") from error


def order_acts(acts: Mapping[str, Act], named: str) -> tuple[RecordedAct, ...]:
    """Return acts in the order of their chain. An act counts once its file is there, named or not.

    :param acts: by the SHA-256 of their bytes.
    :param named: the newest that was recorded as such; "": none was. Later ones may be there.
    :raises ValueError: they are no one chain, or it lacks the one that is named; with what was expected and
        found.
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
    """Return the policy that began with each act, in the order of the acts."""
    policies: list[KeepPolicy] = []
    rules: tuple[KeepRule, ...] = ()
    holds: tuple[Hold, ...] = ()
    for recorded in acts:
        act, decision = recorded.act, recorded.act.decision
        if decision.kind is ActKind.KEEP:
            rules = decision.rules
        elif decision.scope is not None:
            holds = (*holds, Hold(recorded.sha256, decision.scope, decision.reason, act.person, act.at_ms))
        else:
            holds = tuple(hold for hold in holds if hold.hold_id != decision.lifts)
        policies.append(KeepPolicy(recorded.sha256, act.at_ms, rules, holds))
    return tuple(policies)
