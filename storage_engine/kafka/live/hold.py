"""Hold the topics of a running node: nothing of them expires unless we let it, for as long as we renew that.

A topic's retention.ms and retention.bytes are raised as far as that takes, and no further than the disks
can bear. So a hold that nobody renews ends in the brokers themselves. What we do to a setting is remembered
before it is done. Topics whose cleaner or remote storage works by other rules are never held, and never
deleted from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import count_text, time_text
from storage_engine.exceptions import BadInputError, BrokerRefusedError, GateRefusedError
from storage_engine.kafka.hold.drift import all_drift, as_found, known_log
from storage_engine.kafka.hold.due_logs import active_and_expired, written
from storage_engine.kafka.hold.hold_state import (
    HELD_SETTINGS,
    HoldState,
    KnownLog,
    TopicSetting,
    load_state,
    save_state,
)
from storage_engine.kafka.hold.needed_retention import TopicAge, ends_at_ms, protects, states_of_others
from storage_engine.kafka.live.held_settings import StillAlone, put_back, raise_settings, rely_on_others
from storage_engine.kafka.live.topic_ages import ObservedNode, bears_notices, observe
from storage_engine.kafka.rules import SegmentFacts
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.model.hold import Drift, HoldMemory, HoldStatus
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.store_settings import STRICT

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_node import LiveNode


def renew(store: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.renew`.

    :raises GateRefusedError: it can't be held; nothing was changed.
    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster can't be asked, or may have taken a part of the changes.
    """
    memory = memory_of(store)
    state = load_state(memory) or HoldState()
    seen = store.look(now_ms)
    with memory.alone(cluster_of(seen)) as still_alone:
        found = observe(store, now_ms, remembered=state.logs, seen=seen)
        return _renew(store, memory, state, found, seen, still_alone)


def _renew(
    store: LiveNode,
    memory: HoldMemory,
    state: HoldState,
    found: ObservedNode,
    seen: SeenNode,
    still_alone: StillAlone,
) -> HoldStatus:
    others = states_of_others(memory)
    drift = drift_of(state, found, memory)
    # First: what goes by what is remembered from here on doesn't find it any more.
    memory.record_drift(drift)
    state = as_found(state, found.of_logs, found.settings, others)
    state = looked_at(store, replace(state, logs=_known_logs(state, found, seen)), found.at_ms)
    state = rely_on_others(memory, state, found.topics, others, found.at_ms)
    strict = store.live.hold == STRICT
    raised = raise_settings(store.asked, memory, state, found, still_alone, strict=strict)
    state = raised.state
    if raised.refused:
        found = replace(
            found,
            topics=tuple(one for one in found.topics if one.topic not in raised.refused),
            unheld={**found.unheld, **raised.refused},
        )
        logs = {
            name: known for name, known in state.logs.items() if name.rpartition("-")[0] not in raised.refused
        }
        state = replace(state, logs=logs)
    save_state(memory, state)
    return _status(store, state, found, drift, raised.too_short)


def memory_of(store: LiveNode) -> HoldMemory:
    """Return where a hold is remembered.

    :raises GateRefusedError: nowhere, so that nothing may be held.
    :raises BadInputError: a hold of no length.
    """
    if store.memory is None:
        raise GateRefusedError(f"{store.root}: expected a journal that remembers a hold, found none.")
    if store.live.hold_hours < 1:
        raise BadInputError(f"hold_hours: expected at least 1, found {store.live.hold_hours}")
    return store.memory


def cluster_of(seen: SeenNode) -> str:
    """Return by what name the stores of a cluster know it."""
    return "" if seen.node.live is None else seen.node.live.cluster_id


def looked_at(store: LiveNode, state: HoldState, now_ms: int) -> HoldState:
    """Return a state with when it was looked at, and for how long what it raises holds from then on."""
    holds_for_ms = 0 if store.live.hold == STRICT else store.live.hold_hours * HOUR_MS
    return replace(state, looked_at_ms=now_ms, holds_for_ms=holds_for_ms)


def _known_logs(state: HoldState, found: ObservedNode, seen: SeenNode) -> Mapping[str, KnownLog]:
    logs = dict(state.logs)
    for name, live in found.of_logs.told.items():
        before = state.logs.get(name)
        if (known := known_log(live, before)) is not None:
            # How fast it grows tells what retention.bytes takes once it isn't held.
            files = seen.known[name].log.segments if name in seen.known else ()
            segments = [SegmentFacts(one.base_offset, one.log.size_bytes, 0) for one in files]
            logs[name] = replace(known, written=written(segments, before, found.at_ms))
    return logs


def look(store: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.status`."""
    memory, state = store.memory, load_state(store.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store isn't held",))
    found = observe(store, now_ms, remembered=state.logs)
    return _status(store, state, found, drift_of(state, found, memory), {})


def drift_of(state: HoldState, found: ObservedNode, memory: HoldMemory) -> tuple[Drift, ...]:
    return tuple(all_drift(state, found.of_logs, found.settings, found.at_ms, states_of_others(memory)))


def _status(
    store: LiveNode,
    state: HoldState,
    found: ObservedNode,
    drift: tuple[Drift, ...],
    too_short: Mapping[str, str],
) -> HoldStatus:
    """Return what a hold is worth: settings as they were found, and those that were set since.

    Each log has its own answer. Of what isn't held the store plans nothing from here on.

    :param too_short: why topics can't be held for longer than they are, by topic.
    """
    topics = [replace(one, settings=in_effect(one, state)) for one in found.topics]
    open_logs = {**found.unread, **dict(_open_logs(topics, state, found))}
    held = [replace(one, logs=tuple(log for log in one.logs if log.log not in open_logs)) for one in topics]
    held = [one for one in held if one.logs]
    short = tuple(f"topic {topic} can't be held for longer: {why}" for topic, why in too_short.items())
    store.unheld = {**_of_logs(found.unheld, found.of_logs.here), **open_logs}
    ours = [one for one in state.settings if one.topic in found.settings]
    is_held = bool(held) or not open_logs
    ends = ends_at_ms(held) if is_held else None
    return HoldStatus(
        held=is_held,
        ends_at_ms=ends,
        disturbances=drift,
        notices=(
            *bears_notices({one.topic: found.bears[one.topic] for one in topics}),
            *_open_notices(open_logs),
            *(f"topic {topic} is never held or deleted from: {why}" for topic, why in found.unheld.items()),
        ),
        deletes_from_ms=ends,
        described=f"{count_text(len(topics), 'topic')}, {count_text(len(ours), 'setting')} of them raised",
        alarms=short,
        unheld=open_logs if is_held else {},
        lasts_ms=min((found.bears[one.topic].kept_ms for one in held), default=None),
    )


def _open_logs(
    topics: Sequence[TopicAge], state: HoldState, found: ObservedNode
) -> Iterator[tuple[str, str]]:
    """Yield logs that aren't held at this moment, with why."""
    ours = {(one.topic, one.key): one for one in state.settings}
    for topic in topics:
        for key in HELD_SETTINGS:
            value, known = topic.settings[key].value, ours.get((topic.topic, key))
            least = value if known is None else known.least_value(value, found.at_ms)
            for log in topic.logs:
                if protects(key, least, (log,), found.at_ms, 2 * found.interval_ms):
                    continue
                if known is not None and protects(key, value, (log,), found.at_ms, 2 * found.interval_ms):
                    counts_from = time_text(known.counts_from_ms)
                    why = (
                        f"the hold counts from {counts_from} on, as brokers apply a change of settings later "
                        "than they show it: run the same again then"
                    )
                else:
                    why = f"its {key} is {value}, so that the brokers may delete of it"
                yield log.log, why


def _open_notices(open_logs: Mapping[str, str]) -> Iterator[str]:
    """Say of logs that they aren't held at this moment, those together that aren't for one reason."""
    by_reason: dict[str, list[str]] = {}
    for log, why in open_logs.items():
        by_reason.setdefault(why, []).append(log)
    for why, logs in by_reason.items():
        yield f"nothing is deleted by us of what isn't held now, {named_in_short(logs)}: {why}"


def _of_logs(topics: Mapping[str, str], logs: Collection[str]) -> Mapping[str, str]:
    """Return what is said of topics by the names of their logs."""
    return {log: topics[topic] for log in logs if (topic := log.rpartition("-")[0]) in topics}


def in_effect(topic: TopicAge, state: HoldState) -> Mapping[str, TopicSetting]:
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


def end_hold(store: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.end`.

    What somebody else has set meanwhile stays as they set it.

    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster can't be asked, or doesn't take a setting; what it took is put back.
    """
    memory, state = store.memory, load_state(store.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store wasn't held",))
    seen = store.look(now_ms)
    with memory.alone(cluster_of(seen)) as still_alone:
        found = observe(store, now_ms, remembered=state.logs, seen=seen)
        drift = drift_of(state, found, memory)
        memory.record_drift(drift)
        ids = found.of_logs.topic_ids
        done = put_back(store.asked, memory, state, state.settings, ids, now_ms, still_alone)
        left = tuple(one for one in done.kept if one.topic in done.unsettled)
        save_state(memory, replace(state, settings=left) if left else None)
    if left:
        topic, why = next(iter(done.unsettled.items()))
        raise BrokerRefusedError(
            f"topic {topic}: expected it as it was before the hold, found that it can't be put back: {why}. "
            f"Settings of {named_in_short(sorted(done.unsettled))} are still ours; the others are as they "
            "were. Grant DescribeConfigs and AlterConfigs on them, and unmanage the store again.",
            remark=why,
        )
    kept = {one.topic for one in done.kept}
    expired = tuple(active_and_expired(seen, state, states_of_others(memory), kept, now_ms))
    return HoldStatus(held=False, disturbances=drift, notices=(*done.notices, *done.ended, *expired))
