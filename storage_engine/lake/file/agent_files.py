"""Reading a segment's files from the agent on their broker's host, if this host can't read the store.

A driver shows the agent a token or a certificate, and names the files of a run once. The agent returns a key
for exactly these files, and the driver gives it to its tasks. Both sides prove that they know the secret
without sending it, so that another process at the agent's port isn't trusted. Each received block is compared
with its CRC-32C and hashed here. No request is repeated: if one fails, the segment isn't proven.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from storage_engine import __version__, exceptions
from storage_engine.commands import Command, Text
from storage_engine.core.host import parse_address
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import reason_text
from storage_engine.crc import crc32c_of
from storage_engine.exceptions import AgentError, BadInputError, StorageEngineError
from storage_engine.lake.file.jobs import AgentAccess, AgentRun, SegmentJob
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes.own_acts import OwnActs

PROTOCOL: Final = 2
DRIVER: Final = "driver"
"""The name in a driver's greeting. A task's greeting has the name of its run."""
PLAIN: Final = "plain://"
BLOCK_BYTES: Final = 256 << 10
"""Bytes of a block, without its CRC-32C. Smaller blocks need more calls, larger ones don't fit into the
processor's caches."""
CRC: Final = struct.Struct(">I")
MOST_PLAN_BYTES: Final = 256 << 20
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 300.0
"""Time limit for an answer or block. An agent with a slow pace lets tasks wait, and flushes files first."""
SHORTEST_TOKEN: Final = 16
MOST_GREETING_BYTES: Final = 1 << 12
"""Largest message, in bytes, from a caller that hasn't yet proven that it knows the secret. The limit saves
memory."""
_MOST_MESSAGE_BYTES: Final = 1 << 20
_SCRATCH_BYTES: Final = 16 << 20
_WORD: Final = struct.Struct(">I")
NOTHING: Final = "Nothing was committed or deleted."

_per_thread = threading.local()


class Wire:
    """One end of a connection. A message is its length and JSON; a block is bytes and their CRC.

    :param until: monotonic time in seconds; data that arrives later raises TimeoutError.
    """

    def __init__(self, connection: socket.socket, until: float = math.inf) -> None:
        self.socket = connection
        self.until = until
        self._flags = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL

    def wait_at_most(self, seconds: float) -> None:
        """Set the time limit of each call on the socket.

        The kernel ends a call at the limit. So the socket can be a blocking one, which saves calls. With TLS,
        Python would repeat a call that the kernel ended. Then Python's own timeout is set instead.
        """
        if isinstance(self.socket, ssl.SSLSocket):
            self.socket.settimeout(seconds)
            return
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, message: Mapping[str, Any]) -> None:
        content = json.dumps(message).encode()
        self.socket.sendall(_WORD.pack(len(content)) + content)

    def receive(self, most_bytes: int = _MOST_MESSAGE_BYTES) -> dict[str, Any]:
        """Receive a message.

        :raises OSError: the connection ended.
        :raises ValueError: the received bytes are no JSON, or more than ``most_bytes``.
        :raises TypeError: the received JSON is no object.
        """
        size = self._word()
        if size > most_bytes:
            raise ValueError(f"a message of {size} bytes")
        content = bytearray(size)
        self.fill(memoryview(content))
        message = json.loads(content)
        if not isinstance(message, dict):
            raise TypeError("a message that is no object")
        return message

    def fill(self, buffer: memoryview) -> None:
        """Fill a buffer with received bytes.

        :raises OSError: the connection ended, or the time is over, before the buffer was full.
        """
        done = 0
        while done < len(buffer):
            count = self.socket.recv_into(buffer[done:], len(buffer) - done, self._flags)
            if not count:
                raise ConnectionResetError(None, "the connection ended")
            if time.monotonic() > self.until:
                raise TimeoutError(None, "it took too long")
            done += count

    def receive_block(self, buffer: memoryview) -> bool:
        """Receive a block, and return whether its bytes have the CRC that the sender computed."""
        self.fill(buffer)
        return self._word() == crc32c_of(buffer)

    def _word(self) -> int:
        word = bytearray(_WORD.size)
        self.fill(memoryview(word))
        return int(_WORD.unpack(word)[0])


def notice_death(connection: socket.socket) -> None:
    """Let the kernel end a connection whose peer hasn't answered for minutes, as after a cut link."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_NODELAY, 1)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 180_000)


def shows(secret: bytes, who: str, own_nonce: str, others_nonce: str) -> str:
    """Return the proof that the caller knows the secret, for the peer that made ``others_nonce``."""
    return hmac.new(secret, f"{who} {own_nonce} {others_nonce}".encode(), hashlib.sha256).hexdigest()


def read_token(path: Path) -> str:
    """Read the token that an agent and its drivers share.

    :raises BadInputError: the token can't be read, is too short, or can be read by other users.
    """
    try:
        status = path.stat()
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"{path}: expected a file with a token, found none that can be read: {reason_text(error)}. "
            f"Nothing was started. Make one: (umask 077; openssl rand -hex 32 > {path})"
        ) from error
    if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise BadInputError(
            f"{path}: expected a token that this user alone can read, found mode "
            f"{status.st_mode & 0o777:03o} of uid {status.st_uid}. Nothing was started. Other users may know "
            f"this token. Make a new one: (umask 077; openssl rand -hex 32 > {path})"
        )
    if len(token) < SHORTEST_TOKEN:
        raise BadInputError(
            f"{path}: expected a token of at least {SHORTEST_TOKEN} characters, found {len(token)}. Nothing "
            f"was started. Make one: openssl rand -hex 32 > {path}"
        )
    return token


def read_access(
    address: str, token_file: Path | None, ca_file: Path | None, certificate_file: Path | None
) -> AgentAccess:
    """Return an agent's address and the driver's access to it, from files of this host.

    :param address: HOST:PORT, or plain://HOST:PORT.
    :param ca_file: PEM of the authority that signed the agent's certificate; None for the system's
        authorities.
    :param certificate_file: PEM of our own certificate with its key.
    :raises BadInputError: the address has another form, or a file can't be used.
    """
    if parse_address(address.removeprefix(PLAIN)) is None:
        raise BadInputError(
            f"agent {address}: expected HOST:PORT, or {PLAIN}HOST:PORT for an agent without TLS. Nothing was "
            "started. Correct the address."
        )
    if token_file is None and certificate_file is None:
        raise BadInputError(
            f"agent {address}: expected a token or a certificate for the agent, found neither. Nothing was "
            "started. Give the path of a token's or a certificate's file."
        )
    if token_file is None and address.startswith(PLAIN):
        raise BadInputError(
            f"agent {address}: expected a token, because without TLS only a token shows which process "
            "answers, found only a certificate. Nothing was started. Give the path of the token's file."
        )
    try:
        authorities = "" if ca_file is None else ca_file.read_text()
        _context(authorities, "" if certificate_file is None else str(certificate_file))
    except (OSError, ValueError) as error:
        raise BadInputError(
            f"agent {address}: expected certificates as PEM in {ca_file or certificate_file}, found a file "
            f"that can't be used: {reason_text(error)}. Nothing was started. Correct the file."
        ) from error
    token = "" if token_file is None else read_token(token_file)
    return AgentAccess(
        address, token, authorities, "" if certificate_file is None else str(certificate_file.absolute())
    )


@contextmanager
def run_of(access: AgentAccess, jobs: Sequence[SegmentJob]) -> Iterator[AgentRun]:
    """Ask an agent to serve only the files of some segments, while the block runs.

    :raises AgentError: the agent can't be reached, or refuses.
    """
    files: dict[str, list[FileFacts]] = {}
    for job in jobs:
        files.setdefault(job.store_root, []).extend((job.facts, *job.companions))
    speeds = {job.bytes_per_second for job in jobs}
    speed = None if None in speeds else min(filter(None, speeds), default=None)
    run = begin_run(access, files, speed)
    try:
        yield run
    finally:
        with suppress(StorageEngineError), _driver(access) as driver:
            driver.ask({"ask": "end", "run": run.run})


def begin_run(
    access: AgentAccess, files: Mapping[str, Sequence[FileFacts]], bytes_per_second: int | None = None
) -> AgentRun:
    """Ask an agent to serve some files, until no request has come for the time of its lease.

    The run's name is made from the SHA-256 of the files' paths, inodes and sizes, and of the pace.

    :param files: facts of the files, by the real path of their store's root.
    :raises AgentError: the agent can't be reached, or refuses.
    """
    named = {root: sorted((it.path, it.inode, it.size_bytes) for it in of) for root, of in files.items()}
    content = {"files": named, "bytes_per_second": bytes_per_second}
    plan = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(plan).hexdigest()
    with _driver(access) as driver:
        answer = driver.ask({"ask": "open", "digest": digest, "bytes": len(plan)}, behind=plan)
        with driver.understood():
            return AgentRun(access.address, access.authorities, str(answer["run"]), str(answer["key"]))


@contextmanager
def _driver(access: AgentAccess) -> Iterator[_Agent]:
    driver = _Agent(access.address, access.authorities, access.certificate_file, DRIVER, access.token)
    try:
        yield driver
    finally:
        driver.close()


class AgentFiles:
    """Files of one run, read from its agent. ``LocalFiles`` does the same on the store's own host."""

    def __init__(self, run: AgentRun) -> None:
        self._agent = _Agent(run.address, run.authorities, "", run.run, run.key)

    def close(self) -> None:
        self._agent.close()

    def settled(self, path: str) -> FileFacts:
        """Let the agent flush a file, and return the file's facts. Every later write changes them."""
        return self._facts({"ask": "look", "path": path, "settled": True})

    def facts(self, path: str) -> FileFacts:
        return self._facts({"ask": "look", "path": path, "settled": False})

    def own_acts(self, path: str) -> OwnActs:
        """Return the changes that this package made to a file."""
        answer = self._agent.ask({"ask": "acts", "path": path})
        with self._agent.understood():
            return from_jsonable(OwnActs, answer["acts"], "acts")

    def read(
        self, path: str, into: memoryview, on_part: Callable[[memoryview], None], offset: int = 0
    ) -> tuple[int, FileFacts]:
        """Read a file from an offset on, until memory is full or the file ends.

        :param on_part: called with each part after it was received.
        :return: the number of bytes received, and the facts of the file that was read. If its inode or size
            changed meanwhile, they are the facts after reading.
        """
        agent = self._agent
        before = agent.ask({"ask": "read", "path": path, "offset": offset, "bytes": len(into)})
        done = 0
        with agent.understood():
            facts = from_jsonable(FileFacts, before["facts"], path)
            size = min(int(before["bytes"]), len(into))
            while done < size:
                block = into[done : min(done + BLOCK_BYTES, size)]
                if not agent.wire.receive_block(block):
                    raise ValueError(f"other bytes of {path} behind offset {offset + done} than were sent")
                on_part(block)
                done += len(block)
            after = from_jsonable(FileFacts, agent.wire.receive()["facts"], path)
        return done, facts if (after.inode, after.size_bytes) == (facts.inode, facts.size_bytes) else after

    def sha256(self, path: str, size_bytes: int) -> str:
        """Return the hash of a file whose times have changed, in hex."""
        digest, scratch = hashlib.sha256(), memoryview(bytearray(min(size_bytes, _SCRATCH_BYTES)))
        for offset in range(0, size_bytes, _SCRATCH_BYTES):
            self.read(path, scratch[: size_bytes - offset], digest.update, offset)
        return digest.hexdigest()

    def _facts(self, question: dict[str, Any]) -> FileFacts:
        answer = self._agent.ask(question)
        with self._agent.understood():
            return from_jsonable(FileFacts, answer["facts"], str(question["path"]))


def files_from(run: AgentRun) -> AgentFiles:
    """Return this thread's connection to a run's agent. :func:`leave_agent` ends it."""
    connection: tuple[AgentRun, AgentFiles] | None = getattr(_per_thread, "agent", None)
    if connection is None or connection[0] != run:
        leave_agent()
        _per_thread.agent = connection = (run, AgentFiles(run))
    return connection[1]


def leave_agent() -> None:
    """End this thread's connection to an agent, if it has one."""
    connection: tuple[AgentRun, AgentFiles] | None = getattr(_per_thread, "agent", None)
    _per_thread.agent = None
    if connection is not None:
        connection[1].close()


class _Agent:
    """A connection to an agent, after both sides have proven that they know the secret."""

    def __init__(self, address: str, authorities: str, certificate_file: str, who: str, secret: str) -> None:
        self.address = address
        with self.understood():
            self.wire = _connect(address, authorities, certificate_file)
        try:
            nonce = secrets.token_hex(16)
            answer = self.ask({"protocol": PROTOCOL, "release": __version__, "who": who, "nonce": nonce})
            with self.understood():
                others, proof = str(answer["nonce"]), str(answer["shown"])
            if not hmac.compare_digest(proof, shows(secret.encode(), "agent", nonce, others)):
                raise AgentError(
                    f"agent {address}: expected the agent that has our "
                    f"{'token' if who == DRIVER else 'run'}, found a process that can't prove that it is "
                    f"this agent. {NOTHING} Find out which process listens there, and check that both sides "
                    "have the same token."
                )
            self.ask({"shown": shows(secret.encode(), "asker", nonce, others)})
            self.wire.wait_at_most(ANSWER_SECONDS)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Mapping[str, Any], *, behind: bytes = b"") -> dict[str, Any]:
        """Send a question, and return the agent's answer.

        :param behind: bytes to send after the question.
        :raises StorageEngineError: the agent's answer is this error, or no answer comes.
        """
        with self.understood():
            try:
                self.wire.send(question)
                if behind:
                    self.wire.socket.sendall(behind)
            except (ConnectionError, ssl.SSLError):
                # Before it ended the connection, the agent may have sent the reason.
                answer = self.wire.receive()
                if "error" not in answer:
                    raise
            else:
                answer = self.wire.receive()
            error = answer.get("error")
            kind, message = (None, "") if error is None else (str(error["type"]), str(error["message"]))
        if kind is not None:
            raise getattr(exceptions, kind if kind in _PASSED_ON else AgentError.__name__)(message)
        return answer

    def close(self) -> None:
        with suppress(OSError, AttributeError):
            self.wire.socket.close()

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Turn the block's errors into AgentError: the connection failed, or the answer isn't an agent's."""
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise self._answer_error(
                f"an agent whose certificate we trust, found: {error.verify_message}",
                "Correct its certificate, or name the authority that signed it",
            ) from error
        except (BlockingIOError, TimeoutError) as error:
            raise self._answer_error(
                "an answer in time, found none", "Check whether the agent or its disk hangs"
            ) from error
        except OSError as error:
            tls = "" if self.address.startswith(PLAIN) else f"; without TLS, write {PLAIN} before its address"
            then: str = Text("See what ", Command("agent"), " logs there, and whether this host may reach ")
            then += f"its port{tls}"
            if (getattr(error, "reason", None) or "").endswith(_OF_OUR_CERTIFICATE):
                then = (
                    "The agent refuses our certificate: renew it, or give the agent the authority that "
                    "signed it by --client-ca"
                )
            raise self._answer_error(f"to be served, found: {reason_text(error)}", then) from error
        except (*MALFORMED, BadInputError) as error:
            raise self._answer_error(f"an agent's answer, found {error}", "Run again") from error

    def _answer_error(self, expected: str, then: str) -> AgentError:
        # The next bytes on the connection would be read as the answer to another question.
        self.close()
        host = socket.gethostname()
        return AgentError(
            f"agent {self.address}, from host {host}: expected {expected}. {NOTHING} ", then, "."
        )


_OF_OUR_CERTIFICATE = ("CERTIFICATE_EXPIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_UNKNOWN")
"""Endings of OpenSSL's names for the alerts with which an agent refuses our certificate."""

_PASSED_ON = frozenset(
    {
        "AgentError",
        "BadInputError",
        "ChangedUnderUsError",
        "FileGoneError",
        "ProofError",
        "StoreNotFoundError",
    }
)
"""Errors that are raised here when an agent answers with them."""


def error_message(error: StorageEngineError) -> dict[str, Any]:
    """Return an agent's answer about an error."""
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def facts_message(facts: FileFacts, **more: Any) -> dict[str, Any]:
    """Return an agent's answer with a file's facts."""
    return {"facts": to_jsonable(facts), **more}


def _connect(address: str, authorities: str, certificate_file: str) -> Wire:
    where = parse_address(address.removeprefix(PLAIN))
    assert where is not None
    connection = socket.create_connection(where, CONNECT_SECONDS)
    try:
        notice_death(connection)
        if not address.startswith(PLAIN):
            context = _context(authorities, certificate_file)
            connection = context.wrap_socket(connection, server_hostname=where[0])
        connection.settimeout(None)
        wire = Wire(connection)
        wire.wait_at_most(CONNECT_SECONDS)
    except BaseException:
        connection.close()
        raise
    return wire


def _context(authorities: str, certificate_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authorities or None)
    if certificate_file:
        context.load_cert_chain(certificate_file)
    return context
