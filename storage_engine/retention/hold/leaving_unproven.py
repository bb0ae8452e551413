"""Unproven segments that the broker's own rules would delete within a day after the hold ends.

Whoever ends a hold by a command is refused for that, or accepts it by number: what can't be told
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.exceptions import GateRefusedError, StorageEngineError
from storage_engine.journal.journal import Event, Journal, Phase, Step, StoreRecord, hold_memory
from storage_engine.model.broker.broker_store import BrokerStore, UnheldSegments, course_of, hold_of
from storage_engine.model.hold import HoldStatus
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.store import Segment, SegmentState
from storage_engine.retention.archive.archivable import still_unproven
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.hold.hold_text import hold_end_text
from storage_engine.retention.proof.proofs import read_proofs
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.context import WHOLE, Context
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore


def expiry_alarms(context: Context, measured: MeasuredLag, now_ms: int) -> tuple[str, ...]:
    """Name the segments that will be deleted within the policy's margin and are proven in no lake.

    What may not be archived by now counts, too, as for an open transaction: it goes all the same.

    :raises OSError: a file can't be read.
    """
    snapshot, until_ms = measured.snapshot, now_ms + context.store.policy.archive_margin_hours * HOUR_MS
    moments = course_of(context.broker).deletes_at_ms(snapshot, now_ms)
    going = {
        segment.id: (at_ms, segment)
        for log in snapshot.logs
        for segment in log.sealed
        if segment.id not in measured.archived
        and segment.facts.size_bytes
        and (at_ms := moments.get(segment.id)) is not None
        and at_ms <= until_ms
    }
    if not going:
        return ()
    first_ms = min(at_ms for at_ms, _ in going.values())
    logs = list(dict.fromkeys(one.log for one in going))
    size = bytes_text(sum(segment.disk_bytes for _, segment in going.values()))
    when = "now" if first_ms <= now_ms else f"from {time_text(first_ms)} on"
    return (
        f"{count_text(len(going), 'segment')}, {size}, of {named_in_short(logs)} may be deleted by the "
        f"broker {when}, and no lake proves them: archive them, or let it keep them longer",
    )


UNMANAGE_RUN: Final = "unmanage"
"""Run of a store under which it is recorded what was left unproven."""
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A person's word that a store is left to its broker though some of it is unproven.

    :param at_most: number of segments; what is unknown counts as one each.
    """

    at_most: int
    person: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnprovenSegments:
    """Segments that are deleted within a span though no lake proves them.

    :param unknown: other ranges that may be deleted, and are unknown, a clause each.
    :param unasked: why lakes couldn't be asked, of which nothing counts as proven.
    """

    segments: tuple[Segment, ...] = ()
    unknown: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Return how many segments there are at least."""
        return len(self.segments) + len(self.unknown)

    @property
    def text(self) -> str:
        """Return the segments to be deleted unproven, as a finding's text."""
        said = []
        if self.segments:
            first = ", ".join(f"{one.log} {one.name}" for one in self.segments[:_NAMED])
            more = f" and {len(self.segments) - _NAMED} more" if len(self.segments) > _NAMED else ""
            size = bytes_text(sum(one.facts.size_bytes for one in self.segments))
            said.append(
                f"{count_text(len(self.segments), 'segment')}, {size}, that no lake proves ({first}{more})"
            )
        active = sum(one.state is SegmentState.ACTIVE for one in self.segments)
        if active:
            said.append(f"{active} of them active, which no lake can have before the broker closes them")
        if self.unknown:
            said.append(f"what can't be counted: {'; '.join(self.unknown)}")
        if self.unasked:
            said.append(f"and no answer of a lake: {'; '.join(self.unasked)}")
        return ", ".join(said)


def unheld_by(broker: BrokerStore, now_ms: int, until_ms: int) -> UnheldSegments:
    """Ask a store's broker which segments it deletes by a moment if the hold ends now."""
    try:
        return hold_of(broker).unheld_segments(now_ms, until_ms)
    except (StorageEngineError, OSError) as error:
        return UnheldSegments((), (f"what its broker deletes ({_clause(error)})",))


def unproven_of(
    store: ManagedStore, journal: Journal, record: StoreRecord, unheld: UnheldSegments
) -> UnprovenSegments:
    """Leave out what the lakes prove; a lake that can't be asked proves nothing, wherever it lies."""
    if not store.archives:
        return UnprovenSegments()
    segments: tuple[Segment, ...] = unheld.segments
    unasked: tuple[str, ...] = ()
    if segments:
        try:
            known, wanted = known_heads(journal, record), {one.id for one in segments}
            proofs = read_proofs(store.lakes, record, wanted, known=known, whole_chain=True)
            unasked = tuple(_clause(why) for _, why in proofs.unreachable)
            asked = replace(proofs, unreachable=())
            segments = tuple(still_unproven(journal, record, asked, segments))
        except (StorageEngineError, OSError) as error:
            unasked = (_clause(error),)
    return UnprovenSegments(segments, unheld.unknown, unasked if segments else ())


def _clause(error: object) -> str:
    return Text(error).without(" Nothing was changed.").removesuffix(".")


def _unproven_by(context: Context, now_ms: int, until_ms: int) -> UnprovenSegments:
    unheld = unheld_by(context.broker, now_ms, until_ms)
    return unproven_of(context.store, context.journal, context.record, unheld)


def refusal(left: UnprovenSegments, acceptance: Acceptance | None) -> str:
    """Return why a hold may not be ended, without its store; "": it may. Pure."""
    if left.count <= (0 if acceptance is None else acceptance.at_most):
        return ""
    expected = "no segment" if acceptance is None else f"at most {acceptance.at_most}"
    remedy = Text("Archive them: ", Command("archive")) if left.segments else "Mend the cause"
    return Text(
        f"expected {expected} that its broker deletes within a day and no lake proves once it isn't "
        f"held, found {left.text}. Nothing was changed. ",
        remedy,
        f". To leave it to the broker all the same: --leave-unproven {left.count} --reason TEXT.",
    )


def check_unproven(context: Context, acceptance: Acceptance | None, now_ms: int) -> UnprovenSegments:
    """Make sure that a store may be left to its broker.

    :return: the part of it that a person has accepted.
    :raises GateRefusedError: segments that no lake proves would be deleted within a day, and no person has
        accepted that many.
    """
    left = _unproven_by(context, now_ms, now_ms + DAY_MS)
    if why := refusal(left, acceptance):
        raise GateRefusedError(f"{context.store.real_root}: ", why)
    return left


def check_hold_of_other_journal(
    store: ManagedStore, journal: Journal, record: StoreRecord, acceptance: Acceptance | None, now_ms: int
) -> None:
    """Make sure that a store may be moved in a journal: nobody renews a hold that this one doesn't know.

    :param record: of the store, as that journal knows it or is to know it.
    :raises GateRefusedError: such a hold stands; without it segments that no lake proves would be deleted
        within a day, and no person has accepted that many.
    """
    if hold_memory(journal, record.store_id).load() is not None:
        return
    with closing(open_store(store)) as broker:
        held_until_ms = None if broker.hold is None else broker.hold.held_until_ms()
        if held_until_ms is None or held_until_ms <= now_ms:
            return
        unheld = unheld_by(broker, now_ms, now_ms + DAY_MS)
        left = unproven_of(store, journal, record, unheld)
    if why := refusal(left, acceptance):
        raise GateRefusedError(
            f"{store.real_root}: another journal holds the store until {time_text(held_until_ms)}, and "
            "this one renews no such hold: ",
            why,
            " Or unmanage it by that journal first.",
        )


def end_alarms(context: Context, status: HoldStatus | None, now_ms: int) -> tuple[str, ...]:
    """Say from half of its time on when a hold runs out by itself, and what of it may go then unproven."""
    if status is None or status.ends_at_ms is None or not status.is_half_over(now_ms):
        return ()
    until_ms = (status.deletes_from_ms or status.ends_at_ms) + DAY_MS
    said = hold_end_text(status, _unproven_by(context, now_ms, until_ms).text)
    return (Text(f"{said}. Renew it: ", Command("hold"), "; or archive: ", Command("archive")),)


def record_intent(context: Context, left: UnprovenSegments | None, acceptance: Acceptance | None) -> None:
    """Record durably what is about to be left to the broker unproven, and by whose word.

    :param left: None: nothing is protected any more, so that an intent is that of a call which was killed.
    """
    if left is None or not (left.count or _open_intent(context)):
        return
    said = {
        "person": "" if acceptance is None else acceptance.person,
        "reason": "" if acceptance is None else acceptance.reason,
        "at_most": 0 if acceptance is None else acceptance.at_most,
        "segments": len(left.segments),
        "size_bytes": sum(one.facts.size_bytes for one in left.segments),
        "unknown": [*left.unknown, *left.unasked],
    }
    _record(context, Phase.INTENT, said)


def record_result(context: Context) -> None:
    """Record that what was meant to be left to the broker is."""
    if (intent := _open_intent(context)) is not None:
        _record(context, Phase.RESULT, intent.payload)


def _open_intent(context: Context) -> Event | None:
    events = context.journal.store_events(context.record.store_id, Step.UNMANAGE)
    return events[-1] if events and events[-1].phase is Phase.INTENT else None


def _record(context: Context, phase: Phase, said: Mapping[str, Any]) -> None:
    run = begin_background_run(context, UNMANAGE_RUN)
    context.journal.record(run, Step.UNMANAGE, phase, [(WHOLE, said)])
