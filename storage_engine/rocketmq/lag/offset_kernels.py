"""Compiled reading of a large table of consumer offsets into arrays of numbers and of names' positions.

It reads only the part of fastjson's dialect that brokers write. At other text it stops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_engine.native import inlined, int64, kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _AT = b'"\\,:-@'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
_ZERO, _NINE = b"09"
_BLANKS = (9, 10, 13, 32)
_ASCII_END = 127
_LONGEST_NUMBER = 18
_MAX_QUEUE_ID = (1 << 31) - 1

_OFFSETS = np.frombuffer(b"offsetTable", np.uint8)
_LIGHT_OFFSETS = np.frombuffer(b"lmqOffsetTable", np.uint8)


@kernel
def scan_offsets(
    data: Bytes, names: Longs, queues: npt.NDArray[np.int32], offsets: Longs
) -> tuple[int, int, int]:
    """Read ``{"offsetTable": {"topic@group": {0:402, 1:397}}, "lmqOffsetTable": {"topic@group": 7}}``.

    :param names: four numbers for each topic@group: the positions of its start, its separator and its end,
        and the number of its first row. For a light message queue, the separator's position is negated.
    :param queues: queue id of each row.
    :param offsets: offset of each row.
    :return: number of names, number of rows, and the position of the first unknown text; -1 without any.
    """
    name, row, tables = 0, 0, 0
    at = _token(data, 0, _OPEN)
    more = 0
    while at >= 0:
        at = _next(data, at, more, _CLOSE)
        if at < 0 or data[at] == _CLOSE:
            break
        more = 1
        begin = at + 1
        end = _string(data, at)
        at = _token(data, end + 1, _COLON) if end >= 0 else end
        if at < 0:
            break
        table = 1 if _is(data, begin, end, _OFFSETS) else 2 if _is(data, begin, end, _LIGHT_OFFSETS) else 0
        if table & tables:
            at = ~begin
            break
        tables |= table
        if table:
            at, name, row = _table(data, at, table == 2, names, name, queues, offsets, row)
        else:
            at = _skip_members(data, at)
    if at >= 0:
        at = _blank(data, at + 1)
        if at == len(data):
            return name, row, -1
        at = ~at
    return name, row, ~at


@kernel
def copy_ranges(data: Bytes, begins: Longs, offsets: Longs, out: Bytes) -> None:
    """Copy ranges of bytes so that they are side by side.

    :param begins: start of each range.
    :param offsets: starts of the ranges in the output, and the end of the last range.
    """
    for i in range(len(begins)):
        for k in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + k] = data[begins[i] + k]


@inlined
def _table(
    data: Bytes,
    at: int,
    light: bool,
    names: Longs,
    name: int,
    queues: npt.NDArray[np.int32],
    offsets: Longs,
    row: int,
) -> tuple[int, int, int]:
    """Read one of the two tables up to its closing brace."""
    at = _token(data, at, _OPEN)
    more = 0
    while at >= 0:
        at = _next(data, at, more, _CLOSE)
        if at < 0 or data[at] == _CLOSE:
            break
        more = 1
        begin = at + 1
        end = _string(data, at)
        if end < 0:
            return end, name, row
        separator = begin
        while separator < end and data[separator] != _AT:
            separator += 1
        if separator == begin or separator + 1 >= end:
            return ~begin, name, row
        names[name, 0], names[name, 1], names[name, 2] = begin, -separator if light else separator, end
        names[name, 3] = row
        name += 1
        at = _token(data, end + 1, _COLON)
        if at < 0:
            break
        if light:
            at, offset = _number(data, _blank(data, at))
            queues[row], offsets[row] = 0, offset
            row += 1
        else:
            at, row = _queues(data, at, queues, offsets, row)
    return (at if at < 0 else at + 1), name, row


@inlined
def _queues(data: Bytes, at: int, queues: npt.NDArray[np.int32], offsets: Longs, row: int) -> tuple[int, int]:
    at = _token(data, at, _OPEN)
    more = 0
    while at >= 0:
        at = _next(data, at, more, _CLOSE)
        if at < 0 or data[at] == _CLOSE:
            break
        more = 1
        quoted = data[at] == _QUOTE
        start = at + 1 if quoted else at
        at, queue = _number(data, start)
        if at >= 0 and quoted:
            at = at + 1 if at < len(data) and data[at] == _QUOTE else ~at
        if at >= 0 and (queue < 0 or queue > _MAX_QUEUE_ID):
            at = ~start
        if at >= 0:
            at = _token(data, at, _COLON)
        if at >= 0:
            at, offset = _number(data, _blank(data, at))
            queues[row], offsets[row] = queue, offset
            row += 1
    return (at if at < 0 else at + 1), row


@inlined
def _skip_members(data: Bytes, at: int) -> int:
    """Skip a value: a string, a number, a list of them, or an object of strings, numbers and lists."""
    at = _blank(data, at)
    if at >= len(data) or data[at] != _OPEN:
        return _skip_list(data, at)
    at += 1
    more = 0
    while at >= 0:
        at = _next(data, at, more, _CLOSE)
        if at < 0 or data[at] == _CLOSE:
            break
        more = 1
        at = _string(data, at)
        if at >= 0:
            at = _token(data, at + 1, _COLON)
        if at >= 0:
            at = _skip_list(data, _blank(data, at))
    return at if at < 0 else at + 1


@inlined
def _skip_list(data: Bytes, at: int) -> int:
    if at >= len(data) or data[at] != _OPEN_LIST:
        return _skip_plain(data, at)
    at += 1
    more = 0
    while at >= 0:
        at = _next(data, at, more, _CLOSE_LIST)
        if at < 0 or data[at] == _CLOSE_LIST:
            break
        more = 1
        at = _skip_plain(data, at)
    return at if at < 0 else at + 1


@inlined
def _skip_plain(data: Bytes, at: int) -> int:
    if at < len(data) and data[at] == _QUOTE:
        at = _string(data, at)
        return at if at < 0 else at + 1
    end, _ = _number(data, at)
    return end


@inlined
def _next(data: Bytes, at: int, more: int, close: int) -> int:
    """Return the position of the next member or of the closing bracket; ~position if there is neither."""
    at = _blank(data, at)
    if at >= len(data):
        return ~at
    if data[at] == close or not more:
        return at
    if data[at] != _COMMA:
        return ~at
    at = _blank(data, at + 1)
    return ~at if at >= len(data) or data[at] == close else at


@inlined
def _token(data: Bytes, at: int, token: int) -> int:
    """Return the position behind blanks and a token; ~position if the token isn't there."""
    at = _blank(data, at)
    return at + 1 if at < len(data) and data[at] == token else ~at


@inlined
def _blank(data: Bytes, at: int) -> int:
    while at < len(data) and data[at] in _BLANKS:
        at += 1
    return at


@inlined
def _string(data: Bytes, at: int) -> int:
    """Return the position of a string's closing quote; ~position of the first character that isn't plain."""
    if at >= len(data) or data[at] != _QUOTE:
        return ~at
    at += 1
    while at < len(data):
        byte = data[at]
        if byte == _QUOTE:
            return at
        if byte < _BLANKS[3] or byte >= _ASCII_END or byte == _BACKSLASH:
            return ~at
        at += 1
    return ~at


@inlined
def _number(data: Bytes, at: int) -> tuple[int, int]:
    """Return the position behind a whole number, and its value; ~position if there is no number."""
    begin = at
    negative = at < len(data) and data[at] == _MINUS
    if negative:
        at += 1
    digits = at
    value = int64(0)
    while at < len(data) and _ZERO <= data[at] <= _NINE:
        value = value * 10 + data[at] - _ZERO
        at += 1
    if at == digits or at - digits > _LONGEST_NUMBER:
        return ~(at if at == len(data) else begin), 0
    return at, -value if negative else value


@inlined
def _is(data: Bytes, begin: int, end: int, name: Bytes) -> bool:
    if end - begin != len(name):
        return False
    same = True
    for i in range(len(name)):
        same &= data[begin + i] == name[i]
    return same
