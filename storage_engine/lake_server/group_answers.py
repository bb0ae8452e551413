"""What requests of consumer groups are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from kio.schema.errors import ErrorCode

from storage_engine.lake_server.archived_partitions import ArchivedPartition
from storage_engine.lake_server.groups import GroupCoordinator
from storage_engine.lake_server.positions import CommittedPositions, Position
from storage_engine.lake_server.protocol import Request, part, response
from storage_engine.lake_server.reader import LakeReader

NODE_ID: Final = 0
UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
UNDEFINED: Final = -1
_RETENTION_SECONDS = 7 * 24 * 3600.0
"""After so long without a use a group's positions are dropped (offsets.retention.minutes)."""


class GroupAnswers:
    """Answers requests of groups.

    :param address: what clients are told to connect to, as host and port.
    """

    def __init__(self, reader: LakeReader, positions: CommittedPositions, address: tuple[str, int]) -> None:
        self._reader, self._positions, self._address = reader, positions, address
        self._commits = asyncio.Lock()
        self.groups = GroupCoordinator()
        self._started = monotonic()
        self._used: dict[str, float] = {}

    async def drop_unused(self, now: float) -> list[str]:
        """Drop positions of groups without members, that were last used, or found at the start, long ago.

        :param now: on the monotonic clock, in seconds.
        :return: the groups.
        :raises OSError: the file can't be written; what it has stays.
        """
        async with self._commits:
            self._used |= {name: now for name, group in self.groups.groups.items() if group.members}
            self._used = {name: self._used.get(name, self._started) for name in self._positions.groups}
            unused = sorted(name for name, at in self._used.items() if now - at > _RETENTION_SECONDS)
            if unused:
                await asyncio.to_thread(self._positions.drop, unused)
        return unused

    async def _find_coordinator(self, request: Request) -> bytes:
        host, port = self._address
        of_groups = getattr(request.body, "key_type", 0) == 0
        error = ErrorCode.none if of_groups else ErrorCode.coordinator_not_available
        return response(request, error_code=error, error_message=None, node_id=NODE_ID, host=host, port=port)

    async def _join_group(self, request: Request) -> bytes:
        # Members are asked to come again with their id since version 4 (KIP-394).
        found = await self.groups.join(
            request.body, request.client_id, request.host, ask_for_id=request.version >= 4
        )
        members = tuple(
            part(
                request,
                "JoinGroupResponseMember",
                member_id=one.id,
                group_instance_id=one.instance_id,
                metadata=one.protocols[found.protocol],
            )
            for one in found.members
        )
        return response(
            request,
            error_code=found.error,
            generation_id=found.generation,
            protocol_name=found.protocol,
            leader=found.leader,
            member_id=found.member_id,
            members=members,
        )

    async def _sync_group(self, request: Request) -> bytes:
        error, assignment = await self.groups.sync(request.body)
        return response(request, error_code=error, assignment=assignment)

    async def _heartbeat(self, request: Request) -> bytes:
        return response(request, error_code=self.groups.heartbeat(request.body))

    async def _leave_group(self, request: Request) -> bytes:
        return response(request, error_code=self.groups.leave(request.body))

    async def _list_groups(self, request: Request) -> bytes:
        names = {*self.groups.groups, *self._positions.groups}
        found = []
        for name in sorted(names):
            group = self.groups.groups.get(name)
            kind = group.protocol_type if group else "consumer"
            found.append(part(request, "ListedGroup", group_id=name, protocol_type=kind))
        return response(request, groups=tuple(found))

    async def _describe_groups(self, request: Request) -> bytes:
        found = []
        for name in request.body.groups:
            group = self.groups.groups.get(name)
            members = tuple(
                part(
                    request,
                    "DescribedGroupMember",
                    member_id=one.id,
                    group_instance_id=one.instance_id,
                    client_id=one.client_id,
                    client_host=one.host,
                    member_metadata=one.protocols.get(group.protocol, b"") if group else b"",
                    member_assignment=one.assignment,
                )
                for one in (group.members.values() if group else ())
            )
            state = group.state if group else "Empty" if name in self._positions.groups else "Dead"
            found.append(
                part(
                    request,
                    "DescribedGroup",
                    error_code=ErrorCode.none,
                    group_id=name,
                    group_state=state,
                    protocol_type=group.protocol_type if group else "",
                    protocol_data=group.protocol if group else "",
                    members=members,
                )
            )
        return response(request, groups=tuple(found))

    async def _offset_commit(self, request: Request) -> bytes:
        body = request.body
        error = self.groups.may_commit(body)
        kept: dict[tuple[str, int], Position] = {}
        for topic in body.topics:
            for one in topic.partitions:
                if self._partition(request, topic.name, one.partition_index) is not None:
                    kept[topic.name, one.partition_index] = (one.committed_offset, one.committed_metadata)
        if kept and error is ErrorCode.none:
            try:
                async with self._commits:
                    await asyncio.to_thread(self._positions.commit, body.group_id, kept)
                    self._used[body.group_id] = monotonic()
            except OSError:
                error = ErrorCode.kafka_storage_error
        topics = tuple(
            part(
                request,
                "OffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(
                    part(
                        request,
                        "OffsetCommitResponsePartition",
                        partition_index=one.partition_index,
                        error_code=error if (topic.name, one.partition_index) in kept else UNKNOWN,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
        )
        return response(request, topics=topics)

    async def _offset_fetch(self, request: Request) -> bytes:
        body, visible = request.body, self._topics(request)
        self._used[body.group_id] = monotonic()
        if body.topics is None:
            of_group = self._positions.groups.get(body.group_id, {})
            asked = [(name, sorted(numbers)) for name, numbers in of_group.items() if name in visible]
        else:
            asked = [(one.name, list(one.partition_indexes)) for one in body.topics]
        topics = tuple(
            part(
                request,
                "OffsetFetchResponseTopic",
                name=name,
                partitions=tuple(self._position(request, body.group_id, name, number) for number in numbers),
            )
            for name, numbers in asked
        )
        return response(request, topics=topics)

    def _position(self, request: Request, group: str, topic: str, number: int) -> Any:
        known = (
            None
            if self._partition(request, topic, number) is None
            else self._positions.of(group, topic, number)
        )
        offset, note = known or (UNDEFINED, "")
        return part(
            request,
            "OffsetFetchResponsePartition",
            partition_index=number,
            committed_offset=offset,
            committed_leader_epoch=UNDEFINED,
            metadata=note,
            error_code=ErrorCode.none,
        )

    def _topics(self, request: Request) -> Mapping[str, Mapping[int, ArchivedPartition]]:
        return request.login.visible(self._reader.archive.topics)

    def _partition(self, request: Request, topic: str, number: int) -> ArchivedPartition | None:
        return self._topics(request).get(topic, {}).get(number)
