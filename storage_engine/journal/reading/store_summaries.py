"""Summaries of a journal's stores, by a fixed number of queries for any number of stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, case, func, or_, select

from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import filled
from storage_engine.journal.reading.answers import RunRow
from storage_engine.journal.reading.run_rows import RUN_COLUMNS, run_row
from storage_engine.journal.tables.rows import RulesRow, in_parts
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


@dataclass(frozen=True, slots=True)
class DiskLevel:
    """The level of a disk at the last look at the store, and its free bytes at an earlier look.

    :param used_percent: the level; None if not known, and ``error`` says why.
    :param earlier_usable_bytes: free bytes at ``earlier_ms``, the first look within the last day; None if not
        known.
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

    :param sampled_at_ms: time of the last look at the store; None if there was none.
    :param archive_lag_bytes: archive lag at the last measurement within the last day; None if there was none.
    :param lagging_groups: number of consumer groups whose first unread message may be deleted within a day;
        None if no group's lag is known.
    :param last_run: the last run that planned a deletion or wrote a report; None if there was none.
    :param rules: the broker's last recorded rules; None if none were recorded.
    :param doctor: doctor's findings at the last look, the most urgent first; None before doctor's first look.
    :param alarms: alarms of the last look.
    :param lost: lost offsets at the last look, without losses that a person has accepted; "" if no
        offset is lost; None if not known. ``lost_ranges`` is the number of lost ranges.
    :param archive_lag_seconds: time since the last write to the oldest unarchived segment, measured together
        with ``archive_lag_bytes`` at ``archive_lag_at_ms``.
    :param time_to_loss_ms: shortest time until a group loses an unread message; None if no group is known to
        lose one.
    :param due_bytes: bytes that a cleanup requested by a person would have deleted at the last look. For
        ``due_unproven_bytes`` of these bytes, no lake has a proof.
    :param validated_at_ms: when the last run with a ``validation`` wrote its report.
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
    alarms: tuple[Any, ...] = ()
    lost: str | None = None
    lost_ranges: int | None = None
    archive_lag_seconds: int | None = None
    archive_lag_at_ms: int | None = None
    time_to_loss_ms: int | None = None
    due_bytes: int | None = None
    due_unproven_bytes: int | None = None
    validated_at_ms: int | None = None
    validation: str | None = None


def read_summaries(
    connection: Connection, names: Collection[str] | None, now_ms: int
) -> tuple[StoreSummary, ...]:
    """Return summaries of stores, in the order of name and path.

    :param names: names of the stores; None for all stores.
    """
    rows = _stores(connection, names, now_ms)
    ids = [row.store_id for row in rows]
    found_levels, lagging = _levels(connection, ids, now_ms), _lagging(connection, ids)
    last_runs, facts = _last_runs(connection, ids), _findings(connection, ids)
    last_rules, verdicts = _last_rules(connection, ids), _last_verdicts(connection, ids)
    return tuple(
        _summary(
            row,
            # A disk that is no longer measured has no level now.
            tuple(level for level in found_levels[row.store_id] if level.at_ms == row.sampled_at_ms),
            lagging.get(row.store_id, (0, None)),
            last_runs.get(row.store_id),
            last_rules.get(row.store_id),
            facts.get(row.store_id),
            verdicts.get(row.store_id),
        )
        for row in rows
    )


def _summary(
    row: Any,
    levels: tuple[DiskLevel, ...],
    lagging: tuple[int, int | None],
    last_run: RunRow | None,
    last_rules: RulesRow | None,
    facts: Any,
    verdict: Any,
) -> StoreSummary:
    values: dict[str, Any] = {"doctor": None, "found_at_ms": None, "lagging_groups": None}
    if facts is not None:
        due = facts.due or {}
        values["doctor"], values["found_at_ms"] = tuple(facts.doctor or ()), facts.at_ms
        values |= {"alarms": tuple(facts.alarms or ()), "lost": facts.lost, "lost_ranges": facts.lost_ranges}
        values |= {"due_bytes": due.get("size_bytes"), "due_unproven_bytes": due.get("unproven_bytes")}
        # If the lag could not be measured, the journal still has the groups' earlier lag.
        if facts.lag_error == "":
            values["lagging_groups"], values["time_to_loss_ms"] = lagging
    if verdict is not None:
        values |= {"validated_at_ms": verdict.at_ms, "validation": verdict.validation}
    return filled(StoreSummary, row, levels=levels, last_run=last_run, rules=last_rules, **values)


def _stores(connection: Connection, names: Collection[str] | None, now_ms: int) -> list[Any]:
    of_store = samples.c.store_id == stores.c.store_id
    last = select(func.max(samples.c.at_ms)).where(of_store).correlate(stores).scalar_subquery()
    oldest = (
        select(samples.c.oldest_message_ms)
        .where(of_store)
        .order_by(samples.c.at_ms.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    lag_bytes, lag_seconds, lag_at_ms = (
        select(column)
        .where(of_store, samples.c.at_ms >= now_ms - DAY_MS, samples.c.archive_lag_bytes.is_not(None))
        .order_by(samples.c.at_ms.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
        for column in (
            samples.c.archive_lag_bytes,
            samples.c.archive_lag["oldest_age_seconds"].as_integer(),
            samples.c.at_ms,
        )
    )
    query = select(
        stores,
        last.label("sampled_at_ms"),
        oldest.label("oldest_message_ms"),
        lag_bytes.label("archive_lag_bytes"),
        lag_seconds.label("archive_lag_seconds"),
        lag_at_ms.label("archive_lag_at_ms"),
    )
    if names is None:
        rows = [*connection.execute(query)]
    else:
        rows = [*of_stores(connection, query, stores.c.name, names)]
    return sorted(rows, key=lambda row: (row.name or "", row.real_path))


def _levels(connection: Connection, ids: Sequence[str], now_ms: int) -> dict[str, list[DiskLevel]]:
    latest, before = levels.alias("mine"), levels.alias("before")
    last = select(func.max(latest.c.at_ms)).where(latest.c.disk_id == disks.c.id).correlate(disks)
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
    by_store: dict[str, list[DiskLevel]] = defaultdict(list)
    for store_id, *row in of_stores(connection, query, disks.c.store_id, ids):
        by_store[store_id].append(DiskLevel(*row))
    return by_store


def _at(of_disk: Any, at_ms: ScalarSelect[Any]) -> Any:
    return (of_disk.c.disk_id == disks.c.id) & (of_disk.c.at_ms == at_ms)


def _lagging(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """Return by store how many groups may lose a message within a day, and the shortest time to a loss."""
    losing = func.count(case((groups.c.time_to_loss_ms <= DAY_MS, 1)))
    query = select(groups.c.store_id, losing, func.min(groups.c.time_to_loss_ms)).group_by(groups.c.store_id)
    return {
        store_id: (count, soonest_ms)
        for store_id, count, soonest_ms in of_stores(connection, query, groups.c.store_id, ids)
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
    return {row.store_id: run_row(row) for row in of_stores(connection, query, stores.c.store_id, ids)}


def _last_verdicts(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    """Return, for each store, the time and verdict of its last report that has a validation."""
    other, of_other = runs.alias("other"), reports.alias("of_other")
    last = (
        select(other.c.id)
        .join(of_other, of_other.c.run_id == other.c.id)
        .where(other.c.store_id == stores.c.store_id, of_other.c.validation != "")
        .order_by(other.c.id.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    query = (
        select(stores.c.store_id, reports.c.at_ms, reports.c.validation)
        .select_from(stores)
        .join(reports, reports.c.run_id == last)
    )
    return {row.store_id: row for row in of_stores(connection, query, stores.c.store_id, ids)}


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
        for row in of_stores(connection, query, stores.c.store_id, ids)
    }


def _findings(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    # Only these findings: the others are for the page of one store.
    column = findings.c.findings
    query = select(
        findings.c.store_id,
        findings.c.at_ms,
        column["doctor"].label("doctor"),
        column["alarms"].label("alarms"),
        column["lost"].as_string().label("lost"),
        column["lost_ranges"].as_integer().label("lost_ranges"),
        column["due"].label("due"),
        column["lag_error"].as_string().label("lag_error"),
    )
    return {row.store_id: row for row in of_stores(connection, query, findings.c.store_id, ids)}


def of_stores(
    connection: Connection, query: Select[Any], column: ColumnElement[Any], values: Iterable[str]
) -> Iterator[Any]:
    """Yield the rows of a query in which ``column`` has one of ``values``, however many these are."""
    for batch in in_parts(values):
        yield from connection.execute(query.where(column.in_(batch)))
