"""Cleaning up a store that this process writes and serves, with a lake: only what is proven there goes.

When the broker's rules let files go, its loop asks here, and deletes nothing itself. One run of the cycle
that deletes is made: the DAG's own steps, gate and journal. It asks this process as any other run does.
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
from storage_engine.retention.proof.approvals import consent_of, starters_of
from storage_engine.retention.store.context import Context, approved_plan, opened
from storage_engine.retention.store.managed_store import ManagedStore

_RUN_PREFIX = "engine-"
_RETRY_MS = 60_000
"""Time from a failed run to the next try: its report is for people, and a lake needs time to come back."""


class ProvenRelease:
    """Makes a run of each pass that may delete something."""

    def __init__(self, store: ManagedStore) -> None:
        self._store = replace(store, engine=True)
        self._unfinished: tuple[str, PlanRequest | None] | None = None
        self._looked_back = False
        self._not_before_ms = 0
        self._waiting: dict[tuple[SegmentId, ...], tuple[str, PlanRequest]] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let a run end before its next step. What it has begun to delete, the next process goes on with."""
        self._stopped.set()

    def __call__(self, request: PlanRequest) -> None:
        """:raises StorageEngineError: a step failed or refused; a later pass goes on with it."""
        now_ms = clock_ms()
        if now_ms < self._not_before_ms:
            return
        self._not_before_ms = now_ms + _RETRY_MS
        with opened(self._store) as context:
            if not self._looked_back:
                self._unfinished = _begun_before(context)
                self._looked_back = True
            broker = context.broker
            if self._unfinished is not None:
                self._make(context, *self._unfinished)
            elif segments := broker.plan(broker.snapshot(now_ms), now_ms, request).to_delete:
                self._make_or_wait(context, tuple(one.id for one in segments), now_ms, request)
        self._not_before_ms = 0

    def _make_or_wait(
        self, context: Context, wanted: tuple[SegmentId, ...], now_ms: int, request: PlanRequest
    ) -> None:
        """Make a run, or go on with one that waits for a second person.

        One that is approved meanwhile comes first, though more may go by now; else that of the same segments.
        """
        self._waiting = {ids: run for ids, run in self._waiting.items() if {*ids} <= {*wanted}}
        for ids, (run_key, _) in self._waiting.items():
            run = context.run(run_key)
            if not consent_of(context, run, approved_plan(run).decisions).refuses:
                wanted = ids
                break
        run_key, asked = self._waiting.pop(wanted, (f"{_RUN_PREFIX}{now_ms}", request))
        try:
            self._make(context, run_key, asked)
        except NotApprovedError:
            # One of before the policy asked for it can never be approved.
            if starters_of(context.journal, context.run(run_key)):
                self._waiting[wanted] = (run_key, asked)
            raise

    def _make(self, context: Context, run_key: str, request: PlanRequest | None) -> None:
        """Take every step of a run. One that has begun to delete is gone on with until it is over."""
        cleanup = cycle.Cleanup(context, run_key, request)
        cycle.plan(cleanup)
        self._unfinished = (run_key, request)
        try:
            for step in cycle.CLEANUP[1:-1]:
                if self._stopped.is_set():
                    raise StoreBusyError(
                        f"{self._store.root}: expected to go on with run {run_key}, found that the process "
                        "which serves the store ends. The next one goes on with what has begun to go."
                    )
                step(cleanup)
        finally:
            finished = cycle.report(cleanup)
            run = context.run(run_key)
            if finished.finished or not context.journal.events(run, Step.RELEASE, Phase.INTENT):
                self._unfinished = None
        finished.raise_refused()


def _begun_before(context: Context) -> tuple[str, PlanRequest | None] | None:
    """Return the run of a loop that was killed while it deleted; None: there is none."""
    intents = context.journal.store_events(context.record.store_id, Step.RELEASE, Phase.INTENT)
    if not intents or not intents[-1].run_key.startswith(_RUN_PREFIX):
        return None
    run = context.run(intents[-1].run_key)
    return None if run.state in (RunState.FINISHED, RunState.EXPIRED) else (run.run_key, run.request)


def proven_release(store: ManagedStore) -> ProvenRelease:
    """Return the deleter that lets the loop of a store served by this process delete proven segments, and no
    others.

    :raises LakeMissingError: no lake is there.
    """
    check_any_catalog_file(store.lakes)
    return ProvenRelease(store)
