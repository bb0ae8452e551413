"""Removing a segment's files only as they were looked at.

Its own file goes first: from then on the segment is gone from the log, and what a kill leaves are companions
that belong to no segment. The engine removes these by what its journal meant to delete (:func:`remove_rest`).
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from storage_engine.core.durable import opened
from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.store.store import FileFacts, Segment
from storage_engine.same_bytes.own_acts import read_own_acts


def remove_unchanged(segment: Segment, root: Path, remove: Remove) -> None:
    """Remove a segment's files and flush its directory, if nobody else touched one since they were looked at.

    The directory is flushed before the next, younger segment goes: a power loss must never leave a hole.

    :param remove: by which a file goes.
    :raises ChangedUnderUsError: somebody else did; nothing was done.
    """
    with _directory_of(segment) as directory:
        for facts in segment.files:
            found = _look(facts.path)
            if not _is_same(found, facts, root):
                raise ChangedUnderUsError(
                    f"{facts.path}: expected it as it was a moment ago, {facts}, found {found or 'no file'}: "
                    "somebody changes the store while we hold it. It was not deleted, older ones of the plan "
                    "may be. Stop who does.",
                    path=facts.path,
                )
        for facts in segment.files:
            remove(Path(facts.path), directory)
            # A companion must never go before its segment's own file has.
            os.fsync(directory)


def remove_rest(segment: Segment, root: Path, remove: Remove) -> tuple[str, ...]:
    """Remove the companions that are left of a segment whose own file is gone already, and flush.

    :return: paths of those that stay, since somebody touched them.
    """
    stay = []
    with _directory_of(segment) as directory:
        for facts in segment.companions:
            found = _look(facts.path)
            if _is_same(found, facts, root):
                remove(Path(facts.path), directory)
            elif found is not None:
                stay.append(facts.path)
        os.fsync(directory)
    return tuple(stay)


def _look(path: str) -> FileFacts | None:
    try:
        return FileFacts.of(path)
    except FileNotFoundError:
        return None


def _is_same(found: FileFacts | None, known: FileFacts, root: Path) -> bool:
    # Our own acts are read only where there is something to explain.
    return found == known or (found is not None and read_own_acts(root).same_file(found, known))


def _directory_of(segment: Segment) -> AbstractContextManager[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return opened(Path(segment.facts.path).parent, flags)
