"""The broker's own records in ``config``: topics, groups, and how far each group has consumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq import fastjson
from storage_engine.rocketmq.layout import StoreLayout

TOPIC_GROUP_SEPARATOR = "@"


class ConsumerOffset(NamedTuple):
    """A group's next queue offset in one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as the broker has it (TopicConfig)."""

    topic: str
    read_queues: int
    write_queues: int
    permission: int


def topics(layout: StoreLayout) -> tuple[TopicConfig, ...]:
    """Every topic in ``topics.json``, system topics included, by name.

    :raises CorruptFileError: neither the file nor its backup can be read as what it is.
    """
    path = layout.config / "topics.json"
    table = _table(path, "topicConfigTable")
    try:
        found = [
            TopicConfig(str(name), int(it["readQueueNums"]), int(it["writeQueueNums"]), int(it["perm"]))
            for name, it in table.items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong(path, f"readQueueNums, writeQueueNums and perm of each topic ({error!r})") from error
    return tuple(sorted(found, key=lambda topic: topic.topic))


def groups(layout: StoreLayout) -> tuple[str, ...]:
    """Names of the consumer groups in ``subscriptionGroup.json``.

    :raises CorruptFileError: neither the file nor its backup can be read as what it is.
    """
    return tuple(sorted(map(str, _table(layout.config / "subscriptionGroup.json", "subscriptionGroupTable"))))


def consumer_offsets(layout: StoreLayout) -> tuple[ConsumerOffset, ...]:
    """How far each group has consumed each queue, as last persisted (the broker does it every 5 s).

    A broker with light message queues (enableLmq) keeps them in ``lmqConsumerOffset.json``, one without in
    ``consumerOffset.json``. Where both are left, the lower offset counts: lag is never made smaller.

    :raises CorruptFileError: neither a file nor its backup can be read as what it is.
    """
    lowest: dict[tuple[str, str, int], int] = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        path = layout.config / name
        try:
            for key, offset in _offsets(_read(path)):
                lowest[key] = min(offset, lowest.get(key, offset))
        except (TypeError, ValueError, AttributeError) as error:
            raise _wrong(path, f"offsets by topic@group and queue ({error})") from error
    return tuple(ConsumerOffset(*key, offset) for key, offset in sorted(lowest.items()))


def filtered_subscriptions(layout: StoreLayout) -> tuple[tuple[str, str], ...]:
    """(group, topic) of each subscription with an SQL filter, dead ones included (ConsumerFilterManager).

    The only subscriptions that a broker writes down.

    :raises CorruptFileError: neither ``consumerFilter.json`` nor its backup can be read as what it is.
    """
    path = layout.config / "consumerFilter.json"
    try:
        return tuple(
            sorted(
                (str(group), str(topic))
                for topic, filters in _table(path, "filterDataByTopic").items()
                for group in filters["groupFilterData"]
            )
        )
    except (KeyError, TypeError) as error:
        raise _wrong(path, f"groupFilterData of each topic ({error!r})") from error


def delay_offsets(layout: StoreLayout) -> dict[int, int]:
    """Next queue offset of SCHEDULE_TOPIC_XXXX to deliver, by delay level (1, 2, …).

    :raises CorruptFileError: neither ``delayOffset.json`` nor its backup can be read as what it is.
    """
    path = layout.config / "delayOffset.json"
    try:
        return {int(level): int(offset) for level, offset in _table(path, "offsetTable").items()}
    except (TypeError, ValueError) as error:
        raise _wrong(path, f"an offset for each delay level ({error})") from error


def _offsets(content: Any) -> list[tuple[tuple[str, str, int], int]]:
    found = []
    for name, queues in content.get("offsetTable", {}).items():
        topic, group = _topic_and_group(name)
        found += [((group, topic, int(queue)), int(offset)) for queue, offset in queues.items()]
    # LmqConsumerOffsetManager: a light message queue has one queue, 0
    for name, offset in content.get("lmqOffsetTable", {}).items():
        topic, group = _topic_and_group(name)
        found.append(((group, topic, 0), int(offset)))
    return found


def _topic_and_group(name: str) -> tuple[str, str]:
    topic, separator, group = name.partition(TOPIC_GROUP_SEPARATOR)
    if not (topic and separator and group):
        raise ValueError(f"{name!r} is not topic@group")
    return topic, group


def _table(path: Path, name: str) -> dict[Any, Any]:
    table = _read(path).get(name, {})
    if not isinstance(table, dict):
        raise _wrong(path, f"an object {name}")
    return table


def _read(path: Path) -> dict[Any, Any]:
    """A config file's content; its backup's when it is missing, empty or broken (ConfigManager#load).

    Empty when there is neither: the broker had nothing to write yet.
    """
    errors = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            text = candidate.read_bytes().decode("utf-8")
        except FileNotFoundError:
            continue
        except UnicodeDecodeError as error:
            errors.append(f"{candidate}: not UTF-8 at byte {error.start}")
            continue
        if not text:
            continue
        try:
            content = fastjson.loads(text)
        except fastjson.FastjsonError as error:
            errors.append(f"{candidate}: {error}")
            continue
        if isinstance(content, dict):
            return content
        errors.append(f"{candidate}: at character 0: expected an object")
    if errors:
        raise CorruptFileError(
            "; ".join(errors) + ". Neither the file nor its backup can be read; restore one of them."
        )
    return {}


def _wrong(path: Path, expected: str) -> CorruptFileError:
    return CorruptFileError(f"{path}: expected {expected}. Restore the file from its backup.")
