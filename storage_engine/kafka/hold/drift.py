"""Drift of held topics: changes by other programs since the remembered state. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from storage_engine.core.wording import time_text
from storage_engine.kafka.format.checkpoints import LeaderEpoch
from storage_engine.kafka.format.layout import LivePartition
from storage_engine.kafka.format.partition_metadata import log_id_text, text_of
from storage_engine.kafka.hold.hold_state import HoldState, KnownLog, TopicSetting
from storage_engine.kafka.hold.needed_retention import let_go_by_others, set_by_another
from storage_engine.model.hold import Drift, DriftKind

FoundSettings = Mapping[str, Mapping[str, TopicSetting]]
"""Settings by topic and key, as the cluster answered. A topic without an answer is left out."""


@dataclass(frozen=True, slots=True)
class FoundLogs:
    """The present state of held logs.

    :param told: the cluster's facts about these logs. A log without an answer is left out.
    :param here: names of the logs that have a directory on this node.
    :param elsewhere: the cluster's facts about remembered logs that aren't on this node.
    :param epochs: for logs whose leader has changed, the leaders' epochs from this node's file, or a text
        that says why they aren't known.
    :param failed: faults of the node's failed log directories, as clauses, by path.
    :param cluster_id: "" if not known.
    """

    told: Mapping[str, LivePartition]
    here: Collection[str]
    elsewhere: Mapping[str, LivePartition] = field(default_factory=dict)
    epochs: Mapping[str, tuple[LeaderEpoch, ...] | str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    node_id: int | None = None
    cluster_id: str = ""

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return the ids of topics by name. Ids that the cluster doesn't tell are left out."""
        logs = {**self.elsewhere, **self.told}.items()
        return {
            name.rpartition("-")[0]: str(partition.topic_id)
            for name, partition in logs
            if partition.topic_id is not None
        }

    def may_be_in_failed(self, name: str, log: KnownLog) -> bool:
        """Return whether a missing log may lie in a failed directory."""
        live = self.elsewhere.get(name)
        if not self.failed:
            return False
        if live is None or live.topic_id is None:
            return True
        return str(live.topic_id) == log.topic_id and self.node_id in (None, *live.replicas)


def all_drift(
    state: HoldState, logs: FoundLogs, settings: FoundSettings, now_ms: int, others: Sequence[HoldState] = ()
) -> Iterator[Drift]:
    """Yield differences between the remembered and the present state, where the cluster has answered.

    :param others: the remembered holds of the journal's other stores. Their changes are no drift.
    """
    for held in state.settings:
        setting = settings.get(held.topic, {}).get(held.key)
        if setting is None or held.is_ours(setting) or set_by_another(others, held, setting):
            continue
        # A topic that was created again has settings of its own: no held setting was changed.
        if logs.topic_ids.get(held.topic, held.topic_id) != held.topic_id:
            continue
        if held.is_left and setting == held.original:
            continue
        whose = "the topic's own" if setting.is_own else "the brokers', as the topic has none of its own"
        yield Drift(
            DriftKind.SETTING_CHANGED,
            f"topic {held.topic}: {held.key}: expected {held.ours[-1]}, which the hold has set, found "
            f"{setting.value}, {whose}: another program set it between {time_text(state.looked_at_ms)} and "
            f"{time_text(now_ms)}. Find out which program does: an operator that applies what is declared "
            "sets it again each time. Declare the value that the hold sets, or leave the key out there.",
            log=held.topic,
        )
    when = f"between {time_text(state.looked_at_ms)} and {time_text(now_ms)}"
    for path, reason in logs.failed.items():
        yield Drift(
            DriftKind.DIRECTORY_FAILED,
            f"log directory {path}: expected that its broker serves the logs in it, found that {reason}. "
            "Mend its disk and start the broker again, or take the directory out of log.dirs.",
        )
    for name, log in state.logs.items():
        live = logs.told.get(name)
        if name in logs.here:
            if live is not None:
                let_go = max(log.let_go, let_go_by_others(others, name, log.topic_id))
                yield from _log_drift(name, replace(log, let_go=let_go), live, logs.cluster_id, when)
                yield from _epoch_drift(name, log, live, logs.epochs.get(name, ()), when)
        elif not log.is_away and not logs.may_be_in_failed(name, log):
            yield _missing_log(name, log, logs.elsewhere.get(name), logs, when)


def _missing_log(name: str, log: KnownLog, live: LivePartition | None, logs: FoundLogs, when: str) -> Drift:
    node_id = logs.node_id
    same = live is not None and live.topic_id is not None and str(live.topic_id) == log.topic_id
    if same and live is not None and node_id in live.replicas:
        return Drift(
            DriftKind.DIRECTORY_FAILED,
            f"log {name}: expected its directory on this node, {node_id}, which has a replica of it by the "
            f"cluster's word, found none: it went {when}. What it has is unknown. Find out if its disk is "
            "mounted and sound.",
            log=name,
        )
    if same and live is not None:
        return Drift(
            DriftKind.REASSIGNED,
            f"log {name}: expected its directory on this node, found none: its replicas are on nodes "
            f"{_nodes(live.replicas)}, and were on {_nodes(log.replicas)}. It moved {when}. What the lake "
            "has of it stays there. Archive it from a node that has it.",
            log=name,
        )
    if live is not None and live.topic_id is not None:
        return _remade_topic(name, log, live, logs.cluster_id, when)
    remark = f", and the cluster says: {live.refused[0]}" if live is not None and live.refused else ""
    return _deleted_topic(
        name,
        log,
        logs.cluster_id,
        f"log {name}: expected its directory on this node, found none{remark}: its topic was deleted, or its "
        f"replica moved to another node, {when}. The lake's records of it stay. Find out who did it.",
    )


def _remade_topic(name: str, log: KnownLog, live: LivePartition, cluster_id: str, when: str) -> Drift:
    assert live.topic_id is not None
    return _deleted_topic(
        name,
        log,
        cluster_id,
        f"log {name}: expected the topic with id {text_of(uuid.UUID(log.topic_id))}, found "
        f"{text_of(live.topic_id)}: it was deleted and made again {when}. What the lake has of it stays "
        "there, and nothing is deleted by it. Find out who did it.",
    )


def _deleted_topic(name: str, log: KnownLog, cluster_id: str, text: str) -> Drift:
    """Return the drift of a log whose topic was deleted, with the log's offsets at the last look."""
    first, end = max(log.log_start, log.let_go), log.high_watermark
    had = f"had records of offsets [{first}, {end})" if first < end else "had no records"
    return Drift(
        DriftKind.TOPIC_REPLACED,
        f"{text} At the look before, it {had}; what came after that is unknown.",
        log=name,
        start_offset=first if first < end else -1,
        end_offset=end if first < end else -1,
        log_id=_log_id(name, log, cluster_id) if first < end else "",
    )


def _log_id(name: str, log: KnownLog, cluster_id: str) -> str:
    """Return the log's identity, in the form of ``Receipt.log_id``; "" if the cluster is unknown."""
    partition = int(name.rpartition("-")[2])
    return log_id_text(cluster_id, uuid.UUID(log.topic_id), partition) if cluster_id else ""


def _log_drift(name: str, log: KnownLog, live: LivePartition, cluster_id: str, when: str) -> Iterator[Drift]:
    if live.topic_id is not None and str(live.topic_id) != log.topic_id:
        yield _remade_topic(name, log, live, cluster_id, when)
        return
    if live.replicas and set(live.replicas) != set(log.replicas):
        yield Drift(
            DriftKind.REASSIGNED,
            f"log {name}: expected replicas on nodes {_nodes(log.replicas)}, found "
            f"{_nodes(live.replicas)}: it was reassigned, or is being, {when}",
            log=name,
        )
    if live.leader is not None and live.leader != log.leader:
        yield Drift(
            DriftKind.LEADER_MOVED,
            f"log {name}: expected leader {log.leader}, found {live.leader} of replicas "
            f"{_nodes(live.replicas)}: it moved {when}",
            log=name,
        )
    begins = max(log.log_start, log.let_go)
    if live.log_start is not None and live.log_start > begins:
        yield Drift(
            DriftKind.SEGMENT_GONE,
            f"log {name}: expected it to begin at offset {begins}, found that its leader begins at "
            f"{live.log_start}: records of offsets [{begins}, {live.log_start}) went {when}, not by us. Run "
            "verify, which tells what of them is in the lake.",
            log=name,
            start_offset=begins,
            end_offset=live.log_start,
            log_id=_log_id(name, log, cluster_id),
        )
    if live.high_watermark is not None and live.high_watermark < log.high_watermark:
        yield _cut_drift(
            name,
            (live.high_watermark, log.high_watermark),
            f"found up to {live.high_watermark} by leader {live.leader}: records were lost {when}, as by an "
            "unclean election",
        )


def _epoch_drift(
    name: str, log: KnownLog, live: LivePartition, epochs: tuple[LeaderEpoch, ...] | str, when: str
) -> Iterator[Drift]:
    """Yield drift if a later leader's records begin below the high watermark of the last look.

    Then records were lost. Also yield drift if the leaders' epochs can't be read.
    """
    if live.topic_id is None or str(live.topic_id) != log.topic_id:
        return
    if isinstance(epochs, str):
        yield Drift(
            DriftKind.RECORDS_CUT,
            f"log {name}: expected its leaders' epochs, found that they can't be read: {epochs}. Whether it "
            f"lost records as its leader changed {when} is unknown, and nothing of it is deleted unless its "
            "leader still has what is archived.",
            log=name,
        )
        return
    if log.leader_epoch < 0 or (live.high_watermark or 0) < log.high_watermark:
        return
    later = [epoch for epoch in epochs if epoch.epoch > log.leader_epoch]
    if later and later[0].start_offset < log.high_watermark:
        yield _cut_drift(
            name,
            (later[0].start_offset, log.high_watermark),
            f"found that the leader of epoch {later[0].epoch} took others from offset "
            f"{later[0].start_offset} on: records were lost {when}, by an unclean election",
        )


def _cut_drift(name: str, lost: tuple[int, int], finding: str) -> Drift:
    return Drift(
        DriftKind.RECORDS_CUT,
        f"log {name}: expected its replicas to have their records up to offset {lost[1]}, {finding}. Nothing "
        "of the log is deleted unless its leader still has what is archived.",
        log=name,
        start_offset=lost[0],
        end_offset=lost[1],
    )


def _nodes(replicas: tuple[int, ...]) -> str:
    return ", ".join(map(str, replicas)) or "none"


def state_after_drift(
    state: HoldState, logs: FoundLogs, settings: FoundSettings, others: Sequence[HoldState] = ()
) -> HoldState:
    """Return the state to continue with, after its drift was recorded.

    If another program changed a setting, the setting is no longer ours, and its new value stays after the
    hold. If a topic was created again, none of its settings is ours any more. A log that is no longer on this
    node stays remembered while its topic is held.
    """
    ids, kept = logs.topic_ids, []
    for held in state.settings:
        setting = settings.get(held.topic, {}).get(held.key)
        if ids.get(held.topic, held.topic_id) != held.topic_id:
            continue
        if setting is not None and not (held.is_ours(setting) or set_by_another(others, held, setting)):
            continue
        if setting is not None and not held.is_set and setting.value == held.ours[-1] and setting.is_own:
            held = replace(held, ours=held.ours[-1:], is_set=True)
        kept.append(held)
    held_topics = {held.topic for held in kept}
    remembered = {}
    for name, log in state.logs.items():
        topic = name.rpartition("-")[0]
        if ids.get(topic, log.topic_id) != log.topic_id:
            continue
        if name in logs.here or logs.may_be_in_failed(name, log):
            remembered[name] = log
        elif topic in held_topics:
            remembered[name] = replace(log, is_away=True)
    return replace(state, settings=tuple(kept), logs=remembered)


def known_log(live: LivePartition, before: KnownLog | None) -> KnownLog | None:
    """Return the log's state to remember from now on; the previous state if the present one isn't known."""
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
