"""Journals as older releases wrote them."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def set_back(path: Path, version: int) -> None:
    """Make a journal one of an older version, as far as the tables that changed go."""
    machine = "" if version == 1 else "host TEXT,"
    columns = f"store_id, real_path, broker, lineage, created_at_ms{machine and ', host'}"
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(
            f"""
            BEGIN;
            UPDATE storage_engine_schema SET version = {version};
            DROP TABLE storage_engine_cluster_leases;
            COMMIT;
            """
        )
    if version == 10:
        connection.close()
        return
    with connection:
        connection.executescript(
            """
            BEGIN;
            DROP TABLE storage_engine_rules;
            DROP INDEX storage_engine_runs_by_store;
            ALTER TABLE storage_engine_reports DROP COLUMN validation;
            ALTER TABLE storage_engine_reports DROP COLUMN lost_ranges;
            COMMIT;
            """
        )
    if version == 9:
        connection.close()
        return
    with connection:
        connection.executescript(
            """
            BEGIN;
            DROP TABLE storage_engine_topic_days;
            DROP INDEX storage_engine_events_incidents;
            DROP INDEX storage_engine_events_of_segments;
            COMMIT;
            """
        )
    if version == 8:
        connection.close()
        return
    with connection:
        connection.executescript(
            f"""
            PRAGMA foreign_keys=OFF;
            BEGIN;
            CREATE TABLE old (
                store_id VARCHAR(36) NOT NULL, real_path TEXT NOT NULL, broker VARCHAR(64) NOT NULL,
                lineage INTEGER NOT NULL, created_at_ms BIGINT NOT NULL, {machine}
                PRIMARY KEY (store_id), UNIQUE (real_path)
            );
            INSERT INTO old ({columns}) SELECT {columns} FROM storage_engine_stores;
            DROP TABLE storage_engine_stores;
            ALTER TABLE old RENAME TO storage_engine_stores;
            ALTER TABLE storage_engine_lineages DROP COLUMN log;
            DROP TABLE storage_engine_log_lineages;
            DROP TABLE storage_engine_levels;
            DROP TABLE storage_engine_disks;
            DROP TABLE storage_engine_reports;
            DROP TABLE storage_engine_findings;
            DROP TABLE storage_engine_groups;
            DROP TABLE storage_engine_heads;
            DROP INDEX storage_engine_samples_measured;
            UPDATE storage_engine_samples SET levels = '[{{"path": "/s", "used_percent": 50}}]';
            ALTER TABLE storage_engine_samples DROP COLUMN min_offset;
            ALTER TABLE storage_engine_samples DROP COLUMN max_offset;
            ALTER TABLE storage_engine_samples DROP COLUMN oldest_message_ms;
            ALTER TABLE storage_engine_samples DROP COLUMN archive_lag_bytes;
            COMMIT;
            """
        )
        if version == 1:
            connection.execute("DROP TABLE storage_engine_holds")
            for column in ("archive_lag", "clock", "progress"):
                connection.execute(f"ALTER TABLE storage_engine_samples DROP COLUMN {column}")
    connection.close()
