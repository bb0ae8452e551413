"""Requests and responses of Kafka's protocol, with kio's types.

A response is made with the fields of all versions. Fields that its version lacks are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from storage_engine.exceptions import StorageEngineError
from storage_engine.lake_server.segment_batches import Batches, KeptBytes
from storage_engine.lake_server.users import Login

API_VERSIONS: Final = 18
FETCH: Final = 1
PRODUCE: Final = 0

APIS = MappingProxyType(
    {
        # librdkafka fetches only from brokers that offer Produce. Each Produce request is refused.
        PRODUCE: ("produce", 3, 3),
        FETCH: ("fetch", 4, 12),
        2: ("list_offsets", 1, 5),
        3: ("metadata", 1, 8),
        8: ("offset_commit", 2, 7),
        9: ("offset_fetch", 1, 5),
        10: ("find_coordinator", 0, 2),
        11: ("join_group", 2, 5),
        12: ("heartbeat", 0, 3),
        13: ("leave_group", 0, 2),
        14: ("sync_group", 0, 3),
        15: ("describe_groups", 0, 4),
        16: ("list_groups", 0, 2),
        17: ("sasl_handshake", 1, 1),
        API_VERSIONS: ("api_versions", 0, 3),
        23: ("offset_for_leader_epoch", 2, 3),
        32: ("describe_configs", 1, 3),
        36: ("sasl_authenticate", 0, 1),
        60: ("describe_cluster", 0, 0),
        # If a server doesn't offer it, librdkafka sends none, and waits without an error.
        68: ("consumer_group_heartbeat", 0, 1),
    }
)
"""For each key: the name in kio, and the lowest and highest version that is answered.

Fetch 12 has tagged fields, and kio knows all those that clients send. Later versions of other requests may
have tagged fields that kio rejects, and readers of archived records don't need these versions. Fetch 13 names
topics by their ids. No request that changes a topic is offered. Each request of KIP-848 groups is refused, so
that a client with ``group.protocol=consumer`` ends with a clear error."""

_BEFORE_LOGIN = (API_VERSIONS, 17, 36)
_NONE = timedelta(0)
_PREFIX = struct.Struct(">hhi")
_LENGTH = struct.Struct(">i")
_LONGEST_COPY_BYTES = 4096


class ProtocolError(StorageEngineError):
    """A request can't be answered. The client's connection must be closed."""


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request.

    :param version: the request's version; -1 for an ApiVersions request in an unknown version.
    :param body: the request as kio parsed it.
    :param data: the request's bytes, without its length.
    """

    name: str
    version: int
    correlation_id: int
    client_id: str
    host: str
    login: Login
    body: Any
    data: bytes = b""


def load_types() -> None:
    """Load kio's types in advance, because this takes longer than answering the first request."""
    for name, _, highest in APIS.values():
        entity_reader(body_class(name, highest, "request", None))
        entity_writer(body_class(name, highest, "response", None))


def read_request(data: bytes, host: str, login: Login) -> Request:
    """Parse a request.

    :param data: the request's bytes, without its length.
    :raises ProtocolError: the bytes are no request, or a request that this server doesn't answer.
    """
    if len(data) < _PREFIX.size:
        raise ProtocolError(f"expected a request of Kafka's protocol, found {len(data)} bytes")
    key, version, correlation_id = _PREFIX.unpack_from(data)
    name, lowest, highest = APIS.get(key, ("", 0, -1))
    if not login.is_done and key not in _BEFORE_LOGIN:
        raise ProtocolError("expected a client that has logged in, found a client that hasn't logged in")
    if not lowest <= version <= highest:
        if key == API_VERSIONS:
            # A client that asks in a later version expects an answer in version 0 (KIP-511).
            return Request(name, -1, correlation_id, "", host, login, None)
        raise ProtocolError(
            f"expected a request that ApiVersions offers, found key {key} in version {version}"
        )
    try:
        schema = body_class(name, version, "request", None)
        header, size = entity_reader(schema.__header_schema__)(data, 0)
        body, _ = entity_reader(schema)(data, size)
    # A client's bytes may cause any error.
    except Exception as error:
        raise ProtocolError(
            f"expected a request of {name} in version {version}, found {len(data)} other bytes: "
            f"{type(error).__name__}: {error}"
        ) from error
    client_id = getattr(header, "client_id", None) or ""
    return Request(name, version, correlation_id, client_id, host, login, body, data)


@dataclass(frozen=True, slots=True)
class Frame:
    """A response with its length, as kio writes it.

    :param parts: bytes and places of bytes in files, in order.
    """

    parts: list[bytearray | Batches] = field(default_factory=lambda: [bytearray(_LENGTH.size)])

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def write(self, data: Batches) -> None:
        """Append bytes. Long batches aren't copied."""
        if isinstance(data, KeptBytes) or len(data) > _LONGEST_COPY_BYTES:
            self.parts.extend((data, bytearray()))
        else:
            cast("bytearray", self.parts[-1]).extend(data)


def response(request: Request, **values: Any) -> Frame:
    """Make a complete response to a request."""
    schema = body_class(request.name, max(request.version, 0), "response", None)
    fields = {"throttle_time": _NONE, "session_lifetime": _NONE, "error_code": ErrorCode.none, **values}
    out, head = Frame(), schema.__header_schema__
    # Any: kio's types expect a file.
    entity_writer(head)(cast("Any", out), head(correlation_id=request.correlation_id))
    entity_writer(schema)(cast("Any", out), _make_entity(schema, fields))
    _LENGTH.pack_into(cast("bytearray", out.parts[0]), 0, len(out) - _LENGTH.size)
    return out


def part(request: Request, kind: str, **values: Any) -> Any:
    """Make a part of the response to a request.

    :param kind: the part's name in kio.
    """
    return _make_entity(body_class(request.name, max(request.version, 0), "response", kind), values)


def parts_by_topic(
    request: Request, kind: str, topics: Iterable[Any], make: Callable[[str, Any], Any]
) -> tuple[Any, ...]:
    """Make a part of a response for each topic of a request.

    :param kind: the part's name in kio.
    :param make: makes the part for one requested partition.
    """
    parts = []
    for topic in topics:
        name = topic.name if hasattr(topic, "name") else topic.topic
        partitions = topic.partitions if hasattr(topic, "partitions") else topic.partition_data
        responses = tuple(make(name, partition) for partition in partitions)
        parts.append(
            part(request, kind, name=name, topic=name, partitions=responses, partition_responses=responses)
        )
    return tuple(parts)


def _make_entity(schema: Any, values: dict[str, Any]) -> Any:
    return schema(**{name: value for name, value in values.items() if name in schema.__dataclass_fields__})


def body_class(name: str, version: int, side: str, kind: str | None) -> Any:
    module = import_module(f"kio.schema.{name}.v{version}.{side}")
    if kind is None:
        kind = "".join(word.title() for word in name.split("_")) + side.title()
    return getattr(module, kind)
