"""Parser for the JSON dialect of the broker's config files, which fastjson writes.

It is JSON, except that the keys of an object may be numbers without quotes (``{0:402}``) or even objects, and
that strings have a few more escapes. Such keys are returned as ``int`` and as tuples of pairs.
"""

from __future__ import annotations

import math
import re
from typing import Any

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
    """:param depth: most levels of nested values."""
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
