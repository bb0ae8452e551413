"""Kills a cleanup of a stopped node at its durable operations, and runs it again; a script of
test_stopped_kill.

As ``tests/retention/kill_runner.py``: a fork is killed before the chosen operation, what it leaves is looked
at, the same run is done again, and the end is compared with that of a run that nobody killed. Prints one JSON
object.

Usage: python -m tests.kafka.stopped_kill_runner WORK_DIRECTORY {every|deleting|few}
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_engine.core.durable import PLAIN_STAMP
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.kafka.format.layout import read_node
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.stopped_nodes import GOING, LOGS, cleanup_steps, make_node, managed
from tests.retention.kill_runner import Moment, count_durable_operations, do_steps, kill_each
from tests.services.forks import in_child
from tests.services.restoring import restore

RUN = "run"
DELETING = ("release", "clean_dependents")
PROVEN = (".log", ".snapshot", ".txnindex")


def store_of(directory: Path) -> ManagedStore:
    return managed(directory / "managed", directory / "store")


def prepare(directory: Path) -> dict[str, str]:
    """Make a node. :return: its files."""
    make_node(directory / "store")
    (directory / "managed").mkdir()
    return fingerprint(directory / "store")


def cycle(directory: Path, at_step: Callable[[str], None]) -> None:
    do_steps(cleanup_steps(store_of(directory), RUN), at_step)


def run_cycle(directory: Path, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(directory, at_step)
    at_step("")
    return done


def fingerprint(node: Path) -> dict[str, str]:
    """Return every file with its SHA-256, but the locks and our stamps."""
    return {
        # The node's own file names its directories in full.
        str(path.relative_to(node)): hashlib.sha256(
            path.read_bytes().replace(bytes(node), b"NODE")
        ).hexdigest()
        for path in sorted(node.rglob("*"))
        if path.is_file() and path.name not in (".lock", PLAIN_STAMP)
    }


def look(directory: Path, pristine: dict[str, str]) -> list[str]:
    """Say what is wrong with what was left: holes, bytes at no place, other files touched."""
    here, problems = fingerprint(directory / "store"), []
    properties = directory / "store" / "server.properties"
    for _, log in read_node(properties).logs:
        bases = [one.base_offset for one in log.segments]
        if log.name.log in LOGS and bases != list(range(2 * GOING, -1, -2))[: len(bases)][::-1]:
            problems.append(f"log {log.name.log} has segments at {bases}")
        last = f"{2 * GOING:020d}"
        kept = [name for name in pristine if log.name.log in name and Path(name).stem >= last]
        problems += [f"{name} is gone or changed" for name in kept if here.get(name) != pristine[name]]
    gone = [name for name, sha256 in pristine.items() if here.get(name) != sha256]
    problems += [f"{name} was touched" for name in gone if not Path(name).name[:20].isdigit()]
    proven = [name for name in gone if name.endswith(PROVEN)]
    if proven:
        problems += unrestorable(directory, pristine, proven)
    return problems


def unrestorable(directory: Path, pristine: dict[str, str], gone: list[str]) -> list[str]:
    """Say what doesn't come back from the lake byte for byte, or went without an intent."""
    store, back = store_of(directory), directory / "back"
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    lake = open_lake(store.lake)
    check_chain(receipt_history(lake, record.store_id))
    meant = {
        event.payload["facts"]["path"]
        for event in journal.events(journal.run(record.store_id, RUN), Step.RELEASE, Phase.INTENT)
    }
    restore(lake, record.store_id, back)
    problems = []
    for name in gone:
        copy = back / Path(name).relative_to(Path(name).parts[0])
        if not copy.exists() or hashlib.sha256(copy.read_bytes()).hexdigest() != pristine[name]:
            problems.append(f"{name} is gone, and doesn't come back from the lake")
        own = str((directory / "store" / name).with_suffix(".log"))
        if own not in meant:
            problems.append(f"{name} is gone, and no intent says so")
    shutil.rmtree(back)
    return problems


def end_state(directory: Path) -> dict[str, Any]:
    store = store_of(directory)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    run = journal.run(record.store_id, RUN)
    lake = open_lake(store.lake)
    rows = receipts(lake, record.store_id)
    check_chain(receipt_history(lake, record.store_id))
    root = f"{directory / 'store'}/"
    return {
        "store": fingerprint(directory / "store"),
        "receipts": [[one.log, one.base_offset, one.end, one.sha256] for one in rows],
        "broken": [str(fault) for fault in broken_receipts(lake, rows).values()],
        "outcome": build_report(store, RUN).outcome.value,
        "deleted": sorted(event.subject for event in journal.events(run, Step.RELEASE, Phase.RESULT)),
        "dependents": sorted(
            event.subject.removeprefix(root) for event in journal.events(run, Step.DEPENDENTS, Phase.RESULT)
        ),
    }


def aftermath(directory: Path, pristine: dict[str, str], expected: dict[str, Any]) -> list[str]:
    """Look at what a run left that did not end, run it again, and say what is not as it has to be."""
    status, problems = in_child(lambda: look(directory, pristine))
    found = ["what is left can't be looked at"] if status else list(problems)
    status, _ = in_child(lambda: cycle(directory, lambda _: None))
    if status:
        return [*found, "the run that followed failed"]
    _, ended = in_child(lambda: end_state(directory))
    for key, value in expected.items():
        if ended is None or ended[key] != value:
            found.append(f"another end state: expected {key} {value}, found {ended and ended[key]}")
    return found


def chosen(operations: list[str], which: str) -> list[int]:
    of_steps = [operation.partition(":")[0] for operation in operations]
    deleting = [number for number, step in enumerate(of_steps) if step in DELETING]
    if which == "every":
        return list(range(len(operations)))
    if which == "deleting":
        return deleting
    words = ("unlink", "commit")
    removals = [number for number in deleting if operations[number].partition(": ")[2].startswith(words)]
    return removals[len(removals) // 3 :: max(len(removals) // 6, 1)]


def rehearse(work: Path) -> tuple[list[str], dict[str, Any]]:
    """Do it once undisturbed; returns the operations, the node before, and what it came to."""
    prepare(work / "warm")
    cycle(work / "warm", lambda _: None)
    prepare(work / "undisturbed")
    status, operations = in_child(lambda: run_cycle(work / "undisturbed", None))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed"))
    return operations, expected


def main(work: Path, which: str) -> None:
    operations, expected = rehearse(work)
    numbers = chosen(operations, which)
    problems = kill_each(
        work / "killed",
        operations,
        numbers,
        prepare,
        run_cycle,
        lambda directory, before: aftermath(directory, before, expected),
    )
    answer = {"operations": operations, "kills": len(numbers), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
