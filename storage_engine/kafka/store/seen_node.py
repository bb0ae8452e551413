"""What a snapshot of a node was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.metadata.topic_settings import TopicSettings
from storage_engine.kafka.rules import RetentionSettings
from storage_engine.kafka.store.plan import SeenLog
from storage_engine.model.store.store import LogSnapshot, StoreSnapshot


@dataclass(frozen=True, slots=True)
class SeenNode:
    """What a snapshot was made of.

    :param known: logs with all that was found of each, by name.
    """

    logs: tuple[LogSnapshot, ...]
    node: Node
    known: Mapping[str, SeenLog]


def logs_of(
    seen: SeenNode, snapshot: StoreSnapshot, topics: TopicSettings
) -> Iterator[tuple[SeenLog, RetentionSettings | str]]:
    """Yield a snapshot's logs with how long their topics' segments stay."""
    of_topics: dict[str, RetentionSettings | str] = {}
    for one in snapshot.logs:
        found = seen.known.get(one.name)
        if found is None:
            continue
        topic = found.log.name.topic
        if topic not in of_topics:
            of_topics[topic] = topics.of(topic)
        yield found if found.seen is one else replace(found, seen=one), of_topics[topic]
