"""Tables of the journal, in the SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 7

metadata = MetaData()

_serial = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows by itself only where the key's type is INTEGER."""

schema_version = Table(
    "storage_engine_schema",
    metadata,
    Column("version", Integer, primary_key=True),
)

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
"""Two machines may each have a store at one path; name NULL: nobody has stated one."""
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
"""Why offsets were allowed to carry other bytes, of one log or of all (NULL); the first has no row."""

log_lineages = Table(
    "storage_engine_log_lineages",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("log", Text, primary_key=True),
    Column("lineage", Integer, nullable=False),
)
"""Of logs whose lineage isn't the store's."""

leases = Table(
    "storage_engine_leases",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("token", String(36)),
    Column("expires_at_ms", BigInteger, nullable=False),
)
"""One row a store, made with it, so that taking a lease is one conditional UPDATE; token NULL: free."""

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

plans = Table(
    "storage_engine_plans",
    metadata,
    Column("id", _serial, primary_key=True, autoincrement=True),
    Column("store_id", ForeignKey(stores.c.store_id), nullable=False),
    Column("run_key", String(250), nullable=False),
    Column("decisions", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""Decisions of plans, packed by ``plan_columns``; ``runs.plan`` names a row here and what differs from it."""
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
)
Index("storage_engine_samples_by_store", samples.c.store_id, samples.c.at_ms)

holds = Table(
    "storage_engine_holds",
    metadata,
    Column("store_id", ForeignKey(stores.c.store_id), primary_key=True),
    Column("state", JSON, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
"""What a broker folder remembers of its hold on a store beside a running broker; no row: not held."""

waivers = Table(
    "storage_engine_waivers",
    metadata,
    Column("plan_digest", String(64), primary_key=True),
    Column("person", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
