"""Settings that a hold raises and puts back: each change is remembered before the cluster is asked for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage_engine.exceptions import BrokerRefusedError, GateRefusedError
from storage_engine.kafka.live.client import Cluster
from storage_engine.kafka.live.hold_state import HeldSetting, HoldState, TopicSetting, save_state
from storage_engine.kafka.live.needed_retention import raised
from storage_engine.kafka.live.shared_holds import (
    needed_by_others,
    set_by_another,
    states_of_others,
    with_first_value,
)
from storage_engine.kafka.live.topic_ages import Observed
from storage_engine.kafka.live.topic_configs import change_settings, read_settings
from storage_engine.model.hold import HoldMemory
from storage_engine.wording import duration_text

_SHORTEST_INTERVALS: Final = 4
"""A hold that disks bear for less than so many of the brokers' rounds is none."""


def raise_settings(
    cluster: Cluster,
    memory: HoldMemory,
    state: HoldState,
    found: Observed,
    *,
    strict: bool,
    first_margin_ms: int | None = None,
) -> tuple[HoldState, Mapping[str, str]]:
    """Raise what has to be, once it is remembered.

    :param first_margin_ms: a setting that isn't ours yet is raised where it keeps records for less; None: as
        ours are, for less than half of the hold.
    :return: the state, in which what the cluster now says is set; and why topics couldn't be changed.
    :raises GateRefusedError: the disks can't bear it; nothing was changed.
    :raises BrokerError: the cluster can't be asked, or may have taken a part of the changes.
    """
    changes = [
        change
        for topic in found.topics
        for change in raised(
            topic,
            state,
            found.at_ms,
            found.kept_ms,
            strict=strict,
            interval_ms=found.interval_ms,
            first_margin_ms=first_margin_ms,
        )
    ]
    if not changes:
        return state, {}
    if found.kept_ms < _SHORTEST_INTERVALS * found.interval_ms and not strict:
        raise GateRefusedError(
            f"expected disks that can bear a hold, found that they are full within "
            f"{duration_text(found.kept_ms)} as fast as the logs grow. No setting was changed. Archive and "
            "delete what is archived, or add space."
        )
    others = states_of_others(memory)
    before = {(one.topic, one.key) for one in changes}
    kept = tuple(one for one in state.settings if (one.topic, one.key) not in before)
    changes = [replace(with_first_value(others, one), is_left=False) for one in changes]
    state = replace(state, settings=(*kept, *changes))
    save_state(memory, state)
    wanted: dict[str, dict[str, int | None]] = {}
    for change in changes:
        wanted.setdefault(change.topic, {})[change.key] = change.ours[-1]
    refused = change_settings(cluster, wanted)
    said = read_settings(cluster, list(wanted))
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


@dataclass(frozen=True, slots=True)
class PutBack:
    """What became of settings that were to be as they had been.

    :param kept: those that are still ours, as another store of the journal needs them, or the cluster
        refuses.
    :param refused: why the cluster didn't take them, by topic.
    :param notices: of what somebody else has set, or what isn't known.
    """

    kept: tuple[HeldSetting, ...]
    refused: Mapping[str, BrokerRefusedError]
    notices: tuple[str, ...]


def put_back(
    cluster: Cluster,
    memory: HoldMemory,
    state: HoldState,
    wanted: Sequence[HeldSetting],
    replaced: Collection[str],
) -> PutBack:
    """Put settings back as they were, once it is remembered that we need them no more.

    What somebody else has set stays as they set it. What another store of the journal still needs stays, too:
    that one puts it back.

    :param replaced: topics that are other ones by now.
    :raises BrokerError: the cluster can't be asked, or may have taken a part of it.
    """
    if not wanted:
        return PutBack((), {}, ())
    left = {(one.topic, one.key) for one in wanted}
    marked = tuple(
        replace(one, is_left=True) if (one.topic, one.key) in left else one for one in state.settings
    )
    save_state(memory, replace(state, settings=marked))
    others = states_of_others(memory)
    said = read_settings(cluster, sorted({one.topic for one in wanted}))
    notices: list[str] = []
    back: dict[str, dict[str, int | None]] = {}
    kept: list[HeldSetting] = []
    for held in wanted:
        answer = said.get(held.topic)
        if held.topic in replaced or answer is None or isinstance(answer, BrokerRefusedError):
            why = "it is another topic by now" if held.topic in replaced else "the cluster doesn't tell of it"
            notices.append(f"topic {held.topic}: {held.key} was not put back: {why}")
            continue
        found = answer[held.key]
        if found == held.original:
            continue
        if not (held.is_ours(found) or set_by_another(others, held, found)):
            notices.append(
                f"topic {held.topic}: {held.key} is {found.value}: somebody set it, so it wasn't put back to "
                f"{held.original.value}"
            )
        elif needed_by_others(others, held):
            notices.append(
                f"topic {held.topic}: {held.key} stays {found.value}: another store of this journal has a "
                "replica of it, still needs that, and puts it back"
            )
            kept.append(replace(held, is_left=True))
        else:
            to = held.original.value if held.original.is_own else None
            back.setdefault(held.topic, {})[held.key] = to
    refused = change_settings(cluster, back) if back else {}
    kept += [replace(one, is_left=True) for one in wanted if one.topic in refused]
    return PutBack(tuple(kept), refused, tuple(notices))
