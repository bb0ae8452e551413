"""Runs that delete what is proven, beside the passes of a cleanup: a run takes as long as its archive does.

Meanwhile the passes go on to say what a full disk means for writing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from storage_engine.model.plan.plan import PlanRequest, Release

_log = logging.getLogger(__name__)

STOP_SECONDS = 20.0
"""For how long who stops waits for a step. What it leaves then is as after a kill: the next run goes on."""


class ReleaseBeside:
    """Has one run at a time made, in a thread of its own."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._thread: threading.Thread | None = None

    def __call__(self, request: PlanRequest) -> None:
        """Begin a run, unless one is going on."""
        if self._thread is not None and self._thread.is_alive():
            return
        # An end of this process may not wait for hours.
        self._thread = threading.Thread(target=self._run, args=(request,), name="release", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let a run end at its next step, and wait for that a little."""
        self._release.stop()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self, request: PlanRequest) -> None:
        try:
            self._release(request)
        except Exception:
            # A later pass asks again; messages are taken meanwhile.
            _log.warning("A run that deletes what is proven failed.", exc_info=True)


@contextmanager
def releasing_beside(release: Release) -> Iterator[ReleaseBeside]:
    """Stop the runs when the block ends."""
    beside = ReleaseBeside(release)
    try:
        yield beside
    finally:
        beside.stop()
