"""Flush what a cleanup left behind, and look at the broker's checkpoint. It is never written here.

A running broker flushes by itself, and what it deletes there it flushes itself: beside one, this
measures how far the broker is behind with it.

Recovery trusts the checkpoint: a value that is higher than the truth makes a broker skip messages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import reason_text
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.broker.broker_store import (
    FlushedStore,
    StorePositions,
    flush_paths,
    positions_of,
    process_of,
)
from storage_engine.model.hold import BrokerProgress
from storage_engine.retention.archive.archiving import begin_background_run
from storage_engine.retention.hold.progress_alarms import progress_alarms
from storage_engine.retention.release.dependents import deleted_dependents
from storage_engine.retention.store.broker_answers import take_checkpoint
from storage_engine.retention.store.context import AnyStore, Context, open_context


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """What flushing a store came to.

    :param checkpoint: its values as they are, by name.
    :param flushed: number of files and directories that were flushed.
    :param notices: values that a person should look at.
    :param progress: how far a running broker is with its own work; None where none runs.
    :param alarms: limits of the policy that it is behind beyond.
    :param positions: how far the store is; of one that our own engine writes, after it was flushed.
    :param positions_before: of such a store, before that.
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

    Flushing changes no byte, so it needs no hold. Beside a running broker nothing is flushed. A store that
    our own engine writes is flushed by that, and its checkpoint is written.

    :param run_key: a run, which needs no plan.
    :raises BrokerError: the running broker can't be asked.
    """
    context = open_context(store)
    run = begin_background_run(context, run_key)
    done = context.result(run, Step.CHECKPOINT, CheckpointResult)
    if done is not None:
        return done
    started_ns = time.monotonic_ns()
    with context.errors(run, Step.CHECKPOINT):
        now_ms = clock_ms()
        flushed = process_of(context.broker).flush_now()
        if flushed is not None:
            result = _flushed(context, run_key, now_ms, flushed)
            context.save(run, Step.CHECKPOINT, result, started_ns)
            return result
        progress = process_of(context.broker).progress(now_ms)
        if progress is not None:
            result = _measured(context, run_key, now_ms, progress)
            context.save(run, Step.CHECKPOINT, result, started_ns)
            return result
        snapshot = context.snapshot(now_ms)
        paths = dict.fromkeys(str(path) for path in flush_paths(context.broker, snapshot))
        paths.update(
            dict.fromkeys(file.facts.path.rpartition("/")[0] for file in deleted_dependents(context, run))
        )
        unflushed = list(_flush(paths))
        checkpoint, unknown = take_checkpoint(context.broker)
        notices = _look_at(checkpoint, _planned_with(context, run), now_ms)
        result = CheckpointResult(
            run_key, checkpoint, len(paths) - len(unflushed), (*unflushed, *unknown, *notices)
        )
        context.save(run, Step.CHECKPOINT, result, started_ns)
    return result


def _flush(paths: Iterable[str]) -> Iterator[str]:
    """Flush files and directories; yield which files can't be: one log's keeps no other's from being flushed.

    :raises OSError: a directory can't be flushed, or a file isn't there.
    """
    for path in paths:
        try:
            durable.fsync_path(path)
        except OSError as error:
            if not os.path.lexists(path) or Path(path).is_dir():
                raise
            why = reason_text(error)
            yield f"{path} can't be flushed, so that what the broker wrote to it last may be lost: {why}"


def _flushed(context: Context, run_key: str, now_ms: int, found: FlushedStore) -> CheckpointResult:
    """Return what a flush of a store of our own engine came to."""
    progress = process_of(context.broker).progress(now_ms)
    checkpoint = found.after.checkpoint
    alarms = progress_alarms(progress, context.store.policy)
    notices = _look_at(checkpoint, {}, now_ms)
    return CheckpointResult(
        run_key, checkpoint, 0, notices, progress, alarms, found.after, positions_before=found.before
    )


def _measured(context: Context, run_key: str, now_ms: int, progress: BrokerProgress) -> CheckpointResult:
    """Return how far the running broker is. That its checkpoint goes on is what it should do."""
    checkpoint, unknown = take_checkpoint(context.broker)
    alarms = progress_alarms(progress, context.store.policy)
    notices = (*unknown, *_look_at(checkpoint, {}, now_ms))
    positions = positions_of(progress, checkpoint)
    return CheckpointResult(run_key, checkpoint, 0, notices, progress, alarms, positions)


def _planned_with(context: Context, run: Run) -> Mapping[str, int]:
    plans = context.journal.events(run, Step.PLAN, Phase.RESULT)
    return dict(plans[0].payload["checkpoint"]) if plans else {}


def _look_at(now: Mapping[str, int], before: Mapping[str, int], now_ms: int) -> tuple[str, ...]:
    notices = []
    for name, value in now.items():
        if value < 0:
            notices.append(f"checkpoint: expected {name} to be 0 or more, found {value}")
        if "timestamp" in name and value > now_ms:
            notices.append(
                f"checkpoint: expected {name} to be at most now, {now_ms}, found {value}: recovery would "
                "trust it"
            )
        if value > before.get(name, value):
            notices.append(
                f"checkpoint: {name} rose from {before[name]} to {value} since the plan: the broker ran in "
                "between"
            )
    return tuple(notices)
