"""Kills a run at its durable operations, one after the other, and runs it again; a script of test_kill.

Each attempt is a fork of this process, which has done it all once with a store of its own: what is imported,
compiled and cached at first use is there already. The child counts what makes its work durable (fsync,
unlink, rename, link, commit) and sends itself SIGKILL before the chosen one of a step. What is left on disk
is looked at, the same run is done again without disturbance, and what it comes to is compared with a run that
nobody killed. Prints one JSON object.

Usage: kill_runner.py PRISTINE_STORE WORK_DIRECTORY MOST_KILLS (0: one of each kind)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from storage_engine.core.durable import DIRECTORY
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp
from storage_engine.rocketmq.codec.codec import CODEC
from tests.services.forks import in_child, in_forks

SEGMENTS = 2
RUN = "run"
NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
DURABLE = ("fsync", "unlink", "remove", "rename", "replace", "link", "mkdir")
DELETING = "release"
"""The step that deletes segments; it is killed at each of its operations, or after each pair of kinds."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Before the step's operation of this number, counted from 0."""

    step: str
    operation: int


def managed(directory: Path) -> ManagedStore:
    return ManagedStore.local("kill", str(directory / "store"), directory / "managed", time_zone="UTC")


def cycle(store: ManagedStore, at_step: Callable[[str], None]) -> None:
    todo: dict[str, Callable[[], object]] = {
        "init_lake": lambda: make_lake(store.lake),
        "sense": lambda: steps.sense(store),
        "make_plan": lambda: steps.make_plan(store, RUN, PlanRequest(manual=True, max_segments=SEGMENTS)),
        "archive": lambda: steps.archive(store, RUN, steps.archive_jobs(store, RUN)),
        "record_lag": lambda: steps.record_lag(store, RUN, NO_LAG, []),
        "release": lambda: steps.release(store, RUN),
        "clean_dependents": lambda: steps.clean_dependents(store, RUN),
        "flush_checkpoint": lambda: steps.flush_checkpoint(store, RUN),
        "finish": lambda: finish(store, RUN),
    }
    do_steps(todo, at_step)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Operations:
    """What this process does, step by step, until something strikes at a moment.

    Threads that share an fsync make a step's number of operations vary: a step that ends before the moment
    is the moment.

    :param moment: at which it strikes, once; None: it never does.
    """

    def __init__(self, moment: Moment | None, strike: Callable[[], None] = die) -> None:
        self.done: list[str] = []
        self._moment, self._strike = moment, strike
        self._now = Moment("", 0)

    def at_step(self, name: str) -> None:
        """Say which step begins."""
        if self._moment is not None and self._now.step == self._moment.step:
            self._struck()
        self._now = Moment(name, 0)

    def count(self, what: str) -> None:
        if self._now == self._moment:
            self._struck()
        self.done.append(f"{self._now.step}: {what}")
        self._now = Moment(self._now.step, self._now.operation + 1)

    def count_calls(self, module: Any, name: str, *, with_path: bool = True) -> None:
        """Count each call of a function of a module, but of what Python keeps of its own."""
        real = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            path = str(args[0]) if isinstance(args[0], (str, os.PathLike)) else ""
            if "__pycache__" not in path:
                self.count(f"{name} {path}" if with_path else name)
            return real(*args, **kwargs)

        setattr(module, name, call)

    def count_commits(self) -> None:
        """Count each commit of a database, but of what only reads."""

        def commit(connection: Connection) -> None:
            if not connection.get_execution_options().get("storage_engine_read_only"):
                self.count("commit")

        event.listen(Engine, "commit", commit)

    def _struck(self) -> None:
        self._moment = None
        self._strike()


def do_steps(steps_: Mapping[str, Callable[[], object]], at_step: Callable[[str], None]) -> None:
    """Do steps in their order."""
    for name, step in steps_.items():
        at_step(name)
        step()


def count_durable_operations(kill_before: Moment | None) -> tuple[list[str], Callable[[str], None]]:
    """Patch this process so that it keeps a list of what it does, and dies at a moment."""
    operations = Operations(kill_before)
    for name in DURABLE:
        operations.count_calls(os, name)
    operations.count_commits()
    return operations.done, operations.at_step


def run_cycle(directory: Path, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(managed(directory), at_step)
    at_step("")
    return done


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file with its SHA-256, but the broker's lock and our stamp, which says what this very run did."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock" and path.parent.name != DIRECTORY
    }


def homeless(directory: Path, pristine: dict[str, str]) -> list[str]:
    """Segments whose bytes are neither in the store nor provably in the lake at this moment."""
    store = managed(directory)
    here = fingerprint(directory / "store")
    gone = [name for name, sha256 in pristine.items() if "commitlog/" in name and here.get(name) != sha256]
    if not gone:
        return []
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    lake = open_lake(store.lake)
    rows = receipts(lake, record.store_id)
    check_chain(receipt_history(lake, record.store_id))
    broken = broken_receipts(lake, rows)
    messages = lake.messages()
    proven = {f"{row.log}/{row.base_offset:020d}": row for row in rows if row.identity not in broken}
    lost = []
    for name in gone:
        row = proven.get(name)
        if (
            row is None
            or row.sha256 != pristine[name]
            or file_hash(data_file_of(messages, row)) != row.data_file_sha256
        ):
            lost.append(name)
    return lost


def file_hash(location: str) -> str:
    return hashlib.sha256(Path(location.removeprefix("file://")).read_bytes()).hexdigest()


def end_state(directory: Path) -> dict[str, Any]:
    """What a finished run comes to, as far as it may not depend on what happened on the way."""
    store = managed(directory)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    run = journal.run(record.store_id, RUN)
    lake = open_lake(store.lake)
    rows = receipts(lake, record.store_id)
    check_chain(receipt_history(lake, record.store_id))
    messages = lake.messages()
    data_files = sorted(path.rpartition("/")[2] for path in messages.inspect.files()["file_path"].to_pylist())
    columns = ("physical_offset", "size")
    table = messages.scan(selected_fields=columns).to_arrow().sort_by("physical_offset")
    report = build_report(store, RUN)
    deletions, stamp = read_deletions(lake, record.store_id), read_stamp(store.real_root)
    return {
        "store": fingerprint(directory / "store"),
        "receipts": [[r.lineage, r.log, r.base_offset, r.size_bytes, r.sha256, r.row_count] for r in rows],
        "broken": [str(fault) for fault in broken_receipts(lake, rows).values()],
        "data_files": data_files,
        "left_over": left_over(store, {data_file_of(messages, row) for row in rows}),
        "rows": [table["physical_offset"].to_pylist(), table["size"].to_pylist()],
        "deletions": [
            [row.run, row.log, row.start_offset, row.end_offset, row.what, row.cause] for row in deletions
        ],
        "stamped": stamp is not None and stamp.deletion in {row.digest for row in deletions},
        "run": run.state.value,
        "outcome": report.outcome.value,
        "deleted": sorted(e.subject for e in journal.events(run, Step.RELEASE, Phase.RESULT)),
        "dependents": sorted(
            e.subject.removeprefix(store.real_root)
            for e in journal.events(run, Step.DEPENDENTS, Phase.RESULT)
        ),
    }


def left_over(store: ManagedStore, wanted: set[str]) -> list[str]:
    """Parquet files under the messages table's data directory that no receipt names."""
    warehouse = Path(store.lake.properties["warehouse"].removeprefix("file://"))
    found = warehouse.glob("**/messages/data/**/*.parquet")
    return sorted(path.name for path in found if f"file://{path}" not in wanted)


def choose(operations: list[str], most: int) -> list[int]:
    """Every operation of the step that deletes, the ends of every step, and an even spread of the others."""
    if most == 0:
        of_each_kind = one_of_each_kind(operations, [DELETING], DELETING)
        return sorted({*of_each_kind, *around_the_row(operations)})
    steps_of = [operation.partition(":")[0] for operation in operations]
    ends = {
        i
        for i, step in enumerate(steps_of)
        if i in (0, len(steps_of) - 1) or steps_of[i - 1] != step or steps_of[i + 1] != step
    }
    chosen = ends | {i for i, step in enumerate(steps_of) if step == DELETING}
    others = [i for i in range(len(operations)) if i not in chosen]
    room = max(most - len(chosen), 0)
    if room and others:
        stride = max(len(others) / room, 1)
        chosen |= {others[int(i * stride)] for i in range(min(room, len(others)))}
    return sorted(chosen)


def around_the_row(operations: list[str]) -> list[int]:
    """Return the first operation on the lake's row of what went, and the first one behind it on the stamp."""
    row = next(i for i, operation in enumerate(operations) if "/deletions/data/" in operation)
    stamp = next(i for i, what in enumerate(operations) if i > row and "stamp" in what.rpartition("/")[2])
    return [row, stamp]


def one_of_each_kind(operations: list[str], matter_most: Sequence[str], by_pairs: str = "") -> list[int]:
    """Return the last operation of each kind in the steps that matter most, and of each other step.

    :param by_pairs: the step in which a kind is what is done after what.
    """
    last: dict[tuple[str, str], int] = {}
    before = ""
    for number, operation in enumerate(operations):
        step, _, what = operation.partition(": ")
        word = what.partition(" ")[0]
        kind = f"{word} after {before}" if step == by_pairs else word
        last[step, kind if step in matter_most else ""] = number
        before = word
    return sorted(last.values())


def moment_of(operations: list[str], number: int) -> Moment:
    steps_of = [operation.partition(":")[0] for operation in operations]
    return Moment(steps_of[number], steps_of[:number].count(steps_of[number]))


def prepare(pristine: Path, directory: Path) -> None:
    (directory / "managed").mkdir(parents=True)
    shutil.copytree(pristine, directory / "store", copy_function=shutil.copy2)


def warm_up(pristine: Path) -> None:
    """Load the compiled kernels once, instead of in every child."""
    codec = CODEC
    data = (pristine / "commitlog" / f"{0:020d}").read_bytes()
    for rows, _ in codec.decode(memoryview(data), 0):
        codec.encode(rows, memoryview(bytearray(len(data))), 0)


def do_once(pristine: Path, directory: Path, run: Callable[[Path], object]) -> None:
    """Do all that the forks do once in this process: they inherit what was imported, compiled and cached."""
    prepare(pristine, directory)
    run(directory)
    shutil.rmtree(directory)


def whole_run(directory: Path) -> None:
    cycle(managed(directory), lambda _: None)
    end_state(directory)


def rehearse(pristine: Path, directory: Path, run: Callable[[], list[str]]) -> tuple[list[str], Any]:
    """Let a run end undisturbed; returns what it says and its end state."""
    do_once(pristine, directory.with_name("warm"), whole_run)
    prepare(pristine, directory)
    status, said = in_child(run)
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(directory))
    return said, expected


def main(pristine: Path, work: Path, most: int) -> None:
    before = fingerprint(pristine)
    operations, expected = rehearse(
        pristine, work / "undisturbed", lambda: run_cycle(work / "undisturbed", None)
    )
    chosen = choose(operations, most)

    def prepared(directory: Path) -> dict[str, str]:
        prepare(pristine, directory)
        return before

    problems = kill_each(
        work / "killed",
        operations,
        chosen,
        prepared,
        run_cycle,
        lambda directory, files: aftermath(directory, files, expected),
    )
    answer = {"operations": operations, "kills": len(chosen), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


def kill_each(
    directory: Path,
    operations: list[str],
    numbers: Sequence[int],
    prepare: Callable[[Path], dict[str, str]],
    run: Callable[[Path, Moment | None], object],
    look: Callable[[Path, dict[str, str]], list[str]],
) -> list[str]:
    """Kill a run before each of some operations, and say what is not as it has to be.

    :param directory: each fork has one beside it, made afresh for each kill.
    :param prepare: makes it, and returns its files.
    :param run: does the run there, in a fork that dies at a moment.
    :param look: says of a directory, and of what was in it first, what is wrong with it.
    """

    def kill(number: int, fork: str) -> list[str]:
        place = directory.with_name(f"{directory.name}-{fork}")
        before = prepare(place)
        status, _ = in_child(lambda: run(place, moment_of(operations, number)))
        found = [*not_killed(status), *look(place, before)]
        shutil.rmtree(place)
        return [f"killed before operation {number} ({operations[number]}): {what}" for what in found]

    return [what for found in in_forks(numbers, kill) for what in found]


def not_killed(status: int) -> list[str]:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return []
    return [f"expected a death by SIGKILL, found status {status}"]


def aftermath(directory: Path, pristine: dict[str, str], expected: dict[str, Any]) -> list[str]:
    """Look at what a run left that did not end, run it again, and say what is not as it has to be."""
    problems = []
    _, lost = in_child(lambda: homeless(directory, pristine))
    if lost != []:
        problems.append(f"segments neither in the store nor in the lake: {lost}")
    status, _ = in_child(lambda: cycle(managed(directory), lambda _: None))
    if status:
        return [*problems, "the run that followed failed"]
    _, found = in_child(lambda: end_state(directory))
    for key, value in expected.items():
        if found is None or found[key] != value:
            problems.append(f"another end state: expected {key} {value}, found {found and found[key]}")
    return problems


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
