"""Each store of a journal in short, by a fixed number of queries, however many stores there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, ScalarSelect, case, func, or_, select

from storage_engine.core.clock import DAY_MS
from storage_engine.journal.reading.answers import RunRow
from storage_engine.journal.reading.run_rows import RUN_COLUMNS, run_row
from storage_engine.journal.tables.rows import RulesRow
from storage_engine.journal.tables.schema import (
    disks,
    findings,
    groups,
    levels,
    reports,
    rules,
    runs,
    samples,
    stores,
)

_MOST_IDS = 500
"""In one query; databases take a bounded number of parameters."""


@dataclass(frozen=True, slots=True)
class DiskLevel:
    """How full a disk was at a store's last look, and what was free on it up to a day before.

    :param used_percent: None: not known, and ``error`` says why.
    :param earlier_usable_bytes: at ``earlier_ms``, the first look of the day before now; None: not known.
    """

    path: str
    used_percent: int | None
    total_bytes: int | None
    usable_bytes: int | None
    error: str
    at_ms: int
    earlier_usable_bytes: int | None
    earlier_ms: int | None


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """One store in short.

    :param sampled_at_ms: when it was looked at last; None: never.
    :param archive_lag_bytes: by the last measure of the last day; None: there was none.
    :param lagging_groups: consumer groups whose first unread message may be deleted within a day; None:
        it isn't known how far any is behind.
    :param last_run: the last one that planned a deletion or wrote a report; None: there was none.
    :param rules: those recorded last; None: none were.
    :param doctor: what doctor found at the last look, the most urgent first; None: it hasn't looked.
    :param alarms: of the last look.
    :param lost: which offsets were nowhere then, and that no person has accepted; "": none; None: that isn't
        known.
    """

    store_id: str
    name: str | None
    real_path: str
    host: str | None
    broker: str
    lineage: int
    sampled_at_ms: int | None
    oldest_message_ms: int | None
    archive_lag_bytes: int | None
    levels: tuple[DiskLevel, ...]
    lagging_groups: int | None
    last_run: RunRow | None
    rules: RulesRow | None
    doctor: tuple[Mapping[str, Any], ...] | None
    found_at_ms: int | None
    alarms: tuple[str, ...] = ()
    lost: str | None = None


def read_summaries(
    connection: Connection, names: Collection[str] | None, now_ms: int
) -> tuple[StoreSummary, ...]:
    """Return stores, by name and path.

    :param names: those with these names; None: all.
    """
    rows = _stores(connection, names, now_ms)
    ids = [row.store_id for row in rows]
    found_levels, lagging = _levels(connection, ids, now_ms), _lagging(connection, ids)
    last_runs, found = _last_runs(connection, ids), _findings(connection, ids)
    last_rules = _last_rules(connection, ids)
    # Without an error there is no group.
    measured = {store_id for store_id, row in found.items() if row.lag_error == ""}
    return tuple(
        StoreSummary(
            row.store_id,
            row.name,
            row.real_path,
            row.host,
            row.broker,
            row.lineage,
            row.sampled_at_ms,
            row.oldest_message_ms,
            row.archive_lag_bytes,
            # A disk that is measured no more has no level now.
            tuple(one for one in found_levels[row.store_id] if one.at_ms == row.sampled_at_ms),
            lagging.get(row.store_id, 0 if row.store_id in measured else None),
            last_runs.get(row.store_id),
            last_rules.get(row.store_id),
            tuple(found[row.store_id].doctor or ()) if row.store_id in found else None,
            found[row.store_id].at_ms if row.store_id in found else None,
            tuple(found[row.store_id].alarms or ()) if row.store_id in found else (),
            found[row.store_id].lost if row.store_id in found else None,
        )
        for row in rows
    )


def _stores(connection: Connection, names: Collection[str] | None, now_ms: int) -> list[Any]:
    mine = samples.c.store_id == stores.c.store_id
    last = select(func.max(samples.c.at_ms)).where(mine).correlate(stores).scalar_subquery()
    oldest = (
        select(samples.c.oldest_message_ms)
        .where(mine)
        .order_by(samples.c.at_ms.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    lag = (
        select(samples.c.archive_lag_bytes)
        .where(mine, samples.c.at_ms >= now_ms - DAY_MS, samples.c.archive_lag_bytes.is_not(None))
        .order_by(samples.c.at_ms.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    query = select(
        stores,
        last.label("sampled_at_ms"),
        oldest.label("oldest_message_ms"),
        lag.label("archive_lag_bytes"),
    )
    if names is None:
        rows = [*connection.execute(query)]
    else:
        rows = [
            row for some in _chunks(names) for row in connection.execute(query.where(stores.c.name.in_(some)))
        ]
    return sorted(rows, key=lambda row: (row.name or "", row.real_path))


def _levels(connection: Connection, ids: Sequence[str], now_ms: int) -> dict[str, list[DiskLevel]]:
    mine, before = levels.alias("mine"), levels.alias("before")
    last = select(func.max(mine.c.at_ms)).where(mine.c.disk_id == disks.c.id).correlate(disks)
    first = (
        select(func.min(before.c.at_ms))
        .where(before.c.disk_id == disks.c.id, before.c.at_ms >= now_ms - DAY_MS)
        .correlate(disks)
    )
    earlier = levels.alias("earlier")
    query = (
        select(
            disks.c.store_id,
            disks.c.path,
            levels.c.used_percent,
            levels.c.total_bytes,
            levels.c.usable_bytes,
            levels.c.error,
            levels.c.at_ms,
            earlier.c.usable_bytes.label("earlier_usable_bytes"),
            earlier.c.at_ms.label("earlier_ms"),
        )
        .select_from(disks)
        .join(levels, _at(levels, last.scalar_subquery()))
        .outerjoin(earlier, _at(earlier, first.scalar_subquery()))
        .order_by(disks.c.path)
    )
    found: dict[str, list[DiskLevel]] = defaultdict(list)
    for some in _chunks(ids):
        for store_id, *row in connection.execute(query.where(disks.c.store_id.in_(some))):
            found[store_id].append(DiskLevel(*row))
    return found


def _at(of_disk: Any, at_ms: ScalarSelect[Any]) -> Any:
    return (of_disk.c.disk_id == disks.c.id) & (of_disk.c.at_ms == at_ms)


def _lagging(connection: Connection, ids: Sequence[str]) -> dict[str, int]:
    query = select(groups.c.store_id, func.count(case((groups.c.time_to_loss_ms <= DAY_MS, 1)))).group_by(
        groups.c.store_id
    )
    return {
        store_id: count
        for some in _chunks(ids)
        for store_id, count in connection.execute(query.where(groups.c.store_id.in_(some)))
    }


def _last_runs(connection: Connection, ids: Sequence[str]) -> dict[str, RunRow]:
    other = runs.alias("other")
    reported = select(reports.c.run_id).where(reports.c.run_id == other.c.id).correlate(other).exists()
    last = (
        select(other.c.id)
        .where(other.c.store_id == stores.c.store_id, or_(other.c.plan_digest.is_not(None), reported))
        .order_by(other.c.id.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    query = (
        select(stores.c.store_id, *RUN_COLUMNS)
        .select_from(stores)
        .join(runs, runs.c.id == last)
        .outerjoin(reports, reports.c.run_id == runs.c.id)
    )
    return {
        row.store_id: run_row(row)
        for some in _chunks(ids)
        for row in connection.execute(query.where(stores.c.store_id.in_(some)))
    }


def _last_rules(connection: Connection, ids: Sequence[str]) -> dict[str, RulesRow]:
    other = rules.alias("other")
    last = select(func.max(other.c.at_ms)).where(other.c.store_id == stores.c.store_id).correlate(stores)
    query = (
        select(stores.c.store_id, rules.c.at_ms, rules.c.rules)
        .select_from(stores)
        .join(rules, (rules.c.store_id == stores.c.store_id) & (rules.c.at_ms == last.scalar_subquery()))
    )
    return {
        row.store_id: RulesRow(row.at_ms, row.rules)
        for some in _chunks(ids)
        for row in connection.execute(query.where(stores.c.store_id.in_(some)))
    }


def _findings(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    # Of all findings only this: the rest is for the page of one store.
    found = findings.c.findings
    query = select(
        findings.c.store_id,
        findings.c.at_ms,
        found["doctor"].label("doctor"),
        found["alarms"].label("alarms"),
        found["lost"].as_string().label("lost"),
        found["lag_error"].as_string().label("lag_error"),
    )
    return {
        row.store_id: row
        for some in _chunks(ids)
        for row in connection.execute(query.where(findings.c.store_id.in_(some)))
    }


def _chunks(ids: Iterable[str]) -> Iterable[Sequence[str]]:
    all_ids = [*ids]
    return (all_ids[start : start + _MOST_IDS] for start in range(0, len(all_ids), _MOST_IDS))
