"""Hold the topics of a running node: nothing of them expires unless we let it, for as long as we renew that.

A topic's retention.ms and retention.bytes are raised as far as that takes, and no further than the disks
can bear. So a hold that nobody renews ends in the brokers themselves. What we do to a setting is remembered
before it is done. Topics whose cleaner or remote storage works by other rules are never held, and never
deleted from.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from storage_engine.exceptions import BadInputError, BrokerRefusedError, GateRefusedError
from storage_engine.kafka.live.drift import FoundSettings, all_drift, as_found, known_log
from storage_engine.kafka.live.findings import node_id_of
from storage_engine.kafka.live.hold_state import (
    HELD_SETTINGS,
    HeldSetting,
    HoldState,
    KnownLog,
    TopicSetting,
    load_state,
    save_state,
)
from storage_engine.kafka.live.needed_retention import (
    LogAge,
    TopicAge,
    bearable_ms,
    ends_at_ms,
    protects,
    raised,
)
from storage_engine.kafka.live.topic_configs import change_settings, check_interval_ms, read_settings
from storage_engine.kafka.live_facts import LivePartition
from storage_engine.kafka.log_end import first_batch_ms, segment_facts
from storage_engine.kafka.plan import SeenLog
from storage_engine.kafka.rules import RetentionSettings
from storage_engine.kafka.store import SeenNode
from storage_engine.kafka.topic_settings import read_topic_settings
from storage_engine.model.diagnosis import named_in_short
from storage_engine.model.hold import Drift, DriftKind, HoldMemory, HoldStatus
from storage_engine.model.store import DiskUsage
from storage_engine.model.store_settings import STRICT
from storage_engine.wording import count_text, duration_text, time_text

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_store import LiveKafkaStore

HOUR_MS: Final = 3_600_000
_KEPT_FREE_PERCENT: Final = 10
"""Of a disk: no hold fills it."""
_SHORTEST_INTERVALS: Final = 4
"""A hold that disks bear for less than so many of the brokers' rounds is none."""


@dataclass(frozen=True, slots=True)
class LockedTopics:
    """Implements :class:`storage_engine.model.broker_store.LockedStore`."""

    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at a node and its cluster.

    :param topics: that can be held.
    :param logs: of them, as the cluster tells of them.
    :param here: names of all logs that the node has.
    :param unheld: why other topics can't be held, by topic.
    :param interval_ms: after which brokers work by a change.
    :param kept_ms: for how long nothing is to expire, as far as disks can bear it.
    :param notices: what a person should know of that.
    """

    at_ms: int
    topics: tuple[TopicAge, ...]
    logs: Mapping[str, LivePartition]
    here: frozenset[str]
    unheld: Mapping[str, str]
    interval_ms: int
    kept_ms: int
    notices: tuple[str, ...]

    @property
    def settings(self) -> FoundSettings:
        return {one.topic: one.settings for one in self.topics}


def renew(store: LiveKafkaStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker_store.BrokerStore.renew_hold`.

    :raises GateRefusedError: it can't be held; nothing was changed.
    :raises BrokerError: the cluster can't be asked, or may have taken a part of the changes.
    """
    memory = store.memory
    if memory is None:
        raise GateRefusedError(f"{store.root}: expected a journal that remembers a hold, found none.")
    if store.live.hold_hours < 1:
        raise BadInputError(f"hold_hours: expected at least 1, found {store.live.hold_hours}")
    state = load_state(memory) or HoldState()
    found = observe(store, state, now_ms)
    drift = drift_of(state, found)
    # First: what goes by what is remembered from here on doesn't find it any more.
    memory.record_drift(drift)
    state = replace(
        as_found(state, found.settings, found.logs, found.here),
        looked_at_ms=now_ms,
    )
    state = replace(state, logs=_known_logs(state, found))
    state, refused = _raise_settings(store, memory, state, found)
    if refused:
        found = replace(
            found,
            topics=tuple(one for one in found.topics if one.topic not in refused),
            unheld={**found.unheld, **refused},
        )
        logs = {name: known for name, known in state.logs.items() if name.rpartition("-")[0] not in refused}
        state = replace(state, logs=logs)
    save_state(memory, state)
    return _status(store, state, found, drift)


def _raise_settings(
    store: LiveKafkaStore, memory: HoldMemory, state: HoldState, found: Observed
) -> tuple[HoldState, Mapping[str, str]]:
    """Raise what has to be, once it is remembered.

    :return: the state, in which what the cluster now says is set; and why topics couldn't be changed.
    """
    strict = store.live.hold == STRICT
    changes = [
        change
        for topic in found.topics
        for change in raised(
            topic, state, found.at_ms, found.kept_ms, strict=strict, interval_ms=found.interval_ms
        )
    ]
    if not changes:
        return state, {}
    if found.kept_ms < _SHORTEST_INTERVALS * found.interval_ms and not strict:
        raise GateRefusedError(
            f"{store.root}: expected disks that can bear a hold, found that they are full within "
            f"{duration_text(found.kept_ms)} as fast as the logs grow. No setting was changed. Archive and "
            "delete what is archived, or add space."
        )
    before = {(one.topic, one.key) for one in changes}
    others = tuple(one for one in state.settings if (one.topic, one.key) not in before)
    state = replace(state, settings=(*others, *changes))
    save_state(memory, state)
    wanted: dict[str, dict[str, int | None]] = {}
    for change in changes:
        wanted.setdefault(change.topic, {})[change.key] = change.ours[-1]
    refused = change_settings(store.asked, wanted)
    said = read_settings(store.asked, list(wanted))
    return (
        replace(state, settings=tuple(_as_said(one, said.get(one.topic)) for one in state.settings)),
        {topic: f"the cluster doesn't let us set it: {error.remark}" for topic, error in refused.items()},
    )


def _as_said(held: HeldSetting, said: Mapping[str, TopicSetting] | BrokerRefusedError | None) -> HeldSetting:
    if said is None or isinstance(said, BrokerRefusedError):
        return held
    found = said[held.key]
    if found.is_own and found.value == held.ours[-1]:
        return replace(held, ours=held.ours[-1:], is_set=True)
    return held


def _known_logs(state: HoldState, found: Observed) -> Mapping[str, KnownLog]:
    logs = dict(state.logs)
    for name, live in found.logs.items():
        if (known := known_log(live, state.logs.get(name))) is not None:
            logs[name] = known
    return logs


def look(store: LiveKafkaStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker_store.BrokerStore.hold_status`."""
    state = load_state(store.memory)
    if state is None:
        return HoldStatus(held=False, notices=("the store isn't held",))
    found = observe(store, state, now_ms)
    return _status(store, state, found, drift_of(state, found))


def drift_of(state: HoldState, found: Observed) -> tuple[Drift, ...]:
    return tuple(all_drift(state, found.settings, found.logs, found.here, found.at_ms))


def _status(store: LiveKafkaStore, state: HoldState, found: Observed, drift: tuple[Drift, ...]) -> HoldStatus:
    """Return what a hold is worth: settings as they were found, and those that were set since."""
    topics = [replace(one, settings=_in_effect(one, state)) for one in found.topics]
    waits = [
        one.counts_from_ms
        for one in state.settings
        if one.counts_from_ms > found.at_ms and one.topic in found.settings
    ]
    open_topics = [
        one.topic
        for one in topics
        if any(
            not protects(key, one.settings[key].value, one.logs, found.at_ms, 2 * found.interval_ms)
            for key in HELD_SETTINGS
        )
    ]
    said = list(found.notices)
    if waits:
        said.append(
            f"the hold counts from {time_text(max(waits))} on, as brokers apply a change of settings later "
            "than they show it: run the same again then"
        )
    if open_topics:
        said.append(f"not held, so that the brokers may delete of them: {named_in_short(open_topics)}")
    for topic, why in found.unheld.items():
        said.append(f"topic {topic} is never held or deleted from: {why}")
    ends = ends_at_ms(topics)
    held = not waits and not open_topics
    ours = [one for one in state.settings if one.topic in found.settings]
    return HoldStatus(
        held=held,
        ends_at_ms=ends if held else None,
        disturbances=drift,
        notices=tuple(said),
        deletes_from_ms=ends if held else None,
        described=f"{count_text(len(topics), 'topic')}, {count_text(len(ours), 'setting')} of them raised",
    )


def _in_effect(topic: TopicAge, state: HoldState) -> Mapping[str, TopicSetting]:
    """Return a topic's settings with those that were set since they were asked for."""
    set_now = {one.key: one.ours[-1] for one in state.settings if one.topic == topic.topic and one.is_set}
    return {
        key: TopicSetting(set_now[key], is_own=True)
        if key in set_now and _is_higher(set_now[key], found.value)
        else found
        for key, found in topic.settings.items()
    }


def _is_higher(value: int, than: int) -> bool:
    return than >= 0 and (value < 0 or value > than)


def end_hold(store: LiveKafkaStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker_store.BrokerStore.end_hold`.

    What somebody else has set meanwhile stays as they set it.

    :raises BrokerError: the cluster can't be asked, or doesn't take a setting; what it took is put back.
    """
    state = load_state(store.memory)
    if store.memory is None or state is None:
        return HoldStatus(held=False, notices=("the store wasn't held",))
    found = observe(store, state, now_ms)
    drift = drift_of(state, found)
    store.memory.record_drift(drift)
    replaced = {one.log.rpartition("-")[0] for one in drift if one.kind is DriftKind.TOPIC_REPLACED}
    said = read_settings(store.asked, sorted({one.topic for one in state.settings}))
    notices: list[str] = []
    wanted: dict[str, dict[str, int | None]] = {}
    for held in state.settings:
        answer = said.get(held.topic)
        if held.topic in replaced or answer is None or isinstance(answer, BrokerRefusedError):
            why = "it is another topic by now" if held.topic in replaced else "the cluster doesn't tell of it"
            notices.append(f"topic {held.topic}: {held.key} was not put back: {why}")
        elif answer[held.key] == held.original:
            continue
        elif held.is_ours(answer[held.key]):
            back = held.original.value if held.original.is_own else None
            wanted.setdefault(held.topic, {})[held.key] = back
        else:
            notices.append(
                f"topic {held.topic}: {held.key} is {answer[held.key].value}: somebody set it, so it wasn't "
                f"put back to {held.original.value}"
            )
    refused = change_settings(store.asked, wanted) if wanted else {}
    if refused:
        left = tuple(one for one in state.settings if one.topic in refused)
        save_state(store.memory, replace(state, settings=left))
        topic, error = next(iter(refused.items()))
        raise BrokerRefusedError(
            f"topic {topic}: expected the cluster to take back what the hold has set, found: {error.remark}. "
            f"Settings of {named_in_short(sorted(refused))} are still ours; the others are as they were. "
            "Grant AlterConfigs on them, and unmanage the store again.",
            code=error.code,
            remark=error.remark,
        )
    save_state(store.memory, None)
    return HoldStatus(held=False, disturbances=drift, notices=tuple(notices))


def observe(store: LiveKafkaStore, state: HoldState, now_ms: int) -> Observed:
    """Look at a node's topics, and at what the cluster says of them. Changes nothing.

    :raises BrokerError: the cluster can't be asked.
    """
    seen = store.look(now_ms)
    node, live = seen.node, seen.node.live
    partitions = {} if live is None else live.partitions
    settings = read_topic_settings(node)
    unheld: dict[str, str] = {}
    by_topic: dict[str, list[SeenLog]] = {}
    for one in seen.known.values():
        topic = one.log.name.topic
        why = _cannot_be_held(settings.of(topic), partitions.get(one.seen.name))
        if why:
            unheld[topic] = why
        by_topic.setdefault(topic, []).append(one)
    asked = [topic for topic in by_topic if topic not in unheld]
    said = read_settings(store.asked, asked)
    unheld |= {
        topic: f"its settings aren't known: {answer.remark}"
        for topic, answer in said.items()
        if isinstance(answer, BrokerRefusedError)
    }
    properties = node.properties.values if node.properties is not None else {}
    interval_ms = check_interval_ms(store.asked, node_id_of(node), properties)
    wanted_ms = store.live.hold_hours * HOUR_MS
    kept_ms, notices = _bearable(seen, now_ms, wanted_ms)
    topics: list[TopicAge] = []
    logs: dict[str, LivePartition] = {}
    for topic in asked:
        answer = said.get(topic)
        if topic in unheld or answer is None or isinstance(answer, BrokerRefusedError):
            continue
        kept = settings.of(topic)
        assert isinstance(kept, RetentionSettings)
        known = {one.seen.name: partitions[one.seen.name] for one in by_topic[topic]}
        logs |= known
        ages = [
            _age(one, len(known[one.seen.name].replicas), kept.segment_bytes, now_ms, wanted_ms)
            for one in by_topic[topic]
            if one.log.segments
        ]
        topic_id = next(iter(known.values())).topic_id
        topics.append(TopicAge(topic, str(topic_id), answer, tuple(ages)))
    here = frozenset(log.name.log for _, log in node.logs)
    return Observed(now_ms, tuple(topics), logs, here, unheld, interval_ms, kept_ms, notices)


def _cannot_be_held(kept: RetentionSettings | str, live: LivePartition | None) -> str:
    """Return why a topic can't be held; "": it can."""
    if isinstance(kept, str):
        return f"its settings aren't known: {kept}"
    if kept.compact:
        return "cleanup.policy has compact: the cleaner deletes of it by other rules"
    if kept.remote:
        return "remote storage has its segments"
    if live is None or live.topic_id is None:
        return "the cluster doesn't tell of it, or it is another topic by now"
    return ""


def _age(one: SeenLog, replicas: int, segment_bytes: int, now_ms: int, wanted_ms: int) -> LogAge:
    segments = one.log.segments
    ages = []
    for files in segments:
        # What its broker deletes just now, before it is held, has no age any more.
        with suppress(FileNotFoundError):
            ages.append(segment_facts(files, active=files is segments[-1]).largest_timestamp_ms)
    # Another replica may have cut the same records into other segments, and its first one may be older.
    with suppress(FileNotFoundError):
        if replicas > 1 and (first_ms := first_batch_ms(segments[0])) is not None:
            ages.append(first_ms)
    since_ns = (now_ms - wanted_ms) * 1_000_000
    grown = sum(files.log.size_bytes for files in segments if files.log.mtime_ns >= since_ns)
    return LogAge(min(ages, default=None), one.log.size_bytes, grown, segment_bytes)


def _bearable(seen: SeenNode, now_ms: int, wanted_ms: int) -> tuple[int, tuple[str, ...]]:
    """Return for how long disks can bear that nothing is deleted, and what to say of it."""
    since_ns = (now_ms - wanted_ms) * 1_000_000
    grown: dict[int | None, int] = {}
    disks: dict[int | None, DiskUsage] = {}
    for directory, log in seen.node.logs:
        disk = DiskUsage.of(directory.path)
        disks[disk.device] = disk
        grown[disk.device] = grown.get(disk.device, 0) + sum(
            files.log.size_bytes for files in log.segments if files.log.mtime_ns >= since_ns
        )
    rooms = []
    for device, disk in disks.items():
        if disk.total_bytes is None or disk.usable_bytes is None:
            return wanted_ms, ("how full its disk is can't be told, so neither for how long it bears a hold",)
        rooms.append((disk.usable_bytes - disk.total_bytes * _KEPT_FREE_PERCENT // 100, grown[device]))
    found = bearable_ms(wanted_ms, rooms)
    if found == wanted_ms:
        return found, ()
    return found, (
        f"the hold lasts {duration_text(found)} and no longer, since its disk can't bear "
        f"{duration_text(wanted_ms)}",
    )
