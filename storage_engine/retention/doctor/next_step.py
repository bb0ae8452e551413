"""The one command to type next, chosen by the state of a store and its lakes. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum

from storage_engine.commands import Command, Text
from storage_engine.core.wording import count_text, time_text
from storage_engine.model.report.diagnosis import Finding

_IN_DAG = (Command("archive"), Command("clean --manual"), Command("clean"))
"""Commands that the DAG of a store in Airflow runs."""
LOOK_FIRST = "--broker-conf FILE --dry-run"
"""Options of a cleanup that only shows what the broker's own settings would delete."""


class UnknownProof(StrEnum):
    """Reason why the proven segments are unknown, although the lakes can be read."""

    JOURNAL = "the journal can't be read"
    STORE = "no journal knows this store, and a lake has segments of it"


def unknown_proof_finding(why: UnknownProof, sealed_count: int) -> Finding:
    """Return the finding that the proof of segments is unknown. Unknown isn't the same as unproven."""
    advice = {
        UnknownProof.JOURNAL: "put the journal right first, or bring it back from a backup",
        UnknownProof.STORE: Text(
            "bring the journal back, or make the store known again: ", Command("archive")
        ),
    }
    text = f"it is unknown which of {count_text(sealed_count, 'sealed segment')} a lake proves: {why.value}"
    return Finding.warning("proof-unknown", text, advice[why])


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next command, and the reason for it.

    :param command: a command of this package, or another one as it is typed; "" if there is none to type now.
    :param why: what the command does, or what to wait for.
    :param options: options to type after those of the store.
    """

    command: Command | str
    why: str
    options: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Facts that decide the next step for a store.

    :param refused: no command works with the store before a fault is mended.
    :param cleans_up: a cleanup may delete from the store in its present state. Otherwise it is only archived.
    :param has_lake: a lake was named.
    :param lake_refused: none of the named lakes can be used.
    :param stamped_lakes: lakes that the store was archived into, as its own stamp says.
    :param other_lake: the lake that the store was archived into, if the named lakes have none of it; else "".
    :param unproven: number of sealed segments that no lake proves and that can be archived; None if unknown.
    :param refused_logs: number of logs that can't be archived as they are, or that the last archive refused.
    :param unknown_proof: why ``unproven`` is unknown; None if ``unproven`` is known, or if a lake is the
        reason.
    :param due: number of segments that a cleanup would delete now, if a person asked for it.
    :param due_by_rules: number of segments that a cleanup deletes under the broker's rules, without a
        request.
    :param replicas_elsewhere: number of segments to delete if a person says that all other nodes are stopped.
    :param assumes_defaults: no setting says how long the broker keeps its segments.
    :param running: a broker runs on the store, or None if unknown.
    :param is_live: the running broker was named, or our own engine writes the store.
    :param crashed: its broker didn't stop cleanly.
    :param retention_dag: Airflow's DAG that archives, proves and deletes, or "" if the store isn't Airflow's.
    :param dag_known: Airflow has parsed that DAG, so that it can be triggered.
    :param by_hand: the broker package's sentence on a cleanup that a person asks for.
    :param kind_option: the option with which a lake for this kind of store is made.
    """

    refused: bool = False
    cleans_up: bool = True
    has_lake: bool = False
    lake_refused: bool = False
    stamped_lakes: tuple[str, ...] = ()
    other_lake: str = ""
    unproven: int | None = None
    refused_logs: int = 0
    unknown_proof: UnknownProof | None = None
    due: int = 0
    due_by_rules: int = 0
    replicas_elsewhere: int = 0
    assumes_defaults: bool = False
    running: bool | None = False
    is_live: bool = False
    crashed: bool = False
    live_option: str = ""
    retention_dag: str = ""
    dag_known: bool = True
    next_deletion_ms: int | None = None
    by_hand: str = ""
    kind_option: str = ""


def next_step(state: State) -> NextStep:
    """Choose the next command from the state of a store."""
    if state.refused:
        return NextStep(Command("doctor"), "run it again after the first finding is mended")
    if not state.has_lake and state.stamped_lakes:
        command = Command("doctor", f"STORE --lake {shlex.quote(state.stamped_lakes[0])}")
        return NextStep(command, "looks at the archived segments, too")
    if not state.has_lake:
        command = Command("init-lake", f"--lake DIRECTORY{state.kind_option}")
        return NextStep(command, "makes a lake; choose a disk that isn't the broker's")
    if state.other_lake:
        return _step_to_other_lake(state)
    if state.unknown_proof is UnknownProof.JOURNAL and not state.lake_refused:
        return NextStep(Command("doctor"), "run it again when the journal can be read")
    if state.unknown_proof is UnknownProof.STORE and not state.retention_dag:
        return NextStep(Command("archive"), "makes the store known again, with its proven segments")
    if state.lake_refused or (state.unproven is None and state.unknown_proof is None):
        return NextStep(Command("lake info"), "says what is wrong with the lake")
    if state.retention_dag:
        return _airflow_step(state)
    if state.unproven:
        segments = count_text(state.unproven, "segment")
        return NextStep(Command("archive"), f"copies {segments} into the lake, with proof")
    if state.refused_logs:
        logs = count_text(state.refused_logs, "log")
        return NextStep("", f"mend what keeps {logs} out of the lake, as said above; then archive again")
    if not state.cleans_up:
        return NextStep(Command("plan", "STORE"), "shows what its broker deletes, and why the rest stays")
    if state.crashed and not state.running:
        return NextStep("", "start the broker and stop it cleanly: nothing is cleaned before that")
    if state.due:
        return _clean(state)
    if state.replicas_elsewhere:
        segments = count_text(state.replicas_elsewhere, "proven segment")
        why = f"deletes {segments}, if a person knows that all other nodes are stopped"
        return NextStep(Command("clean"), why, "--replicas-stopped REASON")
    return _wait_step(state)


def _step_to_other_lake(state: State) -> NextStep:
    if state.retention_dag:
        return NextStep("", f"name the lake with this store's history in the connection: {state.other_lake}")
    if state.other_lake in state.stamped_lakes:
        command = Command("doctor", f"STORE --lake {shlex.quote(state.other_lake)}")
        return NextStep(command, "looks at the lake with this store's history")
    return NextStep("", f"find the lake with this store's history, and name it: {state.other_lake}")


def in_airflow(finding: Finding, dag_id: str, *, known: bool) -> Finding:
    """Return the finding, with commands in its advice replaced by the DAG in Airflow that runs them.

    :param dag_id: id of the DAG that archives, proves and deletes.
    """
    command = f"airflow dags trigger {dag_id}" if known else f"the DAG {dag_id}, once Airflow knows it"
    advice = Text(finding.advice)
    return replace(finding, advice=Text(*(command if part in _IN_DAG else part for part in advice.parts)))


def _airflow_step(state: State) -> NextStep:
    if not state.dag_known:
        why = "makes Airflow parse the DAG files, the store's among them"
        return NextStep("airflow dags reserialize", why)
    if state.unproven or state.due or state.unknown_proof is not None:
        command = f"airflow dags trigger {state.retention_dag}"
        return NextStep(command, "archives, proves and deletes what is due")
    return _wait_step(state)


def _clean(state: State) -> NextStep:
    segments = count_text(state.due, "proven segment")
    if state.running and not state.is_live:
        command = Command("doctor", f"STORE --lake DIRECTORY {state.live_option}".rstrip())
        return NextStep(command, "a broker runs on the store: name that broker in every command")
    if state.assumes_defaults:
        why = f"shows what would be deleted by the broker's assumed defaults: {segments}"
        return NextStep(Command("clean"), why, LOOK_FIRST)
    if state.due_by_rules:
        going = count_text(state.due_by_rules, "proven segment")
        return NextStep(Command("clean"), f"deletes {going}, and checks what is left")
    text = f"deletes {segments}, and checks what is left"
    return NextStep(Command("clean --manual"), f"{text}. {state.by_hand}" if state.by_hand else text)


def _wait_step(state: State) -> NextStep:
    if state.next_deletion_ms is None:
        return NextStep("", "nothing is due; look again when a segment is sealed")
    return NextStep("", f"nothing is due before {time_text(state.next_deletion_ms)}; look again then")
