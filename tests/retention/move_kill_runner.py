"""Kills a move of a store at each of its durable operations, and moves it again; a script of test_moves.

Prints one JSON object.

Usage: move_kill_runner.py STORE WORK_DIRECTORY MOST_KILLS
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

from storage_engine.exceptions import StoreIdentityError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.decisions import move
from storage_engine.retention.store.identity import MOVE_RUN, identify
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp
from tests.lakes import make_lakes
from tests.retention.kill_runner import Moment, count_durable_operations
from tests.services.forks import in_child

NAME = "orders"


def managed(work: Path, root: str) -> ManagedStore:
    return ManagedStore.local(root, str(work / root), work / "managed", time_zone="UTC")


def moved(work: Path, kill_before: int | None) -> list[str]:
    done, at_step = count_durable_operations(None if kill_before is None else Moment("move", kill_before))
    at_step("move")
    move(managed(work, "there"), NAME, "ann", "a larger disk")
    at_step("")
    return done


def end_state(work: Path) -> dict[str, object]:
    """What journal and stamp say; the store has to be known at its new place."""
    store = managed(work, "there")
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    events = journal.events(journal.run(record.store_id, MOVE_RUN), Step.MOVE, Phase.RESULT)
    return {
        "store_id": record.store_id,
        "journal": [record.name, Path(record.real_path).name],
        "stamp": [stamp.store_id, Path(stamp.root).name, len(stamp.lakes)],
        "results": [[event.payload["person"], event.payload["reason"]] for event in events],
    }


def chosen(operations: list[str], most: int) -> list[int]:
    """Where to kill: before each change of journal and stamp, and at the end; with room before all others."""
    named = [n for n, what in enumerate(operations) if what.split()[1] in ("commit", "rename", "replace")]
    matter = [*named, len(operations)]
    return sorted([*matter, *(n for n in range(len(operations)) if n not in matter)][:most])


def main(pristine: Path, work: Path, most: int) -> None:
    work.mkdir()
    pristine.rename(work / "here")
    for segment in (work / "here" / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    store = make_lakes(managed(work, "here"))
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=1))
    steps.archive_planned(store, "r", lambda jobs: steps.archive(store, "r", jobs))
    shutil.copytree(work, f"{work}.before")
    states, problems = [], []
    operations: list[str] = []
    todo: list[int | None] = [None]
    while todo:
        number = todo.pop(0)
        shutil.rmtree(work)
        shutil.copytree(f"{work}.before", work)
        (work / "here").rename(work / "there")
        status, done = in_child(lambda number=number: moved(work, number))
        if number is None:
            assert status == 0
            operations = done
            todo += chosen(operations, most)
        elif status != signal.SIGKILL:
            problems.append(f"{number}: expected to be killed, ended with {status}")
        else:
            try:
                identify(managed(work, "there"), Journal(store.journal_url))
            except StoreIdentityError as error:
                if "storage-engine move" not in str(error):
                    problems.append(f"{number}: {error}")
            move(managed(work, "there"), NAME, "ann", "a larger disk")
        states.append(end_state(work))
    problems += [str(state) for state in states if state != states[0]]
    renamed = replace(managed(work, "there"), name="other", named=True)
    try:
        identify(renamed, Journal(store.journal_url))
        problems.append("another name was accepted")
    except StoreIdentityError:
        pass
    json.dump(
        {"operations": operations, "kills": len(states) - 1, "end": states[0], "problems": problems},
        sys.stdout,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
