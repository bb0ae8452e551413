"""Whether a topic that we have raised stays so, of a node that is left to its broker. Pure.

It is put back on knowledge alone: each log of it that was ever held was judged at this look. Whatever isn't
known keeps it as it is, and a person is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from storage_engine.core.wording import time_text
from storage_engine.kafka.hold.drift import FoundLogs
from storage_engine.kafka.hold.due_logs import DueLogs
from storage_engine.kafka.hold.hold_state import HoldState, KnownLog
from storage_engine.kafka.hold.needed_retention import looks_at
from storage_engine.model.store.store import SegmentState


@dataclass(frozen=True, slots=True)
class HoldLook:
    """What one look knows.

    :param logs: what of the node's logs isn't proven.
    :param found: where all logs are.
    :param deleted: topics that the cluster says it hasn't any more.
    :param others: what other stores of the journal remember.
    """

    now_ms: int
    logs: DueLogs
    found: FoundLogs
    deleted: Collection[str]
    others: Sequence[HoldState]


@dataclass(frozen=True, slots=True)
class HoldDecision:
    """Of a topic that we have raised.

    :param stays: it stays raised; otherwise it is put back.
    :param alarm: what a person has to see to; "": nothing.
    """

    stays: bool
    alarm: str = ""


def decide(
    state: HoldState, wanted: Collection[str], look: HoldLook, margin_ms: int
) -> Mapping[str, HoldDecision]:
    """Decide on each topic of which we have raised a setting.

    :param wanted: topics of which something goes soon though no lake has it.
    :param margin_ms: how long before it would go something is held.
    """
    ours = dict.fromkeys(held.topic for held in state.settings)
    return {topic: _decide(topic, state, topic in wanted, look, margin_ms) for topic in ours}


def _decide(topic: str, state: HoldState, is_wanted: bool, look: HoldLook, margin_ms: int) -> HoldDecision:
    if is_wanted:
        return HoldDecision(True, _held_for_long(topic, state, look, margin_ms))
    if topic in look.deleted:
        return HoldDecision(False)
    if why := next(unjudged(topic, state, look), ""):
        return HoldDecision(
            True,
            f"topic {topic} stays held, and can't be put back as it was, as what of it is unproven isn't "
            f"known: {why}",
        )
    return HoldDecision(False)


def unjudged(topic: str, state: HoldState, look: HoldLook) -> Iterator[str]:
    """Yield why a log of a topic wasn't judged at this look."""
    if look.found.failed:
        paths = ", ".join(look.found.failed)
        yield f"log directory {paths} has failed. Mend the disk, or take the directory out of log.dirs"
    for name in look.logs.gone:
        if name.rpartition("-")[0] == topic:
            yield f"log {name} lost files while it was looked at. The next look knows"
    for name, known in state.logs.items():
        if name.rpartition("-")[0] == topic and name not in look.found.here:
            yield from _elsewhere(name, known, look)


def _elsewhere(name: str, known: KnownLog, look: HoldLook) -> Iterator[str]:
    live = look.found.elsewhere.get(name)
    if looks_at(look.others, name, known.topic_id, look.now_ms):
        return
    if live is None or live.topic_id is None:
        yield (
            f"log {name} isn't on this node any more, and the cluster doesn't tell where it is. Let its "
            "account describe the topic"
        )
    elif str(live.topic_id) == known.topic_id:
        nodes = ", ".join(map(str, live.replicas)) or "none that is known"
        yield (
            f"log {name} is on other nodes, {nodes}, and no store of this journal looks at it there. Hold "
            "the store of one of them with this journal, or archive there and unmanage this one"
        )


def _held_for_long(topic: str, state: HoldState, look: HoldLook, margin_ms: int) -> str:
    """Return that a topic is held for longer than a margin after it would have gone; "": it isn't.

    An active segment alone, which can't be archived yet, is no reason.
    """
    since_ms = min(held.since_ms for held in state.settings if held.topic == topic)
    sealed = [
        (name, segment)
        for name, log in look.logs.of.items()
        if log.topic == topic
        for segment in log.going(look.now_ms, margin_ms)
        if segment.state is SegmentState.SEALED
    ]
    if not since_ms or not sealed or look.now_ms <= since_ms + 2 * margin_ms:
        return ""
    name, first = sealed[0]
    return (
        f"topic {topic} is held since {time_text(since_ms)}, long after records of it would have gone: no "
        f"lake has what log {name} holds from offset {first.base_offset} on, and the hold fills its disk. "
        "Find out why it isn't archived"
    )
