"""Kills the deletion of a segment with a companion, and its undo, at each durable operation.

A script of test_companion_kill. As ``kill_runner.py``: a fork is killed before the chosen operation, what it
leaves is looked at, everything is done again, and the end is compared with that of a run that nobody killed.
Prints one JSON object, with an object for each end: "next", where another run comes before the killed one
goes on, and "undo".

Usage: python -m tests.retention.companion_kill_runner WORK_DIRECTORY

With all rounds it is each operation of the steps that move files, else right before the second of a segment's
files is moved.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.kill_runner import (
    Moment,
    count_durable_operations,
    do_once,
    fingerprint,
    moment_of,
    not_killed,
    prepare,
)
from tests.rounds import ALL
from tests.services import toy
from tests.services.forks import in_child

RUN = "run"
KILLED = ("release", "undo")


def managed(directory: Path, end: str) -> ManagedStore:
    policy = Policy(archive=ArchiveMode.OFF, undo_window_hours=24 if end == "undo" else None)
    return toy.managed(directory, policy=policy)


def cycle(directory: Path, end: str, at_step: Callable[[str], None], run_key: str = RUN) -> None:
    store = managed(directory, end)
    todo: dict[str, Callable[[], object]] = {
        "make_plan": lambda: steps.make_plan(store, run_key, PlanRequest()),
        "release": lambda: steps.release(store, run_key),
        "clean_dependents": lambda: steps.clean_dependents(store, run_key),
    }
    if end == "undo":
        todo["undo"] = lambda: undo(store, run_key, "jo")
    for name, step in todo.items():
        at_step(name)
        step()


def run_cycle(directory: Path, end: str, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(directory, end, at_step)
    at_step("")
    return done


def go_on(directory: Path, end: str) -> None:
    """What comes after a kill."""
    for run_key in ("next", RUN) if end == "next" else (RUN,):
        cycle(directory, end, lambda _: None, run_key)


def end_state(directory: Path, end: str) -> dict[str, Any]:
    store = managed(directory, end)
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    events = journal.store_events(record.store_id, Step.RELEASE)
    of_run = [event for event in events if event.subject and event.run_key == RUN]
    meant = {event.subject for event in of_run if event.phase is Phase.INTENT}
    done = {event.subject for event in of_run if event.phase is Phase.RESULT}
    return {"store": fingerprint(directory / "store"), "unsettled": sorted(meant - done)}


def look(directory: Path, end: str, pristine: dict[str, str]) -> list[str]:
    """Say what a kill left that no log may be: its snapshot can't be read, or a file went before its turn."""
    (log,) = open_store(managed(directory, end)).snapshot(0).logs
    here = fingerprint(directory / "store")
    gone = {Path(name).suffix for name in pristine.keys() - here.keys()}
    problems = [] if gone in (set(), {".txt"}, {".txt", ".count"}, {*gone, ".index"}) else [f"gone: {gone}"]
    aside = f".storage-engine/quarantine/{RUN}/"
    lost = [
        name for name, sha256 in pristine.items() if sha256 not in (here.get(name), here.get(aside + name))
    ]
    return (
        problems
        + ([f"at no place: {lost}"] if lost and end == "undo" else [])
        + ([] if len(log.segments) in (1, 2) else ["segments are missing"])
    )


def chosen(operations: list[str]) -> list[int]:
    steps_of = [operation.partition(":")[0] for operation in operations]
    if ALL:
        return [i for i, step in enumerate(steps_of) if step in KILLED]
    names = tuple(f"{0:020d}{kind}" for kind in (".txt", ".count"))
    moved = [i for i, one in enumerate(operations) if steps_of[i] in KILLED and one.endswith(names)]
    return moved[1::2]


def main(end: str, work: Path) -> dict[str, Any]:
    store = work / "pristine"
    toy.make_store(store)
    # One segment that goes, and one that is written to.
    shutil.rmtree(store / toy.LOGS[0])
    before = fingerprint(store)
    do_once(store, work / "warm", lambda directory: cycle(directory, end, lambda _: None))
    prepare(store, work / "undisturbed")
    status, operations = in_child(lambda: run_cycle(work / "undisturbed", end, None))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed", end))
    problems: list[str] = []
    for number in chosen(operations):
        directory, moment = work / "killed", moment_of(operations, number)
        prepare(store, directory)
        status, _ = in_child(lambda moment=moment: run_cycle(work / "killed", end, moment))
        found = not_killed(status)
        status, seen = in_child(lambda: look(work / "killed", end, before))
        found += ["what is left can't be read"] if status else seen
        status, _ = in_child(lambda: go_on(work / "killed", end))
        found += ["what followed failed"] if status else []
        _, ended = in_child(lambda: end_state(work / "killed", end))
        if ended["store"] != expected["store"] or ended["unsettled"]:
            found.append(f"another end state: expected {expected}, found {ended}")
        problems += [f"killed before operation {number} ({operations[number]}): {what}" for what in found]
        shutil.rmtree(directory)
    return {"operations": operations, "problems": problems, "end": expected}


if __name__ == "__main__":
    with toy.registered(Path(sys.argv[1], "broker")):
        said = {end: main(end, Path(sys.argv[1], end)) for end in ("next", "undo")}
    sys.stdout.write(json.dumps(said))
