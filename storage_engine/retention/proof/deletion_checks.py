"""Checks of the deleted segments against the broker package's answer and the approved plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from storage_engine.exceptions import ReleasedTooMuchError
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.store.broker_answers import MEND, RealDirectories, refuse


def check_gone(broker: str, segments: Sequence[Segment]) -> None:
    """Make sure that segments which a broker package reports as deleted have no file any more.

    :raises BrokerPackageError: a file of these segments still exists.
    """
    for segment in segments:
        for file in segment.files:
            if os.path.lexists(file.path):
                refuse(
                    f"broker {broker}: {file.path}: log {segment.log}, offset {segment.base_offset}",
                    "no file, since the package says that it has deleted the segment",
                    "it there",
                    "The segment isn't recorded as deleted, but may be deleted at any time. Other segments "
                    f"may be gone: run this again to find out. {MEND}",
                )


def check_inside(broker: str, paths: Sequence[str], data_paths: Sequence[os.PathLike[str]]) -> None:
    """Make sure that files to delete are in directories that the store's broker writes to.

    :param data_paths: the directories that the broker package named.
    :raises BrokerPackageError: a file is in none of them.
    """
    directories = RealDirectories(data_paths)
    if (path := directories.first_outside(paths)) is not None:
        refuse(f"broker {broker}: {path}", f"a file in {directories}", "one elsewhere")


def check_left(
    before: StoreSnapshot, left: StoreSnapshot, planned: Collection[SegmentId], deleted: Collection[SegmentId]
) -> None:
    """Make sure that a release deleted the segments that it reports, and only planned ones.

    :param before: snapshot of the store when it was locked.
    :raises BrokerPackageError: the store still has segments that it reported as deleted.
    :raises ReleasedTooMuchError: a sealed segment is gone that no plan names.
    """
    present_ids = {segment.id for log in left.logs for segment in log.segments}
    if back := sorted(present_ids & set(deleted)):
        refuse(
            f"broker {left.broker}: {left.root}: log {back[0].log}, offset {back[0].base_offset}",
            "no segment, since its file is gone",
            "one listed",
            f"The deletions are recorded. {MEND}",
        )
    for segment in (segment for log in before.logs for segment in log.sealed):
        if segment.id not in planned and segment.id not in present_ids:
            raise _too_much_error(before, segment, "it gone")


def check_kept(before: StoreSnapshot, planned: Collection[SegmentId] = frozenset()) -> None:
    """Make sure that all segments that should stay have their files, and that none was cut or replaced.

    :param before: snapshot of the store when it was locked.
    :raises ReleasedTooMuchError: a file is missing, cut or replaced.
    """
    for segment in (segment for log in before.logs for segment in log.segments):
        if segment.id in planned:
            continue
        for file in segment.files:
            try:
                stat = os.lstat(file.path)
            except FileNotFoundError:
                raise _too_much_error(before, segment, f"no {file.path}") from None
            if (stat.st_dev, stat.st_ino) != (file.device, file.inode) or stat.st_size < file.size_bytes:
                raise _too_much_error(before, segment, f"{file.path} replaced or cut")


def _too_much_error(before: StoreSnapshot, segment: Segment, state: str) -> ReleasedTooMuchError:
    return ReleasedTooMuchError(
        f"broker {before.broker}: {segment.facts.path}: log {segment.log}: expected the segment at offset "
        f"{segment.base_offset} to stay as it was, since no plan names it, found {state}. The planned "
        "deletions are recorded. Run verify: it says which bytes are in the lake and which are lost. Find "
        "out whether the broker's package or another program did it."
    )
