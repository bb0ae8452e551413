"""The server: it accepts connections, answers requests for topics and records, and rereads the lake."""

from __future__ import annotations

import asyncio
import resource
import ssl
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from kio.schema.errors import ErrorCode

from storage_engine.core.host import is_loopback
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake_server.archive_reader import LakeReader
from storage_engine.lake_server.group_answers import (
    FORWARDED,
    NODE_ID,
    UNKNOWN,
    CommittedPositions,
    GroupAnswers,
)
from storage_engine.lake_server.partition_logs import UNDEFINED, Logs, PartitionRecords
from storage_engine.lake_server.protocol import (
    APIS,
    Frame,
    ProtocolError,
    Request,
    load_types,
    part,
    parts_by_topic,
    read_request,
    response,
)
from storage_engine.lake_server.segment_batches import Batches, KeptBytes, has_zstd
from storage_engine.lake_server.upstream import FetchLimits, PartitionFetch, PartitionKey, Upstream
from storage_engine.lake_server.users import MECHANISMS, Login, LoginError, User

_TOPIC_RESOURCE = 2
_MOST_BYTES = 55 << 20
"""Maximum number of bytes of one answer, even if a client requests more, like a broker's fetch.max.bytes."""
_LONGEST_WAIT_SECONDS = 30.0
_FETCH_OF_ZSTD = 10
"""The lowest version of Fetch whose clients know zstd (KIP-110)."""


class Answers(GroupAnswers):
    """Answers the requests of clients."""

    async def answer(self, request: Request) -> Frame | None:
        """Return the response to a request. If it is None, the client's connection must be closed."""
        if self._are_groups_upstream and self._upstream is not None and request.name in FORWARDED:
            return await self._forwarded(request, self._upstream)
        handle: Callable[[Request], Awaitable[Frame | None]] = getattr(self, f"_{request.name}")
        return await handle(request)

    async def _api_versions(self, request: Request) -> Frame:
        keys = tuple(
            part(request, "ApiVersion", api_key=key, min_version=lowest, max_version=highest)
            for key, (_, lowest, highest) in APIS.items()
        )
        error = ErrorCode.none if request.version >= 0 else ErrorCode.unsupported_version
        return response(request, error_code=error, api_keys=keys)

    async def _sasl_handshake(self, request: Request) -> Frame:
        may = request.login.begin(request.body.mechanism)
        error = ErrorCode.none if may else ErrorCode.unsupported_sasl_mechanism
        return response(request, error_code=error, mechanisms=MECHANISMS)

    async def _sasl_authenticate(self, request: Request) -> Frame:
        try:
            # It is slow, because a key is computed from a password by thousands of rounds.
            answer = await asyncio.to_thread(request.login.go_on, bytes(request.body.auth_bytes))
        except LoginError as error:
            self._logs.log_once(f"client {request.host}: {error}")
            failed = ErrorCode.sasl_authentication_failed
            return response(request, error_code=failed, error_message=str(error), auth_bytes=b"")
        return response(request, error_message=None, auth_bytes=answer)

    async def _metadata(self, request: Request) -> Frame:
        topics = self._topics(request)
        names = topics if request.body.topics is None else {topic.name: None for topic in request.body.topics}
        host, port = self._address
        broker = part(request, "MetadataResponseBroker", node_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request,
            brokers=(broker,),
            cluster_id=self._cluster,
            controller_id=NODE_ID,
            topics=tuple(_topic_part(request, name, topics.get(name, {})) for name in names),
        )

    async def _describe_cluster(self, request: Request) -> Frame:
        host, port = self._address
        broker = part(request, "DescribeClusterBroker", broker_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request, error_message=None, cluster_id=self._cluster, controller_id=NODE_ID, brokers=(broker,)
        )

    async def _describe_configs(self, request: Request) -> Frame:
        results = tuple(
            part(
                request,
                "DescribeConfigsResult",
                error_code=(
                    UNKNOWN
                    if resource.resource_type == _TOPIC_RESOURCE
                    and resource.resource_name not in self._topics(request)
                    else ErrorCode.none
                ),
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=(),
            )
            for resource in request.body.resources
        )
        return response(request, results=results)

    async def _produce(self, request: Request) -> Frame | None:
        if request.body.acks == 0:
            return None

        def refuse_part(_: str, partition: Any) -> Any:
            return part(
                request,
                "PartitionProduceResponse",
                index=partition.index,
                error_code=ErrorCode.topic_authorization_failed,
                base_offset=UNDEFINED,
                log_append_time=None,
            )

        topics = parts_by_topic(request, "TopicProduceResponse", request.body.topic_data, refuse_part)
        return response(request, responses=topics)

    async def _fetch(self, request: Request) -> Frame:
        body = request.body
        fetches = {
            (topic.topic, partition.partition): PartitionFetch(
                (topic.topic, partition.partition), partition.fetch_offset, partition.partition_max_bytes
            )
            for topic in body.topics
            for partition in topic.partitions
            if self._partition(request, topic.topic, partition.partition) is not None
        }
        seconds = min(body.max_wait.total_seconds(), _LONGEST_WAIT_SECONDS)
        limits = FetchLimits(
            body.isolation_level,
            min(body.max_bytes, _MOST_BYTES),
            body.min_bytes,
            seconds if len(fetches) == sum(len(topic.partitions) for topic in body.topics) else 0.0,
        )
        answers = dict(zip(fetches, await self._logs.fetch(list(fetches.values()), limits), strict=True))
        if request.version < _FETCH_OF_ZSTD:
            answers = {place: self._without_zstd(request, place, it) for place, it in answers.items()}

        def answer_part(name: str, partition: Any) -> Any:
            answer = answers.get((name, partition.partition), PartitionRecords(UNKNOWN))
            aborted = None
            if answer.aborted is not None:
                aborted = tuple(
                    part(request, "AbortedTransaction", producer_id=producer_id, first_offset=first_offset)
                    for producer_id, first_offset in answer.aborted
                )
            return part(
                request,
                "PartitionData",
                partition_index=partition.partition,
                error_code=answer.error,
                high_watermark=answer.end,
                last_stable_offset=answer.stable,
                log_start_offset=answer.start,
                aborted_transactions=aborted,
                records=answer.records,
            )

        topics = parts_by_topic(request, "FetchableTopicResponse", body.topics, answer_part)
        return response(request, session_id=0, responses=topics)

    def _without_zstd(
        self, request: Request, place: PartitionKey, answer: PartitionRecords
    ) -> PartitionRecords:
        if not has_zstd(answer.records):
            return answer
        self._logs.log_once(
            f"client {request.host}: {place[0]}-{place[1]}: expected Fetch {_FETCH_OF_ZSTD} or later for "
            f"batches of zstd, found {request.version}. Use a client of Kafka 2.1 or later."
        )
        return replace(answer, error=ErrorCode.unsupported_compression_type, records=b"")

    async def _list_offsets(self, request: Request) -> Frame:
        level = getattr(request.body, "isolation_level", 0)
        topics = []
        for topic in request.body.topics:
            partitions = []
            for partition in topic.partitions:
                error, offset, timestamp = UNKNOWN, UNDEFINED, UNDEFINED
                if self._partition(request, topic.name, partition.partition_index) is not None:
                    place = topic.name, partition.partition_index
                    error, offset, timestamp = await self._logs.offset_of(place, partition.timestamp, level)
                partitions.append(
                    part(
                        request,
                        "ListOffsetsPartitionResponse",
                        partition_index=partition.partition_index,
                        error_code=error,
                        offset=offset,
                        timestamp=timestamp,
                        leader_epoch=UNDEFINED,
                    )
                )
            topics.append(
                part(request, "ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions))
            )
        return response(request, topics=tuple(topics))

    async def _offset_for_leader_epoch(self, request: Request) -> Frame:
        def refuse_part(_: str, partition: Any) -> Any:
            return part(
                request,
                "EpochEndOffset",
                error_code=ErrorCode.none,
                partition=partition.partition,
                leader_epoch=UNDEFINED,
                end_offset=UNDEFINED,
            )

        topics = parts_by_topic(request, "OffsetForLeaderTopicResult", request.body.topics, refuse_part)
        return response(request, topics=topics)


def _topic_part(request: Request, name: str, partitions: Collection[int]) -> Any:
    return part(
        request,
        "MetadataResponseTopic",
        error_code=ErrorCode.none if partitions else UNKNOWN,
        name=name,
        is_internal=False,
        partitions=tuple(
            part(
                request,
                "MetadataResponsePartition",
                error_code=ErrorCode.none,
                partition_index=number,
                leader_id=NODE_ID,
                leader_epoch=UNDEFINED,
                replica_nodes=(NODE_ID,),
                isr_nodes=(NODE_ID,),
                offline_replicas=(),
            )
            for number in sorted(partitions)
        ),
    )


_LONGEST_REQUEST_BYTES = 1 << 20
_LONGEST_LOGIN_BYTES = 64 << 10
_RENEWAL_SECONDS = 10.0
_DROP_SECONDS = 600.0
_MOST_CONNECTIONS = 1000
_REQUEST_SECONDS = 30.0
"""Time limit for receiving a request from its first byte on, and for the requests of a client's login."""
_IDLE_SECONDS = 600.0
"""Seconds after which a connection is closed if the client sends no request or doesn't read its answer
(connections.max.idle.ms)."""
_LENGTH = struct.Struct(">i")
_PART_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a server listens, and who may connect.

    :param advertised: host and port to which clients connect, if they differ from ``host`` and ``port``.
    :param certificate: file of the TLS certificate for ``key``; None without TLS.
    :param insecure: whether other hosts may connect without TLS.
    :param users: users with their topics; None if each client may read all topics.
    """

    host: str
    port: int
    advertised: tuple[str, int] | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    users: Mapping[str, User] | None = None

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections, or None without TLS.

        :raises BadInputError: the files are no certificate and key, or other hosts could connect without TLS
            although ``insecure`` is False.
        """
        if self.certificate is None:
            if not self.insecure and not is_loopback(self.host):
                raise BadInputError(
                    f"serve-lake: expected TLS where other hosts connect, found none for {self.host}. "
                    "Nothing was started. Give --tls-cert; or, if others in the network may read the "
                    "messages, give --insecure."
                )
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInputError(
                f"{self.certificate}: expected a usable certificate with its key, found that they can't be "
                f"used: {error}. Nothing was started. Correct the files."
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
    """Serve clients until cancelled.

    :param log: called with each line for the operator.
    :param started: called with the port once clients may connect.
    :param upstream: the lake's cluster; None to serve only the lake.
    :raises BadInputError: the server can't listen at the address, other hosts could connect without TLS, or
        the lake is of another cluster.
    :raises UpstreamError: the cluster doesn't answer.
    """
    tls = listening.tls()
    if upstream is not None:
        await upstream.connect()
    try:
        # The answers contain the port, which may be any free one and is known only afterwards.
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
            f"serve-lake: expected to listen at {listening.host}:{listening.port}, found that it isn't "
            f"possible: {error.strerror or error}. Nothing was started. Name another address by --kafka."
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
                log(f"new commits of the lake can't be read, and aren't served: {error}")
            failed = True
        else:
            failed = False


async def _drop_unused(answers: Answers, log: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_DROP_SECONDS)
        try:
            dropped = await answers.drop_unused(monotonic())
        except OSError as error:
            log(f"the positions of unused groups can't be dropped: {error}")
        else:
            for group in dropped:
                log(f"group {group}: its positions were dropped, because no client used them for seven days")


class Connections:
    """The connections of clients, up to the limit of the process.

    :param users: users with their topics; None if each client may read all topics.
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
        # A process may have a limited number of open files. Data files need some of them, and so do
        # connections to the cluster, of which each client may need one.
        share = 4 if with_upstream else 2
        self._most = min(_MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // share)
        self._count, self._is_full = 0, False

    async def take(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        """Answer a client's requests in order until it disconnects. Above the limit, refuse the client."""
        host = str((outgoing.get_extra_info("peername") or ("",))[0])
        if self._count >= self._most:
            if not self._is_full:
                self._log(
                    f"client {host}: refused, because {self._most} connections are open. More clients "
                    "are refused until a connection ends"
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
            # The client has disconnected, or the server ends.
            pass
        # An error in one client's request must not affect other clients.
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
                    f"expected a whole request within {_REQUEST_SECONDS:g} s, found a part of a request"
                ) from None
            frame = await self._answers.answer(read_request(data, host, login))
            if frame is None:
                return
            for piece in frame.parts:
                await _send(outgoing, piece)


async def _send(outgoing: asyncio.StreamWriter, data: bytearray | Batches) -> None:
    """Send bytes. Bytes in a file are sent in parts, so that a slow client takes little memory."""
    for piece in data.parts(_PART_BYTES) if isinstance(data, KeptBytes) else (data,):
        outgoing.write(piece)
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                await outgoing.drain()
        except TimeoutError:
            # The connection can't be closed in order, because the unsent bytes would have to be sent first.
            outgoing.transport.abort()
            raise ProtocolError(
                f"expected a client that reads its answer within {_IDLE_SECONDS:g} s, found unread bytes"
            ) from None


async def _read_rest(incoming: asyncio.StreamReader, begun: bytes, login: Login) -> bytes:
    """Read the rest of a request after its first byte, and return the request without its length."""
    (length,) = _LENGTH.unpack(begun + await incoming.readexactly(_LENGTH.size - 1))
    longest = _LONGEST_REQUEST_BYTES if login.is_done else _LONGEST_LOGIN_BYTES
    if not 0 < length <= longest:
        raise ProtocolError(f"expected a request, found a length of {length} bytes")
    return await incoming.readexactly(length)
