"""Requests to the lake's cluster, in Kafka's protocol and with kio's types.

Batches are passed on unchanged. In the cluster, only positions are changed: those of groups that are given
back, or that commit at the cluster.
"""

from __future__ import annotations

import asyncio
import io
import math
import ssl
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from scramp import ScramClient, ScramException

from storage_engine.exceptions import BadInputError, CorruptFileError, StorageEngineError
from storage_engine.kafka.format.meta_properties import parse_properties
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.lake_server.protocol import body_class
from storage_engine.lake_server.users import check_private

Address = tuple[str, int]
PartitionKey = tuple[str, int]
"""A topic's name and a partition's number."""

_VERSIONS = MappingProxyType(
    {"fetch": 13, "metadata": 12, "list_offsets": 5, "find_coordinator": 2, "offset_fetch": 5}
    | {"offset_commit": 7, "sasl_handshake": 1, "sasl_authenticate": 1}
)
"""The used version of each request. Brokers from 3.1 on know them. Fetch names a topic by its id, so that no
other topic of the same name is read."""
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
_RENEWAL_SECONDS = 5.0
_LENGTH = struct.Struct(">i")
_MOST_IDLE = 64
"""Maximum number of idle connections to one broker that are kept."""
_LONGEST_ANSWER_BYTES = 256 << 20
EARLIEST: Final = -2
LATEST: Final = -1
READ_COMMITTED: Final = 1
_NO_POSITION = -1
_LOGIN = ("sasl.mechanism", "sasl.username", "sasl.password")
_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_PART_OF_LIFETIME = 0.8
"""The share of a login's lifetime after which its connection isn't used again. A running request may
use the rest of the lifetime."""
_NOTHING_MORE = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


class UpstreamError(StorageEngineError):
    """The cluster doesn't answer, or doesn't answer yet."""


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic of the cluster.

    :param leaders: the leader's node id by partition; -1 without a leader.
    :param epochs: the leader's epoch by partition. Only a new leader can truncate a log.
    """

    id: Any
    leaders: Mapping[int, int]
    epochs: Mapping[int, int]

    @property
    def id_text(self) -> str:
        return text_of(self.id)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster's metadata, without internal topics."""

    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, ClusterTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """Offset and size of a fetch from one partition."""

    place: PartitionKey
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of one fetch.

    :param seconds: how long the fetch may wait for ``min_bytes``.
    """

    level: int
    max_bytes: int
    min_bytes: int
    seconds: float


def trusting(authorities: Path) -> ssl.SSLContext:
    """Make the TLS context for connections to brokers.

    :param authorities: a PEM file with the certificates of the authorities that signed the brokers'
        certificates.
    :raises BadInputError: the file has no usable certificates.
    """
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise BadInputError(
            f"{authorities}: expected usable certificates as PEM, found that they can't be used: {error}. "
            "Nothing was started. Correct the file."
        ) from error


@dataclass(frozen=True, slots=True)
class UpstreamLogin:
    """The credentials with which this server logs in to brokers."""

    mechanism: str
    user: str
    password: str = field(repr=False)


def read_login(path: Path) -> UpstreamLogin:
    """Read the login from a file of client settings.

    :raises BadInputError: others than its owner may read the file, or it has other settings than mechanism,
        user and password.
    """
    try:
        check_private(path)
        settings = dict(parse_properties(path.read_bytes(), str(path)))
    except (OSError, CorruptFileError) as error:
        raise BadInputError(
            f"{path}: expected client settings, found no file that can be read: {error}. Nothing was "
            "started. Correct the file or its path."
        ) from error
    if set(settings) != set(_LOGIN) or settings.get(_LOGIN[0], "") not in _MECHANISMS:
        raise BadInputError(
            f"{path}: expected {', '.join(_LOGIN)}, where the first is one of {', '.join(_MECHANISMS)}; "
            f"found {', '.join(sorted(settings)) or 'nothing'}. Nothing was started. Correct the file."
        )
    return UpstreamLogin(*(settings[name] for name in _LOGIN))


class Upstream:
    """A client of the lake's cluster. It is used in one event loop.

    :param bootstrap: addresses of brokers that know the cluster's other brokers.
    :param cluster: the id that the cluster must have.
    :param tls: the TLS context for connections; None for connections without TLS.
    :param login: the login at the brokers; None if they require none.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        cluster: str,
        tls: ssl.SSLContext | None = None,
        login: UpstreamLogin | None = None,
    ) -> None:
        self._bootstrap, self._cluster, self._tls, self._login = tuple(bootstrap), cluster, tls, login
        self.view = ClusterView()
        self._idle: dict[Address, list[_Connection]] = defaultdict(list)
        self._is_stale = asyncio.Event()
        self._fault = ""

    async def connect(self) -> None:
        """Read the cluster's metadata for the first time.

        :raises BadInputError: the cluster has another id.
        :raises UpstreamError: none of the brokers answers.
        """
        try:
            await self._renew()
        except UpstreamError as error:
            raise UpstreamError(
                f"serve-lake --upstream: expected a broker that answers, found none: {error}. Nothing was "
                "started or changed. Start the cluster, or name other brokers of the cluster."
            ) from error

    async def watch(self, log: Callable[[str], None]) -> None:
        """Renew the cluster's metadata repeatedly. Run until cancelled."""
        is_away = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stale.wait(), _RENEWAL_SECONDS)
            self._is_stale.clear()
            try:
                await self._renew()
            except StorageEngineError as error:
                if not is_away:
                    log(f"the cluster doesn't answer, and only the lake is served: {error}")
                is_away = True
                await asyncio.sleep(1)
            else:
                if is_away:
                    log("the cluster answers again")
                is_away = False

    async def fetch(self, wanted: Sequence[PartitionFetch], limits: FetchLimits) -> dict[PartitionKey, Any]:
        """Fetch batches of partitions, and return the answers as kio parsed them.

        A partition without a leader or an answer is left out. The wait ends when one leader returns records
        or an error.
        """
        of_leader: dict[Address, list[PartitionFetch]] = defaultdict(list)
        for fetch in wanted:
            with suppress(UpstreamError):
                of_leader[self._leader(fetch.place)].append(fetch)

        async def ask_all(wait: float) -> dict[PartitionKey, Any]:
            of_each = replace(limits, max_bytes=max(1, limits.max_bytes // len(of_leader)), seconds=wait)
            tasks = [asyncio.ensure_future(self._fetch_at(*each, of_each)) for each in of_leader.items()]
            answers: dict[PartitionKey, Any] = {}
            try:
                for task in asyncio.as_completed(tasks):
                    with suppress(UpstreamError):
                        answers |= await task
                    if wait > 0 and _has_records_or_error(answers):
                        break
            finally:
                for each in tasks:
                    each.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            return answers

        if not of_leader:
            return {}
        if len(of_leader) == 1 or limits.seconds <= 0:
            return await ask_all(limits.seconds)
        # Several leaders are first asked without waiting, so that the fastest one doesn't exclude the others.
        answers = await ask_all(0)
        if not _has_records_or_error(answers) and len(answers) == len(wanted):
            answers |= await ask_all(limits.seconds)
        return answers

    async def offset_of(self, place: PartitionKey, timestamp_ms: int, level: int = 0) -> tuple[int, int]:
        """Return the offset and timestamp for a time, or for EARLIEST or LATEST, as ListOffsets does.

        :return: -1 as offset if no record has the time or a later one.
        :raises UpstreamError: the leader doesn't answer, or there is no leader.
        """
        name, number = place
        query = _entity_type("list_offsets", "ListOffsetsPartition")(
            partition_index=number, timestamp=timestamp_ms
        )
        answer = await self._ask(
            self._leader(place),
            "list_offsets",
            replica_id=-1,
            isolation_level=level,
            topics=(_entity_type("list_offsets", "ListOffsetsTopic")(name=name, partitions=(query,)),),
        )
        (position,) = answer.topics[0].partitions
        self._check_error(position.error_code, f"the offsets of {name}-{number}")
        return position.offset, position.timestamp

    async def forward(self, group: str, data: bytes, seconds: float) -> bytes:
        """Send a client's request unchanged to a group's coordinator, and return the answer with its length.

        :param data: the request without its length.
        :param seconds: how long the coordinator may wait for other members.
        :raises UpstreamError: the coordinator doesn't answer.
        """
        async with self._borrow(await self._coordinator(group), seconds) as connection:
            return await connection.forward(data)

    async def _coordinator(self, group: str) -> Address:
        """Return the address of a group's coordinator, or raise UpstreamError."""
        node = await self._ask_any("find_coordinator", key=group, key_type=0)
        self._check_error(node.error_code, f"the coordinator of group {group}")
        return node.host, node.port

    async def positions(
        self, group: str, partitions: Mapping[str, Sequence[int]] | None
    ) -> dict[PartitionKey, tuple[int, str | None]]:
        """Return a group's committed positions at the cluster.

        :param partitions: partitions by topic; None for all in which the group has a position.
        :raises UpstreamError: the coordinator doesn't answer.
        """
        kind = _entity_type("offset_fetch", "OffsetFetchRequestTopic")
        topics = None
        if partitions is not None:
            topics = tuple(
                kind(name=name, partition_indexes=tuple(numbers)) for name, numbers in partitions.items()
            )
        address = await self._coordinator(group)
        answer = await self._ask(address, "offset_fetch", group_id=group, topics=topics)
        self._check_error(answer.error_code, f"the positions of group {group}")
        positions = {}
        for topic in answer.topics:
            for part in topic.partitions:
                self._check_error(part.error_code, f"the position of group {group} in {topic.name}")
                if part.committed_offset != _NO_POSITION:
                    positions[topic.name, part.partition_index] = part.committed_offset, part.metadata
        return positions

    async def commit(self, group: str, positions: Mapping[PartitionKey, tuple[int, str | None]]) -> None:
        """Commit positions of a group that has no members.

        :raises UpstreamError: the coordinator doesn't answer, or refuses a position, for example because the
            group has members.
        """
        part = _entity_type("offset_commit", "OffsetCommitRequestPartition")
        topics: dict[str, list[Any]] = defaultdict(list)
        for (name, number), (offset, note) in positions.items():
            topics[name].append(
                part(partition_index=number, committed_offset=offset, committed_metadata=note)
            )
        topic = _entity_type("offset_commit", "OffsetCommitRequestTopic")
        address = await self._coordinator(group)
        answer = await self._ask(
            address,
            "offset_commit",
            group_id=group,
            member_id="",
            topics=tuple(topic(name=name, partitions=tuple(parts)) for name, parts in topics.items()),
        )
        for answered in answer.topics:
            for partition in answered.partitions:
                self._check_error(partition.error_code, f"a commit of group {group} for {answered.name}")

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def _fetch_at(
        self, address: Address, fetches: Sequence[PartitionFetch], limits: FetchLimits
    ) -> dict[PartitionKey, Any]:
        part, topics = _entity_type("fetch", "FetchPartition"), defaultdict(list)
        for fetch in fetches:
            topics[fetch.place[0]].append(
                part(
                    partition=fetch.place[1],
                    # A leader with another epoch refuses the request (KIP-320).
                    current_leader_epoch=self.view.topics[fetch.place[0]].epochs[fetch.place[1]],
                    fetch_offset=fetch.offset,
                    partition_max_bytes=fetch.max_bytes,
                )
            )
        ids = {self.view.topics[name].id: name for name in topics}
        topic = _entity_type("fetch", "FetchTopic")
        answer = await self._ask(
            address,
            "fetch",
            seconds=limits.seconds,
            max_wait=timedelta(seconds=limits.seconds),
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=limits.level,
            topics=tuple(topic(topic_id=id_, partitions=tuple(topics[name])) for id_, name in ids.items()),
            forgotten_topics_data=(),
        )
        self._check_error(answer.error_code, "records")
        answers = {
            (ids[answered.topic_id], partition.partition_index): partition
            for answered in answer.responses
            for partition in answered.partitions
        }
        if any(partition.error_code is not ErrorCode.none for partition in answers.values()):
            # The partition may have another leader by now.
            self._is_stale.set()
        return answers

    def _leader(self, place: PartitionKey) -> Address:
        topic = self.view.topics.get(place[0])
        leader = -1 if topic is None else topic.leaders.get(place[1], -1)
        if leader not in self.view.brokers:
            self._is_stale.set()
            raise UpstreamError(f"{place[0]}-{place[1]}: expected a leader, found none at the cluster")
        return self.view.brokers[leader]

    def _check_error(self, error: ErrorCode, subject: str) -> None:
        if error is not ErrorCode.none:
            self._is_stale.set()
            raise UpstreamError(f"{subject}: expected an answer of the cluster, found {error.name}")

    async def _renew(self) -> None:
        metadata = await self._ask_any("metadata", topics=None, **_NOTHING_MORE)
        self._fault = ""
        if metadata.cluster_id != self._cluster:
            self._fault = (
                f"serve-lake --upstream: expected the lake's cluster {self._cluster}, found "
                f"{metadata.cluster_id}. Its records aren't served. Name brokers of the lake's cluster."
            )
            raise BadInputError(self._fault)
        self.view = ClusterView(
            {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers},
            {
                topic.name: ClusterTopic(
                    topic.topic_id,
                    {part.partition_index: part.leader_id for part in topic.partitions},
                    {part.partition_index: part.leader_epoch for part in topic.partitions},
                )
                for topic in metadata.topics
                if topic.error_code is ErrorCode.none and not topic.is_internal
            },
        )

    async def _ask_any(self, name: str, **values: Any) -> Any:
        failures = []
        for address in dict.fromkeys((*self.view.brokers.values(), *self._bootstrap)):
            try:
                return await self._ask(address, name, **values)
            except UpstreamError as error:
                failures.append(str(error))
        raise UpstreamError("; ".join(failures))

    async def _ask(self, address: Address, name: str, *, seconds: float = 0.0, **values: Any) -> Any:
        """Return a broker's answer, for which the broker may wait ``seconds``."""
        if self._fault and name != "metadata":
            raise UpstreamError(self._fault)
        async with self._borrow(address, seconds) as connection:
            return await connection.ask(name, values)

    @asynccontextmanager
    async def _borrow(self, address: Address, seconds: float) -> AsyncIterator[_Connection]:
        try:
            async with asyncio.timeout(seconds + _ANSWER_SECONDS), self._connection(address) as connection:
                yield connection
        except (OSError, EOFError, TimeoutError) as error:
            self._is_stale.set()
            for idle in self._idle.pop(address, ()):
                idle.close()
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"{address[0]}:{address[1]}: expected an answer, found {reason}") from error

    @asynccontextmanager
    async def _connection(self, address: Address) -> AsyncIterator[_Connection]:
        idle = self._idle[address]
        while idle and monotonic() > idle[-1].valid_until:
            idle.pop().close()
        connection = idle.pop() if idle else await _Connection.open(address, self._tls, self._login)
        try:
            yield connection
        except BaseException:
            # A connection with an unread answer can't be used again.
            connection.close()
            raise
        if len(idle) < _MOST_IDLE:
            idle.append(connection)
        else:
            connection.close()


class _Connection:
    """A connection to a broker, with one request at a time.

    :ivar valid_until: monotonic time in seconds after which the connection isn't used again, because the
        broker will require a new login (KIP-368).
    """

    def __init__(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        self._incoming, self._outgoing, self._asked = incoming, outgoing, 0
        self.valid_until = math.inf

    @classmethod
    async def open(
        cls, address: Address, tls: ssl.SSLContext | None, login: UpstreamLogin | None
    ) -> _Connection:
        async with asyncio.timeout(_CONNECT_SECONDS):
            connection = cls(*await asyncio.open_connection(*address, ssl=tls))
            try:
                if login is not None:
                    await connection._log_in(login)
            except BaseException:
                connection.close()
                raise
            return connection

    async def _log_in(self, login: UpstreamLogin) -> None:
        """Log in, or raise UpstreamError if the broker refuses or can't show that it knows the password."""
        whose = f"the login of {login.user} by {login.mechanism}: expected that a broker accepts it, found"
        answer = await self.ask("sasl_handshake", {"mechanism": login.mechanism})
        if answer.error_code is not ErrorCode.none:
            raise UpstreamError(f"{whose} {answer.error_code.name}")
        began = monotonic()

        async def authenticate(message: str) -> str:
            nonlocal answer
            answer = await self.ask("sasl_authenticate", {"auth_bytes": message.encode()})
            if answer.error_code is not ErrorCode.none:
                raise UpstreamError(f"{whose} {answer.error_message or answer.error_code.name}")
            return bytes(answer.auth_bytes).decode()

        if login.mechanism == "PLAIN":
            await authenticate(f"\0{login.user}\0{login.password}")
        else:
            scram = ScramClient([login.mechanism], login.user, login.password)
            try:
                scram.set_server_first(await authenticate(scram.get_client_first()))
                scram.set_server_final(await authenticate(scram.get_client_final()))
            except (ScramException, ValueError) as error:
                raise UpstreamError(f"{whose} {error}") from error
        if lifetime := answer.session_lifetime.total_seconds():
            self.valid_until = began + _PART_OF_LIFETIME * lifetime

    def close(self) -> None:
        self._outgoing.close()

    async def ask(self, name: str, values: Mapping[str, Any]) -> Any:
        """Send a request, and return the answer as kio parsed it."""
        self._asked += 1
        schema = body_class(name, _VERSIONS[name], "request", None)
        head, out = schema.__header_schema__, io.BytesIO()
        entity_writer(head)(
            out,
            head(
                request_api_key=schema.__api_key__,
                request_api_version=schema.__version__,
                correlation_id=self._asked,
                client_id="storage-engine",
            ),
        )
        entity_writer(schema)(out, schema(**values))
        data = await self._answer(out.getbuffer())
        answer = body_class(name, _VERSIONS[name], "response", None)
        try:
            header, size = entity_reader(answer.__header_schema__)(data, 0)
            body, _ = entity_reader(answer)(data, size)
        # A broker's bytes may cause any error.
        except Exception as error:
            raise EOFError(f"{len(data)} bytes that are no answer to {name}: {error}") from error
        if header.correlation_id != self._asked:
            raise EOFError(f"the answer to question {header.correlation_id}, not to {self._asked}")
        return body

    async def forward(self, data: bytes) -> bytes:
        """Send another client's request, and return the answer with its length."""
        answer = await self._answer(data)
        if answer[:4] != data[4:8]:
            raise EOFError("the answer to another question")
        return _LENGTH.pack(len(answer)) + answer

    async def _answer(self, data: bytes | memoryview) -> bytes:
        self._outgoing.write(_LENGTH.pack(len(data)))
        self._outgoing.write(data)
        await self._outgoing.drain()
        (length,) = _LENGTH.unpack(await self._incoming.readexactly(_LENGTH.size))
        if not 0 < length <= _LONGEST_ANSWER_BYTES:
            raise EOFError(f"an answer of {length} bytes")
        return await self._incoming.readexactly(length)


def _has_records_or_error(answers: Mapping[PartitionKey, Any]) -> bool:
    return any(answer.records or answer.error_code is not ErrorCode.none for answer in answers.values())


def _entity_type(name: str, kind: str) -> Any:
    return getattr(import_module(f"kio.schema.{name}.v{_VERSIONS[name]}.request"), kind)
