"""Positions that groups have committed to a server go to the cluster, where the groups go on.

What the cluster has is kept before a commit. After a kill a position is committed again only where the
cluster still has that: a group that has gone on there since is never set back.
"""

from __future__ import annotations

from collections.abc import Callable

from storage_engine.lake_server.archived_partitions import Archive
from storage_engine.lake_server.positions import CommittedPositions, Position
from storage_engine.lake_server.upstream import PartitionKey, Upstream, UpstreamError


async def give_back(
    archive: Archive, upstream: Upstream, positions: CommittedPositions, tell: Callable[[str], None]
) -> bool:
    """Commit what groups without members have to the cluster, and forget it here.

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
