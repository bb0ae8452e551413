"""What requests for topics and records are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from storage_engine.lake_server.group_answers import FORWARDED, NODE_ID, UNKNOWN, GroupAnswers
from storage_engine.lake_server.logs import UNDEFINED, PartitionRecords
from storage_engine.lake_server.protocol import APIS, Frame, Request, part, parts_by_topic, response
from storage_engine.lake_server.segment_batches import has_zstd
from storage_engine.lake_server.upstream import FetchLimits, PartitionFetch, PartitionKey
from storage_engine.lake_server.users import MECHANISMS, LoginError

_TOPIC_RESOURCE = 2
_MOST_BYTES = 55 << 20
"""Of one answer, however much is asked for; as a broker's fetch.max.bytes."""
_LONGEST_WAIT_SECONDS = 30.0
_FETCH_OF_ZSTD = 10
"""Clients that fetch by earlier versions know no zstd (KIP-110)."""


class Answers(GroupAnswers):
    """Answers requests of clients.

    :param address: what clients are told to connect to, as host and port.
    """

    async def answer(self, request: Request) -> Frame | None:
        """Return the response to a request.

        :return: None: the client asked for none, and its connection has to be closed.
        """
        if self._are_groups_upstream and self._upstream is not None and request.name in FORWARDED:
            return await self._forwarded(request, self._upstream)
        handle: Callable[[Request], Awaitable[Frame | None]] = getattr(self, f"_{request.name}")
        return await handle(request)

    async def _api_versions(self, request: Request) -> Frame:
        keys = tuple(
            part(request, "ApiVersion", api_key=key, min_version=lowest, max_version=highest)
            for key, (_, lowest, highest) in APIS.items()
        )
        known = request.version >= 0
        error = ErrorCode.none if known else ErrorCode.unsupported_version
        return response(request, error_code=error, api_keys=keys)

    async def _sasl_handshake(self, request: Request) -> Frame:
        may = request.login.begin(request.body.mechanism)
        error = ErrorCode.none if may else ErrorCode.unsupported_sasl_mechanism
        return response(request, error_code=error, mechanisms=MECHANISMS)

    async def _sasl_authenticate(self, request: Request) -> Frame:
        try:
            # Keys are made of a password, thousands of times over.
            told = await asyncio.to_thread(request.login.go_on, bytes(request.body.auth_bytes))
        except LoginError as error:
            self._logs.log_once(f"client {request.host}: {error}")
            failed = ErrorCode.sasl_authentication_failed
            return response(request, error_code=failed, error_message=str(error), auth_bytes=b"")
        return response(request, error_message=None, auth_bytes=told)

    async def _metadata(self, request: Request) -> Frame:
        topics = self._topics(request)
        asked = topics if request.body.topics is None else {one.name: None for one in request.body.topics}
        host, port = self._address
        broker = part(request, "MetadataResponseBroker", node_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request,
            brokers=(broker,),
            cluster_id=self._cluster,
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

    async def _describe_cluster(self, request: Request) -> Frame:
        host, port = self._address
        broker = part(request, "DescribeClusterBroker", broker_id=NODE_ID, host=host, port=port, rack=None)
        return response(
            request,
            error_message=None,
            cluster_id=self._cluster,
            controller_id=NODE_ID,
            brokers=(broker,),
        )

    async def _describe_configs(self, request: Request) -> Frame:
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

    async def _produce(self, request: Request) -> Frame | None:
        if request.body.acks == 0:
            return None

        def refused(_: str, one: Any) -> Any:
            return part(
                request,
                "PartitionProduceResponse",
                index=one.index,
                error_code=ErrorCode.topic_authorization_failed,
                base_offset=UNDEFINED,
                log_append_time=None,
            )

        topics = parts_by_topic(request, "TopicProduceResponse", request.body.topic_data, refused)
        return response(request, responses=topics)

    async def _fetch(self, request: Request) -> Frame:
        body = request.body
        wanted = {
            (topic.topic, one.partition): PartitionFetch(
                (topic.topic, one.partition), one.fetch_offset, one.partition_max_bytes
            )
            for topic in body.topics
            for one in topic.partitions
            if self._partition(request, topic.topic, one.partition) is not None
        }
        seconds = min(body.max_wait.total_seconds(), _LONGEST_WAIT_SECONDS)
        limits = FetchLimits(
            body.isolation_level,
            min(body.max_bytes, _MOST_BYTES),
            body.min_bytes,
            seconds if len(wanted) == sum(len(topic.partitions) for topic in body.topics) else 0.0,
        )
        got = dict(zip(wanted, await self._logs.fetch(list(wanted.values()), limits), strict=True))
        if request.version < _FETCH_OF_ZSTD:
            got = {place: self._without_zstd(request, place, one) for place, one in got.items()}

        def fetched(name: str, one: Any) -> Any:
            found = got.get((name, one.partition), PartitionRecords(UNKNOWN))
            return _partition_data(request, one.partition, found)

        topics = parts_by_topic(request, "FetchableTopicResponse", body.topics, fetched)
        return response(request, session_id=0, responses=topics)

    def _without_zstd(self, request: Request, place: PartitionKey, got: PartitionRecords) -> PartitionRecords:
        if not has_zstd(got.records):
            return got
        self._logs.log_once(
            f"client {request.host}: {place[0]}-{place[1]}: expected Fetch {_FETCH_OF_ZSTD} or later for "
            f"batches of zstd, found {request.version}. Use a client of Kafka 2.1 or later."
        )
        return replace(got, error=ErrorCode.unsupported_compression_type, records=b"")

    async def _list_offsets(self, request: Request) -> Frame:
        level = getattr(request.body, "isolation_level", 0)
        topics = []
        for topic in request.body.topics:
            partitions = []
            for asked in topic.partitions:
                error, offset, timestamp = UNKNOWN, UNDEFINED, UNDEFINED
                if self._partition(request, topic.name, asked.partition_index) is not None:
                    place = topic.name, asked.partition_index
                    error, offset, timestamp = await self._logs.offset_of(place, asked.timestamp, level)
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

    async def _offset_for_leader_epoch(self, request: Request) -> Frame:
        def unknown(_: str, one: Any) -> Any:
            return part(
                request,
                "EpochEndOffset",
                error_code=ErrorCode.none,
                partition=one.partition,
                leader_epoch=UNDEFINED,
                end_offset=UNDEFINED,
            )

        topics = parts_by_topic(request, "OffsetForLeaderTopicResult", request.body.topics, unknown)
        return response(request, topics=topics)


def _partition_data(request: Request, number: int, got: PartitionRecords) -> Any:
    aborted = got.aborted
    return part(
        request,
        "PartitionData",
        partition_index=number,
        error_code=got.error,
        high_watermark=got.end,
        last_stable_offset=got.stable,
        log_start_offset=got.start,
        aborted_transactions=None
        if aborted is None
        else tuple(
            part(request, "AbortedTransaction", producer_id=producer_id, first_offset=first_offset)
            for producer_id, first_offset in aborted
        ),
        records=got.records,
    )
