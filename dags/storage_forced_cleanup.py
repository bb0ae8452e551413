"""Deletes a store's oldest segments by hand, whatever their age, with proof. Each store has such a DAG.

Start it with "Trigger". A dry run (the default) deletes nothing, and reports which segments would be deleted
and what consumers would lose. Age is ignored only if the broker's ``cleanFileForciblyEnable`` is true.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import FORCED_REQUEST, cleanup


def form() -> dict[str, Param]:
    """Return the fields of the form that starts a run."""
    return {
        "segments": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Number of segments",
            description="Delete at most this number; empty: as many as the broker deletes in one pass.",
        ),
        "target_used_percent": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            maximum=100,
            title="Target level (%)",
            description="Stop once the fullest disk would be at or below this level; empty: no target.",
        ),
        "reason": Param(
            type="string", minLength=3, title="Reason", description="Reason of the cleanup, for the report."
        ),
        "dry_run": Param(
            True, type="boolean", title="Dry run", description="Delete nothing; only report the plan."
        ),
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_forced_cleanup__{store.in_dag_ids}",
        description=f"{store.conn_id}: delete the oldest segments now, with proof, for a stated reason",
        schedule=None,
        catchup=False,
        max_active_runs=store.max_active_runs,
        # A run that hangs ends as failed, and the next run continues its work.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        cleanup(store, request=FORCED_REQUEST)
    # Set after the tasks: each task would get a copy, which Airflow takes 1.5 ms to serialise.
    dag.params.update(form())
