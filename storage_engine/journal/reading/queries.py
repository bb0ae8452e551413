"""Queries of the journal for readers: stores, runs, reports, levels over time, incidents, findings.

Nothing here creates or changes a journal, and a journal of another version is not upgraded. This module needs
only SQLAlchemy and the standard library, so that a web server may import it.

Events are read by the runs of a store: a journal with a million events has only thousands of runs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    cast,
    column,
    func,
    inspect,
    literal,
    null,
    select,
    table,
)
from sqlalchemy.exc import SQLAlchemyError

from storage_engine.commands import Command
from storage_engine.core.credentials import without_secrets
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.untrusted import MALFORMED
from storage_engine.core.wording import lock_advice
from storage_engine.exceptions import BadInputError, JournalUnavailableError
from storage_engine.journal.reading.answers import (
    DriftRow,
    Findings,
    GroupRow,
    HoldRow,
    Incident,
    LossRow,
    RunRow,
    SegmentRow,
    Standing,
    StoredReport,
    VerifiedRow,
)
from storage_engine.journal.reading.run_rows import (
    RUN_COLUMNS,
    read_cleanups,
    read_verdicts,
    run_row,
    undone_among,
)
from storage_engine.journal.reading.store_summaries import of_stores, read_summaries
from storage_engine.journal.records import Phase, Step, StoreRecord, Waiver
from storage_engine.journal.tables.database import place_of, read_only_engine, reads, sqlite_error
from storage_engine.journal.tables.rows import (
    EVENTS,
    MOST_VALUES,
    in_parts,
    read_archived_topics,
    read_rules,
    read_stores,
    read_topic_days,
)
from storage_engine.journal.tables.schema import (
    BECAME_OF_SEGMENT,
    IS_INCIDENT,
    SCHEMA_VERSION,
    disks,
    events,
    findings,
    groups,
    leases,
    levels,
    reports,
    runs,
    samples,
    schema_version,
    stores,
    waivers,
)
from storage_engine.model.lag import ArchiveLag

_STATES = {Step.ARCHIVE.value: "archived", Step.SEALED.value: "archived", Step.RELEASE.value: "deleted"}
"""A segment's state after the result of each step."""

_PARTS = 60
"""Number of parts of a span. Many drifts in one part are shown as one."""


def read_incidents(
    connection: Connection, store_id: str, *, since_ms: int = 0, until_ms: int | None = None, limit: int = 200
) -> tuple[Incident, ...]:
    """Return changes by other programs, accepted losses, and failed steps, the newest first.

    :param until_ms: only events before this time; None means no limit.
    """
    newest = (
        select(events.c.id)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, events.c.at_ms >= since_ms, IS_INCIDENT)
        .order_by(events.c.id.desc())
        .limit(limit)
    )
    if until_ms is not None:
        newest = newest.where(events.c.at_ms < until_ms)
    # Payloads are read only for these events.
    query = EVENTS.where(events.c.id.in_(newest)).order_by(events.c.id.desc())
    return tuple(
        Incident(row.run_key, row.step, row.subject, row.at_ms, row.payload)
        for row in connection.execute(query)
    )


def read_drifts(
    connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int = 200
) -> tuple[DriftRow, ...]:
    """Return changes by other programs in the time [start_ms, end_ms), by time.

    :param most: if there are more changes, each row has all changes in one part of the span.
    """
    at_ms = events.c.at_ms
    where = (
        runs.c.store_id == store_id,
        at_ms >= start_ms,
        at_ms < end_ms,
        IS_INCIDENT,
        events.c.step == Step.DRIFT.value,
        events.c.phase == Phase.RESULT.value,
    )
    of_runs = events.join(runs, events.c.run_id == runs.c.id)
    ids = connection.execute(select(events.c.id).select_from(of_runs).where(*where).limit(most + 1)).all()
    if not ids:
        return ()
    width_ms = max(1, -(-(end_ms - start_ms) // _PARTS))
    part = events.c.id if len(ids) <= most else (at_ms - start_ms) // width_ms
    grouped = (
        select(
            func.min(at_ms).label("first_ms"),
            func.max(at_ms).label("until_ms"),
            func.count().label("times"),
            func.max(events.c.id).label("last_id"),
        )
        .select_from(of_runs)
        .where(*where)
        .group_by(part)
    )
    rows = connection.execute(grouped).all()
    # Payloads are read only for the last ones.
    last = select(events.c.id, events.c.payload).where(events.c.id.in_([row.last_id for row in rows]))
    payloads = {row.id: row.payload for row in connection.execute(last)}
    drifts = [DriftRow(row.first_ms, payloads[row.last_id], row.times, row.until_ms) for row in rows]
    return tuple(sorted(drifts, key=lambda row: row.at_ms))


def read_segments(connection: Connection, store_id: str, *, limit: int = 1_000) -> tuple[SegmentRow, ...]:
    """Return the segments that runs archived or deleted last, the newest first, each once.

    The deletions of an undone run don't count: its segments have their earlier state.
    """
    # Rows are read only as far as needed: a journal may have a million.
    streamed = connection.execution_options(stream_results=True)
    by_subject: dict[str, Row[Any]] = {}
    # One run may have all of these segments, or a thousand runs may have one each.
    count = 1
    with streamed.execute(_last_of_runs(store_id)) as last_of_runs:
        while batch := [*islice(last_of_runs, count)]:
            after = min((row.id for row in by_subject.values()), default=0) if len(by_subject) == limit else 0
            # If a run's last event is older than all that were found, it adds none, nor do later rows.
            if (batch[0].last_id or 0) <= after:
                break
            newer = _find_last(streamed, [row.id for row in batch], after, limit)
            by_subject = _merge(by_subject, newer, limit)
            count = min(2 * count, MOST_VALUES)
    return tuple(_segment(row) for row in by_subject.values())


def _last_of_runs(store_id: str) -> Select[Any]:
    """Return a query of a store's runs with their last change of a segment's state, the newest first."""
    last = (
        select(events.c.id)
        .where(events.c.run_id == runs.c.id, BECAME_OF_SEGMENT)
        .order_by(events.c.id.desc())
        .limit(1)
        .scalar_subquery()
        .label("last_id")
    )
    return select(runs.c.id, last).where(runs.c.store_id == store_id).order_by(last.desc().nulls_last())


def _find_last(connection: Connection, run_ids: Sequence[int], after: int, limit: int) -> dict[str, Row[Any]]:
    """Return the last state event of each segment, the newest first, among newer events of these runs."""
    undone = {*connection.execute(undone_among(run_ids)).scalars()}
    query: Select[Any] = (
        select(events.c.id, events.c.run_id, runs.c.run_key, events.c.subject, events.c.step, events.c.at_ms)
        .join(runs, events.c.run_id == runs.c.id)
        .where(events.c.run_id.in_(run_ids), events.c.id > after, BECAME_OF_SEGMENT)
        .order_by(events.c.id.desc())
    )
    by_subject: dict[str, Row[Any]] = {}
    with connection.execute(query) as became:
        for row in became:
            if row.step != Step.RELEASE.value or row.run_id not in undone:
                by_subject.setdefault(row.subject, row)
            if len(by_subject) == limit:
                break
    return by_subject


def _merge(left: Mapping[str, Row[Any]], right: Mapping[str, Row[Any]], limit: int) -> dict[str, Row[Any]]:
    """Merge two results of :func:`_find_last`: at most ``limit`` segments' last events, the newest first."""
    rows = sorted([*left.values(), *right.values()], key=lambda row: -row.id)
    by_subject: dict[str, Row[Any]] = {}
    for row in rows:
        by_subject.setdefault(row.subject, row)
    return dict(list(by_subject.items())[:limit])


def _segment(row: Row[Any]) -> SegmentRow:
    log, _, base_offset = row.subject.rpartition("/")
    return SegmentRow(log, int(base_offset), _STATES[row.step], row.run_key, row.at_ms)


_LOSS = ("log", "lineage", "start_offset", "end_offset", "person", "reason")

_verifications = table(
    "storage_engine_verifications", *map(column, ("store_id", "receipt_hash", "level", "at_ms", "fault"))
)
"""The table of remembered checks. A journal has no such table before its first verification."""


def read_standing(connection: Connection, store_id: str, now_ms: int) -> Standing:
    """Return the store's hold, working process, waivers, accepted losses and remembered checks."""
    query = select(leases.c.owner, leases.c.expires_at_ms).where(
        leases.c.store_id == store_id, leases.c.token.is_not(None), leases.c.expires_at_ms > now_ms
    )
    lease = connection.execute(query).first()
    of_store = select(runs.c.plan_digest).where(runs.c.store_id == store_id)
    waived = select(waivers).where(waivers.c.plan_digest.in_(of_store)).order_by(waivers.c.at_ms)
    return Standing(
        hold=read_holds(connection, (store_id,)).get(store_id),
        worker=None if lease is None else lease.owner,
        worker_until_ms=None if lease is None else lease.expires_at_ms,
        waivers=tuple(Waiver(**row._mapping) for row in connection.execute(waived)),
        losses=_losses(connection, store_id),
        verified=read_verified(connection, (store_id,), counted=True).get(store_id),
    )


def read_holds(connection: Connection, store_ids: Collection[str]) -> dict[str, HoldRow]:
    """Return the findings of the last look at each store's hold, by the store's id."""
    last = (
        select(events.c.id)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == stores.c.store_id)
        .where(events.c.step == Step.HOLD, events.c.phase == Phase.RESULT)
        # Sorted by run first, so that its index ends the search at the newest run: a hold has many renewals.
        .order_by(runs.c.id.desc(), events.c.id.desc())
        .limit(1)
        .correlate(stores)
        .scalar_subquery()
    )
    query = (
        select(stores.c.store_id, runs.c.run_key, events.c.payload, events.c.at_ms)
        .select_from(stores)
        .join(events, events.c.id == last)
        .join(runs, events.c.run_id == runs.c.id)
    )
    return {row.store_id: _hold(row) for row in of_stores(connection, query, stores.c.store_id, store_ids)}


def _hold(row: Any) -> HoldRow:
    status = row.payload["result"]
    described = from_jsonable(str, status["described"]) if status.get("left_to_broker") else ""
    return HoldRow(status["held"], status.get("ends_at_ms"), row.run_key, row.at_ms, described)


def _losses(connection: Connection, store_id: str) -> tuple[LossRow, ...]:
    query = (
        select(events.c.payload, events.c.at_ms)
        .join(runs, events.c.run_id == runs.c.id)
        .where(runs.c.store_id == store_id, events.c.step == Step.ACCEPT_LOSS, events.c.phase == Phase.RESULT)
        .order_by(events.c.id)
    )
    return tuple(
        LossRow(**{name: row.payload["loss"][name] for name in _LOSS}, at_ms=row.at_ms)
        for row in connection.execute(query)
    )


def read_verified(
    connection: Connection, store_ids: Collection[str], *, counted: bool
) -> dict[str, VerifiedRow]:
    """Return the remembered checks of each store, by one query.

    :param counted: whether receipts are counted. Counting takes as long as everything else.
    """
    if not inspect(connection).has_table(_verifications.name):
        return {}
    columns = _verifications.c
    query = select(
        columns.store_id,
        func.count(columns.receipt_hash.distinct()) if counted else null(),
        func.min(columns.at_ms),
        func.max(columns.at_ms),
        func.count(columns.receipt_hash.distinct()).filter(columns.fault != ""),
    ).group_by(columns.store_id)
    return {
        store_id: VerifiedRow(*values)
        for store_id, *values in of_stores(connection, query, columns.store_id, store_ids)
    }


T = TypeVar("T")


class JournalReader:
    """:param url: SQLAlchemy URL of a journal.
    :param answer_seconds: how long a server may take to accept a connection, and to answer each query; None
        means the driver's own limit.
    :raises BadInputError: the text is no URL.
    """

    def __init__(self, url: str, answer_seconds: int | None = None) -> None:
        place = place_of(url)
        self.name, self._secrets, self._file = place.name, place.secrets, place.file
        with place.driver_errors():
            self._engine = read_only_engine(url, self._file, answer_seconds)

    def stores(self) -> tuple[StoreRecord, ...]:
        """Return every store, by name and path."""
        return tuple(sorted(self.read(read_stores), key=lambda store: (store.name or "", store.real_path)))

    summaries = reads(read_summaries)
    cleanups = reads(read_cleanups)
    drifts = reads(read_drifts)
    verdicts = reads(read_verdicts)
    incidents = reads(read_incidents)
    segments = reads(read_segments)
    topic_days = reads(read_topic_days)
    archived_topics = reads(read_archived_topics)
    rules = reads(read_rules)
    standing = reads(read_standing)

    def store_id(self, name: str) -> str | None:
        """Return the id of the store with this name; None if the journal knows no such store."""
        query = select(stores.c.store_id).where(stores.c.name == name)
        return self.read(lambda connection: connection.execute(query).scalar())

    def runs(self, store_id: str, *, before_id: int | None = None, limit: int = 50) -> tuple[RunRow, ...]:
        """Return a store's runs, the newest first.

        :param before_id: only runs begun before this run.
        """
        query = (
            select(*RUN_COLUMNS)
            .outerjoin(reports, reports.c.run_id == runs.c.id)
            .where(runs.c.store_id == store_id)
            .order_by(runs.c.id.desc())
            .limit(limit)
        )
        if before_id is not None:
            query = query.where(runs.c.id < before_id)
        rows = self.read(lambda connection: connection.execute(query).all())
        return tuple(run_row(row) for row in rows)

    def report(self, store_id: str, run_key: str) -> StoredReport | None:
        """Return a run's report. If the run changed nothing, return the report of run ``unchanged_since``.

        Return None if there is no report, or if it has expired.
        """
        query = (
            select(reports)
            .join(runs, reports.c.run_id == runs.c.id)
            .where(runs.c.store_id == store_id, runs.c.run_key == run_key)
        )

        def read(connection: Connection) -> StoredReport | str | None:
            row = connection.execute(query).first()
            if row is None or row.report is None:
                return None if row is None else row.unchanged_since
            return StoredReport(row.version, row.at_ms, json.loads(zlib.decompress(row.report)))

        answer = self.read(read)
        return self.report(store_id, answer) if isinstance(answer, str) else answer

    def findings(self, store_id: str) -> Findings | None:
        """Return the findings of the last look; None if there was no look yet."""
        query = select(findings).where(findings.c.store_id == store_id)
        row = self.read(lambda connection: connection.execute(query).first())
        return None if row is None else Findings(row.at_ms, row.findings)

    def groups(self, store_id: str, *, limit: int = 200) -> tuple[GroupRow, ...]:
        """Return the consumer groups as of the last look, sorted by the time until they lose messages."""
        query = (
            select(*(column for column in groups.columns if column is not groups.c.store_id))
            .where(groups.c.store_id == store_id)
            .order_by(groups.c.time_to_loss_ms.is_(None), groups.c.time_to_loss_ms, groups.c.consumer_group)
            .limit(limit)
        )
        rows = self.read(lambda connection: connection.execute(query).all())
        return tuple(GroupRow(**row._mapping) for row in rows)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of ``work``, which only reads.

        :raises JournalUnavailableError: there is no journal, or it can't be read.
        :raises BadInputError: the journal has another version.
        """
        if self._file is not None and not self._file.is_file():
            raise JournalUnavailableError(
                f"{self.name}: expected a journal, found none. Nothing was made. A first run makes it."
            )
        try:
            with self._engine.connect() as connection:
                self._check_version(connection)
                return work(connection)
        except (SQLAlchemyError, zlib.error, *MALFORMED) as error:
            if self._file is not None and sqlite_error(error) == "SQLITE_READONLY_ROLLBACK":
                raise JournalUnavailableError(
                    f"{self.name}: expected a journal without an unfinished transaction, found "
                    f"{self._file}-journal, which a killed writer left. Nothing was changed. Keep that "
                    "file: the next run on a store, or ",
                    Command("maintain"),
                    ", undoes the unfinished transaction with it. Then ask again.",
                ) from error
            # The error for a server that is down has several lines. The first one says it.
            first_line = str(getattr(error, "orig", None) or error).partition("\n")[0].rstrip()
            cause = without_secrets(first_line, self._secrets)
            advice = lock_advice(cause) or (
                "Make its database reachable and readable, bring it back from a backup if it is damaged, and "
                "ask again."
            )
            raise JournalUnavailableError(
                f"{self.name}: the journal can't be read ({cause}). {advice}"
            ) from error

    def _check_version(self, connection: Connection) -> None:
        has_version = inspect(connection).has_table(schema_version.name)
        version = connection.execute(select(schema_version.c.version)).scalar() if has_version else None
        if version != SCHEMA_VERSION:
            is_newer = version is not None and version > SCHEMA_VERSION
            raise BadInputError(
                f"{self.name}: expected journal schema version {SCHEMA_VERSION}, found {version}. Nothing "
                + (
                    "was changed. A newer release wrote it: install that release here, too."
                    if is_newer
                    else "was changed. The next run of this release brings an older one up to date."
                )
            )


@dataclass(frozen=True, slots=True)
class Moment:
    """Results of one look at the logs. A field is None if it is unknown."""

    at_ms: int
    oldest_message_ms: int | None
    min_offset: int | None
    max_offset: int | None
    archive_lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """The time [start_ms, end_ms), in buckets of one length. Buckets begin at multiples of that length."""

    start_ms: int
    end_ms: int
    bucket_ms: int

    @property
    def first_ms(self) -> int:
        return self.start_ms - self.start_ms % self.bucket_ms


Extremes = tuple[tuple[int, int], tuple[int, int]]
"""A bucket's lowest value and when it first occurred; its highest value and when it last occurred."""

_MIB = 1 << 20
_NONE = "-"
_MOMENT = (
    samples.c.at_ms,
    samples.c.oldest_message_ms,
    samples.c.min_offset,
    samples.c.max_offset,
    samples.c.archive_lag_bytes,
)


def count_samples(connection: Connection, store_id: str, start_ms: int, end_ms: int, most: int) -> int:
    """Return the number of samples between two moments. It counts at most ``most``."""
    limited = select(samples.c.at_ms).where(*_within(store_id, start_ms, end_ms)).limit(most).subquery()
    return connection.execute(select(func.count()).select_from(limited)).scalar_one()


def read_moments(connection: Connection, store_id: str, start_ms: int, end_ms: int) -> tuple[Moment, ...]:
    """Return every sample in the time [start_ms, end_ms), by time."""
    query = select(*_MOMENT).where(*_within(store_id, start_ms, end_ms)).order_by(samples.c.at_ms)
    return tuple(Moment(*row) for row in connection.execute(query))


def read_archive_lags(
    connection: Connection, store_id: str, start_ms: int, end_ms: int
) -> tuple[ArchiveLag, ...]:
    """Return every measured archive lag in the time [start_ms, end_ms), by time."""
    measured = (*_within(store_id, start_ms, end_ms), samples.c.archive_lag.is_not(None))
    query = select(samples.c.archive_lag).where(*measured).order_by(samples.c.at_ms)
    return tuple(from_jsonable(ArchiveLag, lag) for lag in connection.execute(query).scalars())


def last_moments(connection: Connection, store_id: str, span: BucketSpan) -> tuple[Moment, ...]:
    """Return each bucket's last sample with known log ends, by time."""
    conditions = (samples.c.store_id == store_id, samples.c.max_offset.is_not(None))
    return moments_at(connection, store_id, _last_in_buckets(connection, samples.c.at_ms, conditions, span))


def _last_in_buckets(
    connection: Connection,
    at_ms: ColumnElement[int],
    conditions: Sequence[ColumnElement[bool]],
    span: BucketSpan,
) -> list[int]:
    """Return the time of a table's last row in each bucket that has rows."""
    buckets = _starts(span)
    last = select(at_ms).where(*conditions, *_inside(at_ms, buckets, span)).order_by(at_ms.desc()).limit(1)
    # Not joined to the table's rows, because a database may begin with all of those.
    moments = connection.execute(select(last.scalar_subquery()).select_from(buckets)).scalars()
    return [moment for moment in moments if moment is not None]


def moments_at(connection: Connection, store_id: str, moments: Collection[int]) -> tuple[Moment, ...]:
    """Return the samples at these moments, by time."""
    query = select(*_MOMENT).where(samples.c.store_id == store_id).order_by(samples.c.at_ms)
    return tuple(
        Moment(*row)
        for batch in in_parts(sorted(moments))
        for row in connection.execute(query.where(samples.c.at_ms.in_(batch)))
    )


def levels_at(connection: Connection, disk_id: int, moments: Collection[int]) -> dict[int, int | None]:
    """Return the level of a disk at these moments; None if it is not known."""
    query = select(levels.c.at_ms, levels.c.used_percent).where(levels.c.disk_id == disk_id)
    return {
        row.at_ms: row.used_percent
        for batch in in_parts(sorted(moments))
        for row in connection.execute(query.where(levels.c.at_ms.in_(batch)))
    }


def sample_extremes(
    connection: Connection, store_id: str, span: BucketSpan
) -> tuple[Sequence[Extremes | None], Sequence[Extremes | None], Sequence[Extremes | None]]:
    """Return each bucket's extremes of the samples' times and of two values; None for an empty bucket.

    The values are the retention time in whole seconds, and the unarchived bytes in whole MiB.
    """
    buckets, where = _starts(span), samples.c.store_id == store_id
    at_ms = samples.c.at_ms
    conditions = _inside(at_ms, buckets, span)
    ends = [select(end(at_ms)).where(where, *conditions).scalar_subquery() for end in (func.min, func.max)]
    query = select(*ends).select_from(buckets)
    moments: list[Extremes | None] = [
        None if first is None else ((first, first), (last, last)) for first, last in connection.execute(query)
    ]
    retention = (at_ms - samples.c.oldest_message_ms) // 1000
    values = (retention, samples.c.archive_lag_bytes // _MIB)
    kept, lagging = _extremes(connection, at_ms, values, where, span)
    return moments, kept, lagging


def last_used_bytes(connection: Connection, disk_id: int, span: BucketSpan) -> tuple[tuple[int, int], ...]:
    """Return the time and used bytes of a disk at each bucket's last look with known sizes, by time."""
    used_bytes = levels.c.total_bytes - levels.c.usable_bytes
    conditions = (levels.c.disk_id == disk_id, used_bytes.is_not(None))
    moments = _last_in_buckets(connection, levels.c.at_ms, conditions, span)
    query = select(levels.c.at_ms, used_bytes.label("used_bytes")).where(*conditions).order_by(levels.c.at_ms)
    return tuple(
        (row.at_ms, row.used_bytes)
        for batch in in_parts(sorted(moments))
        for row in connection.execute(query.where(levels.c.at_ms.in_(batch)))
    )


def level_extremes(connection: Connection, disk_id: int, span: BucketSpan) -> Sequence[Extremes | None]:
    """Return each bucket's extremes of a disk's level; None for a bucket without a known level."""
    where = levels.c.disk_id == disk_id
    (extremes,) = _extremes(connection, levels.c.at_ms, (levels.c.used_percent,), where, span)
    return extremes


def disk_ids(connection: Connection, store_id: str) -> dict[str, int]:
    """Return the numbers of a store's disks, by path."""
    query = select(disks.c.path, disks.c.id).where(disks.c.store_id == store_id).order_by(disks.c.path)
    return {row.path: row.id for row in connection.execute(query)}


def read_levels(
    connection: Connection, disk_id: int, start_ms: int, end_ms: int
) -> tuple[tuple[int, int | None], ...]:
    """Return every level of a disk in the time [start_ms, end_ms), by time; None if it is not known."""
    query = (
        select(levels.c.at_ms, levels.c.used_percent)
        .where(levels.c.disk_id == disk_id, levels.c.at_ms >= start_ms, levels.c.at_ms < end_ms)
        .order_by(levels.c.at_ms)
    )
    return tuple((row.at_ms, row.used_percent) for row in connection.execute(query))


def last_level_outside(
    connection: Connection, disk_id: int, start_ms: int, end_ms: int, low_percent: int, high_percent: int
) -> int | None:
    """Return the last level in the time [start_ms, end_ms) that isn't in (low_percent, high_percent]."""
    used = levels.c.used_percent
    query = (
        select(used)
        .where(levels.c.disk_id == disk_id, levels.c.at_ms >= start_ms, levels.c.at_ms < end_ms)
        .where((used <= low_percent) | (used > high_percent))
        .order_by(levels.c.at_ms.desc())
        .limit(1)
    )
    return connection.execute(query).scalar()


def _extremes(
    connection: Connection,
    at_ms: ColumnElement[int],
    values: Sequence[ColumnElement[int]],
    where: ColumnElement[bool],
    span: BucketSpan,
) -> list[list[Extremes | None]]:
    """Return, for each value, each bucket's extremes; None for a bucket without the value.

    A subquery for each bucket reads the bucket's rows once. Grouping all rows would sort them all.
    """
    buckets = _starts(span)
    # Each number has a value and its moment within the bucket, so that an extreme has its moment.
    bucket_ms = literal(span.bucket_ms, BigInteger)
    keys = [value * bucket_ms + at_ms - buckets.c.start_ms for value in values]
    texts: list[ColumnElement[str]] = [
        func.coalesce(cast(extreme(key), Text), literal(_NONE, Text))
        for key in keys
        for extreme in (func.min, func.max)
    ]
    all_in_one = reduce(lambda left, right: left + literal(" ", Text) + right, texts)
    joined = select(all_in_one).where(where, *_inside(at_ms, buckets, span)).correlate(buckets)
    results: list[list[Extremes | None]] = [[] for _ in values]
    for start_ms, text in connection.execute(select(buckets.c.start_ms, joined.scalar_subquery())):
        keys_of = text.split()
        for of_value, lowest, highest in zip(results, keys_of[::2], keys_of[1::2], strict=True):
            if lowest == _NONE:
                of_value.append(None)
                continue
            low, low_after = divmod(int(lowest), span.bucket_ms)
            high, high_after = divmod(int(highest), span.bucket_ms)
            of_value.append(((low, start_ms + low_after), (high, start_ms + high_after)))
    return results


def _starts(span: BucketSpan) -> CTE:
    first = select(cast(literal(span.first_ms, BigInteger), BigInteger).label("start_ms"))
    starts = first.cte("buckets", recursive=True)
    following = starts.c.start_ms + span.bucket_ms
    return starts.union_all(select(following).where(following < span.end_ms))


def _inside(at_ms: ColumnElement[int], buckets: CTE, span: BucketSpan) -> tuple[ColumnElement[bool], ...]:
    return at_ms >= buckets.c.start_ms, at_ms < buckets.c.start_ms + span.bucket_ms, at_ms < span.end_ms


def _within(store_id: str, start_ms: int, end_ms: int) -> tuple[ColumnElement[bool], ...]:
    return samples.c.store_id == store_id, samples.c.at_ms >= start_ms, samples.c.at_ms < end_ms
