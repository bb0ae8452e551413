"""Writing messages at the log's end (CommitLog#asyncPutMessage, DefaultAppendMessageCallback)."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from storage_engine.arrow_memory import address_of
from storage_engine.crc import crc_engine
from storage_engine.rocketmq import frame
from storage_engine.rocketmq.engine import append_kernels as kernels
from storage_engine.rocketmq.engine.engine_settings import LIGHT_PREFIX, EngineSettings
from storage_engine.rocketmq.engine.mapped_file import WritableFile
from storage_engine.rocketmq.engine.mapped_file_queue import FileQueue
from storage_engine.rocketmq.engine.new_message import (
    NewBatch,
    NewMessage,
    PutResult,
    PutStatus,
    in_java_order,
    parse_properties,
    properties_block,
)
from storage_engine.rocketmq.engine.queue_table import QueueTable, is_directory_name
from storage_engine.rocketmq.frame import SCHEDULE_TOPIC

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

_HEADERS = {
    0: struct.Struct(">iIiiiqqiq8sq8siqi"),
    frame.BORN_HOST_IPV6: struct.Struct(">iIiiiqqiq20sq8siqi"),
    frame.STORE_HOST_IPV6: struct.Struct(">iIiiiqqiq8sq20siqi"),
    frame.BORN_HOST_IPV6 | frame.STORE_HOST_IPV6: struct.Struct(">iIiiiqqiq20sq20siqi"),
}
_SHORT = struct.Struct(">h")
_BLANK = struct.Struct(">iI")
_LONG = struct.Struct("=q")
_MAX_SHORT = (1 << 15) - 1
_LONGEST_V1 = 127
_SPARE_BYTES = 64 << 10
"""That a frame may be longer than the longest body."""
_IPV4_HOSTS_BYTES = 16
_HOST_FLAGS = {
    (8, 8): 0,
    (20, 8): frame.BORN_HOST_IPV6,
    (8, 20): frame.STORE_HOST_IPV6,
    (20, 20): frame.BORN_HOST_IPV6 | frame.STORE_HOST_IPV6,
}
"""By the lengths of the born and the store host."""
_PUT_OK = PutStatus.PUT_OK
_new_tuple = tuple.__new__
"""Makes a result in a third of the time that its class takes."""
_INNER_NUM, _INNER_BASE = "INNER_NUM", "INNER_BASE"
_DISPATCH, _DISPATCH_OFFSETS, _WAIT = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "WAIT"
_INNER = b"INNER_"
"""In the names of all properties by which a message is more than one."""
_NO_LIGHT_QUEUES = ("%RETRY%", "rmq_sys_")
Clock = Callable[[], int]


class Appender:
    """Encodes messages and writes them, one after the other, from as many threads as call it."""

    def __init__(self, files: FileQueue, queues: QueueTable, settings: EngineSettings, clock: Clock) -> None:
        """:param clock: the store time in ms since the epoch."""
        self._files, self._queues, self._settings, self._clock = files, queues, settings, clock
        self._guard = threading.Lock()
        self._closed = False
        self._topics: dict[str, tuple[int, bytes]] = {}
        self._topic_arrays: dict[str, tuple[npt.NDArray[np.uint8], int]] = {}
        self._batch_memory = _BatchMemory()
        self._crc_bytes = frame.PROPERTY_CRC_BYTES if settings.append_property_crc else 0
        self._max_message_bytes = settings.max_message_bytes
        self._max_frame_bytes = settings.max_message_bytes + _SPARE_BYTES

    def close(self) -> None:
        """Write nothing more; returns once nobody writes."""
        with self._guard:
            self._closed = True

    def put(self, message: NewMessage) -> PutResult:
        """Write one message, or one inner batch.

        :return: not PUT_OK where it was not written, by the broker's own words.
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
        body_bytes = len(body)
        if body_bytes > self._max_message_bytes or queue_id < 0:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        magic, topic_part = self._topics.get(topic) or self._topic_part(topic)
        if not topic_part:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        both = len(born_host) + len(store_host)
        hosts = 0 if both == _IPV4_HOSTS_BYTES else _HOST_FLAGS[len(born_host), len(store_host)]
        sys_flag |= hosts
        header = _HEADERS[hosts]
        counted = not sys_flag & frame.TRANSACTION_PREPARED  # which a rollback's flag has as well
        messages, rewritten = 1, False
        if sys_flag & frame.INNER_BATCH or _INNER in properties:
            checked = self._inner_batch(message)
            if checked is None:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
            messages, rewritten = checked
        queue = (topic, queue_id)
        offsets = self._queues.next_offsets
        body_crc = crc32(body) & frame.CRC_MASK
        others_bytes = header.size + body_bytes + len(topic_part) + _SHORT.size
        # A with statement takes twice the time.
        self._guard.acquire()
        try:
            if self._closed:
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            queue_offset = offsets.get(queue, 0) if counted else 0
            if rewritten:
                properties, light = self._rewritten(message, queue_offset)
            if self._crc_bytes:
                properties = self._with_room_for_crc(properties)
            if len(properties) > _MAX_SHORT:
                return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
            size = others_bytes + len(properties)
            if size > self._max_frame_bytes:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
            store_ms = self._clock()
            files = self._files.files
            file = files[-1] if files else None
            if file is None or size + frame.BLANK_HEADER_BYTES > file.size_bytes - file.wrote:
                try:
                    file = self._room_for(size, store_ms)
                except OSError:
                    return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
                if file is None:
                    return PutResult(PutStatus.MESSAGE_ILLEGAL)
            at = file.wrote
            physical = file.base_offset + at
            head = header.pack(
                size,
                magic,
                body_crc,
                queue_id,
                flag,
                queue_offset,
                physical,
                sys_flag,
                born_ms,
                born_host,
                store_ms,
                store_host,
                reconsume_times,
                prepared_offset,
                body_bytes,
            )
            parts = (head, body, topic_part, _SHORT.pack(len(properties)), properties)
            file.target[at : at + size] = b"".join(parts)
            if self._crc_bytes:
                end = at + size - self._crc_bytes
                file.target[end : at + size] = _crc_property(crc32(file.target[at:end]))
            file.wrote = at + size
            file.store_timestamp_ms = store_ms
            if counted:
                offsets[queue] = queue_offset + messages
            if rewritten:
                for queue in light:
                    offsets[queue] = offsets.get(queue, 0) + 1
        finally:
            self._guard.release()
        return _new_tuple(PutResult, (_PUT_OK, physical, size, queue_offset, store_ms, messages))

    def put_batch(self, batch: NewBatch) -> PutResult:
        """Write the messages of a client's batch, all or none (CommitLog#asyncPutMessages)."""
        magic, topic_part = self._topics.get(batch.topic) or self._topic_part(batch.topic)
        if (
            not topic_part
            or batch.queue_id < 0
            or batch.sys_flag & frame.TRANSACTION_MASK
            or len(batch.messages) > self._max_message_bytes
        ):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        hosts = _HOST_FLAGS[len(batch.born_host), len(batch.store_host)]
        header = _HEADERS[hosts]
        crc = crc_engine()
        memory = self._batch_memory
        template = memory.template
        messages_array = np.frombuffer(batch.messages or b"\0", np.uint8)
        memory.arguments_format.pack_into(
            memory.arguments,
            0,
            address_of(messages_array),
            len(batch.messages),
            memory.template_address,
            header.size,
            self._topic_arrays[batch.topic][1],
            len(topic_part),
            memory.address_of_properties(batch.properties),
            len(batch.properties),
            crc.function,
            crc.table,
            self._settings.append_property_crc,
            0,
        )
        table = memory.arguments_address
        size = kernels.measure_batch(table)
        messages = memory.argument(kernels.MESSAGES)
        if size == kernels.PROPERTIES_TOO_LONG:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
        if size <= 0:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue = (batch.topic, batch.queue_id)
        with self._guard:
            if self._closed:
                return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            queue_offset = self._queues.next_offsets.get(queue, 0)
            store_ms = self._clock()
            header.pack_into(
                template,
                0,
                0,
                magic,
                0,
                batch.queue_id,
                0,
                0,
                0,
                batch.sys_flag | hosts,
                batch.born_timestamp_ms,
                batch.born_host,
                store_ms,
                batch.store_host,
                batch.reconsume_times,
                0,
                0,
            )
            try:
                file = self._room_for(size, store_ms)
            except OSError:
                return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
            if file is None:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
            at = file.wrote
            physical = file.base_offset + at
            kernels.write_batch(table, file.target_address + at, physical, queue_offset)
            file.wrote = at + size
            file.store_timestamp_ms = store_ms
            self._queues.next_offsets[queue] = queue_offset + messages
        return _new_tuple(PutResult, (_PUT_OK, physical, size, queue_offset, store_ms, messages))

    def _topic_part(self, topic: str) -> tuple[int, bytes]:
        """Return a topic's magic, and its length and name as in a frame; no bytes: no frame can have it, or
        no directory.
        """
        name = topic.encode()
        if not is_directory_name(topic):
            part = (frame.MAGIC_V1, b"")
        elif len(name) <= _LONGEST_V1 and (len(topic) <= _LONGEST_V1 or not self._settings.long_topics):
            part = (frame.MAGIC_V1, bytes([len(name)]) + name)
        elif self._settings.long_topics and len(name) <= _MAX_SHORT:
            part = (frame.MAGIC_V2, _SHORT.pack(len(name)) + name)
        else:
            part = (frame.MAGIC_V1, b"")
        array = np.frombuffer(part[1] or b"\0", np.uint8)
        self._topic_arrays[topic] = array, address_of(array)
        self._topics[topic] = part
        return part

    def _with_room_for_crc(self, properties: bytes) -> bytes:
        if properties and properties[-1] != frame.PROPERTY_SEPARATOR:
            properties += bytes([frame.PROPERTY_SEPARATOR])
        return properties + bytes(self._crc_bytes)

    def _room_for(self, size: int, store_ms: int) -> WritableFile | None:
        """Return a file with room for so many bytes; the one before it is filled up.

        :return: None where not even a new file has it.
        """
        file = self._files.last_for_write()
        remaining = file.size_bytes - file.wrote
        if size + frame.BLANK_HEADER_BYTES <= remaining:
            return file
        if size + frame.BLANK_HEADER_BYTES > file.size_bytes:
            return None
        _BLANK.pack_into(file.target, file.wrote, remaining, frame.MAGIC_BLANK)
        file.wrote = file.size_bytes
        file.store_timestamp_ms = store_ms
        return self._files.last_for_write()

    def _inner_batch(self, message: NewMessage) -> tuple[int, bool] | None:
        """Return how many messages one holds, and whether its properties get offsets; None: it is illegal."""
        properties = parse_properties(message.properties)
        inner = bool(message.sys_flag & frame.INNER_BATCH)
        if (_INNER_NUM in properties and not inner) or (inner and not self._queues.is_batch(message.topic)):
            return None
        number = properties.get(_INNER_NUM, "1")
        count = max(1, int(number)) if inner and number.isdecimal() else 1
        light = (
            self._settings.light_queues
            and bool(properties.get(_DISPATCH, "").strip())
            and not message.topic.startswith(_NO_LIGHT_QUEUES)
            and message.topic != SCHEDULE_TOPIC
        )
        return count, inner or light

    def _rewritten(self, message: NewMessage, queue_offset: int) -> tuple[bytes, list[tuple[str, int]]]:
        """Return properties with the offsets of this message, and the light queues that go on by one."""
        properties = parse_properties(message.properties)
        if message.sys_flag & frame.INNER_BATCH:
            properties[_INNER_BASE] = str(queue_offset)
        light: list[tuple[str, int]] = []
        if self._settings.light_queues and properties.get(_DISPATCH, "").strip():
            names = properties[_DISPATCH].split(",")
            light = [(name, 0) for name in names if name.startswith(LIGHT_PREFIX)]
            properties[_DISPATCH_OFFSETS] = ",".join(
                str(self._queues.next_offsets.get((name, 0), 0)) if name.startswith(LIGHT_PREFIX) else ""
                for name in names
            )
            if _WAIT in properties:
                properties[_WAIT] = properties.pop(_WAIT)  # the broker takes it out and puts it back
        return properties_block(in_java_order(properties)), light


class _BatchMemory(threading.local):
    """What a thread's batches are described in for the kernels, at addresses that stay."""

    arguments_format = struct.Struct(f"={kernels.ARGUMENTS}q")

    def __init__(self) -> None:
        self.template = bytearray(max(header.size for header in _HEADERS.values()))
        self.arguments = bytearray(self.arguments_format.size)
        self._held = [np.frombuffer(each, np.uint8) for each in (self.template, self.arguments)]
        self.template_address, self.arguments_address = (address_of(each) for each in self._held)
        self._properties, self._address = b"", self.template_address

    def address_of_properties(self, properties: bytes) -> int:
        """Return where a batch's properties lie; most of a producer's are the same."""
        if properties is not self._properties:
            self._held[2:] = [np.frombuffer(properties or b"\0", np.uint8)]
            self._properties, self._address = properties, address_of(self._held[2])
        return self._address

    def argument(self, place: int) -> int:
        return _LONG.unpack_from(self.arguments, place * _LONG.size)[0]  # type: ignore[no-any-return]


def _crc_property(crc: int) -> bytes:
    """Return the property that ends a frame with its CRC (MessageDecoder#createCrc32)."""
    digits = str(crc & frame.CRC_MASK)[::-1].ljust(10, "0").encode()
    return b"".join(
        (frame.PROPERTY_CRC, bytes([frame.NAME_VALUE_SEPARATOR]), digits, bytes([frame.PROPERTY_SEPARATOR]))
    )
