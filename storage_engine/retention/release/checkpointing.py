"""Flush after a cleanup, and a look at the broker's checkpoint, which is never written here.

A running broker flushes by itself, also after its own deletions. Then only its progress is measured.
Recovery trusts the checkpoint: a value above the truth makes a broker skip messages.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text, reason_text
from storage_engine.exceptions import RunStateError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.broker.broker_store import (
    FlushedStore,
    StorePositions,
    flush_paths,
    positions_of,
    process_of,
)
from storage_engine.model.hold import BrokerProgress
from storage_engine.model.plan import DependentFile, of_only_log
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.hold.hold_text import progress_alarms
from storage_engine.retention.hold.holding import keep_held
from storage_engine.retention.plan.deciding import unread_dependents_notices
from storage_engine.retention.proof.deletion_checks import check_kept
from storage_engine.retention.quarantine.records import quarantine_of
from storage_engine.retention.quarantine.set_aside import frees_nothing, refuse_undone, remover
from storage_engine.retention.release.releasing import ReleaseResult, intend_dependents
from storage_engine.retention.shield import asked_notices
from storage_engine.retention.store.broker_answers import (
    MAY_BE_DONE,
    list_dependents,
    package_errors,
    take_checkpoint,
)
from storage_engine.retention.store.context import AnyStore, Context, open_context


@dataclass(frozen=True, slots=True)
class DependentsResult:
    """Results for the files that pointed only into deleted segments.

    :param min_offset: the log's min offset, from the files on disk, or None if nothing was released.
    :param deleted: number of files by kind.
    :param freed_bytes: size of the deleted files; 0 while they are in the run's quarantine.
    :param notices: checks that could not be made while the store was locked, and files that stayed.
    """

    run_key: str
    min_offset: int | None
    deleted: Mapping[str, int]
    freed_bytes: int
    notices: tuple[str, ...] = ()


def clean_dependents(store: AnyStore, run_key: str) -> DependentsResult:
    """Delete the dependents of the released segments. Nothing is deleted if the run released nothing.

    A running broker deletes dependents itself. A notice counts the files that stay.

    :raises RunStateError: the run has released nothing yet, or was undone.
    :raises StoreBusyError: a broker or another run has the store.
    :raises StoreCrashedError: the broker has to recover the store first.
    """
    context = open_context(store)
    run = context.run(run_key)
    done = context.result(run, Step.DEPENDENTS, DependentsResult)
    if done is not None:
        return done
    refuse_undone(context, run)
    released = context.result(run, Step.RELEASE, ReleaseResult)
    if released is None:
        raise RunStateError(
            f"run {run_key!r}: expected its release to be done, found no release. Release first."
        )
    with context.errors(run, Step.DEPENDENTS) as save:
        logs = {release.log for release in released.deleted}
        result = _clean(context, run, logs) if logs else DependentsResult(run_key, None, {}, 0)
        save(result)
    return result


def deleted_dependents(context: Context, run: Run) -> tuple[DependentFile, ...]:
    """Return the files that the run deleted, by its results."""
    results = context.journal.events(run, Step.DEPENDENTS, Phase.RESULT)
    return tuple(from_jsonable(DependentFile, event.payload) for event in results if event.subject)


def _clean(context: Context, run: Run, logs: Collection[str]) -> DependentsResult:
    """Delete the dependents of logs that lost segments.

    :param logs: names of these logs. Others are left out, because a refused log may have unreadable files.
    """
    # Drift since the release is recorded before the hold is renewed.
    keep_held(context, run, clock_ms())
    with context.changing(clock_ms()) as held:
        min_offsets = {log.name: log.min_offset for log in held.snapshot.logs}
        below = {log: at for log, at in min_offsets.items() if log in logs}
        files = list_dependents(context.broker, held.snapshot, below)
        unread = unread_dependents_notices(context.broker)
        intend_dependents(context, run, files, held.lease)
        facts = [file.facts for file in files]
        remove = remover(context, run, facts, held.lease, clock_ms(), begin=False)
        held.store.check()
        with package_errors(context.store.broker, "delete what depends on segments", MAY_BE_DONE):
            if (dependents := context.broker.dependents) is not None:
                dependents.delete(files, lambda: context.journal.renew(held.lease), remove)
        _record_results(context, run)
        if not context.broker.is_live:
            check_kept(held.snapshot)
        stay = [file.facts.path for file in files if Path(file.facts.path).exists()]
    deleted = deleted_dependents(context, run)
    aside = frees_nothing(quarantine_of(context.journal, run))
    return DependentsResult(
        run_key=run.run_key,
        min_offset=of_only_log(min_offsets),
        deleted=Counter(str(file.kind) for file in deleted),
        freed_bytes=0 if aside else sum(file.facts.size_bytes for file in deleted),
        # No queue points any more to messages that only the shield has, so notices name them.
        notices=(
            *held.notices,
            *_stay_notices(stay),
            *unread,
            *asked_notices(context),
        ),
    )


def _stay_notices(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    return (
        f"{count_text(len(paths), 'queue or index file')} below the log's begin stay, the first is "
        f"{paths[0]}. A running broker deletes such files after its next deletion of segments, or after its "
        "next start",
    )


def _record_results(context: Context, run: Run) -> None:
    """Record every file that is gone after an intent of this run, also if it was deleted before a kill."""
    recorded = {event.subject for event in context.journal.events(run, Step.DEPENDENTS, Phase.RESULT)}
    deleted = {
        event.subject: event.payload
        for event in context.journal.events(run, Step.DEPENDENTS, Phase.INTENT)
        if event.subject not in recorded and not Path(event.subject).exists()
    }
    for directory in sorted({Path(path).parent for path in deleted}):
        durable.fsync_path(directory)
    context.journal.record(run, Step.DEPENDENTS, Phase.RESULT, list(deleted.items()))


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """Result of flushing a store.

    :param checkpoint: its present values by name.
    :param flushed: number of files and directories that were flushed.
    :param notices: values that a person should look at.
    :param progress: the running broker's progress with its own work, or None if no broker runs.
    :param alarms: limits of the policy that its lag exceeds.
    :param positions: the positions of the store. If our own engine writes it, they are from after its flush.
    :param positions_before: the positions before that flush, or None if another broker writes the store.
    """

    run_key: str
    checkpoint: Mapping[str, int]
    flushed: int
    notices: tuple[str, ...]
    progress: BrokerProgress | None = None
    alarms: tuple[str, ...] = ()
    positions: StorePositions | None = None
    positions_before: StorePositions | None = None


def flush_checkpoint(store: AnyStore, run_key: str) -> CheckpointResult:
    """Flush the active segment, the checkpoint, and every directory that the run changed.

    Flushing changes no byte, so the store isn't locked. If a broker runs, nothing is flushed. If our own
    engine writes the store, the engine flushes it and writes its checkpoint.

    :param run_key: key of a run, which needs no plan.
    :raises BrokerError: the running broker can't be asked.
    """
    context = open_context(store)
    run = begin_background_run(context, run_key)
    done = context.result(run, Step.CHECKPOINT, CheckpointResult)
    if done is not None:
        return done
    with context.errors(run, Step.CHECKPOINT) as save:
        result = _flush_store(context, run, clock_ms())
        save(result)
    return result


def _flush_store(context: Context, run: Run, now_ms: int) -> CheckpointResult:
    process = process_of(context.broker)
    if (flushed := process.flush_now()) is not None:
        return _flush_result(context, run.run_key, now_ms, flushed)
    if (progress := process.progress(now_ms)) is not None:
        return _live_result(context, run.run_key, now_ms, progress)
    snapshot = context.snapshot(now_ms)
    paths = dict.fromkeys(str(path) for path in flush_paths(context.broker, snapshot))
    paths.update(
        dict.fromkeys(file.facts.path.rpartition("/")[0] for file in deleted_dependents(context, run))
    )
    unflushed = list(_flush(paths))
    checkpoint, unknown = take_checkpoint(context.broker)
    notices = (*unflushed, *unknown, *_look_at(checkpoint, _planned_checkpoint(context, run), now_ms))
    return CheckpointResult(run.run_key, checkpoint, len(paths) - len(unflushed), notices)


def _flush(paths: Iterable[str]) -> Iterator[str]:
    """Flush files and directories, and yield a notice for each file that can't be flushed.

    After such a file, the other files and directories are still flushed.

    :raises OSError: a directory can't be flushed, or a file is missing.
    """
    for path in paths:
        try:
            durable.fsync_path(path)
        except OSError as error:
            if not os.path.lexists(path) or Path(path).is_dir():
                raise
            why = reason_text(error)
            yield f"{path} can't be flushed, so the broker's last writes to it may be lost: {why}"


def _flush_result(context: Context, run_key: str, now_ms: int, flushed: FlushedStore) -> CheckpointResult:
    """Return the result of a flush by our own engine."""
    progress = process_of(context.broker).progress(now_ms)
    checkpoint = flushed.after.checkpoint
    alarms = progress_alarms(progress, context.store.policy)
    notices = _look_at(checkpoint, {}, now_ms)
    return CheckpointResult(
        run_key, checkpoint, 0, notices, progress, alarms, flushed.after, positions_before=flushed.before
    )


def _live_result(context: Context, run_key: str, now_ms: int, progress: BrokerProgress) -> CheckpointResult:
    """Return the progress of the running broker. Its checkpoint rises normally, so a rise gives no notice."""
    checkpoint, unknown = take_checkpoint(context.broker)
    alarms = progress_alarms(progress, context.store.policy)
    notices = (*unknown, *_look_at(checkpoint, {}, now_ms))
    positions = positions_of(progress, checkpoint)
    return CheckpointResult(run_key, checkpoint, 0, notices, progress, alarms, positions)


def _planned_checkpoint(context: Context, run: Run) -> Mapping[str, int]:
    plans = context.journal.events(run, Step.PLAN, Phase.RESULT)
    return dict(plans[0].payload["checkpoint"]) if plans else {}


def _look_at(now: Mapping[str, int], before: Mapping[str, int], now_ms: int) -> tuple[str, ...]:
    notices = []
    for name, value in now.items():
        if value < 0:
            notices.append(f"checkpoint: expected {name} to be 0 or more, found {value}")
        if "timestamp" in name and value > now_ms:
            notices.append(
                f"checkpoint: expected {name} to be at most now, {now_ms}, found {value}: a recovery would "
                "trust this value"
            )
        if value > before.get(name, value):
            notices.append(
                f"checkpoint: {name} rose from {before[name]} to {value} since the plan: the broker ran "
                "meanwhile"
            )
    return tuple(notices)
