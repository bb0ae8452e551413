"""Whether a person's word that topics were deleted can be meant, by what a node's files say. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from storage_engine.core.nearest import meant
from storage_engine.exceptions import BadInputError
from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.kafka.stopped.left_overs import deleted_directories, still_known
from storage_engine.kafka.stopped.lock_holder import runs


def words_for_nothing(node: Node, topics: Collection[str]) -> Iterator[str]:
    """Yield which words of a person are for nothing, as sentences.

    :raises BadInputError: a topic is there still, so that the word for it is wrong.
    """
    if topics and runs(node):
        yield (
            "Beside a running broker nothing is removed by a person's word: the broker itself removes what "
            "is left of deleted topics."
        )
        return
    settings = read_topic_settings(node)
    for topic in topics:
        left = [log for log in deleted_directories(node) if log.name.topic == topic]
        # Where it isn't known whether it is gone, nothing goes, and the task says so.
        if any(settings.unknown or not still_known(log, settings.metadata) for log in left):
            continue
        if found := _found(node, settings, topic):
            raise BadInputError(
                f"topic {topic}: expected a topic that was deleted, found that {found}, and that no deleted "
                "one of its name has left a -delete directory. Nothing was removed. Leave its "
                "--deleted-topic out."
            )
        if not left:
            names = {log.name.topic for log in deleted_directories(node)}
            yield (
                f"Topic {topic}: no -delete directory of this node has its name, so nothing of it is left to "
                f"be removed.{meant(topic, names)}"
            )


def _found(node: Node, settings: TopicSettings, topic: str) -> str:
    """Return by what a topic is there, as a clause; "": it isn't, as far as that is known."""
    if (topic_id := settings.metadata.topic_ids.get(topic)) is not None:
        return f"the cluster's metadata have it, with id {text_of(topic_id)}"
    here = next((log for _, log in node.logs if log.name.topic == topic), None)
    return "" if here is None else f"its log {here.path} is in use"
