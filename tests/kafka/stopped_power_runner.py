"""Cuts the power of a cleanup of a stopped node right after it removed a file; a script of test_stopped_kill.

As ``tests/retention/power_loss_runner.py``: what a disk need not have kept is dropped in three ways, what is
left is looked at, and the same run is done again. Prints one JSON object.

Usage: python -m tests.kafka.stopped_power_runner WORK_DIRECTORY, with the recorder preloaded
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.kafka.stopped_kill_runner import aftermath, cycle, end_state, prepare
from tests.retention.kill_runner import not_killed
from tests.retention.power_loss_runner import LOSSES
from tests.services.forks import in_child, in_forks
from tests.services.power_loss import Loss, disk_after, disk_at_first, events_of, lose, record


def run_recorded(directory: Path, log: Path, unlinked: str = "") -> list[str]:
    record(directory, log, unlinked)
    cycle(directory, lambda _: None)
    return [f"{event.kind} {event.path.relative_to(directory)}" for event in events_of(log)]


def cut(work: Path, expected: dict[str, Any], unlinked: str, loss: Loss) -> list[str]:
    """Cut the power right after a file was removed, and run it again."""
    directory, log, pristine = work / "cut", work / "cut-log", work / "pristine"
    before = prepare(directory)
    shutil.copytree(directory, pristine)
    first = disk_at_first(directory, pristine)
    status, _ = in_child(lambda: run_recorded(directory, log, unlinked))
    problems = not_killed(status)
    lose(directory, disk_after(first, log, loss, directory))
    name = unlinked.removeprefix("store/")
    if loss is Loss.EVERYTHING and name.endswith((".snapshot", ".txnindex")):
        # What comes back is another file here than was proven. So it stays, as one that somebody touched.
        expected = {**expected, "store": {**expected["store"], name: before[name]}}
    problems += aftermath(directory, before, expected)
    for path in (directory, log, pristine):
        shutil.rmtree(path)
    return problems


def main(work: Path) -> None:
    prepare(work / "warm")
    cycle(work / "warm", lambda _: None)
    prepare(work / "undisturbed")
    status, events = in_child(lambda: run_recorded(work / "undisturbed", work / "log"))
    if status:
        raise SystemExit("the undisturbed run failed")
    _, expected = in_child(lambda: end_state(work / "undisturbed"))
    removed = [event[2:] for event in events if event.startswith("U store/")]
    # Of one log after each file, of the other one after the last.
    chosen = [path for path in removed if "/a-0/" in path] + removed[-1:]
    cuts = [(path, loss) for path in chosen for loss in LOSSES]

    def tried(at: tuple[str, Loss], fork: str) -> list[str]:
        path, loss = at
        found = cut(work / fork, expected, path, loss)
        return [f"after {path} was removed, {loss.value}: {what}" for what in found]

    problems = [what for found in in_forks(cuts, tried) for what in found]
    sys.stdout.write(json.dumps({"removed": removed, "cuts": len(cuts), "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
