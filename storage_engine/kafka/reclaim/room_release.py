"""Delete the oldest segments of a stopped node, each on a ground that its cluster confirms right before.

What another node leads goes there first: its leader is told to begin behind it, once a record shows that it
has the same ones. Then the file goes here. A kill in between leaves a log that begins later on all other
nodes, as it would anyhow once this one follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.file_names import PartitionDirectory
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.live.cut_faults import Prefix, boundary_fault, log_fault
from storage_engine.kafka.live.log_cut import refused, witness_of
from storage_engine.kafka.live.remembered_cut import Cut, cut_remembered
from storage_engine.kafka.live.same_log import Witness, other_than
from storage_engine.kafka.reclaim.leaders_word import LeadersWord, ask_leaders
from storage_engine.kafka.reclaim.room_plan import way_of_log
from storage_engine.kafka.reclaim.ways import Fault, Way
from storage_engine.kafka.stopped.stopped_plan import StoppedNode, read_stopped
from storage_engine.kafka.stopped.stopped_release import delete_oldest
from storage_engine.kafka.store.seen_node import SeenNode
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.hold.hold import HoldMemory
from storage_engine.model.store.by_log import by_log
from storage_engine.model.store.store import Segment

if TYPE_CHECKING:
    from storage_engine.kafka.stopped.store_lock import LockedDirectories

AT_ONCE = 100
"""How many segments leaders are told of at once."""


@dataclass(frozen=True, slots=True)
class _Going:
    """A log's segments that go, and the ground that was found for them."""

    prefix: Prefix
    way: Way


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A stopped node of a running cluster.

    :param held: its locks.
    :param seen: what its last snapshot was made of.
    :param memory: of its hold; None: nothing is remembered.
    """

    root: Path
    held: LockedDirectories
    cluster: Cluster
    seen: SeenNode
    memory: HoldMemory | None


def delete_segments(
    room: HeldNode, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove
) -> None:
    """See :meth:`storage_engine.model.broker.broker_store.BrokerStore.delete_segments`.

    :raises ChangedUnderUsError: a log has no ground any more, or its files changed; names a segment, which
        was not deleted.
    :raises BrokerError: the cluster can't be asked, or it isn't known what it did; run again, it goes on.
    """
    stopped = read_stopped(room.seen.node)
    prefixes = list(_prefixes(room.seen, segments))
    word = _ask(room, [one.name for one in prefixes])
    going = [_Going(prefix, _way(prefix, stopped, word)) for prefix in prefixes]
    _begin_behind(room, going, word, meanwhile)
    for one in going:
        for segment in one.prefix.segments:
            meanwhile()
            alone = replace(one.prefix, segments=(segment,))
            again = _ask(room, [alone.name])
            _check_again(alone, one.way, _way(alone, stopped, again))
            delete_oldest(room.held, room.root, (segment,), meanwhile, remove)


def _ask(room: HeldNode, logs: Sequence[PartitionDirectory]) -> LeadersWord:
    return ask_leaders(room.cluster, logs, time.time_ns() // 1_000_000)


def _prefixes(seen: SeenNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    for name, of_log in by_log(segments).items():
        if (one := seen.known.get(name)) is None:
            raise ChangedUnderUsError(
                f"log {name}: expected it among the node's logs, found none. Nothing of it was deleted. Plan "
                "again.",
                path=of_log[0].facts.path,
            )
        # What went before, in this call's release, is listed there still.
        left = tuple(files for files in one.log.segments if files.base_offset >= of_log[0].base_offset)
        yield Prefix(one.log.name, one.directory, replace(one.log, segments=left), tuple(of_log))


def _way(prefix: Prefix, stopped: StoppedNode | Fault, word: LeadersWord) -> Way:
    found = way_of_log(prefix.log, stopped, word, "")
    if isinstance(found, Way):
        return found
    raise refused(prefix, found[1])


def _begin_behind(
    room: HeldNode,
    going: Sequence[_Going],
    word: LeadersWord,
    meanwhile: Callable[[], object],
) -> None:
    """Make sure that leaders have the same records, and have them begin behind what goes."""
    cuts: list[Cut] = []
    witnesses: dict[tuple[str, int], Witness] = {}
    for prefix, way in ((one.prefix, one.way) for one in going if one.way.leader is not None):
        live = word.of(prefix.name.log)
        assert live is not None
        is_cut = prefix.boundary > way.led_from
        if is_cut:
            if why := log_fault(prefix, live, word.facts.cluster_id) or boundary_fault(prefix, live):
                raise refused(prefix, why)
            cuts.append(Cut(prefix, live))
        # A log that ends below its leader's start has no record to compare: its broker drops all of it.
        if is_cut or end_offset(prefix.log) > way.led_from:
            at = max(prefix.boundary, way.led_from + 1)
            witnesses[prefix.key] = witness_of(prefix, at, live.high_watermark or 0)
    other = other_than(room.cluster, witnesses, meanwhile)
    for one in going:
        if one.prefix.key in other:
            raise refused(one.prefix, other[one.prefix.key])
    if cuts:
        cut_remembered(room.cluster, room.root, room.memory, cuts, meanwhile, is_held=False)


def _check_again(prefix: Prefix, before: Way, way: Way) -> None:
    """Make sure, right before a segment goes, that the ground that was found holds.

    :param prefix: the segment alone.
    :raises ChangedUnderUsError: it doesn't.
    """
    left = "This segment was not deleted, older ones of the plan may be."
    if before.leader is not None:
        left = (
            "This segment was not deleted here, older ones of the plan may be; its leader was told to begin "
            "behind what goes, and other nodes may have deleted what the lake has of it."
        )
    if (way.leader, way.leader_epoch) != (before.leader, before.leader_epoch):
        raise refused(prefix, f"its leader has changed meanwhile: {before.said}, and by now {way.said}", left)
    if way.leader is not None and way.led_from < prefix.boundary:
        raise refused(prefix, f"{way.said}, which isn't behind it", left)
