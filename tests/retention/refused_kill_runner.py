"""Kills a partly refused release at its durable operations and runs it again; a script of test_refused_kill.

A store of five logs is planned and archived once: two of its logs are sound, one has lost its oldest segment,
which is proven, one another, which leaves a hole, and one has other bytes. Each attempt begins with a copy of
it, in the same place. What a release leaves that dies is looked at, the same run is done again undisturbed,
and its end is compared with that of a run that nobody killed. Prints one JSON object.

Usage: refused_kill_runner.py WORK_DIRECTORY all|few
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.retention import steps
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.report.finishing import finish
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import ManagedStore
from tests.fixture_stores import file_sha256
from tests.retention.kill_runner import Moment, count_durable_operations, moment_of, not_killed
from tests.services import toy
from tests.services.forks import in_child
from tests.services.toy_faults import Fault, make_store, store_at

FAULTS: dict[str, Fault] = {
    "first": ("nothing", 0),
    "gone": ("missing", 1),
    "last": ("nothing", 0),
    "other": ("other bytes", 1),
    "went": ("missing", 0),
}
SOUND = ("first", "last", "went")
RELEASE = "release"


def managed(work: Path) -> ManagedStore:
    return store_at(work / "store", work / "managed")


def cycle(work: Path, at_step: Callable[[str], None]) -> None:
    store = managed(work)
    at_step(RELEASE)
    steps.release(store, "r")
    at_step("clean_dependents")
    steps.clean_dependents(store, "r")
    at_step("finish")
    finish(store, "r")
    at_step("")


def run_cycle(work: Path, kill_before: Moment | None) -> list[str]:
    done, at_step = count_durable_operations(kill_before)
    cycle(work, at_step)
    return done


def files(work: Path) -> dict[str, str]:
    root = work / "store"
    return {
        str(path.relative_to(root)): file_sha256(path)
        for log in FAULTS
        for path in sorted((root / log).iterdir())
    }


def wrong(work: Path, before: dict[str, str]) -> list[str]:
    """Say what is gone that may not be: of a refused log anything, of a sound one what has no receipt."""
    store = managed(work)
    record = Journal(store.journal_url).find_store(store.real_root)
    assert record is not None
    proven = {(row.log, row.sha256) for row in receipts(open_lake(store.lake), record.store_id)}
    here = files(work)
    return [
        name
        for name, sha256 in before.items()
        if here.get(name) != sha256
        and (
            name.partition("/")[0] not in SOUND
            or (name.endswith(".txt") and (name[:-25], sha256) not in proven)
        )
    ]


def end_state(work: Path) -> dict[str, Any]:
    store = managed(work)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    run = journal.run(record.store_id, "r")
    finished, report = finish(store, "r"), build_report(store, "r")
    results = Counter(e.subject for e in journal.events(run, Step.RELEASE, Phase.RESULT))
    return {
        "files": files(work),
        "results": dict(sorted(results.items())),
        "intended": sorted({e.subject for e in journal.events(run, Step.RELEASE, Phase.INTENT)}),
        "refused": [[one.log, one.error, list(one.missing)] for one in report.refused],
        "fates": [[row.log, row.base_offset, row.fate, row.reason] for row in report.segments],
        "end": [run.state, report.outcome, finished.ok, finished.refused],
        "gone": [to_jsonable(one) for one in recorded_gone(journal, record)],
        "dependents": sorted(file.facts.path for file in report.dependents),
    }


def aftermath(work: Path, before: dict[str, str], expected: dict[str, Any]) -> list[str]:
    status, found = in_child(lambda: [wrong(work, before), again(work)])
    if status:
        return ["the run that followed failed"]
    gone, end = found
    return [f"gone that may not be: {name}" for name in gone] + [
        f"another end: expected {key} {value}, found {end[key]}"
        for key, value in expected.items()
        if end[key] != value
    ]


def again(work: Path) -> dict[str, Any]:
    cycle(work, lambda _: None)
    return end_state(work)


def around_unlinks(operations: Sequence[str]) -> list[int]:
    """Return the operation behind the first unlink, and the one that records what is gone."""
    unlinks = [i for i, one in enumerate(operations) if one.startswith(f"{RELEASE}: unlink")]
    return [unlinks[0] + 1, unlinks[-1] + 2]


def main(directory: Path, how: str) -> None:
    work, pristine = directory / "work", directory / "pristine"
    work.mkdir()
    make_store(work / "store", work / "managed", FAULTS)
    work.rename(pristine)

    def prepare() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(pristine, work, copy_function=shutil.copy2)

    # All that the forks do is done once here: they inherit what was imported and cached.
    prepare()
    before = files(work)
    again(work)
    prepare()
    status, operations = in_child(lambda: run_cycle(work, None))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work))
    chosen = [i for i, one in enumerate(operations) if one.startswith(RELEASE)]
    if how == "few":
        chosen = around_unlinks(operations)
    problems: list[str] = []
    for number in chosen:
        moment = moment_of(operations, number)
        prepare()
        status, _ = in_child(lambda moment=moment: run_cycle(work, moment))
        found = [*not_killed(status), *aftermath(work, before, expected)]
        problems += [f"killed before operation {number} ({operations[number]}): {one}" for one in found]
    answer = {"operations": operations, "kills": len(chosen), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    with toy.registered(Path(sys.argv[1]) / "broker"):
        main(Path(sys.argv[1]), sys.argv[2])
