"""Maintenance of every lake that a configured store archives into: what has expired is removed once a day.

A DAG a lake. Each task removes what has expired of one store's reports and journal, where its disk is; it may
be killed at any instant and run again. Stores are the connections that the ``[storage_engine] stores`` option
lists.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.storage_engine import stores_by_lake
from storage_engine.operators.task_groups import maintenance

for lake, stores in stores_by_lake().items():
    with DAG(
        dag_id=f"storage_maintenance__{lake}",
        description="Remove reports, journal and samples that have expired",
        schedule="@daily",
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        maintenance(stores)
