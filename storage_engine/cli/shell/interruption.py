"""Ends a command within a second after Ctrl-C or SIGTERM, whatever its threads do."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

from storage_engine.core.durable import remove_unfinished

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_GRACE_SECONDS: Final = 0.5
"""Seconds for a command to end by itself. Then the command is killed, which harms no store or lake."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = "\x1b[?25h"
INTERRUPTED: Final = "Interrupted. Nothing is half done: the same command continues the work."


@dataclass(slots=True)
class Interruption:
    """The signal that ended a command.

    :param signal_number: number of the signal; None if no signal came.
    """

    signal_number: int | None = None

    @property
    def exit_code(self) -> int:
        """Return a shell's exit code for a process that was ended by a signal."""
        return 128 + (self.signal_number or signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Raise KeyboardInterrupt on SIGINT or SIGTERM. If the process doesn't end in time, kill it.

    A command that handles the signals itself, such as ``watch``, sets its own handlers.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruption.signal_number = number
        raise KeyboardInterrupt

    def tell(unraisable: UnraisableHookArgs) -> None:
        # A callback of compiled code can't raise. Then the thread below ends the process.
        if not (interruption.signal_number and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            tell_before(unraisable)

    # Read by a thread: a signal's handler waits until the main thread is back from compiled code.
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    previous = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    tell_before, sys.unraisablehook = sys.unraisablehook, tell
    threading.Thread(target=_end_in_time, args=(wake, interrupt), name="interruption", daemon=True).start()
    try:
        yield interruption
    finally:
        sys.unraisablehook = tell_before
        signal.set_wakeup_fd(before)
        for number, handler in previous.items():
            signal.signal(number, handler)
        # Ends the thread, unless a signal came. Then the process is killed after its grace.
        os.close(waker)


def ended_by_signal() -> threading.Event:
    """Return an event that SIGINT or SIGTERM sets, for commands that work until they are stopped."""
    ends = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda _number, _frame: ends.set())
    return ends


def _end_in_time(wake: int, handler: object) -> None:
    with os.fdopen(wake, "rb", buffering=0) as signals:
        while number := signals.read(1):
            if signal.getsignal(number[0]) is handler:
                threading.Event().wait(_GRACE_SECONDS)
                remove_unfinished()
                with suppress(OSError):
                    cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
                    os.write(sys.stderr.fileno(), f"{cursor}{INTERRUPTED}\n".encode())
                os._exit(128 + number[0])
