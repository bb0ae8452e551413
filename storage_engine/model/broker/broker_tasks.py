"""A broker's background tasks, and how much work each has left."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from storage_engine.exceptions import BadInputError
from storage_engine.model.store import FileFacts, SegmentId


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that a broker was about to remove.

    :param segment: the segment that the file belonged to; None if the whole content also exists elsewhere.
    :param companion: the file's name while it was in use; "" if it is the segment's own file.
    """

    facts: FileFacts
    segment: SegmentId | None = None
    companion: str = ""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Files of one deletion that a broker began. It finishes the deletion at its next start.

    :param what: the deletion's name, such as the path of the directory.
    :param files: the files in the order in which they are deleted; all are in one directory.
    :param directory: deleted after the files, once it is empty; "" if it is kept.
    :param purpose: why a person may permit the deletion of files that no lake has; "" if nobody may.
    :param topic: the files' topic, which a person names to permit the deletion; "" if nobody may.
    """

    what: str
    files: tuple[LeftFile, ...]
    directory: str = ""
    purpose: str = ""
    topic: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(file.facts.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """Progress of one of a broker's background tasks, from its files or from the running broker.

    :param name: the broker's own name of the task.
    :param found: findings, as clauses.
    :param overdue: sentences on work that the task should have done by now.
    :param left: files that the task would remove, and that we may delete while the broker is stopped.
    :param kept: clauses on files that are kept, with the reason.
    """

    name: str
    found: tuple[str, ...]
    overdue: tuple[str, ...] = ()
    left: tuple[LeftOver, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits from which a running broker's task is overdue.

    :param checkpoint_ms: age of a checkpoint.
    :param unflushed_bytes: unflushed bytes of one log, beyond one segment.
    """

    checkpoint_ms: int
    unflushed_bytes: int


class BackgroundTasks:
    """The broker's background tasks that we check. This class itself has none."""

    __slots__ = ()

    def look(self, now_ms: int, limits: TaskLimits) -> tuple[BrokerTask, ...]:
        """Return the progress of each of the broker's tasks. Reads only.

        :raises BrokerError: a running broker can't be asked.
        :raises OSError: a file can't be read.
        """
        return ()

    def check_deleted_topics(self, topics: Collection[str]) -> tuple[str, ...]:
        """Check a person's statement that topics were deleted. Reads only.

        :return: sentences on the topics for which the statement has no effect; by default all of them.
        :raises BadInputError: one of the topics still exists.
        :raises BrokerError: a running broker can't be asked.
        """
        return tuple(
            f"Topic {topic}: this kind of broker leaves no files of deleted topics." for topic in topics
        )

    def delete_left_over(self, left: LeftOver, meanwhile: Callable[[], object]) -> None:
        """Remove files that the broker was about to remove; durable when it returns.

        Called while the store is held. Safe to repeat with what is left of them after a kill.

        :raises ChangedUnderUsError: a file changed a moment ago; it was not deleted.
        """
        raise BadInputError(
            f"{left.what}: expected a kind of broker that leaves such files behind, found a kind that leaves "
            "none. Nothing was removed."
        )
