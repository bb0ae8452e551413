"""Maintenance of a lake's stores: what has expired is removed once a day. A DAG a lake.

Each task removes what has expired of one store's reports, journal and lake, where its disk is; it may be
killed at any instant and run again. The ``[storage_engine] stores`` option names each store's lake.
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
        # A store that hangs keeps the lake's other stores from the next day's run no longer.
        dagrun_timeout=timedelta(hours=23),
        default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        for store in stores:
            StorageEngineMaintainOperator(
                task_id=store.in_dag_ids, compact=True, **store.task_arguments, **when_failed()
            )
