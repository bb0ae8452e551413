"""Cleanup of one store by hand: its oldest segments go whatever their age, with proof. A DAG a store.

Start it with "Trigger": a dry run (the default) reports what would go and what consumers would lose, and
deletes nothing.
Age is ignored only where the broker's ``cleanFileForciblyEnable`` is true.
"""

from datetime import timedelta

from airflow.sdk import DAG, Param

from storage_engine.hooks.configured_stores import configured_stores
from storage_engine.operators.task_groups import FORCED_REQUEST, cleanup


def form() -> dict[str, Param]:
    """What a person is asked for."""
    return {
        "segments": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Number of segments",
            description="Delete at most so many; empty: as many as the broker deletes in one pass.",
        ),
        "target_used_percent": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            maximum=100,
            title="Target level (%)",
            description="Stop once the fullest disk would be at or below this level; empty: none.",
        ),
        "reason": Param(
            type="string", minLength=3, title="Reason", description="Why; it goes into the report."
        ),
        "dry_run": Param(
            True, type="boolean", title="Dry run", description="Only report what would go; delete nothing."
        ),
    }


for store in configured_stores():
    with DAG(
        dag_id=f"storage_forced_cleanup__{store.in_dag_ids}",
        description=f"{store.conn_id}: delete the oldest segments now, with proof, for a stated reason",
        schedule=None,
        catchup=False,
        max_active_runs=store.max_active_runs,
        # A run that hangs ends as failed; the next one goes on from what it left.
        dagrun_timeout=timedelta(days=1),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=["storage-engine"],
        doc_md=__doc__,
    ) as dag:
        cleanup(store, request=FORCED_REQUEST)
    # Behind the tasks: each would get a copy, and Airflow takes 1.5 ms to serialise one.
    dag.params.update(form())
