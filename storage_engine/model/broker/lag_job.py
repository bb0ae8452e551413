"""Consumer lag as a broker offers it for computing: on Spark's executors, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.lag import LagSource, Unread
from storage_engine.model.store import FileFacts, Segment, SegmentId, StoreSnapshot

if TYPE_CHECKING:
    import pyarrow as pa

Place = Callable[["pa.Table"], "pa.Table"]
"""Finds in the store's files where groups are (``lag_columns.PLACES_SCHEMA``); goes to executors."""


@dataclass(frozen=True, slots=True)
class LagRequest:
    """Data that lag is measured against.

    :param plan_segments: those that a plan deletes; empty: ask without a plan. A position in another log is
        not at risk by them.
    :param now_ms: the moment, in milliseconds since the epoch.
    """

    settings: StoreSettings
    plan_segments: tuple[SegmentId, ...]
    now_ms: int


def check_plan(snapshot: StoreSnapshot, plan_segments: Collection[SegmentId]) -> None:
    """Check that a plan's segments are those of a store, or went from the beginning of their log.

    :raises BadInputError: a segment isn't in the store, and didn't go meanwhile.
    """
    there = {segment.id for log in snapshot.logs for segment in log.segments}
    begins = {log.name: log.min_offset for log in snapshot.logs}
    went = {one for one in plan_segments if one.base_offset < begins.get(one.log, 0)}
    if unknown := set(plan_segments) - went - there:
        name, base_offset = min(unknown)
        raise BadInputError(
            f"{snapshot.root}: no segment of log {name} begins at {base_offset}: expected the segments of a "
            "plan for this store as it is now. Make a new plan."
        )


class LagJob(Protocol):
    """The positions of a store's consumers, and what they are measured against."""

    @property
    def source(self) -> LagSource:
        """Return where the positions are from."""

    @property
    def snapshot(self) -> StoreSnapshot:
        """The store that they are measured against."""

    @property
    def logs(self) -> tuple[str, ...] | None:
        """The logs whose consumers are measured; None: all of the store's. Of others lag is unknown."""

    @property
    def positions(self) -> pa.Table:
        """Every group's position in every queue; rows of one queue are neighbours."""

    @property
    def segments(self) -> pa.Table:
        """Return the segments to delete (``lag_columns.SEGMENTS_SCHEMA``): joined with positions they give
        the lag.
        """

    @property
    def newest(self) -> FileFacts | None:
        """A file that whoever measures has to see; None: the store has none."""

    @property
    def place(self) -> Place: ...

    def unread(self, run: Sequence[Segment]) -> Unread:
        """Return the messages that consumers have not read, in segments that the broker has deleted.

        :param run: back to back; somebody still has their files.
        :raises BadInputError: positions or queues that can't be read.
        """
