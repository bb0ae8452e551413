"""Kills a cleanup of a stopped node that sets aside, and what ends its quarantine; a script of
test_stopped_undo_kill.

As ``tests/retention/quarantine/undo_kill_runner.py``: a fork is killed before the chosen operation, what it
leaves is looked at, everything is done again, and the end is compared with that of a run that nobody killed.
Prints one JSON object.

Usage: python -m tests.kafka.stopped_undo_kill_runner {undo|maintain} WORK_DIRECTORY {every|few}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.journal.journal import Journal
from storage_engine.kafka.format.layout import read_node
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.housekeeping.maintaining import maintain_store
from storage_engine.retention.quarantine.records import quarantines
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.stopped_nodes import GOING, LOGS, make_node, managed
from tests.retention import kill_runner
from tests.retention.kill_runner import Moment, count_durable_operations, do_steps, kill_each
from tests.retention.quarantine.undo_kill_runner import Seen, choose_few
from tests.retention.quarantine.undo_kill_runner import seen as seen_below
from tests.services.forks import in_child

RUN = "run"
DAY_MS = 24 * 3_600_000
kill_runner.DURABLE = (*dict.fromkeys((*kill_runner.DURABLE, "rmdir")),)


def store_of(directory: Path) -> ManagedStore:
    named = (str(directory / "undo"),)
    policy = Policy(ArchiveMode.OFF, undo_window_hours=24, undo_directories=named)
    return replace(managed(directory / "managed", directory / "store"), policy=policy)


def prepare(directory: Path) -> Seen:
    """Make a node. :return: its files."""
    make_node(directory / "store")
    (directory / "managed").mkdir()
    (directory / "undo").mkdir()
    return seen(directory / "store")


def cycle(directory: Path, end: str, at_step: Callable[[str], None]) -> None:
    store = store_of(directory)
    ends: dict[str, Callable[[], object]] = {
        "undo": lambda: undo(store, RUN, "ann"),
        "maintain": lambda: maintain_store(store, clock_ms() + 2 * DAY_MS),
    }
    todo: dict[str, Callable[[], object]] = {
        "make_plan": lambda: steps.make_plan(store, RUN, PlanRequest()),
        "release": lambda: steps.release(store, RUN),
        "clean_dependents": lambda: steps.clean_dependents(store, RUN),
        end: ends[end],
    }
    do_steps(todo, at_step)


def run_cycle(directory: Path, end: str, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(directory, end, at_step)
    at_step("")
    return done


def seen(root: Path) -> Seen:
    """Every file but the locks, our stamps, and the node's own file, which names its directories in full."""
    left_out = (".lock", PLAIN_STAMP, "server.properties")
    return {name: facts for name, facts in seen_below(root).items() if Path(name).name not in left_out}


def without_times(found: Seen) -> Seen:
    """Each attempt makes a node of its own."""
    return {name: [facts[0], facts[2]] for name, facts in found.items()}


def end_state(directory: Path) -> dict[str, Any]:
    journal = Journal(store_of(directory).journal_url)
    (record,) = journal.all_stores()
    return {
        "store": without_times(seen(directory / "store")),
        "aside": sorted(str(path) for path in (directory / "undo").rglob("*") if path.is_file()),
        "quarantines": [one.state.value for one in quarantines(journal, record.store_id)],
    }


def look(directory: Path, pristine: Seen, *, emptied: bool) -> list[str]:
    """Say what is wrong with what was left: holes, other files touched, bytes at no place."""
    problems = []
    for _, log in read_node(directory / "store" / "server.properties").logs:
        bases = [one.base_offset for one in log.segments]
        if log.name.log in LOGS and bases != list(range(2 * GOING, -1, -2))[: len(bases)][::-1]:
            problems.append(f"log {log.name.log} has segments at {bases}")
    here = seen(directory / "store")
    (aside,) = [*(directory / "undo").glob(f".storage-engine/quarantine/*/{RUN}"), None][:1]
    inside = f"{directory / 'store'}/".lstrip("/")
    there = {} if aside is None else seen_below(aside)
    lost = [
        name for name, facts in pristine.items() if facts not in (here.get(name), there.get(inside + name))
    ]
    return [*problems, *([f"at no place: {lost}"] if lost and not emptied else [])]


def aftermath(directory: Path, before: Seen, end: str, expected: dict[str, Any]) -> list[str]:
    status, problems = in_child(lambda: look(directory, before, emptied=end == "maintain"))
    found = ["what is left can't be looked at"] if status else list(problems)
    for _ in range(2):
        status, _ = in_child(lambda: cycle(directory, end, lambda _: None))
        found += ["the run that followed failed"] if status else []
    _, ended = in_child(lambda: end_state(directory))
    if end == "undo":
        found += [] if seen(directory / "store") == before else ["not each file is what it was"]
    if ended != expected:
        found.append(f"another end state: expected {expected}, found {ended}")
    return found


def main(end: str, work: Path, which: str) -> None:
    prepare(work / "warm")
    cycle(work / "warm", end, lambda _: None)
    prepare(work / "undisturbed")
    status, operations = in_child(lambda: run_cycle(work / "undisturbed", end, None))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed"))
    numbers = list(range(len(operations)))
    if which != "every":
        numbers = [number for number in choose_few(operations, end) if operations[number].startswith(end)]
    problems = kill_each(
        work / "killed",
        operations,
        numbers,
        prepare,
        lambda directory, moment: run_cycle(directory, end, moment),
        lambda directory, before: aftermath(directory, before, end, expected),
    )
    answer = {"operations": operations, "kills": len(numbers), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
