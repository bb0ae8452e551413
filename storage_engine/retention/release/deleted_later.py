"""What is deleted while its files are still there: a running broker may remove them in a round of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

from storage_engine.core.wording import bytes_text
from storage_engine.model.store.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context


def deleted_of(context: Context, segments: Sequence[Segment]) -> frozenset[SegmentId]:
    """Return which segments are deleted, by the broker's word or by their files.

    :raises BrokerError: a running broker has to say it, and can't be asked.
    """
    doing = "tell what is deleted"
    return ask(context.store.broker, doing, lambda: context.broker.deleted(segments))


def left_of(context: Context, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments whose files have to be gone by now, once all are deleted.

    :raises BrokerError: as :func:`deleted_of`.
    """
    if not context.broker.removes_files_later:
        return tuple(segments)
    deleted = deleted_of(context, segments)
    return tuple(segment for segment in segments if segment.id not in deleted)


def deleted_from(context: Context, snapshot: StoreSnapshot, planned: Collection[SegmentId]) -> StoreSnapshot:
    """Return a snapshot of what nobody but us may delete: beside a running broker, of the planned logs alone.

    In others it compacts, or deletes by rules that nothing holds.
    """
    if not context.broker.is_live:
        return snapshot
    names = {log for log, _ in planned}
    return replace(snapshot, logs=tuple(log for log in snapshot.logs if log.name in names))


def bytes_that_wait(deleted: Sequence[Segment]) -> int:
    """Return how many bytes of deleted segments are still in files."""
    files = [file for segment in deleted for file in segment.files]
    return sum(file.size_bytes for file in files if os.path.lexists(file.path))


def waiting_notices(waiting_bytes: int) -> tuple[str, ...]:
    """Say that space isn't free yet; nothing where it is."""
    if not waiting_bytes:
        return ()
    return (
        f"{bytes_text(waiting_bytes)} of what is deleted are still on the disk: the broker removes the files "
        "in a round of its own",
    )
