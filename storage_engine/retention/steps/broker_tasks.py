"""Look after the background tasks of a store's broker: beside a running one they are watched, of a stopped
one's store that is ended which they left unfinished.

What a broker was about to remove goes here only where a lake has the same bytes, or a person's word stands
for that. Intent, the deed, directory flushed, result: killed at any instant and run again, it goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine import durable
from storage_engine.clock import clock_ms
from storage_engine.exceptions import ReceiptError
from storage_engine.journal.journal import Event, Phase, Run, Step
from storage_engine.journal.leases import Lease
from storage_engine.lake.pace import pace_at
from storage_engine.model.broker_tasks import BrokerTask, LeftFile, LeftOver, TaskLimits
from storage_engine.model.jsonable import from_jsonable, to_jsonable
from storage_engine.model.policy import ArchiveMode
from storage_engine.retention.broker_answers import ask, package_errors
from storage_engine.retention.deletion_checks import check_inside
from storage_engine.retention.known_heads import KnownHeads, known_heads
from storage_engine.retention.proofs import Proofs, read_proofs
from storage_engine.retention.steps.archiving import begin_background_run
from storage_engine.retention.steps.context import WHOLE, AnyStore, Context, open_context
from storage_engine.retention.steps.stamping import witness_release
from storage_engine.retention.unseen_writes import Reading, digest
from storage_engine.same_bytes.settling import settle
from storage_engine.wording import bytes_text, count_text


@dataclass(frozen=True, slots=True)
class TaskResult:
    """
    :param name: the broker's of the task.
    :param found: clauses of what was found.
    :param alarms: sentences of what a person should know at once.
    :param removed_files: that the broker had left, without directories.
    :param unproven: what went by a person's word alone.
    :param kept: clauses of what stays and why.
    """

    name: str
    found: tuple[str, ...]
    alarms: tuple[str, ...] = ()
    removed_files: int = 0
    freed_bytes: int = 0
    unproven: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The result in one line."""
        done = f"removed {count_text(self.removed_files, 'file')}, {bytes_text(self.freed_bytes)} freed"
        said = (*self.found, *((done,) if self.removed_files else ()), *self.unproven, *self.kept)
        return f"{self.name}: {'; '.join((*said, *self.alarms))}"


def run_broker_tasks(
    store: AnyStore, run_key: str, only: str | None = None, *, word: str = "", now_ms: int | None = None
) -> tuple[TaskResult, ...]:
    """Look after a broker's background tasks, once a run.

    :param only: one of them by name; None: all.
    :param word: a person says why that may go unproven of which the store's broker knows a purpose; "":
        nobody does.
    :raises StoreBusyError: a broker or another run has the store.
    :raises LakeUnavailableError: a lake can't be asked.
    :raises ChangedUnderUsError: a file changes under our eyes; others may be gone.
    :raises BrokerError: the running broker can't be asked.
    """
    context = open_context(store)
    run = begin_background_run(context, run_key)
    now_ms = clock_ms() if now_ms is None else now_ms
    done = _done(context, run)
    with context.errors(run, Step.BROKER_TASK):
        _settle(context)
        tasks = [one for one in _look(context, now_ms) if only in (None, one.name)]
        if any(task.left for task in tasks if task.name not in done):
            with context.changing(now_ms) as held:
                looked = {task.name: task for task in _look(context, now_ms)}
                tasks = [looked[task.name] for task in tasks]
                for task in tasks:
                    if task.name not in done:
                        done[task.name] = _end(context, run, task, held.lease, word)
        for task in tasks:
            if task.name not in done:
                done[task.name] = _save(context, run, _result(context, run, task), time.monotonic_ns())
    return tuple(done[task.name] for task in tasks)


def _look(context: Context, now_ms: int) -> tuple[BrokerTask, ...]:
    policy = context.store.policy
    limits = TaskLimits(policy.checkpoint_alarm_seconds * 1000, policy.flush_alarm_bytes)
    looking = "tell how far its tasks are"
    return ask(context.store.broker, looking, lambda: context.broker.background_tasks(now_ms, limits))


def _done(context: Context, run: Run) -> dict[str, TaskResult]:
    events = context.journal.events(run, Step.BROKER_TASK, Phase.RESULT)
    results = (event.payload["result"] for event in events if event.subject == WHOLE)
    return {one.name: one for one in (from_jsonable(TaskResult, result) for result in results)}


def _result(context: Context, run: Run, task: BrokerTask, kept: Sequence[str] = ()) -> TaskResult:
    meant = _removed(context, run, task.name)
    return TaskResult(
        task.name,
        task.found,
        task.overdue,
        removed_files=sum(len(one["files"]) for one in meant),
        freed_bytes=sum(one["size_bytes"] for one in meant),
        unproven=tuple(one["unproven"] for one in meant if one["unproven"]),
        kept=(*task.kept, *kept),
    )


def _save(context: Context, run: Run, result: TaskResult, started_ns: int) -> TaskResult:
    took_ms = (time.monotonic_ns() - started_ns) // 1_000_000
    said = {"result": to_jsonable(result), "took_ms": took_ms}
    context.journal.record(run, Step.BROKER_TASK, Phase.RESULT, [(WHOLE, said)])
    return result


def _end(context: Context, run: Run, task: BrokerTask, lease: Lease, word: str) -> TaskResult:
    """Remove what a task has left, as far as it is proven."""
    started_ns = time.monotonic_ns()
    paths = [one.facts.path for left in task.left for one in left.files]
    check_inside(context.store.broker, paths, context.data_paths)
    known = known_heads(context.journal, context.record)
    proofs = _proofs(context, task.left, known, lease)
    reading = Reading(pace_at(context.bytes_per_second()).spend, lambda: context.journal.renew(lease))
    going, kept = [], []
    for left in task.left:
        doubt = _doubt(context, left, proofs, reading)
        if doubt and not (left.purpose and word):
            kept.append(f"{left.what} stays: {doubt}{_wanted(left)}")
        else:
            said = f"{left.what} went by a person's word: {left.purpose}, {word} ({doubt})" if doubt else ""
            going.append((left, said))
    if going:
        witness_release(context, run, proofs, known)
    for left, unproven in going:
        _remove(context, run, task.name, left, unproven, lease)
    return _save(context, run, _result(context, run, task, kept), started_ns)


def _wanted(left: LeftOver) -> str:
    return f"; {left.purpose}: a person's word, --deleted-topics REASON, lets it go" if left.purpose else ""


def _proofs(context: Context, lefts: Sequence[LeftOver], known: KnownHeads, lease: Lease) -> Proofs:
    wanted = {one.segment for left in lefts for one in left.files if one.segment is not None}
    if context.store.policy.archive is ArchiveMode.OFF or not wanted:
        return Proofs(())
    return read_proofs(
        context.store.lakes,
        context.record,
        wanted,
        known=known,
        to_delete=True,
        read_files=True,
        looked=lambda: context.journal.renew(lease),
    )


def _doubt(context: Context, left: LeftOver, proofs: Proofs, reading: Reading) -> str:
    """Return why some lake may not have all that would go; "" where one has the same bytes of each file."""
    if context.store.policy.archive is ArchiveMode.OFF:
        return ""
    for one in left.files:
        if one.segment is None:
            continue
        proven = set(_proven(one, proofs))
        if not proven:
            return "; ".join((f"no lake has {Path(one.facts.path).name}", *proofs.notices))
        if settle(one.facts.path) != one.facts or digest(one.facts.path, reading) not in proven:
            return f"{Path(one.facts.path).name} isn't what a lake has of it"
    return ""


def _proven(one: LeftFile, proofs: Proofs) -> Iterator[str]:
    """Yield the SHA-256 values that valid receipts have of a file."""
    assert one.segment is not None
    for lake in proofs.asked:
        for receipt in lake.valid(one.segment):
            if not one.companion:
                yield receipt.sha256
                continue
            try:
                yield from (file.sha256 for file in receipt.companions if file.name == one.companion)
            except ReceiptError:
                continue


def _remove(context: Context, run: Run, task: str, left: LeftOver, unproven: str, lease: Lease) -> None:
    """Have files go together: intent, the deed, result."""
    said = {
        "task": task,
        "files": [one.facts.path for one in left.files],
        "size_bytes": left.size_bytes,
        "directory": left.directory,
        "unproven": unproven,
    }
    context.journal.record(run, Step.BROKER_TASK, Phase.INTENT, [(left.what, said)], lease=lease)
    with package_errors(context.store.broker, "remove what it left"):
        context.broker.delete_left_over(left, lambda: context.journal.renew(lease))
    context.journal.record(
        run, Step.BROKER_TASK, Phase.RESULT, [(left.what, {"size_bytes": left.size_bytes})]
    )


def _settle(context: Context) -> None:
    """Account for what a killed run meant to remove, and has."""
    events = context.journal.store_events(context.record.store_id, Step.BROKER_TASK)
    ended = {(event.run_key, event.subject) for event in events if event.phase is Phase.RESULT}
    for event in events:
        gone = not any(os.path.lexists(path) for path in (*event.payload.get("files", ()), _directory(event)))
        if event.phase is not Phase.INTENT or (event.run_key, event.subject) in ended or not gone:
            continue
        durable.fsync_path(Path(_directory(event) or event.subject).parent)
        said = {"size_bytes": event.payload["size_bytes"]}
        context.journal.record(
            context.run(event.run_key), Step.BROKER_TASK, Phase.RESULT, [(event.subject, said)]
        )


def _directory(event: Event) -> str:
    return str(event.payload.get("directory", ""))


def _removed(context: Context, run: Run, task: str) -> list[Mapping[str, Any]]:
    """Return what a task's removals of this run took, each as it was meant, from before a kill, too."""
    events = context.journal.events(run, Step.BROKER_TASK)
    ended = {event.subject for event in events if event.phase is Phase.RESULT}
    meant: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.phase is Phase.INTENT and event.payload["task"] == task and event.subject in ended:
            # A run that was killed in the middle says less the second time.
            meant.setdefault(event.subject, event.payload)
    return list(meant.values())
