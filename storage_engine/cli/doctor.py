"""doctor: what a store is, what is wrong with it, and what to do about it. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.airflow_connection import pipeline_of, places_of
from storage_engine.cli.options.options import is_lake_there, json_option, where_to_make
from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.options.stores_file import named_stores
from storage_engine.cli.output.doctor_output import (
    diagnosis_json,
    elsewhere_json,
    print_diagnosis,
    print_pipeline,
)
from storage_engine.cli.output.output import print_error, print_json
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.call_parameters import said_by, with_store_of_connection
from storage_engine.cli.shell.command import command
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError, StorageEngineError, StoreNotFoundError
from storage_engine.model.report.diagnosis import Finding, Severity, by_severity

if TYPE_CHECKING:
    from storage_engine.retention.doctor.doctor import Diagnosis
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(lake=None, second_lake=True, connection=True, each=True, policy=("undo_directories",))
@json_option
def doctor(managed: ManagedStore | None, as_json: bool) -> int:
    """Say what STORE is, what is wrong with it or risky, and what to do, the most urgent first.

    Needs nothing but the store. With --lake the lake, and what of the store it proves, as well; with
    --conn-id also the store's DAGs in Airflow. Without arguments it looks at each store of the file of
    stores. Ends with the command to type next. Exit code 1 when something is urgent.
    """
    from storage_engine.retention.doctor.doctor import diagnose

    context = click.get_current_context()
    if managed is None:
        return max(_call_for(name, context) for name in sorted(named_stores()))
    conn_id = context.params.get("conn_id")
    pipeline, retention_dag = (None, "") if conn_id is None else pipeline_of(conn_id, managed)
    lake_dir: Path | None = context.params.get("lake_dir")
    lake_missing = lake_dir is not None and not is_lake_there(lake_dir)
    try:
        with waiting("Looking"):
            found = diagnose(
                managed,
                clock_ms(),
                has_lake=has_lake(managed) and not lake_missing,
                pipeline=pipeline,
                retention_dag=retention_dag,
                runs="" if conn_id is None else places_of(conn_id, managed),
            )
    except StoreNotFoundError as error:
        # Where an edge worker sees the store, Airflow's hosts don't: what Airflow knows is said all the same.
        if pipeline is None or pipeline.queue is None:
            raise
        if not as_json:
            print_pipeline(pipeline, said_by(context), clock_ms())
            raise
        print_json("doctor", elsewhere_json(managed, pipeline, error, said_by(context), clock_ms()))
        return 2
    if lake_missing:
        found = _without_lake(found, str(lake_dir))
    said = said_by(context)
    if conn_id is not None:
        said = with_store_of_connection(said, managed)
    if as_json:
        print_json("doctor", diagnosis_json(found, said))
    else:
        print_diagnosis(found, said)
    return 1 if found.is_urgent else 0


def _without_lake(found: Diagnosis, lake_dir: str) -> Diagnosis:
    """Return a diagnosis that says that there is no lake where one was named."""
    where = where_to_make(Path(lake_dir), found.store.broker)
    finding = Finding(
        Severity.WARNING,
        "no-lake",
        f"no lake there yet: {lake_dir}",
        f"mount its disk, or make a lake {where}",
    )
    step = found.next
    if step.command.startswith("storage-engine init-lake"):
        step = replace(step, command=where.rpartition(": ")[2])
    return replace(found, findings=by_severity([*found.findings, finding]), next=step)


def _call_for(name: str, context: click.Context) -> int:
    """Call a context's command for a store of the file of stores.

    :return: its exit code.
    """
    try:
        with context.command.make_context(context.info_name, [name], parent=context.parent) as own:
            return int(context.command.invoke(own) or 0)
    except StorageEngineError as error:
        print_error(error, {}, as_json=False)
        return 2 if isinstance(error, BadInputError) else 1
