"""Hold topics of a node that is left to its broker: only those of which unproven records would go soon.

Kafka's own retention goes on. A topic is held from a margin before it would take records that no lake has,
and is as it was once they are archived. What we do to a setting is remembered before it is done. What can't
be held is said with its offsets, before it goes and once it is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from storage_engine.exceptions import GateRefusedError
from storage_engine.kafka.live.drift import all_drift, as_found, known_log
from storage_engine.kafka.live.due_logs import DueLog, due_logs, gone_unproven
from storage_engine.kafka.live.held_settings import put_back, raise_settings
from storage_engine.kafka.live.hold import in_effect, memory_of
from storage_engine.kafka.live.hold_state import HoldState, KnownLog, load_state, save_state
from storage_engine.kafka.live.needed_retention import ends_at_ms
from storage_engine.kafka.live.shared_holds import states_of_others
from storage_engine.kafka.live.topic_ages import HOUR_MS, bearable, found_logs, observe
from storage_engine.model.diagnosis import named_in_short
from storage_engine.model.hold import DriftKind, DueRange, HoldStatus
from storage_engine.model.store import SegmentId
from storage_engine.model.store_settings import STRICT
from storage_engine.wording import duration_text, time_text

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_store import LiveKafkaStore

_TIMES = 1.25
"""So many margins before it would go, what is held stays so: no setting goes to and fro."""
NOT_HELD = "no topic is held, as nothing that no lake has goes soon"


def hold_due(store: LiveKafkaStore, proven: Collection[SegmentId], margin_ms: int, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker_store.BrokerStore.hold_due`.

    :raises BrokerError: the cluster can't be asked, or may have taken a part of the changes.
    """
    memory = memory_of(store)
    state = load_state(memory) or HoldState()
    seen = store.look(now_ms)
    logs = due_logs(seen, state, proven, now_ms)
    kept_ms, notices = bearable(seen, now_ms, store.live.hold_hours * HOUR_MS)
    # Held for longer before it goes, it would only fill its disk.
    early_ms = min(margin_ms, kept_ms)
    ours = {held.topic for held in state.settings}
    near = {log.topic for log in logs.values() if log.going(now_ms, early_ms)}
    still = {log.topic for log in logs.values() if log.going(now_ms, margin_ms, _TIMES) or log.unknown_size}
    wanted = near | (ours & still)
    first = {name: log.unproven[0].base_offset for name, log in logs.items() if log.unproven}
    found = observe(store, now_ms, seen=seen, topics=wanted | ours, kept_from=first)
    told = {} if seen.node.live is None else seen.node.live.partitions
    of_logs = found_logs(store, seen.node, told, state.logs, now_ms)
    others = states_of_others(memory)
    drift = tuple(gone_unproven(tuple(all_drift(state, of_logs, found.settings, now_ms, others)), state))
    # First: what goes by what is remembered from here on doesn't find it any more.
    memory.record_drift(drift)
    state = as_found(state, of_logs, found.settings, others)
    remembered = {**state.logs}
    for name, live in told.items():
        if (known := known_log(live, state.logs.get(name))) is not None and name in logs:
            remembered[name] = _with_due(known, logs[name])
    state = replace(state, looked_at_ms=now_ms, logs=remembered)
    raising = replace(found, topics=tuple(one for one in found.topics if one.topic in wanted))
    refused = dict(found.unheld)
    try:
        strict = store.live.hold == STRICT
        state, why = raise_settings(
            store.asked, memory, state, raising, strict=strict, first_margin_ms=early_ms
        )
        refused |= why
    except GateRefusedError as error:
        said = str(error).partition(" No setting was changed.")[0].removesuffix(".")
        refused |= dict.fromkeys((one.topic for one in raising.topics), said)
    done = tuple(held for held in state.settings if held.topic not in wanted)
    replaced = {one.log.rpartition("-")[0] for one in drift if one.kind is DriftKind.TOPIC_REPLACED}
    back = put_back(store.asked, memory, state, done, replaced)
    stays = tuple(replace(held, is_left=False) for held in state.settings if held.topic in wanted)
    state = replace(state, settings=(*stays, *back.kept))
    save_state(memory, state)
    too_early = (
        f"its disks bear a hold of {duration_text(kept_ms)} and no longer, so that it is held from then on"
    )
    held = [
        replace(one, settings=in_effect(one, state))
        for one in raising.topics
        if state.has_settings(one.topic)
    ]
    ends = {one.topic: ends_ms for one in held if (ends_ms := ends_at_ms((one,))) is not None}
    unheld = {topic: why for topic, why in refused.items() if topic in wanted}
    unheld |= {log.topic: too_early for log in logs.values() if log.topic not in wanted}
    return replace(
        described(state),
        disturbances=drift,
        due=tuple(_due(logs, state, (now_ms, margin_ms), unheld, ends)),
        notices=(*notices, *_notices(logs), *back.notices),
        ends_at_ms=min(ends.values(), default=None),
    )


def described(state: HoldState | None) -> HoldStatus:
    """Return what is remembered of a node that is left to its broker."""
    topics = dict.fromkeys(one.topic for one in state.settings if not one.is_left) if state else {}
    text = f"held until what no lake has of them is archived: {named_in_short(list(topics))}"
    return HoldStatus(held=False, left_to_broker=True, described=text if topics else NOT_HELD)


def _with_due(known: KnownLog, log: DueLog) -> KnownLog:
    return replace(known, unproven=log.ranges, written=log.written)


def _due(
    logs: Mapping[str, DueLog],
    state: HoldState,
    within: tuple[int, int],
    unheld: Mapping[str, str],
    ends: Mapping[str, int],
) -> Iterator[DueRange]:
    """Yield what goes though no lake has it, log by log.

    :param within: now, and a margin.
    :param unheld: why topics can't be held, or held any longer.
    :param ends: of topics that are held, when that ends.
    """
    counts: dict[str, int] = {}
    for held in state.settings:
        counts[held.topic] = max(counts.get(held.topic, 0), held.counts_from_ms)
    for name, log in logs.items():
        if not (going := log.going(*within)):
            continue
        at_ms = min(log.at_ms[one.base_offset] or 0 for one in going)
        why = unheld.get(log.topic, "")
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
            f"when retention.bytes takes what no lake has of {named_in_short(unknown)} isn't known, as how "
            "fast they grow isn't: the next look knows"
        )
