"""What other stores of a journal remember of the same topics: replicas of one log have one topic's settings.

So what another store has set, or released, is nobody's drift; and a topic's first value is what whoever came
first found. A store whose journal is another one is a stranger, and all it does is drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from storage_engine.core.jsonable import from_jsonable
from storage_engine.kafka.hold.hold_state import (
    HELD_SETTINGS,
    HeldSetting,
    HoldState,
    TopicSetting,
    load_state,
)
from storage_engine.kafka.hold.needed_retention import TopicAge
from storage_engine.model.hold.hold import HoldMemory


def states_of_others(memory: HoldMemory) -> tuple[HoldState, ...]:
    """Return what the journal remembers of other stores' holds.

    :raises BadInputError: of one of them it isn't what this release writes.
    """
    return tuple(from_jsonable(HoldState, one, "a hold in the journal") for one in memory.of_others())


def all_states(memory: HoldMemory | None) -> tuple[HoldState, ...]:
    """Return what the journal remembers of this store's hold and of others'."""
    own = load_state(memory)
    others = () if memory is None else states_of_others(memory)
    return others if own is None else (own, *others)


def same_setting(others: Sequence[HoldState], topic_id: str, key: str) -> Iterator[HeldSetting]:
    """Yield what other stores have done to the same setting of the same topic."""
    for state in others:
        for one in state.settings:
            if (one.topic_id, one.key) == (topic_id, key):
                yield one


def set_by_another(others: Sequence[HoldState], held: HeldSetting, found: TopicSetting) -> bool:
    """Return whether another store has set a setting to what is found."""
    return any(one.has_set(found) for one in same_setting(others, held.topic_id, held.key))


def with_first_value(others: Sequence[HoldState], change: HeldSetting) -> HeldSetting:
    """Return a setting that is about to be changed, with its value of before another store set it."""
    for one in same_setting(others, change.topic_id, change.key):
        if one.has_set(change.original):
            return replace(change, original=one.original)
    return change


def relied_on(
    topic: TopicAge, state: HoldState, others: Sequence[HoldState], now_ms: int
) -> Iterator[HeldSetting]:
    """Yield settings as another store has set them, which a topic is held by from now on.

    Remembered as our own, they stay until nobody needs them, and whoever is the last puts them back.
    """
    for key in HELD_SETTINGS:
        found, known = topic.settings[key], state.setting(topic.topic, key)
        if known is not None and known.has_set(found):
            continue
        for one in same_setting(others, topic.topic_id, key):
            if one.has_set(found):
                yield replace(
                    one,
                    original=one.original if known is None else known.original,
                    ours=(found.value,),
                    is_set=True,
                    is_left=False,
                    since_ms=now_ms if known is None else known.since_ms,
                )
                break


def let_go_by_others(others: Sequence[HoldState], log: str, topic_id: str) -> int:
    """Return up to where other stores have released a log, or are about to; -1: not at all."""
    known = [state.logs[log] for state in others if log in state.logs]
    return max((one.let_go for one in known if one.topic_id == topic_id), default=-1)


def looks_at(others: Sequence[HoldState], log: str, topic_id: str, now_ms: int) -> bool:
    """Return whether another store has a replica of a log, and so judges what of it is unproven."""
    return any(
        (known := state.logs.get(log)) is not None and known.topic_id == topic_id and not known.is_away
        for state in others
        if state.looked_at_ms and not state.has_ended(now_ms)
    )


def needed_by_others(
    others: Sequence[HoldState], held: HeldSetting, now_ms: int
) -> tuple[list[HeldSetting], list[HoldState]]:
    """Return how other stores need a setting as it was raised, the last of which puts it back.

    :return: and states by which it was needed, and whose hold has ended, as nobody has renewed it.
    """
    needing: list[HeldSetting] = []
    ended: list[HoldState] = []
    for state in others:
        found = [one for one in same_setting((state,), held.topic_id, held.key) if not one.is_left]
        if found and state.has_ended(now_ms):
            ended.append(state)
        else:
            needing += found
    return needing, ended
