"""The server: connections, the lake's renewals, and an end."""

from __future__ import annotations

import asyncio
import resource
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from storage_engine.core.host import is_loopback
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake_server.answers import Answers
from storage_engine.lake_server.logs import Logs
from storage_engine.lake_server.positions import CommittedPositions
from storage_engine.lake_server.protocol import ProtocolError, load_types, read_request
from storage_engine.lake_server.reader import LakeReader
from storage_engine.lake_server.segment_batches import Batches, KeptBytes
from storage_engine.lake_server.upstream import Upstream
from storage_engine.lake_server.users import Login, User

_LONGEST_REQUEST_BYTES = 1 << 20
_LONGEST_LOGIN_BYTES = 64 << 10
_RENEWAL_SECONDS = 10.0
_DROP_SECONDS = 600.0
_MOST_CONNECTIONS = 1000
_REQUEST_SECONDS = 30.0
"""How long a request may take to come, from its first byte on, and a client to log in."""
_IDLE_SECONDS = 600.0
"""After so long without a request, or of an answer that isn't taken, a connection is closed
(connections.max.idle.ms).
"""
_LENGTH = struct.Struct(">i")
_PART_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens.

    :param advertised: what clients are told to connect to, where that is another host and port.
    :param certificate: of TLS, with ``key``; None: without TLS.
    :param insecure: without TLS, others than this host may connect.
    :param users: who may read what; None: everybody who connects reads everything.
    """

    host: str
    port: int
    advertised: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    users: Mapping[str, User] | None = None

    def tls(self) -> ssl.SSLContext | None:
        """Return what connections are encrypted by.

        :raises BadInputError: the files are no certificate and key, or others could read along.
        """
        if self.certificate is None:
            if not self.insecure and not is_loopback(self.host):
                raise BadInputError(
                    f"serve-lake: expected TLS where other hosts connect, found none for {self.host}. "
                    "Nothing was started. Give --tls-cert, or --insecure where whoever reaches this address "
                    "may read along."
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(
                f"{self.certificate}: expected a certificate with its key, found that they can't be used: "
                f"{error}. Nothing was started."
            ) from error
        return context


async def serve(
    reader: LakeReader,
    positions: CommittedPositions,
    listening: Listening,
    log: Callable[[str], None],
    started: Callable[[int], None] = lambda port: None,
    *,
    upstream: Upstream | None = None,
    are_groups_upstream: bool = False,
) -> None:
    """Serve until cancelled.

    :param log: is given a line for each thing that an operator should know.
    :param started: is given the port once clients may connect.
    :param upstream: the cluster behind the lake; None: the lake alone is served.
    :param are_groups_upstream: groups commit at the cluster.
    :raises BadInputError: the address can't be listened at, or is open to others without TLS; or the cluster
        isn't the lake's.
    :raises UpstreamError: the cluster doesn't answer.
    """
    tls = listening.tls()
    if upstream is not None:
        await upstream.connect()
    try:
        # What is answered depends on the port, which may be whichever is free.
        connected: list[Connections] = []
        server = await asyncio.start_server(
            lambda incoming, outgoing: connected[0].take(incoming, outgoing),
            listening.host,
            listening.port,
            ssl=tls,
            start_serving=False,
        )
    except OSError as error:
        raise BadInputError(
            f"serve-lake: expected to listen at {listening.host}:{listening.port}, found that it can't be: "
            f"{error.strerror or error}. Nothing was started. Name another address by --kafka."
        ) from error
    port = server.sockets[0].getsockname()[1]
    logs = Logs(reader, upstream, log)
    answers = Answers(
        reader.archive.cluster,
        logs,
        upstream,
        positions,
        listening.advertised or (listening.host, port),
        are_groups_upstream=are_groups_upstream,
    )
    connected.append(Connections(answers, listening.users, log, with_upstream=upstream is not None))
    logs.log_gaps()
    async with server, asyncio.TaskGroup() as tasks:
        tasks.create_task(answers.groups.watch())
        tasks.create_task(_drop_unused(answers, log))
        tasks.create_task(_renew(logs, log))
        if upstream is not None:
            tasks.create_task(upstream.watch(log))
        load_types()
        await reader.warm_up()
        await server.start_serving()
        started(port)
        await server.serve_forever()


async def _renew(logs: Logs, log: Callable[[str], None]) -> None:
    failed = False
    while True:
        await asyncio.sleep(_RENEWAL_SECONDS)
        try:
            await logs.renew()
        except (StorageEngineError, OSError) as error:
            if not failed:
                log(f"what was committed to the lake since isn't served: {error}")
            failed = True
        else:
            failed = False


async def _drop_unused(answers: Answers, log: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_DROP_SECONDS)
        try:
            dropped = await answers.drop_unused(monotonic())
        except OSError as error:
            log(f"positions of groups that nobody uses can't be dropped: {error}")
        else:
            for group in dropped:
                log(f"group {group}: its positions were dropped, as nobody used them for seven days")


class Connections:
    """The connections of a server's clients, no more than it has room for.

    :param users: who may read what; None: everybody who connects reads everything.
    """

    def __init__(
        self,
        answers: Answers,
        users: Mapping[str, User] | None,
        log: Callable[[str], None],
        *,
        with_upstream: bool,
    ) -> None:
        self._answers, self._users, self._log = answers, users, log
        # Data files that are read need some of the files that a process may have open, and so does the
        # cluster, which each client may wait for.
        share = 4 if with_upstream else 2
        self._most = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // share)
        self._count, self._is_full = 0, False

    async def take(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        """Answer a client's requests in their order, until it goes; refuse it where there is no room."""
        host = str((outgoing.get_extra_info("peername") or ("",))[0])
        if self._count >= self._most:
            if not self._is_full:
                self._log(
                    f"client {host}: refused, as {self._most} connections are open; others are until one ends"
                )
            self._is_full = True
            outgoing.close()
            return
        self._count, self._is_full = self._count + 1, False
        try:
            await self._converse(incoming, outgoing, host)
        except ProtocolError as error:
            self._log(f"client {host}: {error}. Its connection was closed.")
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # The client has gone, as clients do; or the server ends.
            pass
        # Whatever one client makes of its requests is no other's matter.
        except Exception as error:
            self._log(f"client {host}: a request can't be answered: {type(error).__name__}: {error}")
        finally:
            self._count -= 1
            outgoing.close()
            with suppress(OSError):
                await outgoing.wait_closed()

    async def _converse(
        self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter, host: str
    ) -> None:
        login = Login(self._users)
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS if login.is_done else _REQUEST_SECONDS):
                    begun = await incoming.readexactly(1)
            except TimeoutError:
                return
            try:
                async with asyncio.timeout(_REQUEST_SECONDS):
                    data = await _read_rest(incoming, begun, login)
            except TimeoutError:
                raise ProtocolError(
                    f"expected a whole request within {_REQUEST_SECONDS:g} s, found a part of one"
                ) from None
            frame = await self._answers.answer(read_request(data, host, login))
            if frame is None:
                return
            for one in frame.parts:
                await _send(outgoing, one)


async def _send(outgoing: asyncio.StreamWriter, data: bytearray | Batches) -> None:
    """Send bytes, those in a file a part at a time: for a slow client no more than one is in memory.

    :raises ProtocolError: the client takes nothing. Files that it waits for would have no end.
    """
    for part in data.parts(_PART_BYTES) if isinstance(data, KeptBytes) else (data,):
        outgoing.write(part)
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await outgoing.drain()
        except TimeoutError:
            # Nothing more can be sent, nor waited for.
            outgoing.transport.abort()
            raise ProtocolError(
                f"expected a client that takes what it has asked for within {_IDLE_SECONDS:g} s, found none"
            ) from None


async def _read_rest(incoming: asyncio.StreamReader, begun: bytes, login: Login) -> bytes:
    """Return a request without its length, of which the first byte was read."""
    (length,) = _LENGTH.unpack(begun + await incoming.readexactly(_LENGTH.size - 1))
    longest = _LONGEST_REQUEST_BYTES if login.is_done else _LONGEST_LOGIN_BYTES
    if not 0 < length <= longest:
        raise ProtocolError(f"expected a request, found a length of {length} bytes")
    return await incoming.readexactly(length)
