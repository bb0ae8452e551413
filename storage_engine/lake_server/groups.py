"""The classic group protocol: who is in a consumer group, and which partitions each member reads.

The leader of a group assigns the partitions; the coordinator only tells all of a generation from each other
(GroupCoordinator and KIP-62, KIP-345 for members with an id of their own, KIP-394 for known member ids).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
_FIRST_WAIT_SECONDS = 0.5
"""How long the first member of an empty group waits for others (group.initial.rebalance.delay.ms)."""
_LOOK_SECONDS = 0.25
_ID_LETTERS = 200
_SESSION_SECONDS = (1.0, 1800.0)
"""The shortest and the longest (group.max.session.timeout.ms)."""


class Joined(NamedTuple):
    """What a member is told when its group has a new generation."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol: str = ""
    leader: str = ""
    members: tuple[Member, ...] = ()


class Synced(NamedTuple):
    """What a member is told of its partitions."""

    error: ErrorCode
    assignment: bytes = b""


@dataclass(eq=False)
class Member:
    """A member of a group.

    :param protocols: by name, what it says of itself.
    :param seen: when it was last heard of, on the monotonic clock, in seconds.
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

    :param known_ids: of members that have been told to come again with them, and until when they may.
    :param until: when a rebalance goes on without who is missing.
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
    """The groups of a server. Used in one event loop alone."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}

    async def watch(self) -> None:
        """Let those go who aren't heard of any more, and rebalances end, for as long as the server runs."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = monotonic()
            for group in list(self.groups.values()):
                gone = [
                    one
                    for one in group.members.values()
                    if one.joining is None and one.syncing is None and now - one.seen > one.session_seconds
                ]
                for member in gone:
                    self._remove(group, member)
                if group.state == PREPARING:
                    self._complete_when_all_are_there(group)
                group.known_ids = {name: until for name, until in group.known_ids.items() if now < until}
                if not group.members and not group.known_ids:
                    del self.groups[group.name]

    async def join(self, request: Any, client_id: str, host: str, *, ask_for_id: bool) -> Joined:
        """Take a member into a group, and return once the group has a new generation.

        :param ask_for_id: whether a new member has to come again with the id that it gets.
        """
        if not request.group_id:
            return Joined(ErrorCode.invalid_group_id, request.member_id)
        if not _SESSION_SECONDS[0] <= _limits(request)[0] <= _SESSION_SECONDS[1]:
            return Joined(ErrorCode.invalid_session_timeout, request.member_id)
        group = self.groups.setdefault(request.group_id, ConsumerGroup(request.group_id))
        protocols = {str(one.name): bytes(one.metadata) for one in request.protocols}
        if not self._agree(group, request, protocols):
            return Joined(ErrorCode.inconsistent_group_protocol, request.member_id)
        instance_id = getattr(request, "group_instance_id", None)
        member_id = request.member_id
        same = _with_instance(group, instance_id)
        if not member_id:
            member_id = f"{(instance_id or client_id)[:_ID_LETTERS]}-{uuid.uuid4()}"
            if ask_for_id and instance_id is None:
                group.known_ids[member_id] = monotonic() + _limits(request)[0]
                return Joined(ErrorCode.member_id_required, member_id)
            if same is not None:
                # A member with an id of its own that has started again takes its old place.
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
                member_id, instance_id, client_id, host, *_limits(request), protocols
            )
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(Joined(ErrorCode.rebalance_in_progress, member_id))
        member.protocols, member.seen = protocols, monotonic()
        member.session_seconds, member.rebalance_seconds = _limits(request)
        group.protocol_type = request.protocol_type
        waiting: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        member.joining = waiting
        self._prepare(group)
        self._complete_when_all_are_there(group)
        return await waiting

    async def sync(self, request: Any) -> Synced:
        """Return a member's partitions, once the leader has assigned them."""
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
            given = {one.member_id: bytes(one.assignment) for one in request.assignments}
            group.state = STABLE
            for one in group.members.values():
                one.assignment = given.get(one.id, b"")
                _tell(one, Synced(ErrorCode.none, one.assignment))
        return await waiting

    def heartbeat(self, request: Any) -> ErrorCode:
        """Return whether a member may go on, or has to join again."""
        group, _, error = self._member(request)
        if group is not None and group.state == PREPARING:
            return ErrorCode.rebalance_in_progress
        return error

    def leave(self, request: Any) -> ErrorCode:
        """Let a member go."""
        group = self.groups.get(request.group_id)
        member = group.members.get(request.member_id) if group else None
        if group is None or member is None:
            return ErrorCode.unknown_member_id
        self._remove(group, member)
        return ErrorCode.none

    def may_commit(self, request: Any) -> ErrorCode:
        """Return whether positions may be committed: by a member of this generation, or to an empty group."""
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
            fenced = group is not None and _with_instance(group, instance_id) is not None
            return None, None, ErrorCode.fenced_instance_id if fenced else ErrorCode.unknown_member_id
        if (request.generation_id if generation is None else generation) != group.generation:
            return None, None, ErrorCode.illegal_generation
        member.seen = monotonic()
        return group, member, ErrorCode.none

    def _agree(self, group: ConsumerGroup, request: Any, protocols: dict[str, bytes]) -> bool:
        others = [one for one in group.members.values() if one.id != request.member_id]
        if not protocols or not request.protocol_type:
            return False
        if not others:
            return True
        return group.protocol_type == request.protocol_type and bool(_common([*others], set(protocols)))

    def _prepare(self, group: ConsumerGroup) -> None:
        if group.state == PREPARING:
            return
        wait = max(one.rebalance_seconds for one in group.members.values())
        group.until = monotonic() + (_FIRST_WAIT_SECONDS if group.state == EMPTY else wait)
        # Whoever waits for partitions of the old generation has to join again.
        for member in group.members.values():
            _tell(member, Synced(ErrorCode.rebalance_in_progress))
        group.state = PREPARING

    def _complete_when_all_are_there(self, group: ConsumerGroup) -> None:
        is_first = not group.generation or not group.leader
        missing = [one for one in group.members.values() if one.joining is None]
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
        common = _common(list(group.members.values()), set(leader.protocols))
        group.protocol = next(name for name in leader.protocols if name in common)
        group.state = COMPLETING
        members = tuple(group.members.values())
        for member in members:
            waiting, member.joining, member.seen = member.joining, None, monotonic()
            if waiting is not None and not waiting.done():
                waiting.set_result(
                    Joined(
                        ErrorCode.none,
                        member.id,
                        group.generation,
                        group.protocol,
                        group.leader,
                        members if member is leader else (),
                    )
                )

    def _remove(self, group: ConsumerGroup, member: Member) -> None:
        self._forget(group, member, ErrorCode.unknown_member_id)
        if not group.members:
            group.state, group.leader = EMPTY, ""
            group.generation += 1
            return
        self._prepare(group)
        self._complete_when_all_are_there(group)

    @staticmethod
    def _forget(group: ConsumerGroup, member: Member, error: ErrorCode) -> None:
        group.members.pop(member.id, None)
        if group.leader == member.id:
            group.leader = next(iter(group.members), "")
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(Joined(error, member.id))
        _tell(member, Synced(error))


def _with_instance(group: ConsumerGroup, instance_id: str | None) -> Member | None:
    """Return the member that has an id of its own; None: no member, or no id."""
    same = (one for one in group.members.values() if one.instance_id == instance_id)
    return None if instance_id is None else next(same, None)


def _tell(member: Member, answer: Synced) -> None:
    waiting, member.syncing = member.syncing, None
    if waiting is not None and not waiting.done():
        waiting.set_result(answer)


def _limits(request: Any) -> tuple[float, float]:
    return request.session_timeout.total_seconds(), request.rebalance_timeout.total_seconds()


def _common(members: Sequence[Member], names: set[str]) -> set[str]:
    return names.intersection(*(one.protocols for one in members)) if members else names
