"""The retention that a topic needs so that its brokers delete no record before a given time.

A hold only raises a setting, and only if the present value would keep the present records for less than half
of the wanted time. So a topic with young records isn't changed, and a setting isn't raised at each look.

All replicas of a log share their topic's settings. So all stores of a journal see each other's holds: a
setting that another store has changed or restored is no drift. A topic's first value is the value that the
first of these stores found. Changes by a store with another journal are drift.
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
"""A topic's settings by key, which is one of :data:`~storage_engine.kafka.hold.hold_state.HELD_SETTINGS`."""


@dataclass(frozen=True, slots=True)
class LogAge:
    """Facts on which a log's expiry depends.

    :param oldest_ms: the smallest of its segments' largest timestamps; None if no segment could be read.
    :param grown_bytes: size of its files that were written to within ``span_ms``.
    :param latest_bytes: size of its files that were written to within the time that a change of settings
        needs to take effect.
    :param segment_bytes: size at which its segments are closed.
    """

    oldest_ms: int | None
    size_bytes: int
    grown_bytes: int
    segment_bytes: int
    span_ms: int
    latest_bytes: int
    log: str

    def growth_bytes(self, for_ms: int) -> int:
        """Return by how many bytes the log may grow within a time.

        The result is twice the average growth, or the whole growth within ``span_ms`` if that is less, plus
        one segment. It is at least ``latest_bytes``, because fast growth may continue.
        """
        average = min(2 * self.grown_bytes * for_ms // self.span_ms, self.grown_bytes)
        return max(average + self.segment_bytes, self.latest_bytes)


@dataclass(frozen=True, slots=True)
class TopicAge:
    """A topic with its logs on this node, and its settings as the cluster reports them."""

    topic: str
    topic_id: str
    settings: TopicSettings
    logs: tuple[LogAge, ...]


def least_retention(key: str, logs: Collection[LogAge], now_ms: int, kept_ms: int) -> int:
    """Return the smallest value of a setting that keeps the logs' present records for another ``kept_ms``.

    A value of ``retention.bytes`` has room for twice the past growth, and for two more segments.
    """
    if key == RETENTION_MS:
        oldest = [log.oldest_ms for log in logs if log.oldest_ms is not None]
        return max(0, now_ms - min(oldest)) + kept_ms if oldest else 0
    return max(
        (log.size_bytes + max(2 * log.grown_bytes, log.latest_bytes) + 2 * log.segment_bytes for log in logs),
        default=0,
    )


def protects(key: str, value: int, logs: Collection[LogAge], now_ms: int, for_ms: int) -> bool:
    """Return whether a value keeps all present records for a time, at the logs' present growth."""
    if value == UNLIMITED or not logs:
        return True
    if key == RETENTION_MS:
        return value >= least_retention(key, logs, now_ms, for_ms)
    return all(value >= log.size_bytes + log.growth_bytes(for_ms) for log in logs)


def raise_values(
    topic: TopicAge,
    state: HoldState,
    now_ms: int,
    kept_ms: int,
    *,
    strict: bool,
    interval_ms: int,
    first_margin_ms: int | None = None,
) -> Iterator[HeldSetting]:
    """Yield the settings of a topic that must be raised, with their new values.

    :param kept_ms: for how long no record may expire.
    :param interval_ms: time after which brokers apply a change.
    :param first_margin_ms: a setting that we haven't raised yet is raised if it keeps records for less than
        this. None means half of ``kept_ms``, the limit for settings that we have raised.
    """
    for key in HELD_SETTINGS:
        setting, held = topic.settings[key], state.setting(topic.topic, key)
        if setting.value == UNLIMITED:
            continue
        margin_ms = kept_ms // 2 if held is not None or first_margin_ms is None else first_margin_ms
        if not strict and protects(key, setting.value, topic.logs, now_ms, margin_ms):
            continue
        to = (
            UNLIMITED if strict else max(least_retention(key, topic.logs, now_ms, kept_ms), setting.value + 1)
        )
        safe = protects(key, setting.value, topic.logs, now_ms, 2 * interval_ms)
        counts_from_ms = now_ms if safe else now_ms + interval_ms
        until_then = setting.value
        before: tuple[int, ...] = ()
        if held is not None:
            # The cluster shows a new value before the brokers apply it.
            counts_from_ms = max(counts_from_ms, held.counts_from_ms)
            until_then = held.least_value(setting.value, now_ms)
            if setting.is_own and held.is_ours(setting) and setting.value != to and setting != held.original:
                # Until the cluster confirms the new value, the previous value may be in effect.
                before = (setting.value,)
        change = held or HeldSetting(
            topic.topic, topic.topic_id, key, setting, (), False, counts_from_ms, since_ms=now_ms
        )
        yield replace(
            change, ours=(*before, to), is_set=False, counts_from_ms=counts_from_ms, until_then=until_then
        )


def ends_at_ms(topics: Collection[TopicAge]) -> int | None:
    """Return when the brokers begin to delete by age with the present settings; None if never, or unknown."""
    times = [
        log.oldest_ms + topic.settings[RETENTION_MS].value + 1
        for topic in topics
        if topic.settings[RETENTION_MS].value != UNLIMITED
        for log in topic.logs
        if log.oldest_ms is not None
    ]
    return min(times, default=None)


def bearable_ms(kept_ms: int, rooms: Collection[tuple[int, int]]) -> int:
    """Return the time for which disks have room if no record is deleted, at most ``kept_ms``.

    :param rooms: for each disk, the bytes that may be filled, and the bytes written within the last
        ``kept_ms``. Twice as many bytes are expected within the next ``kept_ms``.
    """
    times = [fills_in_ms(room, 2 * grown, kept_ms) for room, grown in rooms if grown]
    return min((kept_ms, *(ms for ms in times if ms is not None)))


def states_of_others(memory: HoldMemory) -> tuple[HoldState, ...]:
    """Return the journal's memory of other stores' holds.

    :raises BadInputError: this release can't read one of these holds.
    """
    return tuple(from_jsonable(HoldState, entry, "a hold in the journal") for entry in memory.of_others())


def all_states(memory: HoldMemory | None) -> tuple[HoldState, ...]:
    """Return the journal's memory of this store's hold and of other stores'."""
    state = load_state(memory)
    others = () if memory is None else states_of_others(memory)
    return others if state is None else (state, *others)


def same_setting(others: Sequence[HoldState], topic_id: str, key: str) -> Iterator[HeldSetting]:
    """Yield the changes that other stores made to the same setting of the same topic."""
    for state in others:
        for setting in state.settings:
            if (setting.topic_id, setting.key) == (topic_id, key):
                yield setting


def set_by_another(others: Sequence[HoldState], held: HeldSetting, setting: TopicSetting) -> bool:
    """Return whether another store has set a setting to its present value."""
    return any(change.has_set(setting) for change in same_setting(others, held.topic_id, held.key))


def with_first_value(others: Sequence[HoldState], change: HeldSetting) -> HeldSetting:
    """Return a planned change. If another store set the present value, that store's original value counts."""
    for setting in same_setting(others, change.topic_id, change.key):
        if setting.has_set(change.original):
            return replace(change, original=setting.original)
    return change


def relied_on(
    topic: TopicAge, state: HoldState, others: Sequence[HoldState], now_ms: int
) -> Iterator[HeldSetting]:
    """Yield the settings that another store has raised and that a topic's hold needs from now on.

    They are also remembered as ours. So they stay until no store needs them; the last store restores them.
    """
    for key in HELD_SETTINGS:
        setting, held = topic.settings[key], state.setting(topic.topic, key)
        if held is not None and held.has_set(setting):
            continue
        for change in same_setting(others, topic.topic_id, key):
            if change.has_set(setting):
                yield replace(
                    change,
                    original=change.original if held is None else held.original,
                    ours=(setting.value,),
                    is_set=True,
                    is_left=False,
                    since_ms=now_ms if held is None else held.since_ms,
                )
                break


def let_go_by_others(others: Sequence[HoldState], log: str, topic_id: str) -> int:
    """Return the offset up to which other stores deleted records of a log, or are about to; -1 if none."""
    logs = [state.logs[log] for state in others if log in state.logs]
    return max((entry.let_go for entry in logs if entry.topic_id == topic_id), default=-1)


def is_judged_elsewhere(others: Sequence[HoldState], log: str, topic_id: str, now_ms: int) -> bool:
    """Return whether another store holds a replica of a log, and so judges the log's unproven segments."""
    return any(
        (known_log := state.logs.get(log)) is not None
        and known_log.topic_id == topic_id
        and not known_log.is_away
        for state in others
        if state.looked_at_ms and not state.has_ended(now_ms)
    )


def needed_by_others(
    others: Sequence[HoldState], held: HeldSetting, now_ms: int
) -> tuple[list[HeldSetting], list[HoldState]]:
    """Return which other stores still need a raised setting. The last store that needs it restores it.

    :return: changes of the setting by stores that need it, and the states of stores that needed it until
        their holds ended without a renewal.
    """
    needing: list[HeldSetting] = []
    ended: list[HoldState] = []
    for state in others:
        settings = [
            setting for setting in same_setting((state,), held.topic_id, held.key) if not setting.is_left
        ]
        if settings and state.has_ended(now_ms):
            ended.append(state)
        else:
            needing += settings
    return needing, ended
