"""Where the process that writes a store listens, and the errors that it may answer with."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from storage_engine.exceptions import BrokerError, ChangedUnderUsError, StorageEngineError, StoreBusyError
from storage_engine.rocketmq.store.store_lock import ENGINE_SOCKET

ERRORS: Mapping[str, type[StorageEngineError]] = {
    error.__name__: error for error in (StoreBusyError, BrokerError, ChangedUnderUsError)
}
"""What an answer may name."""


PEER = struct.Struct("3i")
"""Process, user and group of who is at a socket's other end (struct ucred)."""


def socket_path(directory: int) -> str:
    """Return a short name of the socket: a path of a socket may have 107 bytes.

    :param directory: descriptor of our directory of the store.
    """
    return f"/proc/self/fd/{directory}/{ENGINE_SOCKET}"
