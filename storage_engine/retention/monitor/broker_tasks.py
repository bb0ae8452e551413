"""Care for a broker's background tasks: watch those of a running broker, and end those of a stopped one.

Files that a broker was about to remove are removed here only if a lake has the same bytes. If no lake has a
file, only a person's decision permits its removal, even if nothing is archived.

The order is: intent, removal, flush of the directory, result. A call may be killed at any time and repeated.

If a killed run left an intent without a result, the files on disk decide. Missing files don't prove that we
removed them: a broker that ran meanwhile removes the same files. A removal on a missing disk stays open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import bytes_text, count_text, reason_text
from storage_engine.exceptions import BadInputError, ReceiptError, StoreBusyError, StoreCrashedError
from storage_engine.journal.journal import Event, Phase, Run, Step
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.broker_store import is_present, process_of
from storage_engine.model.broker.broker_tasks import (
    BackgroundTasks,
    BrokerTask,
    LeftFile,
    LeftOver,
    TaskLimits,
)
from storage_engine.model.report.diagnosis import reason_of
from storage_engine.model.store import SegmentId
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.proof.deletion_checks import check_inside
from storage_engine.retention.proof.proofs import Proofs, witness_release
from storage_engine.retention.proof.unseen_writes import Reading, digest
from storage_engine.retention.release.judging import read_proofs_to_delete
from storage_engine.retention.store.broker_answers import MAY_BE_DONE, package_errors
from storage_engine.retention.store.context import WHOLE, AnyStore, Context, open_context
from storage_engine.retention.store.known_heads import KnownHeads, known_heads
from storage_engine.retention.store.stamp import missing_stamps
from storage_engine.same_bytes.trusted_times import settle


def check_topic_words(store: AnyStore, run_key: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """Check the reasons why topics' files may be deleted.

    A run that continues isn't checked again, because it may have removed files.

    :param words: topic → the reason why its unarchived files may be deleted.
    :return: sentences on reasons that have no effect.
    :raises BadInputError: a reason is empty, or a topic still exists. Nothing was removed.
    :raises BrokerError: the running broker can't be asked.
    """
    for topic, reason in words.items():
        if not reason.strip():
            raise BadInputError(
                f"topic {topic}: expected a reason why it may be deleted unproven, found none. Nothing was "
                "removed."
            )
    context = open_context(store)
    run = context.journal.find_run(context.record.store_id, run_key) if words else None
    if not words or (run is not None and context.journal.events(run, Step.BROKER_TASK)):
        return ()
    return (context.broker.tasks or BackgroundTasks()).check_deleted_topics(tuple(words))


UNKNOWN = "gone, by whom is unknown"
Notes = Mapping[str, Sequence[str]]
"""Name of a task → clauses on its settled and its open removals."""


def open_removals(context: Context, tasks: Collection[str]) -> tuple[Event, ...]:
    """Return the intents of these tasks that have no result and whose files are all missing."""
    events = context.journal.store_events(context.record.store_id, Step.BROKER_TASK)
    ended = {(event.run_key, event.subject) for event in events if event.phase is Phase.RESULT}
    intents: dict[tuple[str, str], Event] = {}
    for event in events:
        key = (event.run_key, event.subject)
        if event.phase is Phase.INTENT and key not in ended and event.payload["task"] in tasks:
            # The first intent counts, because a repeated one lacks files that are already removed.
            intents.setdefault(key, event)
    return tuple(event for event in intents.values() if _are_files_gone(event))


def settle_removals(context: Context, run: Run, tasks: Collection[str], lease: Lease) -> Notes:
    """Record the result of open removals, durably, if their files are gone. Who removed them is unknown.

    The caller holds the store's lock. A removal stays open if its files may still be on the disk.

    :param run: the run that does this. If another run left a removal open, a note names it.
    """
    lacking = missing_stamps(context.store.real_root)
    notes: dict[str, list[str]] = {}
    for event in open_removals(context, tasks):
        clauses = notes.setdefault(event.payload["task"], [])
        if reason := _flush_parents(context, event, lacking):
            clauses.append(_open_note(event, reason))
            continue
        result = {"size_bytes": event.payload["size_bytes"], "said": UNKNOWN}
        removing_run = context.run(event.run_key)
        rows = [(event.subject, result)]
        context.journal.record(removing_run, Step.BROKER_TASK, Phase.RESULT, rows, lease=lease)
        if event.run_key != run.run_key:
            clauses.append(f"{event.subject}: {UNKNOWN}: run {event.run_key} was killed during its removal")
    return notes


def settle_alone(context: Context, run: Run, tasks: Collection[str], now_ms: int) -> Notes:
    """Settle open removals if nothing else has to be removed. If they can't be settled, notes say why."""
    broker = context.broker
    if broker.is_live or process_of(broker).user():
        reason = "its broker runs"
    else:
        try:
            with context.changing(now_ms) as held:
                return settle_removals(context, run, tasks, held.lease)
        except (StoreBusyError, StoreCrashedError) as error:
            reason = reason_of(error)
    notes: dict[str, list[str]] = {}
    for event in open_removals(context, tasks):
        notes.setdefault(event.payload["task"], []).append(_open_note(event, reason))
    return notes


def _open_note(event: Event, reason: str) -> str:
    return f"{event.subject}: it stays unknown whether run {event.run_key} removed it: {reason}"


def _are_files_gone(event: Event) -> bool:
    return not any(map(_may_exist, filter(None, (*event.payload["files"], event.payload["directory"]))))


def _may_exist(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _flush_parents(context: Context, event: Event, lacking: Collection[Path]) -> str:
    """Flush the directories above removed files. Return why their deletion may not be durable, or ""."""
    path = Path(event.payload["directory"] or event.payload["files"][0]).parent
    homes = [root for root in context.data_paths if path.is_relative_to(root)]
    home = max(homes, key=lambda root: len(root.parts), default=None)
    if home is None:
        return f"{path} is in no directory of the store any more"
    if not is_present(context.broker, home):
        return f"{home} has changed: is its disk mounted?"
    if home in lacking:
        return f"{home} lacks the store's stamp: was its disk replaced?"
    try:
        while not path.is_dir():
            path = path.parent
        durable.fsync_path(path)
    except OSError as error:
        return f"{path} can't be flushed: {reason_text(error)}"
    return ""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Findings and removals of one task of a broker.

    :param found: clauses on the state of the task.
    :param alarms: sentences that a person has to know at once.
    :param removed_files: number of removed files that the broker had left, without directories.
    :param gone_files: number of missing files whose remover is unknown: a killed run, or a later broker.
    :param unproven: clauses on files that were deleted only by a person's decision.
    :param kept: clauses on files that stay, with the reason.
    :param notices: clauses that a person should read, such as on open removals or a disk without stamp.
    """

    name: str
    found: tuple[str, ...]
    alarms: tuple[str, ...] = ()
    removed_files: int = 0
    freed_bytes: int = 0
    gone_files: int = 0
    gone_bytes: int = 0
    unproven: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the result in one line."""
        removed = f"removed {count_text(self.removed_files, 'file')}, {bytes_text(self.freed_bytes)} freed"
        vanished = f"{count_text(self.gone_files, 'file')}, {bytes_text(self.gone_bytes)}: {UNKNOWN}"
        counts = (*((removed,) if self.removed_files else ()), *((vanished,) if self.gone_files else ()))
        clauses = (*self.found, *counts, *self.unproven, *self.kept, *self.notices)
        return f"{self.name}: {'; '.join((*clauses, *self.alarms))}"


def run_broker_tasks(
    store: AnyStore,
    run_key: str,
    only: str | None = None,
    *,
    words: Mapping[str, str] | None = None,
    now_ms: int | None = None,
) -> tuple[TaskResult, ...]:
    """Look after a broker's background tasks, once a run.

    :param only: name of the one task to look after; None for all.
    :param words: deleted topic → a person's reason why its unarchived files may be deleted.
    :raises BadInputError: a reason is empty, or a topic still exists.
    :raises StoreBusyError: a broker or another run has the store.
    :raises ChangedUnderUsError: a file changes while it is read; other files may already be removed.
    :raises BrokerError: the running broker can't be asked.
    """
    words = words or {}
    context = open_context(store)
    check_topic_words(context, run_key, words)
    run = begin_background_run(context, run_key)
    now_ms = clock_ms() if now_ms is None else now_ms
    events = context.journal.events(run, Step.BROKER_TASK, Phase.RESULT)
    payloads = [event.payload["result"] for event in events if event.subject == WHOLE]
    done = {result.name: result for result in (from_jsonable(TaskResult, payload) for payload in payloads)}
    with context.errors(run, Step.BROKER_TASK):
        tasks = [task for task in _look(context, now_ms) if only in (None, task.name)]
        todo = {task.name for task in tasks} - set(done)
        notes: Notes = {}
        if any(task.left for task in tasks if task.name in todo):
            with context.changing(now_ms) as held:
                notes = settle_removals(context, run, todo, held.lease)
                looked = {task.name: task for task in _look(context, now_ms)}
                tasks = [looked[task.name] for task in tasks]
                for task in tasks:
                    if task.name not in done:
                        task_notes = notes.get(task.name, ())
                        done[task.name] = _end(context, run, task, held.lease, words, task_notes)
        elif open_removals(context, todo):
            notes = settle_alone(context, run, todo, now_ms)
        for task in tasks:
            if task.name not in done:
                result = _result(context, run, task, notices=notes.get(task.name, ()))
                done[task.name] = _save(context, run, result, time.monotonic_ns())
    return tuple(done[task.name] for task in tasks)


def _look(context: Context, now_ms: int) -> tuple[BrokerTask, ...]:
    policy = context.store.policy
    limits = TaskLimits(policy.checkpoint_alarm_seconds * 1000, policy.flush_alarm_bytes)
    return (context.broker.tasks or BackgroundTasks()).look(now_ms, limits)


def _result(
    context: Context, run: Run, task: BrokerTask, kept: Sequence[str] = (), notices: Sequence[str] = ()
) -> TaskResult:
    removals, vanished = _read_removals(context, run, task.name)
    return TaskResult(
        task.name,
        task.found,
        task.overdue,
        removed_files=sum(len(payload["files"]) for payload in removals),
        freed_bytes=sum(payload["size_bytes"] for payload in removals),
        gone_files=sum(len(payload["files"]) for payload in vanished),
        gone_bytes=sum(payload["size_bytes"] for payload in vanished),
        unproven=tuple(payload["unproven"] for payload in (*removals, *vanished) if payload["unproven"]),
        kept=(*task.kept, *kept),
        notices=tuple(notices),
    )


def _save(context: Context, run: Run, result: TaskResult, started_ns: int) -> TaskResult:
    context.save(run, Step.BROKER_TASK, result, started_ns)
    return result


def _end(
    context: Context,
    run: Run,
    task: BrokerTask,
    lease: Lease,
    words: Mapping[str, str],
    notices: Sequence[str],
) -> TaskResult:
    """Remove the files that a task has left, if they are proven or a person permits it."""
    started_ns = time.monotonic_ns()
    paths = [file.facts.path for leftover in task.left for file in leftover.files]
    check_inside(context.store.broker, paths, context.data_paths)
    heads = known_heads(context.journal, context.record)
    proofs = _read_proofs(context, task.left, heads, lease)
    reading = Reading(pace_at(context.bytes_per_second()).spend, lambda: context.journal.renew(lease))
    going, kept = [], []
    for leftover in task.left:
        word = words.get(leftover.topic, "") if leftover.topic else ""
        unproven = _unproven_clause(context, leftover, proofs)
        no_word = unproven if not word else ""
        if no_word and leftover.topic:
            permit = f"--deleted-topic {leftover.topic}=REASON permits its deletion"
            no_word = f"{unproven}; {leftover.purpose}: {permit}"
        if reason := _why_unknown(leftover, proofs) or no_word or _contradiction(leftover, proofs, reading):
            kept.append(f"{leftover.what} stays: {reason}")
        else:
            text = (
                f"{leftover.what} was deleted by a person's decision: {leftover.purpose}, {word} ({unproven})"
            )
            going.append((leftover, text if unproven else ""))
    if going:
        notices = (*notices, *witness_release(context, run, proofs, heads))
    for leftover, unproven in going:
        _remove(context, run, task.name, leftover, unproven, lease)
    return _save(context, run, _result(context, run, task, kept, notices), started_ns)


def _read_proofs(context: Context, lefts: Sequence[LeftOver], heads: KnownHeads, lease: Lease) -> Proofs:
    segment_ids = {file.segment for leftover in lefts for file in leftover.files if file.segment is not None}
    if not context.store.archives or not segment_ids:
        return Proofs(())
    return read_proofs_to_delete(context, segment_ids, heads, lease)


def _files(leftover: LeftOver) -> Iterator[tuple[LeftFile, SegmentId]]:
    yield from ((file, file.segment) for file in leftover.files if file.segment is not None)


def _unproven_clause(context: Context, leftover: LeftOver, proofs: Proofs) -> str:
    """Return a clause on files without a valid receipt, or "" without such files. No bytes are compared."""
    lacking = [Path(file.facts.path).name for file, _ in _files(leftover) if not any(_hashes(file, proofs))]
    if not lacking:
        return ""
    is_off = not context.store.archives
    return f"no lake has {', '.join(lacking)}{', as nothing is archived' if is_off else ''}"


def _why_unknown(leftover: LeftOver, proofs: Proofs) -> str:
    """Return why it is unknown whether a lake has a file: a lake doesn't answer, or a receipt isn't sound.

    No person's decision permits the removal of such a file.
    """
    for file, segment in _files(leftover):
        if any(_hashes(file, proofs)):
            continue
        unsound = [
            f"a receipt in {lake_proofs.lake.location} isn't sound: {lake_proofs.faults[row.identity]}"
            for lake_proofs in proofs.asked
            for row in lake_proofs.of(segment)
            if row.identity in lake_proofs.faults
        ]
        if unsound or proofs.notices:
            return f"no lake proves {Path(file.facts.path).name}; {'; '.join((*unsound, *proofs.notices))}"
    return ""


def _contradiction(leftover: LeftOver, proofs: Proofs, reading: Reading) -> str:
    """Return a clause on a file that differs from a lake's copy, or "". No person may permit its removal."""
    for file, _ in _files(leftover):
        proven, facts = set(_hashes(file, proofs)), file.facts
        if proven and (settle(facts.path) != facts or digest(facts.path, reading) not in proven):
            return f"{Path(facts.path).name} differs from a lake's copy"
    return ""


def _hashes(left_file: LeftFile, proofs: Proofs) -> Iterator[str]:
    """Yield the SHA-256 values that valid receipts have of a file."""
    assert left_file.segment is not None
    for lake in proofs.asked:
        for receipt in lake.valid(left_file.segment):
            if not left_file.companion:
                yield receipt.sha256
                continue
            try:
                yield from (file.sha256 for file in receipt.companions if file.name == left_file.companion)
            except ReceiptError:
                continue


def _remove(context: Context, run: Run, task: str, leftover: LeftOver, unproven: str, lease: Lease) -> None:
    """Remove the files of one unfinished task together: intent, removal, result."""
    payload = {
        "task": task,
        "files": [file.facts.path for file in leftover.files],
        "size_bytes": leftover.size_bytes,
        "directory": leftover.directory,
        "unproven": unproven,
    }
    context.journal.record(run, Step.BROKER_TASK, Phase.INTENT, [(leftover.what, payload)], lease=lease)
    with package_errors(context.store.broker, "remove its unfinished files", MAY_BE_DONE):
        tasks = context.broker.tasks or BackgroundTasks()
        tasks.delete_left_over(leftover, lambda: context.journal.renew(lease))
    context.journal.record(
        run, Step.BROKER_TASK, Phase.RESULT, [(leftover.what, {"size_bytes": leftover.size_bytes})]
    )


def _read_removals(
    context: Context, run: Run, task: str
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the intents of one task's removals that have a result, also from before a kill of this run.

    :return: intents of removals by this run, and of removals whose remover is unknown.
    """
    events = context.journal.events(run, Step.BROKER_TASK)
    ended = {event.subject: event.payload for event in events if event.phase is Phase.RESULT}
    intents: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.phase is Phase.INTENT and event.payload["task"] == task and event.subject in ended:
            # The first intent counts, because a repeated one lacks files that are already removed.
            intents.setdefault(event.subject, event.payload)
    own = [payload for subject, payload in intents.items() if "said" not in ended[subject]]
    return own, [payload for subject, payload in intents.items() if "said" in ended[subject]]
