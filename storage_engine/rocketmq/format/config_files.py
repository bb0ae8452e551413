"""Topics, groups and subscriptions in ``config``, and the JSON of fastjson in which they are written.

The readers raise CorruptFileError if neither a file nor its backup is readable and well-formed.

Fastjson's dialect is JSON, except that the keys of an object may be numbers without quotes (``{0:402}``) or
even objects, and that strings have a few more escapes. Such keys are returned as ``int`` and as tuples of
pairs. For consumer offsets see ``consumer_offsets``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage_engine.core.untrusted import MALFORMED
from storage_engine.exceptions import BadInputError, CorruptFileError
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.rocketmq.format import config_files
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.layout import StoreLayout
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

    Dead subscriptions are included. Subscriptions without such a filter are in no file.
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

    The backup is read if the file is missing, empty, unreadable or malformed.

    :param parse: parses the content; raises one of ``MALFORMED`` if the content isn't that of such a file.
    :return: None if each of the two is missing or empty, since the broker had nothing to write yet.
    :raises CorruptFileError: one of the two can't be read or parsed, and the other gives no content.
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
        except config_files.FastjsonError as error:
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
    content = config_files.loads(text)
    if not isinstance(content, dict):
        raise config_files.FastjsonError(0, "an object", text)
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


_BLANK = re.compile(r"[ \t\r\n\f\b]*")
# Possessive quantifiers, so that a long string takes no memory for backtracking.
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"true|false|null|NaN")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None, "NaN": None}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"} | {
    digit: chr(int(digit)) for digit in "01234567"
}
_LITERAL_ESCAPES = "\"'\\/"

MAX_CHARACTERS = 64 << 20
"""Most characters of a text. Objects take ten times its size in memory; some millions take a second."""
_MAX_NUMBER_CHARACTERS = 400
_MAX_DEPTH = 100


class FastjsonError(ValueError):
    """A text is not in the dialect that fastjson writes.

    :param position: index of the first character that is not in the dialect.
    """

    def __init__(self, position: int, expected: str, text: str) -> None:
        excerpt = repr(text[position : position + 20]) if position < len(text) else "the end"
        super().__init__(f"at character {position}: expected {expected}, found {excerpt}")
        self.position = position


def loads(text: str) -> Any:
    """Parse a text; objects become dicts, arrays lists.

    :raises FastjsonError: a part of the text is not in the dialect; the error names the first one.
    """
    if len(text) > MAX_CHARACTERS:
        raise FastjsonError(MAX_CHARACTERS, f"at most {MAX_CHARACTERS} characters", text)
    value, position = _value(text, _skip(text, 0), _MAX_DEPTH)
    position = _skip(text, position)
    if position != len(text):
        raise FastjsonError(position, "the end", text)
    return value


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    assert match is not None
    return match.end()


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    """Return the value at a position, and the position after it.

    :param depth: how many levels of objects and arrays the value may have.
    """
    start = text[position : position + 1]
    if start in ("{", "["):
        if not depth:
            raise FastjsonError(position, f"a text that is not nested more than {_MAX_DEPTH} deep", text)
        read = _object if start == "{" else _array
        return read(text, position + 1, depth - 1)
    if match := _STRING.match(text, position):
        return _unescape(match, text), match.end()
    if match := _NUMBER.match(text, position):
        return _number(match, text), match.end()
    if match := _WORD.match(text, position):
        return _WORDS[match[0]], match.end()
    raise FastjsonError(position, "a value", text)


def _number(match: re.Match[str], text: str) -> int | float:
    digits = match[0]
    if len(digits) > _MAX_NUMBER_CHARACTERS:
        raise FastjsonError(match.start(), f"a number of at most {_MAX_NUMBER_CHARACTERS} characters", text)
    if match[1] is None and match[2] is None:
        return int(digits)
    number = float(digits)
    if not math.isfinite(number):
        raise FastjsonError(match.start(), "a number within the range of a double", text)
    return number


def _object(text: str, position: int, depth: int) -> tuple[dict[Any, Any], int]:
    result: dict[Any, Any] = {}
    position = _skip(text, position)
    while text[position : position + 1] != "}":
        if result:
            position = _skip(text, _expect(text, position, ","))
        key, position = _value(text, position, depth)
        position = _skip(text, _expect(text, _skip(text, position), ":"))
        value, position = _value(text, position, depth)
        result[_hashable(key)] = value
        position = _skip(text, position)
    return result, position + 1


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    result: list[Any] = []
    position = _skip(text, position)
    while text[position : position + 1] != "]":
        if result:
            position = _skip(text, _expect(text, position, ","))
        value, position = _value(text, position, depth)
        result.append(value)
        position = _skip(text, position)
    return result, position + 1


def _expect(text: str, position: int, character: str) -> int:
    if text[position : position + 1] != character:
        raise FastjsonError(position, repr(character), text)
    return position + 1


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(_hashable(item) for item in value)
    return value


def _unescape(match: re.Match[str], text: str) -> str:
    if "\\" not in match[1]:
        return match[1]

    def replace(escape: re.Match[str]) -> str:
        code = escape[1]
        if code[0] in "ux" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code in _ESCAPES:
            return _ESCAPES[code]
        if code in _LITERAL_ESCAPES:
            return code
        raise FastjsonError(match.start(1) + escape.start(), "an escape", text)

    unescaped = _ESCAPE.sub(replace, match[1])
    # a character beyond the first plane is written as two escapes, which decode to surrogates
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
