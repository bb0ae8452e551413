"""Between cleanups: renew the hold on each store whose broker runs, sample it, and measure how far that
broker is behind with flush, dispatch, index and checkpoint. A stopped broker's store is sampled and flushed.

A task fails where a person should look. Stores are the connections that the ``[storage_engine] stores``
option lists.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.storage_engine import configured_stores, queue_of
from storage_engine.operators.retention import StorageEngineTendOperator

with DAG(
    dag_id="storage_flush_checkpoint",
    description="Renew holds, sample, measure flush, dispatch, index and checkpoint, alarm",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["storage-engine"],
    doc_md=__doc__,
):
    for store in configured_stores():
        queue = queue_of(store)
        StorageEngineTendOperator(
            task_id=store, storage_engine_conn_id=store, **({"queue": queue} if queue else {})
        )
