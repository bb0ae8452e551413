"""Archives a store's expired segments with proof, then deletes them by its rules. Each store has such a DAG.

``storage_monitor__STORE`` starts it when there is work. Started by hand, it cleans up at once. The option
``[storage_engine] stores`` lists the stores.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.assets import cleanup_due
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import REQUEST, cleanup


def form() -> dict[str, Param]:
    """Return the fields of the form that starts a run."""
    return {
        "manual": Param(
            False,
            type="boolean",
            title="At any hour",
            description="Also delete expired segments outside of the deleteWhen window.",
        ),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description="Delete nothing; only report the plan."
        ),
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_retention__{store.in_dag_ids}",
        description=f"{store.conn_id}: plan, check lag, archive, prove, delete, validate, report",
        schedule=[cleanup_due(store.conn_id)],
        catchup=False,
        max_active_runs=store.max_active_runs,
        # A run that hangs ends as failed, and the next run continues its work.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        cleanup(store, request=REQUEST)
    # Set after the tasks: each task would get a copy, which Airflow takes 1.5 ms to serialise.
    dag.params.update(form())
