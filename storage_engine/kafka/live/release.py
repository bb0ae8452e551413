"""Let exactly a prefix of logs go beside a running cluster: their leaders begin behind it, and no further.

Kafka has a call for that, which is careful about little: it deletes what an open transaction has written, and
whatever the leader has, though the files here may be of another one. So all of that is asked first, of each
log by itself. A log whose leader, replicas or topic aren't known stays as it is.

The files go later, when each node's broker comes round to it. What is below its leader's start is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from storage_engine.exceptions import BrokerUnavailableError, ChangedUnderUsError, GateRefusedError
from storage_engine.kafka.format.live_facts import LivePartition
from storage_engine.kafka.hold.hold_state import HoldState, load_state
from storage_engine.kafka.live.cut_faults import Prefix, boundary_fault, log_fault
from storage_engine.kafka.live.findings import node_id_of
from storage_engine.kafka.live.log_cut import (
    Cut,
    Witness,
    cut_remembered,
    other_than,
    refused,
    starts_of,
    witness_of,
)
from storage_engine.kafka.live.observe import observe
from storage_engine.model.store.by_log import by_log
from storage_engine.model.store.store import Segment, SegmentId

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_node import LiveNode


def delete_segments(
    store: LiveNode, segments: Sequence[Segment], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Have the cluster delete the records of these segments, the first ones of their logs.

    :param meanwhile: called now and then while it waits.
    :raises ChangedUnderUsError: a log may not be cut, or was refused; says which first. The others were cut,
        as their leaders' starts tell.
    :raises GateRefusedError: the store isn't held; nothing was done.
    :raises BrokerError: the cluster can't be asked, or it isn't known what it did; all of them may go.
    :raises ReleasedTooMuchError: more is gone than these, or may be.
    """
    if not segments:
        return
    state = load_state(store.memory)
    if store.memory is None or state is None:
        raise GateRefusedError(
            f"{store.root}: expected the store to be held, found no hold of it. Nothing was deleted. Hold it "
            "first."
        )
    prefixes = list(_prefixes(store, segments))
    facts = observe(store.asked, [one.name for one in prefixes], time.time_ns() // 1_000_000)
    node_id = node_id_of(store.seen.node) if store.seen is not None else None
    witnesses: dict[tuple[str, int], Witness] = {}
    cuts: list[Cut] = []
    refusals: list[ChangedUnderUsError] = []
    for prefix in prefixes:
        live = facts.partitions.get(prefix.name.log)
        try:
            if why := why_not(prefix, live, state, node_id, facts.cluster_id):
                raise refused(prefix, why)
            assert live is not None
            assert live.high_watermark is not None
            witnesses[prefix.key] = witness_of(prefix, prefix.boundary, live.high_watermark)
        except ChangedUnderUsError as error:
            refusals.append(error)
            continue
        cuts.append(Cut(prefix, live))
    other = other_than(store.asked, witnesses, meanwhile)
    refusals += [refused(prefix, other[prefix.key]) for prefix in prefixes if prefix.key in other]
    if cuts := [one for one in cuts if one.prefix.key not in other]:
        cut_remembered(store.asked, store.root, store.memory, cuts, meanwhile, is_held=True)
    if refusals:
        raise refusals[0]


def below_start(store: LiveNode, segments: Sequence[Segment]) -> frozenset[SegmentId]:
    """Return which of these segments lie wholly below where their leaders begin: they are deleted, wherever
    their files are.

    What we never had cut isn't deleted by us, whatever its leader doesn't tell.

    :raises BrokerError: the cluster can't be asked, or doesn't tell of a log that we have had cut.
    """
    prefixes = list(_prefixes(store, segments))
    starts = starts_of(store.asked, prefixes)
    known = (load_state(store.memory) or HoldState()).logs
    for prefix in prefixes:
        name = prefix.name.log
        was_cut = name in known and known[name].let_go >= prefix.segments[0].end_offset
        if was_cut and name not in starts:
            raise BrokerUnavailableError(
                f"{store.asked.address}: asked where log {name} begins, expected its leader's "
                "answer, found none. It isn't known what of it is deleted. Run the same again, which finds "
                "it out.",
                may_have_acted=True,
            )
    return frozenset(one.id for one in segments if one.end_offset <= starts.get(one.log, -1))


def _prefixes(store: LiveNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    seen = store.seen or store.look(time.time_ns() // 1_000_000)
    for name, of_log in by_log(segments).items():
        one = seen.known.get(name)
        if one is None:
            raise ChangedUnderUsError(
                f"log {name}: expected it among the node's logs, found none. Nothing of it was deleted. Plan "
                "again.",
                path=of_log[0].facts.path,
            )
        yield Prefix(one.log.name, one.directory, one.log, tuple(of_log))


def why_not(
    prefix: Prefix, live: LivePartition | None, state: HoldState, node_id: int | None, cluster_id: str
) -> str:
    """Return why a log may not be cut at its boundary; "": nothing speaks against it. Reads small files.

    :param live: what the cluster says of it now.
    :param node_id: of the node whose files were proven.
    """
    if why := log_fault(prefix, live, cluster_id):
        return why
    assert live is not None
    known = state.logs.get(prefix.name.log)
    if known is None:
        return "it isn't held"
    if str(live.topic_id) != known.topic_id:
        return f"its topic has id {live.topic_id} by now, and {known.topic_id} was held"
    if node_id is None or node_id not in live.in_sync:
        return (
            f"its replica on this node, {node_id}, isn't in sync with leader {live.leader}: what is proven "
            "may not be what the leader has"
        )
    if live.leader_epoch is None or live.leader_epoch < known.leader_epoch:
        return f"its leader's epoch is {live.leader_epoch}, and it was {known.leader_epoch} before"
    if live.log_start is not None and live.log_start >= prefix.segments[0].end_offset:
        return f"its leader begins at {live.log_start} already"
    return boundary_fault(prefix, live)
