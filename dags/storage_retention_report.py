"""Count what a store's lakes have by topic, producer, hour and size, in Spark, and what each topic costs.

A DAG a store, by hand. The report names the quiet hour of the day; the store's page repeats it.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import usage_reported


def form() -> dict[str, Param]:
    """What a person may ask for."""
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date",
            title=title,
            description="By when the broker stored a message, in UTC; empty: no bound.",
        )
        for name, title in (("first_day", "First day"), ("last_day", "Last day"))
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_retention_report__{store.in_dag_ids}",
        description=f"{store.conn_id}: bytes by topic, producer, hour and size, and what topics cost",
        schedule=None,
        catchup=False,
        max_active_runs=1,
        # A run that hangs ends as failed.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        usage_reported(store)
    # Behind the tasks: each would get a copy, and Airflow takes 1.5 ms to serialise one.
    dag.params.update(form())
