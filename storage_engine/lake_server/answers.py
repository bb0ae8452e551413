"""What requests for topics and records are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from kio.schema.errors import ErrorCode

from storage_engine.exceptions import StorageEngineError
from storage_engine.lake_server.group_answers import NODE_ID, UNDEFINED, UNKNOWN, GroupAnswers
from storage_engine.lake_server.positions import CommittedPositions
from storage_engine.lake_server.protocol import APIS, Request, part, response
from storage_engine.lake_server.reader import LakeReader
from storage_engine.lake_server.users import MECHANISMS, LoginError

_LATEST, _EARLIEST = -1, -2
_READ_COMMITTED = 1
_TOPIC_RESOURCE = 2
_MOST_BYTES = 55 << 20
"""Of one answer, however much is asked for; as a broker's fetch.max.bytes."""
_LONGEST_WAIT_SECONDS = 30.0


class Answers(GroupAnswers):
    """Answers requests of clients.

    :param address: what clients are told to connect to, as host and port.
    :param log: is given a line for each thing that an operator should know, once.
    """

    def __init__(
        self,
        reader: LakeReader,
        positions: CommittedPositions,
        address: tuple[str, int],
        log: Callable[[str], None],
    ) -> None:
        super().__init__(reader, positions, address)
        self._log = log
        self._logged: set[str] = set()

    def log_gaps(self) -> None:
        """Log which offsets the lake lacks between others, each once."""
        for line in self._reader.archive.gaps():
            self._log_once(line)

    async def answer(self, request: Request) -> bytes | None:
        """Return the response to a request.

        :return: None: the client asked for none, and its connection has to be closed.
        """
        handle: Callable[[Request], Awaitable[bytes | None]] = getattr(self, f"_{request.name}")
        return await handle(request)

    async def _api_versions(self, request: Request) -> bytes:
        keys = tuple(
            part(request, "ApiVersion", api_key=key, min_version=lowest, max_version=highest)
            for key, (_, lowest, highest) in APIS.items()
        )
        known = request.version >= 0
        error = ErrorCode.none if known else ErrorCode.unsupported_version
        return response(request, error_code=error, api_keys=keys)

    async def _sasl_handshake(self, request: Request) -> bytes:
        may = request.login.begin(request.body.mechanism)
        error = ErrorCode.none if may else ErrorCode.unsupported_sasl_mechanism
        return response(request, error_code=error, mechanisms=MECHANISMS)

    async def _sasl_authenticate(self, request: Request) -> bytes:
        try:
            # Keys are made of a password, thousands of times over.
            told = await asyncio.to_thread(request.login.go_on, bytes(request.body.auth_bytes))
        except LoginError as error:
            self._log_once(f"client {request.host}: {error}")
            failed = ErrorCode.sasl_authentication_failed
            return response(request, error_code=failed, error_message=str(error), auth_bytes=b"")
        return response(request, error_message=None, auth_bytes=told)

    async def _metadata(self, request: Request) -> bytes:
        topics = self._topics(request)
        asked = topics if request.body.topics is None else {one.name: None for one in request.body.topics}
        host, port = self._address
        broker = part(request, "MetadataResponseBroker", node_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request,
            brokers=(broker,),
            cluster_id=self._reader.archive.cluster,
            controller_id=NODE_ID,
            topics=tuple(self._topic(request, name, topics.get(name, {})) for name in asked),
        )

    def _topic(self, request: Request, name: str, partitions: Collection[int]) -> Any:
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

    async def _describe_cluster(self, request: Request) -> bytes:
        host, port = self._address
        broker = part(request, "DescribeClusterBroker", broker_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request,
            error_message=None,
            cluster_id=self._reader.archive.cluster,
            controller_id=NODE_ID,
            brokers=(broker,),
        )

    async def _describe_configs(self, request: Request) -> bytes:
        results = tuple(
            part(
                request,
                "DescribeConfigsResult",
                error_code=(
                    UNKNOWN
                    if one.resource_type == _TOPIC_RESOURCE and one.resource_name not in self._topics(request)
                    else ErrorCode.none
                ),
                error_message=None,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                configs=(),
            )
            for one in request.body.resources
        )
        return response(request, results=results)

    async def _produce(self, request: Request) -> bytes | None:
        if request.body.acks == 0:
            return None
        responses = tuple(
            part(
                request,
                "TopicProduceResponse",
                name=topic.name,
                partition_responses=tuple(
                    part(
                        request,
                        "PartitionProduceResponse",
                        index=one.index,
                        error_code=ErrorCode.topic_authorization_failed,
                        base_offset=UNDEFINED,
                        log_append_time=None,
                    )
                    for one in topic.partition_data
                ),
            )
            for topic in request.body.topic_data
        )
        return response(request, responses=responses)

    async def _fetch(self, request: Request) -> bytes:
        body = request.body
        has_records, responses = await self._fetched(request)
        wait = min(body.max_wait.total_seconds(), _LONGEST_WAIT_SECONDS)
        if not has_records and wait > 0:
            # Nothing new comes but by a commit to the lake.
            try:
                await asyncio.wait_for(self._reader.changed.wait(), wait)
            except TimeoutError:
                pass
            else:
                _, responses = await self._fetched(request)
        return response(request, session_id=0, responses=responses)

    async def _fetched(self, request: Request) -> tuple[bool, tuple[Any, ...]]:
        """Return whether there is something to send at once, and what there is of each partition."""
        left, at_once, topics = min(request.body.max_bytes, _MOST_BYTES), False, []
        for topic in request.body.topics:
            partitions = []
            for asked in topic.partitions:
                # At least one batch of the first partition that has some, however long it is.
                budget = min(asked.partition_max_bytes, left) if left > 0 else 0
                found = await self._partition_data(request, topic.topic, asked, budget, forced=not at_once)
                at_once = at_once or bool(found.records) or found.error_code is not ErrorCode.none
                left -= len(found.records or b"")
                partitions.append(found)
            topics.append(
                part(request, "FetchableTopicResponse", topic=topic.topic, partitions=tuple(partitions))
            )
        return at_once, tuple(topics)

    async def _partition_data(
        self, request: Request, topic: str, asked: Any, max_bytes: int, *, forced: bool
    ) -> Any:
        partition = self._partition(request, topic, asked.partition)
        committed = request.body.isolation_level == _READ_COMMITTED
        error, records, aborted = ErrorCode.none, b"", None
        start = end = stable = UNDEFINED
        if partition is None:
            error = UNKNOWN
        else:
            start, end, offset = partition.start, partition.end, asked.fetch_offset
            stable = end
            if not start <= offset <= end:
                error = ErrorCode.offset_out_of_range
            elif max_bytes > 0 or forced:
                with self._failures(topic, asked.partition) as failed:
                    if committed:
                        transactions = await self._reader.transactions(partition)
                        stable, aborted = transactions.stable_at(offset), ()
                    records = bytes(await self._reader.batches(partition, offset, stable, max_bytes))
                    if committed and records:
                        last = min(stable, end)
                        aborted = tuple(
                            part(
                                request,
                                "AbortedTransaction",
                                producer_id=one.producer_id,
                                first_offset=one.first_offset,
                            )
                            for one in transactions.within(offset, last)
                        )
                if failed:
                    error, records = ErrorCode.kafka_storage_error, b""
        return part(
            request,
            "PartitionData",
            partition_index=asked.partition,
            error_code=error,
            high_watermark=end,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=aborted,
            records=records,
        )

    async def _list_offsets(self, request: Request) -> bytes:
        topics = []
        for topic in request.body.topics:
            partitions = []
            for asked in topic.partitions:
                error, offset, timestamp = await self._offset(request, topic.name, asked)
                partitions.append(
                    part(
                        request,
                        "ListOffsetsPartitionResponse",
                        partition_index=asked.partition_index,
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

    async def _offset(self, request: Request, topic: str, asked: Any) -> tuple[ErrorCode, int, int]:
        partition = self._partition(request, topic, asked.partition_index)
        if partition is None:
            return UNKNOWN, UNDEFINED, UNDEFINED
        if asked.timestamp == _EARLIEST:
            return ErrorCode.none, partition.start, UNDEFINED
        found: tuple[int, int] | None = None
        with self._failures(topic, asked.partition_index) as failed:
            if asked.timestamp >= 0:
                found = await self._reader.offset_at(partition, asked.timestamp)
            elif getattr(request.body, "isolation_level", 0) == _READ_COMMITTED:
                found = (await self._reader.transactions(partition)).stable_at(partition.end), UNDEFINED
            else:
                found = partition.end, UNDEFINED
        if failed:
            return ErrorCode.kafka_storage_error, UNDEFINED, UNDEFINED
        return ErrorCode.none, *(found or (UNDEFINED, UNDEFINED))

    async def _offset_for_leader_epoch(self, request: Request) -> bytes:
        topics = tuple(
            part(
                request,
                "OffsetForLeaderTopicResult",
                topic=topic.topic,
                partitions=tuple(
                    part(
                        request,
                        "EpochEndOffset",
                        error_code=ErrorCode.none,
                        partition=one.partition,
                        leader_epoch=UNDEFINED,
                        end_offset=UNDEFINED,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.body.topics
        )
        return response(request, topics=topics)

    @contextmanager
    def _failures(self, topic: str, number: int) -> Iterator[list[str]]:
        """Log what keeps records from being served; the list has it then."""
        failed: list[str] = []
        try:
            yield failed
        except StorageEngineError as error:
            failed.append(str(error))
            self._log_once(f"{topic}-{number} is not served: {error}")

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            self._log(line)
