"""Positions that consumer groups have committed to this server, and giving them back to the cluster.

What the cluster has is kept before a commit. After a kill a position is committed again only where the
cluster still has that: a group that has gone on there since is never set back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from storage_engine.core.durable import open_lock, write_file
from storage_engine.exceptions import BadInputError
from storage_engine.lake_server.archived_partitions import Archive
from storage_engine.lake_server.upstream import PartitionKey, Upstream, UpstreamError

Position = tuple[int, str | None]
"""The offset to read next, and what the client has written beside it."""
Positions = dict[str, dict[str, dict[int, Position]]]
"""By group, topic and partition."""


class CommittedPositions:
    """The file, which one server has at a time.

    ``groups`` are the positions, ``given_back`` those at the cluster of groups that are being given back.

    :param path: of the file; it is made with the first commit.
    :raises BadInputError: another server has it, it has something else, or its directory isn't there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.parent.is_dir():
            # Of a disk that isn't mounted: without their positions groups would begin elsewhere.
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
                f"{path}: expected a file that no other server has, found one that has it locked. Nothing "
                "was started. Name another file by --positions."
            ) from None
        try:
            self.groups, self.given_back = self._read()
        except BadInputError:
            self.close()
            raise

    def of(self, group: str, topic: str, partition: int) -> Position | None:
        """Return a group's committed position; None: it has none."""
        return self.groups.get(group, {}).get(topic, {}).get(partition)

    def commit(self, group: str, found: dict[tuple[str, int], Position]) -> None:
        """Keep positions; they are on disk when this returns.

        :raises OSError: they can't be written; earlier commits stay.
        """
        of_group = {topic: dict(numbers) for topic, numbers in self.groups.get(group, {}).items()}
        for (topic, partition), position in found.items():
            of_group.setdefault(topic, {})[partition] = position
        # What was begun with its positions before counts no more.
        self._write({**self.groups, group: of_group}, _without(self.given_back, {group}))

    def drop(self, groups: Collection[str]) -> None:
        """Forget the positions of groups; the file is without them when this returns.

        :raises OSError: it can't be written; all positions stay.
        """
        self._write(_without(self.groups, groups), _without(self.given_back, groups))

    def begin_giving_back(self, group: str, of_cluster: dict[str, dict[int, Position]]) -> None:
        """Keep a group's positions at the cluster, before its own positions are committed there.

        :raises OSError: it can't be written.
        """
        self._write(self.groups, {**self.given_back, group: of_cluster})

    def _write(self, groups: Positions, given_back: Positions) -> None:
        said = {"version": 1, "groups": groups, "given_back": given_back}
        write_file(self._path, json.dumps(said).encode())
        self.groups, self.given_back = groups, given_back

    def close(self) -> None:
        """Let another server have the file."""
        os.close(self._lock)

    def _read(self) -> tuple[Positions, Positions]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}, {}
        try:
            said: Any = json.loads(text)
            if said["version"] != 1:
                raise ValueError(f"version {said['version']}")
            return _positions(said["groups"]), _positions(said.get("given_back", {}))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"{self._path}: expected the positions of groups, of version 1, found something else: "
                f"{error}. Nothing was started or changed. Name another file by --positions."
            ) from error


def _positions(said: Any) -> Positions:
    return {
        group: {
            topic: {int(number): (int(offset), note) for number, (offset, note) in of_topic.items()}
            for topic, of_topic in topics.items()
        }
        for group, topics in said.items()
    }


def _without(positions: Positions, groups: Collection[str]) -> Positions:
    return {name: kept for name, kept in positions.items() if name not in groups}


async def give_back(
    archive: Archive, upstream: Upstream, positions: CommittedPositions, tell: Callable[[str], None]
) -> bool:
    """Commit positions of groups without members to the cluster, and forget them here.

    :param tell: is given a line for each group.
    :return: whether every group was given back.
    :raises BadInputError: it is another cluster than the lake's.
    :raises UpstreamError: the cluster doesn't answer.
    :raises OSError: the file of positions can't be written.
    """
    await upstream.connect()
    whole = True
    for group in sorted(positions.groups):
        try:
            whole = await _give_back(group, archive, upstream, positions, tell) and whole
        except UpstreamError as error:
            whole = False
            tell(f"group {group}: stays here: {error}. Stop its members, and give it back again.")
    return whole


async def _give_back(
    group: str,
    archive: Archive,
    upstream: Upstream,
    positions: CommittedPositions,
    tell: Callable[[str], None],
) -> bool:
    own: dict[PartitionKey, Position] = {
        (name, number): position
        for name, numbers in positions.groups[group].items()
        for number, position in numbers.items()
    }
    foreign = sorted({name for name, number in own if not _is_same(archive, upstream, (name, number))})
    if foreign:
        tell(f"group {group}: stays here: the cluster lacks {', '.join(foreign)}, or has others of that name")
        return False
    numbers = {name: sorted(of_topic) for name, of_topic in positions.groups[group].items()}
    now = await upstream.positions(group, numbers)
    if group not in positions.given_back:
        before: dict[str, dict[int, Position]] = {}
        for (name, number), position in now.items():
            before.setdefault(name, {})[number] = position
        positions.begin_giving_back(group, before)
    begun = {
        (name, number): position
        for name, of_topic in positions.given_back[group].items()
        for number, position in of_topic.items()
    }
    left = {place: position for place, position in own.items() if now.get(place) == begun.get(place)}
    if left:
        await upstream.commit(group, left)
    positions.drop([group])
    for place, position in sorted(own.items()):
        at = position[0] if place in left else now[place][0] if place in now else None
        since = "" if place in left else ", committed there since it was begun to be given back"
        tell(f"group {group}: goes on in {place[0]}-{place[1]} at offset {at}{since}")
    return True


def _is_same(archive: Archive, upstream: Upstream, place: PartitionKey) -> bool:
    topic = upstream.view.topics.get(place[0])
    of_lake = next(iter(archive.topics.get(place[0], {}).values()), None)
    is_same = topic is not None and (of_lake is None or of_lake.topic_id == topic.id_text)
    return is_same and topic is not None and place[1] in topic.leaders
