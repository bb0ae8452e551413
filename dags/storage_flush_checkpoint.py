"""Flushes a store's files, and reads its broker's checkpoint. Each store has such a DAG.

A running broker flushes by itself: the lag of its flush, dispatch, index and checkpoint is measured.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import configured_stores, when_failed
from storage_engine.operators.retention import StorageEngineFlushCheckpointOperator

for store in configured_stores():
    with DAG(
        dag_id=f"storage_flush_checkpoint__{store.in_dag_ids}",
        description=f"{store.conn_id}: flush, read the checkpoint, measure",
        schedule="@hourly",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed and frees its slot, and the next run tries again.
        dagrun_timeout=timedelta(hours=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        StorageEngineFlushCheckpointOperator(
            task_id="flush_checkpoint", **store.task_arguments, **when_failed()
        )
