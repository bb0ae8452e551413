"""Consumer lag without Spark: computed in this process, and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.cli.output import print_table, say
from storage_engine.model.lag import LagSource, PositionsFrom
from storage_engine.model.store import SegmentId
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.spark.consumer_lag import ConsumerLagRequest, LagInProcess, lag_in_process
from storage_engine.wording import count_text, duration_text


def in_process_lag(managed: ManagedStore, going: Sequence[SegmentId]) -> LagInProcess:
    """One row a :class:`~storage_engine.model.lag.QueueLag` of the store, in tables of whole queues.

    :param going: the segments that are about to go.
    """
    return lag_in_process(ConsumerLagRequest.of(managed, "", going))


def only_group(table: pa.Table, group: str | None) -> pa.Table:
    """The rows of one group; all of them for None."""
    return table if group is None else table.filter(pc.field("group") == group)


def print_lag(rows: Sequence[Mapping[str, Any]], source: LagSource) -> None:
    lost = any(row["lost_messages"] for row in rows)
    print_table(
        "Consumer lag",
        ("group~", "queue~", "committed#", "behind#", "by#", *(["lost#"] if lost else []), "next one goes"),
        (
            (
                row["group"],
                f"{row['topic']}/{row['queue_id']}",
                _known(row["committed_offset"]),
                _known(row["lag_messages"]),
                duration_text(row["lag_ms"]) if row["lag_messages"] else "",
                *([row["lost_messages"]] if lost else []),
                _goes(row),
            )
            for row in rows
        ),
    )
    say()
    behind = sum(row["lag_messages"] or 0 for row in rows)
    groups = len({row["group"] for row in rows})
    risky = sum(row["at_risk"] for row in rows)
    say(
        f"{count_text(groups, 'group')}, {count_text(behind, 'message')} behind; in "
        f"{count_text(risky, 'queue')} the next message is in a segment that a cleanup deletes now."
    )
    if source.positions is PositionsFrom.BROKER:
        say("Positions: as the running broker has them.")
    for notice in source.notices:
        say(f"WARNING {notice}")


def _known(value: int | None) -> int | str:
    return "unknown" if value is None else value


def _goes(row: Mapping[str, Any]) -> str:
    """Return when the group's next message may be deleted."""
    if row["at_risk"]:
        return "now"
    return f"in {duration_text(row['time_to_loss_ms'])}" if row["time_to_loss_ms"] is not None else ""
