"""Watches the five background tasks of a Kafka node (LogManager), for each store of ``kafka_stores``.

While the broker runs, a task of the DAG fails if a person should look, such as at an overdue background task.
While it is stopped, files that it had begun to remove are removed if a lake has them, and files of a clean
stop are verified. No cleanup begins here: ``storage_retention__STORE`` deletes expired segments.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import configured_stores, when_failed
from storage_engine.operators.retention import StorageEngineBrokerTaskOperator

TASKS = {
    "cleanup_logs": "cleanupLogs",
    "flush_dirty_logs": "flushDirtyLogs",
    "checkpoint_log_recovery_offsets": "checkpointLogRecoveryOffsets",
    "checkpoint_log_start_offsets": "checkpointLogStartOffsets",
    "delete_logs": "deleteLogs",
}

for store in configured_stores("kafka_stores"):
    with DAG(
        dag_id=f"storage_kafka_log_manager__{store.in_dag_ids}",
        description=f"{store.conn_id}: watch the broker's background tasks, finish them while it is stopped",
        schedule="@hourly",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # Two of the tasks lock a stopped node.
        max_active_tasks=1,
        # A run that hangs ends as failed and frees its slot, and the next run tries again.
        dagrun_timeout=timedelta(hours=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        for task_id, name in TASKS.items():
            StorageEngineBrokerTaskOperator(
                task_id=task_id, broker_task=name, **store.task_arguments, **when_failed()
            )
