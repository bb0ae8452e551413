"""A second, plain reading of the commitlog format, to hold the compiled one against, and bytes to read."""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
MIN_MS, MAX_MS = -62_135_596_800_000, 253_402_300_799_999


@dataclass(frozen=True)
class Message:
    """What a test frame is made of. ``properties`` is the block as it lies in the file."""

    body: bytes = b"body"
    topic: bytes = b"topic"
    properties: bytes = b"KEYS\x01k\x02TAGS\x01t\x02"
    version: int = 1
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 1_700_000_000_000
    store_timestamp_ms: int = 1_700_000_000_001
    born_address: bytes = bytes([127, 0, 0, 1])
    store_address: bytes = bytes([10, 0, 255, 7])
    born_port: int = 40000
    store_port: int = 10911
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_crc: int | None = None
    property_crc: bool = False


def make_frame(message: Message, physical_offset: int) -> bytes:
    properties = message.properties + (bytes(20) if message.property_crc else b"")
    sys_flag = message.sys_flag & ~0x30
    sys_flag |= 0x10 if len(message.born_address) == 16 else 0
    sys_flag |= 0x20 if len(message.store_address) == 16 else 0
    crc = zlib.crc32(message.body) & 0x7FFFFFFF if message.body_crc is None else message.body_crc
    rest = b"".join(
        [
            struct.pack(">I", MAGIC_V1 if message.version == 1 else MAGIC_V2),
            struct.pack(">iii", crc, message.queue_id, message.flag),
            struct.pack(">qqi", message.queue_offset, physical_offset, sys_flag),
            struct.pack(">q", message.born_timestamp_ms) + message.born_address,
            struct.pack(">i", message.born_port),
            struct.pack(">q", message.store_timestamp_ms) + message.store_address,
            struct.pack(">i", message.store_port),
            struct.pack(">iq", message.reconsume_times, message.prepared_transaction_offset),
            struct.pack(">i", len(message.body)) + message.body,
            struct.pack(">b" if message.version == 1 else ">h", len(message.topic)) + message.topic,
            struct.pack(">h", len(properties)) + properties,
        ]
    )
    frame = struct.pack(">i", len(rest) + 4) + rest
    if message.property_crc:
        digits = str(zlib.crc32(frame[:-20]) & 0x7FFFFFFF)[::-1].ljust(10, "0")
        frame = frame[:-20] + b"__CRC32#\x01" + digits.encode() + b"\x02"
    return frame


def _host(address: bytes) -> str:
    if len(address) == 16 and address[:12] == bytes(10) + b"\xff\xff":
        address = address[12:]
    if len(address) == 4:
        return str(ipaddress.IPv4Address(address))
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", address))


def _utf8(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _java_properties(block: bytes) -> dict[str, str] | None:
    """MessageDecoder#string2messageProperties, for a block that is UTF-8 and not empty."""
    text = _utf8(block)
    if not block or text is None:
        return None
    result = {}
    for part in text.split("\x02"):
        name, separator, value = part.partition("\x01")
        if separator and name and value:
            result[name] = value
    return result


def _timestamp(value_ms: int) -> int | None:
    return value_ms if MIN_MS <= value_ms <= MAX_MS else None


def _read_frame(data: bytes, at: int, base_offset: int) -> dict[str, Any] | int | None:
    """The frame at ``at``; its size when only a CRC is wrong; None when it is none."""
    try:
        size, magic, crc, queue_id, flag, queue_offset, named, sys_flag, born = struct.unpack_from(
            ">iIiiiqqiq", data, at
        )
        if magic not in (MAGIC_V1, MAGIC_V2) or at + size > len(data) or named != base_offset + at:
            return None
        here = at + 48
        born_size = 16 if sys_flag & 0x10 else 4
        born_address = data[here : here + born_size]
        (born_port,) = struct.unpack_from(">i", data, here + born_size)
        here += born_size + 4
        (store,) = struct.unpack_from(">q", data, here)
        store_size = 16 if sys_flag & 0x20 else 4
        store_address = data[here + 8 : here + 8 + store_size]
        here += 8 + store_size
        store_port, reconsume, prepared, body_size = struct.unpack_from(">iiqi", data, here)
        here += 20
        body = data[here : here + max(body_size, 0)]
        here += max(body_size, 0)
        (topic_size,) = struct.unpack_from(">b" if magic == MAGIC_V1 else ">h", data, here)
        if topic_size < 0:
            return None
        here += 1 if magic == MAGIC_V1 else 2
        topic = data[here : here + topic_size]
        here += topic_size
        (block_size,) = struct.unpack_from(">h", data, here)
        here += 2
        block = data[here : here + max(block_size, 0)]
        here += max(block_size, 0)
    except struct.error:
        return None
    if here - at != size:
        return None
    if body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        return size
    tail = block[-20:]
    if tail[:9] == b"__CRC32#\x01" and (len(block) == 20 or block[-21] == 2):
        digits = tail[9:19]
        if not digits.isdigit() or tail[19] != 2:
            return size
        if int(digits[::-1]) != zlib.crc32(data[at : at + size - 20]) & 0x7FFFFFFF:
            return size
    properties = _java_properties(block)
    return {
        "physical_offset": base_offset + at,
        "size": size,
        "kind": "message",
        "magic": magic - (1 << 32),
        "topic": _utf8(topic),
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "flag": flag,
        "sys_flag": sys_flag,
        "body_crc": crc,
        "born_timestamp": _timestamp(born),
        "store_timestamp": _timestamp(store),
        "born_host": _host(born_address),
        "born_port": born_port,
        "store_host": _host(store_address),
        "store_port": store_port,
        "reconsume_times": reconsume,
        "prepared_transaction_offset": prepared,
        "keys": (properties or {}).get("KEYS"),
        "tags": (properties or {}).get("TAGS"),
        "unique_key": (properties or {}).get("UNIQ_KEY"),
        "properties": properties,
        "properties_text": _utf8(block) or None,
        "body": body,
    }


def _reference_rows(data: bytes, base_offset: int) -> list[dict[str, Any]]:
    """Rows of a segment in file order, undecodable neighbours joined into one row."""
    rows: list[dict[str, Any]] = []

    def undecodable(at: int, size: int) -> None:
        if rows and rows[-1]["kind"] == "undecodable":
            rows[-1]["size"] += size
        else:
            rows.append({"physical_offset": base_offset + at, "size": size, "kind": "undecodable"})

    at = 0
    while at < len(data):
        if data[at : at + 8] == struct.pack(">iI", len(data) - at, MAGIC_BLANK):
            rows.append({"physical_offset": base_offset + at, "size": len(data) - at, "kind": "blank"})
            break
        row = _read_frame(data, at, base_offset)
        if isinstance(row, dict):
            rows.append(row)
            at += row["size"]
        else:
            undecodable(at, row or 1)
            at += row or 1
    return rows


_ADDRESSES = st.one_of(
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    st.sampled_from([bytes(16), bytes(10) + b"\xff\xff\x01\x02\x03\x04", bytes(15) + b"\x01"]),
)
_NAMES = st.one_of(st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"a", b""]), st.binary(max_size=20))
_PAIRS = st.lists(st.tuples(_NAMES, st.one_of(st.binary(max_size=20), st.text(max_size=9).map(str.encode))))
_PROPERTIES = st.one_of(
    _PAIRS.map(lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)),
    _PAIRS.map(lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)),
    st.binary(max_size=80),
    st.lists(st.sampled_from([b"\x00", b"\x01", b"\x02", b"k", b"\xc3\xa9", b"\xff"]), max_size=40).map(
        b"".join
    ),
    st.integers(0, 32_740).map(lambda size: b"a\x01" + b"v" * size + b"\x02"),
)
_INT32S = st.integers(-(1 << 31), (1 << 31) - 1)
_INT64S = st.integers(-(1 << 63), (1 << 63) - 1)
_TIMES = st.one_of(st.integers(0, 4_102_444_800_000), _INT64S)
_LONGEST_TOPIC = {1: 127, 2: 32_767}
_BLANK_HEADER_BYTES = 8


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    version = draw(st.sampled_from([1, 2]))
    return Message(
        body=draw(st.binary(max_size=200)),
        topic=draw(
            st.one_of(
                st.sampled_from([b"a", b"b", b""]),
                st.binary(max_size=_LONGEST_TOPIC[1]),
                st.integers(0, _LONGEST_TOPIC[version]).map(lambda size: b"t" * size),
            )
        ),
        properties=draw(_PROPERTIES),
        version=version,
        queue_id=draw(st.one_of(st.integers(0, 3), _INT32S)),
        flag=draw(_INT32S),
        queue_offset=draw(_INT64S),
        sys_flag=draw(_INT32S),
        born_timestamp_ms=draw(_TIMES),
        store_timestamp_ms=draw(_TIMES),
        born_address=draw(_ADDRESSES),
        store_address=draw(_ADDRESSES),
        born_port=draw(_INT32S),
        store_port=draw(_INT32S),
        reconsume_times=draw(_INT32S),
        prepared_transaction_offset=draw(_INT64S),
        body_crc=draw(st.sampled_from([None, None, None, 7])),
        property_crc=draw(st.booleans()),
    )


@st.composite
def _segments(draw: st.DrawFn, base_offset: int) -> bytes:
    """Frames with garbage and preallocated zeros between and behind them, ended, cut or written over."""
    data = b""
    garbage = st.one_of(st.binary(max_size=120), st.integers(1, 3000).map(bytes))
    # A frame that lies where another belongs: its own offset is wrong there.
    moved = _messages().map(lambda message: make_frame(message, 12_345))
    for part in draw(st.lists(st.one_of(_messages(), _messages(), garbage, moved), max_size=8)):
        data += part if isinstance(part, bytes) else make_frame(part, base_offset + len(data))
    match draw(st.integers(0, 4)):
        case 0:
            tail = draw(st.one_of(st.binary(max_size=100), st.integers(0, 3000).map(bytes)))
            wrong_by = draw(st.sampled_from([0, 0, 0, 1, -1]))
            size = _BLANK_HEADER_BYTES + len(tail) + wrong_by
            data += struct.pack(">iI", size, MAGIC_BLANK) + tail
        case 1:
            data = data[: draw(st.integers(0, len(data)))]
        case 2 if data:
            at = draw(st.integers(0, len(data) - 1))
            data = data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at + 9 :]
        case 3:
            data += bytes(draw(st.integers(1, 3000)))
    return data


@pytest.fixture(scope="session")
def any_segment() -> Callable[[int], st.SearchStrategy[bytes]]:
    """Strategy for whatever may lie in a segment file that begins at a physical offset."""
    return lambda base_offset: _segments(base_offset)


@pytest.fixture(scope="session")
def message() -> type[Message]:
    return Message


@pytest.fixture(scope="session")
def build_frame() -> Callable[[Message, int], bytes]:
    """Bytes of a valid frame at a physical offset."""
    return make_frame


@pytest.fixture(scope="session")
def reference_rows() -> Callable[[bytes, int], list[dict[str, Any]]]:
    """The rows of a segment as the plain reading has them."""
    return _reference_rows
