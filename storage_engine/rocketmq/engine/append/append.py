"""Writing messages at the log's end (CommitLog#asyncPutMessage, DefaultAppendMessageCallback)."""

from __future__ import annotations

import ipaddress
import re
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from storage_engine.core.untrusted import java_text
from storage_engine.crc import crc_engine
from storage_engine.native import direct
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.codec.frame_layout import SCHEDULE_TOPIC, TRANSACTION_PREPARED
from storage_engine.rocketmq.engine.append import append_kernels as kernels
from storage_engine.rocketmq.engine.append.mapped_file_queue import FileQueue, WritableFile
from storage_engine.rocketmq.engine.dispatch.queue_writer import QueueTable, is_directory_name
from storage_engine.rocketmq.engine.engine_settings import (
    DISPATCH,
    DISPATCH_OFFSETS,
    LIGHT_PREFIX,
    NO_LIGHT_QUEUES,
    EngineSettings,
)

_NAME_END = chr(frame.NAME_VALUE_SEPARATOR)
_PROPERTY_END = chr(frame.PROPERTY_SEPARATOR)
_JAVA_TABLE = 128
"""Buckets of the map that the broker parses properties into (MessageDecoder#string2messageProperties)."""


class PutStatus(StrEnum):
    """Result of a put, in the broker's words (PutMessageStatus)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class PutResult(NamedTuple):
    """Position of a stored message or batch. Offsets are -1 if it wasn't stored.

    :param messages: number of messages in a batch. The queue offset is that of the first message.
    """

    status: PutStatus
    physical_offset: int = -1
    size_bytes: int = 0
    queue_offset: int = -1
    store_timestamp_ms: int = 0
    messages: int = 1


class NewMessage(NamedTuple):
    """One message to store.

    It is a tuple, which is cheap to make: a producer makes one for each message that it sends.

    :param properties: the block as it is stored; see :func:`properties_block`.
    :param born_host: result of :func:`host_bytes`; likewise ``store_host``.
    """

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class NewBatch(NamedTuple):
    """Messages of one queue in the form in which a client sends them (MessageExtBatch).

    :param messages: the bytes that MessageDecoder#encodeMessages makes.
    :param properties: added to each message behind its own properties.
    """

    topic: str
    messages: bytes
    properties: bytes = b""
    queue_id: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0


def host_bytes(address: str, port: int) -> bytes:
    """Return an address and a port as a frame stores them: 8 bytes, or 20 with IPv6."""
    return ipaddress.ip_address(address).packed + struct.pack(">i", port)


def properties_block(properties: Mapping[str, str]) -> bytes:
    """Return properties in their stored form (MessageDecoder#messageProperties2String)."""
    return "".join(f"{name}{_NAME_END}{value}{_PROPERTY_END}" for name, value in properties.items()).encode()


def parse_properties(block: bytes) -> dict[str, str]:
    """Parse a block. The last of equal names counts (MessageDecoder#string2messageProperties)."""
    properties: dict[str, str] = {}
    for part in java_text(block).split(_PROPERTY_END):
        name, separator, value = part.partition(_NAME_END)
        if separator and name and value:
            properties[name] = value
    return properties


def in_java_order(properties: Mapping[str, str]) -> dict[str, str]:
    """Sort properties by their buckets in the broker's HashMap. Names in one bucket keep their order."""
    from storage_engine.rocketmq.format.index_file import java_hash

    size = _JAVA_TABLE
    while len(properties) > size * 3 // 4:
        size *= 2

    def bucket(item: tuple[str, str]) -> int:
        hashed = java_hash(item[0]) & 0xFFFFFFFF
        return (hashed ^ hashed >> 16) & (size - 1)

    return dict(sorted(properties.items(), key=bucket))


_V1, _V2 = struct.Struct(">IB"), struct.Struct(">Ih")
_MAX_SHORT = (1 << 15) - 1
_LONGEST_V1 = 127
_SPARE_BYTES = 64 << 10
"""Bytes by which a frame may exceed the longest body."""
_PUT_OK = PutStatus.PUT_OK
_new_tuple = tuple.__new__
"""Makes a :class:`PutResult` three times as fast as a call of the class does."""
_INNER_NUM, _INNER_BASE = "INNER_NUM", "INNER_BASE"
_WAIT = "WAIT"
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_REFUSALS = {
    kernels.PROPERTIES_TOO_LONG: PutStatus.PROPERTIES_SIZE_EXCEEDED,
    kernels.UNMAPPED: PutStatus.SERVICE_NOT_AVAILABLE,
}
_NONE: Final[Sequence[tuple[str, int]]] = ()
Clock = Callable[[], int]


class Appender:
    """Encodes messages and writes them one after the other. It may be called from several threads."""

    def __init__(self, files: FileQueue, queues: QueueTable, settings: EngineSettings, clock: Clock) -> None:
        """:param clock: returns the store time in ms since the epoch."""
        self._files, self._queues, self._settings, self._clock = files, queues, settings, clock
        self._guard = threading.Lock()
        self._closed = False
        self._topics: dict[str, bytes] = {}
        self._max_message_bytes = settings.max_message_bytes
        body_bytes, batch_bytes = settings.max_message_bytes, files.file_bytes - frame.BLANK_HEADER_BYTES
        frame_bytes = min(body_bytes + _SPARE_BYTES, batch_bytes)
        crc = crc_engine()
        with_crc = settings.append_property_crc
        self._log = array("q", (body_bytes, frame_bytes, crc.function, crc.table, with_crc, batch_bytes))
        self._log_address = self._log.buffer_info()[0]
        self._no_file = array("q", [0] * kernels.FILE_FIELDS)
        """Table to use while the log has no file. It has no room, so the first message creates a file."""
        self._no_file_address = self._no_file.buffer_info()[0]
        self._write_message = direct(kernels.write_message)
        self._write_batch = direct(kernels.write_batch)

    def close(self) -> None:
        """Accept no more messages. Returns when the last put is done."""
        with self._guard:
            self._closed = True

    def put(self, message: NewMessage) -> PutResult:
        """Write one message, or one inner batch.

        :return: has a status other than PUT_OK if the message was not written.
        """
        (
            topic,
            body,
            properties,
            queue_id,
            flag,
            sys_flag,
            born_ms,
            born_host,
            store_host,
            reconsume_times,
            prepared_offset,
        ) = message
        topic_part = self._topics.get(topic) or self._topic_part(topic)
        queue = (topic, queue_id)
        offsets = self._queues.next_offsets
        counted = not sys_flag & TRANSACTION_PREPARED  # The flag of a rollback contains this bit, too.
        messages, light_queues = 1, _NONE
        may_be_inner = False
        # A with statement takes twice the time.
        self._guard.acquire()
        try:
            if self._closed:
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            queue_offset = offsets.get(queue, 0) if counted else 0
            store_ms = self._clock()
            files = self._files.files
            file = files[-1] if files else None
            while True:
                physical, size = self._write_message(
                    file.table_address if file else self._no_file_address,
                    self._log_address,
                    topic_part,
                    body,
                    properties,
                    queue_id,
                    flag,
                    queue_offset,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    reconsume_times,
                    prepared_offset,
                    may_be_inner,
                )
                if size:
                    break
                if physical == kernels.NO_ROOM:
                    file = self._next_file(file, store_ms)
                elif physical == kernels.INNER:
                    inner = self._inner_batch(message, queue_offset)
                    if inner is None:
                        return PutResult(PutStatus.MESSAGE_ILLEGAL)
                    messages, properties, light_queues = inner
                    may_be_inner = True
                else:
                    return PutResult(_REFUSALS.get(physical, PutStatus.MESSAGE_ILLEGAL))
            if counted:
                offsets[queue] = queue_offset + messages
            for light_queue in light_queues:
                offsets[light_queue] = offsets.get(light_queue, 0) + 1
        except OverflowError:  # a number of more than 64 bits
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        except OSError:
            return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
        finally:
            self._guard.release()
        return _new_tuple(PutResult, (_PUT_OK, physical, size, queue_offset, store_ms, messages))

    def put_batch(self, batch: NewBatch) -> PutResult:
        """Write the messages of a client's batch, all or none (CommitLog#asyncPutMessages)."""
        topic_part = self._topics.get(batch.topic) or self._topic_part(batch.topic)
        if (
            not topic_part
            or batch.queue_id < 0
            or batch.sys_flag & frame.TRANSACTION_MASK
            or len(batch.messages) > self._max_message_bytes
        ):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue = (batch.topic, batch.queue_id)
        with self._guard:
            if self._closed:
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            queue_offset = self._queues.next_offsets.get(queue, 0)
            store_ms = self._clock()
            try:
                file = self._files.last
                while True:
                    physical, size, messages = self._write_batch(
                        file.table_address if file else self._no_file_address,
                        self._log_address,
                        topic_part,
                        batch.messages,
                        batch.properties,
                        batch.queue_id,
                        queue_offset,
                        batch.sys_flag,
                        batch.born_timestamp_ms,
                        batch.born_host,
                        store_ms,
                        batch.store_host,
                        batch.reconsume_times,
                    )
                    if physical != kernels.NO_ROOM:
                        break
                    file = self._next_file(file, store_ms)
            except OverflowError:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
            except OSError:
                return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
            if not size:
                return PutResult(_REFUSALS.get(physical, PutStatus.MESSAGE_ILLEGAL))
            self._queues.next_offsets[queue] = queue_offset + messages
        return _new_tuple(PutResult, (_PUT_OK, physical, size, queue_offset, store_ms, messages))

    def _topic_part(self, topic: str) -> bytes:
        """Return a topic's magic, length and name; empty if no frame or no directory can have the name."""
        name = topic.encode()
        part = b""
        if is_directory_name(topic):
            if len(name) <= _LONGEST_V1 and (len(topic) <= _LONGEST_V1 or not self._settings.long_topics):
                part = _V1.pack(frame.MAGIC_V1, len(name)) + name
            elif self._settings.long_topics and len(name) <= _MAX_SHORT:
                part = _V2.pack(frame.MAGIC_V2, len(name)) + name
        self._topics[topic] = part
        return part

    def _next_file(self, file: WritableFile | None, store_ms: int) -> WritableFile:
        """Fill up a file that has no room for the next message, and return the next file.

        :param file: None if the log has no file yet.
        """
        if file:
            file.fill_up(store_ms)
        return self._files.last_for_write()

    def _inner_batch(
        self, message: NewMessage, queue_offset: int
    ) -> tuple[int, bytes, Sequence[tuple[str, int]]] | None:
        """Parse what the properties say about an inner batch and about light queues.

        :return: number of messages, properties with queue offsets added, and light queues that get an entry;
            None if the message is illegal.
        """
        properties = parse_properties(message.properties)
        inner = bool(message.sys_flag & frame.INNER_BATCH)
        if (_INNER_NUM in properties and not inner) or (inner and not self._queues.is_batch(message.topic)):
            return None
        number = properties.get(_INNER_NUM, "1")
        if inner and not (_NUMBER.fullmatch(number) and -_MAX_SHORT - 1 <= int(number) <= _MAX_SHORT):
            return None
        count = max(1, int(number)) if inner else 1
        light = (
            self._settings.light_queues
            and bool(properties.get(DISPATCH, "").strip())
            and not message.topic.startswith(NO_LIGHT_QUEUES)
            and message.topic != SCHEDULE_TOPIC
        )
        if not inner and not light:
            return count, message.properties, _NONE
        if inner:
            properties[_INNER_BASE] = str(queue_offset)
        queues: list[tuple[str, int]] = []
        if light:
            names = properties[DISPATCH].split(",")
            queues = [(name, 0) for name in names if name.startswith(LIGHT_PREFIX)]
            properties[DISPATCH_OFFSETS] = ",".join(
                str(self._queues.next_offsets.get((name, 0), 0)) if name.startswith(LIGHT_PREFIX) else ""
                for name in names
            )
            if _WAIT in properties:
                properties[_WAIT] = properties.pop(_WAIT)  # The broker removes it and appends it again.
        return count, properties_block(in_java_order(properties)), queues
