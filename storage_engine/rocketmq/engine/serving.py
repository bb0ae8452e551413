"""A socket through which other processes reach the store that this process writes.

They ask for the store's progress, flush the store, and delete files that they have proven. Requests and
answers are lines of JSON. Only the same user and root get answers. A process's lock is released when the
process ends.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import BrokerError, ChangedUnderUsError, StorageEngineError, StoreBusyError
from storage_engine.model.broker.broker_store import StorePositions
from storage_engine.model.plan import DependentFile
from storage_engine.model.store import FileFacts, Segment
from storage_engine.rocketmq.engine.append.mapped_file_queue import WritableFile
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.store.store_lock import ENGINE_SOCKET
from storage_engine.same_bytes.removing import remove_unchanged

_TIMEOUT_SECONDS = 600
"""Time to wait for an answer. A flush may take long, and so may a deletion of a file that a reader uses."""
ERRORS: Mapping[str, type[StorageEngineError]] = {
    error.__name__: error for error in (StoreBusyError, BrokerError, ChangedUnderUsError)
}
"""Errors that an answer may name."""
PEER = struct.Struct("3i")
"""Process, user and group at a socket's other end (struct ucred)."""


class EngineSession:
    """A connection with the process that serves a store."""

    def __init__(self, root: Path, connection: socket.socket) -> None:
        self._root, self._connection = root, connection
        self._answers = connection.makefile("rb")

    @property
    def pid(self) -> int | None:
        """Return the id of the process at the other end; None if this process can't see it."""
        pid, _, _ = PEER.unpack(self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        return pid or None

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request, and return its result.

        :raises StorageEngineError: the other process' error, or BrokerError if it doesn't answer.
        """
        try:
            self._connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
            line = self._answers.readline()
        except OSError as error:
            raise self._no_answer(reason_text(error)) from error
        if not line:
            raise self._no_answer("it ended, or is another user's")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            kind = ERRORS.get(answer["error"], BrokerError)
            if kind is ChangedUnderUsError:
                raise ChangedUnderUsError(answer["message"], path=answer["path"])
            raise kind(answer["message"])
        return answer.get("done")

    def positions(self) -> StorePositions:
        return from_jsonable(StorePositions, self.ask("positions"), "answer of the engine")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from deleting from the store until the block ends.

        :raises StoreBusyError: another run is deleting.
        """
        self.ask("lock")
        try:
            yield
        finally:
            self.ask("unlock")

    def close(self) -> None:
        self._answers.close()
        self._connection.close()

    def _no_answer(self, why: str) -> BrokerError:
        return BrokerError(
            f"{self._root}: expected an answer of the process that writes the store, found none: {why}. Run "
            "again: the next run reads the store's state first.",
            may_have_acted=True,
        )


def ask_who_serves(root: Path) -> EngineSession | None:
    """Connect to the process that serves a store. Return None if no process does.

    :raises BrokerError: a process serves the store, and no connection is possible.
    """
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

    :raises BrokerError: a process serves the store, and no connection is possible.
    """
    session = ask_who_serves(root)
    if session is None:
        return False
    session.close()
    return True


def socket_path(directory: int) -> str:
    """Return a short path of the socket, since Linux allows only 107 bytes.

    :param directory: descriptor of this package's directory in the store.
    """
    return f"/proc/self/fd/{directory}/{ENGINE_SOCKET}"


_FORCED_AFTER_MS = 120_000


def positions_of(store: MessageStore) -> StorePositions:
    state = store.positions()
    return StorePositions(
        state.wrote, state.committed, state.flushed, state.dispatched, asdict(state.checkpoint)
    )


class _Session(StreamRequestHandler):
    """Handler of one process's requests, until it closes the connection."""

    server: StoreServer

    def handle(self) -> None:
        if not self.server.may_ask(self.connection):
            return
        locked = False
        try:
            for line in self.rfile:
                request = json.loads(line)
                try:
                    if request["do"] == "lock" and not locked:
                        locked = self.server.lock()
                    answer = self.server.answer(request, locked=locked)
                    # Unlock before the answer: behind it, another run may ask for the lock.
                    if request["do"] == "unlock" and locked:
                        locked = self.server.unlock()
                except (StorageEngineError, OSError) as error:
                    answer = {"error": type(error).__name__, "message": reason_text(error)}
                    answer |= {"path": getattr(error, "path", "")}
                self.wfile.write(json.dumps(answer).encode() + b"\n")
        finally:
            if locked:
                self.server.unlock()


class StoreServer(ThreadingMixIn, UnixStreamServer):
    """Server for one open store. Each asking process has a thread."""

    daemon_threads = True

    def __init__(self, store: MessageStore, address: str) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._actions: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
            "positions": lambda _: positions_of(store),
            "flush": lambda _: self._flush(),
            "delete": self._delete_segments,
            "delete-dependents": self._delete_dependents,
        }
        super().__init__(address, _Session)

    def server_bind(self) -> None:
        # On Linux, the mode of the socket becomes that of its file.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()

    def may_ask(self, connection: socket.socket) -> bool:
        """Return whether the caller may change the store as this process may: the same user, or root."""
        _, uid, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        return uid in (0, os.geteuid())

    def lock(self) -> bool:
        """Take this server's lock, so that no other process deletes. Return True, since the lock is taken.

        :raises StoreBusyError: another process has the lock.
        """
        if not self._lock.acquire(blocking=False):
            raise StoreBusyError(
                f"{self._store.layout.root}: expected to be the only run that deletes from the store, found "
                "another run. Nothing was changed. Run again when it has ended."
            )
        return True

    def unlock(self) -> bool:
        self._lock.release()
        return False

    def answer(self, request: Mapping[str, Any], *, locked: bool) -> Mapping[str, Any]:
        """Answer a request.

        :raises StorageEngineError: the request can't be fulfilled.
        """
        if request["do"] in ("lock", "unlock"):
            return {"pid": os.getpid()}
        if request["do"].startswith("delete") and not locked:
            raise StoreBusyError(
                f"{self._store.layout.root}: expected a lock before a deletion, found none. Nothing was "
                "deleted. Lock the store first."
            )
        return {"done": to_jsonable(self._actions[request["do"]](request))}

    def _flush(self) -> Mapping[str, StorePositions]:
        before = positions_of(self._store)
        self._store.flush()
        return {"before": before, "after": positions_of(self._store)}

    def _delete_segments(self, request: Mapping[str, Any]) -> None:
        """Delete the requested segments. Files that are gone are skipped.

        Each must be the log's first file at its deletion.
        """
        root, files = self._store.layout.root, self._store.files
        for item in request["segments"]:
            segment = from_jsonable(Segment, item, "segment")
            file = files.first
            if file is None or file.base_offset != segment.base_offset:
                if os.path.lexists(segment.facts.path):
                    raise ChangedUnderUsError(
                        f"{segment.facts.path}: expected the log's first file, found that it begins at "
                        f"{files.min_offset}. It was not deleted. Plan again.",
                        path=segment.facts.path,
                    )
                continue
            if file.end_offset > min(files.flushed_where, self._store.dispatched_offset):
                raise BrokerError(
                    f"{segment.facts.path}: expected a file that is flushed and dispatched, found "
                    f"{positions_of(self._store)}. It was not deleted. Run again."
                )
            remove_unchanged(segment, root, partial(_destroy, file))
            files.forget([file])
        self._store.queues.correct_min(files.min_offset)

    def _delete_dependents(self, request: Mapping[str, Any]) -> None:
        """Delete the requested files durably. Files that are gone are skipped.

        Each must be the first of several files of a queue or the index.
        """
        for item in request["files"]:
            facts = from_jsonable(DependentFile, item, "file").facts
            path = Path(facts.path)
            if not os.path.lexists(path):
                continue
            if FileFacts.of(path) != facts:
                raise ChangedUnderUsError(
                    f"{path}: expected {facts}, found {FileFacts.of(path)}. It was not deleted. Plan again.",
                    path=facts.path,
                )
            queue = self._store.queues.files_in(path.parent)
            index = self._store.index
            if queue is not None and len(queue.bases) > 1 and queue.path(queue.bases[0]) == path:
                queue.delete_first()
            elif index is not None and len(index.paths) > 1 and index.paths[0] == path:
                durable.unlink(index.paths.pop(0))
            else:
                raise ChangedUnderUsError(
                    f"{path}: expected the first of several files of a queue or the index, found another. "
                    "It was not deleted. Plan again.",
                    path=facts.path,
                )
            durable.fsync_path(path.parent)


def _destroy(file: WritableFile, path: Path, directory: int) -> bool:
    """Delete a file of the log that no reader uses. The signature is that of a ``Remove``."""
    if not file.destroy(_FORCED_AFTER_MS, clock_ms()):
        raise BrokerError(
            f"{path}: expected no reader, found one. The file stays. Run again when the reader is done. "
            f"After {_FORCED_AFTER_MS // 1000} s a run deletes the file in spite of readers.",
            may_have_acted=True,
        )
    return True


@contextmanager
def serving(store: MessageStore) -> Iterator[StoreServer]:
    """Answer other processes' requests for an open store while the block runs.

    :raises OSError: the socket can't be created.
    """
    with own_directory(store.layout.root, makes=True) as directory:
        # Only the owner of the store's lock serves it, so an existing socket was left by a kill.
        durable.unlink(ENGINE_SOCKET, dir_fd=directory)
        server = StoreServer(store, socket_path(directory))
        thread = threading.Thread(target=server.serve_forever, name="serving", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            with suppress(OSError):
                durable.unlink(ENGINE_SOCKET, dir_fd=directory)
