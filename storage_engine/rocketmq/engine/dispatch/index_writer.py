"""Writing of the index that finds messages by their keys (IndexService)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tzlocal

from storage_engine.arrow.memory import address_of
from storage_engine.core import durable
from storage_engine.core.untrusted import java_text
from storage_engine.rocketmq.codec.frame_kernels import Ints32, Ints64
from storage_engine.rocketmq.engine.append.flush import StoreCheckpoint
from storage_engine.rocketmq.engine.dispatch import dispatch_kernels as kernels
from storage_engine.rocketmq.format.index_file import (
    NAME_DIGITS,
    IndexHeader,
    abs_or_zero,
    java_hash,
    read_header,
)
from storage_engine.rocketmq.format.stored_files import refuse_link

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UnsureIndex:
    """The part of an index that a crash may have damaged.

    :param kept: number of undamaged files, counted from the oldest.
    :param begin: offset from which messages have to be indexed again.
    """

    kept: int
    begin: int


def find_unsure(
    sound: Sequence[IndexHeader], loaded: int, log_begin: int, log_end: int, began_at: int
) -> UnsureIndex | None:
    """Find the part of an index that has to be rebuilt after a crash.

    A file stays if it is undamaged and names no message at or behind the log's end. Nothing has to be rebuilt
    if all files stay, and the recovery itself has indexed every message behind those of the files.

    :param sound: headers of the first files, as far as these are surely undamaged.
    :param loaded: number of files that the broker keeps.
    :param began_at: offset at which the recovery began to read the log.
    :return: None if each message has its entry.
    """
    kept = next((n for n, header in enumerate(sound) if header.end_phy_offset >= log_end), len(sound))
    begin = max(log_begin, sound[kept - 1].end_phy_offset if kept else 0)
    return None if kept == loaded and began_at <= begin else UnsureIndex(kept, begin)


class IndexWriter:
    """The index files of a store. The last file is mapped while entries are written to it."""

    def __init__(self, directory: Path, slots: int, capacity: int, checkpoint: StoreCheckpoint) -> None:
        self._directory, self._slots, self._capacity = directory, slots, capacity
        self._checkpoint = checkpoint
        self.paths: list[Path] = []
        self._file: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None
        self._path: Path | None = None
        self._sound = self._loaded = 0
        """How many of the first files a crash surely left undamaged, and how many files were loaded."""

    @property
    def _file_bytes(self) -> int:
        return (
            kernels.HEADER_BYTES
            + kernels.SLOT_BYTES * self._slots
            + kernels.INDEX_ENTRY_BYTES * self._capacity
        )

    def load(self, *, clean: bool) -> tuple[Path, ...]:
        """Find the files. After a crash, delete and return unflushed files (IndexService#load)."""
        listed = self.listed()
        self._sound = 0 if clean else len(self.sound_headers(listed))
        deleted = () if clean else tuple(path for path in listed if self.is_unflushed(path))
        for path in deleted:
            durable.unlink(path)
        if deleted:
            durable.fsync_path(self._directory)
        self.paths = [path for path in listed if path not in deleted]
        self._loaded = len(self.paths)
        return deleted

    def sound_headers(self, listed: Sequence[Path]) -> list[IndexHeader]:
        """Return the headers of the first files, as far as a crash has surely left these undamaged.

        Only full files are flushed. The header of another file may be older than its entries.
        """
        headers = []
        for path in listed:
            if self.is_unflushed(path) or (header := read_header(path)).next_entry < self._capacity:
                break
            headers.append(header)
        return headers

    def listed(self) -> list[Path]:
        """List the index files. Files whose names are no times are ignored (NumberFormatException)."""
        if not self._directory.is_dir():
            return []
        paths = []
        for path in sorted(self._directory.iterdir()):
            if path.name.isdecimal() and len(path.name) == NAME_DIGITS and path.is_file():
                refuse_link(path)
                paths.append(path)
        return paths

    def is_unflushed(self, path: Path) -> bool:
        """Return whether a file may have entries that aren't on disk, or has no complete header."""
        if path.stat().st_size < kernels.HEADER_BYTES:
            return True
        return read_header(path).end_timestamp_ms > self._checkpoint.values.index_msg_timestamp_ms

    def drop_unsure(self, log_begin: int, log_end: int, began_at: int) -> int | None:
        """Delete index files that a crash may have damaged, although the broker would keep them.

        :param log_begin: first offset of the log.
        :param began_at: offset at which the recovery began to read the log and to make entries.
        :return: offset from which the caller has to index messages again; None if each message has its entry.
        """
        headers = [read_header(path) for path in self.paths[: self._sound]]
        unsure = find_unsure(headers, self._loaded, log_begin, log_end, began_at)
        if unsure is None:
            return None
        self._file = self._path = None
        end_ms = headers[unsure.kept - 1].end_timestamp_ms if unsure.kept else 0
        self._checkpoint.set(index_msg_timestamp_ms=end_ms)
        self._checkpoint.flush()
        for path in self.paths[unsure.kept :]:
            durable.unlink(path)
        durable.fsync_path(self._directory)
        del self.paths[unsure.kept :]
        return unsure.begin

    def put(self, base: int, texts: memoryview | npt.NDArray[np.uint8], rows: Rows, now_ms: int) -> None:
        """Write the keys of messages in their order.

        :param base: address from which positions in the rows are counted. ``texts`` is the same memory.
        :param now_ms: time that becomes the name of a new file.
        """
        starts, hashes = self._hashes(base, texts, rows)
        state = np.array([0, -1], np.int64)
        while True:
            file = self._writable(now_ms)
            code = kernels.put_rows(
                address_of(file),
                self._slots,
                self._capacity,
                address_of(rows),
                len(rows),
                starts,
                hashes,
                state,
            )
            if code == kernels.DONE:
                return

    def flush(self) -> None:
        """Flush the last file to disk (IndexFile#flush)."""
        if self._path is not None:
            durable.fsync_path(self._path)

    def close(self) -> None:
        """Flush and unmap the last file."""
        self.flush()
        self._file = self._path = None

    def delete_below(self, min_offset: int) -> int:
        """Delete and count files that name only deleted messages, never the last (#deleteExpiredFile)."""
        deleted = 0
        while len(self.paths) > 1 and read_header(self.paths[0]).end_phy_offset < min_offset:
            durable.unlink(self.paths.pop(0))
            deleted += 1
        if deleted:
            durable.fsync_path(self._directory)
        return deleted

    def _hashes(
        self, base: int, texts: memoryview | npt.NDArray[np.uint8], rows: Rows
    ) -> tuple[Ints64, Ints32]:
        starts = np.empty(len(rows) + 1, np.int64)
        hashes = np.empty(4 * len(rows) + 64, np.int32)
        address = address_of(rows)
        while (count := kernels.hash_keys(base, address, len(rows), starts, hashes)) < 0:
            hashes = np.empty(4 * len(hashes), np.int32)
        for place in np.flatnonzero(hashes[:count] < 0).tolist():
            # Hash a key that isn't UTF-8, decoded as Java decodes such bytes.
            number = int(np.searchsorted(starts, place, "right")) - 1
            row, topic = rows[number], text_of(texts, rows[number], kernels.TOPIC_AT)
            keys = [text_of(texts, row, kernels.UNIQUE_AT)] if row[kernels.UNIQUE_BYTES] else []
            keys += [key for key in text_of(texts, row, kernels.KEYS_AT).split(" ") if key]
            hashes[place] = abs_or_zero(java_hash(f"{topic}#{keys[place - int(starts[number])]}"))
        return starts, hashes

    def _writable(self, now_ms: int) -> npt.NDArray[np.uint8]:
        """Return the last file's memory. If all are full, make a new file (#getAndCreateLastIndexFile)."""
        if self._file is None and self.paths:
            self._map(self.paths[-1])
        file = self._file
        if file is not None and _number(file, kernels.NEXT_ENTRY_AT, 4) < self._capacity:
            return file
        before = bytes(file[: kernels.HEADER_BYTES]) if file is not None else b""
        full = self._path
        if full is not None:
            # After a power loss, only the last file may be empty.
            durable.fsync_path(full)
        path = self._new_path(now_ms)
        durable.make_dirs(self._directory)
        with durable.create(path) as opened:
            os.posix_fallocate(opened.fileno(), 0, self._file_bytes)
        self._file = None
        file = self._map(path)
        self.paths.append(path)
        _put_number(file, kernels.NEXT_ENTRY_AT, 4, 1)
        if before:
            for source, targets in (
                (kernels.END_OFFSET_AT, (kernels.BEGIN_OFFSET_AT, kernels.END_OFFSET_AT)),
                (kernels.END_MS_AT, (kernels.BEGIN_MS_AT, kernels.END_MS_AT)),
            ):
                value = int.from_bytes(before[source : source + 8], "big", signed=True)
                for target in targets:
                    if value > 0:
                        _put_number(file, target, 8, value)
        durable.fsync_path(self._directory)
        if full is not None:
            end_ms = int.from_bytes(before[kernels.END_MS_AT : kernels.END_MS_AT + 8], "big", signed=True)
            self._checkpoint.set(index_msg_timestamp_ms=end_ms)
            self._checkpoint.flush()
        return file

    def _map(self, path: Path) -> npt.NDArray[np.uint8]:
        with durable.opened(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC) as fd:
            if os.fstat(fd).st_size < self._file_bytes:
                os.posix_fallocate(fd, 0, self._file_bytes)
            self._file = np.frombuffer(mmap.mmap(fd, self._file_bytes), np.uint8)
        if _number(self._file, kernels.NEXT_ENTRY_AT, 4) <= 0:
            _put_number(self._file, kernels.NEXT_ENTRY_AT, 4, 1)
        self._path = path
        return self._file

    def _new_path(self, now_ms: int) -> Path:
        """Return a path named after the local time (UtilAll#timeMillisToHumanString).

        It sorts behind all other paths even when the local time was set back: files are read in this order.
        """
        number = int(_time_name(now_ms))
        if self.paths:
            number = max(number, int(self.paths[-1].name) + 1)
        while (path := self._directory / f"{number:0{NAME_DIGITS}d}").exists():
            number += 1
        return path


def _time_name(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone(tzlocal.get_localzone())
    return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def text_of(texts: memoryview | npt.NDArray[np.uint8], row: Rows, position_field: int) -> str:
    """Decode a text as Java does. ``position_field`` has the text's position, the next field its length."""
    begin, length = (int(number) for number in row[position_field : position_field + 2])
    return java_text(bytes(texts[begin : begin + length]))


def _number(file: npt.NDArray[np.uint8], at: int, size: int) -> int:
    return int.from_bytes(bytes(file[at : at + size]), "big", signed=True)


def _put_number(file: npt.NDArray[np.uint8], at: int, size: int, value: int) -> None:
    file[at : at + size] = np.frombuffer(value.to_bytes(size, "big", signed=True), np.uint8)
