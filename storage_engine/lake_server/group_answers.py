"""The classic group protocol: members, generations, assignments and committed positions.

The leader of a group assigns the partitions. The coordinator only passes the assignments on to the members of
a generation. See Kafka's GroupCoordinator, KIP-62, KIP-345 for static members, and KIP-394 for known member
ids.

Positions that consumer groups committed to this server can be given back to the cluster. Before that, the
cluster's own positions are recorded in the file of committed positions. A position is committed to the
cluster only if the cluster still has the recorded position. So a group that has continued at the cluster is
never set back, even after a kill.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from storage_engine.core.durable import open_lock, write_file
from storage_engine.exceptions import BadInputError
from storage_engine.lake_server.archived_partitions import Archive, ArchivedPartition
from storage_engine.lake_server.partition_logs import UNDEFINED, Logs
from storage_engine.lake_server.protocol import Frame, Request, part, parts_by_topic, response
from storage_engine.lake_server.upstream import PartitionKey, Upstream, UpstreamError

Position = tuple[int, str | None]
"""The next offset to read, and the client's metadata for it."""
Positions = dict[str, dict[str, dict[int, Position]]]
"""Positions by group, topic and partition."""


class CommittedPositions:
    """The file of committed positions. Only one server can use it at a time.

    :ivar groups: positions that groups committed here.
    :ivar given_back: the cluster's positions of groups that are being given back.
    :param path: the file's path. The first commit creates the file.
    :raises BadInputError: another server uses the file, it has other content, or its directory is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.parent.is_dir():
            # Its disk may not be mounted. Without their positions, groups would begin at other offsets.
            raise BadInputError(
                f"{path.parent}: expected the directory of the positions of groups, found none. Nothing was "
                "started. Mount its disk, or name another file by --positions."
            )
        self._lock = open_lock(path.with_name(f"{path.name}.lock"))
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadInputError(
                f"{path}: expected a file that no other server uses, found that another server locked it. "
                "Nothing was started. Name another file by --positions."
            ) from None
        try:
            self.groups, self.given_back = self._read()
        except BadInputError:
            self.close()
            raise

    def of(self, group: str, topic: str, partition: int) -> Position | None:
        """Return a group's committed position in a partition, or None."""
        return self.groups.get(group, {}).get(topic, {}).get(partition)

    def commit(self, group: str, positions: dict[tuple[str, int], Position]) -> None:
        """Store a group's positions durably.

        :raises OSError: the positions can't be written. Earlier commits stay.
        """
        of_group = {topic: dict(numbers) for topic, numbers in self.groups.get(group, {}).items()}
        for (topic, partition), position in positions.items():
            of_group.setdefault(topic, {})[partition] = position
        # A giving back that was begun with the earlier positions must begin again.
        self._write({**self.groups, group: of_group}, _without_groups(self.given_back, {group}))

    def drop(self, groups: Collection[str]) -> None:
        """Remove the positions of groups durably.

        :raises OSError: the file can't be written. All positions stay.
        """
        self._write(_without_groups(self.groups, groups), _without_groups(self.given_back, groups))

    def begin_giving_back(self, group: str, of_cluster: dict[str, dict[int, Position]]) -> None:
        """Store the cluster's positions of a group durably, before the group's positions are given back.

        :raises OSError: the file can't be written.
        """
        self._write(self.groups, {**self.given_back, group: of_cluster})

    def _write(self, groups: Positions, given_back: Positions) -> None:
        content = {"version": 1, "groups": groups, "given_back": given_back}
        write_file(self._path, json.dumps(content).encode())
        self.groups, self.given_back = groups, given_back

    def close(self) -> None:
        """Unlock the file for another server."""
        os.close(self._lock)

    def _read(self) -> tuple[Positions, Positions]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}, {}
        try:
            content: Any = json.loads(text)
            if content["version"] != 1:
                raise ValueError(f"version {content['version']}")
            return _parse_positions(content["groups"]), _parse_positions(content.get("given_back", {}))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"{self._path}: expected the positions of groups in version 1, found something else: "
                f"{error}. Nothing was started or changed. Name another file by --positions."
            ) from error


def _parse_positions(groups: Any) -> Positions:
    return {
        group: {
            topic: {int(number): (int(offset), note) for number, (offset, note) in of_topic.items()}
            for topic, of_topic in topics.items()
        }
        for group, topics in groups.items()
    }


def _by_partition(positions: Mapping[str, Mapping[int, Position]]) -> dict[PartitionKey, Position]:
    return {(name, number): at for name, numbers in positions.items() for number, at in numbers.items()}


def _without_groups(positions: Positions, groups: Collection[str]) -> Positions:
    return {name: kept for name, kept in positions.items() if name not in groups}


async def give_back(
    archive: Archive, upstream: Upstream, positions: CommittedPositions, tell: Callable[[str], None]
) -> bool:
    """Commit the positions of groups without members to the cluster, and remove them here.

    :param tell: called with lines about the outcome for each group.
    :return: whether every group was given back.
    :raises BadInputError: the lake is of another cluster.
    :raises UpstreamError: the cluster doesn't answer.
    :raises OSError: the file of positions can't be written.
    """
    await upstream.connect()
    is_complete = True
    for group in sorted(positions.groups):
        try:
            is_complete = await _give_back(group, archive, upstream, positions, tell) and is_complete
        except UpstreamError as error:
            is_complete = False
            tell(f"group {group}: stays here: {error}. Stop its members. Then give it back again.")
    return is_complete


async def _give_back(
    group: str,
    archive: Archive,
    upstream: Upstream,
    positions: CommittedPositions,
    tell: Callable[[str], None],
) -> bool:
    committed = _by_partition(positions.groups[group])
    foreign = sorted({name for name, number in committed if not _is_same(archive, upstream, (name, number))})
    if foreign:
        tell(
            f"group {group}: stays here: the cluster lacks {', '.join(foreign)}, or has other topics of "
            "that name"
        )
        return False
    numbers = {name: sorted(of_topic) for name, of_topic in positions.groups[group].items()}
    at_cluster = await upstream.positions(group, numbers)
    if group not in positions.given_back:
        before: dict[str, dict[int, Position]] = {}
        for (name, number), position in at_cluster.items():
            before.setdefault(name, {})[number] = position
        positions.begin_giving_back(group, before)
    begun = _by_partition(positions.given_back[group])
    kept = {
        place: position for place, position in committed.items() if at_cluster.get(place) == begun.get(place)
    }
    if kept:
        await upstream.commit(group, kept)
    positions.drop([group])
    for place, position in sorted(committed.items()):
        at = position[0] if place in kept else at_cluster[place][0] if place in at_cluster else None
        since = "" if place in kept else ", which it has committed at the cluster meanwhile"
        tell(f"group {group}: goes on in {place[0]}-{place[1]} at offset {at}{since}")
    return True


def _is_same(archive: Archive, upstream: Upstream, place: PartitionKey) -> bool:
    topic = upstream.view.topics.get(place[0])
    of_lake = next(iter(archive.topics.get(place[0], {}).values()), None)
    is_same = topic is not None and (of_lake is None or of_lake.topic_id == topic.id_text)
    return is_same and topic is not None and place[1] in topic.leaders


EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
_FIRST_WAIT_SECONDS = 0.5
"""How long the first member of an empty group waits for others (group.initial.rebalance.delay.ms)."""
_LOOK_SECONDS = 0.25
_ID_LETTERS = 200
_SESSION_SECONDS = (1.0, 1800.0)
"""Shortest and longest session timeout of a member (group.max.session.timeout.ms)."""


class Joined(NamedTuple):
    """The answer to a joining member: its group's new generation, or an error."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: tuple[Member, ...] = ()


class Synced(NamedTuple):
    """The answer to a syncing member: its partitions, or an error."""

    error: ErrorCode
    assignment: bytes = b""


@dataclass(eq=False)
class Member:
    """A member of a group.

    :param protocols: the member's metadata, by the protocol's name.
    :param seen: monotonic time of the member's last request, in seconds.
    """

    id: str
    instance_id: str | None
    client_id: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: dict[str, bytes]
    assignment: bytes = b""
    seen: float = field(default_factory=monotonic)
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[Synced] | None = None


@dataclass(eq=False)
class ConsumerGroup:
    """A group with its members.

    :param known_ids: ids for new members, and the monotonic time in seconds until which each is valid.
    :param until: monotonic time at which a rebalance continues without missing members, in seconds.
    """

    name: str
    protocol_type: str = ""
    protocol: str = ""
    state: str = EMPTY
    generation: int = 0
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    known_ids: dict[str, float] = field(default_factory=dict)
    until: float = 0.0


class GroupCoordinator:
    """The groups of a server. It is used in one event loop only."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}

    async def watch(self) -> None:
        """Remove members whose session has timed out, and end due rebalances. Run until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = monotonic()
            for group in list(self.groups.values()):
                expired = [
                    member
                    for member in group.members.values()
                    if member.joining is None
                    and member.syncing is None
                    and now - member.seen > member.session_seconds
                ]
                for member in expired:
                    self._remove(group, member)
                if group.state == PREPARING:
                    self._complete_if_due(group)
                group.known_ids = {name: until for name, until in group.known_ids.items() if now < until}
                if not group.members and not group.known_ids:
                    del self.groups[group.name]

    async def join(self, request: Any, client_id: str, host: str, *, ask_for_id: bool) -> Joined:
        """Add a member to a group, and wait until the group has a new generation.

        :param ask_for_id: whether a new member first gets an id, and must join again with it.
        """
        if not request.group_id:
            return Joined(ErrorCode.invalid_group_id, request.member_id)
        if not _SESSION_SECONDS[0] <= _timeouts(request)[0] <= _SESSION_SECONDS[1]:
            return Joined(ErrorCode.invalid_session_timeout, request.member_id)
        group = self.groups.setdefault(request.group_id, ConsumerGroup(request.group_id))
        protocols = {str(protocol.name): bytes(protocol.metadata) for protocol in request.protocols}
        if not self._has_common_protocol(group, request, protocols):
            return Joined(ErrorCode.inconsistent_group_protocol, request.member_id)
        instance_id = getattr(request, "group_instance_id", None)
        member_id = request.member_id
        same = _find_instance(group, instance_id)
        if not member_id:
            member_id = f"{(instance_id or client_id)[:_ID_LETTERS]}-{uuid.uuid4()}"
            if ask_for_id and instance_id is None:
                group.known_ids[member_id] = monotonic() + _timeouts(request)[0]
                return Joined(ErrorCode.member_id_required, member_id)
            if same is not None:
                # A restarted static member replaces its old self.
                self._forget(group, same, ErrorCode.fenced_instance_id)
                if not group.members:
                    group.state = EMPTY
        elif member_id not in group.members and member_id not in group.known_ids:
            return Joined(ErrorCode.unknown_member_id, member_id)
        elif same is not None and same.id != member_id:
            return Joined(ErrorCode.fenced_instance_id, member_id)
        group.known_ids.pop(member_id, None)
        member = group.members.get(member_id)
        if member is None:
            member = group.members[member_id] = Member(
                member_id, instance_id, client_id, host, *_timeouts(request), protocols
            )
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(Joined(ErrorCode.rebalance_in_progress, member_id))
        member.protocols, member.seen = protocols, monotonic()
        member.session_seconds, member.rebalance_seconds = _timeouts(request)
        group.protocol_type = request.protocol_type
        waiting: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        member.joining = waiting
        self._prepare(group)
        self._complete_if_due(group)
        return await waiting

    async def sync(self, request: Any) -> Synced:
        """Wait until the leader has assigned the partitions, and return the member's partitions."""
        group, member, error = self._member(request)
        if group is None or member is None:
            return Synced(error)
        if group.state == PREPARING:
            return Synced(ErrorCode.rebalance_in_progress)
        if group.state == STABLE:
            return Synced(ErrorCode.none, member.assignment)
        waiting: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        member.syncing = waiting
        if member.id == group.leader:
            assignments = {item.member_id: bytes(item.assignment) for item in request.assignments}
            group.state = STABLE
            for peer in group.members.values():
                peer.assignment = assignments.get(peer.id, b"")
                _answer_sync(peer, Synced(ErrorCode.none, peer.assignment))
        return await waiting

    def heartbeat(self, request: Any) -> ErrorCode:
        """Return an error code: none if a member may stay, another if it must join again."""
        group, _, error = self._member(request)
        if group is not None and group.state == PREPARING:
            return ErrorCode.rebalance_in_progress
        return error

    def leave(self, request: Any) -> ErrorCode:
        group = self.groups.get(request.group_id)
        member = group.members.get(request.member_id) if group else None
        if group is None or member is None:
            return ErrorCode.unknown_member_id
        self._remove(group, member)
        return ErrorCode.none

    def may_commit(self, request: Any) -> ErrorCode:
        """Return an error code: none for the current generation's members and for a group without members."""
        group = self.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if generation < 0 and not request.member_id and (group is None or not group.members):
            return ErrorCode.none
        return self._member(request, generation)[2]

    def _member(
        self, request: Any, generation: int | None = None
    ) -> tuple[ConsumerGroup | None, Member | None, ErrorCode]:
        group = self.groups.get(request.group_id)
        member = group.members.get(request.member_id) if group else None
        instance_id = getattr(request, "group_instance_id", None)
        if group is None or member is None:
            fenced = group is not None and _find_instance(group, instance_id) is not None
            return None, None, ErrorCode.fenced_instance_id if fenced else ErrorCode.unknown_member_id
        if (request.generation_id if generation is None else generation) != group.generation:
            return None, None, ErrorCode.illegal_generation
        member.seen = monotonic()
        return group, member, ErrorCode.none

    def _has_common_protocol(self, group: ConsumerGroup, request: Any, protocols: dict[str, bytes]) -> bool:
        others = [member for member in group.members.values() if member.id != request.member_id]
        if not protocols or not request.protocol_type:
            return False
        if not others:
            return True
        return group.protocol_type == request.protocol_type and bool(
            _common_protocols([*others], set(protocols))
        )

    def _prepare(self, group: ConsumerGroup) -> None:
        if group.state == PREPARING:
            return
        wait = max(member.rebalance_seconds for member in group.members.values())
        group.until = monotonic() + (_FIRST_WAIT_SECONDS if group.state == EMPTY else wait)
        # Members that wait for partitions of the old generation must join again.
        for member in group.members.values():
            _answer_sync(member, Synced(ErrorCode.rebalance_in_progress))
        group.state = PREPARING

    def _complete_if_due(self, group: ConsumerGroup) -> None:
        is_first = not group.generation or not group.leader
        missing = [member for member in group.members.values() if member.joining is None]
        if monotonic() < group.until and (missing or is_first):
            return
        for member in missing:
            self._forget(group, member, ErrorCode.unknown_member_id)
        if not group.members:
            group.state, group.leader = EMPTY, ""
            return
        group.generation += 1
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        leader = group.members[group.leader]
        common = _common_protocols(list(group.members.values()), set(leader.protocols))
        group.protocol = next(name for name in leader.protocols if name in common)
        group.state = COMPLETING
        members = tuple(group.members.values())
        for member in members:
            waiting, member.joining, member.seen = member.joining, None, monotonic()
            shown = members if member is leader else ()
            joined = Joined(ErrorCode.none, member.id, group.generation, group.protocol, group.leader, shown)
            if waiting is not None and not waiting.done():
                waiting.set_result(joined)

    def _remove(self, group: ConsumerGroup, member: Member) -> None:
        self._forget(group, member, ErrorCode.unknown_member_id)
        if not group.members:
            group.state, group.leader = EMPTY, ""
            group.generation += 1
            return
        self._prepare(group)
        self._complete_if_due(group)

    @staticmethod
    def _forget(group: ConsumerGroup, member: Member, error: ErrorCode) -> None:
        group.members.pop(member.id, None)
        if group.leader == member.id:
            group.leader = next(iter(group.members), "")
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(Joined(error, member.id))
        _answer_sync(member, Synced(error))


def _find_instance(group: ConsumerGroup, instance_id: str | None) -> Member | None:
    """Return the member with this instance id, or None if there is no such member or the id is None."""
    same = (member for member in group.members.values() if member.instance_id == instance_id)
    return None if instance_id is None else next(same, None)


def _answer_sync(member: Member, answer: Synced) -> None:
    waiting, member.syncing = member.syncing, None
    if waiting is not None and not waiting.done():
        waiting.set_result(answer)


def _timeouts(request: Any) -> tuple[float, float]:
    return request.session_timeout.total_seconds(), request.rebalance_timeout.total_seconds()


def _common_protocols(members: Sequence[Member], names: set[str]) -> set[str]:
    return names.intersection(*(member.protocols for member in members)) if members else names


NODE_ID: Final = 0
UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
FORWARDED: Final = frozenset(
    {"join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "offset_fetch"}
    | {"describe_groups"}
)
_SYNC = timedelta(minutes=5)
"""How long members may wait for their leader's assignment (max.poll.interval.ms)."""
_RETENTION_SECONDS = 7 * 24 * 3600.0
"""Seconds after which the positions of an unused group are dropped (offsets.retention.minutes)."""


class GroupAnswers:
    """Answers requests of consumer groups.

    :param upstream: the cluster with the positions of groups that never committed here, or None.
    :param address: host and port to which clients connect.
    :param are_groups_upstream: whether groups stay at the cluster, with their real coordinators.
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
        """Drop the positions of groups that had no members for ``_RETENTION_SECONDS``.

        The time counts from a group's last use, or from this server's start.

        :param now: the monotonic time, in seconds.
        :return: the groups whose positions were dropped.
        :raises OSError: the file can't be written. Its content stays.
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
        """Return the answer of a group's real coordinator, or None if it can't be asked.

        Clients don't get the coordinator's address, because some fetch from any known broker, and so would
        bypass this server.
        """
        body = request.body
        if request.name in ("offset_commit", "offset_fetch"):
            others = sorted({topic.name for topic in body.topics or () if self._logs.is_other(topic.name)})
            if others:
                # The cluster would take positions in the lake's topic for positions in its own topic.
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
        # From version 4 on, a new member must join again with its id (KIP-394).
        joined = await self.groups.join(
            request.body, request.client_id, request.host, ask_for_id=request.version >= 4
        )
        members = tuple(
            part(
                request,
                "JoinGroupResponseMember",
                member_id=member.id,
                group_instance_id=member.instance_id,
                metadata=member.protocols[joined.protocol],
            )
            for member in joined.members
        )
        return response(
            request,
            error_code=joined.error,
            generation_id=joined.generation,
            protocol_name=joined.protocol,
            leader=joined.leader,
            member_id=joined.member_id,
            members=members,
        )

    async def _sync_group(self, request: Request) -> Frame:
        error, assignment = await self.groups.sync(request.body)
        return response(request, error_code=error, assignment=assignment)

    async def _heartbeat(self, request: Request) -> Frame:
        return response(request, error_code=self.groups.heartbeat(request.body))

    async def _consumer_group_heartbeat(self, request: Request) -> Frame:
        reason = (
            "expected group.protocol=classic, found group.protocol=consumer, which serve-lake doesn't support"
        )
        self._logs.log_once(f"client {request.host}: group {request.body.group_id}: {reason}")
        return response(
            request,
            error_code=ErrorCode.unsupported_version,
            error_message=reason,
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
        groups = []
        for name in sorted(names):
            group = self.groups.groups.get(name)
            kind = group.protocol_type if group else "consumer"
            groups.append(part(request, "ListedGroup", group_id=name, protocol_type=kind))
        return response(request, groups=tuple(groups))

    async def _describe_groups(self, request: Request) -> Frame:
        groups = []
        for name in request.body.groups:
            group = self.groups.groups.get(name)
            members = tuple(
                part(
                    request,
                    "DescribedGroupMember",
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.host,
                    member_metadata=member.protocols.get(group.protocol, b"") if group else b"",
                    member_assignment=member.assignment,
                )
                for member in (group.members.values() if group else ())
            )
            state = group.state if group else "Empty" if name in self._positions.groups else "Dead"
            groups.append(
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
        return response(request, groups=tuple(groups))

    async def _offset_commit(self, request: Request) -> Frame:
        body = request.body
        error = self.groups.may_commit(body)
        kept: dict[tuple[str, int], Position] = {}
        for topic in body.topics:
            for item in topic.partitions:
                is_here = self._partition(request, topic.name, item.partition_index) is not None
                if is_here and not self._are_groups_upstream:
                    kept[topic.name, item.partition_index] = (item.committed_offset, item.committed_metadata)
        if kept and error is ErrorCode.none:
            try:
                async with self._commits:
                    await asyncio.to_thread(self._positions.commit, body.group_id, kept)
                    self._used[body.group_id] = monotonic()
            except OSError:
                error = ErrorCode.kafka_storage_error

        def answer_part(name: str, partition: Any) -> Any:
            number = partition.partition_index
            code = error if (name, number) in kept else UNKNOWN
            return part(request, "OffsetCommitResponsePartition", partition_index=number, error_code=code)

        topics = parts_by_topic(request, "OffsetCommitResponseTopic", body.topics, answer_part)
        return response(request, topics=topics)

    async def _offset_fetch(self, request: Request) -> Frame:
        body, visible, error = request.body, self._topics(request), ErrorCode.none
        self._used[body.group_id] = monotonic()
        kept = _by_partition(self._positions.groups.get(body.group_id, {}))
        partitions = (
            None if body.topics is None else {it.name: list(it.partition_indexes) for it in body.topics}
        )
        try:
            kept = await self._ask_cluster(body.group_id, partitions, kept) | kept
        except UpstreamError as failure:
            self._logs.log_once(str(failure))
            error = ErrorCode.coordinator_load_in_progress
        if partitions is None:
            partitions = {}
            for name, number in sorted(kept):
                partitions.setdefault(name, []).append(number)
        topics = tuple(
            part(
                request,
                "OffsetFetchResponseTopic",
                name=name,
                partitions=tuple(
                    _position_part(
                        request, number, error, kept.get((name, number)) if name in visible else None
                    )
                    for number in numbers
                ),
            )
            for name, numbers in partitions.items()
            if name in visible or body.topics is not None
        )
        return response(request, error_code=error, topics=topics)

    async def _ask_cluster(
        self, group: str, partitions: Mapping[str, Sequence[int]] | None, keys: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], Position]:
        """Return a group's positions at the cluster, for partitions without a commit here.

        :param partitions: partitions by topic; None for all in which the group has a position.
        :param keys: partitions with a commit here.
        :raises UpstreamError: the cluster doesn't answer.
        """
        missing = partitions
        if partitions is not None:
            missing = {
                name: uncommitted
                for name, numbers in partitions.items()
                if (uncommitted := [number for number in numbers if (name, number) not in keys])
                and any(self._logs.is_same((name, number)) for number in uncommitted)
            }
        if self._upstream is None or missing == {}:
            return {}
        positions = {}
        for place, position in (await self._upstream.positions(group, missing)).items():
            if place not in keys and self._logs.is_same(place):
                positions[place] = position
                self._logs.log_once(
                    f"group {group}: begins in {place[0]}-{place[1]} at offset {position[0]}, its position "
                    "at the cluster"
                )
        return positions

    def _topics(self, request: Request) -> Mapping[str, Mapping[int, ArchivedPartition]]:
        return request.login.visible(self._logs.topics)

    def _partition(self, request: Request, topic: str, number: int) -> ArchivedPartition | None:
        return self._topics(request).get(topic, {}).get(number)


def _position_part(request: Request, number: int, error: ErrorCode, position: Position | None) -> Any:
    offset, note = position or (UNDEFINED, "")
    return part(
        request,
        "OffsetFetchResponsePartition",
        partition_index=number,
        committed_offset=offset,
        committed_leader_epoch=UNDEFINED,
        metadata=note,
        error_code=error,
    )
