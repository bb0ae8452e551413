"""The rate at which archiving may read and write, so that a broker on the same disks isn't slowed down.

A limit applies to all threads of the process together. It counts every byte read from segments, written to
data files or read back, cached or not. When a large segment is read again, only bytes from the disk count.
With a limit, archiving is gentle in two more ways. Written bytes go to disk at once, not in one burst at the
end. Pages that only archiving needed leave the page cache. The kernel keeps pages that another process has
mapped and used, such as pages that a broker serves to slow consumers. Without a limit there are no such
steps.

If a broker reports how long its puts take, archiving slows down for it. While puts take noticeably long, and
longer than without archiving, the rate is halved once a minute.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import pyarrow as pa

_BURST_SECONDS = 0.1
"""After a pause, archiving may use the limit of this many seconds at once."""

_BLOCK_BYTES = 1 << 20
"""Maximum number of bytes of one write, so that no write is a burst."""

_SYNC_BYTES = 16 << 20

_LOOK_SECONDS: Final = 60.0
"""Seconds between two questions to a broker. Brokers report the time of puts for the last whole minute."""

_SLOW_PUT_MS: Final = 10.0
"""A p99 up to this number doesn't slow archiving down, because brokers report only whole milliseconds."""

_LONGER: Final = 1.5
"""Puts count as slower if their p99 is more than this many times the earlier p99."""

_LEAST_SHARE: Final = 0.1
_STEP: Final = 0.1


def next_share(share: float, put_p99_ms: float | None, before_ms: float | None) -> float:
    """Return the share of its limit at which archiving continues.

    :param share: the share so far.
    :param put_p99_ms: p99 of the broker's puts now, or None if it isn't known.
    :param before_ms: p99 of its puts without archiving, by :func:`next_before_ms`, or None if it isn't known.
    """
    limit_ms = max(_SLOW_PUT_MS, _LONGER * (before_ms or 0.0))
    if put_p99_ms is not None and put_p99_ms > limit_ms:
        return max(_LEAST_SHARE, share / 2)
    # The rate rises slowly, also because a broker that doesn't answer may be too busy.
    return min(1.0, share + _STEP)


def next_before_ms(share: float, put_p99_ms: float | None, before_ms: float | None) -> float | None:
    """Return an estimate of the p99 of a broker's puts without archiving, or None if it isn't known.

    It is the lowest p99 that the broker has reported. While archiving runs at its lowest share, it is the
    present p99.

    :param share: share of its limit at which archiving ran until now. See :func:`next_share` for the other
        parameters.
    """
    if put_p99_ms is None:
        return before_ms
    if before_ms is None or share <= _LEAST_SHARE:
        return put_p99_ms
    return min(before_ms, put_p99_ms)


class Pace:
    """A pace without a limit."""

    @contextmanager
    def following(self, ask: Callable[[], float | None]) -> Iterator[None]:
        """Slow down for a broker until the block ends.

        :param ask: returns the p99 of the broker's puts in milliseconds, or None if it isn't known.
        """
        yield

    def spend(self, count: int) -> None:
        """Wait until ``count`` more bytes may be read or written."""

    def forget(self, descriptor: int) -> None:
        """Drop an open file's pages from the page cache, because they aren't needed again soon."""

    @contextmanager
    def writing(self, sink: Any) -> Iterator[Any]:
        """Limit writing to a file to this pace until the block ends.

        :param sink: an open binary file, which is left open.
        :return: the file to write to instead.
        """
        yield sink

    @contextmanager
    def reading(self, file: pa.NativeFile) -> Iterator[pa.NativeFile]:
        """Limit reading from a file to this pace until the block ends.

        :param file: a file that is open for reading at any position; it is left open.
        :return: the file to read from instead.
        """
        yield file


class _FollowedBroker:
    """A broker that is asked once a minute. Its answers set the share of the limit that archiving uses."""

    def __init__(self, ask: Callable[[], float | None], now: float) -> None:
        self._ask = ask
        self._before_ms = ask()
        self._next_look = now + _LOOK_SECONDS
        self.share = 1.0

    def takes_look(self, now: float) -> bool:
        """Return whether the caller must ask the broker now, and let no other caller do so."""
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_SECONDS
        return True

    def look(self) -> None:
        """Ask the broker. This may take as long as its timeout."""
        put_p99_ms, share = self._ask(), self.share
        self.share = next_share(share, put_p99_ms, self._before_ms)
        self._before_ms = next_before_ms(share, put_p99_ms, self._before_ms)


class LimitedPace(Pace):
    """A pace with a limit, as a token bucket. If it is empty, callers wait in the order of their calls.

    :param bytes_per_second: the limit, above 0.
    :param clock: returns monotonic seconds.
    """

    def __init__(
        self,
        bytes_per_second: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until = clock()
        self._brokers: list[_FollowedBroker] = []

    @contextmanager
    def following(self, ask: Callable[[], float | None]) -> Iterator[None]:
        # A process may archive several stores at once, each with its own broker.
        broker = _FollowedBroker(ask, self._clock())
        with self._lock:
            self._brokers.append(broker)
        try:
            yield
        finally:
            with self._lock:
                self._brokers.remove(broker)

    def spend(self, count: int) -> None:
        with self._lock:
            now = self._clock()
            due = [broker for broker in self._brokers if broker.takes_look(now)]
        # The lock isn't held, so that a broker that hangs doesn't stop other threads.
        for broker in due:
            broker.look()
        with self._lock:
            now = self._clock()
            share = min((broker.share for broker in self._brokers), default=1.0)
            start = max(self._paid_until, now - _BURST_SECONDS)
            self._paid_until = start + count / (self._bytes_per_second * share)
            pause = self._paid_until - now
        if pause > 0:
            self._sleep(pause)

    def forget(self, descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    @contextmanager
    def writing(self, sink: Any) -> Iterator[Any]:
        yield _PacedSink(sink, self)

    @contextmanager
    def reading(self, file: pa.NativeFile) -> Iterator[pa.NativeFile]:
        with pa.PythonFile(_PacedSource(file, self), mode="r") as paced:
            yield paced
        if isinstance(file, pa.OSFile):
            self.forget(file.fileno())


@cache
def pace_at(bytes_per_second: int | None) -> Pace:
    """Return the process's pace for a limit, which its threads share; None for no limit."""
    return Pace() if bytes_per_second is None else LimitedPace(bytes_per_second)


class _PacedSink(io.RawIOBase):
    """A file that writes to a sink at a pace. Closing it leaves the sink open."""

    def __init__(self, sink: Any, pace: Pace) -> None:
        super().__init__()
        self._sink = sink
        self._pace = pace
        self._unsynced_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BLOCK_BYTES):
            block = view[start : start + _BLOCK_BYTES]
            self._pace.spend(len(block))
            self._sink.write(block)
            self._unsynced_bytes += len(block)
        if self._unsynced_bytes >= _SYNC_BYTES and isinstance(self._sink, pa.OSFile):
            os.fdatasync(self._sink.fileno())
            self._unsynced_bytes = 0
        return len(view)


class _PacedSource(io.RawIOBase):
    """A file that reads from another file at a pace. Closing it leaves the other file open."""

    def __init__(self, file: pa.NativeFile, pace: Pace) -> None:
        super().__init__()
        self._file = file
        self._pace = pace

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(None if size < 0 else size)
        self._pace.spend(len(data))
        return data
