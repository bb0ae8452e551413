"""The retention that a topic needs so that its brokers delete no record before a given moment.

A setting is only ever raised, and only where it wouldn't keep what is there for half of the time that is
wanted: a topic whose records are young is left alone, and none is raised again at each look.

What other stores of a journal remember of the same topics: replicas of one log have one topic's settings. So
what another store has set, or released, is nobody's drift; and a topic's first value is what whoever came
first found. A store whose journal is another one is a stranger, and all it does is drift.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.core.jsonable import from_jsonable
from storage_engine.kafka.hold.hold_state import (
    HELD_SETTINGS,
    RETENTION_MS,
    UNLIMITED,
    HeldSetting,
    HoldState,
    TopicSetting,
    load_state,
)
from storage_engine.model.disk import fills_in_ms
from storage_engine.model.hold import HoldMemory

TopicSettings = Mapping[str, TopicSetting]
"""By key, of :data:`~storage_engine.kafka.hold.hold_state.HELD_SETTINGS`."""


@dataclass(frozen=True, slots=True)
class LogAge:
    """Facts on which a log's expiry depends.

    :param oldest_ms: the smallest of its segments' largest timestamps; None: it has none, or no age counts.
    :param grown_bytes: bytes written to it within ``span_ms``.
    :param latest_bytes: bytes written to it at most within the time that a change takes to count.
    :param segment_bytes: size at which its segments are closed.
    :param log: its name.
    """

    oldest_ms: int | None
    size_bytes: int
    grown_bytes: int
    segment_bytes: int
    span_ms: int
    latest_bytes: int
    log: str

    def growth_bytes(self, for_ms: int) -> int:
        """Return by how much it may grow within some time: twice as fast as it did, since the future is
        unknown.

        By no more than it did in all of ``span_ms``; and by no less than within the last moments, as what has
        begun to grow fast may go on.
        """
        average = min(2 * self.grown_bytes * for_ms // self.span_ms, self.grown_bytes)
        return max(average + self.segment_bytes, self.latest_bytes)


@dataclass(frozen=True, slots=True)
class TopicAge:
    """A topic's logs on this node, with its settings as the cluster says them."""

    topic: str
    topic_id: str
    settings: TopicSettings
    logs: tuple[LogAge, ...]


def needed(key: str, logs: Collection[LogAge], now_ms: int, kept_ms: int) -> int:
    """Return the smallest value of a setting that keeps what logs have now for another ``kept_ms``.

    For ``retention.bytes``, twice the growth until now is allowed for, and two segments more.
    """
    if key == RETENTION_MS:
        oldest = [log.oldest_ms for log in logs if log.oldest_ms is not None]
        return max(0, now_ms - min(oldest)) + kept_ms if oldest else 0
    return max(
        (log.size_bytes + max(2 * log.grown_bytes, log.latest_bytes) + 2 * log.segment_bytes for log in logs),
        default=0,
    )


def protects(key: str, value: int, logs: Collection[LogAge], now_ms: int, for_ms: int) -> bool:
    """Return whether a value keeps all present records for some time; by size: at the present growth."""
    if value == UNLIMITED or not logs:
        return True
    if key == RETENTION_MS:
        return value >= needed(key, logs, now_ms, for_ms)
    return all(value >= log.size_bytes + log.growth_bytes(for_ms) for log in logs)


def raised(
    topic: TopicAge,
    state: HoldState,
    now_ms: int,
    kept_ms: int,
    *,
    strict: bool,
    interval_ms: int,
    first_margin_ms: int | None = None,
) -> Iterator[HeldSetting]:
    """Yield the settings of a topic that have to be raised, with what they become.

    :param kept_ms: for how long nothing may expire.
    :param interval_ms: after which brokers work by a change.
    :param first_margin_ms: one that isn't ours yet is raised where it keeps records for less; None: for less
        than half of ``kept_ms``, as ours are.
    """
    for key in HELD_SETTINGS:
        found, known = topic.settings[key], state.setting(topic.topic, key)
        if found.value == UNLIMITED:
            continue
        margin_ms = kept_ms // 2 if known is not None or first_margin_ms is None else first_margin_ms
        if not strict and protects(key, found.value, topic.logs, now_ms, margin_ms):
            continue
        to = UNLIMITED if strict else max(needed(key, topic.logs, now_ms, kept_ms), found.value + 1)
        safe = protects(key, found.value, topic.logs, now_ms, 2 * interval_ms)
        counts_from_ms = now_ms if safe else now_ms + interval_ms
        until_then = found.value
        if known is not None:
            # Of what isn't applied yet the cluster shows the new value all the same.
            counts_from_ms = max(counts_from_ms, known.counts_from_ms)
            until_then = known.least_value(found.value, now_ms)
        if known is None:
            yield HeldSetting(
                topic.topic,
                topic.topic_id,
                key,
                found,
                (to,),
                is_set=False,
                counts_from_ms=counts_from_ms,
                since_ms=now_ms,
                until_then=until_then,
            )
        else:
            # Until the cluster says that it took the new one, it may have the one before.
            before = (found.value,) if found.is_own and known.is_ours(found) and found.value != to else ()
            before = () if found == known.original else before
            yield replace(
                known,
                ours=(*before, to),
                is_set=False,
                counts_from_ms=counts_from_ms,
                until_then=until_then,
            )


def ends_at_ms(topics: Collection[TopicAge]) -> int | None:
    """Return when the brokers' own rules begin to delete by age, as settings are; None: never, or unknown."""
    found = [
        log.oldest_ms + topic.settings[RETENTION_MS].value + 1
        for topic in topics
        if topic.settings[RETENTION_MS].value != UNLIMITED
        for log in topic.logs
        if log.oldest_ms is not None
    ]
    return min(found, default=None)


def bearable_ms(kept_ms: int, rooms: Collection[tuple[int, int]]) -> int:
    """Return for how long disks can bear that nothing is deleted, and no longer than wanted.

    :param rooms: of each disk, the bytes that may be filled and those written within ``kept_ms``. They count
        twice, since the future is unknown.
    """
    times = [fills_in_ms(room, 2 * grown, kept_ms) for room, grown in rooms if grown]
    return min((kept_ms, *(one for one in times if one is not None)))


def states_of_others(memory: HoldMemory) -> tuple[HoldState, ...]:
    """Return the journal's memory of other stores' holds.

    :raises BadInputError: one of them isn't in this release's form.
    """
    return tuple(from_jsonable(HoldState, one, "a hold in the journal") for one in memory.of_others())


def all_states(memory: HoldMemory | None) -> tuple[HoldState, ...]:
    """Return the journal's memory of this store's hold and of other stores'."""
    own = load_state(memory)
    others = () if memory is None else states_of_others(memory)
    return others if own is None else (own, *others)


def same_setting(others: Sequence[HoldState], topic_id: str, key: str) -> Iterator[HeldSetting]:
    """Yield the changes that other stores made to the same setting of the same topic."""
    for state in others:
        for one in state.settings:
            if (one.topic_id, one.key) == (topic_id, key):
                yield one


def set_by_another(others: Sequence[HoldState], held: HeldSetting, found: TopicSetting) -> bool:
    """Return whether another store has set a setting to its present value."""
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
    """Return the end offset up to which other stores released a log, or are about to; -1: none did."""
    known = [state.logs[log] for state in others if log in state.logs]
    return max((one.let_go for one in known if one.topic_id == topic_id), default=-1)


def looks_at(others: Sequence[HoldState], log: str, topic_id: str, now_ms: int) -> bool:
    """Return whether another store has a replica of a log, and so judges its unproven segments."""
    return any(
        (known := state.logs.get(log)) is not None and known.topic_id == topic_id and not known.is_away
        for state in others
        if state.looked_at_ms and not state.has_ended(now_ms)
    )


def needed_by_others(
    others: Sequence[HoldState], held: HeldSetting, now_ms: int
) -> tuple[list[HeldSetting], list[HoldState]]:
    """Return how other stores need a setting as it was raised, the last of which puts it back.

    :return: and states by which it was needed, and whose hold has ended, since it was not renewed.
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
