"""Frames of the remoting protocol: what is written is read back, and nothing else breaks the reader."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.rocketmq.remoting.command import (
    _FIXED,
    FLAG_RESPONSE,
    LANGUAGES,
    MAX_FRAME_BYTES,
    UNKNOWN_LANGUAGE,
    FrameError,
    RemotingCommand,
    SerialiseType,
    decode,
    encode,
    frame_length,
    frame_of,
)

INT = st.integers(-(2**31), 2**31 - 1)
SHORT = st.integers(-(2**15), 2**15 - 1)
COMMANDS = st.builds(
    RemotingCommand,
    code=SHORT,
    opaque=INT,
    flag=INT,
    remark=st.text(max_size=40),
    fields=st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=6),
    body=st.binary(max_size=100),
    language=st.sampled_from(LANGUAGES),
    version=SHORT,
)
TYPES = st.sampled_from(SerialiseType)


def encode_as(command: RemotingCommand, serialise_type: SerialiseType) -> bytes:
    """Return a frame as a broker writes it, in either of its two serialisations."""
    if serialise_type is SerialiseType.JSON:
        return encode(command)
    language = command.language if command.language in LANGUAGES else UNKNOWN_LANGUAGE
    remark = command.remark.encode()
    fields = b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        for name, value in ((name.encode(), value.encode()) for name, value in command.fields.items())
    )
    fixed = _FIXED.pack(
        command.code, LANGUAGES.index(language), command.version, command.opaque, command.flag, len(remark)
    )
    return frame_of(command, serialise_type, fixed + remark + struct.pack(">i", len(fields)) + fields)


@pytest.mark.slow
@given(COMMANDS, TYPES)
def test_command_comes_back_as_it_was(command: RemotingCommand, serialise_type: SerialiseType) -> None:
    frame = encode_as(command, serialise_type)
    assert frame_length(frame[:4]) == len(frame) - 4
    assert frame[4] == serialise_type
    assert decode(frame[4:]) == command


@given(COMMANDS, TYPES, st.data())
def test_damaged_frame_is_an_error_or_another_command(
    command: RemotingCommand, serialise_type: SerialiseType, data: st.DataObject
) -> None:
    frame = bytearray(encode_as(command, serialise_type)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(frame)))
    try:
        found = decode(bytes(frame[:end]))
    except FrameError:
        return
    assert len(found.body) <= end


@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_a_command(garbage: bytes) -> None:
    for mark in (b"", struct.pack(">i", len(garbage)), struct.pack(">i", 1 << 24 | len(garbage))):
        try:
            found = decode(mark + garbage)
        except FrameError:
            continue
        assert len(found.body) <= len(garbage)


@given(INT)
def test_only_lengths_within_the_limit_are_taken(length: int) -> None:
    if 4 <= length <= MAX_FRAME_BYTES:
        assert frame_length(struct.pack(">i", length)) == length
    else:
        with pytest.raises(FrameError):
            frame_length(struct.pack(">i", length))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"[]", "expected an object"),
        (b'{"code":"0","version":0,"opaque":1,"flag":1}', "header's code"),
        (b'{"code":true,"version":0,"opaque":1,"flag":1}', "header's code"),
        (b'{"code":0,"version":0,"opaque":4294967296,"flag":1}', "header's opaque"),
        (b'{"code":0,"version":0,"opaque":1}', "header's flag"),
        (b'{"code":0,"version":0,"opaque":1,"flag":1,"extFields":{"offset":5}}', "extFields"),
        (b'{"code":0,"version":0,"opaque":1,"flag":1,"remark":[]}', "remark"),
        (b"[" * 100_000, "JSON header"),
        (b'{"code":' + b"9" * 10_000 + b"}", "JSON header"),
    ],
)
def test_header_that_no_broker_writes_is_named(header: bytes, expected: str) -> None:
    with pytest.raises(FrameError, match=expected):
        decode(struct.pack(">i", len(header)) + header)


def test_fields_that_are_null_are_not_there() -> None:
    header = b'{"code":0,"version":0,"opaque":1,"flag":1,"extFields":{"a":null,"b":"1"},"remark":null}'
    found = decode(struct.pack(">i", len(header)) + header)
    assert (found.fields, found.remark, found.is_response) == ({"b": "1"}, "", True)


def test_unknown_serialisation_is_named() -> None:
    frame = bytearray(encode(replace(RemotingCommand(0), flag=FLAG_RESPONSE))[4:])
    frame[0] = 2
    with pytest.raises(FrameError, match="found type 2"):
        decode(bytes(frame))


def test_tls_record_is_recognised() -> None:
    with pytest.raises(FrameError, match="TLS"):
        frame_length(bytes.fromhex("15030300"))
