"""Hold the topics of a running node: no record expires before we delete it, as long as we renew the hold.

A topic's retention.ms and retention.bytes are raised as far as the hold needs, but no further than the disks
have room. So a hold that nobody renews ends by the brokers' own rules. Each change of a setting is remembered
before it is made.

If the cleaner or remote storage deletes records of a topic by other rules, the topic is never held, and we
never delete from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import count_text, duration_text, time_text
from storage_engine.exceptions import BadInputError, BrokerRefusedError, GateRefusedError, StoreBusyError
from storage_engine.kafka.hold.drift import FoundLogs, all_drift, known_log, state_after_drift
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
    TopicSetting,
    lesser,
    load_state,
    save_state,
)
from storage_engine.kafka.hold.needed_retention import TopicAge, ends_at_ms, protects, states_of_others
from storage_engine.kafka.live.raised_settings import (
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
    seen_node = live_node.look(now_ms)
    with memory.alone(cluster_of(seen_node)) as still_alone:
        node = observe(live_node, now_ms, remembered=state.logs, seen=seen_node)
        return _renew(live_node, memory, state, node, seen_node, still_alone)


def _renew(
    live_node: LiveNode,
    memory: HoldMemory,
    state: HoldState,
    node: ObservedNode,
    seen_node: SeenNode,
    still_alone: StillAlone,
) -> HoldStatus:
    others = states_of_others(memory)
    drift = drift_of(state, node, memory)
    # Recorded first: the state that is remembered from here on no longer shows this drift.
    memory.record_drift(drift)
    state = state_after_drift(state, node.of_logs, node.settings, others)
    logs = dict(state.logs)
    for name, live in node.of_logs.told.items():
        before = state.logs.get(name)
        if (log := known_log(live, before)) is not None:
            # The growth shows what retention.bytes will delete once the log isn't held.
            files = seen_node.known[name].log.segments if name in seen_node.known else ()
            segments = [SegmentFacts(segment.base_offset, segment.log.size_bytes, 0) for segment in files]
            logs[name] = replace(log, written=written(segments, before, node.at_ms))
    state = looked_at(live_node, replace(state, logs=logs), node.at_ms)
    state = rely_on_others(memory, state, node.topics, others, node.at_ms)
    strict = live_node.live.hold == STRICT
    raised = raise_settings(live_node.asked, memory, state, node, still_alone, strict=strict)
    state = raised.state
    if raised.refused:
        node = replace(
            node,
            topics=tuple(topic for topic in node.topics if topic.topic not in raised.refused),
            unheld={**node.unheld, **raised.refused},
        )
        logs = {
            name: log for name, log in state.logs.items() if name.rpartition("-")[0] not in raised.refused
        }
        state = replace(state, logs=logs)
    save_state(memory, state)
    return _status(live_node, state, node, drift, raised.too_short)


def memory_of(live_node: LiveNode) -> HoldMemory:
    """Return the memory of a hold.

    :raises GateRefusedError: without a journal, no topic may be held.
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
    """Return the state, with the time of this look and the time for which raised settings keep records."""
    holds_for_ms = 0 if live_node.live.hold == STRICT else live_node.live.hold_hours * HOUR_MS
    return replace(state, looked_at_ms=now_ms, holds_for_ms=holds_for_ms)


def look(live_node: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.status`."""
    memory, state = live_node.memory, load_state(live_node.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store isn't held",))
    node = observe(live_node, now_ms, remembered=state.logs)
    return _status(live_node, state, node, drift_of(state, node, memory), {})


def drift_of(state: HoldState, node: ObservedNode, memory: HoldMemory) -> tuple[Drift, ...]:
    return tuple(all_drift(state, node.of_logs, node.settings, node.at_ms, states_of_others(memory)))


def _status(
    live_node: LiveNode,
    state: HoldState,
    node: ObservedNode,
    drift: tuple[Drift, ...],
    too_short: Mapping[str, str],
) -> HoldStatus:
    """Return the status of a hold. Settings that were raised after the look count with their new values.

    Each log is judged separately. The store plans no deletion from logs that aren't held.

    :param too_short: why the hold of a topic can't be made longer, by topic.
    """
    topics = [replace(topic, settings=in_effect(topic, state)) for topic in node.topics]
    open_logs = {**node.unread, **dict(_open_logs(topics, state, node))}
    held = [
        replace(topic, logs=tuple(log for log in topic.logs if log.log not in open_logs)) for topic in topics
    ]
    held = [topic for topic in held if topic.logs]
    short = tuple(f"topic {topic} can't be held for longer: {reason}" for topic, reason in too_short.items())
    topics_of = {log: log.rpartition("-")[0] for log in node.of_logs.here}
    unheld = {log: node.unheld[topic] for log, topic in topics_of.items() if topic in node.unheld}
    live_node.unheld = {**unheld, **open_logs}
    settings = [setting for setting in state.settings if setting.topic in node.settings]
    is_held = bool(held) or not open_logs
    ends = ends_at_ms(held) if is_held else None
    return HoldStatus(
        held=is_held,
        ends_at_ms=ends,
        disturbances=drift,
        notices=(
            *bears_notices({topic.topic: node.bears[topic.topic] for topic in topics}),
            *_open_notices(open_logs),
            *(
                f"topic {topic} is never held or deleted from: {reason}"
                for topic, reason in node.unheld.items()
            ),
        ),
        deletes_from_ms=ends,
        described=f"{count_text(len(topics), 'topic')}, "
        f"{count_text(len(settings), 'setting')} of them raised",
        alarms=short,
        unheld=open_logs if is_held else {},
        lasts_ms=min((node.bears[topic.topic].kept_ms for topic in held), default=None),
    )


def _open_logs(topics: Sequence[TopicAge], state: HoldState, node: ObservedNode) -> Iterator[tuple[str, str]]:
    """Yield the logs that aren't held at this moment, with the reason."""
    settings = {(setting.topic, setting.key): setting for setting in state.settings}
    for topic in topics:
        for key in HELD_SETTINGS:
            value, held = topic.settings[key].value, settings.get((topic.topic, key))
            least = value if held is None else held.least_value(value, node.at_ms)
            for log in topic.logs:
                if protects(key, least, (log,), node.at_ms, 2 * node.interval_ms):
                    continue
                if held is not None and protects(key, value, (log,), node.at_ms, 2 * node.interval_ms):
                    counts_from = time_text(held.counts_from_ms)
                    reason = (
                        f"the hold counts from {counts_from} on, since brokers apply a change of settings "
                        "later than they show it: run the same again then"
                    )
                else:
                    reason = f"its {key} is {value}, so that the brokers may delete records of it"
                yield log.log, reason


def _open_notices(open_logs: Mapping[str, str]) -> Iterator[str]:
    """Yield notices about logs that aren't held at this moment, grouped by the reason."""
    by_reason: dict[str, list[str]] = {}
    for log, reason in open_logs.items():
        by_reason.setdefault(reason, []).append(log)
    for reason, logs in by_reason.items():
        yield f"we delete nothing of logs that aren't held now, {named_in_short(logs)}: {reason}"


def in_effect(topic: TopicAge, state: HoldState) -> Mapping[str, TopicSetting]:
    """Return a topic's settings, with the higher values that were set since the cluster was asked."""
    set_now = {
        setting.key: setting.ours[-1]
        for setting in state.settings
        if setting.topic == topic.topic and setting.is_set
    }
    return {
        key: TopicSetting(set_now[key], is_own=True)
        if key in set_now and lesser(set_now[key], setting.value) != set_now[key]
        else setting
        for key, setting in topic.settings.items()
    }


def end_hold(live_node: LiveNode, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.end`.

    Values that another program has set meanwhile stay.

    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer, or refuses to change a setting. All other settings are
        restored.
    """
    memory, state = live_node.memory, load_state(live_node.memory)
    if memory is None or state is None:
        return HoldStatus(held=False, notices=("the store wasn't held",))
    seen_node = live_node.look(now_ms)
    with memory.alone(cluster_of(seen_node)) as still_alone:
        node = observe(live_node, now_ms, remembered=state.logs, seen=seen_node)
        drift = drift_of(state, node, memory)
        memory.record_drift(drift)
        ids = node.of_logs.topic_ids
        result = put_back(live_node.asked, memory, state, state.settings, ids, now_ms, still_alone)
        unsettled = tuple(held for held in result.kept if held.topic in result.unsettled)
        save_state(memory, replace(state, settings=unsettled) if unsettled else None)
    if unsettled:
        topic, reason = next(iter(result.unsettled.items()))
        raise BrokerRefusedError(
            f"topic {topic}: expected the topic's settings as they were before the hold, found that they "
            f"can't be put back: {reason}. Settings of {named_in_short(sorted(result.unsettled))} are still "
            "the hold's; all other settings are as they were. Grant DescribeConfigs and AlterConfigs on "
            "these topics, and unmanage the store again.",
            remark=reason,
        )
    kept = {held.topic for held in result.kept}
    expired = tuple(active_and_expired(seen_node, state, states_of_others(memory), kept, now_ms))
    return HoldStatus(held=False, disturbances=drift, notices=(*result.notices, *result.ended, *expired))


_TIMES = 1.25
"""A topic stays held while records are due within this many margins, so that settings don't oscillate."""
LOOKS = 3
"""Number of attempts to read a node while its files vanish, or while other stores change settings."""
NOT_HELD = "no topic is held: no unarchived segment will be deleted soon"


def hold_due(
    live_node: LiveNode, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int
) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.hold_due`.

    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer. It may have accepted a part of the changes.
    """
    memory = memory_of(live_node)
    state, looks_left = load_state(memory) or HoldState(), LOOKS
    while True:
        looks_left -= 1
        others = states_of_others(memory)
        seen_node = live_node.look(now_ms)
        logs = due_logs(seen_node, state, others, proven, now_ms)
        if logs.gone and looks_left:
            continue
        with memory.alone(cluster_of(seen_node)) as still_alone:
            if [hold.settings for hold in others] == [hold.settings for hold in states_of_others(memory)]:
                judged = _Judged(live_node, memory, state, others, seen_node, logs, margin_ms, now_ms)
                return _hold_due(judged, still_alone)
        # Another store has changed settings since they were judged.
        if not looks_left:
            raise StoreBusyError(
                f"{live_node.root}: expected topics' settings to stay the same while this run decided about "
                "them, found that other stores of the journal changed them. This run changed nothing. Run it "
                "again."
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
    seen_node, logs, margin_ms, now_ms = judged.seen, judged.logs.of, judged.margin_ms, judged.now_ms
    bears = bearable(seen_node, now_ms, store.live.hold_hours * HOUR_MS)
    held_topics = {held.topic for held in state.settings}
    near = {
        log.topic
        for log in logs.values()
        # A hold longer than its disks can bear would only fill them.
        if log.going(now_ms, min(margin_ms, bears[log.topic].kept_ms)) or log.unknown_size
    }
    still = {log.topic for log in logs.values() if log.going(now_ms, margin_ms, _TIMES)}
    needed = near | (held_topics & still)
    first = {name: log.unproven[0].base_offset for name, log in logs.items() if log.unproven}
    node = observe(store, now_ms, seen=seen_node, topics=needed | held_topics, kept_from=first)
    partitions = {} if seen_node.node.live is None else seen_node.node.live.partitions
    of_logs = found_logs(store, seen_node.node, partitions, state.logs, now_ms)
    drift = tuple(gone_unproven(tuple(all_drift(state, of_logs, node.settings, now_ms, others)), state))
    # Recorded first: the state that is remembered from here on no longer shows this drift.
    memory.record_drift(drift)
    state = state_after_drift(state, of_logs, node.settings, others)
    deleted = deleted_topics(store, state, of_logs)
    remembered = {name: log for name, log in state.logs.items() if name.rpartition("-")[0] not in deleted}
    for name, live in partitions.items():
        if (live_log := known_log(live, state.logs.get(name))) is not None and name in logs:
            remembered[name] = replace(live_log, unproven=logs[name].ranges, written=logs[name].written)
    state = looked_at(store, replace(state, logs=remembered), now_ms)
    raising = replace(node, topics=tuple(topic for topic in node.topics if topic.topic in needed))
    state = rely_on_others(memory, state, raising.topics, others, now_ms)
    strict = store.live.hold == STRICT
    raised = raise_settings(
        store.asked, memory, state, raising, still_alone, strict=strict, first_margin_ms=margin_ms
    )
    state = raised.state
    too_short = {
        topic: reason.partition(" No setting was changed.")[0].removesuffix(".")
        for topic, reason in raised.too_short.items()
    }
    refused = {**node.unheld, **raised.refused, **too_short}
    look = HoldLook(now_ms, judged.logs, of_logs, deleted, others)
    decisions = decide(state, needed, look, margin_ms)
    done = tuple(held for held in state.settings if not decisions[held.topic].stays)
    back = put_back(store.asked, memory, state, done, of_logs.topic_ids, now_ms, still_alone)
    kept = tuple(replace(held, is_left=False) for held in state.settings if decisions[held.topic].stays)
    state = replace(state, settings=(*kept, *back.kept))
    save_state(memory, state)
    held = [
        replace(topic, settings=in_effect(topic, state))
        for topic in raising.topics
        if state.has_settings(topic.topic)
    ]
    ends = {topic.topic: ends_ms for topic in held if (ends_ms := ends_at_ms((topic,))) is not None}
    unheld = {topic: reason for topic, reason in refused.items() if topic in needed}
    unheld |= {
        log.topic: f"its disks bear a hold of {duration_text(bears[log.topic].kept_ms)} and no longer, so "
        "that it is held from then on"
        for log in logs.values()
        if log.topic not in needed
    }
    return replace(
        described(state),
        disturbances=drift,
        due=tuple(_due(logs, state, (now_ms, margin_ms), unheld, node.unread, ends)),
        notices=(*bears_notices(bears), *_unknown_growth(logs), *back.notices),
        ends_at_ms=min(ends.values(), default=None),
        lasts_ms=min((bears[topic].kept_ms for topic in ends), default=None),
        alarms=tuple(_alarms(decisions, judged.logs, back)),
    )


def deleted_topics(live_node: LiveNode, state: HoldState, logs: FoundLogs) -> frozenset[str]:
    """Return the topics of remembered logs that no longer exist in the cluster."""
    unknown = {
        name.rpartition("-")[0] for name in state.logs if name not in logs.here
    } - logs.topic_ids.keys()
    answers = read_settings(live_node.asked, sorted(unknown)) if unknown else {}
    return frozenset(topic for topic, answer in answers.items() if is_deleted(answer))


def _alarms(decisions: Mapping[str, HoldDecision], logs: DueLogs, back: SettingsPutBack) -> Iterator[str]:
    yield from (decision.alarm for decision in decisions.values() if decision.alarm)
    for topic, reason in back.unsettled.items():
        yield f"topic {topic} isn't needed to be held any more, and can't be put back as it was: {reason}"
    yield from back.ended
    held = {topic for topic, decision in decisions.items() if decision.stays}
    for name in sorted(logs.gone):
        if name.rpartition("-")[0] not in held:
            yield f"it is unknown what of log {name} is deleted soon: files of it vanished at each look"


def described(state: HoldState | None) -> HoldStatus:
    """Return the remembered status of a node whose broker deletes by its own rules."""
    settings = () if state is None else state.settings
    topics = dict.fromkeys(setting.topic for setting in settings if not setting.is_left)
    unneeded = dict.fromkeys(setting.topic for setting in settings if setting.topic not in topics)
    text = f"held until their unarchived segments are archived: {named_in_short(list(topics))}"
    description = text if topics else NOT_HELD
    if unneeded:
        description += f"; still raised, though no longer needed: {named_in_short(list(unneeded))}"
    ends_at_ms = None if state is None or not topics else state.ends_at_ms
    lasts_ms = None if ends_at_ms is None or state is None else state.holds_for_ms
    return HoldStatus(
        held=False, left_to_broker=True, described=description, ends_at_ms=ends_at_ms, lasts_ms=lasts_ms
    )


def _due(
    logs: Mapping[str, DueLog],
    state: HoldState,
    within: tuple[int, int],
    unheld: Mapping[str, str],
    unread: Mapping[str, str],
    ends: Mapping[str, int],
) -> Iterator[DueRange]:
    """Yield, for each log, the segments that will be deleted within a margin in spite of a hold.

    :param within: the present time, and a margin.
    :param unheld: why topics can't be held, or not for longer, by topic.
    :param unread: why it is unknown how long logs are held, by log.
    :param ends: end of the hold of each held topic.
    """
    counts: dict[str, int] = {}
    for held in state.settings:
        counts[held.topic] = max(counts.get(held.topic, 0), held.counts_from_ms)
    for name, log in logs.items():
        reason = unheld.get(log.topic, "") or unread.get(name, "")
        # If its growth isn't known, all of it may be deleted at once.
        going = log.unproven if reason and log.unknown_size else log.going(*within)
        if not going:
            continue
        at_ms = min(log.at_ms[segment.base_offset] or within[0] for segment in going)
        if reason:
            at_ms = max(at_ms, ends.get(log.topic, 0))
        elif counts.get(log.topic, 0) > at_ms:
            reason = (
                f"the hold counts from {time_text(counts[log.topic])} on, as brokers apply a change of "
                "settings later than they show it"
            )
        if reason and at_ms <= sum(within):
            size = sum(segment.facts.size_bytes for segment in going)
            yield DueRange(name, going[0].base_offset, going[-1].end_offset, size, at_ms, reason)


def _unknown_growth(logs: Mapping[str, DueLog]) -> Iterator[str]:
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
        seen_node = live_node.look(now_ms)
        logs = due_logs(seen_node, state, others, {}, now_ms)
        if not logs.gone:
            break
    partitions = {} if seen_node.node.live is None else seen_node.node.live.partitions
    log_states = found_logs(live_node, seen_node.node, partitions, state.logs, now_ms)
    deleted = deleted_topics(live_node, state, log_states)
    return unheld_segments(state, HoldLook(now_ms, logs, log_states, deleted, others), until_ms)
