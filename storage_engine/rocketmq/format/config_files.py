"""Records in ``config``: topics, groups, subscriptions. For consumer offsets see ``consumer_offsets``.

The readers raise CorruptFileError if neither a file nor its backup is readable and well-formed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError, CorruptFileError
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.rocketmq.format import fastjson
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.queue_files import iter_queues
from storage_engine.rocketmq.format.stored_files import read_stored

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Configuration of a topic in the broker (TopicConfig)."""

    topic: str
    read_queues: int
    write_queues: int
    permission: int


def topics(layout: StoreLayout) -> tuple[TopicConfig, ...]:
    """Return every topic in ``topics.json``, system topics included, sorted by name."""

    def parse(data: bytes) -> tuple[TopicConfig, ...]:
        configs = [
            TopicConfig(str(name), _int(row["readQueueNums"]), _int(row["writeQueueNums"]), _int(row["perm"]))
            for name, row in _table(data, "topicConfigTable").items()
        ]
        return tuple(sorted(configs, key=lambda topic: topic.topic))

    expected = "readQueueNums, writeQueueNums and perm of each topic"
    return read_config(layout.config / "topics.json", parse, expected) or ()


def batch_topics(layout: StoreLayout) -> frozenset[str]:
    """Return the topics that have batch consume queues (QueueTypeUtils#isBatchCq).

    If neither the file nor its backup can be read, return the topics that have such queues on disk.
    """

    def parse(data: bytes) -> frozenset[str]:
        return frozenset(
            str(name)
            for name, row in _table(data, "topicConfigTable").items()
            if (row.get("attributes") or {}).get("queue.type") == "BatchCQ"
        )

    try:
        names = read_config(layout.config / "topics.json", parse, "the attributes of each topic")
    except (BadInputError, OSError):
        return frozenset(queue.topic for queue in iter_queues(layout.batchconsumequeue))
    return names or frozenset()


def groups(layout: StoreLayout) -> tuple[str, ...]:
    """Return the names of the consumer groups in ``subscriptionGroup.json``."""

    def parse(data: bytes) -> tuple[str, ...]:
        return tuple(sorted(map(str, _table(data, "subscriptionGroupTable"))))

    return read_config(layout.config / "subscriptionGroup.json", parse, "a table of groups") or ()


def filtered_subscriptions(layout: StoreLayout) -> tuple[tuple[str, str], ...]:
    """Return group and topic of each subscription with an SQL filter (ConsumerFilterManager).

    Dead subscriptions are included. A broker writes subscriptions without such a filter to no file.
    """

    def parse(data: bytes) -> tuple[tuple[str, str], ...]:
        return tuple(
            sorted(
                (str(group), str(topic))
                for topic, filters in _table(data, "filterDataByTopic").items()
                for group in filters["groupFilterData"]
            )
        )

    return read_config(layout.config / "consumerFilter.json", parse, "groupFilterData of each topic") or ()


def delay_offsets(layout: StoreLayout) -> dict[int, int]:
    """Return the queue offset of the next delivery in SCHEDULE_TOPIC_XXXX, by delay level (1, 2, …)."""

    def parse(data: bytes) -> dict[int, int]:
        items = _table(data, "offsetTable").items()
        return {_int(level): _check_range(offset, 0, 1 << 63) for level, offset in items}

    return read_config(layout.config / "delayOffset.json", parse, "an offset for each delay level") or {}


def read_config(path: Path, parse: Callable[[bytes], Content], expected: str) -> Content | None:
    """Return a config file's content, or that of its backup (ConfigManager#load).

    The backup is read if the file is missing, empty or unreadable.

    :param parse: parses the content; raises one of ``MALFORMED`` if it isn't that of such a file.
    :return: None if neither file exists, since the broker had nothing to write yet.
    :raises CorruptFileError: a file exists, and neither of the two can be read.
    """
    errors = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = read_stored(candidate)
            if data:
                return parse(data)
        except FileNotFoundError:
            continue
        except UnicodeDecodeError as error:
            errors.append(f"{candidate}: not UTF-8 at byte {error.start}")
        except fastjson.FastjsonError as error:
            errors.append(f"{candidate}: {error}")
        except CorruptFileError as error:
            errors.append(reason_of(error))
        except MALFORMED as error:
            errors.append(f"{candidate}: expected {expected}, found another ({error!r})")
    if errors:
        raise CorruptFileError(
            "; ".join(errors) + ". Neither the file nor its backup can be read; restore one of them."
        )
    return None


def parse_object(data: bytes) -> dict[Any, Any]:
    """Parse a config file, whose content must be an object.

    :raises FastjsonError, UnicodeDecodeError: the content is something else.
    """
    text = data.decode("utf-8")
    content = fastjson.loads(text)
    if not isinstance(content, dict):
        raise fastjson.FastjsonError(0, "an object", text)
    return content


def _table(data: bytes, name: str) -> dict[Any, Any]:
    table = parse_object(data).get(name, {})
    if not isinstance(table, dict):
        raise TypeError(f"expected an object {name}")
    return table


def _int(value: Any) -> int:
    """:raises ValueError: the value is outside the range of Java's int."""
    return _check_range(value, -(1 << 31), 1 << 31)


def _check_range(value: Any, low: int, end: int) -> int:
    number = int(value)
    if not low <= number < end:
        raise ValueError(f"{number} is not in [{low}, {end})")
    return number
