"""What other stores of a journal remember of the same topics: replicas of one log have one topic's settings.

So what another store has set, or released, is nobody's drift; and a topic's first value is what whoever came
first found. A store whose journal is another one is a stranger, and all it does is drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from storage_engine.kafka.live.hold_state import HeldSetting, HoldState, TopicSetting
from storage_engine.model.hold import HoldMemory
from storage_engine.model.jsonable import from_jsonable


def states_of_others(memory: HoldMemory) -> tuple[HoldState, ...]:
    """Return what the journal remembers of other stores' holds.

    :raises BadInputError: of one of them it isn't what this release writes.
    """
    return tuple(from_jsonable(HoldState, one, "a hold in the journal") for one in memory.of_others())


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


def let_go_by_others(others: Sequence[HoldState], log: str, topic_id: str) -> int:
    """Return up to where other stores have released a log, or are about to; -1: not at all."""
    known = [state.logs[log] for state in others if log in state.logs]
    return max((one.let_go for one in known if one.topic_id == topic_id), default=-1)


def needed_by_others(others: Sequence[HoldState], held: HeldSetting) -> bool:
    """Return whether another store still needs a setting as it was raised; the last one puts it back."""
    return any(not one.is_left for one in same_setting(others, held.topic_id, held.key))
