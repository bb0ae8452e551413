"""Conversion of the remoting protocol's frames to commands and back, in both header serialisations. Pure.

A frame is: int length of the rest, int (serialisation type << 24 | header length), header, body. Any bytes
from a peer become either a command or a :class:`FrameError`. Length fields are checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from storage_engine.core.untrusted import MALFORMED

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Longest frame that brokers and Java clients accept (com.rocketmq.remoting.frameMaxLength)."""

FLAG_RESPONSE: Final = 1

LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
)  # fmt: skip
"""Languages in the order of their codes in a binary header (LanguageCode)."""
UNKNOWN_LANGUAGE: Final = "OTHER"

_FIXED = struct.Struct(">hBhiii")
"""Start of a binary header: code, language, version, opaque, flag, remark's length (RocketMQSerializable)."""
UPDATE_BROKER_CONFIG: Final = 25
GET_BROKER_CONFIG: Final = 26
GET_BROKER_RUNTIME_INFO: Final = 28
VIEW_MESSAGE_BY_ID: Final = 33
GET_ALL_CONSUMER_OFFSET: Final = 43
GET_BROKER_CLUSTER_INFO: Final = 106
GET_ALL_SUBSCRIPTION_GROUP_CONFIG: Final = 201
GET_CONSUMER_CONNECTION_LIST: Final = 203
DELETE_EXPIRED_COMMITLOG: Final = 329
GET_BROKER_HA_STATUS: Final = 907
CONTROLLER_GET_REPLICA_INFO: Final = 1004

NAMES: Final[Mapping[int, str]] = {
    UPDATE_BROKER_CONFIG: "update the broker's config",
    GET_BROKER_CONFIG: "broker's config",
    GET_BROKER_RUNTIME_INFO: "broker's runtime info",
    VIEW_MESSAGE_BY_ID: "message at a physical offset",
    GET_ALL_CONSUMER_OFFSET: "all consumer offsets",
    GET_BROKER_CLUSTER_INFO: "clusters and brokers",
    GET_ALL_SUBSCRIPTION_GROUP_CONFIG: "all consumer groups",
    GET_CONSUMER_CONNECTION_LIST: "connected members of a group",
    DELETE_EXPIRED_COMMITLOG: "delete expired commitlog files",
    GET_BROKER_HA_STATUS: "state of a broker's replicas",
    CONTROLLER_GET_REPLICA_INFO: "a controller's choice of the master",
}

SUCCESS: Final = 0
SYSTEM_ERROR: Final = 1
SYSTEM_BUSY: Final = 2
REQUEST_CODE_NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 16
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
CONSUMER_NOT_ONLINE: Final = 206

NOT_BEGUN: Final = frozenset({SYSTEM_BUSY, REQUEST_CODE_NOT_SUPPORTED, NO_PERMISSION})
"""Response codes with which a peer rejects a request before it acts."""

REMEDIES: Final[Mapping[int, str]] = {
    SYSTEM_BUSY: "Try again when the broker is less busy.",
    REQUEST_CODE_NOT_SUPPORTED: "Check that this is a broker of RocketMQ 4.9 or 5, no name server or proxy.",
    NO_PERMISSION: "Check the access key, the secret key and this user's rights (a super user has all).",
    SUBSCRIPTION_GROUP_NOT_EXIST: "Name a consumer group that the broker has.",
}


class SerialiseType(IntEnum):
    """Format of a header (SerializeType). A broker answers in its own format (rocketmq.serialize.type)."""

    JSON = 0
    ROCKETMQ = 1


class FrameError(ValueError):
    """The bytes are not a frame of this protocol. The message names the expected and the found value."""


@dataclass(frozen=True, slots=True)
class RemotingCommand:
    """A request or a response (RemotingCommand).

    :param code: kind of a request (RequestCode), or result (ResponseCode).
    :param opaque: number that a response shares with its request.
    :param flag: has the bit FLAG_RESPONSE in a response.
    :param remark: a broker's text on a failure; "" if there is none.
    :param version: ordinal of the sender's release (MQVersion). 0 requests the behaviour of 3.0.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    language: str = "PYTHON"
    version: int = 0

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)


def encode(command: RemotingCommand) -> bytes:
    """Return a frame with its length and a JSON header."""
    header: dict[str, Any] = {
        "code": command.code,
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "serializeTypeCurrentRPC": "JSON",
    }
    if command.remark:
        header["remark"] = command.remark
    if command.fields:
        header["extFields"] = dict(command.fields)
    return frame_of(command, SerialiseType.JSON, json.dumps(header).encode())


def frame_of(command: RemotingCommand, serialise_type: SerialiseType, header: bytes) -> bytes:
    """Return a frame with its length and an encoded header."""
    lengths = 4 + len(header) + len(command.body), serialise_type << 24 | len(header)
    return b"".join((struct.pack(">ii", *lengths), header, command.body))


def frame_length(prefix: bytes, max_bytes: int = MAX_FRAME_BYTES) -> int:
    """Return the number of bytes behind the first four of a frame.

    :raises FrameError: no frame begins with these bytes, or the frame is longer than allowed.
    """
    (length,) = struct.unpack(">i", prefix)
    if 4 <= length <= max_bytes:
        return int(length)
    if prefix[0] in (0x15, 0x16) and prefix[1] == 0x03:
        raise FrameError(f"expected a frame, found a TLS record ({prefix.hex(' ')})")
    raise FrameError(
        f"expected a frame of 4 to {max_bytes} bytes, found a length of {length} ({prefix.hex(' ')})"
    )


def decode(frame: bytes) -> RemotingCommand:
    """Decode the bytes that follow a frame's length.

    :raises FrameError: the bytes are not a frame.
    """
    try:
        return _decode(frame)
    except FrameError:
        raise
    except MALFORMED as error:
        raise FrameError(f"expected a frame, found {frame[:60]!r} ({error!r})") from error


def _decode(frame: bytes) -> RemotingCommand:
    if len(frame) < 4:
        raise FrameError(f"expected at least 4 bytes behind the length, found {len(frame)}")
    (mark,) = struct.unpack_from(">I", frame)
    kind, header_length = mark >> 24, mark & 0xFFFFFF
    if header_length > len(frame) - 4:
        raise FrameError(f"expected a header of at most {len(frame) - 4} bytes, found {header_length}")
    header, body = frame[4 : 4 + header_length], frame[4 + header_length :]
    if kind == SerialiseType.JSON:
        return _read_json(header, body)
    if kind == SerialiseType.ROCKETMQ:
        return _read_binary(header, body)
    raise FrameError(f"expected a header of type 0 (JSON) or 1 (ROCKETMQ), found type {kind}")


def _read_json(data: bytes, body: bytes) -> RemotingCommand:
    try:
        header = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"expected a JSON header, found {data[:60]!r} ({error})") from None
    if not isinstance(header, dict):
        raise FrameError(f"expected an object as header, found {data[:60]!r}")
    fields = {} if header.get("extFields") is None else header["extFields"]
    # A field that is null counts as absent.
    if not isinstance(fields, dict) or not all(isinstance(v, str | None) for v in fields.values()):
        raise FrameError("expected texts as the header's extFields, found something else")
    fields = {_to_utf8(name): _to_utf8(value) for name, value in fields.items() if value is not None}
    remark = "" if header.get("remark") is None else header["remark"]
    language = header.get("language", UNKNOWN_LANGUAGE)
    if not isinstance(remark, str) or not isinstance(language, str):
        raise FrameError("expected texts as the header's remark and language, found something else")
    return RemotingCommand(
        code=_integer(header, "code"),
        opaque=_integer(header, "opaque"),
        flag=_integer(header, "flag"),
        remark=_to_utf8(remark),
        fields=fields,
        body=body,
        language=_to_utf8(language),
        version=_integer(header, "version"),
    )


def _to_utf8(text: str) -> str:
    """Replace lone surrogates, which JSON's escapes can contain and UTF-8 can't."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _integer(header: dict[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise FrameError(f"expected an int as the header's {name}, found {str(value)[:40]!r}")
    return value


def _read_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        remark, position = _text(header, _FIXED.size, remark_length)
        (fields_length,) = struct.unpack_from(">i", header, position)
        position += 4
        if fields_length != len(header) - position:
            raise FrameError(f"expected {len(header) - position} bytes of fields, found {fields_length}")
        fields = {}
        while position < len(header):
            (length,) = struct.unpack_from(">h", header, position)
            name, position = _text(header, position + 2, length)
            (length,) = struct.unpack_from(">i", header, position)
            fields[name], position = _text(header, position + 4, length)
    except struct.error:
        raise FrameError(f"expected a binary header, found {len(header)} bytes that end within it") from None
    return RemotingCommand(
        code=code,
        opaque=opaque,
        flag=flag,
        remark=remark,
        fields=fields,
        body=body,
        language=LANGUAGES[language] if language < len(LANGUAGES) else UNKNOWN_LANGUAGE,
        version=version,
    )


def _text(header: bytes, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if length < 0 or end > len(header):
        raise FrameError(
            f"expected a text of at most {len(header) - position} bytes, found a length of {length}"
        )
    try:
        return header[position:end].decode("utf-8"), end
    except UnicodeDecodeError as error:
        raise FrameError(
            f"expected UTF-8 in the header, found {header[position:end][:40]!r} ({error})"
        ) from None
