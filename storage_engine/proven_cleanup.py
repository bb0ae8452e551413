"""Cleaning up a store while this process writes to it, with a lake: only what is proven there goes.

When the broker's rules let files go, its loop asks here, and deletes nothing itself. One run of the cycle
that deletes is made: the DAG's own steps, gate and journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from storage_engine import cycle
from storage_engine.clock import clock_ms
from storage_engine.journal.journal import Phase, RunState, Step
from storage_engine.model.broker_store import BrokerStore
from storage_engine.model.plan import PlanRequest
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.context import Context, open_context

_RUN_PREFIX = "engine-"
_RETRY_MS = 60_000
"""From a run that failed to the next try: its report is for people, and a lake needs time to come back."""


class ProvenRelease:
    """Makes a run of each pass that may delete something."""

    def __init__(self, store: ManagedStore, open_store: BrokerStore) -> None:
        self._store, self._open_store = store, open_store
        self._context: Context | None = None
        self._unfinished: cycle.Cleanup | None = None
        self._not_before_ms = 0

    def __call__(self, request: PlanRequest) -> None:
        """:raises StorageEngineError: a step failed or refused; a later pass goes on with it."""
        now_ms = clock_ms()
        if now_ms < self._not_before_ms:
            return
        self._not_before_ms = now_ms + _RETRY_MS
        if self._context is None:
            # In the loop's thread, which alone uses it.
            self._context = open_context(self._store, self._open_store)
            self._unfinished = _begun_before(self._context)
        if self._unfinished is None:
            plan = self._open_store.plan(self._open_store.snapshot(now_ms), now_ms, request)
            if plan.to_delete:
                self._make(self._context, cycle.Cleanup(self._context, f"{_RUN_PREFIX}{now_ms}", request))
        else:
            self._make(self._context, self._unfinished)
        self._not_before_ms = 0

    def close(self) -> None:
        if self._context is not None:
            self._context.closing.close()

    def _make(self, context: Context, cleanup: cycle.Cleanup) -> None:
        """Take every step of a run. One that has begun to delete is gone on with until it is over."""
        cycle.plan(cleanup)
        self._unfinished = cleanup
        try:
            for step in cycle.CLEANUP[1:-1]:
                step(cleanup)
        finally:
            finished = cycle.report(cleanup)
            run = context.run(cleanup.run_key)
            if finished.finished or not context.journal.events(run, Step.RELEASE, Phase.INTENT):
                self._unfinished = None
        finished.raise_refused()


def _begun_before(context: Context) -> cycle.Cleanup | None:
    """Return the run of a loop that was killed while it deleted; None: there is none."""
    intents = context.journal.store_events(context.record.store_id, Step.RELEASE, Phase.INTENT)
    if not intents or not intents[-1].run_key.startswith(_RUN_PREFIX):
        return None
    run = context.run(intents[-1].run_key)
    ended = run.state in (RunState.FINISHED, RunState.EXPIRED)
    return None if ended else cycle.Cleanup(context, run.run_key, run.request)


@contextmanager
def proven_release(store: ManagedStore, open_store: BrokerStore) -> Iterator[ProvenRelease]:
    """Let a loop delete what is proven alone, while the block runs.

    :param open_store: the same store, as who writes to it has it open.
    """
    release = ProvenRelease(store, open_store)
    try:
        yield release
    finally:
        release.close()
