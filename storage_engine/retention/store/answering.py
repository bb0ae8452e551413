"""Whether a store's disk answers at all, so that a task that can do nothing ends and frees its slot."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from storage_engine.exceptions import DiskUnavailableError

ANSWER_SECONDS = 30.0


def check_answers(root: str) -> None:
    """Make sure that the disk of a store answers, if only that nothing is there.

    Nothing interrupts who waits for a mount whose server is gone: a thread waits, and is left to it.

    :raises DiskUnavailableError: it says nothing for ``ANSWER_SECONDS``.
    """
    asking = threading.Thread(target=_ask, args=(root,), name=f"storage-engine-ask {root}", daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    if asking.is_alive():
        raise DiskUnavailableError(
            f"{root}: expected an answer of its disk within {ANSWER_SECONDS:.0f} s, found none. Nothing was "
            "read or changed. Check that the disk is well, and that the server of its mount can be reached."
        )


def _ask(root: str) -> None:
    with suppress(OSError):
        # What a file is may be remembered; how full its disk is has to be asked for.
        os.statvfs(root)
