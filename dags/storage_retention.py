"""Retention of every configured store: wait for a cause, archive with proof, then delete.

Stores are the connections that the ``[storage_engine] stores`` option lists.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, TaskGroup

from storage_engine.hooks.storage_engine import configured_stores
from storage_engine.operators.task_groups import sensed_cleanup

with DAG(
    dag_id="storage_retention",
    description="Sense, plan, check lag, archive, prove, delete, validate, report",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["storage-engine"],
    doc_md=__doc__,
):
    for store in configured_stores():
        with TaskGroup(group_id=store):
            sensed_cleanup(store, sense_for=timedelta(minutes=9))
