"""Reading files that a running broker writes to: what doesn't fit together is looked at again.

A broker appends, replaces and deletes while it is read. What it does in the middle shows as a file that went
away, a hole, or half a config file; a moment later it is whole again, and damage still is damage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from storage_engine.exceptions import BadInputError, StoreBusyError
from storage_engine.model.report.diagnosis import reason_of

ATTEMPTS = 5
"""Beside a running broker. Its own writes take milliseconds; config files are written every 5 to 10 s."""
PAUSE_SECONDS = 0.1

Found = TypeVar("Found")
Nothing = TypeVar("Nothing")
Log = TypeVar("Log")
Row = TypeVar("Row")

_POLL_SECONDS = 0.5


def reread(read: Callable[[], Found], attempts: int) -> Found:
    """Read until it succeeds, for a bounded number of times.

    :param read: reads everything again, its lists of files included.
    :param attempts: 1 for the store of a stopped broker, where nothing is going to change.
    :raises BadInputError, StoreBusyError, FileNotFoundError: those of the last attempt.
    """
    for _ in range(attempts - 1):
        try:
            return read()
        except (BadInputError, StoreBusyError, FileNotFoundError):
            time.sleep(PAUSE_SECONDS)
    return read()


def read_or_tell(
    read: Callable[[], Found], nothing: Nothing, what: str, attempts: int = 1
) -> tuple[Found | Nothing, tuple[str, ...]]:
    """Return what can be read, and why it isn't known; (): it is.

    :param nothing: what stands for it where it can't be read.
    :param what: its name, for the reason.
    :param attempts: as for :func:`reread`.
    """
    try:
        return reread(read, attempts), ()
    except (BadInputError, OSError) as error:
        return nothing, (f"{what} can't be read: {reason_of(error)}",)


@dataclass(frozen=True, slots=True)
class Patience:
    """
    :param attempts: how often a thing is looked at that doesn't fit together; 1 where no broker runs.
    :param cleaning_ms: how long the broker may take to delete what points only below the log's min offset;
        0 where no broker runs.
    """

    attempts: int = 1
    cleaning_ms: int = 0

    @classmethod
    def with_broker(cls, cleaning_ms: int) -> Patience:
        return cls(ATTEMPTS, cleaning_ms)

    def settled(
        self, read: Callable[[Log], Row], log: Log, look: Callable[[], Log], is_sound: Callable[[Row], bool]
    ) -> Row:
        """Return what ``read`` finds; after that is unsound, or fails, what it finds with the log as it is
        then.

        :raises StorageEngineError, OSError: those of the last attempt.
        """
        if self.attempts == 1:
            return read(log)
        try:
            row = read(log)
            if is_sound(row):
                return row
        except (BadInputError, StoreBusyError, FileNotFoundError):
            pass
        for _ in range(self.attempts - 1):
            time.sleep(PAUSE_SECONDS)
            row = reread(lambda: read(look()), self.attempts)
            if is_sound(row):
                break
        return row

    def again(self, read: Callable[[], Row]) -> Row:
        """Return what ``read`` finds, where it may fail for what changes meanwhile."""
        return reread(read, self.attempts)

    def until_none(self, count: Sequence[Callable[[], int]], found: Sequence[int]) -> list[int]:
        """Return what is left of things that the broker is to delete by itself.

        :param count: counts them again, one function a place.
        :param found: how many there were.
        """
        left = list(found)
        deadline = time.monotonic() + self.cleaning_ms / 1000
        while any(left) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            left = [self.again(again) if n else 0 for again, n in zip(count, left, strict=True)]
        return left
