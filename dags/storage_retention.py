"""Retention of one store: wait for a cause, archive with proof, then delete. A DAG a store.

Stores are those that the ``[storage_engine] stores`` option lists.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import sensed_cleanup

for store in configured_stores():
    with DAG(
        dag_id=f"storage_retention__{store.in_dag_ids}",
        description=f"{store.conn_id}: sense, plan, check lag, archive, prove, delete, validate, report",
        schedule=store.schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        sensed_cleanup(store, sense_for=timedelta(minutes=9))
