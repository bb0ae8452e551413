"""Removing a segment's file only as it was looked at."""

from __future__ import annotations

import os
from pathlib import Path

from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.model.broker_store import Remove
from storage_engine.model.store import FileFacts, Segment
from storage_engine.same_bytes.own_acts import read_own_acts


def remove_unchanged(segment: Segment, root: Path, remove: Remove) -> None:
    """Remove a segment's file and flush its directory, if nobody else touched it since it was looked at.

    The directory is flushed before the next, younger one goes: a power loss must never leave a hole.

    :param root: the store's.
    :param remove: by which the file goes.
    :raises ChangedUnderUsError: somebody else did; nothing was done.
    """
    path = Path(segment.facts.path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            found = FileFacts.of(path)
        except FileNotFoundError:
            found = None
        # Our own acts are read only where there is something to explain.
        if found is None or not (
            found == segment.facts or read_own_acts(root).same_file(found, segment.facts)
        ):
            raise ChangedUnderUsError(
                f"{path}: expected it as it was a moment ago, {segment.facts}, found {found or 'no file'}: "
                "somebody changes the store while we hold it. It was not deleted, older ones of the plan may "
                "be. Stop who does.",
                path=str(path),
            )
        remove(path, directory)
        os.fsync(directory)
    finally:
        os.close(directory)
