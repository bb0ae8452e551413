"""Kills the tending of a shield at its durable operations, one after the other; a script of test_shield_kill.

As ``kill_runner``, whose parts it uses: a shield is made, somebody removes segments, they are archived from
their links, everything else is archived, and the shield goes.

Usage: shield_kill_runner.py PRISTINE_STORE WORK_DIRECTORY MOST_KILLS (0: one of each kind)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from storage_engine.lake.move.making import make_lake
from storage_engine.model.settings.policy import Policy, ShieldMode
from storage_engine.retention import steps
from storage_engine.retention.monitor.store_watch import read_links
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield, shield_path
from tests.retention import kill_runner
from tests.retention.kill_runner import (
    Moment,
    choose,
    count_durable_operations,
    do_once,
    file_hash,
    fingerprint,
    kill_each,
    one_of_each_kind,
    prepare,
)
from tests.services.forks import in_child

REMOVED = ("commitlog/00000000000000000000", "commitlog/00000000000001048576")
RUN, LATER = "all", "later"


def managed(directory: Path) -> ManagedStore:
    return replace(kill_runner.managed(directory), policy=Policy(shield=ShieldMode.ON))


def story(directory: Path, at_step: Callable[[str], None]) -> None:
    store = managed(directory)

    def remove() -> None:
        # Somebody does that once; a shield that isn't made yet keeps nothing.
        for name in REMOVED:
            with suppress(FileNotFoundError):
                (directory / "store" / name).unlink()

    todo: dict[str, Callable[[], object]] = {
        "init_lake": lambda: make_lake(store.lake),
        "shield": lambda: tend_shield(store),
        "read": lambda: read_links(store, lambda: False),
        "remove": remove,
        "tend": lambda: tend_shield(store),
        "archive": lambda: steps.archive(store, RUN, steps.archive_jobs(store, RUN, all_sealed=True)),
        "last": lambda: tend_shield(store),
    }
    for name, step in todo.items():
        at_step(name)
        step()


def next_visit(directory: Path) -> None:
    """Do what each monitor does. A link whose removal nobody could record has moved its segment's ctime.

    So the segment counts as touched, and has links again, until a later run has compared it with the lake.
    """
    store = managed(directory)
    steps.archive(store, LATER, steps.archive_jobs(store, LATER, all_sealed=True))
    tend_shield(store)


def whole_story(directory: Path) -> None:
    story(directory, lambda _: None)
    end_state(directory)


def run_story(directory: Path, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    story(directory, at_step)
    at_step("")
    return done


def homeless(directory: Path, pristine: dict[str, str]) -> list[str]:
    """Segments whose bytes are neither in the store, nor in its shield, nor provably in the lake."""
    kept = {
        f"{seen.link.log}/{seen.link.base_offset:020d}": file_hash(seen.facts.path)
        for seen in look_at_shield(directory / "store").links
    }
    left = {name: sha256 for name, sha256 in pristine.items() if kept.get(name) != sha256}
    return kill_runner.homeless(directory, left)


def end_state(directory: Path) -> dict[str, Any]:
    """What a finished story comes to, as far as it may not depend on what happened on the way."""
    store = managed(directory)
    record = kill_runner.Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    lake = kill_runner.open_lake(store.lake)
    rows = kill_runner.receipts(lake, record.store_id)
    kill_runner.check_chain(kill_runner.receipt_history(lake, record.store_id))
    stamp = directory / "store" / ".storage-engine" / "stamp.json"
    return {
        "store": fingerprint(directory / "store"),
        "receipts": sorted([row.base_offset, row.sha256] for row in rows),
        "broken": [str(fault) for fault in kill_runner.broken_receipts(lake, rows).values()],
        "shield": shield_path(store.root).exists(),
        "marked": "shield" in json.loads(stamp.read_text()),
    }


def aftermath(directory: Path, pristine: dict[str, str], expected: dict[str, Any]) -> list[str]:
    """Look at what a story left that did not end, tell it again, and say what is not as it has to be."""
    status, lost = in_child(lambda: homeless(directory, pristine))
    found = [] if lost == [] else [f"segments in none of the three places: {lost}, status {status}"]
    status, _ = in_child(lambda: story(directory, lambda _: None))
    status = status or in_child(lambda: next_visit(directory))[0]
    _, end = in_child(lambda: end_state(directory)) if not status else (0, None)
    if end != expected:
        differs = {
            name: (expected[name], end and end[name])
            for name in expected
            if not end or end[name] != expected[name]
        }
        found.append(f"another end state after status {status}: (expected, found) {differs}")
    return found


def main(pristine: Path, work: Path, most: int) -> None:
    before = fingerprint(pristine)
    do_once(pristine, work / "warm", whole_story)
    prepare(pristine, work / "undisturbed")
    status, operations = in_child(lambda: run_story(work / "undisturbed", None))
    if status:
        raise SystemExit("the undisturbed story failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed"))
    before_shield = sum(one.startswith("init_lake") for one in operations)
    story_itself = operations[before_shield:]
    chosen = choose(story_itself, most) if most else one_of_each_kind(story_itself, ["tend"])
    chosen = [number + before_shield for number in chosen]

    def prepared(directory: Path) -> dict[str, str]:
        prepare(pristine, directory)
        return before

    problems = kill_each(
        work / "killed",
        operations,
        chosen,
        prepared,
        run_story,
        lambda directory, files: aftermath(directory, files, expected),
    )
    answer = {"operations": operations, "kills": len(chosen), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
