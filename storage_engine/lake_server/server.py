"""The server: connections, the lake's renewals, and an end."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake_server.answers import Answers
from storage_engine.lake_server.positions import CommittedPositions
from storage_engine.lake_server.protocol import ProtocolError, read_request
from storage_engine.lake_server.reader import LakeReader
from storage_engine.lake_server.users import Login, User

_LONGEST_REQUEST_BYTES = 1 << 20
_LONGEST_LOGIN_BYTES = 64 << 10
_RENEWAL_SECONDS = 10.0
_LENGTH = struct.Struct(">i")


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
            if not self.insecure and not _is_loopback(self.host):
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


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(
    reader: LakeReader,
    positions: CommittedPositions,
    listening: Listening,
    log: Callable[[str], None],
    started: Callable[[int], None] = lambda port: None,
) -> None:
    """Serve until cancelled.

    :param log: is given a line for each thing that an operator should know.
    :param started: is given the port once clients may connect.
    :raises BadInputError: the address can't be listened at, or is open to others without TLS.
    """
    tls = listening.tls()
    try:
        # What is answered depends on the port, which may be whichever is free.
        connected: list[Answers] = []
        server = await asyncio.start_server(
            lambda incoming, outgoing: _converse(
                connected[0], Login(listening.users), incoming, outgoing, log
            ),
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
    answers = Answers(reader, positions, listening.advertised or (listening.host, port), log)
    connected.append(answers)
    for partitions in reader.archive.topics.values():
        for partition in partitions.values():
            for first, end in partition.holes():
                log(f"{partition.topic}-{partition.number}: no receipt has the offsets [{first}, {end})")
    async with server, asyncio.TaskGroup() as tasks:
        tasks.create_task(answers.groups.watch())
        tasks.create_task(_renew(reader, log))
        await reader.warm_up()
        await server.start_serving()
        started(port)
        await server.serve_forever()


async def _renew(reader: LakeReader, log: Callable[[str], None]) -> None:
    failed = False
    while True:
        await asyncio.sleep(_RENEWAL_SECONDS)
        try:
            await reader.renew()
        except (StorageEngineError, OSError) as error:
            if not failed:
                log(f"what was committed to the lake since isn't served: {error}")
            failed = True
        else:
            failed = False


async def _converse(
    answers: Answers,
    login: Login,
    incoming: asyncio.StreamReader,
    outgoing: asyncio.StreamWriter,
    log: Callable[[str], None],
) -> None:
    """Answer a client's requests in their order, until it goes."""
    host = str((outgoing.get_extra_info("peername") or ("",))[0])
    try:
        while True:
            (length,) = _LENGTH.unpack(await incoming.readexactly(_LENGTH.size))
            longest = _LONGEST_REQUEST_BYTES if login.is_done else _LONGEST_LOGIN_BYTES
            if not 0 < length <= longest:
                raise ProtocolError(f"expected a request, found a length of {length} bytes")
            request = read_request(await incoming.readexactly(length), host, login)
            frame = await answers.answer(request)
            if frame is None:
                return
            outgoing.write(frame)
            await outgoing.drain()
    except ProtocolError as error:
        log(f"client {host}: {error}. Its connection was closed.")
    except (asyncio.IncompleteReadError, ConnectionError):
        # The client has gone, as clients do.
        pass
    # Whatever one client makes of its requests is no other's matter.
    except Exception as error:
        log(f"client {host}: a request can't be answered: {type(error).__name__}: {error}")
    finally:
        outgoing.close()
        with suppress(OSError):
            await outgoing.wait_closed()
