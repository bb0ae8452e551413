"""A store's DAGs in Airflow: facts from Airflow's database, and findings on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.core.wording import duration_text, time_text
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short

SILENT_MS = 5 * 60_000
"""Age of a heartbeat, in milliseconds, above which a component counts as dead. Airflow's limits are lower."""
_LONG_WAIT_MS = DAY_MS
_LONG_QUEUED_MS = HOUR_MS
_LONG_RUN_MS = 6 * HOUR_MS
_LONG_QUESTION_MS = 18 * HOUR_MS
_TAKES_TASKS = ("starting", "running", "idle", "maintenance exit")
"""States of an edge worker in which it fetches tasks. In maintenance or at its shutdown it fetches none."""
_APPROVE = "approve"
"""The task that asks a second person for approval."""


@dataclass(frozen=True, slots=True)
class DagRunFacts:
    """The last run of a DAG, or one of its active runs."""

    run_id: str
    state: str
    began_at_ms: int | None
    ended_at_ms: int | None


@dataclass(frozen=True, slots=True)
class DagFacts:
    """A DAG of a store, as Airflow's database has it.

    :param needed: without this DAG nothing is archived or deleted automatically.
    :param known: Airflow has parsed the DAG, and its file still exists.
    :param last: its last run, or None if it never ran.
    :param waits: waiting tasks, as (task id, moment at which its wait began, or None if unknown).
    :param active: queued or running runs, oldest first. A queued run began when it was queued.
    """

    dag_id: str
    needed: bool
    known: bool
    paused: bool = False
    last: DagRunFacts | None = None
    waits: tuple[tuple[str, int | None], ...] = ()
    active: tuple[DagRunFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """A component of Airflow, such as the scheduler or an edge worker.

    :param heartbeat_ms: newest heartbeat of this kind of component, or None if no such component ever ran.
    :param state: state of an edge worker, in Airflow's word, such as ``idle``.
    """

    name: str
    heartbeat_ms: int | None
    state: str = ""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The queue of the workers that see a store's disk.

    :param workers: edge workers that take its tasks, or None if unknown: Airflow lists no other workers.
    :param seen_by: host of the last successful task in this queue, which saw the store; "" if unknown.
    """

    name: str
    workers: tuple[ComponentFacts, ...] | None
    seen_by: str = ""
    seen_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """Airflow's records of a store's DAGs and of the processes that run them.

    :param import_errors: each file that can't be parsed, with the last line of its traceback.
    :param error: why Airflow's database couldn't be read; "" if it could.
    :param approval: a clause on why nobody can approve the store's plans as the policy requires, else "".
    :param unknown_approvers: ids of approvers whom Airflow doesn't know.
    :param queue: the queue of the store's tasks, or None if they are on Airflow's default queue.
    """

    dags: tuple[DagFacts, ...] = ()
    components: tuple[ComponentFacts, ...] = ()
    import_errors: tuple[tuple[str, str], ...] = ()
    error: str = ""
    approval: str = ""
    queue: QueueFacts | None = None
    unknown_approvers: tuple[str, ...] = ()

    def lines(self, now_ms: int) -> Iterator[tuple[str, str]]:
        """Yield lines of text on a store's DAGs and queue, each with its title."""
        for dag in self.dags:
            yield "DAG", f"{dag.dag_id}: {dag_text(dag, now_ms)}"
        if self.queue is not None:
            yield "queue", _queue_text(self.queue, now_ms)


def pipeline_findings(facts: PipelineFacts, now_ms: int) -> Iterator[Finding]:
    """Judge the DAGs of a store and the processes that run them."""
    if facts.error:
        text = f"Airflow's database can't be read: {facts.error}"
        advice = "run this where Airflow runs, with its AIRFLOW_HOME and environment"
        yield Finding.warning("airflow-unreachable", text, advice)
        return
    for component in facts.components:
        yield from _judge_component(component, now_ms)
    for file, error in facts.import_errors:
        advice = "see the whole error: airflow dags list-import-errors"
        yield Finding.urgent("dag-import", f"Airflow can't parse {file}: {error}", advice)
    if facts.approval:
        yield Finding.urgent(
            "approval",
            f"the policy asks for approval by a second person, and {facts.approval}: nothing is deleted",
            "give each person an account of Airflow, and name approvers in the store's entry of the option "
            "stores, or an empty list",
        )
    elif facts.unknown_approvers:
        yield Finding.warning(
            "approver",
            "these approvers of the store can't approve, because simple_auth_manager_users doesn't have "
            f"them: {', '.join(facts.unknown_approvers)}",
            "give each of them an account of Airflow, or remove them from the store's entry of the option "
            "stores",
        )
    yield from _judge_queue(facts.queue, now_ms)
    yield from _judge_missing(facts.dags)
    for dag in facts.dags:
        yield from _judge_dag(dag, now_ms)


def _judge_queue(queue: QueueFacts | None, now_ms: int) -> Iterator[Finding]:
    if queue is None or queue.workers is None or any(_takes_tasks(row, now_ms) for row in queue.workers):
        return
    workers = "; ".join(_worker_text(row, now_ms) for row in queue.workers) or "none is known"
    yield Finding.urgent(
        "edge-worker",
        f"no edge worker takes the queue {queue.name}, so no task of the store runs: {workers}",
        f"on the host that has the store's disk: airflow edge worker --queues {queue.name}",
    )


def _takes_tasks(worker: ComponentFacts, now_ms: int) -> bool:
    is_alive = worker.heartbeat_ms is not None and now_ms - worker.heartbeat_ms <= SILENT_MS
    return is_alive and worker.state in _TAKES_TASKS


def _worker_text(worker: ComponentFacts, now_ms: int) -> str:
    ago = worker.heartbeat_ms and f", alive {duration_text(max(0, now_ms - worker.heartbeat_ms))} ago"
    return f"{worker.name} ({worker.state}{ago or ''})"


def _queue_text(queue: QueueFacts, now_ms: int) -> str:
    if queue.workers is None:
        workers = "unknown which workers take it"
    else:
        workers = "; ".join(_worker_text(row, now_ms) for row in queue.workers) or "no edge worker takes it"
    if queue.seen_at_ms is None:
        return (
            f"{queue.name}: {workers}; it is unknown which host sees the store, because no task there "
            "has succeeded"
        )
    ago = duration_text(max(0, now_ms - queue.seen_at_ms))
    return f"{queue.name}: {workers}; {queue.seen_by or 'an unknown host'} saw the store {ago} ago"


def _judge_missing(dags: Sequence[DagFacts]) -> Iterator[Finding]:
    if missing := [dag for dag in dags if not dag.known]:
        yield Finding(
            _severity(missing),
            "dag-missing",
            f"Airflow knows no DAG {named_in_short([dag.dag_id for dag in missing])}",
            Text(
                "make Airflow parse the DAG files: start it, or airflow dags reserialize; where the files "
                "or the store's entry are missing: ",
                Command("init", "--airflow --conn-id ID"),
            ),
        )
    if paused := [dag for dag in dags if dag.known and dag.paused]:
        likewise = ", and likewise the others" if len(paused) > 1 else ""
        yield Finding(
            _severity(paused),
            "dag-paused",
            f"paused, so that none of their tasks run: {named_in_short([dag.dag_id for dag in paused])}",
            f"airflow dags unpause {paused[0].dag_id}{likewise}",
        )


def _severity(dags: Sequence[DagFacts]) -> Severity:
    return Severity.URGENT if any(dag.needed for dag in dags) else Severity.WARNING


def _judge_component(component: ComponentFacts, now_ms: int) -> Iterator[Finding]:
    at_ms = component.heartbeat_ms
    if at_ms is not None and now_ms - at_ms <= SILENT_MS:
        return
    when = "never ran" if at_ms is None else f"was last alive {time_text(at_ms)}"
    text = f"Airflow's {component.name} {when}: no DAG proceeds without it"
    yield Finding.urgent("airflow-component", text, f"start it: airflow {component.name}")


def _judge_dag(dag: DagFacts, now_ms: int) -> Iterator[Finding]:
    if not dag.known:
        return
    if dag.last is not None and dag.last.state == "failed":
        ended = "" if dag.last.ended_at_ms is None else f" {time_text(dag.last.ended_at_ms)}"
        yield Finding(
            _severity([dag]),
            "dag-failed",
            f"the last run of {dag.dag_id} failed{ended}: {dag.last.run_id}",
            f"see why: airflow tasks states-for-dag-run {dag.dag_id} {dag.last.run_id}",
        )
    yield from _judge_stuck(dag, now_ms)
    for task_id, since_ms in dag.waits:
        if since_ms is not None and now_ms - since_ms > _LONG_WAIT_MS:
            text = f"task {task_id} of {dag.dag_id} has waited for {duration_text(now_ms - since_ms)}"
            yield Finding.note("sensor-waits", text)


def _judge_stuck(dag: DagFacts, now_ms: int) -> Iterator[Finding]:
    """Yield findings on runs that don't proceed: such a run keeps the next one from beginning.

    A run that asks a person for approval may take longer, because the person has half a day to answer.
    """
    is_asked = any(task_id == _APPROVE for task_id, _ in dag.waits)
    longest_ms = _LONG_QUESTION_MS if is_asked else _LONG_RUN_MS
    for run in dag.active:
        if run.began_at_ms is None:
            continue
        since_ms = now_ms - run.began_at_ms
        text = f"run {run.run_id} of {dag.dag_id} has been {run.state} for {duration_text(since_ms)}"
        if dag.paused:
            advice = f"airflow dags unpause {dag.dag_id}"
            yield Finding(_severity([dag]), "run-stuck", f"{text}, and its DAG is paused", advice)
        elif since_ms > (_LONG_QUEUED_MS if run.state == "queued" else longest_ms):
            advice = (
                f"see which task is running: airflow tasks states-for-dag-run {dag.dag_id} {run.run_id}; if "
                "no process works on the run any more, mark it failed in Airflow's grid: the next run "
                "continues from there"
            )
            yield Finding(_severity([dag]), "run-stuck", text, advice)


def dag_text(dag: DagFacts, now_ms: int) -> str:
    """Describe the state of a DAG in one line."""
    if not dag.known:
        return "not there"
    paused = "paused; " if dag.paused else ""
    if dag.last is None:
        return f"{paused}never ran"
    at_ms = dag.last.ended_at_ms or dag.last.began_at_ms
    when = "" if at_ms is None else f" {duration_text(max(0, now_ms - at_ms))} ago"
    waits = f"; waits: {', '.join(task for task, _ in dag.waits)}" if dag.waits else ""
    return f"{paused}{dag.last.state}{when}{waits}"
