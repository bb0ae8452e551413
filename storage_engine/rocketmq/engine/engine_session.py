"""Asking the process that writes a store; the other end of :mod:`~storage_engine.rocketmq.engine.serving`."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.own_directory import own_directory
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BrokerError, ChangedUnderUsError, StorageEngineError, StoreBusyError
from storage_engine.model.broker.broker_store import StorePositions
from storage_engine.rocketmq.store.store_lock import ENGINE_SOCKET

_TIMEOUT_SECONDS = 600
"""A flush, or a deletion whose file somebody reads, takes long at most."""
ERRORS: Mapping[str, type[StorageEngineError]] = {
    error.__name__: error for error in (StoreBusyError, BrokerError, ChangedUnderUsError)
}
"""What an answer may name."""


PEER = struct.Struct("3i")
"""Process, user and group of who is at a socket's other end (struct ucred)."""


class EngineSession:
    """A connection with the process that serves a store."""

    def __init__(self, root: Path, connection: socket.socket) -> None:
        self._root, self._connection = root, connection
        self._answers = connection.makefile("rb")

    @property
    def pid(self) -> int | None:
        """Return the process at the other end; None where it isn't one of this system's processes."""
        pid, _, _ = PEER.unpack(self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        return pid or None

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have something done, and return what came of it.

        :raises StorageEngineError: the other process' own error, or BrokerError where it doesn't answer.
        """
        try:
            self._connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            line = self._answers.readline()
        except OSError as error:
            raise self._gone(reason_text(error)) from error
        if not line:
            raise self._gone("it ended, or is another user's")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            kind = ERRORS.get(answer["error"], BrokerError)
            if kind is ChangedUnderUsError:
                raise ChangedUnderUsError(answer["message"], path=answer["path"])
            raise kind(answer["message"])
        return answer.get("done")

    def positions(self) -> StorePositions:
        """Return how far the store is."""
        return from_jsonable(StorePositions, self.ask("positions"), "answer of the engine")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from deleting from the store until the block ends.

        :raises StoreBusyError: one of them does.
        """
        self.ask("lock")
        try:
            yield
        finally:
            self.ask("unlock")

    def close(self) -> None:
        self._answers.close()
        self._connection.close()

    def _gone(self, why: str) -> BrokerError:
        return BrokerError(
            f"{self._root}: expected an answer of the process that writes the store, found none: {why}. Run "
            "again; it begins with a new look.",
            may_have_acted=True,
        )


def ask_who_serves(root: Path) -> EngineSession | None:
    """Connect with the process that serves a store; None: none does."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_TIMEOUT_SECONDS)
    try:
        with own_directory(root) as directory:
            connection.connect(socket_path(directory))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise BrokerError(
            f"{root}: expected the socket of the process that writes the store, found: "
            f"{reason_text(error)}. Nothing was changed. Run as the user that writes it."
        ) from error
    return EngineSession(root, connection)


def is_served(root: Path) -> bool:
    """Return whether a process serves a store.

    :raises BrokerError: there is one, and it can't be asked.
    """
    session = ask_who_serves(root)
    if session is None:
        return False
    session.close()
    return True


def socket_path(directory: int) -> str:
    """Return a short name of the socket: a path of a socket may have 107 bytes.

    :param directory: descriptor of our directory of the store.
    """
    return f"/proc/self/fd/{directory}/{ENGINE_SOCKET}"
