"""Letting one put flush for all that wait for the disk (GroupCommitService)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

GATHERING_SECONDS = 0.0002
"""That a put waits for others to come; far less than a flush takes."""


class _Waiting:
    """A put that waits for its bytes to be on disk."""

    __slots__ = ("gathers", "is_flushed", "offset", "woken")

    def __init__(self, offset: int, *, gathers: bool) -> None:
        self.offset = offset
        self.gathers = gathers
        """Whether it is the one that flushes when no more come."""
        self.is_flushed = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        if self.woken.locked():
            self.woken.release()


class GroupCommit:
    """Flushes when as many puts wait as the last time, or when no more of them come.

    Whom a flush released puts again within a moment. So the last to come flushes for all, and nobody has to
    be woken for it.
    """

    def __init__(self, flush: Callable[[], object], flushed: Callable[[], int]) -> None:
        """
        :param flush: takes to disk what was written; raises OSError where the disk refuses.
        :param flushed: tells up to which offset all is on disk.
        """
        self._flush, self._flushed = flush, flushed
        self._guard = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._flushing = False
        self._together = 0
        """How many waited when the last flush ended."""

    def wait_for(self, offset: int, timeout_seconds: float) -> bool:
        """Wait until all is on disk up to an offset; False: it isn't, or not within this time."""
        deadline = time.monotonic() + timeout_seconds
        with self._guard:
            if self._flushed() >= offset:
                return True
            me = _Waiting(offset, gathers=not self._flushing and not self._waiting)
            self._waiting.append(me)
            leads = not self._flushing and len(self._waiting) >= self._together
            self._flushing |= leads
        while not leads:
            seconds = GATHERING_SECONDS if me.gathers else max(0.0, deadline - time.monotonic())
            if not me.woken.acquire(timeout=seconds):
                with self._guard:
                    if not me.woken.acquire(blocking=False):
                        if not me.gathers:
                            self._waiting.remove(me)
                            return False
                        me.gathers = False
                        leads, self._flushing = not self._flushing, True
                        continue
            if not me.gathers:
                return me.is_flushed
        self._flush_for_all(me)
        return me.is_flushed and time.monotonic() <= deadline

    def _flush_for_all(self, leader: _Waiting) -> None:
        """Flush, and wake the puts whose bytes are on disk; all of them where the disk refuses.

        :param leader: the put that flushes; it waits no more, whatever became of its bytes.
        """
        refused = True
        try:
            with suppress(OSError):
                self._flush()
                refused = False
        finally:
            with self._guard:
                flushed, self._together = self._flushed(), len(self._waiting)
                before, self._waiting = self._waiting, []
                for each in before:
                    each.is_flushed = each.offset <= flushed
                    if not each.is_flushed and not refused and each is not leader:
                        self._waiting.append(each)
                        continue
                    each.gathers = False
                    each.wake()
                self._flushing = False
                if self._waiting:
                    self._waiting[0].gathers = True
                    self._waiting[0].wake()
