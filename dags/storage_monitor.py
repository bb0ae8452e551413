"""Between the cleanups of one store: renew its hold, take a sample, alarm; and see when a cleanup is due.

A DAG a store. ``monitor`` fails where a person should look: on what others did to a held store, on what is
lost and nobody has accepted, on a hold that can't be had, where the broker is behind with flush, dispatch,
index or checkpoint, and where the lake is too far behind. ``sense`` starts ``storage_retention__STORE`` and
``storage_archive__STORE`` when they have something to do; it is skipped where they have not.
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
