"""What requests of consumer groups are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from kio.schema.errors import ErrorCode

from storage_engine.lake_server.archived_partitions import ArchivedPartition
from storage_engine.lake_server.groups import GroupCoordinator
from storage_engine.lake_server.logs import UNDEFINED, Logs
from storage_engine.lake_server.positions import CommittedPositions, Position
from storage_engine.lake_server.protocol import Frame, Request, part, parts_by_topic, response
from storage_engine.lake_server.upstream import Upstream, UpstreamError

NODE_ID: Final = 0
UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
FORWARDED: Final = frozenset(
    {"join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "offset_fetch"}
    | {"describe_groups"}
)
_SYNC = timedelta(minutes=5)
"""How long members may wait for the partitions that their leader assigns (max.poll.interval.ms)."""
_RETENTION_SECONDS = 7 * 24 * 3600.0
"""After so long without a use a group's positions are dropped (offsets.retention.minutes)."""


class GroupAnswers:
    """Answers requests of groups.

    :param cluster: the id that clients are told.
    :param upstream: where groups that never committed here have their positions; None: nowhere.
    :param address: what clients are told to connect to, as host and port.
    :param are_groups_upstream: groups are at the cluster, with their real coordinators.
    """

    def __init__(
        self,
        cluster: str,
        logs: Logs,
        upstream: Upstream | None,
        positions: CommittedPositions,
        address: tuple[str, int],
        *,
        are_groups_upstream: bool = False,
    ) -> None:
        self._cluster, self._logs, self._upstream = cluster, logs, upstream
        self._positions, self._address = positions, address
        self._are_groups_upstream = are_groups_upstream
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

    async def _find_coordinator(self, request: Request) -> Frame:
        host, port = self._address
        of_groups = getattr(request.body, "key_type", 0) == 0
        error = ErrorCode.none if of_groups else ErrorCode.coordinator_not_available
        return response(request, error_code=error, error_message=None, node_id=NODE_ID, host=host, port=port)

    async def _forwarded(self, request: Request, upstream: Upstream) -> Frame | None:
        """Return what a group's real coordinator answers; None: it can't be asked.

        Clients aren't told its address: some ask any broker that they know where to fetch.
        """
        body = request.body
        if request.name in ("offset_commit", "offset_fetch"):
            others = sorted({one.name for one in body.topics or () if self._logs.is_other(one.name)})
            if others:
                # The cluster would take positions in the lake's topic for those in its own.
                self._logs.log_once(
                    f"group {body.group_id}: stays as it is: the cluster has another topic {others[0]}"
                )
                return await self._offset_commit(request) if request.name == "offset_commit" else None
        group = body.groups[0] if request.name == "describe_groups" else body.group_id
        waits = getattr(body, "rebalance_timeout", timedelta()) if request.name == "join_group" else _SYNC
        try:
            return Frame([await upstream.forward(group, request.data, waits.total_seconds())])
        except UpstreamError as failure:
            self._logs.log_once(str(failure))
            return None

    async def _join_group(self, request: Request) -> Frame:
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

    async def _sync_group(self, request: Request) -> Frame:
        error, assignment = await self.groups.sync(request.body)
        return response(request, error_code=error, assignment=assignment)

    async def _heartbeat(self, request: Request) -> Frame:
        return response(request, error_code=self.groups.heartbeat(request.body))

    async def _consumer_group_heartbeat(self, request: Request) -> Frame:
        why = "expected group.protocol=classic, found group.protocol=consumer, which serve-lake doesn't have"
        self._logs.log_once(f"client {request.host}: group {request.body.group_id}: {why}")
        return response(
            request,
            error_code=ErrorCode.unsupported_version,
            error_message=why,
            member_id=None,
            member_epoch=0,
            heartbeat_interval=timedelta(seconds=5),
            assignment=None,
        )

    async def _leave_group(self, request: Request) -> Frame:
        return response(request, error_code=self.groups.leave(request.body))

    async def _list_groups(self, request: Request) -> Frame:
        if self._are_groups_upstream:
            return response(request, error_code=ErrorCode.coordinator_not_available, groups=())
        names = {*self.groups.groups, *self._positions.groups}
        found = []
        for name in sorted(names):
            group = self.groups.groups.get(name)
            kind = group.protocol_type if group else "consumer"
            found.append(part(request, "ListedGroup", group_id=name, protocol_type=kind))
        return response(request, groups=tuple(found))

    async def _describe_groups(self, request: Request) -> Frame:
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

    async def _offset_commit(self, request: Request) -> Frame:
        body = request.body
        error = self.groups.may_commit(body)
        kept: dict[tuple[str, int], Position] = {}
        for topic in body.topics:
            for one in topic.partitions:
                is_here = self._partition(request, topic.name, one.partition_index) is not None
                if is_here and not self._are_groups_upstream:
                    kept[topic.name, one.partition_index] = (one.committed_offset, one.committed_metadata)
        if kept and error is ErrorCode.none:
            try:
                async with self._commits:
                    await asyncio.to_thread(self._positions.commit, body.group_id, kept)
                    self._used[body.group_id] = monotonic()
            except OSError:
                error = ErrorCode.kafka_storage_error

        def committed(name: str, one: Any) -> Any:
            number = one.partition_index
            code = error if (name, number) in kept else UNKNOWN
            kind = "OffsetCommitResponsePartition"
            return part(request, kind, partition_index=number, error_code=code)

        topics = parts_by_topic(request, "OffsetCommitResponseTopic", body.topics, committed)
        return response(request, topics=topics)

    async def _offset_fetch(self, request: Request) -> Frame:
        body, visible, error = request.body, self._topics(request), ErrorCode.none
        self._used[body.group_id] = monotonic()
        own = self._positions.groups.get(body.group_id, {})
        known = {(name, number): at for name, numbers in own.items() for number, at in numbers.items()}
        asked = (
            None if body.topics is None else {one.name: list(one.partition_indexes) for one in body.topics}
        )
        try:
            known = await self._of_cluster(body.group_id, asked, known) | known
        except UpstreamError as failure:
            self._logs.log_once(str(failure))
            error = ErrorCode.coordinator_load_in_progress
        if asked is None:
            asked = {}
            for name, number in sorted(known):
                asked.setdefault(name, []).append(number)
        topics = tuple(
            part(
                request,
                "OffsetFetchResponseTopic",
                name=name,
                partitions=tuple(
                    _position(request, number, error, known.get((name, number)) if name in visible else None)
                    for number in numbers
                ),
            )
            for name, numbers in asked.items()
            if name in visible or body.topics is not None
        )
        return response(request, error_code=error, topics=topics)

    async def _of_cluster(
        self, group: str, asked: Mapping[str, Sequence[int]] | None, known: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], Position]:
        """Return the positions at the cluster of partitions for which a group never committed here.

        :param asked: None: whatever it has.
        :raises UpstreamError: the cluster doesn't answer.
        """
        missing = asked
        if asked is not None:
            missing = {
                name: left
                for name, numbers in asked.items()
                if (left := [one for one in numbers if (name, one) not in known])
                and any(self._logs.is_same((name, one)) for one in left)
            }
        if self._upstream is None or missing == {}:
            return {}
        found = {}
        for place, position in (await self._upstream.positions(group, missing)).items():
            if place not in known and self._logs.is_same(place):
                found[place] = position
                self._logs.log_once(
                    f"group {group}: begins in {place[0]}-{place[1]} at offset {position[0]}, its position "
                    "at the cluster"
                )
        return found

    def _topics(self, request: Request) -> Mapping[str, Mapping[int, ArchivedPartition]]:
        return request.login.visible(self._logs.topics)

    def _partition(self, request: Request, topic: str, number: int) -> ArchivedPartition | None:
        return self._topics(request).get(topic, {}).get(number)


def _position(request: Request, number: int, error: ErrorCode, known: Position | None) -> Any:
    offset, note = known or (UNDEFINED, "")
    return part(
        request,
        "OffsetFetchResponsePartition",
        partition_index=number,
        committed_offset=offset,
        committed_leader_epoch=UNDEFINED,
        metadata=note,
        error_code=error,
    )
