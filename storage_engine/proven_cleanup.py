"""Cleanup of a store that this process writes and serves: it deletes only segments that a lake proves.

When the broker's rules permit a deletion, its loop calls this module and deletes nothing itself. The call
makes one run of the deleting cycle, with the DAG's own steps, gate and journal. The run requests deletions
from this process, as every other run does.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from storage_engine import cycle
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import NotApprovedError, StoreBusyError
from storage_engine.journal.journal import Phase, RunState, Step
from storage_engine.lake.catalog.place import check_any_catalog_file
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import SegmentId
from storage_engine.retention.proof.approvals import read_consent, starters_of
from storage_engine.retention.store.context import Context, approved_plan, opened
from storage_engine.retention.store.managed_store import ManagedStore

_RUN_PREFIX = "engine-"
_RETRY_MS = 60_000
"""Time from a failed run to the next attempt. A person must read the report, and a lake has to recover."""


class ProvenRelease:
    """Makes a run for each pass that may delete segments."""

    def __init__(self, store: ManagedStore) -> None:
        self._store = replace(store, engine=True)
        self._unfinished: tuple[str, PlanRequest | None] | None = None
        self._looked_back = False
        self._not_before_ms = 0
        self._waiting: dict[tuple[SegmentId, ...], tuple[str, PlanRequest]] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop a run before its next step. The next process continues a deletion that has begun."""
        self._stopped.set()

    def __call__(self, request: PlanRequest) -> None:
        """:raises StorageEngineError: a step failed or refused. A later pass continues the run."""
        now_ms = clock_ms()
        if now_ms < self._not_before_ms:
            return
        self._not_before_ms = now_ms + _RETRY_MS
        with opened(self._store) as context:
            if not self._looked_back:
                self._unfinished = _find_unfinished(context)
                self._looked_back = True
            broker = context.broker
            if self._unfinished is not None:
                self._make(context, *self._unfinished)
            elif segments := broker.plan(broker.snapshot(now_ms), now_ms, request).to_delete:
                self._make_or_wait(context, tuple(segment.id for segment in segments), now_ms, request)
        self._not_before_ms = 0

    def _make_or_wait(
        self, context: Context, planned: tuple[SegmentId, ...], now_ms: int, request: PlanRequest
    ) -> None:
        """Make a run, or continue one that waits for a second person's approval.

        A run that was approved meanwhile comes first, even if more segments may be deleted now. Otherwise a
        waiting run for the same segments is continued.
        """
        self._waiting = {ids: run for ids, run in self._waiting.items() if {*ids} <= {*planned}}
        for ids, (run_key, _) in self._waiting.items():
            run = context.run(run_key)
            if not read_consent(context, run, approved_plan(run).decisions).refuses:
                planned = ids
                break
        run_key, run_request = self._waiting.pop(planned, (f"{_RUN_PREFIX}{now_ms}", request))
        try:
            self._make(context, run_key, run_request)
        except NotApprovedError:
            # A run from before the policy asked for approval has no starter, and can never be approved.
            if starters_of(context.journal, context.run(run_key)):
                self._waiting[planned] = (run_key, run_request)
            raise

    def _make(self, context: Context, run_key: str, request: PlanRequest | None) -> None:
        """Execute every step of a run. Later passes continue a run that has begun to delete."""
        cleanup = cycle.Cleanup(context, run_key, request)
        cycle.plan(cleanup)
        self._unfinished = (run_key, request)
        try:
            for step in cycle.CLEANUP[1:-1]:
                if self._stopped.is_set():
                    raise StoreBusyError(
                        f"{self._store.root}: expected to continue run {run_key}, found that the process "
                        "which serves the store ends. The next process continues the deletion that has begun."
                    )
                step(cleanup)
        finally:
            finished = cycle.report(cleanup)
            run = context.run(run_key)
            if finished.finished or not context.journal.events(run, Step.RELEASE, Phase.INTENT):
                self._unfinished = None
        finished.raise_refused()


def _find_unfinished(context: Context) -> tuple[str, PlanRequest | None] | None:
    """Return the unfinished run of a process that was killed during a deletion, or None."""
    intents = context.journal.store_events(context.record.store_id, Step.RELEASE, Phase.INTENT)
    if not intents or not intents[-1].run_key.startswith(_RUN_PREFIX):
        return None
    run = context.run(intents[-1].run_key)
    return None if run.state in (RunState.FINISHED, RunState.EXPIRED) else (run.run_key, run.request)


def proven_release(store: ManagedStore) -> ProvenRelease:
    """Return the call with which the loop of a store that this process serves deletes proven segments.

    :raises LakeMissingError: the lake doesn't exist.
    """
    check_any_catalog_file(store.lakes)
    return ProvenRelease(store)
