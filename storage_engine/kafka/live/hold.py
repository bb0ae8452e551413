"""Hold the topics of a running node: their records don't expire until we release them, as long as we renew
the hold.

A topic's retention.ms and retention.bytes are raised as far as the hold needs, but no further than the disks
have room. So a hold that nobody renews ends by the brokers' own rules. Each change of a setting is remembered
before it is made.

Some topics are never held, and we never delete from them: those of which the cleaner or remote storage
deletes by other rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import count_text, duration_text, time_text
from storage_engine.exceptions import BadInputError, BrokerRefusedError, GateRefusedError, StoreBusyError
from storage_engine.kafka.hold.drift import FoundLogs, all_drift, as_found, known_log
from storage_engine.kafka.hold.due_logs import (
    DueLog,
    DueLogs,
    HoldDecision,
    HoldLook,
    active_and_expired,
    decide,
    due_logs,
    gone_unproven,
    unheld_segments,
    written,
)
from storage_engine.kafka.hold.hold_state import (
    HELD_SETTINGS,
    HoldState,
    KnownLog,
    TopicSetting,
    load_state,
    save_state,
)
from storage_engine.kafka.hold.needed_retention import TopicAge, ends_at_ms, protects, states_of_others
from storage_engine.kafka.live.held_settings import (
    SettingsPutBack,
    StillAlone,
    put_back,
    raise_settings,
    rely_on_others,
)
from storage_engine.kafka.live.topic_state import (
    ObservedNode,
    bearable,
    bears_notices,
    found_logs,
    is_deleted,
    observe,
    read_settings,
)
from storage_engine.kafka.retention_rules import SegmentFacts
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.model.broker.broker_store import UnheldSegments
from storage_engine.model.hold import Drift, DueRange, HoldMemory, HoldStatus
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.store_settings import STRICT
from storage_engine.model.store import FileFacts, SegmentId

if TYPE_CHECKING:
    from storage_engine.kafka.live.observe import LiveNode


def renew(live_node: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.renew`.

    :raises GateRefusedError: the node can't be held; nothing was changed.
    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer. It may have accepted a part of the changes.
    """
    memory = memory_of(live_node)
    state = load_state(memory) or HoldState()
    seen = live_node.look(now_ms)
    with memory.alone(cluster_of(seen)) as still_alone:
        found = observe(live_node, now_ms, remembered=state.logs, seen=seen)
        return _renew(live_node, memory, state, found, seen, still_alone)


def _renew(
    live_node: LiveNode,
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
    state = looked_at(live_node, replace(state, logs=_known_logs(state, found, seen)), found.at_ms)
    state = rely_on_others(memory, state, found.topics, others, found.at_ms)
    strict = live_node.live.hold == STRICT
    raised = raise_settings(live_node.asked, memory, state, found, still_alone, strict=strict)
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
    return _status(live_node, state, found, drift, raised.too_short)


def memory_of(live_node: LiveNode) -> HoldMemory:
    """Return the memory of a hold.

    :raises GateRefusedError: there is no journal, so no topic may be held.
    :raises BadInputError: the hold is shorter than an hour.
    """
    if live_node.memory is None:
        raise GateRefusedError(f"{live_node.root}: expected a journal that remembers a hold, found none.")
    if live_node.live.hold_hours < 1:
        raise BadInputError(
            f"hold_hours: expected at least 1, found {live_node.live.hold_hours}. Nothing was changed. "
            "Correct it: 24 is usual."
        )
    return live_node.memory


def cluster_of(seen: SeenNode) -> str:
    """Return the cluster's id; "" for a node without a running broker."""
    return "" if seen.node.live is None else seen.node.live.cluster_id


def looked_at(live_node: LiveNode, state: HoldState, now_ms: int) -> HoldState:
    """Return the state with the time of this look, and the time for which raised settings keep records after
    it."""
    holds_for_ms = 0 if live_node.live.hold == STRICT else live_node.live.hold_hours * HOUR_MS
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


def look(live_node: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.status`."""
    memory, state = live_node.memory, load_state(live_node.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store isn't held",))
    found = observe(live_node, now_ms, remembered=state.logs)
    return _status(live_node, state, found, drift_of(state, found, memory), {})


def drift_of(state: HoldState, found: ObservedNode, memory: HoldMemory) -> tuple[Drift, ...]:
    return tuple(all_drift(state, found.of_logs, found.settings, found.at_ms, states_of_others(memory)))


def _status(
    live_node: LiveNode,
    state: HoldState,
    found: ObservedNode,
    drift: tuple[Drift, ...],
    too_short: Mapping[str, str],
) -> HoldStatus:
    """Return the status of a hold, from the settings at the look and those that were set since.

    Each log is judged by itself. The store plans nothing for logs that aren't held.

    :param too_short: reasons why the hold of topics can't be made longer, by topic.
    """
    topics = [replace(one, settings=in_effect(one, state)) for one in found.topics]
    open_logs = {**found.unread, **dict(_open_logs(topics, state, found))}
    held = [replace(one, logs=tuple(log for log in one.logs if log.log not in open_logs)) for one in topics]
    held = [one for one in held if one.logs]
    short = tuple(f"topic {topic} can't be held for longer: {why}" for topic, why in too_short.items())
    live_node.unheld = {**_of_logs(found.unheld, found.of_logs.here), **open_logs}
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
    """Yield the logs that aren't held at this moment, with the reason."""
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
                        f"the hold counts from {counts_from} on, since brokers apply a change of settings "
                        "later "
                        "than they show it: run the same again then"
                    )
                else:
                    why = f"its {key} is {value}, so that the brokers may delete records of it"
                yield log.log, why


def _open_notices(open_logs: Mapping[str, str]) -> Iterator[str]:
    """Yield notices about logs that aren't held at this moment, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for log, why in open_logs.items():
        by_reason.setdefault(why, []).append(log)
    for why, logs in by_reason.items():
        yield f"we delete nothing of logs that aren't held now, {named_in_short(logs)}: {why}"


def _of_logs(topics: Mapping[str, str], logs: Collection[str]) -> Mapping[str, str]:
    """Return the topics' values by the names of their logs."""
    return {log: topics[topic] for log in logs if (topic := log.rpartition("-")[0]) in topics}


def in_effect(topic: TopicAge, state: HoldState) -> Mapping[str, TopicSetting]:
    """Return a topic's settings, updated by those that were set since the cluster was asked."""
    set_now = {one.key: one.ours[-1] for one in state.settings if one.topic == topic.topic and one.is_set}
    return {
        key: TopicSetting(set_now[key], is_own=True)
        if key in set_now and _is_higher(set_now[key], found.value)
        else found
        for key, found in topic.settings.items()
    }


def _is_higher(value: int, than: int) -> bool:
    return than >= 0 and (value < 0 or value > than)


def end_hold(live_node: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.end`.

    Values that another program has set meanwhile stay.

    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer, or refuses to change a setting. The other settings are
        restored.
    """
    memory, state = live_node.memory, load_state(live_node.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store wasn't held",))
    seen = live_node.look(now_ms)
    with memory.alone(cluster_of(seen)) as still_alone:
        found = observe(live_node, now_ms, remembered=state.logs, seen=seen)
        drift = drift_of(state, found, memory)
        memory.record_drift(drift)
        ids = found.of_logs.topic_ids
        done = put_back(live_node.asked, memory, state, state.settings, ids, now_ms, still_alone)
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


_TIMES = 1.25
"""A topic stays held while records are due within this many margins, so that settings don't oscillate."""
LOOKS = 3
"""How often a node is read again while its files vanish, or while other stores change its settings."""
NOT_HELD = "no topic is held: no unarchived segment will be deleted soon"


def hold_due(
    live_node: LiveNode, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int
) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.hold_due`.

    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer. It may have accepted a part of the changes.
    """
    memory = memory_of(live_node)
    state, left = load_state(memory) or HoldState(), LOOKS
    while True:
        left -= 1
        others = states_of_others(memory)
        seen = live_node.look(now_ms)
        logs = due_logs(seen, state, others, proven, now_ms)
        if logs.gone and left:
            continue
        with memory.alone(cluster_of(seen)) as still_alone:
            if [one.settings for one in others] == [one.settings for one in states_of_others(memory)]:
                judged = _Judged(live_node, memory, state, others, seen, logs, margin_ms, now_ms)
                return _hold_due(judged, still_alone)
        # What it was judged by is another store's by now.
        if not left:
            raise StoreBusyError(
                f"{live_node.root}: expected no changes of topics' settings while they were judged, found "
                "changes by other stores of the journal. Nothing was changed. Hold it again."
            )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A node at one look, with the unproven segments of its logs."""

    live_node: LiveNode
    memory: HoldMemory
    state: HoldState
    others: Sequence[HoldState]
    seen: SeenNode
    logs: DueLogs
    margin_ms: int
    now_ms: int


def _hold_due(judged: _Judged, still_alone: StillAlone) -> HoldStatus:
    store, memory, state, others = judged.live_node, judged.memory, judged.state, judged.others
    seen, logs, margin_ms, now_ms = judged.seen, judged.logs.of, judged.margin_ms, judged.now_ms
    bears = bearable(seen, now_ms, store.live.hold_hours * HOUR_MS)
    ours = {held.topic for held in state.settings}
    near = {
        log.topic
        for log in logs.values()
        # Held for longer before it goes, it would only fill its disk.
        if log.going(now_ms, min(margin_ms, bears[log.topic].kept_ms)) or log.unknown_size
    }
    still = {log.topic for log in logs.values() if log.going(now_ms, margin_ms, _TIMES)}
    wanted = near | (ours & still)
    first = {name: log.unproven[0].base_offset for name, log in logs.items() if log.unproven}
    found = observe(store, now_ms, seen=seen, topics=wanted | ours, kept_from=first)
    told = {} if seen.node.live is None else seen.node.live.partitions
    of_logs = found_logs(store, seen.node, told, state.logs, now_ms)
    drift = tuple(gone_unproven(tuple(all_drift(state, of_logs, found.settings, now_ms, others)), state))
    # First: what goes by what is remembered from here on doesn't find it any more.
    memory.record_drift(drift)
    state = as_found(state, of_logs, found.settings, others)
    deleted = deleted_topics(store, state, of_logs)
    remembered = {name: known for name, known in state.logs.items() if name.rpartition("-")[0] not in deleted}
    for name, live in told.items():
        if (known := known_log(live, state.logs.get(name))) is not None and name in logs:
            remembered[name] = _with_due(known, logs[name])
    state = looked_at(store, replace(state, logs=remembered), now_ms)
    raising = replace(found, topics=tuple(one for one in found.topics if one.topic in wanted))
    state = rely_on_others(memory, state, raising.topics, others, now_ms)
    strict = store.live.hold == STRICT
    raised = raise_settings(
        store.asked, memory, state, raising, still_alone, strict=strict, first_margin_ms=margin_ms
    )
    state = raised.state
    too_short = {
        topic: why.partition(" No setting was changed.")[0].removesuffix(".")
        for topic, why in raised.too_short.items()
    }
    refused = {**found.unheld, **raised.refused, **too_short}
    look = HoldLook(now_ms, judged.logs, of_logs, deleted, others)
    decisions = decide(state, wanted, look, margin_ms)
    done = tuple(held for held in state.settings if not decisions[held.topic].stays)
    back = put_back(store.asked, memory, state, done, of_logs.topic_ids, now_ms, still_alone)
    stays = tuple(replace(held, is_left=False) for held in state.settings if decisions[held.topic].stays)
    state = replace(state, settings=(*stays, *back.kept))
    save_state(memory, state)
    held = [
        replace(one, settings=in_effect(one, state))
        for one in raising.topics
        if state.has_settings(one.topic)
    ]
    ends = {one.topic: ends_ms for one in held if (ends_ms := ends_at_ms((one,))) is not None}
    unheld = {topic: why for topic, why in refused.items() if topic in wanted}
    unheld |= {
        log.topic: f"its disks bear a hold of {duration_text(bears[log.topic].kept_ms)} and no longer, so "
        "that it is held from then on"
        for log in logs.values()
        if log.topic not in wanted
    }
    return replace(
        described(state),
        disturbances=drift,
        due=tuple(_due(logs, state, (now_ms, margin_ms), unheld, found.unread, ends)),
        notices=(*bears_notices(bears), *_notices(logs), *back.notices),
        ends_at_ms=min(ends.values(), default=None),
        lasts_ms=min((bears[topic].kept_ms for topic in ends), default=None),
        alarms=tuple(_alarms(decisions, judged.logs, back)),
    )


def deleted_topics(live_node: LiveNode, state: HoldState, found: FoundLogs) -> frozenset[str]:
    """Return the topics of remembered logs that no longer exist in the cluster."""
    unknown = {
        name.rpartition("-")[0] for name in state.logs if name not in found.here
    } - found.topic_ids.keys()
    said = read_settings(live_node.asked, sorted(unknown)) if unknown else {}
    return frozenset(topic for topic, answer in said.items() if is_deleted(answer))


def _alarms(decisions: Mapping[str, HoldDecision], logs: DueLogs, back: SettingsPutBack) -> Iterator[str]:
    yield from (one.alarm for one in decisions.values() if one.alarm)
    for topic, why in back.unsettled.items():
        yield f"topic {topic} isn't needed to be held any more, and can't be put back as it was: {why}"
    yield from back.ended
    held = {topic for topic, one in decisions.items() if one.stays}
    for name in sorted(logs.gone):
        if name.rpartition("-")[0] not in held:
            yield f"it is unknown what of log {name} is deleted soon: files of it vanished at each look"


def described(state: HoldState | None) -> HoldStatus:
    """Return the remembered status of a node whose broker deletes by its own rules."""
    settings = () if state is None else state.settings
    topics = dict.fromkeys(one.topic for one in settings if not one.is_left)
    left = dict.fromkeys(one.topic for one in settings if one.topic not in topics)
    text = f"held until their unarchived segments are archived: {named_in_short(list(topics))}"
    said = text if topics else NOT_HELD
    if left:
        said += f"; raised still, and not needed to be: {named_in_short(list(left))}"
    ends_at_ms = None if state is None or not topics else state.ends_at_ms
    lasts_ms = None if ends_at_ms is None or state is None else state.holds_for_ms
    return HoldStatus(
        held=False, left_to_broker=True, described=said, ends_at_ms=ends_at_ms, lasts_ms=lasts_ms
    )


def _with_due(known: KnownLog, log: DueLog) -> KnownLog:
    return replace(known, unproven=log.ranges, written=log.written)


def _due(
    logs: Mapping[str, DueLog],
    state: HoldState,
    within: tuple[int, int],
    unheld: Mapping[str, str],
    unread: Mapping[str, str],
    ends: Mapping[str, int],
) -> Iterator[DueRange]:
    """Yield segments that will be deleted and that no lake has, log by log.

    :param within: the present time, and a margin.
    :param unheld: reasons why topics can't be held, or not for longer.
    :param unread: reasons why the time for which logs are held is unknown, by name.
    :param ends: end of the hold of each held topic.
    """
    counts: dict[str, int] = {}
    for held in state.settings:
        counts[held.topic] = max(counts.get(held.topic, 0), held.counts_from_ms)
    for name, log in logs.items():
        why = unheld.get(log.topic, "") or unread.get(name, "")
        # How fast it grows isn't known: it may go at once.
        going = log.unproven if why and log.unknown_size else log.going(*within)
        if not going:
            continue
        at_ms = min(log.at_ms[one.base_offset] or within[0] for one in going)
        if why:
            at_ms = max(at_ms, ends.get(log.topic, 0))
        elif counts.get(log.topic, 0) > at_ms:
            why = (
                f"the hold counts from {time_text(counts[log.topic])} on, as brokers apply a change of "
                "settings later than they show it"
            )
        if why and at_ms <= sum(within):
            size = sum(one.facts.size_bytes for one in going)
            yield DueRange(name, going[0].base_offset, going[-1].end_offset, size, at_ms, why)


def _notices(logs: Mapping[str, DueLog]) -> Iterator[str]:
    unknown = [name for name, log in logs.items() if log.unknown_size]
    if unknown:
        yield (
            f"retention.bytes will delete unarchived records of {named_in_short(unknown)} at an unknown "
            "time, because their growth isn't known yet. Until the next look they count as due soon"
        )


def look_for_unheld(live_node: LiveNode, now_ms: int, until_ms: int) -> UnheldSegments:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.unheld_segments`.

    :raises BrokerError: the cluster doesn't answer.
    :raises OSError: a file can't be read.
    """
    state = load_state(live_node.memory) or HoldState()
    others = () if live_node.memory is None else states_of_others(live_node.memory)
    for _ in range(LOOKS):
        seen = live_node.look(now_ms)
        logs = due_logs(seen, state, others, {}, now_ms)
        if not logs.gone:
            break
    told = {} if seen.node.live is None else seen.node.live.partitions
    found = found_logs(live_node, seen.node, told, state.logs, now_ms)
    deleted = deleted_topics(live_node, state, found)
    return unheld_segments(state, HoldLook(now_ms, logs, found, deleted, others), until_ms)
