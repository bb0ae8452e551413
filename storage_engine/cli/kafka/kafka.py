"""kafka: what only nodes of Kafka have commands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from storage_engine import cycle
from storage_engine.cli.kafka.make_room import make_room
from storage_engine.cli.options.options import REPLICAS_STOPPED, json_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.next_line import say_next
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.command import Group, command
from storage_engine.cli.shell.values import key_value_pairs, reason_text
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.model.plan.plan import PlanRequest

if TYPE_CHECKING:
    from storage_engine.retention.steps import TaskResult
    from storage_engine.retention.store.managed_store import ManagedStore


@command("run-tasks")
@takes_store(second_lake=True)
@click.option("--replicas-stopped", callback=reason_text, metavar="REASON", help=REPLICAS_STOPPED)
@click.option(
    "--deleted-topic",
    "deleted_topics",
    metavar="TOPIC=REASON",
    multiple=True,
    callback=key_value_pairs,
    help="Also remove what this deleted topic left that no lake has; REASON says how you know; repeatable.",
)
@click.option("--run-key", help="Go on with this run, which was interrupted; default: a new one.")
@json_option
def run_tasks(
    managed: ManagedStore,
    replicas_stopped: str | None,
    deleted_topics: dict[str, str],
    run_key: str | None,
    as_json: bool,
) -> int:
    """Do the five background tasks of a broker on STORE while it is stopped; beside a running one, look how
    far they are.

    cleanupLogs archives, proves and deletes as storage-engine clean does, and ends what the broker was
    deleting. deleteLogs removes what deleted topics left. The other three are verified. Exit code 1 when
    something should have been done by now.
    """
    from storage_engine.retention.monitor.broker_tasks import check_topic_words
    from storage_engine.retention.steps import run_broker_tasks
    from storage_engine.retention.store.brokers import may_clean_now
    from storage_engine.retention.store.context import opened

    run_key = run_key or f"tasks-{clock_ms()}"
    with opened(managed) as store:
        notices = check_topic_words(store, run_key, deleted_topics)
        done, ok = "", True
        if may_clean_now(managed) and not managed.is_live:
            with waiting("cleanupLogs"):
                request = PlanRequest(replicas_stopped=replicas_stopped or "")
                done, ok = _clean(cycle.Cleanup(store, run_key, request))
        with waiting("tasks"):
            results = run_broker_tasks(store, run_key, words=deleted_topics)
    if as_json:
        rows = [{**to_jsonable(one), "text": one.text} for one in results]
        print_json(
            "kafka run-tasks", {"run_key": run_key, "cleanup": done, "tasks": rows, "notices": notices}
        )
    else:
        _say(results, done)
        for notice in notices:
            say(f"Note: {notice}")
    return 1 if not ok or any(one.alarms for one in results) else 0


def _clean(cleanup: cycle.Cleanup) -> tuple[str, bool]:
    """Take every step of a cleanup.

    :return: what it came to, as a clause; whether it ended well.
    """
    for step in cycle.CLEANUP[:-1]:
        step(cleanup)
    finished = cycle.report(cleanup)
    finished.raise_refused()
    released = cycle.release(cleanup)
    deleted = count_text(len(released.deleted), "segment")
    return f"{deleted} deleted, {bytes_text(released.freed_bytes)} freed", finished.ok


def _say(results: tuple[TaskResult, ...], done: str) -> None:
    for number, one in enumerate(results):
        say(one.text.replace(": ", f": {done}; ", 1) if done and not number else one.text)
    if any(one.alarms for one in results):
        say_next("doctor", "What should have been done by now is told with what to do about it")


@click.group(cls=Group)
def kafka() -> None:
    """Work on nodes of Kafka."""


kafka.add_command(make_room)
kafka.add_command(run_tasks)
