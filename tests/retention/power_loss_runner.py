"""Cuts the power of a run after deletions, and of a restore at its end; a script of test_power_loss.

The run is a fork of this process, into which power_loss.c is preloaded: that keeps what the run makes
durable, and kills it right after a chosen fsync or unlink. Then everything is dropped that a disk need not
have kept; three losses are tried. Segments that are gone are restored from what is left, and the same run is
done again. Prints one JSON object.

Usage: python -m tests.retention.power_loss_runner PRISTINE_STORE WORK_DIRECTORY MOST_OTHER_EVENTS
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.restore.restore_span import Span
from storage_engine.lake.soundness.receipts import list_stores
from tests.retention import kill_runner as killing
from tests.services.forks import in_child, in_forks
from tests.services.power_loss import Disk, Loss, disk_after, disk_at_first, events_of, lose, names_in, record
from tests.services.restoring import restore

LOSSES = (Loss.EVERYTHING, Loss.BUT_REMOVALS, Loss.BUT_NAMES)


def unrestorable(directory: Path, pristine: dict[str, str], to_dir: Path) -> list[str]:
    """Segments that are gone and don't come back from the lake, or whose deletion no intent explains."""
    here = killing.fingerprint(directory / "store")
    gone = {name for name, sha256 in pristine.items() if "commitlog/" in name and here.get(name) != sha256}
    if not gone:
        return []
    store = killing.managed(directory)
    journal = Journal(store.journal_url)
    known = journal.find_store(store.real_root)
    assert known is not None
    run = journal.run(known.store_id, killing.RUN)
    meant = {event.subject for event in journal.events(run, Step.RELEASE, Phase.INTENT)}
    wanted = tuple(sorted(int(Path(name).name) for name in gone))
    restore(open_lake(store.lake), known.store_id, to_dir, span=Span(segments=wanted))
    back = killing.fingerprint(to_dir)
    return sorted(name for name in gone if back.get(name) != pristine[name] or name not in meant)


def run_recorded(directory: Path, log: Path, unlinked: str = "", number: int = -1) -> list[str]:
    record(directory, log, unlinked, number)
    killing.run_cycle(directory, None)
    return [f"{event.kind} {event.path.relative_to(directory)}" for event in events_of(log)]


def cut(
    work: Path, pristine: Path, before: dict[str, str], expected: Any, unlinked: str, number: int, loss: Loss
) -> tuple[str, list[str]]:
    """Cut the power of a run, look at what is left, and run it again.

    :return: the last event, and what is not as it has to be.
    """
    directory, log, restored = work / "cut", work / "cut-log", work / "restored"
    killing.prepare(pristine, directory)
    first = Disk(names_in(directory), disk_at_first(directory / "store", pristine).bytes_of)
    status, _ = in_child(lambda: run_recorded(directory, log, unlinked, number))
    problems = killing.not_killed(status)
    lose(directory, disk_after(first, log, loss, directory))
    status, lost = in_child(lambda: unrestorable(directory, before, restored))
    if status or lost:
        problems.append(f"gone, and not back from the lake or not meant to go: {lost}")
    problems += killing.aftermath(directory, before, expected)
    last = events_of(log)[-1]
    for path in (directory, log, restored):
        shutil.rmtree(path, ignore_errors=True)
    return f"{last.kind} {last.path.relative_to(directory)}", problems


def restore_and_cut(archived: Path, work: Path) -> list[str]:
    """Restore into a new directory, and cut the power when that has ended; returns what was lost."""
    directory, log = work / "restores", work / "restore-log"
    directory.mkdir()
    first = Disk(names_in(directory), {})

    def work_in_child() -> dict[str, str]:
        record(directory, log)
        lake = open_lake(killing.managed(archived).lake)
        (store,) = list_stores(lake)
        restore(lake, store.store_id, directory / "some" / "store")
        return killing.fingerprint(directory)

    _, restored = in_child(work_in_child)
    lose(directory, disk_after(first, log, Loss.EVERYTHING, directory))
    left = killing.fingerprint(directory)
    if not restored or sum("commitlog/" in name for name in restored) != killing.SEGMENTS:
        return [f"expected {killing.SEGMENTS} restored segments, found {restored}"]
    return [f"{name} was restored, and then lost" for name in restored if left.get(name) != restored[name]]


def main(pristine: Path, work: Path, most_others: int) -> None:
    before = killing.fingerprint(pristine)
    events, expected = killing.rehearse(
        pristine, work / "undisturbed", lambda: run_recorded(work / "undisturbed", work / "log")
    )
    stride = max(len(events) / max(most_others, 1), 1)
    numbers = [int(i * stride) for i in range(min(most_others, len(events)))]
    # Small runs try the losses by turns where nothing was deleted.
    every = len(numbers) == len(events)
    deleted = [event[2:] for event in events if event.startswith("U store/commitlog/")]
    # Without other cuts only after the last: what was lost then had not been flushed before.
    wanted = [(path, -1, loss) for path in (deleted if most_others else deleted[-1:]) for loss in LOSSES]
    wanted += [
        ("", number, loss) for number in numbers for i, loss in enumerate(LOSSES) if every or number % 3 == i
    ]
    problems = restore_and_cut(work / "undisturbed", work)
    found = in_forks(wanted, lambda at, fork: cut(work / fork, pristine, before, expected, *at))
    cuts = [[event, loss.value] for (event, _), (_, _, loss) in zip(found, wanted, strict=True)]
    for (event, some), (_, number, loss) in zip(found, wanted, strict=True):
        problems += [f"after {event} ({number}), {loss.value}: {what}" for what in some]
    sys.stdout.write(json.dumps({"events": events, "cuts": cuts, "end": expected, "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
