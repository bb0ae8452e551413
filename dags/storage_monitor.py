"""Between the cleanups of one store: renew its hold, take a sample, alarm. A DAG a store.

Its task fails where a person should look: on what others did to a held store, on a hold that can't be had,
and where the broker is behind with flush, dispatch, index or checkpoint.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.retention import StorageEngineMonitorOperator

for store in configured_stores():
    with DAG(
        dag_id=f"storage_monitor__{store.in_dag_ids}",
        description=f"{store.conn_id}: renew the hold, sample, alarm",
        schedule="*/10 * * * *",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed: its slot is the others', and the next run tries again.
        dagrun_timeout=timedelta(hours=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        StorageEngineMonitorOperator(task_id="monitor", **store.task_arguments)
