"""Comparison of the deleted segments with the broker package's answer and with the approved plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from storage_engine.exceptions import ReleasedTooMuchError
from storage_engine.model.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.store.broker_answers import MEND, RealDirectories, refuse


def check_gone(broker: str, segments: Sequence[Segment]) -> None:
    """Make sure that segments are gone that a package says it has deleted.

    :raises BrokerPackageError: a file of theirs is there.
    """
    for segment in segments:
        for file in segment.files:
            if os.path.lexists(file.path):
                refuse(
                    f"broker {broker}: {file.path}: log {segment.log}, offset {segment.base_offset}",
                    "no file, since the package says that it has deleted the segment",
                    "it there",
                    "It isn't recorded as deleted, and may be deleted any time; others may be gone, as "
                    "the same run "
                    f"finds out when it is run again. {MEND}",
                )


def check_inside(broker: str, paths: Sequence[str], data_paths: Sequence[os.PathLike[str]]) -> None:
    """Make sure that files to be deleted lie where a store's broker writes.

    :param data_paths: as the package said when they were held against where we write.
    :raises BrokerPackageError: one doesn't.
    """
    directories = RealDirectories(data_paths)
    if (path := directories.first_outside(paths)) is not None:
        refuse(f"broker {broker}: {path}", f"a file in {directories}", "one elsewhere")


def check_left(
    before: StoreSnapshot, left: StoreSnapshot, planned: Collection[SegmentId], deleted: Collection[SegmentId]
) -> None:
    """Make sure that a release took what it says, and nothing that no plan names.

    :param before: the store as it was when it was held.
    :param left: as it is by now.
    :param planned: segments that may be deleted.
    :param deleted: segments recorded as deleted.
    :raises BrokerPackageError: the store still has segments that it reported as deleted.
    :raises ReleasedTooMuchError: a sealed segment is gone that was to stay.
    """
    there = {segment.id for log in left.logs for segment in log.segments}
    if back := sorted(there & set(deleted)):
        refuse(
            f"broker {left.broker}: {left.root}: log {back[0].log}, offset {back[0].base_offset}",
            "no segment, since its file is gone",
            "one listed",
            f"What was deleted is recorded. {MEND}",
        )
    for segment in (segment for log in before.logs for segment in log.sealed):
        if segment.id not in planned and segment.id not in there:
            raise _took_too_much(before, segment, "it gone")


def check_kept(before: StoreSnapshot, planned: Collection[SegmentId] = frozenset()) -> None:
    """Make sure that the files of all segments that were to stay are there, and none was cut or replaced.

    :param before: the store as it was when it was held.
    :param planned: segments that may be deleted.
    :raises ReleasedTooMuchError: one is not.
    """
    for segment in (segment for log in before.logs for segment in log.segments):
        if segment.id in planned:
            continue
        for file in segment.files:
            try:
                stat = os.lstat(file.path)
            except FileNotFoundError:
                raise _took_too_much(before, segment, f"no {file.path}") from None
            if (stat.st_dev, stat.st_ino) != (file.device, file.inode) or stat.st_size < file.size_bytes:
                raise _took_too_much(before, segment, f"{file.path} replaced or cut")


def _took_too_much(before: StoreSnapshot, segment: Segment, found: str) -> ReleasedTooMuchError:
    return ReleasedTooMuchError(
        f"broker {before.broker}: {segment.facts.path}: log {segment.log}: expected the segment at "
        f"offset {segment.base_offset} to stay as it was, since no plan names it, found {found}. What was "
        "deleted by plan is recorded. Run verify, which tells what of it is in the lake and what is lost; "
        "find out who did it, the broker's package or another program."
    )
