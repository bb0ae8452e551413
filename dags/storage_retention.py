"""Retention of one store: archive with proof, then delete by its rules. A DAG a store.

``storage_monitor__STORE`` starts it when there is something to do. Started by hand it cleans up at once.
Stores are those that the ``[storage_engine] stores`` option lists.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.assets import cleanup_due
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import REQUEST, cleanup


def form() -> dict[str, Param]:
    """What a person may ask for."""
    return {
        "manual": Param(
            False,
            type="boolean",
            title="At any hour",
            description="Delete what has expired outside of the deleteWhen window, too.",
        ),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description="Only report what would go; delete nothing."
        ),
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_retention__{store.in_dag_ids}",
        description=f"{store.conn_id}: plan, check lag, archive, prove, delete, validate, report",
        schedule=[cleanup_due(store.conn_id)],
        catchup=False,
        max_active_runs=store.max_active_runs,
        # A run that hangs ends as failed; the next one goes on from what it left.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        cleanup(store, request=REQUEST)
    # Behind the tasks: each would get a copy, and Airflow takes 1.5 ms to serialise one.
    dag.params.update(form())
