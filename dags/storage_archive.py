"""Archives a store's sealed segments before they expire. Each store has such a DAG.

``storage_monitor__STORE`` starts it if the policy's ``archive_when`` is seal and a sealed segment is in no
lake yet. No deletion waits for it.
"""

from datetime import timedelta

from airflow.sdk import DAG

from storage_engine.assets import archive_due
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import archived_ahead

for store in configured_stores():
    with DAG(
        dag_id=f"storage_archive__{store.in_dag_ids}",
        description=f"{store.conn_id}: archive sealed segments ahead of their deletion",
        schedule=[archive_due(store.conn_id)],
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed, and the next run continues its work.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ):
        archived_ahead(store)
