"""A strict client for RocketMQ's remoting protocol: just the commands that show what a broker serves.

It gives bytes as they came over the wire. What a broker may not answer raises; nothing is retried.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Self

SUCCESS = 0
SYSTEM_ERROR = 1
PULL_NOT_FOUND = 19
PULL_RETRY_IMMEDIATELY = 20
PULL_OFFSET_MOVED = 21
QUERY_NOT_FOUND = 22

PULL_MESSAGE = 11
QUERY_MESSAGE = 12
GET_BROKER_RUNTIME_INFO = 28
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
VIEW_MESSAGE_BY_ID = 33
GET_BROKER_CLUSTER_INFO = 106

_SERIALISE_JSON = 0
_FLAG_RESPONSE = 1
_PULL_WITH_SUBSCRIPTION = 4


class RemotingError(Exception):
    """The peer answered with a code that the call does not allow, or broke the protocol."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    remark: str
    fields: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class PullResult:
    """Answer to a pull. ``frames`` are the commitlog frames of consecutive queue offsets."""

    code: int
    min_offset: int
    max_offset: int
    next_offset: int
    frames: tuple[bytes, ...]


def split_frames(body: bytes) -> tuple[bytes, ...]:
    """Cut a pull's body, which is commitlog frames back to back, into frames."""
    frames, position = [], 0
    while position < len(body):
        (size,) = struct.unpack_from(">i", body, position)
        if size <= 0 or position + size > len(body):
            raise RemotingError(f"frame of {size} bytes at {position} of a body of {len(body)} bytes")
        frames.append(body[position : position + size])
        position += size
    return tuple(frames)


class RemotingClient:
    """One connection, one request at a time.

    :param port: listen port on loopback.
    :param timeout_seconds: for connecting and for each answer.
    """

    def __init__(self, port: int, *, timeout_seconds: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_seconds)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, code: int, /, *, body: bytes = b"", **fields: object) -> Response:
        """Send a request and return its answer, whatever its code.

        :param fields: the request's extFields; all travel as strings.
        """
        self._opaque += 1
        header = json.dumps(
            {
                "code": code,
                "language": "PYTHON",
                "version": 0,
                "opaque": self._opaque,
                "flag": 0,
                "extFields": {name: _text(value) for name, value in fields.items()},
                "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()
        self._socket.sendall(
            struct.pack(">ii", 4 + len(header) + len(body), _SERIALISE_JSON << 24 | len(header))
            + header
            + body
        )
        return self._answer()

    def _answer(self) -> Response:
        length, marker = struct.unpack(">ii", self._receive(8))
        serialise_type, header_length = marker >> 24, marker & 0xFFFFFF
        if serialise_type != _SERIALISE_JSON or not 0 < header_length <= length - 4:
            raise RemotingError(
                f"answer of {length} bytes: type {serialise_type}, header {header_length} bytes"
            )
        header: dict[str, Any] = json.loads(self._receive(header_length))
        body = self._receive(length - 4 - header_length)
        if header["opaque"] != self._opaque or not header["flag"] & _FLAG_RESPONSE:
            raise RemotingError(f"not the answer to request {self._opaque}: {header}")
        return Response(header["code"], header.get("remark") or "", header.get("extFields") or {}, body)

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise RemotingError(f"connection closed with {len(view)} of {size} bytes missing")
            view = view[count:]
        return bytes(data)

    def _successful(self, code: int, /, *, body: bytes = b"", **fields: object) -> Response:
        response = self.call(code, body=body, **fields)
        if response.code != SUCCESS:
            raise RemotingError(
                f"request {code} {fields}: code {response.code} {response.remark}", response.code
            )
        return response

    def cluster_info(self) -> str:
        """What a name server knows of its brokers, in fastjson's dialect."""
        return self._successful(GET_BROKER_CLUSTER_INFO).body.decode()

    def runtime_info(self) -> dict[str, str]:
        table = json.loads(self._successful(GET_BROKER_RUNTIME_INFO).body)["table"]
        return {str(key): str(value) for key, value in table.items()}

    def min_offset(self, topic: str, queue_id: int) -> int:
        return int(self._successful(GET_MIN_OFFSET, topic=topic, queueId=queue_id).fields["offset"])

    def max_offset(self, topic: str, queue_id: int) -> int:
        return int(self._successful(GET_MAX_OFFSET, topic=topic, queueId=queue_id).fields["offset"])

    def pull(self, topic: str, queue_id: int, offset: int, *, max_messages: int = 32) -> PullResult:
        """Pull from a queue offset, without waiting for new messages and without committing."""
        response = self.call(
            PULL_MESSAGE,
            consumerGroup="storage_engine_reader",
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=max_messages,
            sysFlag=_PULL_WITH_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
            expressionType="TAG",
        )
        if response.code not in (SUCCESS, PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY, PULL_OFFSET_MOVED):
            raise RemotingError(
                f"pull {topic}/{queue_id} at {offset}: code {response.code} {response.remark}", response.code
            )
        frames = split_frames(response.body) if response.code == SUCCESS else ()
        return PullResult(
            code=response.code,
            min_offset=int(response.fields["minOffset"]),
            max_offset=int(response.fields["maxOffset"]),
            next_offset=int(response.fields["nextBeginOffset"]),
            frames=frames,
        )

    def queue(self, topic: str, queue_id: int, start: int, end: int) -> dict[int, bytes]:
        """Every message of queue offsets [start, end): queue offset → frame.

        :raises RemotingError: when the broker skips or refuses one of them.
        """
        found: dict[int, bytes] = {}
        offset = start
        while offset < end:
            result = self.pull(topic, queue_id, offset)
            if result.code != SUCCESS or len(result.frames) != result.next_offset - offset:
                raise RemotingError(f"pull {topic}/{queue_id} at {offset}, expected up to {end}: {result}")
            found.update((offset + i, frame) for i, frame in enumerate(result.frames) if offset + i < end)
            offset = result.next_offset
        return found

    def view(self, physical_offset: int) -> bytes | None:
        """The frame at a physical offset; None when the broker does not find one there."""
        response = self.call(VIEW_MESSAGE_BY_ID, topic="", offset=physical_offset)
        if response.code == SUCCESS:
            return response.body
        if response.code == SYSTEM_ERROR and "can not find message" in response.remark:
            return None
        raise RemotingError(f"view {physical_offset}: code {response.code} {response.remark}", response.code)

    def query(self, topic: str, key: str, *, max_messages: int = 64) -> tuple[bytes, ...]:
        """Frames that the broker's index has under a topic and key, newest first."""
        response = self.call(
            QUERY_MESSAGE,
            topic=topic,
            key=key,
            maxNum=max_messages,
            beginTimestamp=0,
            endTimestamp=2**63 - 1,
        )
        if response.code not in (SUCCESS, QUERY_NOT_FOUND):
            raise RemotingError(f"query {topic}#{key}: code {response.code} {response.remark}", response.code)
        return split_frames(response.body)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
