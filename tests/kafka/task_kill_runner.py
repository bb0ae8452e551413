"""Kills the removal of what a stopped broker left at its durable operations, or cuts its power, and runs it
again; a script of test_left_overs_kill.

As ``tests/kafka/stopped_kill_runner.py``. Prints one JSON object.

Usage: python -m tests.kafka.task_kill_runner WORK_DIRECTORY {every|few|power}, the last with the recorder
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.left_over_node import GONE, make_left_over, run
from tests.kafka.stopped_kill_runner import fingerprint
from tests.kafka.stopped_nodes import managed
from tests.retention.kill_runner import Moment, count_durable_operations, moment_of, not_killed
from tests.retention.power_loss_runner import LOSSES
from tests.services.forks import in_child, in_forks
from tests.services.power_loss import Loss, disk_after, disk_at_first, events_of, lose, record

STEP = "tasks"
REMOVALS = tuple(f"{STEP}: unlink {name}" for name in ("0", "partition", "leader"))


def store_of(directory: Path) -> ManagedStore:
    return managed(directory / "managed", directory / "store")


def prepare(work: Path) -> Path:
    """Make the node once, and put it back each time: archiving takes longest. :return: its directory."""
    directory, kept = work / "node", work / "kept"
    if not kept.exists():
        directory.mkdir(parents=True)
        make_left_over(directory)
        shutil.copytree(directory, kept)
    else:
        shutil.rmtree(directory)
        shutil.copytree(kept, directory)
    return directory


def run_counted(directory: Path, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    at_step(STEP)
    run(store_of(directory))
    at_step("")
    return done


def run_recorded(directory: Path, log: Path, unlinked: str = "") -> list[str]:
    record(directory, log, unlinked)
    run(store_of(directory))
    return [f"{event.kind} {event.path.relative_to(directory)}" for event in events_of(log)]


def end_state(directory: Path) -> dict[str, Any]:
    store = store_of(directory)
    journal = Journal(store.journal_url)
    record_of = journal.find_store(store.real_root)
    assert record_of is not None
    events = journal.store_events(record_of.store_id, Step.BROKER_TASK)
    meant = {event.subject for event in events if event.phase is Phase.INTENT}
    done = {event.subject for event in events if event.phase is Phase.RESULT}
    results = {
        name: [one.removed_files + one.gone_files, one.freed_bytes + one.gone_bytes]
        for name, one in run(store).items()
    }
    return {"store": fingerprint(directory / "store"), "open": sorted(meant - done), "results": results}


def look(directory: Path, before: dict[str, str]) -> list[str]:
    """Say what else was touched, or went without an intent."""
    here, problems = fingerprint(directory / "store"), []
    store = store_of(directory)
    journal = Journal(store.journal_url)
    record_of = journal.find_store(store.real_root)
    assert record_of is not None
    meant = {
        path
        for event in journal.store_events(record_of.store_id, Step.BROKER_TASK, Phase.INTENT)
        for path in event.payload["files"]
    }
    for name, sha256 in before.items():
        if here.get(name) == sha256:
            continue
        if name in here or not (name.endswith(".deleted") or GONE in name):
            problems.append(f"{name} was touched")
        elif str(directory / "store" / name) not in meant:
            problems.append(f"{name} is gone, and no intent says so")
    return problems


def aftermath(directory: Path, before: dict[str, str], expected: dict[str, Any]) -> list[str]:
    status, problems = in_child(lambda: look(directory, before))
    found = ["what is left can't be looked at"] if status else list(problems)
    status, _ = in_child(lambda: len(run(store_of(directory))))
    if status:
        return [*found, "the run that followed failed"]
    _, ended = in_child(lambda: end_state(directory))
    found += [
        f"{key}: expected {value}, found {ended[key]}"
        for key, value in expected.items()
        if ended[key] != value
    ]
    return found


def kill_at(work: Path, operations: list[str], number: int, expected: dict[str, Any]) -> list[str]:
    directory = prepare(work)
    before, moment = fingerprint(directory / "store"), moment_of(operations, number)
    status, _ = in_child(lambda: run_counted(directory, moment))
    found = [*not_killed(status), *aftermath(directory, before, expected)]
    return [f"killed before {operations[number]}: {what}" for what in found]


def cut_after(work: Path, unlinked: str, loss: Loss, expected: dict[str, Any]) -> list[str]:
    directory, log, pristine = prepare(work), work / "log", work / "pristine"
    before = fingerprint(directory / "store")
    shutil.copytree(directory, pristine)
    first = disk_at_first(directory, pristine)
    status, _ = in_child(lambda: run_recorded(directory, log, unlinked))
    lose(directory, disk_after(first, log, loss, directory))
    found = [*not_killed(status), *aftermath(directory, before, expected)]
    shutil.rmtree(log)
    shutil.rmtree(pristine)
    return [f"{unlinked} was removed, {loss.value}: {what}" for what in found]


def main(work: Path, which: str) -> None:
    # Once in this process: what is imported and compiled at first use is there in each child.
    run(store_of(prepare(work)))
    directory, log = prepare(work), work / "log"
    power = which == "power"
    status, operations = in_child(
        lambda: run_recorded(directory, log) if power else run_counted(directory, None)
    )
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(directory))
    if power:
        shutil.rmtree(log)
        removed = [one[2:] for one in operations if one.startswith("U store/") and "/.storage" not in one]
        cuts = [(path, loss) for path in removed for loss in LOSSES]
        found = in_forks(cuts, lambda at, fork: cut_after(work / fork, *at, expected))
    else:
        removed = [one for one in operations if one.startswith(REMOVALS)]
        numbers = list(range(len(operations)))
        if which == "few":
            numbers = [at for at in numbers if operations[at] in removed][::4]
        found = in_forks(numbers, lambda at, fork: kill_at(work / fork, operations, at, expected))
    problems = [what for some in found for what in some]
    answer = {"tried": len(found), "removed": removed, "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
