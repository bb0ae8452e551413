"""Check the rows of what a store has archived, in Spark: after each archive, and of any span by hand.

A DAG a store. Its first task is skipped where the store's connection names no Spark connection.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.assets import segments_archived
from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import rows_validated


def form() -> dict[str, Param]:
    """What a person may ask for."""
    return {
        "log": Param(
            None,
            type=["null", "string"],
            title="Log",
            description="Look at this log alone; empty: at all that the lakes have.",
        ),
        "first_offset": Param(
            0, type="integer", minimum=0, title="First offset", description="Of the log, where one is named."
        ),
        "end_offset": Param(
            2**63 - 1, type="integer", minimum=1, title="End offset", description="Behind the last one."
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
    # Behind the tasks: each would get a copy, and Airflow takes 1.5 ms to serialise one.
    dag.params.update(form())
