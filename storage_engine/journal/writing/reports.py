"""What the journal keeps for who looks later: a run's report, and what the last look at a store found."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert

from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.records import ReportRow
from storage_engine.journal.tables.schema import findings, groups, reports
from storage_engine.model.lag.lag import GroupLag


def put_report(connection: Connection, run_id: int, row: ReportRow) -> None:
    """Put a run's report in the place of its last one."""
    connection.execute(delete(reports).where(reports.c.run_id == run_id))
    connection.execute(
        insert(reports).values(
            run_id=run_id,
            version=row.version,
            outcome=row.outcome,
            causes=",".join(row.causes),
            deleted_segments=row.deleted_segments,
            freed_bytes=row.freed_bytes,
            unchanged_since=row.unchanged_since,
            report=None if row.report is None else zlib.compress(row.report),
            at_ms=clock_ms(),
            validation=row.validation,
            lost_ranges=row.lost_ranges,
        )
    )


def put_findings(
    connection: Connection, store_id: str, found: Mapping[str, Any], lags: Sequence[GroupLag] | None
) -> None:
    """Put findings in the place of a store's last ones.

    :param lags: of all consumer groups; None: those that are there stay.
    """
    at_ms = clock_ms()
    connection.execute(delete(findings).where(findings.c.store_id == store_id))
    row = {"store_id": store_id, "findings": to_jsonable(found), "at_ms": at_ms}
    connection.execute(insert(findings).values(**row))
    if lags is None:
        return
    connection.execute(delete(groups).where(groups.c.store_id == store_id))
    rows = [
        {
            "store_id": store_id,
            "consumer_group": lag.group,
            "lag_messages": lag.lag_messages,
            "unknown_queues": lag.unknown_queues,
            "first_unread_offset": lag.first_unread_offset,
            "time_to_loss_ms": lag.time_to_loss_ms,
            "at_ms": at_ms,
        }
        for lag in lags
    ]
    if rows:
        connection.execute(insert(groups), rows)
