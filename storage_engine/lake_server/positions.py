"""CommittedPositions that consumer groups have committed to this server, in a file of its own."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from storage_engine.core.durable import open_lock, write_file
from storage_engine.exceptions import BadInputError

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
        """Return what a group has committed; None: nothing."""
        return self.groups.get(group, {}).get(topic, {}).get(partition)

    def commit(self, group: str, found: dict[tuple[str, int], Position]) -> None:
        """Keep positions; they are on disk when this returns.

        :raises OSError: they can't be written; what was committed before stays.
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
        """Keep what a group has at the cluster, before its positions are committed there.

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
