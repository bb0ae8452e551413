"""How large a shield is, and what becomes of its links. Pure.

A shield on which nobody acts saves nothing and lets a broker take more from its consumers: what it deletes
frees no space, so it goes on. It buys time, for a watch that acts; or it keeps everything there is to lose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from storage_engine.commands import Command, Text
from storage_engine.model.hold import ShieldNeed
from storage_engine.model.settings.policy import ShieldMode
from storage_engine.model.store.known_logs import Lineages
from storage_engine.model.store.store import Segment
from storage_engine.shield.seen import Place, SeenLink, Shield

REACTION_MS: Final = 10_000
"""Until a watch has set the broker's setting back: two looks a second, and a broker that answers late."""
DISK_SHARE_PERCENT: Final = 5
"""So much of the broker's disk may be kept from it at most."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """:param segments: to have a link, oldest first.
    :param why_not: of the others, and why; "" where all that should have one have.
    """

    segments: tuple[Segment, ...] = ()
    why_not: str = ""


def segments_needed(batch_segments: int, pass_interval_ms: int, reaction_ms: int = REACTION_MS) -> int:
    """Return how many segments a broker can delete before anybody has acted."""
    return batch_segments * (1 + -(-reaction_ms // max(pass_interval_ms, 1)))


def wanted(
    unproven: Sequence[Segment],
    shield: Shield,
    need: ShieldNeed,
    mode: ShieldMode,
    *,
    tends: bool,
    written: Collection[SeenLink] = (),
) -> Wanted:
    """Choose the segments of the log that shall have a link.

    :param unproven: sealed segments that no lake proves, oldest first.
    :param tends: this process is the watch.
    :param written: clones that stay as their segments in the log were written to: they take space.
    """
    if mode is ShieldMode.OFF:
        return Wanted(why_not="the store's policy is shield: off")
    if need.refusal:
        return Wanted(why_not=need.refusal)
    whole = tuple(unproven)
    if need.batch_segments is None or need.pass_interval_ms is None:
        if mode is ShieldMode.ON:
            return Wanted(whole)
        return Wanted(why_not="no broker runs; with the policy shield: on all that is unproven is kept")
    if need.disk_bytes is None:
        return Wanted(why_not="how large the log's disk is can't be measured")
    alone = [seen for seen in shield.links if seen.place is not Place.IN_LOG or seen in written]
    room = room_bytes(alone, need)
    sizes = accumulate(segment.facts.size_bytes for segment in whole)
    fits = sum(room is None or size <= room for size in sizes)
    if tends:
        most = min(segments_needed(need.batch_segments, need.pass_interval_ms), len(whole))
        if fits >= most:
            return Wanted(whole[:most])
        return Wanted(
            whole[:fits],
            f"{most} segments should have a link, {fits} do: {DISK_SHARE_PERCENT} % of the disk is the limit",
        )
    if mode is ShieldMode.ON and fits == len(whole):
        return Wanted(whole)
    return Wanted(
        why_not=Text("no watch is alive that acts on what the broker deletes: run ", Command("watch"))
    )


def room_bytes(links: Iterable[SeenLink], need: ShieldNeed) -> int | None:
    """Return how much more these links leave to be kept; None: no broker runs that a limit could harm."""
    if need.batch_segments is None or need.disk_bytes is None:
        return None
    kept = sum(seen.link.segment.size_bytes for seen in links)
    return need.disk_bytes * DISK_SHARE_PERCENT // 100 - kept


def without_use(shield: Shield, segments: Collection[Segment], lineages: Lineages) -> tuple[SeenLink, ...]:
    """Return the links that may go at once: their segments are in the log, and need none.

    :param segments: that shall have a link.
    """
    slots = {(*one.id, one.facts.inode, lineages.of(one.log)) for one in segments}
    return tuple(
        seen
        for seen in shield.links
        if seen.place is Place.IN_LOG
        and (*seen.link.slot, seen.link.segment.inode, seen.link.lineage) not in slots
    )


def to_give_up(shield: Shield, used_percent: int | None, give_up_percent: int) -> SeenLink | None:
    """Return the one link that has to go for space: the oldest that gives some back; None: none has to.

    :param used_percent: of the log's disk; None: unknown, which is not full.
    """
    if used_percent is None or used_percent <= give_up_percent:
        return None
    return next((seen for seen in shield.links if seen.is_last), None)
