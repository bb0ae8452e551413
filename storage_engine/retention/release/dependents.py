"""Delete what points only below the log's new beginning: queues and index files, by the broker's own rule."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core import durable
from storage_engine.core.clock import clock_ms
from storage_engine.core.jsonable import from_jsonable
from storage_engine.core.wording import count_text
from storage_engine.exceptions import RunStateError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.plan.plan import DependentFile, of_only_log
from storage_engine.retention.hold.holding import keep_held
from storage_engine.retention.plan.deciding import unread_dependents_notices
from storage_engine.retention.proof.deletion_checks import check_kept
from storage_engine.retention.quarantine.records import quarantine_of
from storage_engine.retention.quarantine.set_aside import frees_nothing, refuse_undone, remover
from storage_engine.retention.release.releasing import ReleaseResult, intend_dependents
from storage_engine.retention.shield import asked_notices
from storage_engine.retention.store.broker_answers import MAY_BE_DONE, list_dependents, package_errors
from storage_engine.retention.store.context import AnyStore, Context, open_context


@dataclass(frozen=True, slots=True)
class DependentsResult:
    """What became of the files that pointed only into deleted segments.

    :param min_offset: the log's, by the files that are there; None when nothing was released.
    :param deleted: number of files by kind.
    :param freed_bytes: 0 while they lie in the run's quarantine.
    :param notices: what could not be checked while the store was taken, and what stayed.
    """

    run_key: str
    min_offset: int | None
    deleted: Mapping[str, int]
    freed_bytes: int
    notices: tuple[str, ...] = ()


def clean_dependents(store: AnyStore, run_key: str) -> DependentsResult:
    """Delete the dependents of what the run released; nothing when it released nothing.

    A running broker deletes them itself; what stays longer than it takes is a notice.

    :raises RunStateError: the run has not released yet, or was undone.
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
        raise RunStateError(f"run {run_key!r}: expected its release to be done, found none. Release first.")
    started_ns = time.monotonic_ns()
    with context.errors(run, Step.DEPENDENTS):
        logs = {release.log for release in released.deleted}
        result = _clean(context, run, logs) if logs else DependentsResult(run_key, None, {}, 0)
        context.save(run, Step.DEPENDENTS, result, started_ns)
    return result


def deleted_dependents(context: Context, run: Run) -> tuple[DependentFile, ...]:
    """The files that the run deleted, by its results."""
    results = context.journal.events(run, Step.DEPENDENTS, Phase.RESULT)
    return tuple(from_jsonable(DependentFile, event.payload) for event in results if event.subject)


def _clean(context: Context, run: Run, logs: Collection[str]) -> DependentsResult:
    """:param logs: those that lost segments: files of a log that was refused may be unreadable."""
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
        # Of what is gone from the log and not in the lake yet, no queue knows from now on.
        notices=(
            *held.notices,
            *_stay_notices(stay),
            *unread,
            *asked_notices(context.store, context.journal, context.record),
        ),
    )


def _stay_notices(paths: Sequence[str]) -> tuple[str, ...]:
    if not paths:
        return ()
    return (
        f"{count_text(len(paths), 'queue or index file')} below the log's beginning stay, the first is "
        f"{paths[0]}: a running broker deletes such when its log begins later again, or after its next start",
    )


def _record_results(context: Context, run: Run) -> None:
    """Record every file that is gone after an intent of this run, those from before a kill included."""
    known = {event.subject for event in context.journal.events(run, Step.DEPENDENTS, Phase.RESULT)}
    gone = {
        event.subject: event.payload
        for event in context.journal.events(run, Step.DEPENDENTS, Phase.INTENT)
        if event.subject not in known and not Path(event.subject).exists()
    }
    for directory in sorted({Path(path).parent for path in gone}):
        durable.fsync_path(directory)
    context.journal.record(run, Step.DEPENDENTS, Phase.RESULT, list(gone.items()))
