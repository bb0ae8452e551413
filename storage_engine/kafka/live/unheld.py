"""Which segments a node's broker takes by a moment once its topics have their first settings again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.kafka.hold.due_logs import due_logs
from storage_engine.kafka.hold.hold_decisions import HoldLook, unjudged
from storage_engine.kafka.hold.hold_state import HoldState, load_state
from storage_engine.kafka.hold.shared_holds import needed_by_others, states_of_others
from storage_engine.kafka.live.due_hold import LOOKS, deleted_topics
from storage_engine.kafka.live.topic_ages import found_logs
from storage_engine.model.broker.broker_store import UnheldSegments

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_node import LiveNode


def look_for_unheld(store: LiveNode, now_ms: int, until_ms: int) -> UnheldSegments:
    """See :meth:`storage_engine.model.broker.broker_store.HeldStore.unheld_segments`.

    :raises BrokerError: the cluster can't be asked.
    :raises OSError: a file can't be read.
    """
    state = load_state(store.memory) or HoldState()
    others = () if store.memory is None else states_of_others(store.memory)
    for _ in range(LOOKS):
        seen = store.look(now_ms)
        logs = due_logs(seen, state, others, {}, now_ms)
        if not logs.gone:
            break
    told = {} if seen.node.live is None else seen.node.live.partitions
    found = found_logs(store, seen.node, told, state.logs, now_ms)
    deleted = deleted_topics(store, state, found)
    return unheld_segments(state, HoldLook(now_ms, logs, found, deleted, others), until_ms)


def unheld_segments(state: HoldState, look: HoldLook, until_ms: int) -> UnheldSegments:
    """Return what goes of each log, the active segment too, which its broker closes for that. Pure.

    A topic that another store of the journal still needs raised stays so. How fast a log grows has to be
    known where its size counts; else all of it may go.

    :param look: at logs of which nothing counts as proven.
    """
    raised = {held.topic for held in state.settings}
    back = {held.topic for held in state.settings if not needed_by_others(look.others, held, look.now_ms)[0]}
    stays, ours = raised - back, back - set(look.deleted)
    unknown = [f"topic {topic}: {why}" for topic in sorted(ours) for why in unjudged(topic, state, look)]
    unknown += [
        f"log {name}: files of it went at each look"
        for name in sorted(look.logs.gone)
        if name.rpartition("-")[0] not in ours | stays
    ]
    if not ours:
        unknown += [f"log directory {path}: {why}" for path, why in look.found.failed.items()]
    segments = (one for log in look.logs.of.values() if log.topic not in stays for one in log.taken(until_ms))
    return UnheldSegments(tuple(segments), tuple(dict.fromkeys(unknown)))
