"""Kills who makes room in a stopped node at its operations, and runs the same run again; a script of
test_kafka_room_kill.

Node 1 of three is stopped, and its disk of its own. Each round asks for a little more free space than is
there, so that a few segments go of the topics that node 2 leads. Operations are what makes work durable, and
each question to the cluster, before it is asked and once it is answered. After each round, what counts must
hold. In the end node 1 starts, and leads. Prints one JSON object.

Usage: kafka_room_kill_runner.py WORK_DIRECTORY ROUNDS
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from storage_engine.cycle import archive_here
from storage_engine.journal.journal import Phase, Step
from storage_engine.kafka.reclaim import RoomNode, RoomStore
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.full_disks import small_disk
from tests.integration.kafka_broker import VERSIONS
from tests.integration.kafka_cluster import Cluster, running_cluster
from tests.integration.kafka_kill_runner import DELETION, NO_LAG, count_questions
from tests.integration.test_kafka_make_room import (
    DISK_BYTES,
    SETTINGS,
    bases,
    data_of,
    flushed,
    keep_all,
    lost,
    made,
)
from tests.integration.test_kafka_release import start_of
from tests.retention.kill_runner import DURABLE, Moment, Operations, do_steps, moment_of, not_killed
from tests.services.forks import in_child

TOPICS = ("orders", "payments")
RECORDS = 100
"""Of each topic, for each run: it takes fewer away."""
MORE_BYTES = 100 << 10
DELETING = ("release", "clean_dependents")


class Kills:
    def __init__(self, work: Path, cluster: Cluster, records: int) -> None:
        self.cluster, self.records = cluster, records
        self.lake = work / "managed" / "lake"
        self.store = ManagedStore.local(
            "k", str(cluster.nodes[1].server_properties), work / "managed", broker="kafka"
        )
        self.live = LiveBroker(cluster.nodes[2].address)
        make_lake(self.store.lake, "kafka")
        self.kills: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self, run: str, request: PlanRequest, kill_before: Moment | None) -> list[str]:
        operations = Operations(kill_before)
        for name in DURABLE:
            operations.count_calls(os, name)
        operations.count_commits()
        count_questions(operations)
        with opened(self.store, RoomStore(RoomNode(Path(self.store.root), live=self.live))) as context:
            todo: dict[str, Callable[[], object]] = {
                "make_plan": lambda: steps.make_plan(context, run, request),
                "archive": lambda: steps.archive_planned(context, run, archive_here),
                "record_lag": lambda: steps.record_lag(context, run, NO_LAG, []),
                "release": lambda: steps.release(context, run),
                "clean_dependents": lambda: steps.clean_dependents(context, run),
                "flush_checkpoint": lambda: steps.flush_checkpoint(context, run),
                "finish": lambda: finish(context, run),
            }
            do_steps(todo, operations.at_step)
        operations.at_step("")
        return operations.done

    def round(self, number: int, moment: Moment | None, what: str) -> list[str]:
        run, free = f"run-{number}", DiskUsage.of(data_of(self.cluster, 1)).usable_bytes or 0
        request = PlanRequest(free_bytes=free + MORE_BYTES)
        where = f"{run}, killed before {moment} {what}"
        before = {topic: bases(self.cluster, 1, topic) for topic in TOPICS}
        if moment is not None:
            status, _ = in_child(lambda: self.run(run, request, moment))
            self.problems += [f"{where}: {one}" for one in not_killed(status)]
            self.kills[f"{moment.step}: {what}"] += 1
            self.look(where, before)
        status, done = in_child(lambda: self.run(run, request, None))
        if status:
            self.problems.append(f"{where}: the run that followed failed")
            return []
        self.look(f"{where}, at its end", before)
        _, wrong = in_child(lambda: self.wrong(run))
        self.problems += [f"{where}: {one}" for one in ["it can't be looked at"] if wrong is None]
        self.problems += [f"{where}: {one}" for one in wrong or ()]
        return list(done)

    def look(self, where: str, before: dict[str, list[int]]) -> None:
        """Each record is served or in the lake, and no file went before its leader began behind it."""
        _, said = in_child(lambda: self.found(before))
        self.problems += [f"{where}: {one}" for one in (["nothing could be read"] if said is None else said)]

    def found(self, before: dict[str, list[int]]) -> list[str]:
        problems = []
        for topic in TOPICS:
            gone = lost(self.cluster, topic, self.lake, self.records)
            problems += [f"{topic}: records {gone} are lost"] if gone else []
            left, start = bases(self.cluster, 1, topic), start_of(self.cluster.nodes[2], topic)
            if left != before[topic][-len(left) :]:
                problems.append(f"{topic}: segments at {left}, and there were {before[topic]}")
            if left[0] > start:
                problems.append(f"{topic}: it begins at {left[0]} here, and its leader at {start}")
        return problems

    def wrong(self, run_key: str) -> list[str]:
        with opened(self.store, RoomStore(RoomNode(Path(self.store.root), live=self.live))) as context:
            run = context.run(run_key)
            assert run.plan is not None
            results = {
                e.subject for e in context.journal.events(run, Step.RELEASE, Phase.RESULT) if e.subject
            }
            planned = {f"{one.log}/{one.base_offset:020d}" for one in run.plan.to_delete}
            # The space that is asked for may be there before all that was planned has gone.
            found = [] if results and results <= planned else [f"planned {planned}, and gone {results}"]
            outcome = build_report(context, run_key).outcome.value
            found += [] if outcome == "done" else [f"outcome {outcome}"]
            check_chain(receipt_history(open_lake(self.store.lake), context.record.store_id))
        return found


def chosen(operations: list[str], rounds: int) -> list[int]:
    """Return the numbers of operations: the deletion at leaders, removals, and others evenly."""
    deleting = [at for at, one in enumerate(operations) if one.partition(":")[0] in DELETING]
    first = [at for at in deleting if DELETION in operations[at]][:2]
    removal = next(at for at in deleting if "unlink" in operations[at])
    first += [removal, removal + 1]
    others = [at for at in deleting if at not in first]
    return (
        first + others[:: max(1, len(others) // max(1, rounds - len(first)))][: max(0, rounds - len(first))]
    )


def main(work: Path, rounds: int) -> None:
    data = work / "cluster" / "node-1" / "data"
    data.mkdir(parents=True)
    records = RECORDS * (rounds + 1)
    with small_disk(data, DISK_BYTES), running_cluster(work / "cluster", VERSIONS[-1], SETTINGS) as cluster:
        for topic in TOPICS:
            made(cluster, topic, records=records)
            flushed(cluster, topic, records)
        cluster.stop([1])
        for topic in TOPICS:
            cluster.wait_for_isr(topic, (2, 3))
        kills = Kills(work, cluster, records)
        operations = kills.round(0, None, "")
        for number, at in enumerate(chosen(operations, rounds), 1):
            what = operations[at].partition(": ")[2]
            kills.round(number, moment_of(operations, at), Path(what).name)
            sys.stderr.write(f"{number}: {operations[at]}: {kills.problems}\n")
        for topic in TOPICS:
            keep_all(cluster, topic)
        cluster.nodes[1].start()
        for topic in TOPICS:
            cluster.wait_for_isr(topic)
            cluster.move_leader(topic, 1)
            if gone := lost(cluster, topic, kills.lake, records, by=1):
                kills.problems.append(f"{topic}: node 1 leads, and records {gone} are lost")
    sys.stdout.write(json.dumps({"kills": kills.kills, "problems": kills.problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
