"""DAGs with the old ids, in which active runs from before each store had DAGs of its own can end.

These DAGs start nothing. Remove this file when no run of ``storage_retention``, ``storage_forced_cleanup`` or
``storage_flush_checkpoint`` is active.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, TaskGroup, TriggerRule, chain

from storage_engine.hooks.configured_stores import ConfiguredStore, configured_stores
from storage_engine.operators.retention import StorageEngineArchiveLagOperator, StorageEngineMonitorOperator
from storage_engine.operators.spark_job import StorageEngineArchiveSealedOperator
from storage_engine.operators.task_groups import FORCED_REQUEST, cleanup, cleanup_tasks
from storage_engine.sensors.cleanup import StorageEngineCleanupSensor

# A store whose name isn't allowed in an id had no such DAG.
STORES = [store for store in configured_stores() if store.in_dag_ids == store.conn_id]
QUEUES = {store.queue: store for store in STORES}
OF_EACH: dict[str, Any] = {
    "schedule": None,
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=30)},
    "tags": ["storage-engine", "older"],
    "doc_md": __doc__,
}


def sensed_cleanup(store: ConfiguredStore) -> None:
    """Wait for a cause and clean up, as the older DAG did."""
    arguments = store.task_arguments
    sense = StorageEngineCleanupSensor(
        task_id="sense", **arguments, timeout=timedelta(minutes=9), soft_fail=True
    )
    tasks = cleanup_tasks(store, plan={"trigger_rule": TriggerRule.NONE_FAILED})
    chain(sense, *tasks)
    sealed = StorageEngineArchiveSealedOperator(task_id="archive_sealed", **arguments)
    lag = StorageEngineArchiveLagOperator(
        task_id="archive_lag", **arguments, trigger_rule=TriggerRule.ALL_DONE
    )
    chain(sealed, lag, tasks[-1])


with DAG("storage_retention", **OF_EACH):
    for store in STORES:
        with TaskGroup(group_id=store.conn_id):
            sensed_cleanup(store)

with DAG("storage_flush_checkpoint", **OF_EACH):
    for store in STORES:
        StorageEngineMonitorOperator(task_id=store.conn_id, **store.task_arguments)

for queue in QUEUES:
    older_id = f"storage_forced_cleanup_{queue}" if queue and len(QUEUES) > 1 else "storage_forced_cleanup"
    params = {
        "store": Param(STORES[0].conn_id, type="string"),
        "segments": Param(None, type=["null", "integer"]),
        "target_used_percent": Param(None, type=["null", "integer"]),
        "reason": Param("", type="string"),
        "dry_run": Param(True, type="boolean"),
    }
    with DAG(older_id, params=params, **OF_EACH):
        cleanup(ConfiguredStore("{{ params.store }}", queue=queue), request=FORCED_REQUEST)
