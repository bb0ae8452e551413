"""A broker's background tasks, and how much work each has left."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from storage_engine.exceptions import BadInputError
from storage_engine.model.store import FileFacts, SegmentId


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that a broker was about to remove.

    :param segment: whose file it was; None: it has nothing that isn't elsewhere.
    :param companion: its name while it was in use; "": it is the segment's own file.
    """

    facts: FileFacts
    segment: SegmentId | None = None
    companion: str = ""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Files of one deletion that a broker has begun and not ended. It ends it when it starts.

    :param what: its name, such as the path of the directory.
    :param files: in the order in which they go; all are in one directory.
    :param directory: goes after them, with nothing in it; "": it stays.
    :param purpose: why a person may let it go that no lake has it; "": nobody may.
    :param topic: whose it is, by which a person names it; "" where nobody may.
    """

    what: str
    files: tuple[LeftFile, ...]
    directory: str = ""
    purpose: str = ""
    topic: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(one.facts.size_bytes for one in self.files)


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """Progress of one of a broker's background tasks, by its files or by the running broker.

    :param name: by which the broker calls it.
    :param found: findings, as clauses.
    :param overdue: sentences on work that it should have done by now.
    :param left: files that it would remove, and those that may be deleted in its place while the broker is
        stopped.
    :param kept: clauses on files that stay, with the reason.
    """

    name: str
    found: tuple[str, ...]
    overdue: tuple[str, ...] = ()
    left: tuple[LeftOver, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Times from which a running broker's task is overdue.

    :param checkpoint_ms: age of a checkpoint.
    :param unflushed_bytes: of one log, beyond a segment.
    """

    checkpoint_ms: int
    unflushed_bytes: int


class BackgroundTasks:
    """The broker's tasks that are looked after; this class itself has none."""

    __slots__ = ()

    def look(self, now_ms: int, limits: TaskLimits) -> tuple[BrokerTask, ...]:
        """Look how far each of the broker's tasks is. Reads only.

        :raises BrokerError: a running broker can't be asked.
        :raises OSError: a file can't be read.
        """
        return ()

    def check_deleted_topics(self, topics: Collection[str]) -> tuple[str, ...]:
        """Make sure that a person's word that topics were deleted can be meant. Reads only.

        :return: which words are for nothing, as sentences; by default all are.
        :raises BadInputError: one of them is there still.
        :raises BrokerError: a running broker can't be asked.
        """
        return tuple(f"Topic {topic}: this kind of broker leaves nothing behind." for topic in topics)

    def delete_left_over(self, left: LeftOver, meanwhile: Callable[[], object]) -> None:
        """Remove files that the broker was about to remove; durable when it returns.

        Called while the store is held. Safe to repeat with what is left of them after a kill.

        :raises ChangedUnderUsError: a file isn't as it was a moment ago; it was not deleted.
        """
        raise BadInputError(
            f"{left.what}: expected a kind of broker that leaves such files behind, found one that doesn't. "
            "Nothing was removed."
        )
