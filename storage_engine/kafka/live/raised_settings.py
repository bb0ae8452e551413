"""The settings that a hold raises and restores. Each change is remembered before the cluster gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from storage_engine.core.wording import duration_text, time_text
from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.cluster.client import TIMEOUT_SECONDS, Cluster
from storage_engine.kafka.hold.hold_state import HeldSetting, HoldState, TopicSetting, save_state
from storage_engine.kafka.hold.needed_retention import (
    TopicAge,
    needed_by_others,
    raise_values,
    relied_on,
    set_by_another,
    states_of_others,
    with_first_value,
)
from storage_engine.kafka.live.topic_state import (
    Bearable,
    ObservedNode,
    is_deleted,
    read_settings,
)
from storage_engine.model.hold import HoldMemory

StillAlone = Callable[[], None]

_SHORTEST_INTERVALS: Final = 4
"""Shortest useful hold, in intervals of the brokers' retention check. Topics aren't held for less."""


def rely_on_others(
    memory: HoldMemory, state: HoldState, topics: Sequence[TopicAge], others: Sequence[HoldState], now_ms: int
) -> HoldState:
    """Remember that topics need their present settings, including those that other stores have set."""
    added = {
        (setting.topic, setting.key): setting
        for topic in topics
        for setting in relied_on(topic, state, others, now_ms)
    }
    needed = {topic.topic for topic in topics}
    by_key = {(setting.topic, setting.key): setting for setting in state.settings} | added
    settings = tuple(
        replace(setting, is_left=False, since_ms=now_ms)
        if setting.is_left and setting.topic in needed
        else setting
        for setting in by_key.values()
    )
    if settings != state.settings:
        state = replace(state, settings=settings)
        save_state(memory, state)
    return state


@dataclass(frozen=True, slots=True)
class Raised:
    """The result of raising settings.

    :param state: the hold's state with the settings that the cluster has now.
    :param refused: why the cluster refused changes, by topic.
    :param too_short: why a hold would be too short, by topic.
    """

    state: HoldState
    refused: Mapping[str, str]
    too_short: Mapping[str, str]


def raise_settings(
    cluster: Cluster,
    memory: HoldMemory,
    state: HoldState,
    node: ObservedNode,
    still_alone: StillAlone,
    *,
    strict: bool,
    first_margin_ms: int | None = None,
) -> Raised:
    """Raise the settings that must be raised, after the change is remembered.

    :param still_alone: the check that :meth:`storage_engine.model.hold.HoldMemory.alone` returned.
    :param first_margin_ms: a setting that we haven't raised yet is raised if it keeps records for less than
        this. None means half of the hold, the limit for settings that we have raised.
    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer. It may have accepted a part of the changes.
    """
    changes: list[HeldSetting] = []
    too_short: dict[str, str] = {}
    for topic in node.topics:
        bears = node.bears[topic.topic]
        of_topic = raise_values(
            topic,
            state,
            node.at_ms,
            bears.kept_ms,
            strict=strict,
            interval_ms=node.interval_ms,
            first_margin_ms=None if first_margin_ms is None else min(first_margin_ms, bears.kept_ms),
        )
        if strict or bears.kept_ms >= _SHORTEST_INTERVALS * node.interval_ms:
            changes += of_topic
        elif any(of_topic):
            too_short[topic.topic] = _too_short(bears, node.interval_ms)
    if not changes:
        return Raised(state, {}, too_short)
    others = states_of_others(memory)
    before = {(change.topic, change.key) for change in changes}
    kept = tuple(setting for setting in state.settings if (setting.topic, setting.key) not in before)
    state = replace(state, settings=(*kept, *(with_first_value(others, change) for change in changes)))
    save_state(memory, state)
    values: dict[str, dict[str, int | None]] = {}
    for change in changes:
        values.setdefault(change.topic, {})[change.key] = change.ours[-1]
    still_alone()
    refused = change_settings(cluster, values)
    answers = read_settings(cluster, list(values))
    return Raised(
        replace(
            state, settings=tuple(_confirm(setting, answers.get(setting.topic)) for setting in state.settings)
        ),
        {topic: f"the cluster doesn't let us set it: {error.remark}" for topic, error in refused.items()},
        too_short,
    )


def _too_short(bears: Bearable, interval_ms: int) -> str:
    """Return why a hold would end before its change takes effect: ``hold_hours``, or the room on a disk."""
    least_ms = _SHORTEST_INTERVALS * interval_ms
    least = (
        f"{duration_text(least_ms)}, four of the brokers' rounds "
        f"(log.retention.check.interval.ms is {interval_ms})"
    )
    if bears.limit is None or bears.wanted_ms < least_ms:
        return (
            f"expected hold_hours of at least {least}, found {duration_text(bears.wanted_ms)}. "
            "No setting was changed. Raise hold_hours, or shorten the brokers' rounds"
        )
    return (
        f"expected disks that can bear a hold for {least}, found {duration_text(bears.kept_ms)}: "
        f"{bears.limit}. No setting was changed. Archive and delete what is archived, or add space"
    )


def _confirm(
    held: HeldSetting, answer: Mapping[str, TopicSetting] | BrokerRefusedError | None
) -> HeldSetting:
    if answer is None or isinstance(answer, BrokerRefusedError):
        return held
    setting = answer[held.key]
    if setting.is_own and setting.value == held.ours[-1]:
        return replace(held, ours=held.ours[-1:], is_set=True)
    return held


@dataclass(frozen=True, slots=True)
class SettingsPutBack:
    """The result of restoring settings.

    :param kept: settings that aren't restored. Their first values must stay remembered.
    :param unsettled: why a person has to act, by topic. Such a topic has settings in ``kept``.
    :param notices: notices about settings that another program has changed or another store still needs.
    :param ended: notices about stores that we don't wait for, because their holds were not renewed.
    """

    kept: tuple[HeldSetting, ...]
    unsettled: Mapping[str, str]
    notices: tuple[str, ...]
    ended: tuple[str, ...] = ()


def put_back(
    cluster: Cluster,
    memory: HoldMemory,
    state: HoldState,
    wanted: Sequence[HeldSetting],
    topic_ids: Mapping[str, str],
    now_ms: int,
    still_alone: StillAlone,
) -> SettingsPutBack:
    """Restore settings, after it is remembered that we no longer need them.

    A value that another program has set stays. A setting that another store of the journal still needs stays,
    too, and that store restores it. A first value is forgotten once it is restored, or once its topic is
    deleted.

    :param topic_ids: the topics' present ids, as far as the cluster tells them.
    :param still_alone: the check that :meth:`storage_engine.model.hold.HoldMemory.alone` returned.
    :raises StoreBusyError: another store changes settings of the cluster.
    :raises BrokerError: the cluster doesn't answer. It may have accepted a part of the changes.
    """
    if not wanted:
        return SettingsPutBack((), {}, ())
    keys = {(held.topic, held.key) for held in wanted}
    marked = tuple(
        replace(held, is_left=True) if (held.topic, held.key) in keys else held for held in state.settings
    )
    save_state(memory, replace(state, settings=marked))
    others = states_of_others(memory)
    answers = read_settings(cluster, sorted({held.topic for held in wanted}))
    notices: list[str] = []
    not_waited_for: list[str] = []
    unsettled: dict[str, str] = {}
    back: dict[str, dict[str, int | None]] = {}
    kept: list[HeldSetting] = []
    for held in wanted:
        answer = answers.get(held.topic)
        if is_deleted(answer) or topic_ids.get(held.topic, held.topic_id) != held.topic_id:
            reason = "the topic was deleted" if is_deleted(answer) else "it is another topic by now"
            notices.append(f"topic {held.topic}: {held.key} was not put back: {reason}")
            continue
        if answer is None or isinstance(answer, BrokerRefusedError):
            remark = "nothing" if answer is None else answer.remark
            unsettled[held.topic] = f"asked for its settings, the cluster answers: {remark}"
            kept.append(held)
            continue
        setting = answer[held.key]
        if setting == held.original:
            continue
        if not (held.is_ours(setting) or set_by_another(others, held, setting)):
            notices.append(
                f"topic {held.topic}: {held.key} is {setting.value}: another program set it, so it wasn't "
                f"put back to {held.original.value}"
            )
            continue
        needing, ended = needed_by_others(others, held, now_ms)
        if needing:
            notices.append(
                f"topic {held.topic}: {held.key} stays {setting.value}: another store of this journal has a "
                "replica of it, still needs that, and puts it back"
            )
            kept.append(held)
            if not any(change.has_set(setting) for change in needing):
                unsettled[held.topic] = f"the other store that needs it hasn't seen {held.key} as it is yet"
            continue
        not_waited_for += (_not_waited_for(held, hold.looked_at_ms) for hold in ended)
        back.setdefault(held.topic, {})[held.key] = held.original.value if held.original.is_own else None
    if back:
        still_alone()
        refused = change_settings(cluster, back)
        unsettled |= {
            topic: f"the cluster doesn't let us set it: {error.remark}" for topic, error in refused.items()
        }
        kept += [held for held in wanted if held.key in back.get(held.topic, {}) and held.topic in refused]
    return SettingsPutBack(
        tuple(replace(held, is_left=True) for held in kept), unsettled, tuple(notices), tuple(not_waited_for)
    )


def _not_waited_for(held: HeldSetting, looked_at_ms: int) -> str:
    return (
        f"topic {held.topic}: {held.key} was needed by another store of this journal, which was last "
        f"looked at at {time_text(looked_at_ms)}. Its hold has ended by itself, so it isn't waited for. "
        "Hold that store again, or unmanage it"
    )


def change_settings(
    cluster: Cluster, wanted: Mapping[str, Mapping[str, int | None]]
) -> Mapping[str, BrokerRefusedError]:
    """Change settings of topics. Other settings of these topics stay.

    :param wanted: values by topic and key. None removes the topic's own value, so that its brokers' value
        applies.
    :return: the cluster's refusals, by topic. The settings of other topics are changed.
    :raises BrokerUnavailableError: no broker answers; some settings may have been changed.
    """
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    def entry(key: str, value: int | None) -> ConfigEntry:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        text = None if value is None else str(value)
        return ConfigEntry(key, text, incremental_operation=operation)

    def ask(some: Sequence[str]) -> Any:
        resources = [
            ConfigResource(
                ConfigResource.Type.TOPIC,
                name,
                incremental_configs=[entry(key, value) for key, value in wanted[name].items()],
            )
            for name in some
        ]
        return cluster.admin.incremental_alter_configs(resources, request_timeout=TIMEOUT_SECONDS)

    refused: dict[str, BrokerRefusedError] = {}
    for resource, answer in cluster.answers("a change of settings", list(wanted), ask):
        if isinstance(answer, BrokerRefusedError):
            refused[resource.name] = answer
    return refused
