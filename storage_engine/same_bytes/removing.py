"""Removal of a segment's files, if no other process has touched one of them since the last look."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from storage_engine.core.durable import opened
from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.model.broker.broker_store import Remove
from storage_engine.model.store import FileFacts, Segment
from storage_engine.same_bytes.own_acts import read_own_acts


def remove_unchanged(segment: Segment, root: Path, remove: Remove) -> None:
    """Remove a segment's files, if no other process has touched one of them since the last look.

    The directory is flushed before the next, younger segment is deleted: a power loss must never leave a gap.

    :param remove: the function that removes a file.
    :raises ChangedUnderUsError: another process has touched a file. Nothing was done.
    """
    with _directory_of(segment) as directory:
        for facts in segment.files:
            present = _look(facts.path)
            if not _is_same(present, facts, root):
                raise ChangedUnderUsError(
                    f"{facts.path}: expected it as it was a moment ago, {facts}, found "
                    f"{present or 'no file'}: another program changes the store while we hold it. The file "
                    "was not deleted; older segments of the plan may be. Stop that program.",
                    path=facts.path,
                )
        for facts in segment.files:
            remove(Path(facts.path), directory)
            # A companion must never go before its segment's own file has.
            os.fsync(directory)


def remove_rest(segment: Segment, root: Path, remove: Remove) -> tuple[str, ...]:
    """Remove the remaining companions of a segment whose own file is gone already, and flush the directory.

    :return: paths of companions that are kept, because another process touched them.
    """
    paths = []
    with _directory_of(segment) as directory:
        for facts in segment.companions:
            present = _look(facts.path)
            if _is_same(present, facts, root):
                remove(Path(facts.path), directory)
            elif present is not None:
                paths.append(facts.path)
        os.fsync(directory)
    return tuple(paths)


def _look(path: str) -> FileFacts | None:
    try:
        return FileFacts.of(path)
    except FileNotFoundError:
        return None


def _is_same(present: FileFacts | None, expected: FileFacts, root: Path) -> bool:
    # Our own acts are read only where there is something to explain.
    return present == expected or (present is not None and read_own_acts(root).same_file(present, expected))


def _directory_of(segment: Segment) -> AbstractContextManager[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return opened(Path(segment.facts.path).parent, flags)
