"""Removes expired data of a lake's stores once a day. Each lake has such a DAG.

Each task removes expired parts of one store's reports, journal and lake, on a worker that sees the store's
disk. It may be killed at any instant and run again. The option ``[storage_engine] stores`` names the lakes.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import in_dag_ids, stores_by_lake, when_failed
from storage_engine.operators.retention import StorageEngineMaintainOperator

for lake, stores in stores_by_lake().items():
    with DAG(
        dag_id=f"storage_maintenance__{in_dag_ids(lake)}",
        description="Remove reports, journal and samples that have expired",
        schedule="@daily",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # If a store hangs, the next day's run still cleans the lake's other stores.
        dagrun_timeout=timedelta(hours=23),
        default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        for store in stores:
            StorageEngineMaintainOperator(
                task_id=store.in_dag_ids, compact=True, **store.task_arguments, **when_failed()
            )
