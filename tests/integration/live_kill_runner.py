"""Kills a broker, the task beside it, or both, at random moments of a run; a script of test_live_kill.

A producer never stops. Every segment behind the active one has expired, so that nothing but the hold keeps
the broker from deleting it. Each round is one run: its task, a fork of this process that never touches a
store itself, is disturbed a few times at an operation of a step, then left alone. Operations are what makes
its work durable or sets an mtime, each request to the broker and its answer, and each moment of waiting.
After each kill and each round, what counts must hold. Prints one JSON object.

Usage: live_kill_runner.py WORK_DIRECTORY KILLS SEED
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.exceptions import BrokerError, StorageEngineError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import hold, unmanage
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.context import open_context
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.live import hold as live_hold
from storage_engine.rocketmq.remoting.connection import Connection
from tests.integration.broker import ACCESS, CLEANS_AT_ONCE, Broker, name_server, running_broker, start_again
from tests.integration.live_store import SETTINGS, LiveLog, create_topic, send
from tests.integration.remoting import RemotingClient
from tests.lakes import path_of
from tests.retention.kill_runner import Moment, Operations, die, do_steps, warm_up
from tests.services.forks import in_child

NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
DURABLE = ("fsync", "unlink", "rename", "replace", "link", "mkdir", "utime")
WEIGHTS = {"hold": 4, "make_plan": 1, "archive": 4, "release": 9, "clean_dependents": 2, "finish": 1}
"""How often a step is disturbed."""
VICTIMS = {"task": 5, "broker": 2, "both": 2}
MOST_KILLS_A_ROUND = 3
FENCED = 3
SPARE_SEGMENTS = FENCED + 1
"""Expired ones that are left behind a run's plan at the least."""
PRODUCER_PAUSE_SECONDS = 0.1
STRUCK = "killed"
MOST_SECONDS = 300
"""A task that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Blow:
    """Who is killed before an operation."""

    moment: Moment
    victim: str


@dataclass
class Seen:
    """What happened; printed at the end."""

    rounds: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    released: int = 0
    messages: int = 0
    longest_seconds: float = 0
    problems: list[str] = field(default_factory=list)


def cycle(store: ManagedStore, run: str, most: int, at_step: Callable[[str], None]) -> None:
    request = PlanRequest(manual=True, max_segments=most)
    todo: dict[str, Callable[[], object]] = {
        "hold": lambda: hold(store),
        "make_plan": lambda: steps.make_plan(store, run, request),
        "archive": lambda: steps.archive(store, run, steps.archive_jobs(store, run)),
        "record_lag": lambda: steps.record_lag(store, run, NO_LAG, []),
        "release": lambda: steps.release(store, run),
        "clean_dependents": lambda: steps.clean_dependents(store, run),
        "flush_checkpoint": lambda: steps.flush_checkpoint(store, run),
        "finish": lambda: finish(store, run),
    }
    do_steps(todo, at_step)
    at_step("")


def watch_operations(blow: Blow | None, broker_pid: int) -> Operations:
    """Patch this process so that it keeps a list of what it does, and kills at a moment."""

    def strike() -> None:
        assert blow is not None
        operations.done.append(STRUCK)
        if blow.victim in ("broker", "both"):
            os.kill(broker_pid, signal.SIGKILL)
        if blow.victim in ("task", "both"):
            die()

    operations = Operations(None if blow is None else blow.moment, strike)
    for name in DURABLE:
        operations.count_calls(os, name, with_path=False)
    operations.count_calls(time, "sleep", with_path=False)
    operations.count_commits()
    exchange = Connection._exchange

    def ask(self: Connection, peer: Any, code: int, *rest: Any) -> Any:
        operations.count(f"ask {code}")
        answer = exchange(self, peer, code, *rest)
        operations.count(f"answered {code}")
        return answer

    Connection._exchange = ask  # type: ignore[method-assign]
    return operations


def run_task(store: ManagedStore, run: str, most: int, blow: Blow | None, broker_pid: int) -> Any:
    operations = watch_operations(blow, broker_pid)
    signal.alarm(MOST_SECONDS)
    said: dict[str, Any] = {"error": "", "done": operations.done}
    try:
        cycle(store, run, most, operations.at_step)
    except StorageEngineError as error:
        said |= {"error": type(error).__name__, "said": str(error)}
    return said | {"struck": STRUCK in operations.done, "modules": sorted(sys.modules)}


def choose(chance: random.Random, known: dict[str, list[str]]) -> tuple[Blow, str]:
    """A moment, each kind of operation of a step being as likely as any other."""
    step = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    kind = chance.choice(sorted(set(known[step])))
    number = chance.choice([i for i, what in enumerate(known[step]) if what == kind])
    victim = chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    return Blow(Moment(step, number), victim), f"{victim} at {step}: {kind}"


def by_step(done: Sequence[str]) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {step: [""] for step in WEIGHTS}
    for operation in done:
        step, _, what = operation.partition(": ")
        known.setdefault(step, [""]).append(what)
    return {step: whats[1:] or whats for step, whats in known.items()}


def produce(port: int, path: Path) -> None:
    """Send for ever, and record what the broker says that it took."""
    client = RemotingClient(port, ACCESS)
    with path.open("a", buffering=1) as acknowledged:
        while True:
            with suppress(BrokerError):
                sent = send(client, random.randint(2_000, 30_000))
                acknowledged.write(f"{sent.offset} {sent.body_sha256}\n")
            time.sleep(PRODUCER_PAUSE_SECONDS)


def homeless(store: ManagedStore, sha256: dict[int, str]) -> list[str]:
    """Segments whose bytes are neither in the store nor provably in the lake at this moment, and holes."""
    directory = Path(store.root) / "commitlog"
    here = {int(path.name): file_hash(path) for path in sorted(directory.iterdir())}
    known = {base for base in here if base in sha256}
    problems = [
        f"a hole before {base}" for base in sha256 if known and base > min(known) and base not in here
    ]
    gone = [base for base, was in sha256.items() if here.get(base) != was]
    if not gone:
        return problems
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    lake = open_lake(store.lake)
    rows = receipts(lake, record.store_id)
    check_chain(receipt_history(lake, record.store_id))
    broken = broken_receipts(lake, rows)
    proven = {row.base_offset: row for row in rows if row.identity not in broken}
    for base in gone:
        row = proven.get(base)
        if row is None or row.sha256 != sha256[base]:
            problems.append(f"segment {base} is neither in the store nor in the lake")
        elif file_hash(path_of(lake, row)) != row.data_file_sha256:
            problems.append(f"segment {base} is damaged in the lake")
    return problems


def after_round(store: ManagedStore, run_key: str) -> list[str]:
    """What is not as it has to be when a run has come to its end."""
    context = open_context(store)
    run = context.run(run_key)
    assert run.plan is not None
    problems = []

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            problems.append(f"{what}: expected {expected}, found {found}")

    released = {e.subject for e in context.journal.events(run, Step.RELEASE, Phase.RESULT) if e.subject}
    expect("released", released, {f"commitlog/{s.base_offset:020d}" for s in run.plan.to_delete})
    names = sorted(int(path.name) for path in (Path(store.root) / "commitlog").iterdir())
    expect("first file", names[0], run.plan.logs[0].new_min_offset)
    expect("report", (build_report(store, run_key).outcome.value, run.state.value), ("done", "finished"))
    status = context.broker.hold.status(time.time_ns() // 10**6)
    expect("hold", (status.held, status.fence_offset), (True, names[0]))
    lake = open_lake(store.lake)
    rows = receipts(lake, context.record.store_id)
    expect("broken receipts", broken_receipts(lake, rows), {})
    expect("receipts", len({row.base_offset for row in rows}), len(rows))
    files = lake.messages().inspect.files()["file_path"].to_pylist()
    expect("data files", sorted(files), sorted(data_file_of(lake.messages(), row) for row in rows))
    return problems


def lost_messages(store: ManagedStore, port: int, sent: dict[int, str]) -> list[str]:
    """Messages that the broker took, and that neither it nor the lake has."""
    client = RemotingClient(port, ACCESS)
    min_offset = client.runtime_info().commitlog_min_offset
    table = open_lake(store.lake).messages().scan(selected_fields=("physical_offset", "body"))
    rows = table.to_arrow()
    archived = dict(zip(rows["physical_offset"].to_pylist(), rows["body"].to_pylist(), strict=True))
    problems = []
    for offset, expected in sent.items():
        body = archived.get(offset) if offset < min_offset else served_body(client, offset)
        if body is None or hashlib.sha256(body).hexdigest() != expected:
            problems.append(f"the message at {offset} is lost")
    return problems


def served_body(client: RemotingClient, offset: int) -> bytes | None:
    frame = client.view(offset)
    # 88 bytes before the body where hosts are IPv4, the last four its length.
    return frame and frame[88 : 88 + int.from_bytes(frame[84:88])]


def put_back(store: ManagedStore, mtime_ns: dict[int, int]) -> list[str]:
    """End the hold; says what isn't as it was before it."""
    live_hold.FIRST_PASS_MS = 0  # type: ignore[misc]  # this broker's passes begin as it starts
    status = unmanage(store).status
    problems = [f"still held: {status}"] if status.held else []
    for base, expected in mtime_ns.items():
        path = Path(store.root) / "commitlog" / f"{base:020d}"
        if path.exists() and path.stat().st_mtime_ns != expected:
            problems.append(f"{path}: expected mtime {expected}, found {path.stat().st_mtime_ns}")
    forcibly = RemotingClient(int(store.live.address.rpartition(":")[2]), ACCESS).config()  # type: ignore[union-attr]
    if forcibly["cleanFileForciblyEnable"] != "true":
        problems.append("cleanFileForciblyEnable was not put back")
    return problems


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Stress:
    def __init__(self, work: Path, broker: Broker, name_server_port: int, seed: int) -> None:
        self.work, self.broker, self.name_server_port = work, broker, name_server_port
        self.log = LiveLog(broker)
        self.store = self.log.managed(work / "managed")
        self.acknowledged = work / "acknowledged"
        self.chance = random.Random(seed)
        self.seen = Seen()
        self.known: dict[str, list[str]] = {}

    def go(self, kills: int) -> None:
        self.one_round(disturbances=0)
        while self.seen.kills.total() < kills and not self.seen.problems:
            self.one_round(disturbances=self.chance.randint(1, MOST_KILLS_A_ROUND))

    def one_round(self, disturbances: int) -> None:
        run = f"run-{self.seen.rounds}"
        most = self.chance.randint(1, 3)
        self.wait_for_segments(most + SPARE_SEGMENTS)
        for _ in range(disturbances):
            blow, where = choose(self.chance, self.known)
            self.disturb(run, most, blow, where)
        began = time.monotonic()
        status, said = in_child(lambda: run_task(self.store, run, most, None, 0))
        self.seen.longest_seconds = max(self.seen.longest_seconds, time.monotonic() - began)
        if status or said["error"]:
            what = said and f"{said['error']}: {said['said']}"
            self.seen.problems.append(f"{run}: the run that nobody disturbed failed: {status}, {what}")
            return
        for module in said["modules"]:  # so that no other child has to
            with suppress(ImportError):
                importlib.import_module(module)
        self.known = self.known or by_step(said["done"])
        self.check(f"{run}, at its end", lambda: after_round(self.store, run))
        self.others_clean()
        self.check_all_there(f"{run}, after others' cleaning")
        self.seen.rounds += 1
        sys.stderr.write(f"{self.seen.rounds} rounds, kills {dict(self.seen.kills)}\n")
        sys.stderr.flush()

    def disturb(self, run: str, most: int, blow: Blow, where: str) -> None:
        pid, where = self.broker.java.process.pid, f"{run}, {where} ({blow})"
        began = time.monotonic()
        status, said = in_child(lambda: run_task(self.store, run, most, blow, pid))
        took = time.monotonic() - began
        self.seen.longest_seconds = max(self.seen.longest_seconds, took)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and (said is None or (said["error"] and blow.victim == "task")):
            what = said and f"{said['error']}: {said['said']}"
            self.seen.problems.append(f"{where}: status {status} after {took:.0f} s: {what}")
            return
        if not killed:
            self.seen.errors[said["error"] or "none"] += 1
        is_dead = blow.victim != "task" and (killed or said["struck"])
        if killed or is_dead:
            self.seen.kills[blow.victim] += 1
            self.seen.moments[f"{blow.moment.step}: {where.partition(': ')[2].partition(' (')[0]}"] += 1
        if is_dead:
            self.broker.java.process.wait()
            # With nobody at it but the store itself.
            self.check_all_there(f"{where}, the broker dead")
            start_again(self.broker, self.work, self.name_server_port, main_class=CLEANS_AT_ONCE)
        if self.chance.random() < 0.3:
            self.others_clean()
        self.check_all_there(where)

    def others_clean(self) -> None:
        """Somebody else tells the broker to delete what has expired, and it does, a few times."""
        self.broker.client.delete_expired_commitlog()
        time.sleep(1)

    def check_all_there(self, where: str) -> None:
        self.check(where, lambda: homeless(self.store, self.log.sha256))

    def check(self, where: str, look: Callable[[], list[str]]) -> None:
        status, found = in_child(look)
        self.seen.problems += [f"{where}: {what}" for what in ([f"look: {status}"] if status else found)]

    def wait_for_segments(self, expired: int) -> None:
        self.log.age()
        while len([base for base in self.log.names() if base in self.log.sha256]) < expired:
            time.sleep(0.2)
            self.log.age()

    def end(self) -> None:
        """Every message is still there, and so is everything that the hold had changed."""
        self.log.others_clean()
        lines = self.acknowledged.read_text().splitlines()
        sent = {int(offset): sha256 for offset, sha256 in (line.split() for line in lines)}
        self.seen.messages = len(sent)
        self.seen.released = len([base for base in self.log.sha256 if not self.log.path(base).exists()])
        self.check("messages", lambda: lost_messages(self.store, self.broker.port, sent))
        self.check("unmanage", lambda: put_back(self.store, self.log.mtime_ns))


def main(work: Path, kills: int, seed: int) -> None:
    work.mkdir(parents=True)
    settings = {**SETTINGS, "deleteFileBatchMax": FENCED - 1}
    with (
        name_server(work) as port,
        running_broker(work / "store", work, port, settings, main_class=CLEANS_AT_ONCE) as broker,
    ):
        create_topic(broker.client)
        stress = Stress(work, broker, port, seed)
        stress.log.fill(1)
        warm_up(broker.store)
        producer = os.fork()
        if producer == 0:
            produce(broker.port, stress.acknowledged)
        try:
            stress.go(kills)
        finally:
            os.kill(producer, signal.SIGKILL)
            os.waitpid(producer, 0)
        stress.end()
    sys.stdout.write(json.dumps(vars(stress.seen)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
