"""Single messages of the commitlog by their physical offsets; reads nothing else of a segment."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage_engine.exceptions import CorruptFileError
from storage_engine.rocketmq.codec import frame
from storage_engine.rocketmq.codec.store_times import LogFile
from storage_engine.rocketmq.format.mapped_files import mapped

Longs = npt.NDArray[np.int64]


class StoredMessage(NamedTuple):
    topic: bytes
    body: bytes
    properties: bytes

    def property(self, name: bytes) -> bytes | None:
        """A property's value; None when the message has none of this name.

        The last one counts, and none without a value (MessageDecoder#string2messageProperties).
        """
        for pair in reversed(self.properties.split(bytes([frame.PROPERTY_SEPARATOR]))):
            key, _, value = pair.partition(bytes([frame.NAME_VALUE_SEPARATOR]))
            if value and key == name:
                return value
        return None


def stored_messages(files: Sequence[LogFile], offsets: Longs) -> Iterator[StoredMessage]:
    """The messages that begin at some physical offsets.

    :param files: the commitlog's, oldest first.
    :param offsets: in ascending order, none below the log's min offset.
    :raises CorruptFileError: no message begins at one of them.
    """
    behind = 0
    for file in files:
        low, high = np.searchsorted(offsets, [file.base_offset, file.base_offset + file.size_bytes])
        behind = int(high)
        if low < high:
            with mapped(Path(file.path)) as data:
                for offset in offsets[low:high].tolist():
                    try:
                        yield read_message(data, offset - file.base_offset, offset)
                    except (struct.error, ValueError) as error:
                        raise CorruptFileError(
                            f"{file.path}: position {offset - file.base_offset}: expected the message that a "
                            f"consume queue has at physical offset {offset}, found none ({error}). Compare "
                            "the file with a replica."
                        ) from error
    if behind < len(offsets):
        raise CorruptFileError(
            f"{files[-1].path}: expected a message at physical offset {offsets[behind]}, which a consume "
            "queue has, found the commitlog's end. Start the broker, which recovers the store, and stop it "
            "cleanly."
        )


def read_message(data: memoryview, position: int, offset: int) -> StoredMessage:
    """Read the message that begins at a position of a segment.

    :param offset: physical offset that it has there.
    :raises ValueError: none does.
    :raises struct.error: the segment ends within it.
    """
    size, magic = struct.unpack_from(">iI", data, position)
    (found,) = struct.unpack_from(">q", data, position + frame.PHYSICAL_OFFSET_AT)
    (sys_flag,) = struct.unpack_from(">i", data, position + frame.SYS_FLAG_AT)
    if magic not in (frame.MAGIC_V1, frame.MAGIC_V2) or found != offset:
        raise ValueError(f"magic {magic:08x}, physical offset {found}")
    flags = (frame.BORN_HOST_IPV6, frame.STORE_HOST_IPV6)
    moved = sum(frame.IPV6_EXTRA_BYTES for flag in flags if sys_flag & flag)
    at = position + frame.BODY_LENGTH_AT + moved
    (body_length,) = struct.unpack_from(">i", data, at)
    body_end = at + 4 + body_length
    (topic_length,) = struct.unpack_from(">B" if magic == frame.MAGIC_V1 else ">H", data, body_end)
    topic_at = body_end + (1 if magic == frame.MAGIC_V1 else 2)
    properties_at = topic_at + topic_length + 2
    (properties_length,) = struct.unpack_from(">H", data, properties_at - 2)
    if body_length < 0 or properties_at + properties_length > position + size:
        raise ValueError(f"size {size}, body of {body_length} bytes")
    return StoredMessage(
        bytes(data[topic_at : topic_at + topic_length]),
        bytes(data[at + 4 : body_end]),
        bytes(data[properties_at : properties_at + properties_length]),
    )
