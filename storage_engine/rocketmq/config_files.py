"""The broker's own records in ``config``: topics, groups, subscriptions. Offsets: ``consumer_offsets``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq import fastjson
from storage_engine.rocketmq.layout import StoreLayout

Content = TypeVar("Content")


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
        expected = f"readQueueNums, writeQueueNums and perm of each topic ({error!r})"
        raise wrong_content(path, expected) from error
    return tuple(sorted(found, key=lambda topic: topic.topic))


def groups(layout: StoreLayout) -> tuple[str, ...]:
    """Names of the consumer groups in ``subscriptionGroup.json``.

    :raises CorruptFileError: neither the file nor its backup can be read as what it is.
    """
    return tuple(sorted(map(str, _table(layout.config / "subscriptionGroup.json", "subscriptionGroupTable"))))


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
        raise wrong_content(path, f"groupFilterData of each topic ({error!r})") from error


def delay_offsets(layout: StoreLayout) -> dict[int, int]:
    """Next queue offset of SCHEDULE_TOPIC_XXXX to deliver, by delay level (1, 2, …).

    :raises CorruptFileError: neither ``delayOffset.json`` nor its backup can be read as what it is.
    """
    path = layout.config / "delayOffset.json"
    try:
        return {int(level): int(offset) for level, offset in _table(path, "offsetTable").items()}
    except (TypeError, ValueError) as error:
        raise wrong_content(path, f"an offset for each delay level ({error})") from error


def read_config(path: Path, parse: Callable[[bytes], Content]) -> Content | None:
    """A config file's content; its backup's when it is missing, empty or broken (ConfigManager#load).

    :param parse: raises FastjsonError or UnicodeDecodeError for what is broken.
    :return: None when there is neither: the broker had nothing to write yet.
    :raises CorruptFileError: there is something, and neither can be read.
    """
    errors = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        if not data:
            continue
        try:
            return parse(data)
        except UnicodeDecodeError as error:
            errors.append(f"{candidate}: not UTF-8 at byte {error.start}")
        except fastjson.FastjsonError as error:
            errors.append(f"{candidate}: {error}")
    if errors:
        raise CorruptFileError(
            "; ".join(errors) + ". Neither the file nor its backup can be read; restore one of them."
        )
    return None


def parse_object(data: bytes) -> dict[Any, Any]:
    """Parse a config file, which is an object.

    :raises FastjsonError, UnicodeDecodeError: it is something else.
    """
    text = data.decode("utf-8")
    content = fastjson.loads(text)
    if not isinstance(content, dict):
        raise fastjson.FastjsonError(0, "an object", text)
    return content


def wrong_content(path: Path, expected: str) -> CorruptFileError:
    """The error for a file that is whole, but isn't what it should be."""
    return CorruptFileError(f"{path}: expected {expected}. Restore the file from its backup.")


def _table(path: Path, name: str) -> dict[Any, Any]:
    table = (read_config(path, parse_object) or {}).get(name, {})
    if not isinstance(table, dict):
        raise wrong_content(path, f"an object {name}")
    return table
