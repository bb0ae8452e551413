"""Tables of the journal, in the SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    literal_column,
    or_,
)

from storage_engine.journal.records import Phase, Step

SCHEMA_VERSION = 11

metadata = MetaData()

_serial = BigInteger().with_variant(Integer(), "sqlite")
"""Type of a row number. SQLite numbers rows by itself only if the key's type is INTEGER."""

schema_version = Table("storage_engine_schema", metadata, Column("version", Integer, primary_key=True))

stores = Table(
    "storage_engine_stores",
    metadata,
    Column("store_id", String(36), primary_key=True),
    Column("real_path", Text, nullable=False),
    Column("broker", String(64), nullable=False),
    Column("lineage", Integer, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("host", Text),
    Column("name", Text),
    UniqueConstraint("host", "real_path"),
)
"""The stores. Two machines may each have a store at the same path. name NULL: the store has no name."""
stores_by_name = Index("storage_engine_stores_by_name", stores.c.name, unique=True)

lineages = Table(
    "storage_engine_lineages",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("lineage", Integer, primary_key=True),
    Column("person", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("opened_at_ms", BigInteger, nullable=False),
    Column("log", Text),
)
"""The reason for each new lineage. log NULL: the lineage is for all logs. The first lineage has no row."""

log_lineages = Table(
    "storage_engine_log_lineages",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("log", Text, primary_key=True),
    Column("lineage", Integer, nullable=False),
)
"""Lineages of single logs. All other logs have the store's lineage."""

leases = Table(
    "storage_engine_leases",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", String(36)),
    Column("expires_at_ms", BigInteger, nullable=False),
)
"""Leases of stores. Each store's row is made with the store, so that taking a lease is one conditional
UPDATE. token NULL: free.
"""

cluster_leases = Table(
    "storage_engine_cluster_leases",
    metadata,
    Column("cluster", String(250), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", String(36)),
    Column("expires_at_ms", BigInteger, nullable=False),
)
"""Leases of runs that change a cluster's shared settings. A row is made when its lease is first taken."""

runs = Table(
    "storage_engine_runs",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("run_key", String(250), nullable=False),
    Column("state", String(16), nullable=False),
    Column("request", JSON, nullable=False),
    Column("plan", JSON(none_as_null=True)),
    Column("plan_digest", String(64)),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("finished_at_ms", BigInteger),
    UniqueConstraint("store_id", "run_key"),
)
runs_by_store = Index("storage_engine_runs_by_store", runs.c.store_id, runs.c.id)

plans = Table(
    "storage_engine_plans",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("run_key", String(250), nullable=False),
    Column("decisions", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Decisions of plans, packed by ``rows.pack``. ``runs.plan`` names a row here and the differences from it."""
Index("storage_engine_plans_by_store", plans.c.store_id, plans.c.id)

events = Table(
    "storage_engine_events",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("run_id", ForeignKey(runs.c.id), nullable=False),
    Column("step", String(32), nullable=False),
    Column("phase", String(8), nullable=False),
    Column("subject", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
Index("storage_engine_events_by_run", events.c.run_id, events.c.step)


def _literal(word: str) -> ColumnElement[str]:
    """Return a word as literal SQL: SQLite uses a partial index only for a condition without parameters."""
    return literal_column(f"'{word}'", String)


_is_result = events.c.phase == _literal(Phase.RESULT)
IS_INCIDENT = or_(
    events.c.phase == _literal(Phase.ERROR),
    and_(_is_result, events.c.step.in_([_literal(Step.DRIFT), _literal(Step.ACCEPT_LOSS)])),
)
"""Condition for events on changes by other programs, accepted losses, and failed steps."""
events_incidents = Index(
    "storage_engine_events_incidents",
    events.c.run_id,
    events.c.id,
    events.c.at_ms,
    sqlite_where=IS_INCIDENT,
    postgresql_where=IS_INCIDENT,
)
BECAME_OF_SEGMENT = and_(
    _is_result,
    events.c.step.in_([_literal(Step.ARCHIVE), _literal(Step.SEALED), _literal(Step.RELEASE)]),
    events.c.subject != _literal(""),
)
"""Condition for events on segments that runs have archived or deleted."""
events_of_segments = Index(
    "storage_engine_events_of_segments",
    events.c.run_id,
    events.c.id,
    sqlite_where=BECAME_OF_SEGMENT,
    postgresql_where=BECAME_OF_SEGMENT,
)
"""Indexes for the events that pages show. They contain the events of older releases, too."""

heads = Table(
    "storage_engine_heads",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("lake_id", Text, nullable=False),
    Column("location", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("row_hash", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("event_id", BigInteger, nullable=False),
)
"""The last receipts that runs have recorded in each lake; see ``rows.project``."""
Index("storage_engine_heads_by_store", heads.c.store_id, heads.c.event_id)

samples = Table(
    "storage_engine_samples",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("levels", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("archive_lag", JSON(none_as_null=True)),
    Column("clock", JSON(none_as_null=True)),
    Column("progress", JSON(none_as_null=True)),
    Column("min_offset", BigInteger),
    Column("max_offset", BigInteger),
    Column("oldest_message_ms", BigInteger),
    Column("archive_lag_bytes", BigInteger),
)
"""Samples of stores. Since version 8 levels have their own table, and ``levels`` is an empty list.
Offsets are sums over the store's logs.
"""
Index("storage_engine_samples_by_store", samples.c.store_id, samples.c.at_ms)
samples_measured = Index(
    "storage_engine_samples_measured",
    samples.c.store_id,
    samples.c.at_ms,
    samples.c.min_offset,
    samples.c.max_offset,
    samples.c.oldest_message_ms,
    samples.c.archive_lag_bytes,
)
"""An index with all values of a chart, so that the rows with their JSON need not be read."""

disks = Table(
    "storage_engine_disks",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("path", Text, nullable=False),
    UniqueConstraint("store_id", "path"),
)
"""The paths of each store whose disks are measured."""

levels = Table(
    "storage_engine_levels",
    metadata,
    Column("disk_id", ForeignKey(disks.c.id), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True),
    Column("used_percent", Integer),
    Column("total_bytes", BigInteger),
    Column("usable_bytes", BigInteger),
    Column("device", BigInteger),
    Column("error", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""Levels of disks at samples. used_percent NULL: not known, and error says why."""

reports = Table(
    "storage_engine_reports",
    metadata,
    Column("run_id", ForeignKey(runs.c.id), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("causes", Text, nullable=False),
    Column("deleted_segments", Integer, nullable=False),
    Column("freed_bytes", BigInteger, nullable=False),
    Column("unchanged_since", String(250)),
    Column("report", LargeBinary),
    Column("at_ms", BigInteger, nullable=False),
    Column("validation", String(16)),
    Column("lost_ranges", Integer),
)
"""Runs' outcomes and reports. A report is JSON compressed by zlib, and ``version`` is the version of its
fields. If a run has no report, the report of the run ``unchanged_since`` counts. In rows of versions
before 10, the validation's verdict and the number of unaccepted lost ranges are NULL.
"""

groups = Table(
    "storage_engine_groups",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("consumer_group", Text, primary_key=True),
    Column("lag_messages", BigInteger, nullable=False),
    Column("unknown_queues", Integer, nullable=False),
    Column("first_unread_offset", BigInteger),
    Column("time_to_loss_ms", BigInteger),
    Column("at_ms", BigInteger, nullable=False),
)
"""Each consumer group's lag at the last look."""

topic_days = Table(
    "storage_engine_topic_days",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("log", Text, primary_key=True),
    Column("base_offset", BigInteger, primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("day", BigInteger, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("messages", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Bytes of archived segments by topic and UTC day. Days are counted from 1970-01-01. Topic "" is the sum
of all topics without their own row.
"""
Index(
    "storage_engine_topic_days_by_day",
    topic_days.c.store_id,
    topic_days.c.day,
    topic_days.c.topic,
    topic_days.c.bytes,
    topic_days.c.messages,
)

findings = Table(
    "storage_engine_findings",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("findings", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Findings of the last look at a store between its cleanups."""

rules = Table(
    "storage_engine_rules",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True),
    Column("rules", JSON, nullable=False),
    sqlite_with_rowid=False,
)
"""The rules by which a store's broker deletes, from a moment on. A row exists only where they changed."""

holds = Table(
    "storage_engine_holds",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("state", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""The state of a hold on a running broker's store, as the broker's package stored it. No row: not held."""

waivers = Table(
    "storage_engine_waivers",
    metadata,
    Column("plan_digest", String(64), primary_key=True),
    Column("person", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
