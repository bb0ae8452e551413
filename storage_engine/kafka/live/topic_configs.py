"""Settings of topics, read from a running cluster with their sources, and changed there; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage_engine.exceptions import BrokerRefusedError
from storage_engine.kafka.cluster.client import TIMEOUT_SECONDS, Cluster
from storage_engine.kafka.hold.hold_state import HELD_SETTINGS, TopicSetting

CHECK_INTERVAL = "log.retention.check.interval.ms"
_DEFAULT_INTERVAL_MS = 300_000


_NO_SUCH_TOPIC = 3
"""UNKNOWN_TOPIC_OR_PARTITION of Kafka's protocol (Errors); who may not know has another code."""


def is_deleted(answer: object) -> bool:
    """Return whether a cluster says that it has no such topic."""
    return isinstance(answer, BrokerRefusedError) and answer.code == _NO_SUCH_TOPIC


def read_settings(
    cluster: Cluster, topics: Sequence[str]
) -> Mapping[str, Mapping[str, TopicSetting] | BrokerRefusedError]:
    """Ask for the settings by which topics' records expire; of a topic that is refused, its error.

    :raises BrokerUnavailableError: nobody answers.
    """
    from confluent_kafka.admin import ConfigResource, ConfigSource

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value

    def ask(some: Sequence[str]) -> Any:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in some]
        return cluster.admin.describe_configs(resources, request_timeout=TIMEOUT_SECONDS)

    found: dict[str, Mapping[str, TopicSetting] | BrokerRefusedError] = {}
    for resource, answer in cluster.answers("settings of topics", list(topics), ask):
        if isinstance(answer, BrokerRefusedError):
            found[resource.name] = answer
            continue
        missing = [key for key in HELD_SETTINGS if key not in answer or answer[key].value is None]
        found[resource.name] = (
            BrokerRefusedError(
                f"{cluster.address}: asked for settings of topic {resource.name}, the cluster doesn't say "
                f"{', '.join(missing)}",
                remark=f"the cluster doesn't say {', '.join(missing)}",
            )
            if missing
            else {
                key: TopicSetting(
                    int(answer[key].value),
                    int(getattr(answer[key].source, "value", answer[key].source)) == own,
                )
                for key in HELD_SETTINGS
            }
        )
    return found


def change_settings(
    cluster: Cluster, wanted: Mapping[str, Mapping[str, int | None]]
) -> Mapping[str, BrokerRefusedError]:
    """Change settings of topics; the others of each stay.

    :param wanted: by topic and key; None: the topic has it no more, so that its brokers' counts.
    :return: why the cluster refused, by topic. The settings of the others are changed.
    :raises BrokerUnavailableError: nobody answers; some may have been changed.
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


def check_interval_ms(cluster: Cluster, node_id: int | None, properties: Mapping[str, str]) -> int:
    """Return how often a node deletes what has expired; where nobody says it, Kafka's default.

    :param properties: of the node's own file.
    :raises BrokerUnavailableError: nobody answers.
    """
    from confluent_kafka.admin import ConfigResource

    said = properties.get(CHECK_INTERVAL, "")
    if node_id is not None:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
        asked = cluster.admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)
        for future in asked.values():
            try:
                found = cluster.answer("settings of the node", future).get(CHECK_INTERVAL)
            except BrokerRefusedError:
                continue
            said = said if found is None or found.value is None else found.value
    return int(said) if said.strip().isdecimal() else _DEFAULT_INTERVAL_MS
