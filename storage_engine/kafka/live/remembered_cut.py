"""Have leaders begin behind what goes of their logs, once it is remembered that we are about to.

Kafka's call names no epoch: whoever leads at that moment does it. So the leaders' epochs are looked at right
before and after. One that has changed in between has to show that it has the records which were proven.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.exceptions import ChangedUnderUsError, ReleasedTooMuchError
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format.live_facts import LivePartition
from storage_engine.kafka.hold.drift import known_log
from storage_engine.kafka.hold.hold_state import HoldState, load_state, save_state
from storage_engine.kafka.live.cut_faults import Prefix
from storage_engine.kafka.live.log_cut import (
    Led,
    check_not_too_far,
    cut,
    leaders_of,
    refused,
    settled_starts,
    witness_of,
)
from storage_engine.kafka.live.same_log import Witness, other_than
from storage_engine.model.hold.hold import HoldMemory


@dataclass(frozen=True, slots=True)
class Cut:
    """A log that is to be cut, and what its cluster said of it when it was found that it may be."""

    prefix: Prefix
    live: LivePartition


def cut_remembered(
    cluster: Cluster,
    root: Path,
    memory: HoldMemory | None,
    cuts: Sequence[Cut],
    meanwhile: Callable[[], object],
    *,
    is_held: bool,
) -> None:
    """Have leaders begin at the boundaries.

    :param root: the store's, for messages.
    :param memory: where it is remembered, so that no store takes what goes for somebody else's doing; None:
        nowhere.
    :param meanwhile: called now and then while it waits.
    :param is_held: the brokers' own rules delete nothing of these logs now.
    :raises ChangedUnderUsError: another leader than a moment ago, or the cluster refuses; says which log.
    :raises BrokerUnavailableError: it isn't known what the cluster did.
    :raises ReleasedTooMuchError: a leader of a held log begins behind a boundary, or one may have had other
        records.
    """
    prefixes = [one.prefix for one in cuts]
    led = leaders_of(cluster, prefixes)
    for one in cuts:
        if why := moved(one, led.get(one.prefix.name.log)):
            raise refused(one.prefix, why)
    state = load_state(memory) or HoldState()
    _remember(memory, state, cuts)
    said = cut(cluster, prefixes)
    starts = settled_starts(cluster, prefixes, said, meanwhile)
    if is_held:
        check_not_too_far(root, prefixes, starts)
    undone = [one for one in cuts if starts[one.prefix.name.log] < one.prefix.boundary]
    names = {one.prefix.name.log for one in undone}
    done = [one for one in cuts if one.prefix.name.log not in names]
    _check_cut_as_proven(cluster, root, done, meanwhile)
    if undone:
        _remember(memory, state, done)
        raise refused(undone[0].prefix, f"the cluster refuses: {said[undone[0].prefix.key].remark}")


def moved(one: Cut, led: Led | None) -> str:
    """Return how a log's leader differs from the one that was looked at; "": it doesn't."""
    if led is None:
        return "its leader doesn't answer"
    if led.epoch != one.live.leader_epoch:
        return f"its leader's epoch is {led.epoch} by now, and it was {one.live.leader_epoch}"
    return ""


def _remember(memory: HoldMemory | None, state: HoldState, cuts: Sequence[Cut]) -> None:
    if memory is None:
        return
    logs = dict(state.logs)
    for one in cuts:
        name = one.prefix.name.log
        if (known := logs.get(name) or known_log(one.live, None)) is not None:
            logs[name] = replace(known, let_go=max(known.let_go, one.prefix.boundary))
    save_state(memory, replace(state, logs=logs))


def _check_cut_as_proven(
    cluster: Cluster, root: Path, cuts: Sequence[Cut], meanwhile: Callable[[], object]
) -> None:
    """Make sure that logs were cut by their leaders of before, or by others with the same records."""
    led = leaders_of(cluster, [one.prefix for one in cuts])
    changed = {
        one.prefix.key: (one, why) for one in cuts if (why := moved(one, led.get(one.prefix.name.log)))
    }
    faults: dict[tuple[str, int], str] = {}
    witnesses: dict[tuple[str, int], Witness] = {}
    for key, (one, why) in changed.items():
        known = led.get(one.prefix.name.log)
        try:
            # Records below the boundary can't be read any more: the first one behind it tells.
            witnesses[key] = witness_of(
                one.prefix, one.prefix.boundary + 1, -1 if known is None else known.high_watermark
            )
        except ChangedUnderUsError:
            faults[key] = why
    faults |= other_than(cluster, witnesses, meanwhile)
    for key, fault in faults.items():
        one, why = changed[key]
        raise ReleasedTooMuchError(
            f"{root}: log {one.prefix.name.log}: expected its leader of epoch {one.live.leader_epoch} to "
            f"begin at offset {one.prefix.boundary}, found that {why}, and nothing shows that it had the "
            f"records that are proven ({fault}). What it had below offset {one.prefix.boundary} is "
            "deleted. Compare the lake with what producers sent, and look for an unclean election."
        )
