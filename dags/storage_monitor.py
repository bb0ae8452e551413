"""Looks after a store between its cleanups, and starts a cleanup when one is due. Each store has such a DAG.

``monitor`` renews the hold and takes a sample. It fails if a person should look: if others changed a held
store, if a loss isn't accepted yet, or if a hold isn't possible. It also fails if the broker is behind with
flush, dispatch, index or checkpoint, or if archiving is too far behind. ``sense`` starts
``storage_retention__STORE`` and ``storage_archive__STORE`` when they have work, and is skipped otherwise.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import monitored

for store in configured_stores():
    with DAG(
        dag_id=f"storage_monitor__{store.in_dag_ids}",
        description=f"{store.conn_id}: renew the hold, sample, alarm, see when a cleanup is due",
        schedule=store.schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed: the next one renews the hold.
        dagrun_timeout=timedelta(minutes=30),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        monitored(store, sense_for=timedelta(minutes=9))
