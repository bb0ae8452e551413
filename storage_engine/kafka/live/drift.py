"""What somebody else, or time, did to held topics: what is remembered against what is found. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from storage_engine.kafka.live.hold_state import HoldState, KnownLog, TopicSetting
from storage_engine.kafka.live_facts import LivePartition
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.wording import time_text

FoundSettings = Mapping[str, Mapping[str, TopicSetting]]
"""By topic and key, as the cluster says them; a topic that is missing wasn't answered."""


def all_drift(
    state: HoldState,
    settings: FoundSettings,
    logs: Mapping[str, LivePartition],
    here: Collection[str],
    now_ms: int,
) -> Iterator[Drift]:
    """Yield what isn't as it is remembered. What wasn't answered isn't known, and tells nothing.

    :param logs: those that the cluster tells of; one that is missing wasn't answered.
    :param here: names of the logs that this node has a directory of.
    """
    for held in state.settings:
        found = settings.get(held.topic, {}).get(held.key)
        if found is None or held.is_ours(found):
            continue
        whose = "the topic's own" if found.is_own else "the brokers', as the topic has none of its own"
        yield Drift(
            DriftKind.SETTING_CHANGED,
            f"topic {held.topic}: {held.key}: expected {held.ours[-1]}, which the hold has set, found "
            f"{found.value}, {whose}: somebody set it between {time_text(state.looked_at_ms)} and "
            f"{time_text(now_ms)}. Find out who does: an operator that applies what is declared sets it "
            "again each time. Declare the value that the hold sets, or leave the key out there.",
            log=held.topic,
        )
    for name, known in state.logs.items():
        live = logs.get(name)
        if name not in here:
            yield Drift(
                DriftKind.TOPIC_REPLACED,
                f"log {name}: expected its directory on this node, found none: its topic was deleted, or its "
                f"replica moved to another node, between {time_text(state.looked_at_ms)} and "
                f"{time_text(now_ms)}. What the lake has of it stays there. Find out who did it.",
                log=name,
            )
        elif live is not None:
            yield from _of_log(name, known, live, state.looked_at_ms, now_ms)


def _of_log(name: str, known: KnownLog, live: LivePartition, before_ms: int, now_ms: int) -> Iterator[Drift]:
    when = f"between {time_text(before_ms)} and {time_text(now_ms)}"
    if live.topic_id is not None and str(live.topic_id) != known.topic_id:
        yield Drift(
            DriftKind.TOPIC_REPLACED,
            f"log {name}: expected the topic with id {known.topic_id}, found {live.topic_id}: it was deleted "
            f"and made again {when}. What the lake has of it stays there, and nothing is deleted by it. Find "
            "out who did it.",
            log=name,
        )
        return
    if live.leader is not None and (live.leader, live.replicas) != (known.leader, known.replicas):
        yield Drift(
            DriftKind.LEADER_MOVED,
            f"log {name}: expected leader {known.leader} of replicas {_nodes(known.replicas)}, found "
            f"{live.leader} of {_nodes(live.replicas)}: it moved {when}",
            log=name,
        )
    begins = max(known.log_start, known.let_go)
    if live.log_start is not None and live.log_start > begins:
        yield Drift(
            DriftKind.SEGMENT_GONE,
            f"log {name}: expected it to begin at offset {begins}, found that its leader begins at "
            f"{live.log_start}: records of offsets [{begins}, {live.log_start}) went {when}, not by us. Run "
            "verify, which tells what of them is in the lake.",
            log=name,
            start_offset=begins,
            end_offset=live.log_start,
        )
    if live.high_watermark is not None and live.high_watermark < known.high_watermark:
        yield Drift(
            DriftKind.RECORDS_CUT,
            f"log {name}: expected its replicas to have records up to offset {known.high_watermark}, found "
            f"up to {live.high_watermark} by leader {live.leader}: records were lost {when}, as by an "
            "unclean election. Nothing of the log is deleted unless its leader still has what is archived.",
            log=name,
            start_offset=live.high_watermark,
            end_offset=known.high_watermark,
        )


def _nodes(replicas: tuple[int, ...]) -> str:
    return ", ".join(map(str, replicas)) or "none"


def as_found(
    state: HoldState, settings: FoundSettings, logs: Mapping[str, LivePartition], here: Collection[str]
) -> HoldState:
    """Return the state that goes on from what is found, once its drift is recorded.

    A setting that somebody else set is theirs: restored is what they set. Of a topic that was made again
    nothing is ours.
    """
    replaced = {
        name.rpartition("-")[0]
        for name, known in state.logs.items()
        if (live := logs.get(name)) and live.topic_id is not None and str(live.topic_id) != known.topic_id
    }
    kept = []
    for held in state.settings:
        found = settings.get(held.topic, {}).get(held.key)
        if held.topic in replaced or (found is not None and not held.is_ours(found)):
            continue
        if found is not None and not held.is_set and found.value == held.ours[-1] and found.is_own:
            held = replace(held, ours=held.ours[-1:], is_set=True)
        kept.append(held)
    remembered = {
        name: known
        for name, known in state.logs.items()
        if name in here and name.rpartition("-")[0] not in replaced
    }
    return replace(state, settings=tuple(kept), logs=remembered)


def known_log(live: LivePartition, before: KnownLog | None) -> KnownLog | None:
    """Return what is remembered of a log from here on; None: too little of it is known."""
    if live.topic_id is None or live.leader is None or live.log_start is None or live.high_watermark is None:
        return before
    return KnownLog(
        str(live.topic_id),
        live.leader,
        -1 if live.leader_epoch is None else live.leader_epoch,
        live.replicas,
        live.log_start,
        live.high_watermark,
        -1 if before is None else before.let_go,
    )
