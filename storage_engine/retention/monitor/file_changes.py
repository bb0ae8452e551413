"""What wakes the watch of one store before its next look: a change in its log's directories, or a call.

Each store has an inotify instance of its own, so that what one of them can't have keeps no other from it.
Without one a watch looks at its files all the same, as often as it says.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncinotify import Inotify, Watch

RETRY_SECONDS: Final = 60.0
"""After inotify couldn't be had."""
_MOST_EVENTS: Final = 1000
"""Of one wake: what comes after them is the next one's."""


class FileChanges:
    """To be used by one thread, but for :meth:`wake`.

    :param say: told why changes aren't seen; again only once they were seen in between.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._is_said = False
        self._retries_at = 0.0
        self._inotify: Inotify | None = None
        self._watches: dict[Path, tuple[tuple[int, int], Watch]] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def follow(self, directories: Iterable[Path]) -> None:
        """See changes in these directories from now on. One that isn't there is left to the next call."""
        for directory in directories:
            try:
                self._follow(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._fail(error)

    def wait(self, seconds: float) -> None:
        """Wait until something has changed or somebody calls, but no longer than this."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._inotify is not None:
            poll.register(self._inotify.fd, select.POLLIN)
        poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            self._woken.recv(_MOST_EVENTS)
        try:
            for _ in range(_MOST_EVENTS):
                if self._inotify is None or self._inotify.sync_get() is None:
                    break
        except OSError as error:
            self._fail(error)

    def wake(self) -> None:
        """End the wait of its thread, now or as soon as it begins."""
        # Full of calls that nobody has heard yet, or closed.
        with suppress(OSError):
            self._waker.send(b".")

    def close(self) -> None:
        self._forget()
        self._waker.close()
        self._woken.close()

    def _follow(self, directory: Path) -> None:
        """
        :raises FileNotFoundError: there is no such directory.
        """
        stat = directory.stat()
        identity = (stat.st_dev, stat.st_ino)
        known, watch = self._watches.get(directory, (None, None))
        is_alive = self._inotify is not None and watch in self._inotify.watches
        if (known == identity and is_alive) or time.monotonic() < self._retries_at:
            return
        try:
            from asyncinotify import Inotify, Mask

            if self._inotify is None:
                self._inotify = Inotify(sync_timeout=0)
            if watch is not None and is_alive:
                self._inotify.rm_watch(watch)
            changes = Mask.ATTRIB | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO
            self._watches[directory] = (identity, self._inotify.add_watch(directory, changes))
            self._is_said = False
        except FileNotFoundError:
            raise
        # A library or a C library without inotify is as good as none.
        except (OSError, ImportError, AttributeError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._forget()
        self._retries_at = time.monotonic() + RETRY_SECONDS
        if not self._is_said:
            self._is_said = True
            self._say(
                f"changes aren't seen at once (inotify: {error}): the files are looked at twice a second all "
                "the same"
            )

    def _forget(self) -> None:
        self._watches = {}
        if self._inotify is not None:
            self._inotify.close()
        self._inotify = None
