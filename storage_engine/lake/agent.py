"""The agent beside a broker: it serves the files of segments to hosts that don't see the store.

It serves only the files that a driver's plan names, after it has found each among the segments of its own
stores. Only a caller with the key of that plan may read them. A file is identified by its inode, so that
another file under the same name isn't served. No request changes anything: files are only read and flushed.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import math
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from storage_engine import __version__
from storage_engine.core.durable import opened
from storage_engine.core.host import is_loopback
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.turns import SharedLock
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import count_text, printable, reason_text
from storage_engine.crc import crc32c_engine, crc32c_of
from storage_engine.exceptions import AgentError, BadInputError, FileGoneError, StorageEngineError
from storage_engine.lake.file.agent_files import (
    BLOCK_BYTES,
    CONNECT_SECONDS,
    CRC,
    DRIVER,
    MOST_GREETING_BYTES,
    MOST_PLAN_BYTES,
    NOTHING,
    PROTOCOL,
    Wire,
    error_message,
    facts_message,
    notice_death,
    shows,
)
from storage_engine.lake.file.source_file import source_errors
from storage_engine.lake.storage.pace import Pace, pace_at
from storage_engine.model.store import FileFacts
from storage_engine.native import call_crc32c, call_system, kernel, store_be_i32
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts
from storage_engine.same_bytes.trusted_times import settle

_PAUSE_SECONDS: Final = 0.1
_UNPACED_BYTES: Final = 8 * BLOCK_BYTES
"""Most bytes of a part that is sent, if no limit of speed applies. Each part renews the run's lease."""
_BUFFERS: Final = threading.local()
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

SegmentFiles = Callable[[], Iterable[FileFacts]]
"""Lists the files of a store's segments as they are now."""


@dataclass(frozen=True, slots=True)
class AgentListening:
    """The address of an agent, and the users who may ask for a run.

    :param certificate: file of the TLS certificate, which belongs to ``key``; None means no TLS.
    :param client_authorities: file of the authorities that sign drivers' certificates, if these are needed.
    :param token: token that a driver must have; "" if a driver needs none.
    :param plain: hosts other than this one may connect without TLS.
    """

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    client_authorities: Path | None = None
    token: str = ""
    plain: bool = False

    def files(self) -> tuple[object, ...]:
        """Return the state of the certificates' files. It differs once one of the files has changed."""
        named = (self.certificate, self.key, self.client_authorities)
        return tuple((facts.st_ino, facts.st_mtime_ns) for facts in map(_stat, filter(None, named)) if facts)

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections; None if they aren't encrypted.

        :raises BadInputError: others could read the traffic, anybody could ask, or the files can't be used.
        """
        if not self.token and self.client_authorities is None:
            raise BadInputError(
                "agent: expected a token or the authorities of drivers' certificates, found neither, so that "
                "anybody could ask. Nothing was started. Give --token-file or --client-ca."
            )
        if self.certificate is None:
            if self.client_authorities is not None or not (self.plain or is_loopback(self.host)):
                raise BadInputError(
                    "agent: expected TLS where other hosts connect, and wherever drivers have certificates, "
                    f"found no certificate for {self.host}. Nothing was started. Give --tls-cert. If a "
                    "sidecar on this host speaks TLS for the agent, give --plain and a token instead."
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_authorities is not None:
                context.load_verify_locations(self.client_authorities)
                # A task needs no certificate, because it has the key of its run.
                context.verify_mode = ssl.CERT_OPTIONAL
        except OSError as error:
            raise BadInputError(
                f"{self.certificate}: expected a PEM file of certificates and its key, found files that "
                f"can't be used: {reason_text(error)}. Nothing was started."
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class _Served:
    """A file that a run may read. Device and inode identify it."""

    root: str
    device: int
    inode: int
    size_bytes: int


@dataclass(slots=True)
class _Run:
    """A driver's run, whose tasks may read files.

    :param files: files that the run may read, by path; None for a file that was deleted after it was planned.
    :param until: monotonic time at which the run is forgotten if no request comes.
    :param settled: facts of files after their flush for this run. An unchanged file isn't flushed again.
    """

    key: str = field(repr=False)
    files: Mapping[str, _Served | None]
    paces: tuple[Pace, ...]
    until: float
    settled: dict[str, FileFacts] = field(default_factory=dict)


class Agent:
    """Serves segments of stores.

    :param stores: for the real path of each store's root, a function that lists the files of its segments.
    :param lease_seconds: time without a request after which a run is forgotten.
    :param connections: largest number of connections at one time; a further one is closed at once.
    :param bytes_per_second: limit for all runs together, in addition to each plan's own limit, if any.
    :param log: called with a line for each event that an operator should know.
    """

    def __init__(
        self,
        stores: Mapping[str, SegmentFiles],
        listening: AgentListening,
        *,
        lease_seconds: float,
        connections: int = 256,
        bytes_per_second: int | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._stores = stores
        self._listening = listening
        self._lease_seconds = lease_seconds
        self._bytes_per_second = bytes_per_second
        self._log = log
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._free = threading.BoundedSemaphore(connections)
        self._tls, self._tls_files = listening.tls(), listening.files()
        try:
            family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
            self._socket = socket.create_server((listening.host, listening.port), family=family, backlog=128)
        except OSError as error:
            raise BadInputError(
                f"agent: expected to listen at {listening.host}:{listening.port}, found that this address "
                f"can't be used: {error.strerror or error}. Nothing was started. Name another address by "
                "--listen."
            ) from error

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Serve until :meth:`close`."""
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # No descriptor is left, or the caller has ended the connection again.
                self._log(f"a connection could not be taken: {reason_text(error)}")
                time.sleep(_PAUSE_SECONDS)
                continue
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            thread = threading.Thread(target=self._serve_one, args=(connection, str(address[0])), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # The system lets this process have no more threads now.
                self._free.release()
                connection.close()
                self._log(f"a connection could not be taken: {error}")

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve_one(self, connection: socket.socket, peer: str) -> None:
        try:
            until = time.monotonic() + CONNECT_SECONDS
            notice_death(connection)
            if (tls := self._tls_now()) is not None:
                # The whole handshake must end in this time.
                connection.settimeout(CONNECT_SECONDS)
                connection = tls.wrap_socket(connection, server_side=True)
            wire = Wire(connection, until)
            wire.wait_at_most(CONNECT_SECONDS)
            self._answer(wire, peer)
        except (OSError, *MALFORMED) as error:
            # A caller may end its connection between two requests.
            if not isinstance(error, (ConnectionError, BlockingIOError, TimeoutError)):
                self._log(f"{peer}: {printable(reason_text(error))}")
        finally:
            connection.close()
            self._free.release()

    def _tls_now(self) -> ssl.SSLContext | None:
        """Return the TLS context for a new connection.

        If the certificates' files have changed, the context is made again. If the files are unusable, the old
        context stays.
        """
        with self._lock:
            if (files := self._listening.files()) != self._tls_files:
                self._tls_files = files
                try:
                    self._tls = self._listening.tls()
                    self._log(
                        "the certificates' files have changed: new connections use the new certificates"
                    )
                except BadInputError as error:
                    self._log(f"{error} The earlier certificates stay in use.")
            return self._tls

    def _answer(self, wire: Wire, peer: str) -> None:
        try:
            caller, secret = self._greet(wire)
        except StorageEngineError as error:
            self._log(f"{peer}: {printable(str(error))}")
            wire.send(error_message(error))
            return
        wire.send({})
        wire.until = math.inf
        wire.wait_at_most(self._lease_seconds)
        while True:
            question = wire.receive()
            try:
                if caller == DRIVER:
                    self._answer_driver(wire, question, peer)
                else:
                    self._answer_task(wire, self._run(caller, secret), question)
            except StorageEngineError as error:
                self._log(f"{peer}: {printable(str(error))}")
                wire.send(error_message(error))

    def _greet(self, wire: Wire) -> tuple[str, str]:
        """Return the caller's name and secret, once both sides have shown that they know the secret."""
        greeting = wire.receive(MOST_GREETING_BYTES)
        versions = (greeting["protocol"], greeting["release"])
        if versions != (PROTOCOL, __version__):
            raise _refusal(
                f"to be asked by release {__version__}, found {versions[1]}",
                "Install one release on both hosts",
            )
        caller, others = str(greeting["who"]), str(greeting["nonce"])
        if caller == DRIVER:
            secret = self._listening.token
            is_certified = isinstance(wire.socket, ssl.SSLSocket) and bool(wire.socket.getpeercert())
            if self._listening.client_authorities is not None and not is_certified:
                raise _refusal(
                    "a driver with a certificate of a trusted authority, found none",
                    "Give the driver its certificate",
                )
        else:
            secret = self._run(caller).key
        nonce = secrets.token_hex(16)
        wire.send({"nonce": nonce, "shown": shows(secret.encode(), "agent", others, nonce)})
        proof = str(wire.receive(MOST_GREETING_BYTES)["shown"])
        if not hmac.compare_digest(proof, shows(secret.encode(), "asker", others, nonce)):
            raise _refusal(
                "a caller that knows the agent's token or the run's key, found a wrong proof",
                "Give the driver the agent's token",
            )
        return caller, secret

    def _run(self, name: str, key: str | None = None) -> _Run:
        """Return a run by its name, and renew its lease. Raise AgentError if the run isn't known."""
        with self._lock:
            now = time.monotonic()
            self._runs = {each: run for each, run in self._runs.items() if run.until > now}
            run = self._runs.get(name)
            if run is not None and key in (None, run.key):
                run.until = now + self._lease_seconds
                return run
        raise _refusal(
            f"a run that the agent knows, found {printable(name)[:80]}: the agent was restarted since, or no "
            f"request came for {self._lease_seconds:g} s (--lease)",
            "Run again",
        )

    def _answer_driver(self, wire: Wire, question: Mapping[str, Any], peer: str) -> None:
        if question["ask"] == "end":
            with self._lock:
                self._runs.pop(str(question["run"]), None)
            self._log(f"{peer}: run {str(question['run'])[:16]} has ended")
            wire.send({})
            return
        size = int(question["bytes"])
        if question["ask"] != "open" or not 0 < size <= MOST_PLAN_BYTES:
            raise _refusal(
                f"a plan of at most {MOST_PLAN_BYTES} bytes, found {size}", "Archive less at a time"
            )
        content = bytearray(size)
        wire.fill(memoryview(content))
        digest = hashlib.sha256(content).hexdigest()
        if digest != question["digest"]:
            raise _refusal(f"the plan {question['digest']}, found {digest}", "Run again")
        plan = json.loads(content)
        files = {
            path: served
            for root, of_store in plan["files"].items()
            for path, served in self._find_files(root, of_store)
        }
        speeds = {plan["bytes_per_second"], self._bytes_per_second} - {None}
        name = f"{digest}.{secrets.token_hex(8)}"
        run = _Run(
            secrets.token_hex(32), files, tuple(map(pace_at, speeds)), time.monotonic() + self._lease_seconds
        )
        with self._lock:
            self._runs[name] = run
        self._log(f"{peer}: run {digest[:16]} reads {count_text(len(files), 'file')}")
        wire.send({"run": name, "key": run.key})

    def _find_files(
        self, root: str, requested: Iterable[tuple[str, int, int]]
    ) -> Iterator[tuple[str, _Served | None]]:
        """Yield the files of a plan, each found among the segments of a store of this agent.

        If the broker has deleted a file, None is yielded for it.

        :raises BadInputError: another file is at that path, or this agent serves no such store.
        """
        listed = self._stores.get(root)
        if listed is None:
            raise BadInputError(
                f"agent on host {socket.gethostname()}: expected a store that it serves "
                f"({', '.join(sorted(self._stores))}), found {root}. {NOTHING} Start the agent with this "
                "store, or name another agent."
            )
        real = cache(os.path.realpath)

        def place(path: str) -> tuple[str, str]:
            directory, name = os.path.split(path)
            return real(directory), name

        segments = {place(file.path): file for file in listed()}
        around = {Path(directory).parent for directory, _ in segments}
        for path, inode, size_bytes in requested:
            segment = segments.get(place(path))
            if segment is None and Path(place(path)[0]).parent in around and not os.path.lexists(path):
                yield path, None
                continue
            if segment is None or segment.inode != inode or segment.size_bytes < size_bytes:
                raise BadInputError(
                    f"{path}: expected a segment of the agent's store {root} with {size_bytes} bytes of "
                    f"inode {inode}, found {segment or 'none'}. {NOTHING} Run again: the files are then "
                    "listed again."
                )
            yield path, _Served(root, segment.device, inode, size_bytes)

    def _answer_task(self, wire: Wire, run: _Run, question: Mapping[str, Any]) -> None:
        ask, path = question["ask"], str(question["path"])
        if path not in run.files:
            raise AgentError(
                f"{path}: expected a file of the run, found one that its plan doesn't name. Nothing was read."
            )
        served = run.files[path]
        if served is None:
            raise FileGoneError.at(path)
        if ask == "look":
            with source_errors(path):
                facts = FileFacts.of(path)
                if question["settled"] and run.settled.get(path) != facts:
                    run.settled[path] = facts = settle(path)
            wire.send(facts_message(facts))
        elif ask == "acts":
            # A task must not delay the mending of a fence.
            acts = read_own_acts(served.root, waits=False)
            files = tuple(it for it in acts.files if (it.device, it.inode) == (served.device, served.inode))
            wire.send({"acts": to_jsonable(OwnActs(files))})
        elif ask == "read":
            self._send_file(wire, run, path, served, int(question["offset"]), int(question["bytes"]))
        else:
            raise AgentError(f"agent: expected look, acts or read, found {printable(str(ask))[:80]}.")

    def _send_file(
        self, wire: Wire, run: _Run, path: str, served: _Served, offset: int, size_bytes: int
    ) -> None:
        with ExitStack() as held:
            with source_errors(path):
                # The lock shows other processes that this one uses the store.
                held.enter_context(SharedLock([Path(path).parent]))
                file = held.enter_context(opened(path, _READ))
                before = FileFacts.of_stat(path, os.fstat(file))
            if (before.device, before.inode) != (served.device, served.inode):
                raise FileGoneError.at(path)
            start = max(0, min(offset, served.size_bytes))
            end = max(start, min(start + size_bytes, served.size_bytes, before.size_bytes))
            wire.send(facts_message(before, bytes=end - start))
            most_bytes = BLOCK_BYTES if run.paces else _UNPACED_BYTES
            for size in _stream(wire, path, file, start, end, most_bytes):
                for pace in run.paces:
                    pace.spend(size)
                run.until = time.monotonic() + self._lease_seconds
            for pace in run.paces:
                pace.forget(file)
            wire.send(facts_message(FileFacts.of_stat(path, os.fstat(file))))


def _refusal(expected: str, then: str) -> AgentError:
    host = socket.gethostname()
    return AgentError(f"agent on host {host}: expected {expected}. {NOTHING} {then}.")


def _stream(wire: Wire, path: str, file: int, start: int, end: int, most_bytes: int) -> Iterator[int]:
    """Send a range of a file in blocks, each followed by its CRC.

    Before the next blocks are read, their number of bytes is yielded.

    :param most_bytes: largest number to yield; a whole number of blocks.
    :raises ValueError: the file can't be read, or has become shorter. The connection then ends, because only
        blocks can be sent at this point.
    :raises ConnectionError: the caller is gone.
    """
    buffer = getattr(_BUFFERS, "block", None)
    if buffer is None:
        buffer = _BUFFERS.block = memoryview(bytearray(BLOCK_BYTES + CRC.size))
    at = start
    while at < end:
        size = min(most_bytes, end - at)
        yield size
        until = at + size
        if not isinstance(wire.socket, ssl.SSLSocket):
            blocks, part = divmod(_send_whole_blocks(wire.socket, buffer, file, at, until), len(buffer))
            at += blocks * BLOCK_BYTES
            if part:
                wire.socket.sendall(buffer[part:])
                at += BLOCK_BYTES
        while at < until:
            size = min(BLOCK_BYTES, until - at)
            try:
                count = os.preadv(file, [buffer[:size]], at)
            except OSError as error:
                raise ValueError(f"{path}: behind offset {at}: {reason_text(error)}") from error
            if count != size:
                raise ValueError(f"{path}: expected {size} bytes behind offset {at}, found {count}")
            CRC.pack_into(buffer, size, crc32c_of(buffer[:size]))
            wire.socket.sendall(buffer[: size + CRC.size])
            at += size


def _send_whole_blocks(connection: socket.socket, buffer: memoryview, file: int, start: int, end: int) -> int:
    """Send whole blocks of a range in compiled code, until one fails.

    Python code between the blocks would take a seventh of the agent's time, because each block pushes that
    code out of the processor's caches.

    :return: number of bytes that were sent, CRCs included.
    """
    pread, send, crc32c = _system_calls()
    if not crc32c:
        return 0
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    return _send_blocks(pread, send, crc32c, file, connection.fileno(), address, start, end, BLOCK_BYTES)


@kernel
def _send_blocks(
    pread: int,
    send: int,
    crc32c: int,
    file: int,
    connection: int,
    buffer: int,
    start: int,
    end: int,
    block_bytes: int,
) -> int:
    sent, framed_bytes = 0, block_bytes + 4
    for at in range(start, end - block_bytes + 1, block_bytes):
        if call_system(pread, file, buffer, block_bytes, at) != block_bytes:
            break
        store_be_i32(buffer + block_bytes, call_crc32c(crc32c, buffer, block_bytes) ^ 0xFFFFFFFF)
        count = call_system(send, connection, buffer, framed_bytes, 0)
        sent += max(0, count)
        if count != framed_bytes:
            break
    return sent


@cache
def _system_calls() -> tuple[int, int, int]:
    """Return the addresses of the C library's pread and send, and of a CRC-32C function (0 without one)."""
    library = ctypes.CDLL(None)
    pread, send = (ctypes.cast(it, ctypes.c_void_p).value or 0 for it in (library.pread, library.send))
    return pread, send, crc32c_engine().function


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
