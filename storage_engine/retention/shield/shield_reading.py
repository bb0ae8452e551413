"""Read a shield's links ahead of need: by that what was only touched is told from what was written to."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.settings.policy import GENTLE_BYTES_PER_SECOND
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.links import note_digest
from storage_engine.shield.seen import Place, digest_of, look_at_shield


def read_links(store: ManagedStore, is_urgent: Callable[[], bool], seconds: float = inf) -> int:
    """Read the links whose bytes nobody has read as they are now, and remember their digests.

    What was only touched is told from what was written to by that. It is gentle to a broker on the same disk.

    :param is_urgent: asked now and then; what is left waits for the next call then.
    :param seconds: after so long no further one is begun.
    :return: how many were read.
    :raises ShieldError: the shield can't be read or written.
    """
    count = 0
    ends = time.monotonic() + seconds
    pace = pace_at(GENTLE_BYTES_PER_SECOND)

    def spend(size_bytes: int) -> None:
        if is_urgent():
            raise _UrgentError
        pace.spend(size_bytes)

    with suppress(_UrgentError):
        for seen in look_at_shield(store.real_root).links:
            if seen.place is not Place.IN_LOG or (seen.is_same and seen.link.sha256):
                continue
            if time.monotonic() > ends:
                break
            sha256 = digest_of(store.real_root, seen, spend)
            if sha256 is not None:
                note_digest(store.real_root, seen, sha256)
                count += 1
    return count


class _UrgentError(Exception):
    """Something else has to be done first."""
