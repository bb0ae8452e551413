"""Checks the rows of a store's archived segments in Spark, after each archive or by hand.

Each store has such a DAG. Its first task is skipped if the store's connection names no Spark connection.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.assets import segments_archived
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import rows_validated


def form() -> dict[str, Param]:
    """Return the fields of the form that starts a run."""
    return {
        "log": Param(
            None,
            type=["null", "string"],
            title="Log",
            description="Check only this log; empty: all segments in the lakes.",
        ),
        "first_offset": Param(
            0, type="integer", minimum=0, title="First offset", description="First offset, if a log is named."
        ),
        "end_offset": Param(
            2**63 - 1, type="integer", minimum=1, title="End offset", description="The last offset plus one."
        ),
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_validate_rows__{store.in_dag_ids}",
        description=f"{store.conn_id}: check the rows of archived segments",
        schedule=[segments_archived(store.conn_id)],
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        rows_validated(store)
    # Set after the tasks: each task would get a copy, which Airflow takes 1.5 ms to serialise.
    dag.params.update(form())
