"""Kills a release beside a running broker at its operations; a script of test_kafka_kill.

Two topics are held; all that is written to them has expired by their own settings. Each round is one run of a
child process, killed at one operation of a step, and the same run done again undisturbed. Operations are what
makes its work durable, and each question to the cluster, before it is asked and once it is answered. After
each round, what counts must hold. Prints one JSON object.

Usage: kafka_kill_runner.py WORK_DIRECTORY VERSION ROUNDS
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from demo.brokers.kafka import Kafka
from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.journal.journal import Phase, Step
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.lag import LagSummary
from storage_engine.model.settings.store_settings import WE_DELETE
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import hold
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.kafka_broker import make_topics, running_kafka, served, small
from tests.integration.test_kafka_release import (
    HOUR_MS,
    SETTINGS,
    in_lake,
    old,
    start_of,
    values,
)
from tests.retention.kill_runner import Moment, Operations, do_steps, moment_of
from tests.services.forks import in_child

TOPICS = ("orders", "payments")
RECORDS = 50
NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
DELETION = "the deletion of records"
"""What the cluster is asked for; a round kills before that, and one behind it."""


def cycle(store: ManagedStore, run: str, at_step: Callable[[str], None]) -> None:
    todo: dict[str, Callable[[], object]] = {
        "hold": lambda: hold(store),
        "make_plan": lambda: steps.make_plan(store, run),
        "archive": lambda: steps.archive_planned(store, run, archive_here),
        "record_lag": lambda: steps.record_lag(store, run, NO_LAG, []),
        "release": lambda: steps.release(store, run),
        "clean_dependents": lambda: steps.clean_dependents(store, run),
        "flush_checkpoint": lambda: steps.flush_checkpoint(store, run),
        "finish": lambda: finish(store, run),
    }
    do_steps(todo, at_step)


def run_task(store: ManagedStore, run: str, kill_at: Moment | None) -> list[str]:
    """Do a run, and die at an operation of a step; return all operations as ``step: operation``."""
    operations = Operations(kill_at)
    count_questions(operations)
    operations.count_commits()
    cycle(store, run, operations.at_step)
    return operations.done


def count_questions(operations: Operations) -> None:
    """Count each question to a cluster, before it is asked and once it is answered."""
    answers = Cluster.answers

    def counted(self: Cluster, what: str, keys: Any, ask: Any) -> Iterator[Any]:
        operations.count(f"ask for {what}")
        found = list(answers(self, what, keys, ask))
        operations.count(f"told of {what}")
        yield from found

    Cluster.answers = counted  # type: ignore[method-assign]


class Kills:
    def __init__(self, work: Path, kafka: Kafka) -> None:
        self.kafka, self.work, self.sent = kafka, work, 0
        store = ManagedStore.local("k", str(kafka.server_properties), work / "managed", broker="kafka")
        live = LiveBroker(kafka.address, deletes=WE_DELETE, allow_same_disk=True)
        self.store = replace(store, live=live)
        make_lake(self.store.lake, "kafka")
        self.kills: Counter[str] = Counter()
        self.problems: list[str] = []

    def fill(self) -> None:
        for topic in TOPICS:
            old(self.kafka, topic, self.sent, RECORDS)
        self.sent += RECORDS

    def round(self, number: int, kill_at: Moment | None, what: str) -> list[str]:
        self.fill()
        run = f"run-{number}"
        where = f"{run}, killed at {kill_at} {what}"
        if kill_at is not None:
            status, _ = in_child(lambda: run_task(self.store, run, kill_at))
            if not os.WIFSIGNALED(status):
                self.problems.append(f"{where}: it wasn't killed: {status}")
            self.kills[f"{kill_at.step}: {what}"] += 1
            self.look(where)
        status, done = in_child(lambda: run_task(self.store, run, None))
        if status:
            self.problems.append(f"{where}: the run that followed failed")
            return []
        self.look(f"{where}, at its end")
        _, wrong = in_child(lambda: self.wrong(run))
        self.problems += [
            f"{where}: {one}" for one in (["it can't be looked at"] if wrong is None else wrong)
        ]
        return list(done)

    def look(self, where: str) -> None:
        """Each record that was taken is served, or is in the lake."""
        _, lost = in_child(self.lost)
        self.problems += [f"{where}: {one}" for one in (["nothing could be read"] if lost is None else lost)]

    def lost(self) -> list[str]:
        found = []
        for topic in TOPICS:
            first, there = start_of(self.kafka, topic), served(self.kafka.address, topic)
            archived = in_lake(self.work / "managed" / "lake", topic)
            for offset, value in enumerate(values(0, self.sent)):
                if (there if offset >= first else archived).get(offset) != value:
                    found.append(f"{topic}: record {offset} is lost, the log begins at {first}")
        return found

    def wrong(self, run_key: str) -> list[str]:
        with opened(self.store) as context:
            run = context.run(run_key)
            assert run.plan is not None
            results = Counter(
                one.subject for one in context.journal.events(run, Step.RELEASE, Phase.RESULT) if one.subject
            )
            planned = Counter(f"{one.log}/{one.base_offset:020d}" for one in run.plan.to_delete)
            found = [] if results == planned else [f"results: expected {planned}, found {results}"]
            if not planned:
                found.append("nothing was planned")
            for log in run.plan.logs:
                start = start_of(self.kafka, log.log.rpartition("-")[0])
                if start != log.new_min_offset:
                    found.append(f"{log.log}: expected a start at {log.new_min_offset}, found {start}")
            report = build_report(self.store, run_key)
            if report.outcome.value != "done":
                found.append(f"outcome {report.outcome.value}")
            status = context.broker.hold.status(clock_ms())
            if not status.is_well or status.disturbances:
                found.append(f"hold: {status}")
            if drift := context.journal.store_events(context.record.store_id, Step.DRIFT):
                found.append(f"drift: {[one.payload for one in drift]}")
            check_chain(receipt_history(open_lake(self.store.lake), context.record.store_id))
        return found


def main(work: Path, version: str, rounds: int) -> None:
    work.mkdir(parents=True)
    with running_kafka(work / "kafka", version, SETTINGS) as kafka:
        make_topics(kafka.address, *TOPICS, retention_ms=HOUR_MS, **small(version))
        kills = Kills(work, kafka)
        while not in_child(lambda: hold(kills.store).status.is_well)[1]:
            pass
        operations = kills.round(0, None, "")
        steps_of = [one.partition(": ")[::2] for one in operations]
        moments = [
            (moment_of(operations, number), what)
            for number, (step, what) in enumerate(steps_of)
            if step in ("hold", "release")
        ]
        # The deletion itself always; of the others as many as there is time for, evenly.
        chosen = [one for one in moments if DELETION in one[1]]
        others = [one for one in moments if one not in chosen]
        chosen += others[:: max(1, len(others) // max(1, rounds - len(chosen)))]
        for number, (kill_at, what) in enumerate(chosen, 1):
            kills.round(number, kill_at, what)
            sys.stderr.write(f"{number} of {len(chosen)}: {kill_at} {what}: {kills.problems}\n")
    sys.stdout.write(json.dumps({"kills": kills.kills, "problems": kills.problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
