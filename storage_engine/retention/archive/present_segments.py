"""Where a store's segments lie at one moment: known by their log and offsets, never by a path of before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from storage_engine.model.known_logs import may_be_one
from storage_engine.model.store import FileFacts, Segment, StoreSnapshot
from storage_engine.retention.ranges.missing_logs import present_logs
from storage_engine.retention.ranges.seen_log_records import kept_logs
from storage_engine.retention.store.context import Context


def is_file(found: FileFacts, known: FileFacts) -> bool:
    """Return whether a file is the one that was known under its path, whatever was done to it since."""
    return (found.path, found.device, found.inode) == (known.path, known.device, known.inode)


@dataclass(frozen=True, slots=True)
class PresentSegments:
    """:param segments: by log, oldest first.
    :param log_ids: identities of logs by name; "", or none: it can't be told.
    """

    segments: Mapping[str, Sequence[Segment]]
    log_ids: Mapping[str, str]

    def is_log(self, log: str, log_ids: Collection[str]) -> bool:
        """Return whether a name may still be of a log that had one of some identities; of none: it may."""
        now = self.log_ids.get(log, "")
        return not log_ids or any(map(partial(may_be_one, now), log_ids))

    def find(self, segment: Segment, log_ids: Collection[str] = ()) -> Segment | None:
        """Return what has a segment's records now, wherever it lies.

        A broker may have moved its log to another directory, or its cleaner merged it into another segment.

        :param log_ids: identities that its log may have had; none: they aren't known.
        :return: None: another log has the name by now, or nothing has the records.
        """
        of_log = self.segments.get(segment.log, ())
        index = bisect_right(of_log, segment.base_offset, key=attrgetter("base_offset")) - 1
        if index < 0 or segment.end_offset > of_log[index].end_offset:
            return None
        return of_log[index] if self.is_log(segment.log, log_ids) else None


def present_segments(context: Context, snapshot: StoreSnapshot) -> PresentSegments:
    """Return where a snapshot's segments lie.

    :raises StorageEngineError: the broker can't tell its logs.
    :raises OSError: a file can't be read.
    """
    return PresentSegments(
        {log.name: log.segments for log in snapshot.logs},
        present_logs(context.broker, context.store.broker, snapshot),
    )


def remembered_log_ids(context: Context) -> dict[str, set[str]]:
    """Return which identities the logs of a store's open lineages had at earlier looks, by name."""
    found: dict[str, set[str]] = {}
    for one in kept_logs(context.store.journal_url, context.record.store_id) or ():
        if one.lineage == context.record.lineage_of(one.log):
            found.setdefault(one.log, set()).add(one.identity.log_id)
    return found
