"""Kills a run that sets aside, and what ends its quarantine, at its durable operations.

A script of test_quarantine_kill. As ``tests/retention/kill_runner.py``: a fork is killed before the chosen
operation, what it leaves is looked at, everything is done again, and the end is compared with that of a run
that nobody killed. Prints one JSON object.

Usage: python -m tests.retention.quarantine.undo_kill_runner END PRISTINE_STORE WORK_DIRECTORY MOST_KILLS

With MOST_KILLS 0 it is one of each kind.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY
from storage_engine.journal.journal import Journal
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.housekeeping.maintaining import maintain_store
from storage_engine.retention.quarantine import places
from storage_engine.retention.quarantine.records import quarantines
from storage_engine.retention.quarantine.undo import undo
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention import kill_runner
from tests.retention.kill_runner import (
    Moment,
    count_durable_operations,
    do_once,
    moment_of,
    one_of_each_kind,
    prepare,
)
from tests.services.forks import in_child, in_forks

RUN = "run"
SEGMENTS = 2
DAY_MS = 24 * 3_600_000
kill_runner.DURABLE = (*kill_runner.DURABLE, "rmdir", "ftruncate")
places.STEP_BYTES = 300_000
"""Segments of a sample go in four steps."""

Seen = dict[str, list[Any]]


def managed(directory: Path) -> ManagedStore:
    policy = Policy(ArchiveMode.OFF, undo_window_hours=24)
    return ManagedStore.local(
        "kill", str(directory / "store"), directory / "managed", time_zone="UTC", policy=policy
    )


def cycle(store: ManagedStore, end: str, at_step: Callable[[str], None]) -> None:
    todo: dict[str, Callable[[], object]] = {
        "make_plan": lambda: steps.make_plan(store, RUN, PlanRequest(manual=True, max_segments=SEGMENTS)),
        "release": lambda: steps.release(store, RUN),
        "clean_dependents": lambda: steps.clean_dependents(store, RUN),
        "undo": lambda: undo(store, RUN, "ann"),
        "maintain": lambda: maintain_store(store, clock_ms() + 2 * DAY_MS),
    }
    for name in ("make_plan", "release", "clean_dependents", end):
        at_step(name)
        todo[name]()


def run_cycle(directory: Path, end: str, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(managed(directory), end, at_step)
    at_step("")
    return done


def whole_run(directory: Path, end: str) -> None:
    cycle(managed(directory), end, lambda _: None)
    end_state(directory)


def seen(root: Path) -> Seen:
    """Every file of a store but its lock and stamp: SHA-256, mtime and mode."""
    return {
        str(path.relative_to(root)): [
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        ]
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock" and path.parent.name != DIRECTORY
    }


def end_state(directory: Path) -> dict[str, Any]:
    store = managed(directory)
    journal = Journal(store.journal_url)
    (record,) = journal.all_stores()
    states = [one.state.value for one in quarantines(journal, record.store_id)]
    return {"store": seen(directory / "store"), "quarantines": states}


def homeless(directory: Path, pristine: Seen) -> list[str]:
    """Files that are neither at their place nor in the quarantine; raises where the log has a hole."""
    open_store(managed(directory)).snapshot(clock_ms())
    found = seen(directory / "store")
    inside = f".storage-engine/quarantine/{RUN}/"
    return [
        name for name, facts in pristine.items() if facts not in (found.get(name), found.get(inside + name))
    ]


def choose(operations: list[str], most: int) -> list[int]:
    """The ends of every step, and an even spread of the others."""
    of_step = [operation.partition(":")[0] for operation in operations]
    last = len(operations) - 1
    chosen = {i for i in range(last + 1) if i in (0, last) or len({*of_step[i - 1 : i + 2]}) > 1}
    others = [i for i in range(last + 1) if i not in chosen]
    room = min(max(most - len(chosen), 0), len(others))
    return sorted(chosen | {others[i * len(others) // room] for i in range(room)})


def choose_few(operations: list[str], end: str) -> list[int]:
    """One of each kind; none of what goes before maintenance, as the same goes before an undo."""
    chosen = one_of_each_kind(operations, ("release", end))
    return [number for number in chosen if end == "undo" or operations[number].startswith(f"{end}:")]


def main(end: str, pristine: Path, work: Path, most: int) -> None:
    before = seen(pristine)
    do_once(pristine, work / "warm", lambda directory: whole_run(directory, end))
    prepare(pristine, work / "undisturbed")
    status, operations = in_child(lambda: run_cycle(work / "undisturbed", end, None))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed"))
    chosen = choose(operations, most) if most else choose_few(operations, end)

    def kill(number: int, fork: str) -> list[str]:
        directory, moment = work / f"killed-{fork}", moment_of(operations, number)
        prepare(pristine, directory)
        status, _ = in_child(lambda: run_cycle(directory, end, moment))
        found = kill_runner.not_killed(status)
        if moment.step != "maintain":
            _, lost = in_child(lambda: homeless(directory, before))
            found += [] if lost == [] else [f"files at no place: {lost}"]
        # It may be done again, too; to try that of each end is enough where kills are few.
        for _ in range(2 if most or number == chosen[-1] else 1):
            status, _ = in_child(lambda: cycle(managed(directory), end, lambda _: None))
            found += ["the run that followed failed"] if status else []
        _, ended = in_child(lambda: end_state(directory))
        if ended != expected:
            found.append(f"another end state: expected {expected}, found {ended}")
        shutil.rmtree(directory)
        return [f"killed before operation {number} ({operations[number]}): {what}" for what in found]

    problems = [what for found in in_forks(chosen, kill) for what in found]
    answer = {"operations": operations, "kills": len(chosen), "problems": problems, "end": expected}
    sys.stdout.write(json.dumps({**answer, "pristine": before}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
