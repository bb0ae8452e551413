"""Directories that had segments at a store's last plan: a disk that isn't mounted is no shorter log."""

from __future__ import annotations

from pathlib import Path

from storage_engine.exceptions import StoreNotFoundError
from storage_engine.journal.journal import Step
from storage_engine.model.store import StoreSnapshot
from storage_engine.retention.archive.gone import is_away
from storage_engine.retention.store.context import Context


def refuse_missing_directories(context: Context, snapshot: StoreSnapshot) -> None:
    """Make sure that a log which lies in several directories begins where it seems to.

    A broker that tells absent logs keeps each log in one directory, and has a stamp in each.

    :raises StoreNotFoundError: a directory that had segments at the last plan is another disk's.
    """
    last = context.journal.last_result(context.record.store_id, Step.PLAN)
    if last is None or context.broker.tells_absences:
        return
    plan = context.journal.run(context.record.store_id, last.run_key).plan
    decisions = () if plan is None else plan.decisions
    known = {Path(one.segment.facts.path).parent: one.segment.facts.device for one in decisions}
    present = {Path(segment.facts.path).parent for log in snapshot.logs for segment in log.segments}
    paths = context.broker.data_paths
    for directory, device in known.items():
        if directory not in present and directory in paths and is_away(directory, device):
            raise StoreNotFoundError(
                f"{directory}: expected the disk with the segments that the plan of run {last.run_key!r} "
                f"knew, device {device}, found another device, and no segment: without them the log would "
                "begin, or end, where it doesn't. Nothing was changed. Mount the disk; if its segments are "
                "gone for good, leave the directory out of the broker's settings."
            )
