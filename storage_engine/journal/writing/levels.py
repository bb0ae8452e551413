"""How full a store's disks were: one row a disk and sample, by the number of the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, ScalarSelect, delete, insert, select

from storage_engine.journal.tables.schema import disks, levels
from storage_engine.model.store.store import DiskUsage


def put_levels(connection: Connection, store_id: str, seen: Mapping[int, Sequence[DiskUsage]]) -> None:
    """Record the levels of moments that have none yet; of several disks with one path, the fullest.

    :param seen: by the moment, in milliseconds since the epoch.
    :raises IntegrityError: somebody else recorded a path for the first time at the same time.
    """
    rows = []
    ids = _ids(connection, store_id)
    for at_ms, found in seen.items():
        fullest = {disk.path: disk for disk in sorted(found, key=lambda disk: disk.used_percent or 0)}
        for path, disk in fullest.items():
            if path not in ids:
                connection.execute(insert(disks).values(store_id=store_id, path=path))
                ids = _ids(connection, store_id)
            rows.append(
                {
                    "disk_id": ids[path],
                    "at_ms": at_ms,
                    "used_percent": disk.used_percent,
                    "total_bytes": disk.total_bytes,
                    "usable_bytes": disk.usable_bytes,
                    "device": disk.device,
                    "error": disk.error,
                }
            )
    if rows:
        connection.execute(insert(levels), rows)


def levels_at(connection: Connection, store_id: str, at_ms: int) -> tuple[DiskUsage, ...]:
    """Return the levels of one moment, by path."""
    query = (
        select(disks.c.path, levels)
        .join(levels, levels.c.disk_id == disks.c.id)
        .where(disks.c.store_id == store_id, levels.c.at_ms == at_ms)
        .order_by(disks.c.path)
    )
    return tuple(
        DiskUsage(row.path, row.used_percent, row.total_bytes, row.usable_bytes, row.error, row.device)
        for row in connection.execute(query)
    )


def delete_levels(connection: Connection, store_id: str, moments: Sequence[int] | ScalarSelect[Any]) -> None:
    """Remove the levels of these moments."""
    mine = select(disks.c.id).where(disks.c.store_id == store_id)
    connection.execute(delete(levels).where(levels.c.disk_id.in_(mine), levels.c.at_ms.in_(moments)))


def _ids(connection: Connection, store_id: str) -> dict[str, int]:
    query = select(disks.c.path, disks.c.id).where(disks.c.store_id == store_id)
    return {row.path: row.id for row in connection.execute(query)}
