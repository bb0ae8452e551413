"""A stopped RocketMQ store of tiny segments, whose messages are of chosen topics and stored when written."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.clock import clock_ms
from tests.rocketmq.conftest import MAGIC_BLANK, Message, make_frame

SEGMENT_BYTES = 1024
_QUEUE_FILE_ENTRIES = 8
_ENTRY = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class Sealed:
    """
    :param rows: messages by topic.
    :param newest_ms: when the newest of each topic was stored.
    """

    base_offset: int
    sha256: str
    rows: dict[str, int]
    newest_ms: dict[str, int]


class TopicStore:
    """:param topics_of: the topics of a segment's messages, by its number; at most six."""

    def __init__(self, root: Path, topics_of: Callable[[int], Sequence[str]]) -> None:
        self.root, self.topics_of = root, topics_of
        self.sealed: dict[int, Sealed] = {}
        self._queues: Counter[str] = Counter()
        self._frames: list[tuple[str, int, bytes]] = []
        for directory in ("commitlog", "config", "index"):
            (root / directory).mkdir(parents=True)
        (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
        self._write(0, whole=False)

    def seal(self) -> Sealed:
        """Fill the active segment, and begin the next one."""
        number = len(self.sealed)
        self._write(number, whole=True)
        data = self._path(number).read_bytes()
        sealed = Sealed(
            number * SEGMENT_BYTES,
            hashlib.sha256(data).hexdigest(),
            dict(Counter(topic for topic, _, _ in self._frames)),
            {topic: stored_ms for topic, stored_ms, _ in self._frames},
        )
        self.sealed[sealed.base_offset] = sealed
        self._frames.clear()
        self._write(number + 1, whole=False)
        return sealed

    def there(self) -> set[int]:
        """Return the base offset of each file of the log."""
        return {int(path.name) for path in (self.root / "commitlog").iterdir()}

    def _path(self, number: int) -> Path:
        return self.root / "commitlog" / f"{number * SEGMENT_BYTES:020d}"

    def _write(self, number: int, *, whole: bool) -> None:
        """Write a segment; of one that isn't whole, the first message alone."""
        topics = self.topics_of(number)
        for topic in topics[len(self._frames) : None if whole else 1]:
            at = sum(len(frame) for _, _, frame in self._frames)
            queue_offset, now_ms = self._queues[topic], clock_ms()
            self._queues[topic] += 1
            message = Message(
                topic=topic.encode(),
                body=f"{topic} {queue_offset}".encode(),
                properties=b"",
                queue_offset=queue_offset,
                store_timestamp_ms=now_ms,
            )
            frame = make_frame(message, number * SEGMENT_BYTES + at)
            self._frames.append((topic, now_ms, frame))
            self._write_entry(topic, queue_offset, number * SEGMENT_BYTES + at, len(frame))
        data = b"".join(frame for _, _, frame in self._frames)
        if whole:
            data += struct.pack(">iI", SEGMENT_BYTES - len(data), MAGIC_BLANK)
        self._path(number).write_bytes(data.ljust(SEGMENT_BYTES, b"\0"))
        stored_ms = self._frames[-1][1]
        checkpoint = struct.pack(">qqq", stored_ms, stored_ms, 0)
        (self.root / "checkpoint").write_bytes(checkpoint.ljust(4096, b"\0"))

    def _write_entry(self, topic: str, queue_offset: int, physical_offset: int, size_bytes: int) -> None:
        file_bytes = _QUEUE_FILE_ENTRIES * _ENTRY.size
        base, inside = divmod(queue_offset * _ENTRY.size, file_bytes)
        path = self.root / "consumequeue" / topic / "0" / f"{base * file_bytes:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = bytearray(path.read_bytes() if path.exists() else file_bytes)
        _ENTRY.pack_into(data, inside, physical_offset, size_bytes, 0)
        path.write_bytes(data)
