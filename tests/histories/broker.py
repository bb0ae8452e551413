"""What a broker does to the smallest store that the engine takes: seal segments, recover from a crash.

Each segment has two messages and a blank tail; the active one, the last, has its first message only. A
message's place in log and consume queue follows from its segment's number, so that nothing has to be kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from pathlib import Path

from tests.rocketmq.conftest import MAGIC_BLANK, Message, make_frame

SEGMENT_BYTES = 512
QUEUE_FILE_ENTRIES = 8
_ENTRY = struct.Struct(">qiq")
_TOPIC = b"t"
_STORED_MS = 1_700_000_000_000
_MONTH_NS = 30 * 24 * 3600 * 10**9


def make_store(root: Path) -> None:
    """Make a store that was stopped cleanly, with an active segment only."""
    for directory in ("commitlog", "config", "index", f"consumequeue/{_TOPIC.decode()}/0"):
        (root / directory).mkdir(parents=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {}}))
    (root / "checkpoint").write_bytes(struct.pack(">qqq", _STORED_MS, _STORED_MS, 0).ljust(4096, b"\0"))
    _write_segment(root, 0, "", sealed=False)


def seal(root: Path, count: int, serial: str) -> None:
    """Fill the active segment, and as many more, until so many are sealed that were not; all of them are old.

    :param serial: goes into each message, so that no two segments are alike.
    """
    active = max(segments(root)) // SEGMENT_BYTES
    for number in range(active, active + count):
        _write_segment(root, number, serial, sealed=True)
    _write_segment(root, active + count, serial, sealed=False)


def recover(root: Path, keep: int, serial: str) -> None:
    """Truncate the log behind its oldest segments, as a recovery does, and write the same offsets again."""
    found = sorted(segments(root))
    for base_offset in found[keep:]:
        path_of(root, base_offset).unlink()
        _write_segment(root, base_offset // SEGMENT_BYTES, serial, sealed=base_offset != found[-1])


def delete_oldest(root: Path) -> None:
    """Delete the oldest segment, as a broker does whose disk is full."""
    path_of(root, min(segments(root))).unlink()


def segments(root: Path) -> dict[int, str]:
    """Return the SHA-256 of each commitlog file by its base offset; nothing where there is no store."""
    directory = root / "commitlog"
    files = sorted(directory.iterdir()) if directory.is_dir() else []
    return {int(file.name): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def sealed(root: Path) -> dict[int, str]:
    """Return the sealed ones of :func:`segments`: all but the last."""
    found = segments(root)
    return {base_offset: found[base_offset] for base_offset in sorted(found)[:-1]}


def path_of(root: Path, base_offset: int) -> Path:
    return root / "commitlog" / f"{base_offset:020d}"


def _write_segment(root: Path, number: int, serial: str, *, sealed: bool) -> None:
    data = bytearray(SEGMENT_BYTES)
    at = 0
    path = path_of(root, number * SEGMENT_BYTES)
    if path.exists():
        # The first message of what was the active segment stays as it is.
        at = int.from_bytes(path.read_bytes()[:4], "big")
        data[:at] = path.read_bytes()[:at]
    for which in range(1 if at else 0, 2 if sealed else 1):
        queue_offset = 2 * number + which
        body = f"{serial} {number}.{which}".encode().ljust(32, b".")
        message = Message(
            topic=_TOPIC,
            body=body,
            properties=b"",
            queue_offset=queue_offset,
            store_timestamp_ms=_STORED_MS + queue_offset,
        )
        frame = make_frame(message, number * SEGMENT_BYTES + at)
        data[at : at + len(frame)] = frame
        _write_entry(root, queue_offset, number * SEGMENT_BYTES + at, len(frame))
        at += len(frame)
    if sealed:
        struct.pack_into(">iI", data, at, SEGMENT_BYTES - at, MAGIC_BLANK)
    path.write_bytes(data)
    month_ago_ns = time.time_ns() - _MONTH_NS
    os.utime(path, ns=(month_ago_ns, month_ago_ns))


def _write_entry(root: Path, queue_offset: int, physical_offset: int, size_bytes: int) -> None:
    file_bytes = QUEUE_FILE_ENTRIES * _ENTRY.size
    base, inside = divmod(queue_offset * _ENTRY.size, file_bytes)
    path = root / "consumequeue" / _TOPIC.decode() / "0" / f"{base * file_bytes:020d}"
    data = bytearray(path.read_bytes() if path.exists() else file_bytes)
    _ENTRY.pack_into(data, inside, physical_offset, size_bytes, 0)
    path.write_bytes(data)
