"""Counts the messages in a store's lakes by topic, producer, hour and size, and each topic's costs, in Spark.

Each store has such a DAG, which is started by hand. The report and the store's page name the quiet hour.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import usage_reported


def form() -> dict[str, Param]:
    """Return the fields of the form that starts a run."""
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date",
            title=title,
            description="Day on which the broker stored messages, in UTC; empty: no bound.",
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
    # Set after the tasks: each task would get a copy, which Airflow takes 1.5 ms to serialise.
    dag.params.update(form())
