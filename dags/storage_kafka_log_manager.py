"""The five background tasks of a Kafka node (LogManager), a task each. A DAG a store of ``kafka_stores``.

Beside a running broker they are watched: a task fails where a person should look, as one of the broker's is
overdue. While the broker is stopped, what it had begun to remove is removed where a lake has it, and what a
clean stop writes is verified. No cleanup begins here: ``storage_retention__STORE`` deletes what has expired.
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
        description=f"{store.conn_id}: watch the broker's background tasks, end them while it is stopped",
        schedule="@hourly",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # Two of them lock a stopped node.
        max_active_tasks=1,
        # A run that hangs ends as failed: its slot is the others', and the next run tries again.
        dagrun_timeout=timedelta(hours=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        for task_id, name in TASKS.items():
            StorageEngineBrokerTaskOperator(
                task_id=task_id, broker_task=name, **store.task_arguments, **when_failed()
            )
