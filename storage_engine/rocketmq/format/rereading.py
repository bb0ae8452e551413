"""Reading files that a running broker writes to: what doesn't fit together is looked at again.

A broker appends, replaces and deletes while it is read. What it does in the middle shows as a file that went
away, a hole, or half a config file; a moment later it is whole again, and damage still is damage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from storage_engine.exceptions import BadInputError, StoreBusyError
from storage_engine.model.report.diagnosis import reason_of

ATTEMPTS = 5
"""Beside a running broker. Its own writes take milliseconds; config files are written every 5 to 10 s."""
PAUSE_SECONDS = 0.1

Found = TypeVar("Found")
Nothing = TypeVar("Nothing")


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
