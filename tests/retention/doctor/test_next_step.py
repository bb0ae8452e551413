"""There is one next command for each state, and none that can't work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_engine.commands import Command, Text
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.retention.doctor.next_step import State, UnknownProof, in_airflow, next_step

READY = State(has_lake=True, unproven=0, next_deletion_ms=1_800_000_000_000)


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (State(refused=True), "storage-engine doctor"),
        (State(), "storage-engine init-lake --lake DIRECTORY"),
        (State(stamped_lakes=("/a lake",)), "storage-engine doctor STORE --lake '/a lake'"),
        (replace(READY, unproven=None), "storage-engine lake info"),
        (replace(READY, lake_refused=True), "storage-engine lake info"),
        (replace(READY, unproven=None, unknown_proof=UnknownProof.JOURNAL), "storage-engine doctor"),
        (replace(READY, unproven=None, unknown_proof=UnknownProof.STORE), "storage-engine archive"),
        (
            replace(READY, unproven=None, unknown_proof=UnknownProof.STORE, retention_dag="d"),
            "airflow dags trigger d",
        ),
        (replace(READY, unproven=3, due=2), "storage-engine archive"),
        (replace(READY, due=2), "storage-engine clean --manual"),
        (replace(READY, due=2, due_by_rules=1), "storage-engine clean"),
        (replace(READY, due=2, assumes_defaults=True), "storage-engine clean"),
        (replace(READY, due=2, due_by_rules=2, assumes_defaults=True), "storage-engine clean"),
        (replace(READY, due=2, running=True, is_live=True), "storage-engine clean --manual"),
        (
            replace(READY, due=2, running=True, live_option="--broker HOST:10911"),
            "storage-engine doctor STORE --lake DIRECTORY --broker HOST:10911",
        ),
        (replace(READY, due=2, crashed=True), ""),
        (replace(READY, replicas_elsewhere=1), "storage-engine clean"),
        (replace(READY, crashed=True, replicas_elsewhere=1), ""),
        (READY, ""),
        (replace(READY, unproven=1, retention_dag="d"), "airflow dags trigger d"),
        (replace(READY, due=1, retention_dag="d"), "airflow dags trigger d"),
        (replace(READY, retention_dag="d"), ""),
        (
            replace(READY, unproven=None, other_lake="/a lake", stamped_lakes=("/a lake",)),
            "storage-engine doctor STORE --lake '/a lake'",
        ),
        (replace(READY, unproven=2, other_lake="s3://gone"), ""),
        (replace(READY, unproven=2, other_lake="/a lake", retention_dag="d"), ""),
        (replace(READY, due=1, retention_dag="d", dag_known=False), "airflow dags reserialize"),
    ],
)
def test_the_command_fits_the_state(state: State, command: str) -> None:
    found = next_step(state)
    assert str(found.command) == command
    assert found.why


def test_in_airflow_the_dag_stands_for_the_commands_that_it_runs() -> None:
    finding = Finding(Severity.WARNING, "unproven", "", Text("archive them: ", Command("archive")))
    assert in_airflow(finding, "d", known=True).advice == "archive them: airflow dags trigger d"
    assert in_airflow(finding, "d", known=False).advice == "archive them: the DAG d, once Airflow knows it"
    copied = replace(finding, advice=Text("see: ", Command("lag"), "; storage-engine archive"))
    assert in_airflow(copied, "d", known=True) == copied


def test_nothing_is_deleted_by_settings_that_were_assumed() -> None:
    assumed = next_step(replace(READY, due=2, due_by_rules=2, assumes_defaults=True))
    assert assumed.options == "--broker-conf FILE --dry-run"
    assert "broker's assumed defaults" in assumed.why
    assert next_step(replace(READY, due=2)).why == "deletes 2 proven segments, and checks what is left"
    said = next_step(replace(READY, due=2, by_hand="At any hour, too")).why
    assert said == "deletes 2 proven segments, and checks what is left. At any hour, too"
    assert not next_step(replace(READY, due=2)).options


def test_where_nothing_is_due_it_says_when_to_look_again() -> None:
    assert "2027-01-15 08:00:00Z" in next_step(READY).why
    assert "when a segment is sealed" in next_step(replace(READY, next_deletion_ms=None)).why
