"""Runs as a page lists them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.core.jsonable import filled
from storage_engine.journal.reading.answers import RunRow


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in short.

    :param id: orders runs; a page of older ones is asked for by it.
    :param dag_id: of the DAG that ran it; None: a person did, at a shell. ``run_id`` likewise.
    :param outcome: None: it has not come to its report.
    :param has_report: its report, or the one that answers for it, can be asked for; it may have expired.
    """

    id: int
    run_key: str
    dag_id: str | None
    run_id: str | None
    outcome: str | None
    state: str
    created_at_ms: int
    finished_at_ms: int | None
    causes: tuple[str, ...]
    deleted_segments: int | None
    freed_bytes: int | None
    unchanged_since: str | None
    has_report: bool


def dag_run_of(run_key: str) -> tuple[str | None, str | None]:
    """Return the ids of the DAG and of its run; None and None: a person ran it, at a shell."""
    dag_id, of_dag, run_id = run_key.partition("/")
    return (dag_id, run_id) if of_dag else (None, None)


def run_line(run: RunRow) -> RunLine:
    """Return a run as a page lists it."""
    dag_id, run_id = dag_run_of(run.run_key)
    return filled(RunLine, run, id=run.run_id, dag_id=dag_id, run_id=run_id)
